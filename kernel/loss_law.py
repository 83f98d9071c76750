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
MOST_POINTS = 1 << 18
"""Points of the laws of all uses together that are worth computing: beyond, the sum of losses is
given up for a closed form, so that no text of releases costs more than a second and 64 MB."""
MOST_SUMMED, MOST_WORK = 1 << 20, 1 << 24
"""Points of the law of the sum, and the same times the number of uses."""
MOST_BESIDE_GAUSSIAN = 1 << 17
"""Points of the law of a sum that Gaussian releases are added to."""
_TILE = 1 << 20
_UNIT = 2.0**-53


class TooLargeError(ValueError):
    """The law of a sum would have more points than are worth computing, by a factor ``excess``."""

    def __init__(self, excess: float) -> None:
        super().__init__(f"a law of {excess} times the points that are computed")
        self.excess = excess


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


def sum_of_losses(
    uses: Sequence[Use],
    step: float,
    scale: float,
    orders: NDArray[np.float64] = ORDERS,
    most: int = MOST_SUMMED,
    work: int = MOST_WORK,
) -> Law:
    """Return the law of the sum of independent losses; two tails of mass 1e-14 are cut.

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
    most, work
        Points of the law at most, and the same times the number of uses.

    Raises
    ------
    TooLargeError
        For more of either.

    Notes
    -----
    The window is that of the sum, from a tail to the other, wherever its mean lies: of many uses
    it may lie far above 0.

    Each coefficient of a fast Fourier transform of length N is a sum along paths of about log2 N
    operations, so that its error is at most e = 8 log2(N) 2^-53 times the sum of the masses, which
    is 1. With F_k the transform of use k, a power of n_k has an error of at most n_k (e + 8 2^-53)
    (|F_k| + e)^(n_k - 1): the logarithm and exponential by which it is computed err by less than
    n_k times the second term. The l2 norm of the errors of all N masses is the root of the mean
    square of those of the product; their sum is at most sqrt(N) times that, and the inverse
    transform adds e times the mean magnitude of the coefficients to each of N.
    """
    span_high = sum(use.times * (use.first + use.masses.size - 1) for use in uses)
    span_low = sum(use.times * use.first for use in uses)
    high = min(span_high, math.ceil(_tail_bound(uses, step, orders / scale) / step))
    low = max(span_low, -math.ceil(_tail_bound(uses, -step, orders / scale) / step))
    size = 1 << max(high - low, 1).bit_length()
    excess = max((high - low) / most, size * len(uses) / work)
    if excess > 1.0:
        raise TooLargeError(excess)
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
    places = np.arange(low, high + 1, dtype=np.int64)
    total: NDArray[np.float64] = np.fft.irfft(transform, size)[places % size]
    of_product = math.sqrt(2.0 * float(np.sum(np.square(largest * relative))))
    rounding = of_product + 2.0 * error * float(np.sum(largest))
    return Law(step * places.astype(np.float64), np.maximum(total, 0.0), rounding)


def _tail_bound(uses: Sequence[Use], step: float, orders: NDArray[np.float64]) -> float:
    """Return a bound that the summed loss (its negative for step < 0) exceeds with mass 1e-14.

    Chernoff: the least of (log of the moment generating function - log 1e-14) / order.
    """
    logs = np.full(orders.size, -math.log(TAIL))
    for masses, first, count in uses:
        there = np.flatnonzero(masses)  # beside a point without mass all others could underflow
        tile = max(1, _TILE // there.size)
        for start in range(0, orders.size, tile):
            part = slice(start, start + tile)
            exponents = orders[part, None] * (step * (first + there))
            top = exponents.max(axis=1)
            logs[part] += count * (top + np.log(np.exp(exponents - top[:, None]) @ masses[there]))
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
