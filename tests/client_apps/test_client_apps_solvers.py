"""Local solvers against closed forms on a quadratic, and one step against the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privet.client_apps.half import Streams
from privet.client_apps.solvers import SOLVERS, Subproblem
from privet.privacy import SeededNoise
from privet.problems import L2, BinaryLogistic, Moduli, best_step
from privet.wire import ConfigError

STREAMS = Streams(0, "1", 1)
NOISE = SeededNoise(0)


class Quadratic:
    """f(w) = w' H w / 2 - b' w with a diagonal H."""

    num_examples = 6

    def __init__(self, curvature: Any, offset: Any, dtype: str = "f8") -> None:
        self.curvature = np.asarray(curvature, dtype)
        self.offset = np.asarray(offset, dtype)
        self.dim = self.curvature.size
        self.dtype = np.dtype(dtype)
        self.batches: list[list[int]] = []

    def value(self, x: Any) -> float:
        return float(0.5 * x @ (self.curvature * x) - self.offset @ x)

    def gradient(self, x: Any, rows: Any = None) -> Any:
        if rows is not None:
            self.batches.append(sorted(rows.tolist()))
        return self.curvature * x - self.offset


def subproblem(problem: Any, **options: Any) -> Subproblem:
    moduli = Moduli(float(problem.curvature.min()), float(problem.curvature.max()))
    values: dict[str, Any] = {
        "problem": problem,
        "v": np.linspace(-1, 1, problem.dim).astype(problem.dtype),
        "rho": 0.7,
        "moduli": moduli,
        "step_size": best_step(moduli, 0.7),
        "steps": 400,
        "batch_size": 2,
        **options,
    }
    return Subproblem(**values)


def minimiser(task: Subproblem) -> Any:
    """Return (H + I/rho)^-1 (b + v/rho)."""
    problem: Any = task.problem
    return (problem.offset + task.v / task.rho) / (problem.curvature + 1 / task.rho)


@pytest.mark.parametrize("solver", ["gd", "agd", "sgd", "noisy-gd"])
def test_every_solver_converges_to_the_minimiser(solver: str) -> None:
    task = subproblem(Quadratic([0.5, 1.0, 4.0], [1.0, -2.0, 0.3]))
    found = SOLVERS[solver](task, np.full(3, 9.0), STREAMS, NOISE)
    assert np.allclose(found, minimiser(task), atol=1e-12)


@pytest.mark.parametrize("solver", ["gd", "agd", "sgd", "noisy-gd"])
def test_precision_is_kept_and_inputs_are_not_written(solver: str) -> None:
    problem = Quadratic([0.5, 1.0, 4.0], [1.0, -2.0, 0.3], "f4")
    task = subproblem(problem, steps=3)
    start, v = np.full(3, 9.0, "f4"), task.v.copy()
    found = SOLVERS[solver](task, start, STREAMS, NOISE)
    assert found.dtype == np.float32
    assert (start == 9).all()
    assert (task.v == v).all()


def test_one_gradient_step_is_equation_11() -> None:
    task = subproblem(Quadratic([2.0], [1.0]), steps=1, step_size=0.1, v=np.array([3.0]))
    # w - gamma (H w - b + (w - v) / rho) at w = 5
    expected = 5 - 0.1 * (2 * 5 - 1 + (5 - 3) / 0.7)
    assert SOLVERS["gd"](task, np.array([5.0]), STREAMS, NOISE) == pytest.approx(expected)


def test_two_accelerated_steps_are_equation_12() -> None:
    task = subproblem(Quadratic([1.0, 3.0], [0.0, 1.0]), steps=2, rho=1.0)
    low, high = np.sqrt(2.0), np.sqrt(4.0)
    momentum = (high - low) / (high + low)
    w = u = np.array([1.0, -1.0])
    for _ in range(2):
        ahead = w - (np.array([1.0, 3.0]) * w - np.array([0.0, 1.0]) + (w - task.v)) / 4.0
        w, u = ahead + momentum * (ahead - u), ahead
    found = SOLVERS["agd"](task, np.array([1.0, -1.0]), STREAMS, NOISE)
    assert np.allclose(found, w, atol=1e-15)


def test_batches_are_drawn_without_replacement_and_named() -> None:
    problem = Quadratic([1.0], [0.0])
    task = subproblem(problem, steps=50, batch_size=4)
    SOLVERS["sgd"](task, np.ones(1), STREAMS, NOISE)
    first = problem.batches.copy()
    assert all(len(set(batch)) == 4 and max(batch) < 6 for batch in first)
    assert len({tuple(batch) for batch in first}) > 5
    problem.batches.clear()
    SOLVERS["sgd"](task, np.ones(1), Streams(0, "1", 1), NOISE)
    assert problem.batches == first
    problem.batches.clear()
    SOLVERS["sgd"](task, np.ones(1), Streams(0, "1", 2), NOISE)
    assert problem.batches != first


def test_noise_has_variance_two_gamma_tau_squared() -> None:
    problem = Quadratic(np.ones(40_000), np.zeros(40_000))
    task = subproblem(problem, steps=1, step_size=0.2, noise_variance=0.3, v=np.zeros(40_000))
    found = SOLVERS["noisy-gd"](task, np.zeros(40_000), STREAMS, NOISE)
    expected = 2 * 0.2 * 0.3
    # The sample variance of 40,000 draws has relative deviation sqrt(2/n) = 0.7 %.
    assert abs(found.var() / expected - 1) < 6 * (2 / 40_000) ** 0.5


def test_clip_bounds_every_example() -> None:
    rng = np.random.default_rng(0)
    problem = BinaryLogistic(rng.standard_normal((6, 3)) * 50, [1, -1] * 3, regularizer=L2(0.1))
    task = Subproblem(problem, np.zeros(3), 1.0, Moduli(0.1, 1.0), 1.0, 1, clip=0.01)
    found = SOLVERS["noisy-gd"](task, np.zeros(3), STREAMS, NOISE)
    assert np.linalg.norm(found) <= 0.01 + 1e-12


def test_problem_that_cannot_clip_says_so() -> None:
    task = subproblem(Quadratic([1.0], [0.0]), clip=1.0)
    with pytest.raises(ConfigError, match="cannot clip"):
        SOLVERS["noisy-gd"](task, np.ones(1), STREAMS, NOISE)
