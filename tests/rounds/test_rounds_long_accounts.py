"""A run whose accounts would grow longer than they are read is refused before its first message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from privet.agents import guard
from privet.core import ConfigError
from privet.kernel import AgentLedger, Facts
from privet.kernel.agent_ledger import MOST_RELEASES
from privet.rounds import calibration
from privet.rounds.calibration import Plan
from privet.server_apps import read_config
from privet.server_apps.planning import plan_account
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD
from support.federations import app_of, logistic_agents

GEOMETRIC = {"budget_schedule": "geometric", "budget_ratio": 0.99}
LIMITS = [("MOST_RELEASES", 12), ("LONGEST_ACCOUNT", 2500)]


@pytest.fixture(params=LIMITS, ids=["releases", "characters"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make accounts short, for nodes as for the plan."""
    name, value = request.param
    monkeypatch.setattr(calibration, "FEW_RELEASES", 0)
    for module in (guard, calibration):
        monkeypatch.setattr(module, name, value)


class Counting(InlineGrid):
    """Counts messages that ask for an upload."""

    asked = 0

    def deliver(self, message: Message) -> Message | None:
        self.asked += message.metadata.message_type == "train"
        return super().deliver(message)


def played(rounds: int, **keys: Any) -> tuple[Counting, Any]:
    grid = Counting(app_of(logistic_agents(3), "dp-fedsgd"), 3)
    given = {"clip": 1.0, "step_size_base": 0.1, "num_agents": 3, "patience": 0.0, **GEOMETRIC}
    strategy = DPFedSGD(**{**given, **keys})
    start = ArrayRecord({"x": Array(np.zeros(4))})
    try:
        return grid, strategy.start(grid, start, rounds, log_rounds=False)
    except ConfigError as error:
        return grid, error


def is_taken(rounds: int, keys: dict[str, Any]) -> bool:
    """Play a run and check that it was whole, or refused before it asked anybody."""
    grid, result = played(rounds, **keys)
    if isinstance(result, ConfigError):
        assert grid.asked == 0
        assert "num-server-rounds: an agent's account would hold" in str(result)
        assert "budget-schedule = geometric" in str(result)
        return False
    assert grid.asked == 3 * rounds
    assert not any(done.failures for done in result.history)
    return True


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("noise", [{"noise_scale": 1.0}, {"target_epsilon": 8.0}])
def test_every_run_is_whole_or_refused_before_its_first_message(noise: dict[str, Any]) -> None:
    taken = [is_taken(rounds, noise) for rounds in (4, 8, 9, 10, 11, 12, 13, 14, 20)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0]
    assert not taken[-1]


@pytest.mark.usefixtures("limit")
def test_equal_releases_are_one_line_however_many_there_are() -> None:
    assert is_taken(40, {"noise_scale": 1.0, "budget_schedule": "constant", "budget_ratio": 0.0})


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"algorithm": "dp-fedsgd", **GEOMETRIC, "noise-scale": 1.0}, "budget-schedule"),
        ({"algorithm": "dp-fedsgd", **GEOMETRIC, "target-epsilon": 4.0}, "budget-schedule"),
        (
            {"algorithm": "fed-pdm", "step-size-rule": "inverse-sqrt", "noise-scale": 1.0}
            | {"max-local-steps": 1},
            "step-size-rule",
        ),
    ],
)
def test_the_plan_refuses_it_too(keys: dict[str, Any], why: str) -> None:
    given = {key.replace("_", "-"): value for key, value in keys.items()}
    given |= {"clip": 1.0, "num-server-rounds": 40, "num-agents": 3}
    with pytest.raises(ConfigError, match=f"^num-server-rounds: an agent's account .*{why}"):
        plan_account(read_config(given), {"num-examples": 1000})


def test_the_limits_are_those_of_the_reader() -> None:
    half = DPFedSGD(clip=1.0, noise_scale=1.0, budget_schedule="geometric", budget_ratio=0.9999)
    facts = Facts(100, 100.0, 4, loss="binary-logistic")
    long = Plan(AgentLedger(), facts, tuple(range(1, 14_001)))
    with pytest.raises(ValueError, match="longer than"):
        AgentLedger.from_json(long.carried_out(half.half.agent))
    with pytest.raises(ConfigError, match="would hold 14000 different releases"):
        long.require_account(half.half.agent)
    assert len(long.rounds) < MOST_RELEASES
    short = Plan(AgentLedger(), facts, tuple(range(1, 5_001)))
    short.require_account(half.half.agent)
    assert AgentLedger.from_json(short.carried_out(half.half.agent)).messages == 5_000
