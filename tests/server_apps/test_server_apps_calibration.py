"""A total epsilon: met by the account, not wasted; what cannot be proven is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from privet.kernel import Facts
from privet.server_apps import read_config
from privet.sim.inline import run_inline
from privet.strategies import participation
from privet.strategies.run.calibration import plans
from privet.strategies.run.options import RunOptions
from privet.strategies.run.roster import Agent, Roster
from privet.strategies.run.session import Session
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
    roster = Roster({str(i): Agent(i, num_examples=10, facts=facts) for i in range(20)})
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
