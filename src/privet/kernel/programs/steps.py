"""Privacy-critical: the local task between receiving and sending, and its solvers.

Every method takes a few steps on the local task

    minimise over w   f_i(w) + <shift, w> + ||w - center||^2 / (2 rho)       from w = start

and computes its new state and its upload from the `Walk`. With g the gradient of f_i, gamma the
step size and N_e the number of steps, the solvers are

    gd, sgd     w <- w - gamma (g(w) + shift + (w - center) / rho)     g on all rows, or on a batch
    agd         the same from an extrapolated point, with constant momentum
    noisy-gd    gd with noise N(0, 2 gamma tau^2 I) added to w in every step
    newton      w <- w + t p, (H(w) + I/rho) p = -(g(w) + shift + (w - center) / rho), on all rows

the first four after N. Bastianello, C. Liu, K. H. Johansson, "Enhancing Privacy in Federated
Learning through Local Training", Section IV-B, (11) to (13). They keep the dtype of
``start`` and never write into their inputs.

Privacy: gd and sgd with noise are the program ``gradients``. noisy-gd is the program ``iterate``:
the noise of every step stays on the iterate and the last one alone is released, so that where a
clipped step contracts by chi < 1 what a record did in earlier steps has shrunk by the time it is
seen (`NoisySteps`, `privet.kernel.events.Release.loss`). Where it does not contract every step is a
separate release.

The vectors may be those of a `Stack` of N agents, arrays (N, d), with moduli and step
sizes (N, 1): every row is then what its agent's own walk gives, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ..bounded import Clipped, clipped_terms
from ..errors import NoiseError, RecordsError
from ..events import Release
from ..facts import Facts
from ..perturb import Perturber
from ..records import FloatArray, Moduli, Problem
from ..sensitivity import fed_plt_contraction
from ..streams import Streams
from .gradients import Gradient, Gradients, require_model

Need = Literal["mean_gradient", "end_gradient"]
"""A field of `Walk` that a method can need in addition to its end."""

MOST_STEPS = 100_000
"""Largest number of local steps in a round: no message keeps a node at work for days."""
MOST_PRODUCTS = 250
"""Largest number of products with the Hessian in a Newton step."""
NEWTON_REDUCTION = 1e-3
"""Newton steps end where the slope of the task is this share of the one that they began with."""
WHOLE = Gradients()
"""The gradient on all examples, as it is."""
UNKNOWN = Moduli(0.0, 0.0)
"""Moduli of a task whose solver uses none."""


class LocalTask(NamedTuple):
    """An agent's local problem in one round, except f_i, and the method to solve it.

    Attributes
    ----------
    start : array (d,)
        Where the walk begins.
    step_size : float
        gamma, > 0; agd takes its own from the moduli.
    steps : int
        N_e, >= 0.
    center : array (d,), optional
        Of the proximal term; None is the origin.
    rho : float
        Its penalty; infinite for no such term, negative where f_i has more curvature to spare.
    shift : array (d,), optional
        Gradient of the linear term; None is zero.
    solver : str
        A key of `SOLVERS`.
    gradients : Gradients
        The rows, the clip and the noise of a step.
    moduli : Moduli
        Of f_i; for agd.
    noise_variance : float
        tau^2, for noisy-gd.
    tolerance : float
        The walk ends with the first step whose whole gradient, that of all terms, has a squared
        norm of at most this; 0 takes all steps.
    needs : tuple of Need
        Fields that the walk has to supply in addition to its end.
    """

    start: FloatArray
    step_size: float
    steps: int
    center: FloatArray | None = None
    rho: float = math.inf
    shift: FloatArray | None = None
    solver: str = "gd"
    gradients: Gradients = WHOLE
    moduli: Moduli = UNKNOWN
    noise_variance: float = 0.0
    tolerance: float = 0.0
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True)
class NoisySteps:
    """The public numbers of noisy steps, of which a charge is made.

    Attributes
    ----------
    gradients : Gradients
        Clipped; without noise of its own.
    step_size : float
        gamma.
    steps : int
        N_e.
    noise_variance : float
        tau^2.
    rho : float
        The penalty of the proximal term.
    solver : str
    """

    gradients: Gradients
    step_size: float
    steps: int
    noise_variance: float
    rho: float
    solver: str = "noisy-gd"

    def release(self, facts: Facts, row_norm: float, what: str = "") -> Release:
        """Return what a round of these steps is charged as.

        Each step w <- w - gamma (clipped gradient + ...) + N(0, 2 gamma tau^2 I), eq. (13), moves
        by gamma times what a record moves the clipped gradient by. Where a clipped step contracts
        by chi < 1 the last iterate alone is released; else the steps compose as N_e releases.

        Parameters
        ----------
        facts : Facts
        row_norm : float
            The l2 norm that rows are held to; 0 where they are not.

        Raises
        ------
        NoCertificateError
            For a solver, a regulariser or a loss of this library's without a proof.
        """
        chi = contraction(facts, row_norm, self.step_size, self.rho, self.solver)
        hidden = chi < 1.0 and self.steps > 1
        return Release(
            "gaussian",
            scale=math.sqrt(2.0 * self.step_size * self.noise_variance),
            sensitivity=self.step_size * self.gradients.sensitivity(facts),
            count=1 if hidden else self.steps,
            steps=self.steps if hidden else 1,
            contraction=chi if hidden else 1.0,
            relation=self.gradients.relation,
            what=what,
            program="iterate",
        )


@lru_cache(maxsize=256)
def contraction(facts: Facts, row_norm: float, step_size: float, rho: float, solver: str) -> float:
    """Return chi of a clipped step, from public numbers; 1 where nothing is proven.

    Composition (chi = 1) needs nothing of a loss but its clipping, so it serves a problem of one's
    own. Without a bound on the rows the moduli would only be claimed, and the rounding of a float32
    iterate is no contraction: they prove nothing.

    Raises
    ------
    NoCertificateError
        As `fed_plt_contraction`.
    """
    if not facts.linear:
        return 1.0
    moduli = facts.public_moduli(row_norm) if row_norm else UNKNOWN
    chi = fed_plt_contraction(
        loss=facts.loss,
        step_size=step_size,
        strong_convexity=max(moduli.strong_convexity, 0.0),
        smoothness=moduli.smoothness,
        rho=rho,
        regularizer=facts.regularizer,
        solver=solver,
    )
    return chi if row_norm and facts.dtype == "float64" else 1.0


class Walk(NamedTuple):
    """The result of the steps on a local task; vectors that the task does not need are None.

    Attributes
    ----------
    end : array (d,)
        The last iterate.
    steps : int
        Steps that were taken.
    mean_gradient : array (d,), optional
        Mean of the steps' gradients of f_i, with their noise, without the other terms.
    end_gradient : array (d,), optional
        grad f_i(end), on all examples.
    """

    end: FloatArray
    steps: int
    mean_gradient: FloatArray | None = None
    end_gradient: FloatArray | None = None

    def supplied(self, need: Need) -> FloatArray:
        """Return a vector that the task needs (raises ``RecordsError`` where it is missing)."""
        vector: FloatArray | None = getattr(self, need)
        if vector is None:
            raise RecordsError(f"the local steps do not supply {need}")
        return vector


def walk(
    task: LocalTask, problem: Problem, row_norm: float, streams: Streams, noise: Perturber
) -> Walk:
    """Return the walk of the task's solver.

    ``row_norm`` is the l2 norm that the rows were held to, 0 where they are as they came.

    Raises
    ------
    RecordsError
        If the solver cannot supply what the task needs.
    NoiseError
        If noise is charged and the task needs an un-noised gradient.
    """
    require_model(task.start, problem)
    solve, supplies = SOLVERS[task.solver]
    for need in task.needs:
        if need not in supplies:
            raise RecordsError(f"local-solver = {task.solver!r} does not supply {need}")
        if need == "end_gradient" and noise.charged:
            raise NoiseError("a gradient without noise was used although noise was charged")
    if noise.charged and noise.release.steps > 1:
        _require_contraction(task, row_norm, noise)
    return solve(task, problem, streams, noise)


def _require_contraction(task: LocalTask, row_norm: float, noise: Perturber) -> None:
    """Refuse hidden steps of another number, or that contract less (raises ``NoiseError``).

    Fewer at a time would release the iterates between.
    """
    charged = noise.release.contraction
    if task.steps != noise.release.steps:
        raise NoiseError(f"{task.steps} hidden steps, {noise.release.steps} were charged")
    chi = contraction(noise.facts, row_norm, task.step_size, task.rho, task.solver)
    if not chi <= charged < 1.0:
        raise NoiseError(f"a step contracts by {chi:.6g}, {charged:.6g} was charged")


def gradient_steps(task: LocalTask, problem: Problem, streams: Streams, noise: Perturber) -> Walk:
    """Take gradient steps, eq. (11), on all examples or on mini-batches.

    w <- (1 - gamma/rho) w + (gamma/rho) center - gamma shift - gamma g(w).
    """
    gradient = task.gradients.oracle(problem, streams, noise, task.steps)
    keep, drift = _affine(task)
    w = task.start
    back = np.array(-task.step_size, w.dtype)
    slopes = np.zeros_like(w) if "mean_gradient" in task.needs else None
    taken = 0
    while taken < task.steps:
        taken += 1
        slope = gradient(w)
        if slopes is not None:
            slopes += slope
        last = task.tolerance > 0 and _squared_slope(task, w, slope) <= task.tolerance
        slope = slope * back
        w = _advanced(w, keep, drift, slope)
        del slope  # of a large model its memory is needed for the next gradient
        if last:
            break
    if slopes is not None:
        slopes /= slopes.dtype.type(taken)
    return Walk(w, taken, slopes, problem.gradient(w) if "end_gradient" in task.needs else None)


def accelerated_steps(
    task: LocalTask, problem: Problem, streams: Streams, noise: Perturber
) -> Walk:
    """Take accelerated gradient steps, eq. (12), with constant momentum.

    The step is 1/(L + 1/rho), the momentum comes from the moduli; the end is the extrapolated w.
    """
    if noise.charged:
        raise NoiseError("agd adds no noise, although noise was charged")
    w = u = task.start
    kind = w.dtype.type
    momentum, step = map(kind, _accelerated(task.moduli, task.rho))
    weight = kind(1.0 / task.rho)
    for _ in range(task.steps):
        total = w * weight if task.center is None else (w - task.center) * weight
        if task.shift is not None:
            total += task.shift
        total += problem.gradient(w)
        total *= step
        ahead = w - total
        w = ahead - u
        w *= momentum
        w += ahead
        u = ahead
    end_gradient = problem.gradient(w) if "end_gradient" in task.needs else None
    return Walk(w, task.steps, end_gradient=end_gradient)


def _accelerated(moduli: Moduli, rho: float) -> tuple[Any, Any]:
    """Return momentum and step size, of a stack as columns."""
    low, high = moduli.strong_convexity, moduli.smoothness
    if isinstance(high, np.ndarray):
        each = [
            _accelerated(Moduli(one, other), rho)
            for one, other in zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
        ]
        momenta, steps = np.array(each).T[:, :, None]
        return momenta, steps
    high = math.sqrt(high + 1.0 / rho)
    low = math.sqrt(max(low + 1.0 / rho, 0.0))
    return (high - low) / (high + low), 1.0 / high**2


def newton_steps(task: LocalTask, problem: Problem, streams: Streams, noise: Perturber) -> Walk:
    """Solve the task by at most N_e Newton steps, inexactly: conjugate gradients, backtracking.

    They end where the norm of the task's whole slope is `NEWTON_REDUCTION` of the one at the start,
    or where no step lowers the objective any more, as at the rounding of its dtype. A problem that
    has no ``hessian_product`` has its products by differences of gradients.
    """
    if noise.charged:
        raise NoiseError("newton adds no noise, although noise was charged")
    w = task.start
    slope, value = _whole(task, problem, w)
    enough, taken = NEWTON_REDUCTION * _norm(slope), 0
    while taken < task.steps and _norm(slope) > enough:
        step = _newton_direction(task, problem, w, slope, max(0.3 * enough, 1e-2 * _norm(slope)))
        descent, length = float(slope @ step), 1.0
        while length > 1e-6:
            ahead = w + w.dtype.type(length) * step
            ahead_slope, ahead_value = _whole(task, problem, ahead)
            if ahead_value <= value + 1e-4 * length * descent:
                break
            # Below the rounding of the objective the slope alone says whether a step is good.
            if length == 1.0 and _norm(ahead_slope) <= 0.5 * _norm(slope):
                break
            length *= 0.5
        else:
            break
        w, slope, value, taken = ahead, ahead_slope, ahead_value, taken + 1
    return Walk(
        w, taken, end_gradient=problem.gradient(w) if "end_gradient" in task.needs else None
    )


def _norm(vector: FloatArray) -> float:
    return float(np.linalg.norm(vector))


def _whole(task: LocalTask, problem: Problem, w: FloatArray) -> tuple[FloatArray, float]:
    """Return the slope of all terms of the task at w, and its objective."""
    away = w if task.center is None else w - task.center
    slope = away * w.dtype.type(1.0 / task.rho)
    value = problem.value(w) + 0.5 * float(away @ slope)
    if task.shift is not None:
        slope += task.shift
        value += float(task.shift @ w)
    slope += problem.gradient(w)
    return slope, value


def _newton_direction(
    task: LocalTask, problem: Problem, w: FloatArray, slope: FloatArray, enough: float
) -> FloatArray:
    """Return p with ||(H(w) + I/rho) p + slope|| <= enough, or the best that was found."""
    product = getattr(problem, "hessian_product", partial(_differences, problem))(w)
    weight = w.dtype.type(1.0 / task.rho)
    step = np.zeros_like(w)
    rest = -slope
    along, square = rest, float(rest @ rest)
    for _ in range(MOST_PRODUCTS):
        bent = product(along)
        bent += weight * along
        curvature = float(along @ bent)
        if not curvature > 0:  # an indefinite Hessian, or rounding
            return step if step.any() else along
        length = w.dtype.type(square / curvature)
        step += length * along
        rest = rest - length * bent
        before, square = square, float(rest @ rest)
        if math.sqrt(square) <= enough:
            break
        along = rest + w.dtype.type(square / before) * along
    return step


def _differences(problem: Problem, w: FloatArray) -> Gradient:
    """Return a function for the Hessian at w times a vector, from two gradients near w."""
    reach = float(np.cbrt(np.finfo(w.dtype).eps)) * (1.0 + _norm(w))

    def product(v: FloatArray) -> FloatArray:
        length = _norm(v)
        if not length:
            return np.zeros_like(v)
        away = v * w.dtype.type(reach / length)
        bent = problem.gradient(w + away) - problem.gradient(w - away)
        bent *= w.dtype.type(length / (2.0 * reach))
        return bent

    return product


def noisy_steps(task: LocalTask, problem: Problem, streams: Streams, noise: Perturber) -> Walk:
    """Take noisy gradient steps, eq. (13): each adds N(0, 2 gamma tau^2 I).

    Privacy: the noise goes onto the clipped data term of every step, before the regulariser and
    the other terms of the task. Where the charge counts on steps that are not released (``steps``
    of the release above 1), the low bits of the rest of the iterate would give the draws away, so
    the whole iterate goes onto the grid.
    """
    if noise.charged and noise.release.steps > 1:
        return Walk(_hidden_steps(task, problem, noise), task.steps)
    move = (_charged_move if noise.charged else _free_move)(task, problem, streams, noise)
    keep, drift = _affine(task)
    w = task.start
    for _ in range(task.steps):
        w = _advanced(w, keep, drift, move(w))
    return Walk(w, task.steps)


def _charged_move(
    task: LocalTask, problem: Problem, streams: Streams, noise: Perturber
) -> Gradient:
    """Return a function for -gamma (clipped gradient + regulariser's) with noise on the former."""
    terms = clipped_terms(problem, task.gradients.clip, sensitivity=_moved(task, noise))

    def move(w: FloatArray) -> FloatArray:
        clipped, rest = terms(w)
        moved = noise.perturb(clipped.scaled(-task.step_size))
        if rest is not None:
            moved -= task.step_size * rest
        return moved

    return move


def _moved(task: LocalTask, noise: Perturber) -> float:
    """Return how far a record moves a noisy step's gradient: of all examples, each clipped."""
    return noise.facts.sensitivity(task.gradients.clip, relation=noise.release.relation)


def _free_move(task: LocalTask, problem: Problem, streams: Streams, noise: Perturber) -> Gradient:
    """Return a function for -gamma gradient with noise that no account covers."""
    variance: Any = 2.0 * task.step_size * task.noise_variance
    scale = math.sqrt(variance) if isinstance(variance, float) else np.sqrt(variance)
    gradient = task.gradients.oracle(problem, streams, noise, task.steps)
    back = task.start.dtype.type(-task.step_size)
    return lambda w: noise.unaccounted(back * gradient(w), scale)


def _hidden_steps(task: LocalTask, problem: Problem, noise: Perturber) -> FloatArray:
    """Take the steps in float64, the whole iterate on the grid after each."""
    if task.center is None or task.shift is not None:
        raise NoiseError(
            "noisy steps that are not released are proven private for a proximal term alone"
        )
    # Arrays of no dimension: numpy takes them as operands in half the time of numbers.
    keep, step = np.array(1.0 - task.step_size / task.rho), np.array(task.step_size)
    pull = task.center * (task.step_size / task.rho)
    noise.require_magnitude(task.start, pull)
    terms = clipped_terms(
        problem, task.gradients.clip, sensitivity=_moved(task, noise), silenced=True
    )
    w = task.start
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(task.steps):
            clipped, rest = terms(w)
            slope = clipped.value if rest is None else clipped.value + rest
            ahead = w * keep
            ahead += pull
            ahead -= slope * step
            w = noise.perturb(Clipped(ahead, task.step_size * clipped.sensitivity, clipped.norm))
    return w


def _affine(task: LocalTask) -> tuple[FloatArray | None, FloatArray | None]:
    """Return c and r of a step w <- c w + r - gamma g(w); None for a factor 1 and a term 0.

    c is an array, of no dimension for one task: numpy takes it in half the time of a number.
    """
    kind = task.start.dtype.type
    pull: Any = task.step_size / task.rho
    pulled = bool(pull) if isinstance(pull, float) else bool(pull.any())
    drift: FloatArray | None = None
    if task.center is not None and pulled:
        drift = task.center * kind(pull)
    if task.shift is not None:
        away = task.shift * kind(-task.step_size)
        drift = away if drift is None else drift + away
    return np.array(1.0 - pull, kind) if pulled else None, drift


def _advanced(
    w: FloatArray, keep: FloatArray | None, drift: FloatArray | None, moved: FloatArray
) -> FloatArray:
    """Return keep w + drift + moved, a fresh array."""
    if keep is not None:
        w = w * keep
        if drift is not None:
            w += drift
    elif drift is not None:
        w = w + drift
    else:
        return w + moved
    w += moved
    return w


def _squared_slope(task: LocalTask, w: FloatArray, slope: FloatArray) -> float:
    """Return ||g + shift + (w - center) / rho||^2."""
    whole = w * w.dtype.type(1.0 / task.rho)
    if task.center is not None:
        whole -= task.center * w.dtype.type(1.0 / task.rho)
    if task.shift is not None:
        whole += task.shift
    whole += slope
    return float(whole @ whole)


Solver = Callable[[LocalTask, Problem, Streams, Perturber], Walk]

_ANY: tuple[Need, ...] = ("mean_gradient", "end_gradient")
SOLVERS: Mapping[str, tuple[Solver, tuple[Need, ...]]] = {
    "gd": (gradient_steps, _ANY),
    "sgd": (gradient_steps, _ANY),
    "agd": (accelerated_steps, ("end_gradient",)),
    "noisy-gd": (noisy_steps, ()),
    "newton": (newton_steps, ("end_gradient",)),
}
"""The solvers, each with the fields that it supplies in addition to the end."""

STEPLESS = ("agd", "newton")
"""Solvers whose steps follow from the moduli, or from the Hessian."""

__all__ = ["SOLVERS", "STEPLESS", "LocalTask", "Need", "NoisySteps", "Walk", "walk"]
