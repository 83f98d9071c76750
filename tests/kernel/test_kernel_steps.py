"""The local task: its solvers against closed forms and formulas, what a walk supplies, refusals."""

from __future__ import annotations

import tracemalloc
from typing import Any, ClassVar

import numpy as np
import pytest

from privet.agents.half import Streams
from privet.client_apps.fed_plt import Agent
from privet.client_apps.local_sgd import Agent as SGDAgent
from privet.kernel import (
    Facts,
    Moduli,
    NoiseError,
    Perturber,
    Records,
    RecordsError,
    Release,
    SeededNoise,
    best_step,
)
from privet.kernel.door import Held
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import SOLVERS, LocalTask, Walk
from privet.problems import L2, BinaryLogistic, MultinomialLogistic, public_facts
from support.opened import held, opened
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


SOLVER_NAMES = ["gd", "agd", "sgd", "noisy-gd"]
QUADRATIC = ([0.5, 1.0, 4.0], [1.0, -2.0, 0.3])


def task_on(problem: Any, solver: str = "gd", **options: Any) -> LocalTask:
    """Return a task with every term; sgd takes batches of two."""
    moduli = Moduli(float(problem.curvature.min()), float(problem.curvature.max()))
    values: dict[str, Any] = {
        "start": np.full(problem.dim, 9.0, problem.dtype),
        "center": np.linspace(-1, 1, problem.dim).astype(problem.dtype),
        "rho": 0.7,
        "shift": np.linspace(0.5, 0.1, problem.dim).astype(problem.dtype),
        "moduli": moduli,
        "step_size": best_step(moduli, 0.7),
        "steps": 400,
        "solver": solver,
        "gradients": Gradients(batch_size=2 if solver == "sgd" else 0),
        **options,
    }
    return LocalTask(**values)


def end(task: LocalTask, problem: Any, noise: Perturber = NOISE, streams: Streams = STREAMS) -> Any:
    return Records(Held(problem, 1.0), noise).walk(task, streams).end


def minimiser(task: LocalTask, problem: Any) -> Any:
    """Return (H + I/rho)^-1 (b - shift + center/rho), each term where the task has it."""
    shift = 0.0 if task.shift is None else task.shift
    center = 0.0 if task.center is None else task.center
    return (problem.offset - shift + center / task.rho) / (problem.curvature + 1 / task.rho)


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"shift": None},
        {"center": None},
        {"rho": np.inf},
        {"rho": np.inf, "shift": None},
        {"rho": -4.0, "center": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("solver", SOLVER_NAMES)
def test_every_solver_converges_to_the_minimiser(solver: str, terms: dict[str, Any]) -> None:
    problem = Quadratic(*QUADRATIC)
    moduli = Moduli(0.5, 4.0)
    step = best_step(moduli, terms.get("rho", 0.7))
    task = task_on(problem, solver, step_size=step, **terms)
    assert np.allclose(end(task, problem), minimiser(task, problem), atol=1e-12)


@pytest.mark.parametrize("solver", SOLVER_NAMES)
def test_precision_is_kept_and_inputs_are_not_written(solver: str) -> None:
    problem = Quadratic(*QUADRATIC, "f4")
    task = task_on(problem, solver, steps=3)
    vectors = (task.start, task.center, task.shift)
    before = [np.copy(vector) for vector in vectors if vector is not None]
    found = end(task, problem)
    assert found.dtype == np.float32
    assert all((a == b).all() for a, b in zip(vectors, before, strict=True))


def test_one_gradient_step_is_equation_11_with_the_linear_term() -> None:
    problem = Quadratic([2.0], [1.0])
    given = {"start": np.array([5.0]), "center": np.array([3.0]), "shift": np.array([0.4])}
    # w - gamma (H w - b + shift + (w - center) / rho) at w = 5
    expected = 5 - 0.1 * (2 * 5 - 1 + 0.4 + (5 - 3) / 0.7)
    for solver in ("gd", "sgd", "noisy-gd"):
        task = task_on(problem, solver, steps=1, step_size=0.1, **given)
        assert end(task, problem) == pytest.approx(expected, rel=1e-15)


def test_two_accelerated_steps_are_equation_12() -> None:
    problem = Quadratic([1.0, 3.0], [0.0, 1.0])
    start = np.array([1.0, -1.0])
    task = task_on(problem, "agd", steps=2, rho=1.0, start=start)
    low, high = np.sqrt(2.0), np.sqrt(4.0)
    momentum = (high - low) / (high + low)
    w = u = start
    for _ in range(2):
        slope = np.array([1.0, 3.0]) * w - np.array([0.0, 1.0]) + task.shift + (w - task.center)
        ahead = w - slope / 4.0
        w, u = ahead + momentum * (ahead - u), ahead
    found = Records(Held(problem, 1.0), NOISE).walk(task, STREAMS)
    assert np.allclose(found.end, w, atol=1e-15)
    assert found.steps == 2


def test_batches_are_drawn_without_replacement_and_named() -> None:
    problem = Quadratic([1.0], [0.0])
    task = task_on(problem, "sgd", steps=50, gradients=Gradients(batch_size=4))
    end(task, problem)
    first = problem.batches.copy()
    assert all(len(set(batch)) == 4 and max(batch) < 6 for batch in first)
    assert len({tuple(batch) for batch in first}) > 5
    problem.batches.clear()
    end(task, problem, streams=Streams(0, "1", 1))
    assert problem.batches == first
    problem.batches.clear()
    end(task, problem, streams=Streams(0, "1", 2))
    assert problem.batches != first


def test_noise_has_variance_two_gamma_tau_squared() -> None:
    zero = np.zeros(40_000)
    problem = Quadratic(np.ones(40_000), zero)
    task = LocalTask(zero, 0.2, 1, zero, 0.7, solver="noisy-gd", noise_variance=0.3)
    expected = 2 * 0.2 * 0.3
    # The sample variance of 40,000 draws has relative deviation sqrt(2/n) = 0.7 %.
    assert abs(end(task, problem).var() / expected - 1) < 6 * (2 / 40_000) ** 0.5


def test_clip_bounds_every_example() -> None:
    rng = np.random.default_rng(0)
    problem = BinaryLogistic(rng.standard_normal((6, 3)) * 50, [1, -1] * 3, regularizer=L2(0.1))
    for solver in ("gd", "noisy-gd"):
        task = LocalTask(np.zeros(3), 1.0, 1, solver=solver, gradients=Gradients(clip=0.01))
        assert 0 < np.linalg.norm(end(task, problem)) <= 0.01 + 1e-12


def test_problem_that_cannot_clip_says_so() -> None:
    problem = Quadratic([1.0], [0.0])
    for solver in ("gd", "noisy-gd"):
        task = task_on(problem, solver, gradients=Gradients(clip=1.0))
        with pytest.raises(RecordsError, match="cannot clip"):
            end(task, problem)


# ------------------------------------------------------------------ what a walk supplies


def test_the_mean_is_that_of_the_raw_gradients() -> None:
    problem = Quadratic(*QUADRATIC)
    task = task_on(problem, steps=5, needs=("mean_gradient", "end_gradient"))
    assert task.center is not None
    w, slopes = task.start, []
    for _ in range(5):
        slopes.append(problem.curvature * w - problem.offset)
        w = w - task.step_size * (slopes[-1] + task.shift + (w - task.center) / task.rho)
    found = Records(Held(problem, 1.0), NOISE).walk(task, STREAMS)
    assert found.steps == 5
    np.testing.assert_allclose(found.end, w, rtol=1e-13)
    np.testing.assert_allclose(found.supplied("mean_gradient"), np.mean(slopes, 0), rtol=1e-13)
    last = problem.curvature * w - problem.offset
    np.testing.assert_allclose(found.supplied("end_gradient"), last, rtol=1e-12)


def test_what_is_not_needed_is_not_worked_out() -> None:
    problem = Quadratic(*QUADRATIC)
    found = Records(Held(problem, 1.0), NOISE).walk(task_on(problem, steps=2), STREAMS)
    assert (found.mean_gradient, found.end_gradient) == (None, None)
    with pytest.raises(RecordsError, match="do not supply mean_gradient"):
        found.supplied("mean_gradient")


@pytest.mark.parametrize("solver", ["gd", "agd"])
def test_the_gradient_at_the_end_is_of_all_examples_where_the_walk_ends(solver: str) -> None:
    problem = Quadratic(*QUADRATIC)
    task = task_on(problem, solver, steps=3, needs=("end_gradient",))
    found = Records(Held(problem, 1.0), NOISE).walk(task, STREAMS)
    expected = problem.curvature * found.end - problem.offset
    np.testing.assert_array_equal(found.supplied("end_gradient"), expected)


def test_the_walk_ends_with_the_step_from_a_small_whole_gradient() -> None:
    """At curvature 1, step 1/2 and no other term the gradient halves with every step."""
    problem = Quadratic([1.0], [0.0])
    given: dict[str, Any] = {"center": None, "rho": np.inf, "shift": None}
    task = task_on(problem, start=np.array([8.0]), step_size=0.5, tolerance=4.0, **given)
    found = Records(Held(problem, 1.0), NOISE).walk(task, STREAMS)
    assert (found.end.tolist(), found.steps) == ([1.0], 3)  # the gradients are 8, 4 and 2
    # With shift = -4 and ||w||^2 / 2 about 4 the whole gradient at w is 2 w - 8.
    given = {"center": np.array([4.0]), "rho": 1.0, "shift": np.array([-4.0])}
    task = task_on(problem, start=np.array([8.0]), step_size=0.25, tolerance=16.0, **given)
    found = Records(Held(problem, 1.0), NOISE).walk(task, STREAMS)
    assert (found.end.tolist(), found.steps) == ([5.0], 2)  # 8 at w = 8, 4 at w = 6


@pytest.mark.parametrize("need", ["mean_gradient", "end_gradient"])
@pytest.mark.parametrize("solver", SOLVER_NAMES)
def test_a_need_is_supplied_or_refused_by_name(solver: str, need: Any) -> None:
    problem = Quadratic(*QUADRATIC)
    task = task_on(problem, solver, steps=2, needs=(need,))
    if need in SOLVERS[solver][1]:
        assert Records(Held(problem, 1.0), NOISE).walk(task, STREAMS).supplied(need).shape == (3,)
        return
    with pytest.raises(RecordsError, match=f"local-solver = '{solver}' does not supply {need}"):
        Records(Held(problem, 1.0), NOISE).walk(task, STREAMS)


def test_a_start_of_another_length_is_refused() -> None:
    problem = Quadratic(*QUADRATIC)
    with pytest.raises(RecordsError, match=r"shape \(2,\), expected \(3,\)"):
        Records(Held(problem), NOISE).walk(LocalTask(np.zeros(2), 0.1, 1), STREAMS)


def private_problem() -> BinaryLogistic:
    rows = np.eye(3)
    return BinaryLogistic(rows, [1, -1, 1], regularizer=L2(0.2)).with_rows_within(1.0)


def test_beside_charged_noise_no_other_gradient_is_handed_out() -> None:
    problem = private_problem()
    noise = perturber(SGDAgent(clip=1.0, noise_scale=0.1), problem)
    gradients = Gradients(clip=1.0)
    task = LocalTask(np.zeros(3), 0.1, 1, gradients=gradients, needs=("end_gradient",))
    with pytest.raises(NoiseError, match="gradient without noise"):
        Records(Held(problem, 1.0), noise).walk(task, STREAMS)
    assert noise.taken == 0


def test_gradient_steps_hold_four_vectors_beside_what_they_are_given() -> None:
    """The iterate before and after a step, the move, and the constant part of every step."""
    dim = 200_000
    problem, start = Quadratic(np.ones(dim), np.zeros(dim)), np.zeros(dim)
    task = task_on(problem, start=start, center=np.ones(dim), rho=2.0, steps=4)
    tracemalloc.start()
    SOLVERS["gd"][0](task, problem, STREAMS, NOISE)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4.1 * start.nbytes


def test_hidden_noisy_steps_are_proven_for_a_proximal_term_alone() -> None:
    problem, zero = private_problem(), np.zeros(3)
    half = Agent(local_solver="noisy-gd", row_norm=1.0, clip=1.0, noise_variance=0.1)
    noise = perturber(half, problem)
    assert noise.release.steps > 1
    task = half.task({"x": zero, "z": zero}, {"y": zero}, opened(half, problem, noise), STREAMS)
    for changed in ({"shift": zero}, {"center": None}):
        with pytest.raises(NoiseError, match="a proximal term alone"):
            Records(Held(problem, 1.0), noise).walk(task._replace(**changed), STREAMS)
    assert isinstance(Records(Held(problem, 1.0), noise).walk(task, STREAMS), Walk)
    noise.settle()


class Spy(float):
    """An entry of an array that keeps what is taken from it."""

    seen: ClassVar[list[float]] = []

    def __mul__(self, other: Any) -> Spy:
        return self

    def __add__(self, other: Any) -> Spy:
        return self

    def __sub__(self, other: Any) -> float:
        self.seen.append(float(other))
        return 0.0


def test_no_entry_of_an_array_sees_a_gradient_before_its_noise() -> None:
    problem, zero = private_problem(), np.zeros(3)
    half = Agent(local_solver="noisy-gd", row_norm=1.0, clip=1.0, noise_variance=0.1)
    noise = perturber(half, problem)
    task = half.task({"x": zero, "z": zero}, {"y": zero}, opened(half, problem, noise), STREAMS)
    spies = np.array([Spy(), Spy(), Spy()], object)
    with pytest.raises(RecordsError, match="vector in object, expected float64"):
        Records(Held(problem, 1.0), noise).walk(task._replace(start=spies), STREAMS)
    assert not Spy.seen


def test_no_program_but_steps_that_are_not_released_is_charged_as_such() -> None:
    """Their loss is that of one draw, however many there are."""
    problem = private_problem()
    release = Release(
        "gaussian", scale=1.0, sensitivity=9.0, steps=400, contraction=0.0, program="gradients"
    )
    held = Records(Held(problem, 1.0), Perturber(release, SeededNoise(0), public_facts(problem)))
    with pytest.raises(NoiseError, match="'gradients' has no steps that are not released"):
        held.gradient(Gradients(clip=1.0), np.zeros(3), STREAMS)


# ------------------------------------------------------------------ charged noise


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
    problem = held(half, problem)
    start, z, y = rng.standard_normal((3, problem.dim))
    draws = rng.standard_normal((steps, problem.dim))
    source = Scripted(draws)
    release = half.release(public_facts(problem), 1)
    assert (release.count, release.steps) == ((1, steps) if loss == "scalar" else (steps, 1))
    noise = Perturber(release, source, public_facts(problem))
    local = half.local_update({"x": start, "z": z}, {"y": y}, opened(half, problem, noise), STREAMS)
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
        other.local_update(
            {"x": zero, "z": zero}, {"y": zero}, opened(other, problem, noise), STREAMS
        )
        noise.settle()

    for steps, reason in ((6, "6 hidden steps, 5 were charged"), (4, "4 hidden steps, 5 ")):
        with pytest.raises(NoiseError, match=reason):
            play(Agent(local_epochs=steps, **settings))
    with pytest.raises(NoiseError, match=r"a value moves by .* more than"):
        play(Agent(local_epochs=5, **{**settings, "clip": 1.1}))
