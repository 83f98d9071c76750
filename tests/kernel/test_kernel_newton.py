"""The Newton solver of local tasks: against closed forms, another solver, and its own promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from privet.kernel import NoiseError
from privet.kernel.programs.steps import NEWTON_REDUCTION, LocalTask, newton_steps
from privet.kernel.streams import Streams
from privet.problems import L2
from privet.problems.losses.binary_logistic import BinaryLogistic
from privet.problems.losses.huber import HuberRegression
from privet.problems.losses.multinomial_logistic import MultinomialLogistic
from privet.problems.losses.one_class_logistic import OneClassLogistic
from privet.problems.losses.ridge_regression import RidgeRegression

DIM = 5
STREAMS = Streams(0, "0", 1)


class Silent:
    """Stands for the noise of a round that adds none."""

    charged = False


class Charged:
    """Stands for the noise of a round that is charged."""

    charged = True


def design(seed: int = 0, rows: int = 40) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, DIM))


def labels(classes: int, rows: int = 40) -> Any:
    return np.random.default_rng(1).integers(0, classes, rows)


PROBLEMS: dict[str, Callable[[], Any]] = {
    "binary": lambda: BinaryLogistic(design(), 2 * labels(2) - 1, regularizer=L2(0.1)),
    "ridge": lambda: RidgeRegression(design(), labels(9) - 4.0, regularizer=L2(0.1)),
    "huber": lambda: HuberRegression(design(), labels(9) - 4.0, regularizer=L2(0.1)),
    "multinomial": lambda: MultinomialLogistic(design(), labels(3), 3, regularizer=L2(0.1)),
    "one class": lambda: OneClassLogistic(design(), labels(3), 3, regularizer=L2(0.1)),
}


def task_of(problem: Any, **more: Any) -> LocalTask:
    draws = np.random.default_rng(2)
    start, center, shift = draws.standard_normal((3, problem.dim))
    values = {"center": center, "rho": 7.0, "shift": shift, "steps": 20, **more}
    return LocalTask(start, 0.0, solver="newton", **values)


def objective(problem: Any, task: LocalTask) -> Callable[[Any], float]:
    def value(w: Any) -> float:
        away = w - task.center
        pull = float(task.shift @ w) + 0.5 * float(away @ away) / task.rho
        return float(problem.value(w)) + pull

    return value


def slope(problem: Any, task: LocalTask, w: Any) -> Any:
    return problem.gradient(w) + task.shift + (w - task.center) / task.rho


@pytest.mark.parametrize("name", PROBLEMS)
def test_products_are_those_of_the_hessian(name: str) -> None:
    problem = PROBLEMS[name]()
    x, v = np.random.default_rng(3).standard_normal((2, problem.dim))
    np.testing.assert_allclose(problem.hessian_product(x)(v), problem.hessian(x) @ v, atol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_ends_where_the_slope_is_a_thousandth_and_is_another_solvers_minimum(name: str) -> None:
    problem = PROBLEMS[name]()
    task = task_of(problem)
    end = newton_steps(task, problem, STREAMS, Silent()).end  # type: ignore[arg-type]
    first, last = (np.linalg.norm(slope(problem, task, w)) for w in (task.start, end))
    assert last <= NEWTON_REDUCTION * first
    for _ in range(6):  # from where it ended, on and on
        task = task._replace(start=end)
        end = newton_steps(task, problem, STREAMS, Silent()).end  # type: ignore[arg-type]
    found = minimize(
        objective(problem, task),
        task.start,
        jac=lambda w: slope(problem, task, w),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(end, found.x, atol=1e-6)


def test_a_quadratic_is_solved_exactly_in_one_step_of_enough_products() -> None:
    problem = PROBLEMS["ridge"]()
    task = task_of(problem, steps=1)
    walk = newton_steps(task, problem, STREAMS, Silent())  # type: ignore[arg-type]
    matrix = problem.hessian(task.start) + np.eye(problem.dim) / task.rho
    exact = task.start - np.linalg.solve(matrix, slope(problem, task, task.start))
    assert walk.steps == 1
    np.testing.assert_allclose(walk.end, exact, atol=1e-2 * np.linalg.norm(exact - task.start))


def test_a_problem_without_products_is_solved_by_differences() -> None:
    known = PROBLEMS["multinomial"]()

    class Unknown:
        dim, dtype, num_examples = known.dim, known.dtype, known.num_examples
        value, gradient = known.value, known.gradient

    task = task_of(known)
    by_products = newton_steps(task, known, STREAMS, Silent()).end  # type: ignore[arg-type]
    by_gradients = newton_steps(task, Unknown(), STREAMS, Silent()).end  # type: ignore[arg-type]
    np.testing.assert_allclose(by_gradients, by_products, atol=1e-3)


def test_a_solution_is_left_alone_and_no_steps_are_none() -> None:
    problem = PROBLEMS["ridge"]()
    task = task_of(problem, shift=np.zeros(problem.dim), center=None, rho=math.inf)
    matrix = problem.hessian(task.start)
    best = -np.linalg.solve(matrix, problem.gradient(np.zeros(problem.dim)))
    task = task._replace(start=best)
    walk = newton_steps(task, problem, STREAMS, Silent())  # type: ignore[arg-type]
    np.testing.assert_allclose(walk.end, best, atol=1e-12)
    none = newton_steps(task._replace(steps=0), problem, STREAMS, Silent())  # type: ignore[arg-type]
    assert none.steps == 0
    assert none.end is task.start


def test_float32_ends_at_its_rounding() -> None:
    problem = BinaryLogistic(design().astype(np.float32), 2 * labels(2) - 1, regularizer=L2(1e-3))
    start = np.full(problem.dim, 3.0, np.float32)
    for _ in range(5):
        task = LocalTask(start, 0.0, 50, start, 100.0, solver="newton")
        start = newton_steps(task, problem, STREAMS, Silent()).end  # type: ignore[arg-type]
    assert start.dtype == np.float32
    assert np.isfinite(start).all()


def test_charged_noise_is_refused() -> None:
    problem = PROBLEMS["binary"]()
    with pytest.raises(NoiseError, match="newton adds no noise"):
        newton_steps(task_of(problem), problem, STREAMS, Charged())  # type: ignore[arg-type]
