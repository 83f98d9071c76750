"""Arithmetic that both halves of several algorithms do on the same bytes.

Elementwise and in a fixed order, so that agent and server get the same bits and only one of the
two vectors has to travel. What one algorithm alone computes on both sides stands in its own file.
"""

from __future__ import annotations

import numpy as np

from privet.agents.inputs import Vector

FARTHEST = 64.0
"""Largest distance that an agent reports, so that 100,000 of them can be summed."""


def ascend(lam: Vector, w: Vector, z: Vector, rho: float) -> Vector:
    """Return lam + rho (w - z), all of shape (d,): a step of dual ascent.

    DP-IADMM's dual, Algorithm 1 lines 8 and 23; FedPD's, with 1/eta; and the control variates of
    LED and TAMUNA, with their rate.
    """
    moved: Vector = w - z
    moved *= moved.dtype.type(rho)
    moved += lam
    return moved


def distance(x: Vector, y: Vector) -> Vector:
    """Return min(||x - y||, ``FARTHEST``) as a float64 array of shape (); for secure sums."""
    gap = np.subtract(x, y, dtype=np.float64)
    return np.array(min(float(np.sqrt(gap @ gap)), FARTHEST))
