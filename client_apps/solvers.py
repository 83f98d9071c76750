"""Local solvers of min_w f(w) + ||w - v||^2 / (2 rho), each started at the agent's own x.

Fed-PLT paper, Section IV-B. All keep the dtype of the problem and never write into their inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from privet.privacy import NoiseSource
from privet.problems import ClippableProblem, Moduli, Problem, can_clip
from privet.wire import ConfigError

from .audible import require_audible
from .half import Streams

Vector = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Subproblem:
    """One agent's local problem in one round, and how its solver is set.

    Attributes
    ----------
    problem : Problem
        f_i.
    v : array (d,)
        Center of the proximal term, 2 y - z_i.
    rho : float
        Its penalty.
    moduli : Moduli
        Of f_i, without the proximal term.
    step_size : float
        gamma, > 0.
    steps : int
        N_e.
    batch_size : int
        Examples of a stochastic step.
    clip : float
        Per-example gradient bound, 0 for none.
    noise_variance : float
        tau^2 of (13).
    """

    problem: Problem
    v: Vector
    rho: float
    moduli: Moduli
    step_size: float
    steps: int
    batch_size: int = 0
    clip: float = 0.0
    noise_variance: float = 0.0


Solver = Callable[[Subproblem, Vector, Streams, NoiseSource], Vector]


def gradient_descent(task: Subproblem, x: Vector, streams: Streams, noise: NoiseSource) -> Vector:
    """Gradient steps, eq. (11): w <- w - gamma (grad f(w) + (w - v)/rho)."""
    return _descend(task, x, task.problem.gradient)


def stochastic_gradient(
    task: Subproblem, x: Vector, streams: Streams, noise: NoiseSource
) -> Vector:
    """Gradient steps on mini-batches drawn uniformly without replacement, a fresh one per step."""
    rng = streams.open("batches")
    count = task.problem.num_examples
    size = min(task.batch_size, count)

    def gradient(w: Vector) -> Vector:
        rows = rng.choice(count, size=size, replace=False, shuffle=False)
        return task.problem.gradient(w, rows)

    return _descend(task, x, gradient)


def noisy_gradient(task: Subproblem, x: Vector, streams: Streams, noise: NoiseSource) -> Vector:
    """Noisy gradient steps, eq. (13): each adds N(0, 2 gamma tau^2 I)."""
    problem = task.problem
    gradient: Callable[[Vector], Vector]
    if task.clip > 0:
        if not can_clip(problem):
            raise ConfigError(f"clip = {task.clip:g}: this problem cannot clip per example")
        gradient = partial(_clipped, problem, task.clip)
    else:
        gradient = problem.gradient
    scale = math.sqrt(2.0 * task.step_size * task.noise_variance)
    if task.clip > 0:
        # What a step makes of x and v before its noise is added: at most so many times as much.
        most = max(1.0, task.step_size, task.step_size / task.rho)
        require_audible(scale / most, x, task.v)
    draws = noise.gaussian((task.steps, x.size), scale, x.dtype)
    return _descend(task, x, gradient, draws)


def _clipped(problem: ClippableProblem, clip: float, w: Vector) -> Vector:
    return problem.clipped_gradient(w, clip)


def accelerated_gradient(
    task: Subproblem, x: Vector, streams: Streams, noise: NoiseSource
) -> Vector:
    """Accelerated gradient, eq. (12), with constant momentum; returns the extrapolated w.

    The step is 1/(L + 1/rho) and the momentum comes from the moduli; ``step_size`` is not used.
    """
    kind = x.dtype.type
    high = math.sqrt(task.moduli.smoothness + 1.0 / task.rho)
    low = math.sqrt(max(task.moduli.strong_convexity + 1.0 / task.rho, 0.0))
    momentum = kind((high - low) / (high + low))
    step, weight = kind(1.0 / high**2), kind(1.0 / task.rho)
    w = u = x
    for _ in range(task.steps):
        total = w - task.v
        total *= weight
        total += task.problem.gradient(w)
        total *= step
        ahead = w - total
        w = ahead - u
        w *= momentum
        w += ahead
        u = ahead
    return w


def _descend(
    task: Subproblem,
    x: Vector,
    gradient: Callable[[Vector], Vector],
    draws: Vector | None = None,
) -> Vector:
    """Run w <- w - gamma (g(w) + (w - v)/rho) [+ draw], fresh arrays throughout."""
    kind = x.dtype.type
    keep = kind(1.0 - task.step_size / task.rho)
    step = kind(task.step_size)
    pull = task.v * kind(task.step_size / task.rho)
    w = x
    for number in range(task.steps):
        slope = gradient(w) * step  # not in place: the array is the problem's
        w = w * keep
        w += pull
        w -= slope
        if draws is not None:
            w += draws[number]
    return w


SOLVERS: dict[str, Solver] = {
    "gd": gradient_descent,
    "agd": accelerated_gradient,
    "sgd": stochastic_gradient,
    "noisy-gd": noisy_gradient,
}

__all__ = ["SOLVERS", "Solver", "Subproblem"]
