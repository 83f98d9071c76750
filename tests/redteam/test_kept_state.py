"""What a node kept from before it had a budget, and what it sent without being heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from privet.client_apps import client_app
from privet.privacy import AgentLedger
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD, FedPLT, PrimalDualStrategy
from privet.wire.contract import agent_record, encode_settings, is_need_state, shared_record
from redteam.harness import SETTINGS, Node, problem
from support.federations import zeros

OPEN = {"max_epsilon": None, "delta": None, "ledger_path": None}
QUIET = {"noise_variance": 0.0, "clip": 0.0, "local_solver": "gd", "row_norm": 0.0}
TRIED = {"noise_seed": 3}


@pytest.mark.parametrize("before", [QUIET, TRIED], ids=["un-noised", "seeded"])
@pytest.mark.parametrize("accounted", [False, True])
def test_state_of_rounds_that_were_not_charged_is_not_gone_on_from(
    before: dict[str, Any], accounted: bool, tmp_path: Path
) -> None:
    """A budget set later: the x_i of those rounds would stand under next to no noise."""
    kept = str(tmp_path / "state.npz")
    free = Node(tmp_path, problem(), **OPEN, state_path=kept)
    if accounted:  # an account of another experiment vouches for nothing
        assert free.train("dp-fedsgd", experiment="old").refusal is None
    assert free.train("fed-plt", experiment="one", **before).refusal is None

    node = Node(tmp_path, problem(), max_epsilon=1e3, state_path=kept)
    settings = {**SETTINGS["fed-plt"], "step-size": 1e-6, "clip": 1e-4, "noise-variance": 2e-8}
    shared = shared_record(
        "fed-plt", 1, "one", 2, encode_settings(settings), {"y": np.zeros(node.dim)}
    )
    reply = node.send(RecordDict({"privet": shared, "privet.agent": agent_record(1)}))
    assert reply.has_content()
    assert is_need_state(reply.content)
    assert not node.charges


def test_enrolment_names_no_experiment_but_the_one_that_asks(tmp_path: Path) -> None:
    node = Node(tmp_path, problem(), max_epsilon=1e3)
    assert node.train("dp-fedsgd", experiment="secret").refusal is None
    assert "secret" not in str(node.enrol("dp-fedsgd", experiment="other"))


class Deaf(InlineGrid):
    """Loses the replies of some nodes."""

    lost: frozenset[int] = frozenset()

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        return None if message.metadata.dst_node_id in self.lost else reply


SUMMED = FedPLT(local_solver="noisy-gd", clip=1.0, row_norm=1.0, noise_variance=1.0,
                num_agents=5, round_timeout=0.5, secure_sum=True)  # fmt: skip


@pytest.mark.parametrize(
    "strategy", [DPFedSGD(num_agents=5, clip=1.0, noise_scale=0.5, round_timeout=0.2), SUMMED],
    ids=["in clear", "masked"],
)  # fmt: skip
def test_a_reply_that_is_lost_counts_until_the_agent_speaks(strategy: PrimalDualStrategy) -> None:
    """Its upload may have been seen; the agent's own account then takes the place of ours."""
    grid = Deaf(client_app(strategy.algorithm, lambda context: problem()), 5)
    session = strategy.begin(grid, zeros(4))
    spent = []
    for number in (1, 2, 3):
        grid.lost = frozenset(sorted(grid.get_node_ids())[:1] if number == 2 else ())
        strategy.play_round(grid, number)
        spent.append(AgentLedger.from_json(session.roster.agents["0"].ledger).messages)
    assert spent == [1, 2, 3]
