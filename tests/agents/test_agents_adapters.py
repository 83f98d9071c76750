"""Models from elsewhere: plain functions and scikit-learn estimators as problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_iris, make_regression
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)

from privet.agents.adapters.finite_sum import FiniteSum
from privet.agents.adapters.sklearn_linear import OneVsRestLogistic
from privet.client_apps import (
    CallableProblem,
    SklearnModel,
    SklearnProblem,
)
from privet.core import ConfigError
from privet.kernel import ClippableProblem, Moduli, Problem, clipped_sum, clipped_term
from privet.problems import L2, LinearModel, minimize
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, DPFedSGD, FedDyn, FedPDM, FedPLT, Scaffold
from support.federations import app_of

TARGETS = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [-2.0, 4.0]])
WEIGHTS = np.array([0.5, 2.0])


def examples(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The gradients of w.(x - t)^2 / 2, one row an example."""
    return WEIGHTS * (x - TARGETS[rows])


def functions(**options: Any) -> CallableProblem:
    """A mean of weighted squared distances."""

    def gradient(x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        wanted = np.arange(4) if rows is None else rows
        return examples(x, wanted).mean(axis=0)

    def value(x: np.ndarray) -> float:
        return float(np.mean((x - TARGETS) ** 2 @ WEIGHTS)) / 2

    return CallableProblem(value, gradient, 2, 4, **options)


def numerical_gradient(problem: Problem, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    return np.array(
        [
            (problem.value(x + step * e) - problem.value(x - step * e)) / (2 * step)
            for e in np.eye(x.size)
        ]
    )


# ---------------------------------------------------------------------- plain functions


@pytest.mark.parametrize("options", [{}, {"regularizer": L2(0.3), "divisor": 10.0}])
def test_gradient_is_that_of_the_value(options: dict[str, Any]) -> None:
    problem = functions(**options)
    x = np.array([0.3, -0.7])
    assert problem.gradient(x) == pytest.approx(numerical_gradient(problem, x), abs=1e-8)


def test_divisor_and_regulariser_as_written_out() -> None:
    problem = functions(regularizer=L2(0.3), divisor=10.0)
    x = np.array([0.3, -0.7])
    expected = examples(x, np.arange(4)).sum(axis=0) / 10.0 + 0.3 * x
    assert problem.gradient(x) == pytest.approx(expected)
    rows = np.array([2, 0, 2])
    batch = (4 / 10.0) * examples(x, rows).mean(axis=0) + 0.3 * x
    assert problem.gradient(x, rows) == pytest.approx(batch)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("rows", [None, np.array([3, 1, 3])])
def test_clipping_is_that_of_a_loop(norm: str, rows: np.ndarray | None) -> None:
    problem = functions(per_example_gradient=examples, regularizer=L2(0.3), divisor=8.0)
    assert isinstance(problem, ClippableProblem)
    x, clip = np.array([0.3, -0.7]), 1.5
    wanted = range(4) if rows is None else rows
    total = np.zeros(2)
    for i in wanted:
        g = WEIGHTS * (x - TARGETS[i])
        length = np.abs(g).sum() if norm == "l1" else np.linalg.norm(g)
        total += g * min(1.0, clip / length)
    expected = total * 4 / (8.0 * len(wanted)) + 0.3 * x
    assert problem.clipped_gradient(x, clip, norm, rows) == pytest.approx(expected)  # type: ignore[arg-type]


def given_gradients(rows: np.ndarray, dtype: str) -> CallableProblem:
    """A problem whose examples have these gradients everywhere, unsound ones left out of means."""
    sound = rows[np.isfinite(rows).all(axis=1)]
    return CallableProblem(
        lambda x: 0.0,
        lambda x: sound.sum(axis=0) / len(rows),
        rows.shape[1],
        len(rows),
        dtype,
        per_example_gradient=lambda x, wanted: rows[wanted],
        regularizer=L2(1e6),
        divisor=8.0,
    )


@given(
    record=st.lists(st.floats(width=32), min_size=2, max_size=2),
    clip=st.floats(1e-3, 1e3),
    mode=st.sampled_from([("example", "l1"), ("example", "l2"), ("batch", "l2")]),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_whatever_gradient_a_record_has_the_term_moves_by_its_sensitivity(
    record: list[float], clip: float, mode: Any, dtype: str
) -> None:
    clipping, norm = mode
    terms = []
    for first in (record, [1.0, -1.0]):
        rows = np.array([first, [3.0, 4.0], [0.1, 0.0], [1e3, -1e3]])
        problem = given_gradients(rows, dtype)
        term, rest = clipped_term(problem, np.ones(2), clip, norm=norm, clipping=clipping)
        assert rest == pytest.approx([1e6, 1e6])
        terms.append(term)
    assert all(np.isfinite(term.value).all() for term in terms)
    moved = np.linalg.norm(terms[0].value - terms[1].value, 1 if norm == "l1" else 2)
    assert moved <= terms[0].sensitivity
    if not np.isfinite(record).all() and clipping == "example":
        alone = clipped_sum(rows[1:], clip, norm) / 8.0
        assert terms[0].value == pytest.approx(alone)


def test_another_divisor_reaches_every_method() -> None:
    options: dict[str, Any] = {"per_example_gradient": examples, "regularizer": L2(0.3)}
    first = functions(moduli=Moduli(0.8, 2.3), **options)
    second, built = first.with_divisor(10.0), functions(divisor=10.0, **options)
    assert (first.divisor, second.divisor) == (4.0, 10.0)
    x = np.array([0.3, -0.7])
    for method, arguments in (
        ("value", ()),
        ("gradient", ()),
        ("clipped_gradient", (0.5,)),
        ("batch_clipped_gradient", (0.5,)),
    ):
        found = getattr(second, method)(x, *arguments)
        assert found == pytest.approx(getattr(built, method)(x, *arguments))
    # The Hessian of the data term, diag(0.5, 2), is multiplied by 4/10.
    assert second.moduli is not None
    assert second.moduli.strong_convexity == pytest.approx(0.3 + 0.2)
    assert second.moduli.smoothness == pytest.approx(0.3 + 0.8)
    with pytest.raises(ConfigError, match="divisor must be finite and positive"):
        first.with_divisor(0.0)
    without = functions().with_divisor(10.0)
    assert not isinstance(without, ClippableProblem)
    with pytest.raises(ConfigError, match="no per-example gradients"):
        clipped_term(without, x, 1.0)  # type: ignore[arg-type]


def test_whole_batch_clip_keeps_the_direction() -> None:
    problem = functions(regularizer=L2(0.3))
    x = np.array([5.0, 5.0])
    data = problem.gradient(x) - 0.3 * x
    found = problem.batch_clipped_gradient(x, 0.1) - 0.3 * x
    assert found == pytest.approx(0.1 * data / np.linalg.norm(data))


def test_functions_without_rows_refuse_mini_batches() -> None:
    problem = CallableProblem(lambda x: 0.0, lambda x: 0 * x, 2, 4)
    with pytest.raises(ConfigError, match="takes no rows"):
        problem.gradient(np.zeros(2), np.array([1]))


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: functions(dtype="float16"), "float32 or float64"),
        (lambda: functions(divisor=0.0), "divisor"),
        (lambda: CallableProblem(lambda x: 0.0, lambda x: x, 2, 0), "no data"),
        (lambda: CallableProblem(lambda x: 0.0, lambda x: x, 0, 1), "at least one parameter"),
        (lambda: functions().gradient(np.zeros(3)), "shape"),
        (lambda: functions().gradient(np.zeros(2), np.array([], int)), "empty"),
        (
            lambda: CallableProblem(lambda x: 0.0, lambda x: x[:1], 2, 1).gradient(np.zeros(2)),
            "gradient has shape",
        ),
        (
            lambda: functions(per_example_gradient=lambda x, rows: x[None]).clipped_gradient(
                np.zeros(2), 1.0
            ),
            "per_example_gradient has shape",
        ),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(build: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        build()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- every algorithm

ALGORITHMS = {
    "fed-plt": FedPLT(rho=1.0, local_epochs=5, step_size=0.3),
    "dp-iadmm": DPIADMM(rho_c1=1.0, local_updates=2, eta_rule="smooth", smoothness=2.0),
    "fed-pdm": FedPDM(rho=1.0, step_size_base=0.3, step_size_rule="constant"),
    "dp-fedsgd": DPFedSGD(step_size_base=0.3, step_size_rule="constant"),
    "fed-dyn": FedDyn(step_size_base=0.3, step_size_rule="constant"),
    "scaffold": Scaffold(step_size_base=0.1, step_size_rule="constant"),
}


def federation(**options: Any) -> list[CallableProblem]:
    """Two agents whose mean optimum is 0.5, 1.0."""

    def agent(target: np.ndarray) -> CallableProblem:
        return CallableProblem(
            lambda x: float((x - target) @ (x - target)) / 2,
            lambda x, rows: x - target,
            2,
            4,
            per_example_gradient=lambda x, rows: np.tile(x - target, (len(rows), 1)),
            **options,
        )

    return [agent(np.array([0.0, 2.0])), agent(np.array([1.0, 0.0]))]


def run(strategy: Any, name: str, problems: list[Any], start: Any, rounds: int) -> Any:
    app = app_of(problems, name)
    return strategy.start(InlineGrid(app, len(problems)), start, num_rounds=rounds)


def named_start(dtype: str = "float64") -> ArrayRecord:
    """The user's own names for the two parameters."""
    return ArrayRecord({"left": Array(np.zeros(1, dtype)), "right": Array(np.zeros(1, dtype))})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_plain_functions_reach_the_optimum_by_every_algorithm(name: str) -> None:
    result = run(ALGORITHMS[name], name, federation(), named_start(), 80)
    found = [float(result.arrays[key].numpy()[0]) for key in ("left", "right")]
    assert list(result.arrays) == ["left", "right"]
    assert found == pytest.approx([0.5, 1.0], abs=0.02)


PRIVATE = {
    "fed-plt": lambda: FedPLT(step_size=0.3, local_solver="noisy-gd", clip=1.0, noise_variance=0.5),
    "dp-iadmm": lambda: DPIADMM(clip=1.0, noise_scale=1.0),
    "fed-pdm": lambda: FedPDM(
        rho=1.0, clip=1.0, noise_scale=0.5, max_local_steps=1, step_size_base=0.3
    ),
    "dp-fedsgd": lambda: DPFedSGD(clip=1.0, noise_scale=0.5),
    "fed-dyn": lambda: FedDyn(clip=1.0, noise_scale=0.5),
    "scaffold": lambda: Scaffold(clip=1.0, noise_scale=0.5),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_clippable_functions_are_accounted(name: str) -> None:
    result = run(PRIVATE[name](), name, federation(), named_start(), 2)
    assert [0 < done.epsilon < np.inf for done in result.history] == [True, True]
    assert result.history[1].epsilon > result.history[0].epsilon


@pytest.mark.parametrize("name", PRIVATE)
def test_what_cannot_be_clipped_is_refused_before_it_costs(name: str) -> None:
    plain = [
        CallableProblem(lambda x: 0.0, lambda x, rows: x, 2, 4, moduli=Moduli(1.0, 1.0))
        for _ in range(2)
    ]
    with pytest.raises(Exception, match=r"cannot clip|clip per example"):
        run(PRIVATE[name](), name, plain, named_start(), 1)


def test_fed_plt_account_of_own_problem_is_plain_composition() -> None:
    # mu of a step is gamma (2C/n) / (sqrt(2 gamma) tau); 5 steps and 2 rounds compose in squares.
    from privet.kernel import AgentLedger, Release

    strategy = FedPLT(
        step_size=0.3, local_solver="noisy-gd", local_epochs=5, clip=1.0, noise_variance=0.5
    )
    result = run(strategy, "fed-plt", federation(), named_start(), 2)
    step = Release("gaussian", scale=(2 * 0.3 * 0.5) ** 0.5, sensitivity=0.3 * 2 / 4, count=10)
    expected = AgentLedger().record(step).spent(1e-5)
    # The sensitivity covers the rounding of the sum: a factor 1 + 2^-20 in float64.
    assert expected <= result.history[-1].epsilon <= expected * (1 + 2**-18)


def test_whole_batch_clip_certifies_any_functions() -> None:
    problems = [CallableProblem(lambda x: 0.0, lambda x, rows: x, 2, 4) for _ in range(2)]
    strategy = FedPDM(
        rho=1.0, clip=0.1, clipping="batch", noise_scale=1.0, max_local_steps=3, step_size_base=0.2
    )
    result = run(strategy, "fed-pdm", problems, named_start(), 1)
    assert 0 < result.history[0].epsilon < np.inf


# ---------------------------------------------------------------------- scikit-learn


def standard_iris(classes: int) -> tuple[np.ndarray, np.ndarray]:
    features, labels = load_iris(return_X_y=True)
    keep = labels < classes
    features = features[keep]
    return (features - features.mean(axis=0)) / features.std(axis=0), labels[keep]


CLASSIFIERS = [
    (LogisticRegression(C=0.7, tol=1e-10, max_iter=5000), 2),
    (LogisticRegression(C=0.7, tol=1e-10, max_iter=5000), 3),
    (LogisticRegression(C=0.7, tol=1e-10, max_iter=5000, fit_intercept=False), 3),
]


@pytest.mark.parametrize(("estimator", "classes"), CLASSIFIERS)
def test_optimum_of_the_federation_is_scikit_learns(estimator: Any, classes: int) -> None:
    features, labels = standard_iris(classes)
    order = np.random.default_rng(0).permutation(len(labels))
    parts = np.split(order, [30, 55])  # of different sizes
    model = SklearnModel(estimator, 4, range(classes), total_examples=len(labels))
    divisor = len(labels) / len(parts)
    problems = [model.problem(features[p], labels[p], divisor=divisor) for p in parts]
    found = minimize(problems).x
    fitted = model.fitted(found)
    expected = estimator.fit(features, labels)
    if classes == 2 or not estimator.fit_intercept:
        assert fitted.coef_ == pytest.approx(expected.coef_, abs=1e-4)
        assert fitted.intercept_ == pytest.approx(expected.intercept_, abs=1e-4)
    assert fitted.predict_proba(features) == pytest.approx(
        expected.predict_proba(features), abs=1e-4
    )
    assert np.array_equal(fitted.predict(features), expected.predict(features))


@pytest.mark.parametrize("classes", [2, 3])
def test_sgd_classifier_is_one_logistic_regression_a_class(classes: int) -> None:
    features, labels = standard_iris(classes)
    names = np.array(["setosa", "versicolor", "virginica"])[labels]
    estimator = SGDClassifier(loss="log_loss", alpha=0.05)
    known = np.unique(names)
    model = SklearnModel(estimator, 4, known)
    fitted = model.fitted(minimize([model.problem(features, names)]).x)
    for k, name in enumerate(known[1:] if classes == 2 else known):
        one = LogisticRegression(C=1 / (0.05 * len(labels)), tol=1e-10, max_iter=5000)
        one.fit(features, names == name)
        assert fitted.coef_[k] == pytest.approx(one.coef_[0], abs=1e-4)
        assert fitted.intercept_[k] == pytest.approx(one.intercept_[0], abs=1e-4)
    assert fitted.score(features, names) > 0.9
    fitted.partial_fit(features, names)


@pytest.mark.parametrize(
    ("estimator", "oracle"),
    [
        (Ridge(alpha=3.0), Ridge(alpha=3.0)),
        (LinearRegression(), LinearRegression()),
        (SGDRegressor(alpha=0.02), Ridge(alpha=0.02 * 80)),
    ],
)
def test_regressors(estimator: Any, oracle: Any) -> None:
    features, targets = make_regression(80, 5, noise=5.0, random_state=0)
    model = SklearnModel(estimator, 5, total_examples=80)
    problems = [
        model.problem(features[rows], targets[rows], divisor=40.0)
        for rows in (slice(0, 30), slice(30, 80))
    ]
    fitted = model.fitted(minimize(problems).x)
    oracle.fit(features, targets)
    assert fitted.coef_ == pytest.approx(oracle.coef_, rel=1e-5)
    assert np.ravel(fitted.intercept_)[0] == pytest.approx(oracle.intercept_, rel=1e-4)
    assert fitted.predict(features).shape == targets.shape
    assert fitted.predict(features) == pytest.approx(oracle.predict(features), rel=1e-4, abs=1e-3)


def test_one_vs_rest_by_finite_differences_and_by_loops() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((7, 3)), np.array([0, 1, 2, 0, 1, 2, 2])
    problem = OneVsRestLogistic(features, labels, 3, regularizer=L2(0.1))
    x = rng.standard_normal(9)
    assert problem.gradient(x) == pytest.approx(numerical_gradient(problem, x), abs=1e-7)
    signs = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    scores = features @ x.reshape(3, 3)
    losses = np.log1p(np.exp(-signs * scores)).sum(axis=1)
    assert problem.value(x) == pytest.approx(losses.mean() + 0.05 * x @ x)
    clip, total = 0.4, np.zeros(9)
    for i in range(7):
        g = np.outer(features[i], -signs[i] / (1 + np.exp(signs[i] * scores[i]))).ravel()
        total += g * min(1.0, clip / np.linalg.norm(g))
    assert problem.clipped_gradient(x, clip) == pytest.approx(total / 7 + 0.1 * x)
    hessian = np.array(
        [
            (problem.gradient(x + 1e-6 * e) - problem.gradient(x - 1e-6 * e)) / 2e-6
            for e in np.eye(9)
        ]
    )
    extremes = np.linalg.eigvalsh((hessian + hessian.T) / 2)
    assert problem.moduli.strong_convexity <= extremes[0] + 1e-6
    assert problem.moduli.smoothness >= extremes[-1] - 1e-6


def test_fitted_estimator_gives_the_start() -> None:
    features, labels = standard_iris(3)
    estimator = LogisticRegression().fit(features, labels)
    model = SklearnModel(estimator, 4, estimator.classes_)
    again = model.fitted(model.arrays())
    assert np.array_equal(again.coef_, estimator.coef_)
    assert np.array_equal(again.intercept_, estimator.intercept_)
    assert np.array_equal(again.decision_function(features), estimator.decision_function(features))


def test_short_form_finds_the_classes() -> None:
    features, labels = standard_iris(3)
    problem = SklearnProblem(LogisticRegression(), features, labels)
    assert isinstance(problem, LinearModel)
    assert problem.dim == 15
    assert SklearnProblem(Ridge(), features, labels).dim == 5


def test_regularised_intercept_is_a_plain_l2() -> None:
    features, labels = standard_iris(2)
    free = SklearnProblem(LogisticRegression(C=2.0), features, labels)
    tied = SklearnProblem(LogisticRegression(C=2.0), features, labels, regularize_intercept=True)
    x = np.arange(5.0)
    weight = 1 / (2.0 * 100)
    assert tied.value(x) - free.value(x) == pytest.approx(weight * 4.0**2 / 2)
    assert (tied.regularizer.kind, free.regularizer.kind) == ("l2", "l2-slopes")


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: SklearnModel(Perceptron(), 2, [0, 1]), "Perceptron is not supported"),
        (lambda: SklearnModel(SGDClassifier(), 2, [0, 1]), "log_loss"),
        (lambda: SklearnModel(SGDRegressor(loss="huber"), 2), "squared_error"),
        (lambda: SklearnModel(LogisticRegression(l1_ratio=0.5), 2, [0, 1]), "h for an l1"),
        (lambda: SklearnModel(LogisticRegression(class_weight="balanced"), 2, [0, 1]), "weight"),
        (lambda: SklearnModel(Ridge(positive=True), 2), "positive"),
        (lambda: SklearnModel(Ridge(alpha=-1.0), 2), "alpha >= 0"),
        (lambda: SklearnModel(LogisticRegression(C=0.0), 2, [0, 1]), "C must be > 0"),
        (lambda: SklearnModel(Ridge(), 2).fitted(np.zeros(7)), r"shape \(3,\)"),
        (lambda: SklearnModel(LogisticRegression(), 2), "needs classes"),
        (lambda: SklearnModel(Ridge(), 2, [0, 1]), "has no classes"),
        (
            lambda: SklearnModel(LogisticRegression(), 2, [0, 1]).problem([[0.0, 1.0]], [7]),
            "not in classes",
        ),
        (
            lambda: SklearnModel(LogisticRegression(), 2, [0, 1]).problem([[0.0]], [1]),
            r"expected \(examples, 2\)",
        ),
        (lambda: SklearnProblem(Ridge(), np.zeros(3), np.zeros(3)), "expected"),
    ],
)
def test_scikit_learn_refusals(build: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fed-plt", "scaffold"])
def test_scikit_learn_in_a_run(name: str) -> None:
    features, labels = standard_iris(3)
    parts = [slice(i, None, 3) for i in range(3)]
    model = SklearnModel(LogisticRegression(C=1.0), 4, range(3), total_examples=150)
    problems = [model.problem(features[p], labels[p]) for p in parts]
    strategy = {
        "fed-plt": FedPLT(rho=3.0, local_epochs=20, num_agents=3),
        "scaffold": Scaffold(step_size_base=0.5, step_size_rule="constant", num_agents=3),
    }[name]
    result = run(strategy, name, problems, model.arrays(), 80)
    assert model.fitted(result.arrays).score(features, labels) > 0.95


def test_no_other_problem_counts_as_a_finite_sum() -> None:
    assert not isinstance(SklearnProblem(Ridge(), np.eye(2), np.ones(2)), FiniteSum)
