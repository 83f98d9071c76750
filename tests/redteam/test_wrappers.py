"""Flower's own wrappers and mods for privacy protect nothing here, and are refused by name.

Our uploads are no ArrayRecords, and our strategies keep the models: what such a wrapper clips or
perturbs is a copy that nobody uses. What a mod in a ClientApp of one's own does is in
tests/strategies/test_strategies_flower.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import Context
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from privet.client_apps import client_app
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD
from privet.wire import PrivetError
from support.federations import logistic_agents, zeros

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


def nobody(context: Context) -> Any:
    raise AssertionError("a node is asked")


@pytest.mark.parametrize(("wrapper", "options"), WRAPPERS)
def test_a_wrapper_is_refused_by_name(wrapper: Any, options: dict[str, Any]) -> None:
    """With what to use in its place, before any node is asked."""
    grid = InlineGrid(client_app(None, nobody), 3)
    with pytest.raises(PrivetError) as caught:
        wrapper(DPFedSGD(num_agents=3), **options).start(grid, zeros(4), num_rounds=2)
    assert wrapper.__name__ in str(caught.value)
    assert "clip" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mod", MODS)
def test_a_mod_is_refused_at_construction(mod: str) -> None:
    with pytest.raises(PrivetError, match=mod):
        client_app("fed-plt", nobody, mods=[MODS[mod]])
