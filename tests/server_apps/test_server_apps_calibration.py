"""A total epsilon: met by the account, not wasted; what cannot be proven is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError
from privet.kernel import AgentLedger, Facts
from privet.rounds import participation
from privet.rounds.calibration import calibrated, plans
from privet.rounds.options import RunOptions
from privet.rounds.roster import EnrolledAgent, Roster
from privet.rounds.session import Session
from privet.server_apps import read_config
from privet.sim.inline import run_inline
from privet.strategies import DPFedSGD
from privet.wire import Layout
from support.federations import zeros

BASE: dict[str, Any] = {
    "num-agents": 6,
    "num-server-rounds": 8,
    "clip": 0.5,
    "target-epsilon": 2.0,
    "evaluate-every": 8,
    "checkpoint-every": 0,
    "delta": 1e-4,
}


def finished(tmp_path: Path, **settings: Any) -> Any:
    raw = {**BASE, "output-dir": str(tmp_path), **settings}
    raw = {key: value for key, value in raw.items() if value is not None}
    return run_inline(raw, "run")


def test_balanced_turns_need_less_noise_than_uniform_sampling() -> None:
    facts = Facts(num_examples=10, divisor=10.0, dim=2).to_json()
    roster = Roster({str(i): EnrolledAgent(i, num_examples=10, facts=facts) for i in range(20)})
    most = {}
    for kind in ("balanced", "fraction"):
        config = read_config(
            {
                "algorithm": "fed-pdm",
                "participation": kind,
                "fraction": 0.25,
                "num-server-rounds": 40,
            }
        )
        session = Session("", Layout.of(zeros(2)), np.zeros(2), None, roster)
        options = RunOptions(participation=participation.from_config(config), rounds=40)
        turns = [len(plan.rounds) for plan in plans(session, options).values()]
        assert sum(turns) == 40 * 5
        most[kind] = max(turns)
    assert most["balanced"] == 10
    assert most["fraction"] > 12


def resumed(
    paid: list[int], *, asked: int = 10, played: int = 8, target: float = 2.0, **keys: Any
) -> tuple[Any, Session, Any]:
    """Return a run of ten rounds that is resumed, by the number of messages that each agent paid.

    The noise is that at which ten cost the target.
    """
    facts = Facts(num_examples=100, divisor=100.0, dim=2)
    half = DPFedSGD(clip=1.0, target_epsilon=target).half
    start = {"noise-scale": 1.0}
    whole = half.with_settings({"target-epsilon": 2.0, **start})
    agents = {str(i): EnrolledAgent(i, 100, facts=facts.to_json()) for i in range(len(paid))}
    session = Session("", Layout.of(zeros(2)), zeros(2), None, Roster(agents))
    whole, _ = calibrated(whole, session, RunOptions(rounds=10))
    release = whole.agent.release(facts, 1)
    for agent, count in zip(agents.values(), paid, strict=True):
        agent.tag, agent.ledger = played, AgentLedger.of([(release, count)]).to_json()
    session.round, session.rounds_before = played, 10
    session.settings_before = whole.settings()
    options = RunOptions(rounds=asked, **keys)
    return whole, session, lambda: calibrated(half.with_settings(start), session, options)


def test_a_resume_goes_on_for_the_rounds_that_can_be_paid() -> None:
    whole, session, calibrate = resumed([8, 10, 8])
    half, last = calibrate()
    assert (half.settings(), last) == (whole.settings(), 10)
    assert {name for name, agent in session.roster.agents.items() if agent.out} == {"1"}
    assert "has paid 2 of target-epsilon = 2" in session.roster.agents["1"].out
    assert set(plans(session, RunOptions(rounds=10))) == {"0", "2"}


@pytest.mark.parametrize(
    ("paid", "keys", "last"),
    [
        ([10, 10, 10], {}, 8),
        ([8, 10, 8], {"min_agents": 3}, 8),
        ([9, 10, 9], {"min_agents": 2}, 9),
        ([9, 10, 8], {"min_agents": 2}, 9),
        ([9, 10, 8], {}, 10),
        ([9, 9, 8], {"min_agents": 3}, 10),  # with more noise
    ],
)
def test_a_resume_ends_before_the_round_that_too_few_can_pay(
    paid: list[int], keys: dict[str, Any], last: int
) -> None:
    whole, _, calibrate = resumed(paid, **keys)
    half, found = calibrate()
    assert found == last
    assert (half.settings() == whole.settings()) == (10 in paid)


@pytest.mark.parametrize("asked", [{"asked": 12}, {"target": 1.5}])
def test_more_rounds_or_a_lower_target_than_is_paid_for_are_refused(asked: dict[str, Any]) -> None:
    _, _, calibrate = resumed([10, 10, 10], **asked)
    with pytest.raises(ConfigError, match="agents have paid 2 already; raise it to go on"):
        calibrate()


def test_a_run_without_rounds_left_needs_no_noise() -> None:
    whole, _, calibrate = resumed([12, 10, 10], played=10)
    half, last = calibrate()
    assert (half.settings(), last) == (whole.settings(), 10)


def test_run_with_h_ends_at_the_optimum_it_is_compared_with(tmp_path: Path) -> None:
    run = finished(
        tmp_path,
        **{
            "algorithm": "fed-pdm",
            "target-epsilon": None,
            "delta": 1e-5,
            "clip": 0.0,
            "h": "l1",
            "h-weight": 0.01,
            "num-server-rounds": 400,
            "evaluate-every": 400,
            "step-size-base": 0.15,
            "step-size-rule": "constant",
            "rho": 0.5,
            "regularizer-weight": 0.1,
        },
    )
    assert run.summary["distance-to-optimum"] < 1e-6
    assert run.summary["stationarity"] < 1e-10
