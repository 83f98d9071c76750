"""A centralised solver: the optimum that distributed runs are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from privet.kernel.records import FloatArray, Moduli, Problem
from privet.kernel.sets import Zero

from .proximal import ProximalFunction

NEWTON_UP_TO = 1000
"""Number of parameters up to which Hessians are used."""

_BLOCK = 500
_PATIENCE = 4


@dataclass(frozen=True, slots=True)
class Minimum:
    """The result of `minimize`.

    Attributes
    ----------
    x : (dim,) array
        The minimiser (a stationary point when some f_i is not convex).
    value : float
        sum_i f_i(x) + h(x).
    residual : float
        l2 distance of -sum_i grad f_i(x) to the subdifferential of h at x.
    iterations : int
        Proximal gradient and Newton steps together.
    """

    x: FloatArray
    value: float
    residual: float
    iterations: int


def minimize(
    problems: Problem | Sequence[Problem],
    h: ProximalFunction | None = None,
    *,
    x0: FloatArray | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 100_000,
    moduli: Moduli | None = None,
) -> Minimum:
    """Minimise sum_i f_i(x) + h(x) over all agents at once.

    Proximal gradient steps of length 1/L, accelerated (FISTA, Beck and Teboulle 2009, with the
    restarts of O'Donoghue and Candes 2015) when the sum is convex. Up to `NEWTON_UP_TO`
    parameters, proximal Newton steps are tried in between and kept when they halve the
    residual. Everything is computed in the dtype of the problems: float32 stops at its rounding.

    Parameters
    ----------
    problems : Problem or sequence of Problem
        All of one dim and dtype.
    h : ProximalFunction, optional
        Added once; 0 unless given.
    x0 : (dim,) array, optional
        Start; zeros unless given.
    tolerance : float
        Residual (see `Minimum`) to reach. The search also ends, with what it has, after
        ``max_iterations`` or when the residual stops falling.
    moduli : Moduli, optional
        Of sum_i f_i; by default the sum of the problems' own ``moduli``.

    Raises
    ------
    ValueError
        When there is no problem, their dims differ, or moduli are neither given nor known.
    """
    agents = [problems] if isinstance(problems, Problem) else list(problems)
    _check(agents)
    h = Zero() if h is None else h
    search = _Search(agents, h, _total_moduli(agents) if moduli is None else moduli)
    x = (np.zeros(agents[0].dim) if x0 is None else x0).astype(agents[0].dtype)
    if not math.isfinite(h.value(x)):
        x = h.prox(x, 1.0)
    best, residual = x, search.residual(x)
    iterations, patience = 0, _PATIENCE
    while residual > tolerance and iterations < max_iterations and patience:
        candidate = search.newton_step(best, tolerance)
        new_residual = math.inf if candidate is None else search.residual(candidate)
        if candidate is not None and new_residual <= 0.5 * residual:
            x = best = candidate
            residual, iterations = new_residual, iterations + 1
            continue
        x, taken = search.descend(x, tolerance, min(_BLOCK, max_iterations - iterations))
        iterations += taken
        new_residual = search.residual(x)
        patience = _PATIENCE if new_residual < 0.99 * residual else patience - 1
        if new_residual < residual:
            best, residual = x, new_residual
    return Minimum(best, search.value(best), residual, iterations)


@dataclass(frozen=True, slots=True)
class _Search:
    """The steps `minimize` chooses between."""

    agents: list[Problem]
    h: ProximalFunction
    moduli: Moduli

    def value(self, x: FloatArray) -> float:
        return math.fsum(agent.value(x) for agent in self.agents) + self.h.value(x)

    def gradient(self, x: FloatArray) -> FloatArray:
        result = self.agents[0].gradient(x)
        for agent in self.agents[1:]:
            result += agent.gradient(x)
        return result

    def residual(self, x: FloatArray) -> float:
        return self.h.subgradient_residual(x, self.gradient(x))

    def descend(self, x: FloatArray, tolerance: float, steps: int) -> tuple[FloatArray, int]:
        return fista(
            self.gradient,
            self.h,
            x,
            self.moduli.smoothness,
            accelerate=self.moduli.strong_convexity >= 0.0,
            tolerance=tolerance,
            steps=steps,
        )

    def newton_step(self, x: FloatArray, tolerance: float) -> FloatArray | None:
        """Minimise the quadratic model of sum_i f_i at x plus h.

        None when the Hessian is not at hand or not safely positive definite.
        """
        hessians = [getattr(agent, "hessian", None) for agent in self.agents]
        if x.size > NEWTON_UP_TO or None in hessians:
            return None
        matrix: FloatArray = sum(hessian(x) for hessian in hessians if hessian is not None)
        eigenvalues = np.linalg.eigvalsh(matrix)
        if eigenvalues[0] <= x.size * np.finfo(x.dtype).eps * eigenvalues[-1]:
            return None
        gradient = self.gradient(x)
        if isinstance(self.h, Zero):
            step: FloatArray = np.linalg.solve(matrix, gradient)
            return x - step
        goal = max(0.1 * tolerance, 1e-3 * self.h.subgradient_residual(x, gradient))

        def model_gradient(u: FloatArray) -> FloatArray:
            result: FloatArray = gradient + matrix.dot(u - x)
            return result

        largest = float(eigenvalues[-1])
        return fista(
            model_gradient,
            self.h,
            x,
            largest,
            accelerate=True,
            tolerance=goal,
            steps=10 * _BLOCK,
        )[0]


def fista(
    gradient: Callable[[FloatArray], FloatArray],
    h: ProximalFunction,
    x: FloatArray,
    smoothness: float,
    *,
    accelerate: bool,
    tolerance: float,
    steps: int,
) -> tuple[FloatArray, int]:
    """Take up to ``steps`` proximal gradient steps; return the last iterate and their number."""
    # Without curvature the gradient is constant and any step length is as good.
    step = 1.0 / smoothness if smoothness > 0.0 else 1.0
    point, weight = x, 1.0
    for taken in range(1, steps + 1):
        new = h.prox(point - step * gradient(point), step)
        # The residual at new is at most twice this, by the optimality condition of the prox.
        if 2.0 * float(np.linalg.norm(point - new)) <= tolerance * step:
            return new, taken
        if accelerate and float((point - new).dot(new - x)) <= 0.0:
            next_weight = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * weight * weight))
            point, weight = new + (weight - 1.0) / next_weight * (new - x), next_weight
        else:
            point, weight = new, 1.0
        x = new
    return x, steps


def _total_moduli(agents: Sequence[Problem]) -> Moduli:
    total = Moduli(0.0, 0.0)
    for agent in agents:
        moduli = getattr(agent, "moduli", None)
        if moduli is None:
            raise ValueError(
                f"{type(agent).__name__} has no moduli: pass minimize the moduli of the sum"
            )
        total += moduli
    return total


def _check(agents: Sequence[Problem]) -> None:
    if not agents:
        raise ValueError("minimize needs at least one problem")
    dims = sorted({agent.dim for agent in agents})
    if len(dims) > 1:
        raise ValueError(f"all problems must have one dim, found {dims}")
    dtypes = sorted({str(agent.dtype) for agent in agents})
    if len(dtypes) > 1:
        raise ValueError(f"all problems must have one dtype, found {', '.join(dtypes)}")
