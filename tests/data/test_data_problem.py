"""From config to problems: closed forms on the pooled data, scikit-learn as oracle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.data import (
    DataError,
    federation_from_config,
    load,
    partition,
    planned_facts,
    problem_from_config,
)
from privet.data.settings import DataSettings
from privet.problems import BinaryLogistic, MultinomialLogistic, RidgeRegression, public_facts
from privet.problems.losses import LOSSES
from support.extras import extra


@pytest.mark.parametrize("scheme", ["iid", "label", "dirichlet"])
def test_the_agents_together_hold_exactly_the_training_set(scheme: str) -> None:
    config = {"partition": scheme, "regularizer": "none", "divisor": "federation"}
    federation = federation_from_config(config, 7)
    data = load("breast-cancer")
    x = np.linspace(-1, 1, federation.dim)
    margins = data.train_labels * (data.train_features @ x)
    sigmoid = 1 / (1 + np.exp(margins))
    gradient = -(data.train_features.T @ (sigmoid * data.train_labels)) / len(margins)
    assert federation.objective(x) == pytest.approx(np.mean(np.log1p(np.exp(-margins))))
    np.testing.assert_allclose(federation.gradient(x), gradient, atol=1e-12)


@pytest.mark.parametrize("index", range(5))
def test_one_agent_gets_the_rows_the_federation_gives_it(index: int) -> None:
    config = {"dataset": "digits", "partition": "label", "partition-seed": 3}
    problem = problem_from_config(config, index, 5)
    data = load("digits")
    rows = partition(data.train_labels, 5, "label", seed=3)[index]
    assert isinstance(problem, MultinomialLogistic)
    assert np.array_equal(problem.features, data.train_features[rows])
    assert np.array_equal(problem.labels, data.train_labels[rows])
    assert problem is federation_from_config(config, 5).problems[index]


def test_only_the_agent_asked_for_is_built_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    class Counted(BinaryLogistic):
        def __init__(self, features: np.ndarray, *arguments: Any, **options: Any) -> None:
            built.append(len(features))
            super().__init__(features, *arguments, **options)

    row = replace(LOSSES["binary-logistic"], problem=Counted)
    monkeypatch.setitem(LOSSES, "binary-logistic", row)
    config = {"dataset": "synthetic", "examples-per-agent": 30, "data-seed": 77}
    first = problem_from_config(config, 2, 50)
    assert problem_from_config(dict(config), 2, 50) is first
    assert built == [30]


def test_the_settings_of_all_agents_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    from_config = DataSettings.from_config

    def counted(config: Any) -> DataSettings:
        read.append(config)
        return from_config(config)

    monkeypatch.setattr(DataSettings, "from_config", counted)
    config = {"dataset": "synthetic", "examples-per-agent": 30, "data-seed": 78}
    for agent in range(3):
        problem_from_config({**config, "partition-id": agent}, agent, 3)
    assert len(read) == 1
    with pytest.raises(DataError, match="data-seed = True"):
        problem_from_config({**config, "data-seed": True}, 0, 3)
    with pytest.raises(DataError, match=r"data-seed = \[78\]"):
        problem_from_config({**config, "data-seed": [78]}, 0, 3)


@pytest.mark.parametrize(
    ("config", "kind", "dim"),
    [
        ({"dataset": "breast-cancer"}, BinaryLogistic, 31),
        ({"dataset": "breast-cancer", "intercept": "no"}, BinaryLogistic, 30),
        ({"dataset": "breast-cancer", "loss": "multinomial-logistic"}, MultinomialLogistic, 62),
        ({"dataset": "breast-cancer", "loss": "ridge"}, RidgeRegression, 31),
        ({"dataset": "digits", "intercept": "yes"}, MultinomialLogistic, 650),
        ({"dataset": "diabetes", "partition": "iid"}, RidgeRegression, 11),
        ({"dataset": "synthetic", "features": 20}, BinaryLogistic, 20),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_loss_follows_the_task_or_the_config(
    config: dict[str, Any], kind: type, dim: int, dtype: str
) -> None:
    problem = problem_from_config({"examples-per-agent": 40, "dtype": dtype, **config}, 0, 3)
    assert isinstance(problem, kind)
    assert problem.dim == dim
    assert problem.dtype == dtype
    assert problem.gradient(np.zeros(dim, dtype=dtype)).dtype == dtype


class TestEvaluate:
    @pytest.mark.parametrize("dataset", ["breast-cancer", "digits"])
    def test_agrees_with_scikit_learn_on_softmax(self, dataset: str) -> None:
        from sklearn.metrics import accuracy_score, log_loss

        federation = federation_from_config({"dataset": dataset, "loss": "multinomial-logistic"}, 4)
        data = federation.dataset
        x = np.random.default_rng(1).normal(size=federation.dim) / 4
        scores = np.exp(data.test_features @ x.reshape(data.columns, data.classes))
        classes = np.unique(data.train_labels)
        result = federation.evaluate(x)
        assert result["accuracy"] == accuracy_score(data.test_labels, classes[scores.argmax(1)])
        expected = log_loss(data.test_labels, scores / scores.sum(axis=1, keepdims=True))
        assert result["loss"] == pytest.approx(expected)

    def test_least_squares_on_signs_has_an_accuracy_and_regression_has_none(self) -> None:
        signs = federation_from_config({"loss": "ridge"}, 3)
        data = signs.dataset
        x = np.random.default_rng(2).normal(size=signs.dim)
        result = signs.evaluate(x)
        assert result["accuracy"] == np.mean((data.test_features @ x > 0) == (data.test_labels > 0))
        errors = data.test_features @ x - data.test_labels
        assert result["loss"] == pytest.approx(np.mean(errors**2))
        regression = federation_from_config({"dataset": "diabetes", "partition": "iid"}, 3)
        assert set(regression.evaluate(np.zeros(regression.dim))) == {"loss"}


def test_rows_are_clipped_to_the_public_norm_in_training_and_test() -> None:
    config = {"row-norm": 2.5, "partition": "iid"}
    federation = federation_from_config(config, 6)
    plain = federation_from_config({"partition": "iid"}, 6)
    pairs = zip(
        (*federation.problems, federation.held_out), (*plain.problems, plain.held_out), strict=True
    )
    for clipped, raw in pairs:
        norms = np.linalg.norm(raw.features, axis=1)
        assert np.all(np.linalg.norm(clipped.features, axis=1) <= 2.5)
        scale = np.minimum(1, 2.5 / norms)[:, None]
        np.testing.assert_allclose(clipped.features, raw.features * scale, rtol=1e-12)


def test_other_keys_of_a_run_config_are_ignored() -> None:
    config = {"algorithm": "fed-plt", "num-agents": 3, "rho": 1.5}
    assert problem_from_config(config, 0, 3) is problem_from_config({}, 0, 3)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"partition-seed": "one"}, "partition-seed = 'one': expected a whole number"),
        ({"row-norm": float("inf")}, "row-norm = inf: must be none or > 0 and <= 1e+100"),
        ({"regularizer-weight": float("inf")}, "regularizer weight must be finite and at least 0"),
        ({"dataset": "nothing"}, "dataset = 'nothing': choose one of breast-cancer"),
        ({"dataset": "digits", "loss": "binary-logistic"}, "does not fit dataset digits"),
        ({"dataset": "diabetes", "loss": "multinomial-logistic"}, "does not fit dataset diabetes"),
        ({"dataset": "mnist", "data-path": "/nowhere/mnist.npz"}, "/nowhere/mnist.npz: no such"),
        ({"dataset": "click"}, "data-path is needed for dataset click: a LIBSVM file"),
        ({"partition": "natural-id"}, "partition natural-id: the data have no ids"),
    ],
)
def test_a_wrong_config_is_one_line_that_names_the_key(
    config: dict[str, Any], expected: str
) -> None:
    with pytest.raises(DataError) as caught:
        problem_from_config(config, 0, 2)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("index", [-1, 4])
def test_an_agent_outside_the_federation_is_named(index: int) -> None:
    with pytest.raises(DataError, match=f"agent {index}: expected 0 ... 3"):
        problem_from_config({}, index, 4)


def test_numbers_and_paths_are_taken_as_they_come(tmp_path: Path) -> None:
    config = {"dirichlet-alpha": 5, "row-norm": 2, "partition": "dirichlet", "data-path": tmp_path}
    assert problem_from_config(config, 0, 2).num_examples > 0


def test_a_node_may_keep_its_own_file_whole_but_a_federation_is_dealt() -> None:
    config = {"partition": "none", "dataset": "digits"}
    problem = problem_from_config(config, 2, 3)
    assert np.array_equal(problem.features, load("digits", whole=True).train_features)
    with pytest.raises(DataError, match="partition none is for a node's own config"):
        federation_from_config(config, 3)


def test_the_mean_of_a_federation_is_over_the_examples_that_were_dealt(tmp_path: Path) -> None:
    extra("flwr_datasets")
    images, labels = np.zeros((12, 784), dtype=np.uint8), np.arange(12) % 10
    file = tmp_path / "mnist.npz"
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    config = {
        "dataset": "mnist",
        "data-path": str(file),
        "partition": "flwr-pathological",
        "classes-per-agent": 1,
        "divisor": "federation",
        "regularizer": "none",
    }
    federation = federation_from_config(config, 3)
    # Labels 0 and 1 twice, 2 once: five of the twelve examples are somebody's.
    assert sum(map(len, federation.parts)) == 5
    assert federation.objective(np.zeros(7840)) == pytest.approx(np.log(10))


@pytest.mark.parametrize("divisor", ["auto", "agent", "federation"])
@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm"])
def test_planned_facts_are_those_of_the_problems(divisor: str, name: str) -> None:
    config = {
        "algorithm": name,
        "dataset": "synthetic",
        "examples-per-agent": 30,
        "partition": "iid",
        "loss": "binary-logistic",
        "divisor": divisor,
        "beta": 0.3,
    }
    federation = federation_from_config(config, 4)
    planned = planned_facts(config, 4, 30, federation.dim)
    assert [public_facts(problem) for problem in federation.problems] == [planned] * 4
    assert planned.modulus == pytest.approx(2 * 0.3 / 4)
    whole = divisor == "federation" or (divisor, name) == ("auto", "dp-iadmm")
    assert planned.divisor == (120 if whole else 30)
