"""The centralised optimum that runs are compared with: the right one, or none and a log line."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize as minimise

from privet.data import Dataset, Federation
from privet.kernel import Zero
from privet.problems import L2, BinaryLogistic, make_regularizer, minimize
from privet.server_apps.evaluation import Evaluation

ROWS = np.random.default_rng(3).standard_normal((48, 3))
ROWS[:, 2] = 1.0
MIXED = [1, -1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1] * 4
SIGNS = np.sign(ROWS[:, 0]).astype(int).tolist()
"""Labels by which the rows are separable."""


def evaluation(labels: Any, weight: float, agents: int = 2) -> Evaluation:
    """Return the measure of agents with random rows and these labels."""
    rows = ROWS
    dataset = Dataset(
        name="rows",
        classes=2,
        task="binary",
        description="Random rows.",
        train_features=rows,
        train_labels=np.asarray(labels),
        test_features=rows,
        test_labels=np.asarray(labels),
    )
    parts = tuple(np.array_split(np.arange(len(labels)), agents))
    problems = tuple(
        BinaryLogistic(rows[part], np.asarray(labels)[part], regularizer=L2(weight))
        for part in parts
    )
    held_out = BinaryLogistic(rows, labels, regularizer=make_regularizer("none"))
    return Evaluation(Federation(dataset, parts, problems, held_out), Zero())


def gradient_norm(measured: Evaluation, x: Any) -> float:
    return float(np.linalg.norm(measured.federation.gradient(x)))


@pytest.mark.parametrize("weight", [0.0, 1e-310, 0.5, 1e100])
def test_it_is_where_the_gradient_is_zero(weight: float) -> None:
    measured = evaluation(MIXED, weight)
    best = measured.optimum()
    assert best is not None
    assert gradient_norm(measured, best) < 1e-8
    assert measured.distance(best) == 0


def test_one_class_alone_has_one_with_a_regulariser(caplog: pytest.LogCaptureFixture) -> None:
    measured = evaluation([1] * 48, 0.5)
    best = measured.optimum()
    assert best is not None
    assert gradient_norm(measured, best) < 1e-8
    assert caplog.records == []


@pytest.mark.parametrize(
    ("labels", "weight"),
    [
        ([1] * 48, 0.0),
        (MIXED, 1e308),
        (SIGNS, 0.0),
        (SIGNS, 1e-300),
    ],
    ids=["one class", "too large a weight", "separable", "separable but for rounding"],
)
def test_where_there_is_none_the_distance_is_nan_and_the_log_says_so(
    labels: list[int], weight: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.privet")
    measured = evaluation(labels, weight)
    assert math.isnan(measured.distance(np.zeros(3)))
    (line,) = caplog.messages
    assert line.startswith("no centralised optimum to compare with: ")


def test_the_excess_is_that_of_the_objective_of_all_rows() -> None:
    """By the definition, and scipy's least: the mean over the agents of loss and penalty."""
    measured, labels = evaluation(MIXED, 0.1), np.asarray(MIXED)

    def objective(x: Any) -> float:
        return float(np.logaddexp(0, -labels * (ROWS @ x)).mean() + 0.05 * x @ x)

    least = float(minimise(objective, np.zeros(3), tol=1e-12).fun)
    for x in (np.zeros(3), np.array([1.0, -2.0, 0.5])):
        assert measured.excess(x) == pytest.approx(objective(x) - least, rel=1e-7)
    best = measured.optimum()
    assert best is not None
    assert measured.excess(best) == 0.0
    assert math.isnan(evaluation(SIGNS, 0.0).excess(np.zeros(3)))


def test_it_is_the_same_by_scikit_learn_and_by_the_own_solver() -> None:
    measured = evaluation(MIXED, 0.01)
    best = measured.optimum()
    assert best is not None
    own = minimize(measured.federation.problems)
    np.testing.assert_allclose(best, own.x, atol=1e-8)


def test_of_examples_with_equal_columns_there_is_none() -> None:
    """Any split of the weight between the two is as good: none is the optimum."""
    measured = evaluation(MIXED, 0.0)
    doubled = tuple(
        BinaryLogistic(
            np.hstack([problem.features, problem.features[:, :1]]),
            problem.labels,
            regularizer=L2(0.0),
        )
        for problem in measured.federation.problems
        if isinstance(problem, BinaryLogistic)
    )
    federation = Federation(
        measured.federation.dataset, measured.federation.parts, doubled, doubled[0]
    )
    assert Evaluation(federation, Zero()).optimum() is None


def test_a_large_search_says_that_it_runs_and_a_larger_one_is_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents x parameters^2 is 18 here."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("privet.server_apps.evaluation._LONG_WORK", 18)
    assert evaluation(MIXED, 0.5).optimum() is not None
    assert caplog.messages == [
        "computing the centralised optimum of 2 agents and 3 parameters; this can take minutes"
    ]
    caplog.clear()
    monkeypatch.setattr("privet.server_apps.evaluation._LARGEST_WORK", 17)
    assert math.isnan(evaluation(MIXED, 0.5).distance(np.zeros(3)))
    assert caplog.messages == [
        "no centralised optimum to compare with: 2 agents and 3 parameters, computed up to "
        "agents x parameters^2 = 17"
    ]
