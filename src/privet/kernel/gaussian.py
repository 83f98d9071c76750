"""Privacy-critical: the Gaussian mechanism in closed form, delta and epsilon and scale.

With mu = sensitivity / standard deviation, or the root of the sum of mu^2 over a composition,

    delta(epsilon) = Phi(-u) - e^epsilon Phi(-u - mu),    u = epsilon/mu - mu/2

(Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022). With the Mills ratio R(x) = Phi(-x) /
phi(x) it is phi(u) (R(u) - R(u + mu)), because e^epsilon phi(u + mu) = phi(u): no large
exponential has to cancel.
"""

from __future__ import annotations

import math

from .checks import positive

_ROOT_HALF = math.sqrt(0.5)
_ROOT_HALF_PI = math.sqrt(math.pi / 2.0)
_LOG_ROOT_2PI = math.log(2.0 * math.pi) / 2.0

_SMALL_MU = 0.25
_ASYMPTOTIC = 20.0
_MILLS_SERIES = tuple(
    (-1.0) ** k * math.prod(range(1, 2 * k, 2)) for k in range(10, -1, -1)
)  # (2k - 1)!! with alternating signs, the last first
_NODES = (
    # Gauss-Legendre of order 6 on [0, 1]: (node, weight).
    (0.03376524289842399, 0.08566224618958517),
    (0.16939530676686774, 0.18038078652406930),
    (0.38069040695840155, 0.23395696728634552),
    (0.61930959304159845, 0.23395696728634552),
    (0.83060469323313226, 0.18038078652406930),
    (0.96623475710157601, 0.08566224618958517),
)
_UP = 1.0 + 2e-13
"""Covers the rounding of what is computed below (at most 1e-13 of it)."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon at delta of a mu-Gaussian-DP mechanism, rounded up by 2e-13 of it.

    Exact for every epsilon; the classic sqrt(2 log(1.25 / delta)) rule is proved below 1 only and
    is wrong well above it.

    Newton's method on log delta as a function of u = epsilon/mu - mu/2. The function is concave
    (delta is the convolution of a Gaussian density and max(1 - e^{-x}, 0), both log-concave), so
    that from a start right of the root every iterate stays there: stopping early errs upwards.

    Parameters
    ----------
    mu
        At least 0; inf gives inf.
    delta
        In (0, 1). Epsilon is 0 where delta is at least delta(0) = 2 Phi(mu/2) - 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}, expected a number in (0, 1)")
    if not mu >= 0:
        raise ValueError(f"mu is {mu!r}, expected a number >= 0")
    if math.erf(mu * _ROOT_HALF / 2.0) <= delta:
        return 0.0
    if mu > 1e150:
        return math.inf
    target = math.log(delta)
    # delta(u) <= e^{-u^2/2} and delta(u) <= mu phi(u) for u >= 0 bound the root from the right.
    # Where they do not, delta(0) is below and the root is negative, which is bounded by 0.
    above = min(0.0, math.log(mu) - _LOG_ROOT_2PI) - target
    u = math.sqrt(2.0 * above) if above > 0 else 0.0
    for _ in range(100):
        value, slope = _log_delta_and_slope(u, mu)
        step = (value - target) / slope
        u -= step
        if abs(step) <= 1e-9 * (1.0 + abs(u)):
            # Quadratic convergence: the next step would be below rounding.
            break
    epsilon = mu * (u + mu / 2.0)
    # Near 0 the two terms cancel, and what log delta lost to rounding is in units of mu.
    return max(0.0, epsilon * _UP) + mu * (mu + 2.0 - target) * 2.0**-52


def gaussian_scale(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier sigma / sensitivity that is (epsilon, delta)-DP.

    Smallest up to rounding, which errs upwards: `gaussian_epsilon(1 / result, delta)` is never
    above `epsilon`.

    Parameters
    ----------
    epsilon, delta
        epsilon > 0 of any size, delta in (0, 1).
    """
    positive(epsilon=epsilon)
    enough = 1.0
    while gaussian_epsilon(1.0 / enough, delta) > epsilon:
        enough *= 2.0
    less = enough / 2.0
    while gaussian_epsilon(1.0 / less, delta) <= epsilon:
        less, enough = less / 2.0, less
    while enough - less > 1e-15 * enough:
        middle = (less + enough) / 2.0
        if not less < middle < enough:
            break
        if gaussian_epsilon(1.0 / middle, delta) > epsilon:
            less = middle
        else:
            enough = middle
    return enough


def _log_delta_and_slope(u: float, mu: float) -> tuple[float, float]:
    """Return log delta at u, and its derivative there, -mu R(u + mu) / (R(u) - R(u + mu))."""
    v = u + mu
    if u < 0 and mu >= _SMALL_MU:
        # phi(u) R(v), without overflow of either.
        lost = math.exp(-u * u / 2.0 - _LOG_ROOT_2PI) * _mills(v)
        kept = math.erfc(u * _ROOT_HALF) / 2.0 - lost
        return math.log(kept), -mu * lost / kept
    if mu < _SMALL_MU:
        # R(u) - R(v) is the integral of -R' = 1 - x R(x): nothing cancels however small mu is.
        gap = mu * sum(
            weight * (1.0 - x * _mills(x)) for x, weight in ((u + mu * n, w) for n, w in _NODES)
        )
    else:
        gap = _mills(u) - _mills(v)
    return -u * u / 2.0 - _LOG_ROOT_2PI + math.log(gap), -mu * _mills(v) / gap


def _mills(x: float) -> float:
    """Return Phi(-x) / phi(x) for x > -38."""
    if x < _ASYMPTOTIC:
        return _ROOT_HALF_PI * math.erfc(x * _ROOT_HALF) * math.exp(x * x / 2.0)
    inverse = 1.0 / (x * x)
    total = 0.0
    for coefficient in _MILLS_SERIES:
        total = total * inverse + coefficient
    return total / x
