"""The proximal subproblem of a splitting: min_w f(w) + ||w - v||^2 / (2 rho)."""

from __future__ import annotations

from privet.problems.base import Moduli


def best_step(moduli: Moduli, rho: float) -> float:
    """Return 2 / (L + lambda + 2/rho), the best fixed gradient step on the subproblem.

    Fed-PLT paper, Section IV-B; ``moduli`` are those of f.
    """
    return 2.0 / (moduli.smoothness + moduli.strong_convexity + 2.0 / rho)
