"""Algorithms against their papers' recursions; what is particular to SCAFFOLD and its like."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.client_apps.rivals.dp_fedsgd import Agent
from privet.client_apps.rivals.scaffold import Agent as ScaffoldAgent
from privet.privacy import Facts, Release
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
from privet.wire import stream
from support.federations import logistic_agents, model, position, zeros

Vector = NDArray[np.float64]
PROBLEMS = logistic_agents(6)
NAMES = [str(i) for i in range(6)]
ZERO = np.zeros(4)
ROUNDS = 9


def play(strategy: PrimalDualStrategy, rounds: int = ROUNDS) -> Vector:
    app = client_app(strategy.algorithm, lambda context: PROBLEMS[position(context)])
    return model(strategy.start(InlineGrid(app, len(PROBLEMS)), zeros(4), num_rounds=rounds))


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
    assert np.abs(play(kind(**settings), 500) - best).max() < 1e-9


def test_a_message_counts_as_many_releases_as_it_has_noised_steps() -> None:
    settings = {"clip": 0.5, "noise-scale": 0.2, "max-local-steps": 3}
    facts = Facts.of(PROBLEMS[0])
    rows = PROBLEMS[0].num_examples
    margin = 1 + 2**-19  # of the rounding of a sum
    release = ScaffoldAgent.from_settings(settings).release(facts, 1)
    assert release == Release(
        "gaussian",
        scale=0.2,
        sensitivity=release.sensitivity,
        count=3,
        what="scaffold noised local gradients",
    )
    assert 1.0 <= release.sensitivity * rows <= margin
    one = Agent.from_settings({"clip": 0.5, "noise-scale": 0.2, "relation": "add-remove"})
    assert 0.5 <= one.release(facts, 1).sensitivity * rows <= 0.5 * margin
    assert one.release(facts, 1).count == 1
    assert Agent.from_settings({"clip": 0.5}).release(facts, 1).mechanism == "none"
    whole = Agent.from_settings({"clip": 0.5, "noise-scale": 0.2, "clipping": "batch"})
    assert 1.0 <= whole.release(facts, 1).sensitivity <= margin


def test_noise_has_the_scale_it_is_accounted_with() -> None:
    settings = options(
        noise_scale=0.3,
        clip=100.0,
        noise_seed=3,
        participation=None,
        momentum=0.0,
        step_size_rule="constant",
    )
    clean = play(DPFedSGD(**{**settings, "noise_scale": 0.0}), 1)
    gaps = [(play(DPFedSGD(**{**settings, "noise_seed": s}), 1) - clean) / 0.3 for s in range(200)]
    # 800 draws of N(0, 0.3^2 / 6): five standard deviations of the estimated deviation.
    assert np.std(gaps) == pytest.approx(0.3 / math.sqrt(6), rel=5 / math.sqrt(1600))


def test_mini_batches_come_from_the_agents_own_stream() -> None:
    found = play(DPFedSGD(**options(batch="sample", batch_size=4, momentum=0.0)), 1)
    slopes = []
    for i in active(1, 0.5):
        rows = stream(0, "batches", str(i), 1).choice(20, 4, replace=False, shuffle=False)
        slopes.append(PROBLEMS[i].gradient(np.zeros(4), rows))
    assert np.abs(found + 0.3 * np.mean(slopes, axis=0)).max() < 1e-12
