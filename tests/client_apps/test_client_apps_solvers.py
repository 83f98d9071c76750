"""Local solvers against closed forms on a quadratic, and one step against the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privet.client_apps.fed_plt import Agent
from privet.client_apps.half import Streams
from privet.client_apps.solvers import SOLVERS, Subproblem
from privet.privacy import Facts, NoiseError, Perturber, Release, SeededNoise
from privet.problems import L2, BinaryLogistic, Moduli, MultinomialLogistic, best_step
from support.perturbers import perturber

STREAMS = Streams(0, "1", 1)
NOISE = Perturber(Release("none"), SeededNoise(0), Facts(1, 1.0, 1))


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
    with pytest.raises(TypeError, match="cannot clip"):
        SOLVERS["noisy-gd"](task, np.ones(1), STREAMS, NOISE)


class Scripted:
    """Draws of deviation 1 that are given; the scale multiplies them."""

    private = True

    def __init__(self, draws: Any) -> None:
        self.draws, self.scales = draws, set()

    def gaussian(self, size: Any, scale: float, dtype: Any = float) -> Any:
        self.scales.add(scale)
        return scale * self.draws.reshape(size)

    laplace = gaussian


@pytest.mark.parametrize("loss", ["scalar", "softmax"])
def test_charged_steps_are_equation_13_with_the_charged_noise(loss: str) -> None:
    """One record is charged with hidden steps, the other as a composition: the same iterates."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((6, 3))
    weight, gamma, clip, rho, steps, variance = 0.2, 0.3, 0.4, 2.0, 4, 0.05
    if loss == "scalar":
        problem: Any = BinaryLogistic(rows, [1, -1] * 3, regularizer=L2(weight))
    else:
        problem = MultinomialLogistic(rows, [0, 1, 1] * 2, 2, regularizer=L2(weight))
    half = Agent(
        rho=rho,
        local_solver="noisy-gd",
        local_epochs=steps,
        step_size=gamma,
        row_norm=1.5,
        clip=clip,
        noise_variance=variance,
    )
    problem = half.prepare(problem)
    start, z, y = rng.standard_normal((3, problem.dim))
    draws = rng.standard_normal((steps, problem.dim))
    source = Scripted(draws)
    release = half.release(Facts.of(problem), 1)
    assert (release.count, release.steps) == ((1, steps) if loss == "scalar" else (steps, 1))
    noise = Perturber(release, source, Facts.of(problem))
    local = half.local_update({"x": start, "z": z}, {"y": y}, problem, STREAMS, noise)
    noise.settle()

    scale = (2 * gamma * variance) ** 0.5
    assert source.scales == {scale}
    w, v = start, 2 * y - z
    for draw in draws:
        slope = weight * w
        for i in range(6):
            bare = type(problem)(
                problem.features[i : i + 1],
                problem.labels[i : i + 1],
                *([2] if loss == "softmax" else []),
            )
            g = bare.gradient(w)
            slope = slope + g * min(1.0, clip / np.linalg.norm(g)) / 6
        w = w - gamma * (slope + (w - v) / rho) + scale * draw
    # The grid rounds by less than min(sensitivity, scale) / 8192 a step.
    assert np.linalg.norm(local.upload["x"] - w) < steps * 2 * 0.3 * 2 * 0.4 / 6 / 8192
    assert (local.upload["x"] != w).any()


def test_a_half_that_is_asked_for_more_steps_than_charged_gets_no_noise_for_them() -> None:
    problem = BinaryLogistic(np.eye(3), [1, -1, 1], regularizer=L2(0.2)).with_rows_within(1.0)
    settings: dict[str, Any] = {
        "local_solver": "noisy-gd",
        "row_norm": 1.0,
        "clip": 1.0,
        "noise_variance": 0.1,
    }
    zero = np.zeros(3)

    def play(other: Agent) -> None:
        noise = perturber(Agent(local_epochs=5, **settings), problem)
        other.local_update({"x": zero, "z": zero}, {"y": zero}, problem, STREAMS, noise)
        noise.settle()

    for steps, reason in ((6, "more than the 5 draws"), (4, "4 draws were taken, 5 charged")):
        with pytest.raises(NoiseError, match=reason):
            play(Agent(local_epochs=steps, **settings))
    with pytest.raises(NoiseError, match=r"a value moves by .* more than"):
        play(Agent(local_epochs=5, **{**settings, "clip": 1.1}))
