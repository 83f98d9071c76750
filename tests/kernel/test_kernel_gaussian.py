"""The Gaussian mechanism in closed form, against many digits, integration and dp_accounting."""

from __future__ import annotations

import math
import subprocess
import sys

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel.gaussian import gaussian_epsilon, gaussian_scale


def exact_delta(epsilon: mpmath.mpf, mu: float) -> mpmath.mpf:
    """Phi(-u) - e^epsilon Phi(-u - mu) in 80 digits."""
    u = epsilon / mpmath.mpf(mu) - mpmath.mpf(mu) / 2
    tails = [mpmath.erfc(x / mpmath.sqrt(2)) / 2 for x in (u, u + mpmath.mpf(mu))]
    return tails[0] - mpmath.exp(epsilon) * tails[1]


def exact_epsilon(mu: float, delta: float, start: float) -> mpmath.mpf:
    """Root of log delta by Newton's method in 80 digits."""
    epsilon = mpmath.mpf(start)
    for _ in range(60):
        value = exact_delta(epsilon, mu)
        tail = mpmath.erfc((epsilon / mu + mpmath.mpf(mu) / 2) / mpmath.sqrt(2)) / 2
        step = (mpmath.log(value) - mpmath.log(delta)) * value / (mpmath.exp(epsilon) * tail)
        epsilon += step
        if abs(step) < abs(epsilon) * mpmath.mpf(10) ** -30:
            return epsilon
    raise AssertionError("no root")


@given(st.floats(-12, 6), st.one_of(st.floats(-300, -1e-2), st.floats(-14, -0.31)))
@settings(max_examples=150, deadline=None)
def test_epsilon_is_exact_and_never_below(log_mu: float, log_delta: float) -> None:
    mu, delta = 10.0**log_mu, 10.0**log_delta
    found = gaussian_epsilon(mu, delta)
    with mpmath.workdps(80):
        at_zero = exact_delta(mpmath.mpf(0), mu)
        if at_zero <= delta:
            # The rounding of erf may hide a difference of one unit, never more.
            assert found <= mu * (mu - math.log(delta)) * 1e-15
            return
        exact = exact_epsilon(mu, delta, found or mu * mu * 1e-3)
        # Near delta(0) epsilon is the difference of terms of size mu^2.
        # Where the rounding of erf hides the difference to delta(0), epsilon may be 0.
        assert exact <= found or (found == 0 and delta >= at_zero * (1 - 1e-15))
        # Near delta(0) epsilon is the difference of terms of size mu^2.
        assert found <= exact * (1 + 1e-12) + mu * (mu - math.log(delta)) * 1e-15


@pytest.mark.parametrize("gap", [1e-2, 1e-5, 1e-9, 1e-12])
@pytest.mark.parametrize("mu", [1e-6, 0.1, 0.3, 2.0])
def test_epsilon_close_to_where_it_vanishes(mu: float, gap: float) -> None:
    delta = math.erf(mu / math.sqrt(8)) * (1 - gap)
    found = gaussian_epsilon(mu, delta)
    with mpmath.workdps(80):
        exact = exact_epsilon(mu, delta, mu * gap)
        assert exact <= found <= exact * (1 + 1e-12) + mu * (mu - math.log(delta)) * 2**-49


def test_edges() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e-9, 1e-5) == 0.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert 5e199 < gaussian_epsilon(1e100, 1e-5) < 6e199
    assert gaussian_epsilon(1.0, 5e-324) < 40


@given(st.floats(1e-3, 500), st.floats(-250, -1))
@settings(max_examples=80, deadline=None)
def test_scale_is_the_smallest_that_suffices(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    sigma = gaussian_scale(epsilon, delta)
    assert gaussian_epsilon(1 / sigma, delta) <= epsilon
    assert gaussian_epsilon((1 + 1e-11) / sigma, delta) > epsilon


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
    from dp_accounting.pld import privacy_loss_distribution as pld

    sigma = gaussian_scale(epsilon, delta)
    assert sigma == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-10)
    assert epsilon == pytest.approx(get_epsilon_gaussian(sigma, delta), rel=1e-9)
    composed = pld.from_gaussian_mechanism(
        2 * sigma, value_discretization_interval=1e-4
    ).self_compose(4)
    assert epsilon <= composed.get_epsilon_for_delta(delta) <= epsilon * 1.001 + 1e-4


def test_classic_formula_fails_where_it_is_not_proved() -> None:
    """sqrt(2 log(1.25/delta)) / epsilon gives less noise than needed at epsilon 20."""
    epsilon, delta = 20.0, 1e-5
    classic = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert gaussian_epsilon(1 / classic, delta) > epsilon
    assert gaussian_scale(epsilon, delta) > classic
    # Below 1 it is merely wasteful.
    classic = math.sqrt(2 * math.log(1.25 / delta)) / 0.5
    assert gaussian_scale(0.5, delta) < classic


def test_a_message_needs_no_scientific_package() -> None:
    """Costing Gaussian releases imports neither scipy nor dp_accounting."""
    code = (
        "import sys; from privet.kernel import Release, epsilon_of;"
        "assert epsilon_of([(Release('gaussian', scale=3.0), 7)], 1e-5) > 1;"
        "print([m for m in ('scipy', 'dp_accounting') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: gaussian_scale(0.0, 1e-5), "epsilon"),
        (lambda: gaussian_scale(1.0, 0.0), "delta"),
        (lambda: gaussian_epsilon(math.nan, 1e-5), "mu"),
        (lambda: gaussian_epsilon(-1.0, 1e-5), "mu"),
        (lambda: gaussian_epsilon(1.0, 1.0), "delta"),
        (lambda: gaussian_epsilon(1.0, math.nan), "delta"),
    ],
)
def test_bad_numbers_name_themselves(call, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()
