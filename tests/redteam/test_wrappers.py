"""Flower's own wrappers and mods for privacy protect nothing here, and are refused by name.

Our uploads are no ArrayRecords, and our strategies keep the models: what such a wrapper clips or
perturbs is a copy that nobody uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from privet.client_apps import Participant, client_app
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD, FedPLT
from privet.wire import PrivetError
from support.federations import logistic_agents, position, zeros

FIXED: dict[str, Any] = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 3}
ADAPTIVE: dict[str, Any] = {
    "noise_multiplier": 0.1,
    "num_sampled_clients": 3,
    "clipped_count_stddev": 1.0,
}
WRAPPERS: list[tuple[Any, dict[str, Any]]] = [
    (DifferentialPrivacyServerSideFixedClipping, FIXED),
    (DifferentialPrivacyClientSideFixedClipping, FIXED),
    (DifferentialPrivacyServerSideAdaptiveClipping, ADAPTIVE),
    (DifferentialPrivacyClientSideAdaptiveClipping, ADAPTIVE),
]
MODS: dict[str, Any] = {
    "fixedclipping_mod": fixedclipping_mod,
    "adaptiveclipping_mod": adaptiveclipping_mod,
    "LocalDpMod": LocalDpMod(1.0, 1.0, 1.0, 1e-5),
}
PROBLEMS = logistic_agents(3)


class Enough(BaseException):
    """So many messages were sent that nobody means to stop."""


class Counted:
    """An app that counts the messages it is sent, by type."""

    def __init__(self, app: Callable[[Message, Context], Message]) -> None:
        self.app = app
        self.trained = 0
        self.messages = 0

    def __call__(self, message: Message, context: Context) -> Message:
        self.messages += 1
        if self.messages > 30:
            raise Enough
        self.trained += message.metadata.message_type == "train"
        return self.app(message, context)


def of_problem(context: Context) -> Any:
    return PROBLEMS[position(context)]


@pytest.mark.parametrize("strategy", [DPFedSGD, FedPLT])
@pytest.mark.parametrize(("wrapper", "options"), WRAPPERS)
def test_a_wrapper_is_refused_by_name(wrapper: Any, options: dict[str, Any], strategy: Any) -> None:
    """With what to use in its place, and within the first round."""
    app = Counted(client_app(None, of_problem))
    with pytest.raises(PrivetError) as caught:
        wrapper(strategy(num_agents=3), **options).start(InlineGrid(app, 3), zeros(4), num_rounds=2)
    assert wrapper.__name__ in str(caught.value)
    assert "clip" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert app.trained <= 3  # at the first reply at the latest


@pytest.mark.parametrize("mod", MODS)
def test_a_mod_is_refused_at_construction(mod: str) -> None:
    with pytest.raises(PrivetError, match=mod):
        client_app("fed-plt", of_problem, mods=[MODS[mod]])


@pytest.mark.parametrize("mod", MODS)
def test_a_mod_in_an_app_of_ones_own_ends_the_run_at_once(mod: str) -> None:
    """Every answer is the same error: asking again and again does not help."""
    participant = Participant(of_problem)
    own = ClientApp(mods=[MODS[mod]])
    own.query("privet")(participant.query)
    own.train()(participant.train)
    app = Counted(own)
    with pytest.raises(PrivetError, match=mod):
        FedPLT(num_agents=3).start(InlineGrid(app, 3), zeros(4), num_rounds=2)
    assert app.messages <= 9
