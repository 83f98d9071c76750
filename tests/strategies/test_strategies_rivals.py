"""Algorithms against their papers' recursions; what is particular to SCAFFOLD and its like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.kernel import stream
from privet.problems import make_h, minimize
from privet.sim.engine import InlineGrid
from privet.strategies import (
    DPFedSGD,
    FedDyn,
    FedPDM,
    Fraction,
    PrimalDualStrategy,
    Scaffold,
)
from support.federations import app_of, logistic_agents, model, zeros

Vector = NDArray[np.float64]
PROBLEMS = logistic_agents(6)
NAMES = [str(i) for i in range(6)]
ROUNDS = 9


def play(strategy: PrimalDualStrategy, rounds: int = ROUNDS, **start: Any) -> Vector:
    app = app_of(PROBLEMS, strategy.algorithm)
    return model(
        strategy.start(InlineGrid(app, len(PROBLEMS)), zeros(4), num_rounds=rounds, **start)
    )


def active(round_: int, fraction: float) -> list[int]:
    return [int(name) for name in Fraction(fraction).select(round_, NAMES, 0)]


def options(**own: Any) -> dict[str, Any]:
    return {"num_agents": 6, "step_size_base": 0.3, "participation": Fraction(0.5), **own}


def test_all_three_and_fed_pdm_are_fed_sgd_with_one_step_and_everybody() -> None:
    run = {"num_agents": 6, "step_size_rule": "constant"}
    sgd = play(DPFedSGD(momentum=0.0, step_size_base=0.4, **run))
    base = {**run, "max_local_steps": 1}
    x = np.zeros(4)
    for _ in range(ROUNDS):
        x = x - 0.4 * np.mean([problem.gradient(x) for problem in PROBLEMS], axis=0)
    assert np.abs(sgd - x).max() < 1e-12
    # c is the mean of the c_i, so the corrections cancel when everybody takes part.
    scaffold = play(Scaffold(step_size_base=0.4, **base))
    assert np.abs(scaffold - x).max() < 1e-12
    pdm = play(FedPDM(rho=2.5, step_size_base=0.2, **base))
    assert np.abs(pdm - x).max() < 1e-12


@pytest.mark.parametrize("kind", [Scaffold, FedDyn])
def test_both_corrections_converge_to_the_minimiser(kind: Any) -> None:
    best = minimize(PROBLEMS, make_h("zero")).x
    settings = options(max_local_steps=5, step_size_rule="constant")
    if kind is FedDyn:
        settings["fed_dyn_alpha"] = 1.0
    assert np.abs(play(kind(**settings), 500, tolerance=1e-24) - best).max() < 1e-9


def test_mini_batches_come_from_the_agents_own_stream() -> None:
    found = play(DPFedSGD(**options(batch="sample", batch_size=4, momentum=0.0)), 1)
    slopes = []
    for i in active(1, 0.5):
        rows = stream(0, "batches", str(i), 1).choice(20, 4, replace=False, shuffle=False)
        slopes.append(PROBLEMS[i].gradient(np.zeros(4), rows))
    assert np.abs(found + 0.3 * np.mean(slopes, axis=0)).max() < 1e-12
