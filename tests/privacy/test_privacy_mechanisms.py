"""Analytic Gaussian calibration against numerical integration and dp_accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from privet.privacy.mechanisms import (
    gaussian_delta,
    gaussian_log_delta,
    gaussian_scale,
    laplace_scale,
)


def integrated_log_delta(epsilon: float, mu: float) -> float:
    """Log of the integral of max(p - e^epsilon q, 0), p = N(mu, 1), q = N(0, 1).

    The integrand lives right of x0 = epsilon/mu + mu/2 and is scaled by its own size there, so
    that a delta of 1e-200 is integrated as accurately as one of .1.
    """
    edge = epsilon / mu + mu / 2
    distance = edge - mu
    peak = max(edge, mu)

    def scaled(x: float) -> float:
        loss = mu * x - mu * mu / 2
        return math.exp(-((x - mu) ** 2) / 2 + max(distance, 0) ** 2 / 2) * -math.expm1(
            epsilon - loss
        )

    total, _ = integrate.quad(
        scaled, edge, peak + 40, points=sorted({edge, peak, peak + 1 / (1 + abs(distance))}),
        epsabs=0, epsrel=1e-12, limit=500,
    )  # fmt: skip
    return math.log(total) - max(distance, 0) ** 2 / 2 - math.log(math.sqrt(2 * math.pi))


@pytest.mark.parametrize(
    ("epsilon", "sigma"),
    [(0.0, 1.0), (0.1, 1.0), (1.0, 4.0), (3.0, 1.0), (8.0, 0.5), (50.0, 0.1), (20.0, 1.0),
     (0.05, 80.0), (200.0, 0.05), (5.0, 3.0)],
)  # fmt: skip
def test_delta_is_the_integral(epsilon: float, sigma: float) -> None:
    ours = gaussian_log_delta(epsilon, scale=sigma)
    assert ours == pytest.approx(integrated_log_delta(epsilon, 1 / sigma), rel=1e-8, abs=1e-8)
    assert gaussian_delta(epsilon, scale=sigma) == pytest.approx(math.exp(ours))


@given(st.floats(1e-3, 500), st.floats(-250, -1), st.floats(1e-3, 1e3))
@settings(max_examples=80, deadline=None)
def test_scale_inverts_delta(epsilon: float, log_delta: float, sensitivity: float) -> None:
    delta = math.exp(log_delta)
    sigma = gaussian_scale(epsilon, delta, sensitivity=sensitivity)
    reached = gaussian_log_delta(epsilon, scale=sigma, sensitivity=sensitivity)
    assert reached == pytest.approx(log_delta, rel=1e-9, abs=1e-8)


def test_agrees_with_dp_accounting() -> None:
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    for epsilon in (0.05, 1.0, 10.0):
        for delta in (1e-3, 1e-9):
            expected = get_sigma_gaussian(epsilon, delta)
            assert gaussian_scale(epsilon, delta) == pytest.approx(expected, rel=1e-10)


def test_classic_formula_fails_where_it_is_not_proved() -> None:
    """sqrt(2 log(1.25/delta)) / epsilon gives less noise than needed at epsilon 20."""
    epsilon, delta = 20.0, 1e-5
    classic = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert gaussian_delta(epsilon, scale=classic) > delta
    assert gaussian_scale(epsilon, delta) > classic
    # Below 1 it is merely wasteful.
    classic = math.sqrt(2 * math.log(1.25 / delta)) / 0.5
    assert gaussian_scale(0.5, delta) < classic


def test_no_sensitivity_means_no_loss() -> None:
    assert gaussian_delta(0.0, scale=1.0, sensitivity=0.0) == 0.0


def test_laplace_scale_bounds_the_density_ratio() -> None:
    scale = laplace_scale(0.7, sensitivity=3.0)
    x = np.linspace(-50, 50, 1001)
    ratio = np.exp((np.abs(x - 3.0) - np.abs(x)) / scale)
    assert ratio.max() == pytest.approx(math.exp(0.7), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: gaussian_scale(0.0, 1e-5), "epsilon"),
        (lambda: gaussian_scale(1.0, 0.0), "delta"),
        (lambda: gaussian_scale(1.0, 1e-5, sensitivity=-1.0), "sensitivity"),
        (lambda: gaussian_delta(1.0, scale=math.nan), "scale"),
        (lambda: laplace_scale(math.inf), "epsilon"),
    ],
)
def test_bad_numbers_name_themselves(call, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()
