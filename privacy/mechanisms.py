"""Calibration of one use of a mechanism: the analytic Gaussian and Laplace."""

from __future__ import annotations

import math

from privet.privacy.checks import non_negative, positive

_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)


def gaussian_delta(epsilon: float, *, scale: float, sensitivity: float = 1.0) -> float:
    """Return the exact delta of Gaussian noise at epsilon.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), mu = sensitivity / scale
    (Balle and Wang 2018, Theorem 8). It holds for every epsilon; the classic sqrt(2 log(1.25 /
    delta)) rule is proved below 1 only and is wrong well above it. May underflow to 0; use
    `gaussian_log_delta` there.

    Parameters
    ----------
    epsilon
        At least 0.
    scale, sensitivity
        Noise standard deviation and L2 sensitivity.
    """
    return math.exp(gaussian_log_delta(epsilon, scale=scale, sensitivity=sensitivity))


def gaussian_log_delta(epsilon: float, *, scale: float, sensitivity: float = 1.0) -> float:
    """Return log of `gaussian_delta`, accurate to about 1e-10 however small delta is.

    With the Mills ratio R(x) = Phi(-x) / phi(x), delta = phi(u) (R(u) - R(v)) for
    u = epsilon/mu - mu/2 and v = epsilon/mu + mu/2, because e^epsilon phi(v) = phi(u): no large
    exponential has to cancel.
    """
    non_negative(epsilon=epsilon, sensitivity=sensitivity)
    positive(scale=scale)
    from scipy import special

    mu = sensitivity / scale
    if mu == 0:
        return -math.inf
    low, high = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    if low <= 0:
        kept = special.log_ndtr(-low)
        return float(kept + math.log(-math.expm1(epsilon + special.log_ndtr(-high) - kept)))
    gap = _mills(low) - _mills(high)
    if gap <= 0:
        return -math.inf
    return -low * low / 2.0 - math.log(math.sqrt(2.0 * math.pi)) + math.log(gap)


def _mills(x: float) -> float:
    """Return Phi(-x) / phi(x) for x > 0."""
    from scipy import special

    return _SQRT_HALF_PI * float(special.erfcx(x / math.sqrt(2.0)))


def gaussian_scale(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return the smallest Gaussian standard deviation that is (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta
        epsilon > 0 of any size, delta in (0, 1).
    sensitivity
        L2 sensitivity.
    """
    positive(epsilon=epsilon, sensitivity=sensitivity)
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}, expected a number in (0, 1)")
    from scipy import optimize

    target = math.log(delta)

    def excess(log_scale: float) -> float:
        return max(gaussian_log_delta(epsilon, scale=math.exp(log_scale)), -1e300) - target

    low = high = 0.0
    while excess(low) < 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
    root = optimize.brentq(excess, low - 1e-9, high + 1e-9, xtol=1e-14, rtol=1e-14)
    return float(math.exp(root) * sensitivity)


def laplace_scale(epsilon: float, *, sensitivity: float = 1.0) -> float:
    """Return the Laplace scale b = sensitivity / epsilon of (epsilon, 0)-DP, L1 sensitivity."""
    positive(epsilon=epsilon, sensitivity=sensitivity)
    return sensitivity / epsilon
