"""The objective of configs that name no weight: scikit-learn's, on the rows of all agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from privet.data import DataError, federation_from_config, planned_facts
from privet.kernel import Moduli
from privet.problems import L2, OneClassLogistic, PooledL2, SlopesL2, minimize, public_facts
from privet.problems.stacks import Stack, stack_key

SCHEMES = ("label", "dirichlet", "iid")


def pooled(config: dict[str, Any], agents: int = 4) -> Any:
    """Return the federation and the minimiser of sum_i f_i."""
    federation = federation_from_config(config, agents)
    return federation, minimize(federation.problems).x


@pytest.mark.parametrize("algorithm", ["fed-plt", "dp-iadmm"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dataset", ["breast-cancer", "digits"])
def test_the_optimum_is_that_of_scikit_learn(dataset: str, scheme: str, algorithm: str) -> None:
    """Digits have no column of ones; breast-cancer's is the last, and scikit-learn adds its own."""
    federation, x = pooled({"dataset": dataset, "partition": scheme, "algorithm": algorithm})
    rows, test = federation.dataset.train_features, federation.dataset.test_features
    ones = dataset == "breast-cancer"
    assert ones == bool((rows[:, -1] == 1).all())
    width = rows.shape[1] - ones
    best = LogisticRegression(fit_intercept=ones, tol=1e-10, max_iter=10_000)
    best.fit(rows[:, :width], federation.dataset.train_labels)
    if ones:
        expected = np.append(best.coef_[0], best.intercept_)
        found = 1 / (1 + np.exp(-test @ x))
        np.testing.assert_allclose(found, best.predict_proba(test[:, :width])[:, 1], atol=1e-3)
    else:
        expected = best.coef_.T.ravel()
        scores = test @ x.reshape(width, -1)
        found = np.exp(scores - scores.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found, best.predict_proba(test), atol=1e-3)
    np.testing.assert_allclose(x, expected, atol=1e-4)


def test_agents_of_a_dirichlet_partition_are_of_unequal_sizes() -> None:
    sizes = [len(part) for part in pooled({"partition": "dirichlet"})[0].parts]
    assert max(sizes) > 5 * min(sizes)


def test_a_regression_is_ridge_without_a_penalty_of_the_intercept() -> None:
    federation, x = pooled({"dataset": "diabetes", "partition": "iid"})
    rows, labels = federation.dataset.train_features, federation.dataset.train_labels
    best = Ridge(alpha=0.5, tol=1e-12).fit(rows[:, :-1], labels)
    np.testing.assert_allclose(x, np.append(best.coef_, best.intercept_), atol=1e-6)


def test_an_intercept_of_several_classes_is_free() -> None:
    config = {"dataset": "digits", "intercept": "yes", "partition": "label"}
    federation, x = pooled(config)
    rows = federation.dataset.train_features[:, :-1]
    best = LogisticRegression(tol=1e-10, max_iter=10_000).fit(rows, federation.dataset.train_labels)
    found = x.reshape(-1, 10)
    np.testing.assert_allclose(found[:-1], best.coef_.T, atol=1e-4)
    # A constant in all scores changes nothing, and nobody penalises it.
    np.testing.assert_allclose(
        found[-1] - found[-1].mean(), best.intercept_ - best.intercept_.mean(), atol=1e-4
    )


@pytest.mark.parametrize(
    "more",
    [
        {"clip": 1.0},
        {"noise-variance": 0.1},
        {"noise-scale": 0.1},
        {"target-epsilon": 4.0},
        {"divisor": "agent"},
    ],
)
def test_private_runs_and_divisors_take_the_l2_term_of_every_coordinate(
    more: dict[str, Any],
) -> None:
    federation = federation_from_config({"partition": "dirichlet", **more}, 4)
    for problem in federation.problems:
        assert problem.regularizer == L2(0.05)
        assert problem.divisor == problem.num_examples


def test_a_weight_that_is_written_is_taken_as_it_is() -> None:
    for weight in (0.0, 0.05, 1 / 455):
        problem = federation_from_config({"regularizer-weight": weight}, 4).problems[0]
        assert problem.regularizer == L2(weight)
        assert problem.divisor == problem.num_examples


def test_other_regularisers_keep_their_weight() -> None:
    for name, curvature in (("nonconvex", 0.1), ("none", 0.0)):
        problem = federation_from_config({"regularizer": name}, 4).problems[0]
        assert problem.regularizer.moduli.smoothness == curvature
    given = federation_from_config({"beta": 0.3}, 4).problems[0]
    assert given.regularizer == L2(0.15)


def test_a_weight_below_0_is_refused() -> None:
    with pytest.raises(DataError, match=r"regularizer-weight = -0\.5: must be auto or none or > 0"):
        federation_from_config({"regularizer-weight": -0.5}, 4)


def test_the_one_class_loss_is_penalised_everywhere() -> None:
    """With a free intercept it would fall without end."""
    problem = federation_from_config({"loss": "one-class-logistic"}, 4).problems[0]
    assert isinstance(problem, OneClassLogistic)
    assert problem.regularizer == PooledL2(1 / 455, 0)


@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm"])
def test_planned_facts_are_those_of_the_problems_without_a_weight(name: str) -> None:
    config = {
        "algorithm": name,
        "dataset": "synthetic",
        "examples-per-agent": 30,
        "partition": "iid",
        "loss": "binary-logistic",
    }
    federation = federation_from_config(config, 4)
    planned = planned_facts(config, 4, 30, federation.dim)
    assert [public_facts(problem) for problem in federation.problems] == [planned] * 4
    assert planned.penalty == pytest.approx(1 / (planned.divisor * 4))


def test_no_certificate_counts_on_the_penalty() -> None:
    problem = federation_from_config({}, 4).problems[0]
    facts = public_facts(problem)
    assert (facts.modulus, facts.penalty) == (0.0, 1 / 455)
    assert facts.public_moduli(2.0).strong_convexity == 0.0


@pytest.mark.parametrize("free", [0, 1, 3])
def test_the_derivatives_are_those_of_the_value(free: int) -> None:
    term, x = SlopesL2(0.7, free), np.random.default_rng(1).standard_normal(6)
    steps = 1e-5 * np.eye(6)
    slope = [(term.value(x + h) - term.value(x - h)) / 2e-5 for h in steps]
    np.testing.assert_allclose(term.gradient(x), slope, atol=1e-8)
    bend = [(term.gradient(x + h) - term.gradient(x - h)).sum() / 2e-5 for h in steps]
    np.testing.assert_allclose(term.curvature(x), bend, atol=1e-8)
    assert term.moduli == Moduli(0.0 if free else 0.7, 0.7)


@pytest.mark.parametrize("intercept", ["yes", "no"])
@pytest.mark.parametrize("dataset", ["breast-cancer", "digits"])
def test_a_stack_gives_every_row_the_bits_of_its_model(dataset: str, intercept: str) -> None:
    config = {"dataset": dataset, "partition": "iid", "intercept": intercept}
    by_key: dict[Any, list[Any]] = {}
    for problem in federation_from_config(config, 60).problems:
        by_key.setdefault(stack_key(problem), []).append(problem)
    assert None not in by_key
    models = max(by_key.values(), key=len)
    assert len(models) > 5
    stack = Stack(models)
    x = np.random.default_rng(2).standard_normal(stack.shape)
    for row, each, model in zip(stack.gradient(x), x, models, strict=True):
        assert row.tobytes() == model.gradient(each).tobytes()
