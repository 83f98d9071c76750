"""The centralised solver, and the mapping of problems to scikit-learn's estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privet.kernel import Moduli
from privet.problems import (
    BinaryLogistic,
    Minimum,
    MultinomialLogistic,
    RidgeRegression,
    make_h,
    make_regularizer,
    minimize,
)
from support.problem_cases import LOSSES, random_case

H = {
    "zero": {},
    "l1": {"h-weight": 0.05},
    "elastic-net": {"h-weight": 0.1, "h-ratio": 0.5},
    "box": {"h-radius": 0.1},
    "l2-ball": {"h-radius": 0.2},
    "group-l1": {"h-weight": 0.1, "h-group-size": 2},
}


def optimality(result: Minimum, problems, h) -> float:
    """The prox-gradient distance at the result: another residual than the solver's own."""
    slope = sum(problem.gradient(result.x) for problem in problems)
    return float(np.linalg.norm(result.x - h.prox(result.x - slope, 1.0)))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", list(H))
@pytest.mark.parametrize("regularizer", ["none", "l2"])
def test_high_accuracy_on_small_problems(loss, name, regularizer):
    # More examples than features keep even the problems without regulariser well posed.
    problems = [
        random_case(loss, seed=seed, examples=25, regularizer=regularizer, weight=0.05).problem
        for seed in range(3)
    ]
    if loss in ("one-class", "multinomial") and regularizer == "none":
        problems[0] = random_case(loss, examples=25, regularizer="l2", weight=0.05).problem
    h = make_h(name, **H[name])
    result = minimize(problems, h)
    assert result.residual <= 1e-10
    assert optimality(result, problems, h) <= 1.1e-10
    values = [sum(p.value(x) for p in problems) + h.value(x) for x in (result.x, 0 * result.x)]
    assert result.value == pytest.approx(values[0], rel=1e-14)
    assert values[0] <= values[1]


class Plain:
    """A problem with nothing but the protocol's members."""

    def __init__(self, inner: Any) -> None:
        self.dim, self.dtype, self.num_examples = inner.dim, inner.dtype, inner.num_examples
        self.value, self.gradient = inner.value, inner.gradient


@pytest.mark.parametrize("name", ["zero", "l1", "box"])
def test_without_hessians_the_first_order_method_suffices(name):
    inner: Any = random_case("binary", examples=40, weight=0.01).problem
    plain = Plain(inner)
    h = make_h(name, **H[name])
    with pytest.raises(
        ValueError, match="Plain has no moduli: pass minimize the moduli of the sum"
    ):
        minimize(plain, h)
    result = minimize(plain, h, moduli=inner.moduli)
    assert result.residual <= 1e-10
    np.testing.assert_allclose(result.x, minimize(inner, h).x, atol=1e-8)


def test_the_first_order_method_is_accelerated():
    # Condition number 1e4: plain gradient steps would take about 1e4 log(1e10) = 230,000.
    inner = RidgeRegression(np.diag(np.geomspace(1.0, 100.0, 10)), np.ones(10))
    result = minimize(Plain(inner), moduli=inner.moduli)
    assert result.residual <= 1e-10
    assert result.iterations <= 5_000
    np.testing.assert_allclose(result.x, np.geomspace(1.0, 0.01, 10), rtol=1e-8)


def test_nonconvex_problems_reach_a_stationary_point():
    problems = [
        random_case("binary", seed=s, regularizer="nonconvex", weight=0.5).problem for s in range(3)
    ]
    for start in (None, 2.0 * np.ones(4)):
        result = minimize(problems, x0=start)
        slope = sum(problem.gradient(result.x) for problem in problems)
        assert np.linalg.norm(slope) <= 1e-10
        curvature = np.linalg.eigvalsh(sum(p.hessian(result.x) for p in problems))
        assert curvature[0] > 0.0


def test_float32_stops_at_its_rounding():
    wide = [random_case("binary", seed=s, examples=40).problem for s in range(2)]
    narrow = [
        random_case("binary", seed=s, examples=40, dtype=np.float32).problem for s in range(2)
    ]
    result = minimize(narrow)
    assert result.x.dtype == np.float32
    assert result.iterations < 10_000
    assert result.residual < 1e-5
    np.testing.assert_allclose(result.x, minimize(wide).x, atol=1e-5)


def test_given_moduli_a_start_and_an_iteration_limit_are_used():
    problem = random_case("ridge", regularizer="none", examples=30).problem
    for name, params in H.items():
        h = make_h(name, **params)
        best = minimize(problem, h)
        assert best.iterations > 0
        assert minimize(problem, h, x0=best.x).iterations == 0
    far = minimize(problem, make_h("box", **H["box"]), x0=100.0 * np.ones(4))
    np.testing.assert_allclose(far.x, minimize(problem, make_h("box", **H["box"])).x, atol=1e-9)
    stopped = minimize(problem, make_h("l1", **H["l1"]), moduli=Moduli(0.0, 1e6), max_iterations=0)
    np.testing.assert_array_equal(stopped.x, np.zeros(4))
    assert stopped.residual > 1e-3


def test_a_single_problem_and_its_list_are_the_same():
    problem = random_case("ridge").problem
    np.testing.assert_array_equal(minimize(problem).x, minimize([problem]).x)


def test_ridge_closed_form():
    case = random_case("ridge", examples=30, weight=0.4)
    matrix = 2.0 * case.features.T @ case.features / 30 + 0.4 * np.eye(4)
    exact = np.linalg.solve(matrix, 2.0 * case.features.T @ case.targets / 30)
    np.testing.assert_allclose(minimize(case.problem).x, exact, atol=1e-11)


def test_mismatched_problems_are_refused():
    with pytest.raises(ValueError, match="minimize needs at least one problem"):
        minimize([])
    mixed = [random_case("ridge", width=w).problem for w in (3, 4)]
    with pytest.raises(ValueError, match=r"all problems must have one dim, found \[3, 4\]"):
        minimize(mixed)
    mixed = [random_case("ridge", dtype=t).problem for t in (np.float32, np.float64)]
    with pytest.raises(ValueError, match="one dtype, found float32, float64"):
        minimize(mixed)


def agents_data(kind):
    """Three agents of different sizes, with a column of ones as intercept."""
    generator = np.random.default_rng(7)
    for count in (20, 35, 50):
        features = np.hstack([generator.standard_normal((count, 3)), np.ones((count, 1))])
        noise = generator.standard_normal(count)
        scores = features @ [1.0, -2.0, 0.5, 0.3] + noise
        if kind == "binary":
            yield features, np.where(scores > 0, 1.0, -1.0)
        elif kind == "multinomial":
            yield features, np.digitize(scores, [-1.0, 1.0])
        else:
            yield features, scores


def pooled(data):
    features = np.vstack([a for a, _ in data])
    targets = np.concatenate([t for _, t in data])
    weights = np.concatenate([np.full(len(t), 1.0 / len(t)) for _, t in data])
    return features, targets, weights


def test_sklearn_logistic_regression_has_the_same_optimum():
    from sklearn.linear_model import LogisticRegression

    data, weight = list(agents_data("binary")), 0.02
    r = make_regularizer("l2", weight)
    ours = minimize([BinaryLogistic(a, t, regularizer=r) for a, t in data])
    features, labels, weights = pooled(data)
    theirs = LogisticRegression(
        C=1.0 / (len(data) * weight), fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(features, labels, sample_weight=weights)
    np.testing.assert_allclose(ours.x, theirs.coef_[0], atol=1e-6)
    assert BinaryLogistic.accuracy(ours.x, features, labels) == theirs.score(features, labels)
    alone = minimize(BinaryLogistic(*data[0], regularizer=r))
    theirs = LogisticRegression(
        C=1.0 / (weight * 20), fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(*data[0])
    np.testing.assert_allclose(alone.x, theirs.coef_[0], atol=1e-6)


def test_sklearn_multinomial_regression_has_the_same_optimum():
    from sklearn.linear_model import LogisticRegression

    data, weight = list(agents_data("multinomial")), 0.05
    r = make_regularizer("l2", weight)
    ours = minimize([MultinomialLogistic(a, t, 3, regularizer=r) for a, t in data])
    features, labels, weights = pooled(data)
    theirs = LogisticRegression(
        C=1.0 / (len(data) * weight), fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(features, labels, sample_weight=weights)
    np.testing.assert_allclose(ours.x.reshape(4, 3), theirs.coef_.T, atol=1e-6)
    assert MultinomialLogistic.accuracy(ours.x, features, labels) == theirs.score(features, labels)


def test_sklearn_ridge_has_the_same_optimum():
    from sklearn.linear_model import Ridge

    data, weight = list(agents_data("ridge")), 0.3
    r = make_regularizer("l2", weight)
    ours = minimize([RidgeRegression(a, t, regularizer=r) for a, t in data])
    features, targets, weights = pooled(data)
    theirs = Ridge(alpha=len(data) * weight / 2.0, fit_intercept=False, tol=1e-14)
    theirs.fit(features, targets, sample_weight=weights)
    np.testing.assert_allclose(ours.x, theirs.coef_, atol=1e-9)
    alone = minimize(RidgeRegression(*data[0], regularizer=r))
    theirs = Ridge(alpha=weight * 20 / 2.0, fit_intercept=False, tol=1e-14).fit(*data[0])
    np.testing.assert_allclose(alone.x, theirs.coef_, atol=1e-9)


def test_sklearn_elastic_net_has_the_same_convention():
    from sklearn.linear_model import ElasticNet

    features, targets = next(iter(agents_data("ridge")))
    # scikit-learn halves the mean square, so everything is doubled here.
    h = make_h("elastic-net", **{"h-weight": 0.4, "h-ratio": 0.3})
    ours = minimize(RidgeRegression(features, targets), h)
    theirs = ElasticNet(alpha=0.2, l1_ratio=0.3, fit_intercept=False, tol=1e-12, max_iter=100_000)
    np.testing.assert_allclose(ours.x, theirs.fit(features, targets).coef_, atol=1e-9)
