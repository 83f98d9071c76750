"""What both halves of an algorithm compute from the same bytes, in one place each.

Elementwise and in a fixed order, so that agent and server get the same bits and only one of the
two vectors has to travel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sparse import SparseVector
from .streams import stream

FARTHEST = 64.0
"""What an agent says of its distance at most, so that 100,000 of them can be summed."""


def distance(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return ||x - y|| as an array of shape (), at most ``FARTHEST``; what secure sums measure."""
    gap = np.subtract(x, y, dtype=np.float64)
    return np.array(min(float(np.sqrt(gap @ gap)), FARTHEST))


def reflect(z: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Return z + 2 (x - y) of Fed-PLT, Algorithm 1 line 10; all of shape (d,)."""
    moved: NDArray[Any] = x - y
    moved *= 2
    moved += z
    return moved


def ascend(lam: NDArray[Any], w: NDArray[Any], z: NDArray[Any], rho: float) -> NDArray[Any]:
    """Return lam + rho (w - z), all of shape (d,).

    DP-IADMM's dual, Algorithm 1 lines 8 and 23; FedPD's, with 1/eta; and the control variates of
    LED and TAMUNA, with their rate.
    """
    moved: NDArray[Any] = w - z
    moved *= moved.dtype.type(rho)
    moved += lam
    return moved


def public_dual(
    lam: NDArray[Any], center: NDArray[Any], released: SparseVector, rho: float
) -> NDArray[Any]:
    """Return FedPDM's dual as it follows from what was released, shape (d,).

    lam <- (lam + rho (x0hat - y)) / 2 at the coordinates that were sent, unchanged elsewhere. With
    y = x - lam_new / rho, all of it sent and no noise this is the paper's
    lam + rho (x0hat - x) exactly.

    Parameters
    ----------
    lam : array (d,)
        The agent's dual before the round.
    center : array (d,)
        x0hat, as broadcast.
    released : SparseVector
        y as it left the agent, noise included.
    """
    new = lam.copy()
    where = slice(None) if released.positions is None else released.positions
    moved = center[where] - released.values
    moved *= rho
    moved += lam[where]
    moved *= 0.5
    new[where] = moved
    return new


def dynamic_gradient(
    g: NDArray[Any], x: NDArray[Any], center: NDArray[Any], alpha: float
) -> NDArray[Any]:
    """Return g_i - alpha (x_i - x) of FedDyn, Algorithm 1; all of shape (d,)."""
    moved: NDArray[Any] = center - x
    moved *= alpha
    moved += g
    return moved


def local_steps(seed: int, round_: int, mean: int) -> int:
    """Return TAMUNA's number of local steps L in a round, geometric: P(L = l) = p (1 - p)^(l - 1).

    Parameters
    ----------
    seed : int
        The run's seed; the number is public and the same for all agents.
    round_ : int
        The round, counted from 1.
    mean : int
        1 / p, >= 1.
    """
    return int(stream(seed, "local-steps", round_=round_).geometric(1.0 / mean))
