"""Federated evaluation on an agent's own held-out data, and the measures that come with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import brier_score_loss, log_loss, mean_squared_error, roc_auc_score
from sklearn.preprocessing import scale

from privet.client_apps import Participant, SklearnModel, client_app
from privet.core import ConfigError
from privet.kernel import Told
from privet.problems import L2, BinaryLogistic, RidgeRegression
from privet.problems.losses.binary_logistic import area_under_curve
from privet.rounds.flower.options import average_metrics, usual_loss
from privet.sim.inline import InlineGrid
from privet.strategies import FedPLT, PrivetResult

Site = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def sites(loader: Any, count: int = 3) -> list[Site]:
    """Training rows and labels, and held-out ones, of sites of different sizes."""
    features, labels = loader(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = scale(features)[order], labels[order]
    cuts = np.cumsum([60, 30])
    parts = zip(np.split(features, cuts), np.split(labels, cuts), strict=True)
    return [(x[::2], y[::2], x[1::2], y[1::2]) for x, y in list(parts)[:count]]


def played(
    problem: Callable[[Context], Any], start: Any, agents: int = 3, **settings: Any
) -> PrivetResult:
    app = client_app(None, problem, evaluate_on="held-out")
    strategy = FedPLT(num_agents=agents, fraction_evaluate=1.0, **settings)
    return strategy.start(InlineGrid(app, agents), start, num_rounds=2)


def place(context: Context) -> int:
    return int(context.node_config["partition-id"])


def test_measures_are_those_of_the_rows_held_out_weighted_by_their_number() -> None:
    data = sites(load_breast_cancer)
    model = SklearnModel(LogisticRegression(), 30, [0, 1])

    def problem(context: Context) -> Any:
        x, y, *held_out = data[place(context)]
        return model.problem(x, y, held_out=held_out)

    result = played(problem, model.arrays())
    fitted = model.fitted(result.arrays)
    counts = [len(test) for *_, test in data]
    expected = {
        "accuracy": [fitted.score(x, y) for *_, x, y in data],
        "auc": [roc_auc_score(y, fitted.decision_function(x)) for *_, x, y in data],
        "loss": [log_loss(y, fitted.predict_proba(x)) for *_, x, y in data],
    }
    found = result.evaluate_metrics_clientapp[2]
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(np.average(values, weights=counts), rel=1e-9)
    assert result.history[-1].accuracy == found["accuracy"]


def test_held_out_rows_do_not_train() -> None:
    data = sites(load_breast_cancer)
    model = SklearnModel(LogisticRegression(), 30, [0, 1])
    results = [
        played(
            lambda context, other=other: model.problem(
                *data[place(context)][:2], held_out=data[other][2:]
            ),
            model.arrays(),
        )
        for other in (0, 1)
    ]
    first, second = (model.fitted(result.arrays).coef_ for result in results)
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("loader", "classes", "width"),
    [(load_breast_cancer, ["benign", "malignant"], 30), (load_iris, ["a", "b", "c"], 4)],
)
def test_own_measures_see_scores_and_the_labels_as_given(
    loader: Any, classes: list[str], width: int
) -> None:
    data = sites(loader, 1)
    model = SklearnModel(LogisticRegression(), width, classes)
    named = np.asarray(classes)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        seen.append((scores, labels))
        return {"share": float(np.mean(labels == classes[0]))}

    x, y, test_x, test_y = data[0]
    result = played(
        lambda _: model.problem(x, named[y], held_out=(test_x, named[test_y]), metrics=metrics),
        model.arrays(),
        agents=1,
    )
    scores, labels = seen[-1]
    assert np.array_equal(labels, named[test_y])
    assert np.allclose(scores, model.fitted(result.arrays).decision_function(test_x))
    found = result.evaluate_metrics_clientapp[2]
    assert found["share"] == np.mean(test_y == 0)
    assert set(found) == {"loss", "share"}


def test_a_regression_reports_the_mean_loss_of_the_rows_held_out() -> None:
    random = np.random.default_rng(1)
    x, test_x = random.normal(size=(40, 3)), random.normal(size=(25, 3))
    y, test_y = x @ [1.0, -2.0, 0.5] + 1.0, test_x @ [1.0, -2.0, 0.5] + 1.0
    model = SklearnModel(Ridge(alpha=3.0), 3)
    result = played(lambda _: model.problem(x, y, held_out=(test_x, test_y)), model.arrays(), 1)
    predicted = model.fitted(result.arrays).predict(test_x)
    found = result.evaluate_metrics_clientapp[2]
    assert dict(found) == {"loss": pytest.approx(mean_squared_error(test_y, predicted))}


def test_a_module_is_evaluated_on_what_it_holds_out() -> None:
    torch = pytest.importorskip("torch")
    from privet.client_apps import TorchProblem

    random = np.random.default_rng(2)
    x, test_x = (random.normal(size=(n, 3)).astype(np.float32) for n in (40, 24))
    y, test_y = (np.array(rows[:, 0] > 0, np.float32)[:, None] for rows in (x, test_x))
    module = torch.nn.Linear(3, 1)

    def metrics(outputs: Any, targets: Any) -> dict[str, float]:
        return {"brier": brier_score_loss(targets[:, 0], torch.sigmoid(outputs)[:, 0])}

    problem = TorchProblem(
        module,
        torch.nn.functional.binary_cross_entropy_with_logits,
        (x, y),
        held_out=(test_x, test_y),
        metrics=metrics,
    )
    result = played(lambda _: problem, problem.arrays(), 1, step_size=0.5)
    module.load_state_dict(result.arrays.to_torch_state_dict())
    outputs, targets = module(torch.tensor(test_x)).detach(), torch.tensor(test_y)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)
    found = result.evaluate_metrics_clientapp[2]
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["brier"] == pytest.approx(metrics(outputs, targets)["brier"], rel=1e-5)


def test_private_agents_report_nothing_held_out() -> None:
    data = sites(load_breast_cancer)
    model = SklearnModel(LogisticRegression(), 30, [0, 1], regularize_intercept=True)
    private = {"clip": 1.0, "row_norm": 1.0, "local_solver": "noisy-gd", "target_epsilon": 4.0}

    def problem(context: Context) -> Any:
        x, y, *held_out = data[place(context)]
        return model.problem(x, y, held_out=held_out)

    assert not played(problem, model.arrays(), **private).evaluate_metrics_clientapp


def with_evaluation(action: str = "default") -> tuple[Any, list[str]]:
    """Return an app of ridge regressions with an evaluation of one's own, and its calls."""
    app, calls = client_app(None, lambda context: SITE), []

    @app.evaluate(action)
    def evaluate(message: Message, context: Context) -> Message:
        calls.append(message.metadata.message_type)
        found = message.content.array_records["arrays"]["x"].numpy()
        metrics = {"first": float(found[0]), "num-examples": 1 + place(context)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app, calls


SITE = RidgeRegression(np.eye(3), np.arange(1.0, 4.0), regularizer=L2(0.1))
START = ArrayRecord({"x": Array(np.zeros(3))})
PRIVATE: dict[str, Any] = {
    "local_solver": "noisy-gd", "step_size": 0.1, "local_epochs": 1, "clip": 1.0,
    "noise_variance": 1.0, "row_norm": 1.0,
}  # fmt: skip


def test_an_evaluation_of_ones_own_takes_the_place_of_the_librarys() -> None:
    app, calls = with_evaluation()
    strategy = FedPLT(num_agents=2, fraction_evaluate=1.0)
    result = strategy.start(InlineGrid(app, 2), START, num_rounds=2)
    assert len(calls) == 4
    found = result.evaluate_metrics_clientapp[2]
    assert dict(found) == {"first": pytest.approx(result.arrays["x"].numpy()[0])}
    without = FedPLT(num_agents=2, fraction_evaluate=1.0)
    plain = client_app(None, lambda context: SITE)
    other = without.start(InlineGrid(plain, 2), START, num_rounds=2)
    assert set(other.evaluate_metrics_clientapp[2]) == {"loss"}
    for each in (app, plain):
        with pytest.raises(ValueError, match="already registered"):
            each.evaluate()(lambda message, context: message)


@pytest.mark.parametrize("action", ["default", "mine"])
def test_a_private_agent_declines_an_evaluation_of_ones_own(action: str) -> None:
    """The answer would be an un-noised release."""
    app, calls = with_evaluation(action)
    grid = InlineGrid(app, 1)
    kind = "evaluate" if action == "default" else f"evaluate.{action}"
    node = next(iter(grid.online))

    def asked() -> Message:
        (reply,) = grid.send_and_receive([Message(RecordDict({"arrays": START}), node, kind)])
        return reply

    assert asked().has_content()
    assert calls == [kind]
    FedPLT(num_agents=1, **PRIVATE).start(grid, START, num_rounds=1)
    refusal = asked()
    assert refusal.has_error()
    assert Told.EVALUATION in refusal.error.reason
    assert calls == [kind]


def test_a_problem_without_held_out_rows_is_named() -> None:
    plain = BinaryLogistic(np.eye(2), [1, -1])
    result = played(lambda _: plain, SklearnModel(Ridge(fit_intercept=False), 2).arrays(), 1)
    assert not result.evaluate_metrics_clientapp
    with pytest.raises(ConfigError, match="evaluate_on is 'test', expected training or held-out"):
        Participant(lambda _: plain, evaluate_on="test")


def test_the_area_under_the_curve_is_scikit_learns() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        scores = random.integers(0, random.integers(1, 9), 20).astype(float)
        labels = random.random(20) < 0.4
        labels[:2] = True, False
        expected = roc_auc_score(labels, scores)
        assert area_under_curve(scores, labels) == pytest.approx(expected, abs=1e-14)
    assert area_under_curve(scores, np.ones(20, bool)) is None


def reply(**numbers: float) -> RecordDict:
    return RecordDict({"m": MetricRecord(numbers)})


def test_a_metric_that_some_lack_is_the_mean_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight = "num-examples"
    replies = [
        reply(**{weight: 10, "loss": 1.0, "auc": 0.5}),
        reply(**{weight: 30, "loss": 2.0, "auc": 0.9}),
        reply(**{weight: 60, "loss": 3.0}),
    ]
    mean = average_metrics(replies, weight)
    assert mean is not None
    assert dict(mean) == {"loss": pytest.approx(2.5), "auc": pytest.approx(0.8)}
    assert not caplog.records
    mean = average_metrics([*replies, *replies[2:] * 2, reply(loss=4.0)], weight)
    assert mean is not None
    assert set(mean) == {"loss"}
    assert [record.getMessage() for record in caplog.records] == [
        "metrics: 1 unusable replies left out",
        "metrics: auc left out, as most replies lack it",
    ]


@pytest.mark.parametrize("number", [10**400, -(10**400), float("nan"), float("inf")])
def test_a_reply_with_a_number_beyond_all_floats_is_left_out(number: float) -> None:
    weight = {"num-examples": 1}
    sent = [reply(**weight, loss=loss) for loss in (1.0, number, 3.0)]
    mean = average_metrics(sent, "num-examples")
    assert mean is not None
    assert mean["loss"] == 2.0
    assert usual_loss(sent) == 1.0
