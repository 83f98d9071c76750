"""Privacy-critical: the law of a sum of privacy losses on a grid, and epsilon by it.

Of independent losses whose laws are given on a grid the sum is computed by Fourier transform. What
that cuts off or rounds is for the caller to take from delta first: 1e-14 for each of two tails, and
`Law.rounding`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TAIL = 1e-14
"""Mass of a tail of the sum that is cut."""
ORDERS = np.geomspace(0.05, 50.0, 60)
"""Of the moment generating functions that bound tails, in units of 1 / scale."""
_UNIT = 2.0**-53
MOST_POINTS = 1 << 20
"""Of the law of a sum."""
MOST_WORK = 1 << 22
"""Points of a sum's law times its uses, and times the looks at it beside Gaussian releases."""
_LOOKS = 15
"""What `solve_beside_gaussian` costs, in uses."""
_LARGEST_PLACE = 1 << 60


class Use(NamedTuple):
    """The law of one use's loss: its masses at ``first`` step, (``first`` + 1) step, ..."""

    masses: NDArray[np.float64]
    first: int
    times: int


class Law(NamedTuple):
    """The law of a sum of losses.

    Attributes
    ----------
    losses, masses : array
        Grid points, increasing, and their masses.
    rounding : float
        Bound of the sum of the errors of all masses.
    """

    losses: NDArray[np.float64]
    masses: NDArray[np.float64]
    rounding: float


class Window(NamedTuple):
    """The points ``low`` ... ``high`` of the grid, outside of which a sum has mass 2e-14 at most.

    ``excess`` is at most 1 where the law may be computed on this grid; the law on a grid that is
    ``excess`` times as coarse takes about what is allowed.
    """

    low: int
    high: int
    excess: float


def window(
    uses: Sequence[Use],
    step: float,
    scale: float,
    orders: NDArray[np.float64] = ORDERS,
    *,
    beside_gaussian: bool = False,
) -> Window:
    """Return where the sum of independent losses is but for two tails of mass 1e-14 each.

    Both ends are Chernoff bounds, of either sign: a sum of many losses lies about its mean, which
    may be far from 0.

    Parameters
    ----------
    uses
        Each with the number of times that it is added.
    step
        Of the grid.
    scale
        About the deviation of the sum.
    orders
        As `ORDERS`: fewer take less time, and cut the tails further out.
    beside_gaussian
        Whether Gaussian releases take part, for which the law is looked at many times.
    """
    span_high = sum(use.times * (use.first + use.masses.size - 1) for use in uses)
    span_low = sum(use.times * use.first for use in uses)
    above = _tail_bound(uses, step, orders / scale) / step
    below = _tail_bound(uses, -step, orders / scale) / step
    if not abs(above) + abs(below) < _LARGEST_PLACE:
        return Window(0, 0, math.inf)
    high, low = min(span_high, math.ceil(above)), max(span_low, -math.ceil(below))
    high = max(low, high)
    work = len(uses) + (_LOOKS if beside_gaussian else 0)
    return Window(low, high, (high - low) / min(MOST_POINTS - 1, MOST_WORK // work - 1))


def sum_of_losses(uses: Sequence[Use], step: float, window: Window) -> Law:
    """Return the law of the sum of independent losses in a window; two tails of 1e-14 are cut.

    What lies outside is found inside, so that of the mass of a loss above a point no more than
    that of the upper tail is lost.

    Parameters
    ----------
    uses
        Each with the number of times that it is added.
    step
        Of the grid.
    window
        That of these uses on this grid; its excess is at most 1.

    Notes
    -----
    Each coefficient of a fast Fourier transform of length N is a sum along paths of about log2 N
    operations, so that its error is at most e = 8 log2(N) 2^-53 times the sum of the masses, which
    is 1. With F_k the transform of use k, a power of n_k has an error of at most n_k (e + 8 2^-53)
    (|F_k| + e)^(n_k - 1): the logarithm and exponential by which it is computed err by less than
    n_k times the second term. The l2 norm of the errors of all N masses is the root of the mean
    square of those of the product; their sum is at most sqrt(N) times that, and the inverse
    transform adds e times the mean magnitude of the coefficients to each of N.
    """
    low, high, _ = window
    size = 1 << max(high - low, 1).bit_length()
    error = 8.0 * math.log2(size) * _UNIT
    transform = np.ones(size // 2 + 1, dtype=np.complex128)
    relative = np.zeros(size // 2 + 1)
    largest = np.ones(size // 2 + 1)
    for masses, first, count in uses:
        wrapped = np.zeros(size)
        np.add.at(wrapped, np.arange(first, first + masses.size) % size, masses)
        one = np.fft.rfft(wrapped)
        transform *= one**count
        reach = np.abs(one) + error
        largest *= reach**count
        relative += count * (error + 8.0 * _UNIT) / reach
    of_product = math.sqrt(2.0 * float(np.sum(np.square(largest * relative))))
    rounding = of_product + 2.0 * error * float(np.sum(largest))
    del largest, relative, reach, wrapped, one
    places = np.arange(low, high + 1, dtype=np.int64)
    total: NDArray[np.float64] = np.fft.irfft(transform, size)[places % size]
    return Law(step * places.astype(np.float64), np.maximum(total, 0.0, out=total), rounding)


def _tail_bound(uses: Sequence[Use], step: float, orders: NDArray[np.float64]) -> float:
    """Return a bound that the summed loss (its negative for step < 0) exceeds with mass 1e-14.

    Chernoff: the least of (log of the moment generating function - log 1e-14) / order.
    """
    logs = np.full(orders.size, -math.log(TAIL))
    for masses, first, count in uses:
        there = np.flatnonzero(masses)  # beside a point without mass all others could underflow
        losses, kept = step * (first + there), masses[there]
        for number, order in enumerate(orders):
            exponents = order * losses
            top = exponents.max()
            exponents -= top
            logs[number] += count * (top + math.log(np.exp(exponents, out=exponents) @ kept))
    return float((logs / orders).min())


def solve(law: Law, delta: float) -> float:
    """Return the epsilon >= 0 where sum_j masses_j max(1 - e^{epsilon - losses_j}, 0) is delta."""
    losses, masses, _ = law

    def above(place: int) -> tuple[float, float]:
        """Return the mass from a point on, and what it is worth there under the neighbour."""
        part = masses[place:]
        return float(part.sum()), float((part * np.exp(losses[place] - losses[place:])).sum())

    low, high = 0, losses.size - 1
    while low < high:
        middle = (low + high) // 2
        kept, lost = above(middle)
        low, high = (low, middle) if kept - lost <= delta else (middle + 1, high)
    # Between two points delta is linear in e^epsilon.
    kept, lost = above(low)
    if kept <= delta:
        return max(0.0, float(losses[low]))
    return max(0.0, float(losses[low]) + min(0.0, math.log((kept - delta) / lost)))


def solve_beside_gaussian(law: Law, mu: float, delta: float, bound: float) -> float:
    """Return the epsilon where sum_j masses_j delta_G(epsilon - losses_j) is delta, or `bound`."""
    from scipy import optimize, special

    kept = law.masses > 0
    losses, masses = law.losses[kept], law.masses[kept]

    def excess(epsilon: float) -> float:
        rest = epsilon - losses
        tail = rest + special.log_ndtr(-rest / mu - mu / 2.0)
        values = special.ndtr(mu / 2.0 - rest / mu) - np.exp(np.minimum(tail, 0.0))
        return float(np.log(max(float(values @ masses), 1e-300))) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    if excess(bound) >= 0:
        return bound
    close = 1e-10 * bound
    return float(optimize.brentq(excess, 0.0, bound, xtol=close, rtol=1e-12)) + 2.0 * close
