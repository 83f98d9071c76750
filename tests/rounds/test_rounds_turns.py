"""Batches in turn over a run: lost replies, absences, and the account of the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message

from privet.client_apps import client_app
from privet.kernel import LedgerFile
from privet.problems import L2, BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD, FedPDM, Scaffold

AGENTS, ROUNDS = 4, 8
RNG = np.random.default_rng(0)
PROBLEMS = [
    BinaryLogistic(
        RNG.standard_normal((20, 3)), np.where(RNG.random(20) < 0.5, 1.0, -1.0), regularizer=L2(0.1)
    )
    for _ in range(AGENTS)
]


class Lossy(InlineGrid):
    """Loses some replies on their way, after they were made."""

    asked = 0

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if not message.metadata.message_type.startswith("train"):
            return reply
        self.asked += 1
        lost = self.asked in (6, 7, 15)
        return Message(Error(code=1, reason="lost"), reply_to=message) if lost else reply


@pytest.mark.parametrize("target", [0.0, 4.0])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (DPFedSGD, {}),
        (Scaffold, {"max_local_steps": 2}),
        (FedPDM, {"max_local_steps": 1, "step_size_rule": "constant"}),
    ],
)
def test_lost_replies_are_steps_of_their_agents_and_break_no_target(
    tmp_path: Path, kind: Any, more: dict[str, Any], target: float
) -> None:
    """The agents go on; their ledgers and the coordinator's account say the same in the end."""
    limits = [
        {"max-epsilon": 100.0, "delta": 1e-5, "ledger-path": str(tmp_path / f"{i}.jsonl")}
        for i in range(AGENTS)
    ]
    nodes = [{"partition-id": i, "num-partitions": AGENTS, **own} for i, own in enumerate(limits)]
    app = client_app(None, lambda context: PROBLEMS[int(context.node_config["partition-id"])])
    noise = {"target_epsilon": target} if target else {"noise_scale": 0.3}
    turns = {"batch": "cyclic", "batches": 4, "noise_bands": 4, "delta": 1e-5}
    strategy = kind(num_agents=AGENTS, clip=1.0, **turns, **noise, **more)
    start = ArrayRecord({"x": Array(np.zeros(3))})
    result = strategy.start(Lossy(app, nodes), start, num_rounds=ROUNDS, log_rounds=False)
    assert [len(done.participants) for done in result.history] == [4, 2, 4, 3, 4, 4, 4, 4]
    ledgers = [LedgerFile(str(own["ledger-path"])).spent(1e-5) for own in limits]
    assert [spent.messages for spent in ledgers] == [ROUNDS] * AGENTS
    stated = [account.spent(1e-5) for account in result.privacy.agents.values()]
    assert stated == pytest.approx([spent.epsilon for spent in ledgers], rel=1e-12)
    if target:
        assert 0.99 * target < max(stated) <= target
