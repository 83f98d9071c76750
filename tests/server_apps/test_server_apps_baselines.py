"""Baselines of a run: each by other means, within their time, and outside of every promise."""

from __future__ import annotations

import itertools
import json
import math
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.metrics import log_loss

from privet.core.files import read_npz
from privet.data import federation_from_config
from privet.server_apps.advice import remark
from privet.server_apps.baselines import _LeftOutError, _problems
from privet.server_apps.execute import headline
from privet.sim.inline import run_inline
from support.reports import Page

VALIDATED = "cross-validated"
AGENTS, ROUNDS, WEIGHT = 4, 3, 0.05
DEALT = {"num-agents": AGENTS, "partition": "iid", "regularizer-weight": WEIGHT}
PRIVATE = {"local-solver": "noisy-gd", "clip": 1.0, "row-norm": 5.0, "target-epsilon": 0.5}


def run(folder: Path, name: str = "run", **given: Any) -> Any:
    keys = {**DEALT, "num-server-rounds": ROUNDS, "output-dir": str(folder)}
    return run_inline({**keys, **{key.replace("_", "-"): v for key, v in given.items()}}, name)


def rows() -> tuple[list[Any], list[Any], Any, Any]:
    """Features and labels of every agent, and of the held-out set."""
    data = federation_from_config({**DEALT, "algorithm": "fed-plt"}, AGENTS)
    whole = data.dataset
    features = [whole.train_features[part] for part in data.parts]
    labels = [whole.train_labels[part] for part in data.parts]
    return features, labels, whole.test_features, whole.test_labels


def fitted(features: Any, labels: Any, weights: Any, strength: float) -> Any:
    model = LogisticRegression(C=1 / strength, fit_intercept=False, tol=1e-10, max_iter=5000)
    return model.fit(features, labels, sample_weight=weights)


@pytest.mark.baselines
def test_each_is_what_other_means_give(tmp_path: Path) -> None:
    """Scikit-learn's fits, FedAvg written out, and the shares of the classes."""
    found = run(tmp_path).summary["baselines"]
    features, labels, test, truth = rows()

    weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in labels])
    pooled = fitted(np.concatenate(features), np.concatenate(labels), weights, AGENTS * WEIGHT)
    assert found["pooled"]["accuracy"] == pooled.score(test, truth)
    margins = truth * pooled.decision_function(test)
    assert found["pooled"]["loss"] == pytest.approx(np.logaddexp(0, -margins).mean(), rel=1e-4)

    alone = [
        fitted(x, y, np.full(len(y), 1 / len(y)), WEIGHT).score(test, truth)
        for x, y in zip(features, labels, strict=True)
    ]
    assert found["alone"]["accuracy"] == pytest.approx(np.mean(alone), abs=1e-12)
    assert (found["alone"]["lowest"], found["alone"]["highest"]) == (min(alone), max(alone))
    assert found["alone"]["agents"] == AGENTS

    share, there = np.mean(np.concatenate(labels) == 1), np.mean(truth == 1)
    entropy = -there * math.log(share) - (1 - there) * math.log(1 - share)
    assert found["constant"]["loss"] == pytest.approx(entropy, rel=1e-6)
    assert found["constant"]["accuracy"] == pytest.approx(max(there, 1 - there))


def averaged(features: Any, labels: Any, steps: int, scale: float) -> Any:
    """FedAvg written out, with a multiple of 2 / (L + lambda) of each agent."""
    x = np.zeros(features[0].shape[1])
    for _ in range(ROUNDS):
        ends = []
        for a, y in zip(features, labels, strict=True):
            w, top = x, np.linalg.eigvalsh(a.T @ a / len(y))
            step = scale * 2 / (top[-1] / 4 + 2 * WEIGHT)  # the loss has curvature 0 to 1/4
            for _ in range(steps):
                slope = -y / (1 + np.exp(y * (a @ w)))
                w = w - step * (a.T @ slope / len(y) + WEIGHT * w)
            ends.append(w)
        x = np.mean(ends, axis=0)
    return x


@pytest.mark.baselines
@pytest.mark.parametrize(("solver", "steps"), [("newton", 30), ("gd", 7)])
def test_fed_avg_has_the_work_of_the_run_and_its_best_step(
    solver: str, steps: int, tmp_path: Path
) -> None:
    """Of all multiples, not of the first alone; a product with a Hessian counts as a gradient."""
    given = {"local_solver": solver, "baseline_seconds": 60, "rho": 3.0}
    given |= {"local_epochs": 7} if solver == "gd" else {}
    found = run(tmp_path, **given).summary["baselines"]["fed-avg"]
    features, labels, test, truth = rows()

    def objective(x: Any) -> float:
        return sum(
            np.logaddexp(0, -y * (a @ x)).mean() + WEIGHT * x @ x / 2
            for a, y in zip(features, labels, strict=True)
        )

    models = {scale: averaged(features, labels, steps, scale) for scale in (1, 2, 4, 8, 16, 32)}
    best = min(models, key=lambda scale: objective(models[scale]))
    loss = np.logaddexp(0, -truth * (test @ models[best])).mean()
    assert found["loss"] == pytest.approx(loss, rel=1e-8)
    assert found["setting"] == f"{steps} gradient steps a round, {best} times the usual step"


@pytest.mark.baselines
def test_scikit_learns_own_fits_of_the_same_rows_stand_beside_them(tmp_path: Path) -> None:
    """Its defaults, with an intercept in place of the column of ones, on any weight of the run."""
    finished = run(tmp_path, baseline_seconds=60)
    found = finished.summary["baselines"]
    features, labels, test, truth = rows()
    x, y = np.concatenate(features)[:, :-1], np.concatenate(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = LogisticRegressionCV().fit(x, y)
    for name, model in (("scikit-learn", LogisticRegression().fit(x, y)), (VALIDATED, chosen)):
        chances = model.predict_proba(test[:, :-1])
        assert found[name]["accuracy"] == model.score(test[:, :-1], truth)
        assert found[name]["loss"] == pytest.approx(log_loss(truth, chances), rel=1e-2)
    assert found[VALIDATED]["setting"] == f"C = {np.mean(chosen.C_):.4g}"

    # Of the run's own weight, and so the distance to its optimum: both as coefficients.
    whole = np.concatenate(features)
    weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in labels])
    best = fitted(whole, y, weights, AGENTS * WEIGHT).coef_[0]
    usual = LogisticRegression().fit(x, y)
    away = np.linalg.norm(np.append(usual.coef_[0], usual.intercept_) - best)
    assert found["scikit-learn"]["distance"] == pytest.approx(away, rel=1e-4)
    page = Page((finished.folder / "report.html").read_text())
    for name in ("run", "pooled", "scikit-learn", VALIDATED, "fed-avg", "alone"):
        assert float(str(page.ids[f"run-0-baseline-{name}-distance"]["data-value"])) >= 0
    assert "run-0-baseline-constant-distance" not in page.ids


@pytest.mark.baselines
def test_scikit_learns_default_is_the_limit_of_a_run_of_defaults(tmp_path: Path) -> None:
    keys = {"num-server-rounds": 60, "output-dir": str(tmp_path), "partition": "label"}
    found = run_inline({**keys, "baseline-seconds": 60}, "run").summary
    assert found["distance-to-optimum"] < 1e-5
    assert found["baselines"]["scikit-learn"]["distance"] < 0.1  # lbfgs stops early
    assert found["baselines"]["fed-avg"]["distance"] > 100 * found["distance-to-optimum"]


@pytest.mark.baselines
def test_cross_validation_is_left_out_where_it_would_take_too_long(tmp_path: Path) -> None:
    keys = {"dataset": "digits", "num_server_rounds": 1, "baseline_seconds": 1.0}
    left_out = run(tmp_path, **keys).summary["baselines"]["left-out"]
    assert left_out[VALIDATED].startswith("left out")


@pytest.mark.baselines
def test_a_regression_is_compared_with_the_mean(tmp_path: Path) -> None:
    finished = run(tmp_path, dataset="diabetes", num_server_rounds=1)
    found = finished.summary["baselines"]
    data = federation_from_config({"algorithm": "fed-plt", "dataset": "diabetes"}, AGENTS).dataset
    gaps = data.test_labels - data.train_labels.mean()
    assert found["constant"] == {"loss": pytest.approx(np.mean(gaps**2), rel=1e-6)}
    assert "the same number for every row" in headline(finished.summary)["baselines"]
    features, targets = data.train_features[:, :-1], data.train_labels
    assert np.all(data.train_features[:, -1] == 1.0)
    for name, model in (("scikit-learn", Ridge()), (VALIDATED, RidgeCV())):
        model.fit(features, targets)
        errors = data.test_labels - model.predict(data.test_features[:, :-1])
        assert found[name]["loss"] == pytest.approx(np.mean(errors**2), rel=1e-6)
    assert found[VALIDATED]["setting"] == f"alpha = {model.alpha_:.4g}"


@pytest.mark.baselines
def test_they_end_with_their_time_and_change_no_bit(tmp_path: Path) -> None:
    """What is not ready is named; model and history are those of a run without any."""
    late = run(tmp_path, "late", num_server_rounds=1, baseline_seconds=1e-9)
    none = run(tmp_path, "none", num_server_rounds=1, baseline_seconds=0)
    full = run(tmp_path, "full", num_server_rounds=1)
    assert "baselines" not in none.summary
    assert late.summary["baselines"]["left-out"] == dict.fromkeys(
        ("constant", "pooled", "scikit-learn", "alone", VALIDATED, "fed-avg"),
        "left out after 1e-09 s",
    )
    assert "each agent alone: left out after 1e-09 s" in headline(late.summary)["baselines"]
    models = [read_npz(one.folder / "model.npz")["x"] for one in (late, none, full)]
    assert all(np.array_equal(models[0], one) for one in models)


@pytest.mark.baselines
def test_fed_avg_is_left_out_as_soon_as_its_time_is_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock takes a second here, and FedAvg looks twice for each agent."""
    looks = itertools.count()
    clock = types.SimpleNamespace(process_time=lambda: float(next(looks)))
    monkeypatch.setattr(sys.modules["privet.server_apps.baselines"], "time", clock)
    found = run(tmp_path, num_server_rounds=100, tolerance=0.0, baseline_seconds=200).summary[
        "baselines"
    ]
    assert found["left-out"].keys() == {"fed-avg"}
    assert found["left-out"]["fed-avg"].startswith("left out, would take ")
    assert next(looks) < 30


@pytest.mark.baselines
@pytest.mark.parametrize("participation", ["all", "fraction"])
def test_agents_with_names_have_the_baselines_of_numbered_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, participation: str
) -> None:
    """Names do not say whose rows are whose: a part of them is as likely any part of the shares."""
    given: dict[str, Any] = {"num_server_rounds": 1, "baseline_seconds": 60}
    if participation == "fraction":
        given |= {"participation": "fraction", "fraction": 0.5}
    numbered = run(tmp_path, "numbered", **given).summary["baselines"]
    module = sys.modules["privet.sim.inline"]
    nodes = [
        {"partition-id": number, "num-partitions": AGENTS, "agent": name}
        for number, name in enumerate(("bern", "graz", "linz", "wien"))
    ]
    monkeypatch.setattr(module, "simulated", lambda config: nodes)
    found = run(tmp_path, "named", **given).summary["baselines"]
    assert "left-out" not in found
    if participation == "all":
        assert found == numbered


def test_shares_that_have_no_agent_are_named() -> None:
    shares: list[Any] = ["f0", "f1", "f2"]
    assert _problems(shares, ["0", "2"])["2"] == "f2"
    assert _problems(shares, ["b", "c", "1"]) == {"b": "f0", "c": "f1", "1": "f2"}
    with pytest.raises(_LeftOutError, match="left out, as 3 shares of the data have 2 agents"):
        _problems(shares, ["bern", "graz"])


@pytest.mark.baselines
def test_nodes_of_their_own_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["privet.server_apps.execute"]
    monkeypatch.setattr(module, "in_simulation", lambda grid: False)
    summary = run(tmp_path, num_server_rounds=1).summary
    assert (summary["simulated"], "baselines" in summary) == (False, False)


@pytest.mark.baselines
def test_a_private_run_has_none_unless_it_asks(tmp_path: Path) -> None:
    finished = run(tmp_path, num_server_rounds=1, **PRIVATE)
    assert "baselines" not in finished.summary
    assert "pooled" not in (finished.folder / "report.html").read_text()


@pytest.mark.baselines
def test_in_a_private_run_they_are_marked_and_stand_in_no_promise(tmp_path: Path) -> None:
    finished = run(tmp_path, num_server_rounds=1, baseline_seconds=2, **PRIVATE)
    pooled = finished.summary["baselines"]["pooled"]["accuracy"]
    assert "baselines without noise, which epsilon does not cover" in headline(finished.summary)
    page = Page((finished.folder / "report.html").read_text())
    assert page.ids["run-0-baseline-pooled-accuracy"]["data-value"] == repr(pooled)
    assert "fitted on the records without noise" in page.html
    for name in ("privacy.json", "statement.html"):
        text = (finished.folder / name).read_text()
        assert "aseline" not in text
        assert repr(pooled) not in text
    assert "baselines" not in json.dumps(dict(read_npz(finished.folder / "model.npz")), default=str)


def summary(loss: float, accuracy: float, **more: Any) -> dict[str, Any]:
    start = {"loss": 0.6931, "accuracy": 0.4}
    return {"private": True, "loss": loss, "accuracy": accuracy, "start": start, **more}


def test_a_loss_that_ends_far_above_its_start_is_mentioned() -> None:
    """Even if the accuracy rose, which the check of runs that are no better lets pass."""
    said = remark(summary(2.9, 0.75))
    assert said.startswith("loss 2.9 is far above 0.6931, that of the starting model, although ")
    assert "fewer rounds" in said
    assert remark(summary(0.7, 0.75)) == remark({}) == ""
    assert remark(summary(2.9, 0.75, **{"no-better": "loss 2.9"})) == "", "that is said already"
    common = {"constant": {"loss": 0.5, "accuracy": 0.8}}
    said = remark(summary(0.6, 0.75, baselines=common))
    assert "0.5, that of a model that says the same of every row" in said
    assert "accuracy 0.7500 is below the commonest class's 0.8000" in said


@pytest.mark.parametrize(("averaged", "cause"), [(0.9, "noise"), (0.6, "work"), (None, "noise")])
def test_noise_is_blamed_only_where_the_same_work_without_it_is_better(
    averaged: float | None, cause: str
) -> None:
    found = {
        "alone": {"accuracy": 0.8},
        **({"fed-avg": {"accuracy": averaged}} if averaged else {}),
    }
    said = remark(summary(0.6, 0.75, baselines=found, config={"step-size-base": 1.0}))
    assert "accuracy 0.7500 is below 0.8000, the mean of agents that train alone" in said
    assert ("more rows or agents" in said, "fewer rounds" in said) == (cause == "noise",) * 2
    assert ("0.6000 without noise" in said, "a larger step-size-base" in said) == (
        (cause == "work",) * 2
    )
