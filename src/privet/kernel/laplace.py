"""Privacy-critical: the cost of Laplace releases, with or without Gaussian ones.

One Laplace use of pure loss t has the privacy loss L with mass 1/2 at t, mass e^{-t}/2 at -t and
density e^{(l - t)/2} / 4 between. Over a composition

    delta(epsilon) = E[delta_G(epsilon - sum of L)],

where delta_G is that of the Gaussian releases, in closed form, and max(1 - e^epsilon, 0) without
any. The law of the sum is computed on a grid by Fourier transform. Everything rounds upwards: mass
between two grid points is split between them so that its probabilities under both neighbours are
kept, which can be undone by merging and therefore costs more, never less (Doroshenko et al. 2022,
"connect the dots"); what the transform cuts off or rounds is taken from delta first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .gaussian import gaussian_epsilon
from .loss_law import (
    MOST_POINTS,
    TAIL,
    Law,
    Use,
    solve,
    solve_beside_gaussian,
    sum_of_losses,
    window,
)

Uses = Sequence[tuple[float, int]]
"""(pure loss, count) of Laplace uses, by increasing loss."""

_ABSURD = 1e5
_SPREADS = 20.0
_USUAL_POINTS, _MOST_POINTS = 2e4, 1e6
_FEWEST_STEPS, _FINE_STEPS, _FINE = 4, 8, 0.01
_MOST_GRIDS = 12
"""Grids that are tried, each coarser than the one before."""
_ROUNDING, _ROUNDING_OF_A_USE = 1e-13, 1e-15
_ROUNDING_OF_LOSSES = 1e-11
_LAPLACE_AS_GAUSSIAN = math.sqrt(math.pi / 2.0)


@functools.lru_cache(maxsize=4096)
def mixed_epsilon(gaussian: float, laplace: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return epsilon at delta where Laplace noise takes part: the least of three upper bounds.

    They are basic composition of the pure part with the Gaussian one; a Gaussian in place of each
    Laplace use (`_as_gaussian`); and the law of the loss, unless epsilon is absurd or delta so
    small that the rounding of the transform would show.

    Parameters
    ----------
    gaussian
        Sum of mu^2 of the Gaussian uses.
    laplace
        At least one (pure loss, count), by increasing loss.
    delta
        In (0, 1).
    """
    pure = math.fsum(count * loss for loss, count in laplace)
    basic = pure + gaussian_epsilon(math.sqrt(gaussian), delta)
    dominated = gaussian_epsilon(math.sqrt(gaussian + _as_gaussian(laplace)), delta)
    closed = min(basic * (1.0 + 2.0**-50), dominated)
    lost = 2.0 * TAIL + _ROUNDING + _ROUNDING_OF_A_USE * sum(count for _, count in laplace)
    if not 0 < closed < _ABSURD or delta <= 10.0 * lost:
        return closed
    by_loss = _epsilon_by_loss(gaussian, laplace, delta - lost, closed)
    return min(closed, by_loss * (1.0 + _ROUNDING_OF_LOSSES))


def _as_gaussian(laplace: Iterable[tuple[float, int]]) -> float:
    """Return the sum of mu^2 of Gaussians that dominate these Laplace uses.

    A pure loss t is mu-Gaussian-DP as soon as log(Phi(mu/2) / Phi(-mu/2)) >= t, for the trade-off
    function of the former is piecewise linear with its kink there; that logit is convex with slope
    sqrt(2/pi) at 0, so mu = sqrt(pi/2) t suffices.
    """
    return sum(count * (_LAPLACE_AS_GAUSSIAN * loss) ** 2 for loss, count in laplace)


def _epsilon_by_loss(gaussian: float, laplace: Uses, delta: float, bound: float) -> float:
    """Return epsilon at delta by the law of the loss; `bound` is above it.

    What is too small for a grid that covers the spread goes to the Gaussian part; and what is
    smallest on a grid that has too many points for a law.
    """
    spread = math.sqrt(gaussian + sum(count * loss * loss for loss, count in laplace))
    points = _MOST_POINTS
    for _ in range(_MOST_GRIDS):
        smallest = _FEWEST_STEPS * _SPREADS * spread / points
        gaussian += _as_gaussian(pair for pair in laplace if pair[0] < smallest)
        laplace = [pair for pair in laplace if pair[0] >= smallest]
        if not laplace:
            return gaussian_epsilon(math.sqrt(gaussian), delta)
        law = _law(laplace, beside_gaussian=gaussian > 0)
        if law is not None and gaussian > 0:
            return solve_beside_gaussian(law, math.sqrt(gaussian), delta, bound)
        if law is not None:
            return solve(law, delta)
        points /= 4.0
    return bound


def _law(laplace: Uses, *, beside_gaussian: bool) -> Law | None:
    """Return the law of the sum of the losses, None where it takes too much work."""
    step = _step(laplace)
    if 2.0 * sum(loss for loss, _ in laplace) > MOST_POINTS * step:
        return None
    uses = [Use(masses, -(masses.size // 2), count) for masses, count in _masses(laplace, step)]
    scale = math.sqrt(sum(count * loss * loss for loss, count in laplace))
    found = window(uses, step, scale, beside_gaussian=beside_gaussian)
    return sum_of_losses(uses, step, found) if found.excess <= 1 else None


def _masses(laplace: Uses, step: float) -> list[tuple[NDArray[np.float64], int]]:
    return [(_one_use(loss, step), count) for loss, count in laplace]


def _step(laplace: Uses) -> float:
    """Pick the loss grid, an integer fraction of the smallest loss.

    A Laplace use loses +-t but for a share of about t/2, so that on such a grid little is rounded:
    4 steps cost about 2e-4 of epsilon, 8 about 5e-5, and the grid of a composition of n uses has
    20 sqrt(n) times as many points.
    """
    smallest = laplace[0][0]
    spread = math.sqrt(sum(count * loss * loss for loss, count in laplace))
    finest = max(_FINE_STEPS, math.ceil(smallest / _FINE))
    affordable = math.floor(smallest * _USUAL_POINTS / (_SPREADS * spread))
    return smallest / max(_FEWEST_STEPS, min(finest, affordable))


def _one_use(loss: float, step: float) -> NDArray[np.float64]:
    """Return the masses of one use's loss at -k step, ..., k step, k = ceil(loss / step)."""
    most = math.ceil(loss / step * (1.0 - _ROUNDING_OF_LOSSES / 4))
    grid = step * np.arange(-most, most + 1)
    edges = np.clip(grid, -loss, loss)
    start, width, left = edges[:-1], np.diff(edges), grid[:-1]
    # Of each cell: its mass, and its mass under the neighbour times e^left.
    mass = np.exp((start - loss) / 2.0) * np.expm1(width / 2.0) / 2.0
    other = np.exp((start - loss) / 2.0 - (start - left)) * -np.expm1(-width / 2.0) / 2.0
    up = np.clip((mass - other) / -math.expm1(-step), 0.0, mass)
    masses = np.zeros(grid.size)
    masses[1:] += up
    masses[:-1] += mass - up
    for atom, weight in ((loss, 0.5), (-loss, math.exp(-loss) / 2.0)):
        cell = min(max(math.floor(atom / step + most), 0), 2 * most - 1)
        share = math.expm1(-max(atom - grid[cell], 0.0)) / math.expm1(-step)
        masses[cell] += weight * (1.0 - min(share, 1.0))
        masses[cell + 1] += weight * min(share, 1.0)
    return masses
