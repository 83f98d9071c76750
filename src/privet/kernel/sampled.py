"""Privacy-critical: the cost of Gaussian releases of which every record is part by a coin.

The mechanism. Each record takes part in a step with probability q, by a coin of its own that nobody
but the node sees, and the sum of the clipped gradients of those that do is noised. One record moves
the sum by at most s, the deviation of the noise is s / mu.

Neighbours are two data sets that agree but for one record, which is there or counts as zero in its
place (relation add-remove). Given the coins c of the others, and all that was released before, the
releases are, up to a shift that is the same for both,

    with the record      (1 - q) N(0, sigma^2 I) + q N(g, sigma^2 I),    |g| <= s
    without it           N(0, sigma^2 I)

*One dominating pair.* Let delta_P,Q(e) = sup_E P(E) - e^epsilon Q(E). With units of sigma and

    P = (1 - q) N(0, 1) + q N(mu, 1),        Q = N(0, 1)

the two laws above are images of P and Q under one random map: scale by |g| / s, add an independent
normal number of variance 1 - (|g| / s)^2, place the result along g and independent noise in all
other directions. No map raises delta, and delta_P,Q is jointly convex, so that the mixture over the
others' coins, which have the same law on both sides, has no larger one. So whatever the records and
the coins, delta of (with, without) is at most delta_P,Q and that of (without, with) at most
delta_Q,P.

*Composition.* Let the steps be adaptive: each depends on all that was released. Where for any past
delta of a step is at most that of (P_t, Q_t), delta of all steps together is at most that of the
product of the pairs (Y. Zhu, J. Dong, Y.-X. Wang, "Optimal Accounting of Differential Privacy via
Characteristic Function", 2022, Theorem 10): by Blackwell's theorem (P_t, Q_t) is mapped, by a map
that may depend on the past, to the step's two laws; running these maps one after the other on
independent pairs gives the whole transcript. It takes that the coins and the noise of a step are
fresh given the past, also where the step is one asked for again. Each direction is composed by
itself, and the larger epsilon counts. Gaussian releases in which every record takes part are pairs
of the same kind (q = 1), and compose with these.

*Quadrature.* The loss of (P, Q) is l(x) = log(1 - q + q e^{mu x - mu^2 / 2}), and minus that of
(Q, P). Its law is put on a grid as that of `laplace` is: mass between two points is split between
them so that its probabilities under both neighbours are kept, and what arithmetic may have lost of
a share goes to the upper point. Mass beyond the upper end of one use counts as an infinite loss;
below the lower end it is moved up. A coarser grid only raises epsilon, so that it is made as
coarse as keeps the work bounded, whatever releases are listed; where that does not suffice, the
closed form without sampling counts, an upper bound too.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .gaussian import gaussian_epsilon
from .loss_law import (
    MOST_POINTS,
    ORDERS,
    TAIL,
    Law,
    Use,
    solve,
    solve_beside_gaussian,
    sum_of_losses,
    window,
)

Sampled = tuple[tuple[float, float, int], ...]
"""(mu, q, count) of sampled releases, in increasing order."""

SMALLEST_LOSS, LARGEST_LOSS = 1e-6, 30.0
"""Of a use that is counted as sampled; others are counted as if every record took part."""
_SMALLEST_RATE = 1e-9
"""Smaller q are taken for it."""
_MOST_POINTS = 1 << 20
"""In `_SPREADS` deviations of the sum."""
_MOST_OF_A_USE = 3 << 17
_FINENESS, _SPREADS = 200.0, 40.0
_BIAS = 8e-4
"""A step h of the grid moves the mean of n losses by n h^2 / 8 about: 1e-4 of their deviation."""
_BEYOND = 1e-15
"""Mass, over all uses, of losses that count as infinite."""
_ROUNDING = 1e-13
"""Relative error of a normal tail, and what else a share of mass is computed with."""
_ROUNDING_OF_LOSSES = 1e-11
_ABSURD = 1e7
"""Epsilon without sampling above which it is not counted on.

A million steps of a thousandth of the records at mu = 1 have 5e5, and 6 with sampling.
"""
_MOST_GRIDS = 8
"""Grids that are tried, each coarser than the one before."""
_ORDERS = ORDERS[::4]


@functools.lru_cache(maxsize=4096)
def sampled_epsilon(gaussian: float, sampled: Sampled, delta: float, coarser: int = 1) -> float:
    """Return an upper bound of epsilon at delta where sampled releases take part.

    It is never above that of the same releases without sampling.

    Parameters
    ----------
    gaussian
        Sum of mu^2 of the Gaussian uses that all records take part in.
    sampled
        At least one (mu, q, count), 0 < q < 1.
    delta
        In (0, 1).
    coarser
        What part of the work is done: the grid is the coarser for it, and epsilon higher.
    """
    whole = gaussian + math.fsum(count * mu * mu for mu, _, count in sampled)
    closed = gaussian_epsilon(math.sqrt(whole) * (1.0 + 2.0**-50), delta)
    if not 0 < closed < _ABSURD:
        return closed
    both = (_by_law(gaussian, sampled, delta, closed, there, coarser) for there in (True, False))
    return min(closed, max(both))


def _by_law(
    gaussian: float, sampled: Sampled, delta: float, bound: float, there: bool, coarser: int = 1
) -> float:
    """Return epsilon of one direction by the law of the loss; `bound` is above it.

    ``there`` is the direction (with the record, without it).
    """
    sampled = tuple((mu, max(q, _SMALLEST_RATE), count) for mu, q, count in sampled)
    spread = math.sqrt(sum(count * _variance(mu, q) for mu, q, count in sampled))
    law = _law(sampled, spread, there, coarser, beside_gaussian=gaussian > 0)
    if law is None:
        return bound
    delta -= 2.0 * TAIL + law.rounding + _BEYOND
    if delta <= 0:
        return bound
    if gaussian > 0:
        epsilon = solve_beside_gaussian(law, math.sqrt(gaussian), delta, bound)
    else:
        epsilon = solve(law, delta)
    return epsilon * (1.0 + _ROUNDING_OF_LOSSES)


def _law(
    sampled: Sampled, spread: float, there: bool, coarser: int = 1, *, beside_gaussian: bool
) -> Law | None:
    """Return the law of the sum of the losses in one direction, None where it takes too much work.

    Any grid will do, as what is between two points is moved upwards: one that has too many points
    for a law is made coarser, until its step is as large as the deviation of the sum.
    """
    total = sum(count for *_, count in sampled)
    step = min(math.sqrt(_BIAS * spread / total), spread / _FINENESS)
    ends = [_ends(mu, q, total, there) for mu, q, _ in sampled]
    widths = [high - low for low, high in ends]
    step = max(step, _SPREADS * spread / _MOST_POINTS * coarser)
    step = max(step, max(widths) / _MOST_OF_A_USE * coarser, sum(widths) / MOST_POINTS * coarser)
    for _ in range(_MOST_GRIDS):
        uses = [
            Use(*_one_use(mu, q, step, low, high, there), count)
            for (mu, q, count), (low, high) in zip(sampled, ends, strict=True)
        ]
        found = window(uses, step, spread, _ORDERS, beside_gaussian=beside_gaussian)
        excess = found.excess * coarser
        if excess <= 1:
            return sum_of_losses(uses, step, found)
        step *= max(excess * 1.01, 2.0)
        if not step < spread:
            return None
    return None


def _variance(mu: float, q: float) -> float:
    """Return about the variance of one loss."""
    return min(q * q * math.expm1(min(mu * mu, 50.0)), q * mu * mu * (1.0 + mu * mu))


def _ends(mu: float, q: float, total: int, there: bool) -> tuple[float, float]:
    """Return the least and the largest loss of one use that are told apart."""
    from scipy import special

    beyond = -float(special.ndtri(_BEYOND / total / 4.0))
    if there:
        return math.log1p(-q), _loss(mu + beyond, mu, q)
    return -_loss(beyond, mu, q), -math.log1p(-q)


def _loss(x: float, mu: float, q: float) -> float:
    """Return log(1 - q + q e^{mu x - mu^2 / 2})."""
    exponent = mu * x - mu * mu / 2.0
    return float(np.logaddexp(math.log1p(-q), math.log(q) + exponent))


def _place(loss: NDArray[np.float64], mu: float, q: float) -> NDArray[np.float64]:
    """Return the x of a loss: (log((e^loss - 1 + q) / q) + mu^2 / 2) / mu, -inf below them all."""
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.maximum(np.expm1(np.minimum(loss, 500.0)) / q + 1.0, 0.0)
        logs = np.where(loss > 500.0, loss - math.log(q), np.log(ratio))
    return (logs + mu * mu / 2.0) / mu


def _one_use(
    mu: float, q: float, step: float, low: float, high: float, there: bool
) -> tuple[NDArray[np.float64], int]:
    """Return the masses of one use's loss on the grid, and the number of the first point."""
    first, last = math.floor(low / step), math.ceil(high / step)
    points = np.arange(first, last + 1, dtype=np.int64)
    losses = step * points.astype(np.float64)
    x = _place(losses if there else -losses, mu, q)
    x = x if there else x[::-1]
    x[0] = -np.inf  # whatever rounding made of the end of the losses
    plain, error = _between(x)
    moved, error_moved = _between(x - mu)
    mixed = (1.0 - q) * plain + q * moved
    error_mixed = (1.0 - q) * error + q * error_moved
    mass, other = (mixed, plain) if there else (plain[::-1], mixed[::-1])
    mass_error, other_error = (error_mixed, error) if there else (error[::-1], error_mixed[::-1])
    # e^left times the mass under the neighbour: at most the mass, and as accurate.
    with np.errstate(over="ignore"):
        lift = np.exp(np.minimum(losses[:-1], 700.0))
    worth = other * lift
    slack = mass_error + np.minimum(other_error * lift, 1.0)
    mass = mass + mass_error
    up = np.clip((mass - worth + slack) / -math.expm1(-step), 0.0, mass)
    masses = np.zeros(points.size)
    masses[1:] += up
    masses[:-1] += mass - up
    if there:
        return masses, first
    # Losses below the first point, moved up to it.
    masses[0] += float(_below(x))
    return masses, first


def _between(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the normal mass between neighbouring points, and a bound of its error."""
    from scipy import special

    below, above = special.ndtr(x), special.ndtr(-x)
    left = x[1:] < 0
    mass = np.where(left, np.diff(below), -np.diff(above))
    error = _ROUNDING * np.where(left, below[1:], above[:-1])
    return np.maximum(mass, 0.0), error


def _below(x: NDArray[np.float64]) -> Any:
    from scipy import special

    return special.ndtr(-x[-1])
