"""Fed-PLT with Anderson acceleration: what both sides compute of an agent's last rounds.

In the plain method the agent keeps x_i and z_i. Here it keeps x_i, u_i and the last z_i:

    u_i = (2 y - z_i - x_i) / rho         the gradient of f_i at x_i, where the task is solved
    g_0 = x_i - rho u_i                   the z_i that Algorithm 1 arrives at, for any rho
    g_1 ... g_M                           g_0 of the rounds before

The server broadcasts y with rho and weights w_0 ... w_M, and the round begins at

    z_i = sum_j w_j g_j                   sum_j w_j = 1, the same weights for all agents.

Weights (1, 0, ...) are the plain method. A new rho needs no message of its own: u_i stays what it
is, and the server gives the older g_j the weight 0 until they are of the new rho.
D. G. Anderson, "Iterative procedures for nonlinear integral equations" (1965); H. F. Walker and
P. Ni, "Anderson acceleration for fixed-point iterations" (2011). How the server chooses weights
and rho: `privet.strategies.fed_plt_accelerated`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .inputs import Arrays, Vector

MEMORY = 6
"""Earlier rounds that have a weight, M."""
HISTORY = tuple(f"g{age}" for age in range(1, MEMORY + 1))
"""Names of the g_1 ... g_M."""
MIXING = "mixing"
"""Name of the broadcast array of rho and the weights."""


def mixing(rho: float, weights: Vector, dim: int, dtype: np.dtype[np.generic]) -> Vector:
    """Return rho and w_0 ... w_M as one array, never of the length ``dim`` of a model."""
    array = np.zeros(MEMORY + 2 + (dim == MEMORY + 2), dtype)
    array[0], array[1 : 1 + len(weights)] = rho, weights
    return array


def first_rows(start: Vector) -> dict[str, Vector]:
    """Return an agent's state before its first round: x_i = z_i = start."""
    return {"x": start, "u": np.zeros_like(start), **dict.fromkeys(HISTORY, start)}


def newest(state: Arrays, array: Vector) -> Vector:
    """Return g_0 = x_i - rho u_i, (d,) or rows (N, d)."""
    result: Vector = state["x"] - array[0] * state["u"]
    return result


def mixed(state: Arrays, array: Vector) -> Vector:
    """Return z_i = sum_j w_j g_j, with which the round begins: (d,) or rows (N, d)."""
    total = newest(state, array)
    total *= array[1]
    for age, name in enumerate(HISTORY, 2):
        if array[age]:
            total += array[age] * state[name]
    return total


def followed(state: Arrays, y: Vector, array: Vector, x: Vector) -> Mapping[str, Vector]:
    """Return the state after an upload x_i: u_i, and the g_j one round older."""
    gradient = y + y
    gradient = gradient - mixed(state, array)
    gradient -= x
    gradient /= array[0]
    # Copies: the server writes them into the tables whose rows these are.
    before = [newest(state, array), *(state[name].copy() for name in HISTORY[:-1])]
    return {"x": x, "u": gradient, **dict(zip(HISTORY, before, strict=True))}
