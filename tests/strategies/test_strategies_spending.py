"""A private run that spends and gains nothing ends with a line and an exit code of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType

from privet.core.errors import FruitlessError, HopelessError
from privet.core.exits import Exit
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import DPFedSGD, FedPLT
from privet.strategies.run.outcome import InVainError
from support.federations import app_of, logistic_agents

AGENTS = 4
PATIENT: dict[str, Any] = {"patience": 600.0, "round_timeout": 5.0}
STRAGGLERS: dict[str, Any] = {
    "algorithm": "fed-plt",
    "dataset": "synthetic",
    "num-agents": 6,
    "asynchronous": True,
    "speeds": "stragglers",
    "round-timeout": 2.0,
    "max-uploads": 5,
    "target-epsilon": 3.0,
    "clip": 1.0,
    "row-norm": 1.0,
    "local-solver": "noisy-gd",
}


class Silent(InlineGrid):
    """A grid on which the replies of some agents to training messages are lost."""

    def __init__(self, name: str, lost: str = "", away: int = 10**6) -> None:
        super().__init__(app_of(logistic_agents(AGENTS), name), AGENTS)
        self.silent, self.until, self.counted = lost, away, Counter[str]()

    def deliver(self, message: Message) -> Message | None:
        agent = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        reply = super().deliver(message)
        if message.metadata.message_type == MessageType.TRAIN:
            self.counted[agent] += 1
            if agent in self.silent and self.counted[agent] <= self.until:
                return None
        return reply


def start() -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(4))})


def private(**options: Any) -> DPFedSGD:
    noised: dict[str, Any] = {"clip": 1.0, "noise_scale": 1.0, "step_size_base": 0.1}
    return DPFedSGD(num_agents=AGENTS, **noised, **PATIENT, **options)


def test_an_asynchronous_run_stops_once_each_agent_spent_a_task(tmp_path: Path) -> None:
    config = {**STRAGGLERS, "output-dir": str(tmp_path)}
    with pytest.raises(FruitlessError, match=r"round-timeout = 2 is shorter than a task.*raise it"):
        run_inline(config, "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["exit-code"]) == ("failed", Exit.FRUITLESS)
    assert not (tmp_path / "run" / "statement.html").exists()
    account = json.loads((tmp_path / "run" / "privacy.json").read_text())
    for agent in account["agents"].values():
        assert sum(one["times"] for one in agent["releases"]) == 1
    with pytest.raises(HopelessError, match="ended without a model of use"):
        run_inline({**config, "resume": "auto"}, "again")
    enough = {**config, "round-timeout": 1e4, "max-uploads": 3, "num-server-rounds": 3}
    assert run_inline(enough, "enough").result.exit_code == Exit.DONE


@pytest.mark.usefixtures("clock")
def test_a_synchronous_round_without_a_reply_is_not_tried_again_and_again() -> None:
    grid = Silent("dp-fedsgd", lost="0123")
    with pytest.raises(InVainError, match="4 agents were charged for tasks without an upload"):
        private().start(grid, start(), num_rounds=3)
    assert grid.counted == dict.fromkeys("0123", 1)


@pytest.mark.usefixtures("clock")
def test_an_agent_is_asked_at_most_three_times_while_others_uploads_wait() -> None:
    grid = Silent("dp-fedsgd", lost="2")
    with pytest.raises(InVainError, match="3 of 4 agents replied"):
        private(min_agents=AGENTS).start(grid, start(), num_rounds=3)
    assert grid.counted == {"0": 1, "1": 1, "2": 3, "3": 1}


@pytest.mark.usefixtures("clock")
def test_an_agent_that_comes_back_takes_part_and_may_be_lost_again() -> None:
    grid = Silent("dp-fedsgd", lost="2", away=2)
    found = private(min_agents=AGENTS).start(grid, start(), num_rounds=3)
    assert [done.participants for done in found.history] == [tuple("0123")] * 3
    assert grid.counted == {"0": 3, "1": 3, "2": 5, "3": 3}


@pytest.mark.usefixtures("clock")
def test_a_run_without_noise_is_tried_as_long_as_it_has_patience() -> None:
    grid = Silent("fed-plt", lost="0123", away=3)
    found = FedPLT(num_agents=AGENTS, **PATIENT).start(grid, start(), num_rounds=2)
    assert len(found.history) == 2
    assert grid.counted == dict.fromkeys("0123", 5)


def test_a_run_that_diverged_offers_no_statement_and_has_a_code(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "algorithm": "dp-fedsgd",
        "dataset": "synthetic",
        "num-agents": 3,
        "clip": 1.0,
        "noise-scale": 1e-3,
        "step-size-base": 1e8,
        "step-size-rule": "constant",
        "on-divergence": "stop",
        "output-dir": str(tmp_path),
    }
    finished = run_inline(config, "run")
    assert finished.summary["status"] == "diverged"
    assert finished.summary["exit-code"] == finished.result.exit_code == Exit.FRUITLESS
    assert finished.summary["private"]
    assert not (tmp_path / "run" / "statement.html").exists()
