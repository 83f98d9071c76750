"""Huber's regression against its definition, scikit-learn, and the clip that privacy rests on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from privet.core import ConfigError
from privet.data import DataError, planned_facts, problem_from_config
from privet.kernel.facts import OTHER
from privet.problems import L2, minimize, public_facts
from privet.problems.losses.huber import HuberRegression
from privet.server_apps.config import read_config
from privet.sim.inline import run_inline

RUN: dict[str, Any] = {"loss": "huber", "dataset": "regression", "partition": "iid"}


def problem(seed: int = 0, count: int = 12, **options: Any) -> HuberRegression:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, 3)).astype(options.pop("dtype", "f8"))
    return HuberRegression(features, 3.0 * rng.standard_normal(count), **options)


@pytest.mark.parametrize("threshold", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_value_and_gradient_follow_the_definition(threshold: float, dtype: str) -> None:
    one = problem(huber_threshold=threshold, regularizer=L2(0.3), divisor=20.0, dtype=dtype)
    x = np.array([0.4, -1.0, 0.2])
    value, slope = 0.15 * (x @ x), 0.3 * x
    for row, target in zip(one.features.astype(float), one.targets.astype(float), strict=True):
        e = math.fsum(row * x) - target
        inside = abs(e) <= threshold
        value += (e * e / 2 if inside else threshold * abs(e) - threshold**2 / 2) / 20
        slope = slope + (e if inside else math.copysign(threshold, e)) * row / 20
    close = 1e-5 if dtype == "f4" else 1e-12
    assert one.value(x) == pytest.approx(value, rel=close)
    np.testing.assert_allclose(one.gradient(x), slope, rtol=close, atol=close)


def test_a_large_threshold_is_half_of_least_squares_and_hessians_are_slopes() -> None:
    one, x, step = problem(huber_threshold=1.0), np.array([0.3, 0.1, -0.7]), 1e-6
    ends = [(one.gradient(x + step * u) - one.gradient(x - step * u)) / 2e-6 for u in np.eye(3)]
    np.testing.assert_allclose(one.hessian(x), np.array(ends), atol=1e-8)
    wide = problem(huber_threshold=1e6)
    exact = np.linalg.lstsq(wide.features, wide.targets, rcond=None)[0]
    np.testing.assert_allclose(minimize([wide]).x, exact, atol=1e-7)


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_moduli_bound_every_hessian_whatever_the_threshold(seed: int, threshold: float) -> None:
    one = problem(seed, huber_threshold=threshold, regularizer=L2(0.2))
    for x in np.random.default_rng(seed).standard_normal((4, 3)):
        values = np.linalg.eigvalsh(one.hessian(x))
        assert one.moduli.strong_convexity <= values[0] + 1e-12
        assert values[-1] <= one.moduli.smoothness * (1 + 1e-12)


def test_the_minimiser_is_scikit_learns_at_its_scale() -> None:
    from sklearn.linear_model import HuberRegressor

    rng = np.random.default_rng(3)
    features = rng.standard_normal((200, 3))
    targets = features @ [1.0, -2.0, 0.5] + 0.3 * rng.standard_normal(200)
    targets[:20] += 15.0
    theirs = HuberRegressor(epsilon=1.5, alpha=2.0, fit_intercept=False, tol=1e-10, max_iter=5000)
    theirs.fit(features, targets)
    ours = HuberRegression(
        features,
        targets,
        huber_threshold=1.5 * theirs.scale_,
        regularizer=L2(2.0 * theirs.scale_ / 200),
    )
    np.testing.assert_allclose(minimize([ours]).x, theirs.coef_, rtol=1e-5, atol=1e-6)


@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.7, 3.0]), st.sampled_from(["l1", "l2"]))
def test_one_record_moves_the_clipped_gradient_by_no_more_than_is_said(
    seed: int, clip: float, kind: Any
) -> None:
    rng = np.random.default_rng(seed)
    one = problem(seed, huber_threshold=2.0)
    features, targets = one.features.copy(), one.targets.copy()
    features[4], targets[4] = 10 ** rng.uniform(-3, 6) * rng.standard_normal(3), 1e6
    x = rng.standard_normal(3)
    moved = one.clipped_gradient(x, clip, kind) - one.with_features(
        features, targets
    ).clipped_gradient(x, clip, kind)
    said = public_facts(one).sensitivity(clip, relation="replace-one")
    assert np.linalg.norm(moved, 1 if kind == "l1" else 2) <= said
    assert said <= 2 * clip / 12 * 1.005


def test_no_proof_but_that_of_the_clip_speaks_of_it() -> None:
    facts = public_facts(problem())
    assert (facts.loss, facts.linear, facts.clips) == (OTHER, False, True)
    assert planned_facts({**RUN, "regularizer": "none"}, 2, 12, 3) == facts


def test_its_threshold_is_kept_with_other_rows() -> None:
    one = problem(huber_threshold=0.25)
    held = one.with_rows_within(1.0)
    assert held is not one
    assert held.constants == {"huber_threshold": 0.25}
    x = np.full(3, 50.0)
    np.testing.assert_allclose(np.abs(held.slopes(held.features @ x, held.targets)), 0.25)


def test_the_key_reaches_the_problem() -> None:
    found = problem_from_config({**RUN, "huber-threshold": 0.5}, 0, 4)
    assert isinstance(found, HuberRegression)
    assert found.constants == {"huber_threshold": 0.5}
    with pytest.raises(DataError, match="loss huber does not fit dataset digits"):
        problem_from_config({"loss": "huber", "dataset": "digits"}, 0, 4)


@pytest.mark.parametrize("loss", ["auto", "ridge"])
def test_its_key_is_refused_with_other_losses(loss: str) -> None:
    with pytest.raises(
        ConfigError,
        match=f"huber-threshold = 2.0: not used with loss = {loss}, only with huber",
    ):
        read_config({"loss": loss, "dataset": "regression", "huber-threshold": 2.0})
    with pytest.raises(ConfigError, match=r"huber-threshold = 0\.0: must be >= 1e-30"):
        read_config({"loss": "huber", "huber-threshold": 0.0})


def test_a_run_comes_to_its_minimiser(tmp_path: Path) -> None:
    config = {**RUN, "huber-threshold": 0.5, "num-agents": 3, "num-server-rounds": 150}
    done = run_inline({**config, "output-dir": str(tmp_path)}, "huber")
    best = minimize([problem_from_config(config, agent, 3) for agent in range(3)])
    model = np.load(done.folder / "model.npz")["x"]
    np.testing.assert_allclose(model, best.x, atol=1e-5)


def test_a_private_run_is_charged_by_its_clip(tmp_path: Path) -> None:
    private = {"algorithm": "fed-plt", "local-solver": "noisy-gd", "clip": 0.5, "local-epochs": 2}
    private |= {"noise-variance": 0.1, "step-size": 0.1, "num-server-rounds": 2, "num-agents": 3}
    config = {**RUN, **private, "output-dir": str(tmp_path)}
    history = run_inline(config, "private").result.history
    count = problem_from_config(config, 0, 3).num_examples
    # Four steps of gamma = 0.1, each N(0, 2 gamma tau^2) on what moves by gamma 2 C / n.
    mu = math.sqrt(4) * (0.1 * 2 * 0.5 / count) / math.sqrt(2 * 0.1 * 0.1)

    def delta(epsilon: float) -> float:
        upper = norm.cdf(mu / 2 - epsilon / mu)
        return float(upper - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))

    assert history[-1].epsilon == pytest.approx(brentq(lambda e: delta(e) - 1e-5, 0, 9), rel=0.01)
