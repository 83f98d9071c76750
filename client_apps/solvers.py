"""Local solvers of min_w f(w) + ||w - v||^2 / (2 rho), each started at the agent's own x.

Fed-PLT paper, Section IV-B. All keep the dtype of the problem and never write into their inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from privet.privacy import Perturber
from privet.problems import Clipped, Moduli, Problem, clipped_term

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


Solver = Callable[[Subproblem, Vector, Streams, Perturber], Vector]


def gradient_descent(task: Subproblem, x: Vector, streams: Streams, noise: Perturber) -> Vector:
    """Gradient steps, eq. (11): w <- w - gamma (grad f(w) + (w - v)/rho)."""
    back = x.dtype.type(-task.step_size)
    return _descend(task, x, lambda w: task.problem.gradient(w) * back)


def stochastic_gradient(task: Subproblem, x: Vector, streams: Streams, noise: Perturber) -> Vector:
    """Gradient steps on mini-batches drawn uniformly without replacement, a fresh one per step."""
    rng = streams.open("batches")
    count = task.problem.num_examples
    size = min(task.batch_size, count)

    back = x.dtype.type(-task.step_size)

    def move(w: Vector) -> Vector:
        rows = rng.choice(count, size=size, replace=False, shuffle=False)
        moved: Vector = task.problem.gradient(w, rows) * back
        return moved

    return _descend(task, x, move)


def noisy_gradient(task: Subproblem, x: Vector, streams: Streams, noise: Perturber) -> Vector:
    """Noisy gradient steps, eq. (13): each adds N(0, 2 gamma tau^2 I).

    Privacy: the noise goes onto the clipped data term of every step, before the regulariser and
    the proximal term. Where the charge counts on steps that are not released (``steps`` of the
    release above 1), the low bits of the rest of the iterate would give the draws away, so the
    whole iterate goes onto the grid.
    """
    scale = math.sqrt(2.0 * task.step_size * task.noise_variance)
    if task.clip <= 0 or not noise.charged:
        back = -task.step_size
        return _descend(task, x, lambda w: noise.unaccounted(back * _slope(task, w), scale))
    if noise.release.steps == 1:
        return _descend(task, x, lambda w: _noised_slope(task, w, noise))
    return _hidden_steps(task, x, noise)


def _slope(task: Subproblem, w: Vector) -> Vector:
    if task.clip <= 0:
        return task.problem.gradient(w)
    clipped, rest = clipped_term(task.problem, w, task.clip)
    slope: Vector = clipped.value if rest is None else clipped.value + rest
    return slope


def _noised_slope(task: Subproblem, w: Vector, noise: Perturber) -> Vector:
    """Return -gamma (clipped gradient + regulariser's) with noise on the former."""
    clipped, rest = clipped_term(task.problem, w, task.clip, relation=noise.release.relation)
    moved = noise.perturb(clipped.scaled(-task.step_size))
    if rest is not None:
        moved -= task.step_size * rest
    return moved


def _hidden_steps(task: Subproblem, x: Vector, noise: Perturber) -> Vector:
    """Take the steps in float64, the whole iterate on the grid after each."""
    keep = 1.0 - task.step_size / task.rho
    pull = task.v * (task.step_size / task.rho)
    noise.require_magnitude(x, pull)
    w = x
    for _ in range(task.steps):
        clipped, rest = clipped_term(task.problem, w, task.clip, relation=noise.release.relation)
        slope = clipped.value if rest is None else clipped.value + rest
        slope *= task.step_size
        ahead = w * keep
        ahead += pull
        ahead -= slope
        w = noise.perturb(Clipped(ahead, task.step_size * clipped.sensitivity, clipped.norm))
    return w


def accelerated_gradient(task: Subproblem, x: Vector, streams: Streams, noise: Perturber) -> Vector:
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


def _descend(task: Subproblem, x: Vector, move: Callable[[Vector], Vector]) -> Vector:
    """Run w <- w - gamma (w - v)/rho + move(w), fresh arrays throughout."""
    kind = x.dtype.type
    keep = kind(1.0 - task.step_size / task.rho)
    pull = task.v * kind(task.step_size / task.rho)
    w = x
    for _ in range(task.steps):
        moved = move(w)  # may be the problem's own array: it is read only
        w = w * keep
        w += pull
        w += moved
    return w


SOLVERS: dict[str, Solver] = {
    "gd": gradient_descent,
    "agd": accelerated_gradient,
    "sgd": stochastic_gradient,
    "noisy-gd": noisy_gradient,
}

__all__ = ["SOLVERS", "Solver", "Subproblem"]
