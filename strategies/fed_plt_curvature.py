"""What the server of Fed-PLT learns of its agents' curvature from their uploads alone.

A round tells the server x_i and u_i = grad f_i(x_i) of each agent that took part. Two visits give
s = x_i - x_i' and g = u_i - u_i', and these the BFGS matrix B_i of the agent,

    B <- B - B s (B s)^T / s^T B s + g g^T / s^T g          for its last pairs, the oldest first,

kept as products: B_i = diag(m) + sum_k b_k b_k^T - sum_k a_k a_k^T with b = g / sqrt(s^T g) and
a = B s / sqrt(s^T B s). It is positive definite, as pairs with s^T g <= 0 are left out. All agents
share the diagonal: one number, or m_j^2 = sum g_j^2 / sum s_j^2 over all pairs, the length of a row
of the Hessian, which is lambda for a coordinate that nothing but the penalty curves.
J. Nocedal, S. J. Wright, "Numerical Optimization" (2006), Section 6.1; with the gradients of one
agent at a time: A. Mokhtari, M. Eisen, A. Ribeiro, "IQN: an incremental quasi-Newton method with
local superlinear convergence rate" (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privet.agents.inputs import Vector

LEAST_CURVED = 1e-10
"""Cosine of s and g from which on a pair is used."""
MOST_PRODUCTS = 500
"""Products with the sum of the B_i in one solution."""
REDUCTION = 1e-8
"""The solution ends where its residual is this share of the first one."""


def pair(moved: Vector, turned: Vector) -> tuple[Vector, Vector] | None:
    """Return s and g (d,), scaled to s^T g = 1; None for a pair that no convex f_i has, or whose
    product is beyond the normal numbers."""
    along = float(moved @ turned)
    if not math.inf > along > float(np.finfo(moved.dtype).tiny):
        return None
    if not along > LEAST_CURVED * float(np.linalg.norm(moved)) * float(np.linalg.norm(turned)):
        return None
    scale = moved.dtype.type(1.0 / math.sqrt(along))
    return moved * scale, turned * scale


def diagonal(moved: Vector, turned: Vector, least: float, without: float) -> Vector:
    """Return m (d,) of pairs (N, M, d), at least ``least``; ``without`` where there is no pair."""
    square = np.einsum("nkd,nkd->d", moved, moved)
    m = np.ones_like(square)
    np.divide(np.einsum("nkd,nkd->d", turned, turned), square, out=m, where=square > 0)
    found = np.maximum(np.sqrt(m), m.dtype.type(least))
    result: Vector = np.where(square > 0, found, m.dtype.type(without))
    return result


@dataclass(frozen=True, slots=True)
class Curvature:
    """The B_i of N agents.

    Attributes
    ----------
    base : array (d,)
        m.
    added, removed : arrays (N, M, d)
        The b_k and a_k; zeros where an agent has no pair.
    """

    base: Vector
    added: Vector
    removed: Vector

    @classmethod
    def of(cls, base: Vector, moved: Vector, turned: Vector) -> Curvature:
        """Return the matrices of pairs (N, M, d) of `pair`, the oldest first, zeros for none."""
        removed = np.zeros_like(moved)
        for k in range(moved.shape[1]):
            s = moved[:, k]
            bent = cls(base, turned[:, :k], removed[:, :k]).products(s)
            square = np.einsum("nd,nd->n", s, bent)
            root = np.sqrt(np.where(square > 0, square, math.inf))
            removed[:, k] = bent / root[:, None]
        return cls(base, turned, removed)

    def products(self, rows: Vector) -> Vector:
        """Return B_i r_i for each row of (N, d)."""
        total = self.base * rows
        for terms, sign in ((self.added, 1.0), (self.removed, -1.0)):
            shares = np.matmul(terms, rows[:, :, None])
            shares *= sign
            total += np.matmul(shares.transpose(0, 2, 1), terms)[:, 0]
        return total

    def total(self, vector: Vector) -> Vector:
        """Return sum_i B_i v, for v (d,)."""
        result = len(self.added) * self.base * vector
        for terms, sign in ((self.added, 1.0), (self.removed, -1.0)):
            flat = terms.reshape(-1, vector.size)
            result += sign * (flat @ vector) @ flat
        return result

    def largest(self) -> float:
        """Return a bound on the largest eigenvalue of sum_i B_i."""
        flat = self.added.reshape(-1, self.base.size)
        gram = float(np.abs(flat @ flat.T).sum(axis=1).max(initial=0.0))
        return len(self.added) * float(self.base.max()) + gram

    def solved(self, right: Vector) -> Vector:
        """Return v with sum_i B_i v = right (d,), by conjugate gradients with the diagonal."""
        squares = np.einsum("nkd,nkd->d", self.added, self.added)
        squares -= np.einsum("nkd,nkd->d", self.removed, self.removed)
        scale = len(self.added) * self.base
        scale = np.maximum(scale + squares, 1e-3 * scale)
        v, rest = np.zeros_like(right), right
        eased = rest / scale
        along, square = eased, float(rest @ eased)
        enough = max(REDUCTION, float(np.finfo(right.dtype).eps)) ** 2 * square
        for _ in range(MOST_PRODUCTS):
            if not square > enough:
                break
            bent = self.total(along)
            curvature = float(along @ bent)
            if not curvature > 0:  # rounding
                break
            length = right.dtype.type(square / curvature)
            v += length * along
            rest = rest - length * bent
            eased = rest / scale
            before, square = square, float(rest @ eased)
            along = eased + right.dtype.type(square / before) * along
        return v
