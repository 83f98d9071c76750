"""Training losses beside the families of regressions: value, gradient and Hessian are theirs."""

from __future__ import annotations

import numpy as np
import pytest

from privet.analyses.family import FAMILIES
from privet.problems import BinaryLogistic, RidgeRegression


@pytest.mark.parametrize(
    ("family", "made", "times"),
    [("binomial", BinaryLogistic, 1.0), ("gaussian", RidgeRegression, 2.0)],
)
def test_a_loss_is_its_familys_negative_log_likelihood(family, made, times):
    """-D f, -D grad f and D hess f are log-likelihood, score X'(y - mu) and information X'VX.

    Those of the squared loss are twice as much, as it has no 1/2.
    """
    rng = np.random.default_rng(1)
    design, x = rng.normal(size=(80, 4)), rng.normal(size=4)
    labels = rng.choice([0.0, 1.0], 80) if family == "binomial" else rng.normal(size=80)
    loss = made(design, 2 * labels - 1 if family == "binomial" else labels, divisor=40.0)
    of, eta = FAMILIES[family], design @ x
    mean = of.mean(eta)
    scale = times / 40.0
    assert loss.value(x) == pytest.approx(-scale * of.loglik(labels, eta).sum(), rel=1e-12)
    score, information = design.T @ (labels - mean), (design.T * of.variance(mean)) @ design
    np.testing.assert_allclose(loss.gradient(x), -scale * score, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loss.hessian(x), scale * information, rtol=1e-12, atol=1e-14)
