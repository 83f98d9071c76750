"""The scikit-learn front: check_estimator, the pooled optimum, privacy, saving, errors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import parametrize_with_checks

from privet.client_apps import SklearnModel
from privet.core import ConfigError
from privet.data import load
from privet.problems import minimize
from privet.sim import FederatedClassifier, FederatedRegressor
from privet.sim.estimator import _excess
from privet.wire import Layout

# Few rounds do for most checks, whose fits warn then.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


# Every check holds for a single (X, y); one data set an agent is checked below.
@parametrize_with_checks([FederatedClassifier(rounds=15), FederatedRegressor(rounds=15)])
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def scaled(loader: Any) -> tuple[np.ndarray, np.ndarray]:
    features, labels = loader(return_X_y=True)
    return StandardScaler().fit_transform(features), labels


def dealt(features: np.ndarray, labels: np.ndarray, sizes: list[int]) -> tuple[Any, Any]:
    """Parts of different sizes, sorted by label: no agent looks like another."""
    order = np.argsort(labels, kind="stable")
    cuts = np.cumsum(sizes)
    return np.split(features[order], cuts), np.split(labels[order], cuts)


@pytest.mark.parametrize("loader", [load_wine, load_breast_cancer])
def test_a_fit_far_from_the_optimum_warns_and_offers_scaling(loader: Any) -> None:
    features, labels = loader(return_X_y=True)
    with pytest.warns(ConvergenceWarning, match="condition number.*StandardScaler") as caught:
        FederatedClassifier(rounds=5).fit(features, labels)
    assert Path(caught[0].filename).name == Path(__file__).name
    pooled = make_pipeline(StandardScaler(), LogisticRegression())
    model = make_pipeline(StandardScaler(), FederatedClassifier(rounds=100, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(features, labels)
    expected = pooled.fit(features, labels).score(features, labels)
    assert model.score(features, labels) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("factory", "loader"),
    [(LogisticRegression, load_iris), (LogisticRegression, load_breast_cancer), (Ridge, None)],
)
def test_the_excess_of_a_loss_is_that_above_the_pooled_optimum(factory: Any, loader: Any) -> None:
    features, labels = scaled(loader or load_diabetes)
    classes = () if loader is None else np.unique(labels)
    best = factory(tol=1e-12, max_iter=100_000).fit(features, labels)
    problem = SklearnModel(best, features.shape[1], classes).problem(features, labels)
    start = SklearnModel(best, features.shape[1], classes).arrays()
    optimum = Layout.of(start).flatten(start)
    least, near = problem.value(optimum), optimum * 1.01
    # Near the optimum the loss is quadratic: a Newton step gains all of the excess.
    assert _excess(problem, near) == pytest.approx(problem.value(near) - least, rel=0.02)
    assert _excess(problem, optimum) < 1e-9


def test_a_fit_that_diverged_says_so() -> None:
    features, labels = scaled(load_iris)
    model = FederatedRegressor(rounds=1, settings={"step_size": 1e6, "local_epochs": 30})
    with pytest.warns(ConvergenceWarning, match="the loss is inf .*: give a smaller step-size"):
        model.fit(features, labels)


@pytest.mark.parametrize("n_agents", [2, 10])
def test_unscaled_features_that_converge_are_no_divergence(
    n_agents: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The first residuals are tiny, and grow to those of the way to the optimum."""
    random = np.random.default_rng(0)
    features, labels = random.normal(10.0, 1.0, (30, 10)), random.integers(0, 2, 30)
    with caplog.at_level("WARNING", "flwr.privet"):
        model = FederatedClassifier(n_agents=n_agents, rounds=100).fit(features, labels)
    pooled = LogisticRegression(max_iter=10_000, tol=1e-10).fit(features, labels)
    np.testing.assert_allclose(model.coef_, pooled.coef_, atol=1e-3)
    assert "diverges" not in caplog.text


def test_unscaled_features_that_do_not_converge_are_said_to_be() -> None:
    """At a condition number of 1e10; where the course would lead, rounding decides."""
    random = np.random.default_rng(0)
    features, labels = random.normal(100.0, 1.0, (30, 10)), random.integers(0, 2, 30)
    with pytest.warns(ConvergenceWarning, match="the condition number is"):
        FederatedClassifier(n_agents=2, rounds=5).fit(features, labels)


def test_the_excess_without_a_hessian_is_never_above_the_true_one() -> None:
    features, labels = scaled(load_iris)
    model = SklearnModel(SGDClassifier(loss="log_loss", alpha=0.1), 4, range(3))
    problem = model.problem(features, labels)
    assert not hasattr(problem, "hessian")
    least = minimize(problem).value
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=problem.dim)
        assert 0 < _excess(problem, x) <= problem.value(x) - least


@pytest.mark.parametrize("strategy", ["fed-plt", "dp-iadmm"])
@pytest.mark.parametrize(
    ("loader", "sizes"), [(load_breast_cancer, [100, 400]), (load_iris, [40, 90])]
)
def test_optimum_is_that_of_the_pooled_data(strategy: str, loader: Any, sizes: list[int]) -> None:
    features, labels = scaled(loader)
    settings = {
        "fed-plt": {"local-solver": "agd", "local-epochs": 30, "rho": 5.0},
        "dp-iadmm": {"local_updates": 20, "eta_rule": "smooth", "rho": 0.05, "smoothness": 10.0},
    }[strategy]
    model = FederatedClassifier(strategy, LogisticRegression(C=0.05), rounds=150, settings=settings)
    model.fit(*dealt(features, labels, sizes))
    pooled = LogisticRegression(C=0.05, tol=1e-10, max_iter=10_000).fit(features, labels)
    gap = np.abs(model.predict_proba(features) - pooled.predict_proba(features)).max()
    assert gap < 1e-3
    assert model.score(features, labels) == pytest.approx(pooled.score(features, labels), abs=0.01)
    assert model.privacy_["private"] is False


@pytest.mark.parametrize("strategy", ["fed-pdm", "fed-dyn", "scaffold", "dp-fedsgd"])
def test_other_algorithms(strategy: str) -> None:
    features, labels = scaled(load_iris)
    settings = {"step-size-base": 0.5, "step-size-rule": "constant"}
    model = FederatedClassifier(strategy, rounds=60, settings=settings, random_state=0)
    assert model.fit(features, labels).score(features, labels) > 0.9


def test_labels_of_any_kind_and_an_estimator_of_ones_own() -> None:
    features, labels = scaled(load_iris)
    names = np.array(["setosa", "versicolor", "virginica"])[labels]
    own = SGDClassifier(loss="log_loss", alpha=0.01)
    model = FederatedClassifier(estimator=own, rounds=100, n_agents=3).fit(features, names)
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert model.score(features, names) > 0.9
    assert model.coef_.shape == (3, 4)
    assert model.decision_function(features).shape == (150, 3)
    assert np.allclose(model.predict_proba(features).sum(axis=1), 1.0)
    assert not hasattr(own, "coef_")


@pytest.mark.parametrize("strategy", ["fed-plt", "dp-iadmm", "dp-fedsgd"])
def test_private_run_keeps_its_budget(strategy: str) -> None:
    features, labels = scaled(load_breast_cancer)
    model = FederatedClassifier(
        strategy, rounds=10, n_agents=3, target_epsilon=4.0, delta=1e-4, random_state=0
    )
    model.fit(features, labels)
    assert model.privacy_["private"] is True
    [first, _] = model.privacy_["accounts"]
    assert 1.0 < first["epsilon"] <= 4.0
    assert first["delta"] == 1e-4
    assert model.history_[-1]["epsilon"] > model.history_[0]["epsilon"] > 0
    assert model.score(features, labels) > 0.8


def test_noise_is_not_what_random_state_decides() -> None:
    features, labels = scaled(load_iris)
    options: Any = {"rounds": 2, "random_state": 0}
    noisy = [
        FederatedClassifier(target_epsilon=1.0, **options).fit(features, labels) for _ in range(2)
    ]
    still = [FederatedClassifier(**options).fit(features, labels) for _ in range(2)]
    assert not np.array_equal(noisy[0].coef_, noisy[1].coef_)
    assert np.array_equal(still[0].coef_, still[1].coef_)


def test_saved_with_joblib(tmp_path: Path) -> None:
    features, labels = scaled(load_iris)
    model = FederatedClassifier(rounds=5).fit(features, labels)
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    assert np.array_equal(again.predict_proba(features), model.predict_proba(features))
    assert again.history_ == model.history_
    assert again.get_params().keys() == model.get_params().keys()


def test_part_of_scikit_learn() -> None:
    features, labels = load_iris(return_X_y=True)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), FederatedClassifier(rounds=20, random_state=0)),
        {"federatedclassifier__rounds": [1, 40]},
        cv=3,
    )
    search.fit(features, labels)
    assert search.best_params_ == {"federatedclassifier__rounds": 40}
    assert search.best_score_ > 0.9


def test_parameters_survive_a_clone() -> None:
    model = FederatedClassifier("fed-pdm", LogisticRegression(C=3.0), settings={"rho": 2.0})
    copy = clone(model)
    assert copy.get_params()["estimator__C"] == 3.0
    assert copy.get_params()["strategy"] == "fed-pdm"
    assert copy.set_params(estimator__C=1.0).estimator.C == 1.0
    assert model.estimator.C == 3.0


def test_history_has_a_line_a_round() -> None:
    features, labels = scaled(load_iris)
    parts = dealt(features, labels, [30, 60])
    model = FederatedClassifier(rounds=4).fit(*parts)
    assert [line["round"] for line in model.history_] == [1, 2, 3, 4]
    assert model.n_iter_ == 4
    assert model.history_[0]["participants"] == ["0", "1", "2"]
    assert model.n_features_in_ == 4


@pytest.mark.parametrize("verbose", [True, False])
def test_verbose_shows_at_most_a_line_a_round(
    verbose: bool, caplog: pytest.LogCaptureFixture
) -> None:
    features, labels = scaled(load_iris)
    model = FederatedClassifier(rounds=40, verbose=verbose).fit(features, labels)
    lines = [line for line in caplog.messages if "round" in line.lower()]
    assert len(lines) == ((model.n_iter_ + 1) // 2 if verbose else 0)
    assert not verbose or lines[-1].startswith(f"round {model.n_iter_}/40")


def test_history_has_loss_and_accuracy_of_training_or_test_data() -> None:
    features, labels = scaled(load_iris)
    rest, test = np.arange(150) % 3 > 0, np.arange(150) % 3 == 0
    names = np.array(["a", "b", "c"])[labels]
    model = FederatedClassifier(rounds=5).fit(features, names)
    last = model.history_[-1]
    assert last["accuracy"] == model.score(features, names)
    assert last["loss"] == pytest.approx(log_loss(names, model.predict_proba(features)), rel=1e-6)
    assert None not in [line["loss"] for line in model.history_]
    held: Any = {"eval_set": (features[test], names[test])}
    model.fit(features[rest], names[rest], **held)
    assert model.history_[-1]["accuracy"] == model.score(features[test], names[test])
    with pytest.raises(ValueError, match="eval_set: label 'z' is no class"):
        model.fit(features, names, eval_set=(features[:1], ["z"]))


def test_loss_of_a_regression_is_its_mean_squared_error() -> None:
    features, targets = load_diabetes(return_X_y=True)
    features, targets = scale(features), scale(targets)
    model = FederatedRegressor(rounds=5).fit(features, targets)
    error = np.mean((model.predict(features) - targets) ** 2)
    assert model.history_[-1]["loss"] == pytest.approx(error, rel=1e-6)
    assert model.history_[-1]["accuracy"] is None


NOISED = {"local-solver": "noisy-gd", "clip": 1.0, "row-norm": 1.0, "noise-variance": 1.0}


@pytest.mark.parametrize(
    "noised",
    [
        {"target_epsilon": 4.0},
        {"settings": NOISED, "estimator": LogisticRegression(fit_intercept=False)},
    ],
)
def test_a_private_run_measures_no_training_data(noised: dict[str, Any]) -> None:
    features, labels = scaled(load_iris)
    model = FederatedClassifier(rounds=2, random_state=0, **noised).fit(features, labels)
    assert [(one["loss"], one["accuracy"]) for one in model.history_] == [(None, None)] * 2
    model.fit(features, labels, eval_set=(features[::5], labels[::5]))
    assert model.history_[-1]["accuracy"] == model.score(features[::5], labels[::5])


@pytest.mark.filterwarnings("ignore:y. about")  # the agents' targets lie far apart
@pytest.mark.parametrize("estimator", [Ridge(alpha=2.0), LinearRegression()])
def test_a_regression_is_that_of_the_pooled_data(estimator: Any) -> None:
    features, targets = load_diabetes(return_X_y=True)
    features, targets = scale(features), scale(targets)
    settings = {"local-solver": "agd", "local-epochs": 30, "rho": 5.0}
    model = FederatedRegressor(estimator=estimator, rounds=400, settings=settings)
    model.fit(*dealt(features, targets, [100, 300]))
    pooled = clone(estimator).fit(features, targets)
    assert np.abs(model.predict(features) - pooled.predict(features)).max() < 1e-3
    assert model.score(features, targets) == pytest.approx(
        pooled.score(features, targets), abs=1e-5
    )


@pytest.mark.filterwarnings("ignore:column y. the classes are 3")  # two agents have two each
@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_columns_of_a_frame_have_names(kind: Any) -> None:
    frame = load_iris(as_frame=True)
    names = list(frame.data.columns)
    model = kind(rounds=5).fit(frame.data, frame.target)
    assert list(model.feature_names_in_) == names
    assert model.n_features_in_ == 4
    halves = [frame.data[:75], frame.data[75:]], [frame.target[:75], frame.target[75:]]
    assert list(kind(rounds=5).fit(*halves).feature_names_in_) == names
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.data[names[::-1]])
    swapped = [halves[0][0], halves[0][1][names[::-1]]]
    with pytest.raises(ValueError, match=r"agent 1: .*feature names should match"):
        kind(rounds=5).fit(swapped, halves[1])


X, Y = np.eye(6), np.array([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("fit", "line"),
    [
        (lambda: FederatedClassifier("fed-avgg").fit(X, Y), "fed-avgg"),
        (lambda: FederatedClassifier(settings={"rhoo": 1.0}).fit(X, Y), "rhoo"),
        (lambda: FederatedClassifier(n_agents=0).fit(X, Y), "n_agents must be >= 1"),
        (
            lambda: FederatedClassifier(n_agents=10_000).fit(X, Y),
            f"n_agents: {len(X)} samples cannot give each of 10000 agents one",
        ),
        (lambda: FederatedClassifier().fit([X, X], [Y]), "2 feature arrays and 1 label arrays"),
        (lambda: FederatedClassifier().fit([X, X[:, :2]], [Y, Y]), "agent 1: X has 2 features"),
        (lambda: FederatedClassifier().fit([X, X], [Y, Y[:2]]), "agent 1: "),
        (lambda: FederatedClassifier().fit([X, X], [Y * 0, Y * 0]), "1 class"),
        (lambda: FederatedClassifier(estimator=SGDClassifier()).fit(X, Y), "log_loss"),
        (
            lambda: FederatedClassifier(target_epsilon=1.0, settings={"local-solver": "gd"}).fit(
                X, Y
            ),
            "noisy-gd",
        ),
    ],
)
def test_what_cannot_be_used_is_a_value_error(fit: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        fit()


def test_config_errors_are_value_errors() -> None:
    assert issubclass(ConfigError, ValueError)
    with pytest.raises(NotFittedError):
        FederatedClassifier().predict(X)


def test_classes_and_units_that_part_along_agents_warn() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X[:, :3]) + 9
    parts = [X[:300], X[300:]]
    model = FederatedClassifier(rounds=1)
    words = [np.where(y[:300] > 0, "yes", "no"), np.where(y[300:] > 0, "ja", "nein")]
    with pytest.warns(UserWarning, match=r"y: the classes 'no', 'yes' in 'agent 0' alone and 'ja'"):
        model.fit(parts, words)
    with pytest.warns(UserWarning, match=r"y: the classes are 3, and no .* \('0', '1' in agent 0;"):
        model.fit(parts, [y[:300], y[300:] + 1])
    units = [X[:300], X[300:] * [1, 30, 1]]
    with pytest.warns(UserWarning, match="feature 1: about .* in 'agent 0' and about .* 'agent 1'"):
        model.fit(units, [y[:300], y[300:]])
    private = FederatedClassifier("dp-fedsgd", rounds=1, clip=1.0, target_epsilon=4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(parts, [y[:300], y[300:]])
        model.fit(X, y)
        model.fit(parts, [y[:300], np.where(y[300:] > 0, 1, 2 * y[300:])])
        private.fit(units, [y[:300], y[300:]])
    targets = [X[:300, 0], 30 * X[300:, 0]]
    with pytest.warns(UserWarning, match="y: about .* in 'agent 0' and about .* in 'agent 1'"):
        FederatedRegressor(rounds=1).fit(parts, targets)


@pytest.mark.parametrize(
    "sites",
    [
        ("no no yes", "ja nein ja"),
        ("1 2 1", "0 1 0"),
        ("0 1 0", "no yes yes"),
        ("a b c", "d e f"),
        ("no yes no", "yes no no"),
        ("a a a", "b b b"),
        ("no y yes y yes", "no yes no yes no"),
    ],
)
def test_classes_of_agents_are_doubted_as_those_of_files(
    tmp_path: Path, sites: tuple[str, str]
) -> None:
    labels = [np.resize(one.split(), 40) for one in sites]
    rows = [np.random.default_rng(at).normal(size=(40, 2)) for at in range(2)]
    for at in range(2):
        table = pd.DataFrame({"a": rows[at][:, 0], "b": rows[at][:, 1], "y": labels[at]})
        table.to_csv(tmp_path / f"agent {at}.csv", index=False)
    expected = [doubt.text for doubt in load("csv", data_path=str(tmp_path)).doubts]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        FederatedClassifier(rounds=1).fit(rows, labels)
    found = [str(one.message) for one in said if issubclass(one.category, UserWarning)]
    assert [text for text in found if text.startswith("column y")] == expected


def test_labels_of_several_types_are_named_by_their_agent() -> None:
    X, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0])
    texts = np.array(["0", "1", "0"], dtype=object)
    with pytest.raises(ValueError, match="agent 1: labels are str, those of agent 0 int: expected"):
        FederatedClassifier().fit([X[:3], X[3:]], [y, texts])


class TestNearness:
    """Fits end where the pooled optimum is reached, and warn where they are far from it."""

    def test_a_fit_ends_where_the_pooled_optimum_is_reached(self) -> None:
        features, labels = scaled(load_breast_cancer)
        model = FederatedClassifier(rounds=100, random_state=0).fit(features, labels)
        exact = LogisticRegression(tol=1e-12, max_iter=10_000).fit(features, labels)
        away = np.linalg.norm(model.coef_ - exact.coef_) / np.linalg.norm(exact.coef_)
        assert away < 2e-6
        assert model.n_iter_ < 100
        assert 0 < model.estimated_error_ <= 1e-6
        kept = FederatedClassifier(rounds=100, random_state=0, settings={"tolerance": 0.0})
        assert kept.fit(features, labels).n_iter_ == 100

    def test_a_fit_far_away_warns_with_the_rounds_that_are_missing(self) -> None:
        """The loss alone would not: it is within one percent of the least."""
        features, labels = scaled(load_wine)
        with pytest.warns(ConvergenceWarning, match=r"norm away; .*: give about \d+ more rounds"):
            model = FederatedClassifier(rounds=9, random_state=0).fit(features, labels)
        assert model.estimated_error_ > 0.01

    def test_other_algorithms_have_no_estimate(self) -> None:
        features, labels = scaled(load_wine)
        model = FederatedClassifier("fed-pdm", rounds=3, random_state=0).fit(features, labels)
        assert np.isnan(model.estimated_error_)
