"""Privacy-critical: an agent's records in one round, behind what was charged for them.

An algorithm's half never holds the records. It is given `Records`, which answers from a closed list
of programs (`privet.kernel.programs`). Where a mechanism was charged each of them gives noised
values only, so that whatever a half, a sparsifier or a coder makes of them is post-processing.
Where none was, the reply counts as un-noised and `Records.un_noised` answers as well.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from privet.kernel.bounded import Clipping
from privet.kernel.errors import NoiseError, RecordsError
from privet.kernel.events import Release
from privet.kernel.facts import Facts
from privet.kernel.perturb import Perturber
from privet.kernel.programs.custom import custom
from privet.kernel.programs.drift import Drift, drift
from privet.kernel.programs.gradients import Gradients, require_model
from privet.kernel.programs.inexact import Inexact, Inner, inexact_steps
from privet.kernel.programs.steps import LocalTask, Walk, walk
from privet.kernel.programs.update import Update, clipped_update
from privet.kernel.records import FloatArray, Moduli, Problem, can_clip, can_clip_batches
from privet.kernel.streams import Streams


class Held(NamedTuple):
    """A problem, or a stack of N agents', as its agent works on it.

    Attributes
    ----------
    problem : Problem
    row_norm : float
        The l2 norm that its rows were held to; 0 where they are as they came.
    """

    problem: Problem
    row_norm: float = 0.0


def within(
    problem: Problem, row_norm: float, clip: float, clipping: Clipping | Literal["update"]
) -> Held:
    """Return a problem with its rows held to an l2 norm, 0 for none; it must offer the clipping.

    Raises
    ------
    RecordsError
        If it cannot be clipped so, or its rows cannot be held.
    """
    if clip > 0 and clipping == "batch" and not can_clip_batches(problem):
        raise RecordsError("clipping = 'batch': this problem cannot clip its gradient")
    if clip > 0 and clipping == "example" and not can_clip(problem):
        raise RecordsError(f"clip = {clip:g}: this problem cannot clip per example")
    if not row_norm:
        return Held(problem)
    hold: Any = getattr(problem, "with_rows_within", None)
    if hold is None:
        raise RecordsError("row-norm: the rows of a problem of your own cannot be clipped")
    return Held(hold(row_norm), row_norm)


class UnNoised:
    """What may be asked of the records where nothing was charged: the reply is not private.

    Parameters
    ----------
    problem : Problem
        The records, or a stack of N agents'.
    noise : Perturber
        Which charged nothing.
    """

    __slots__ = ("_noise", "_problem")

    def __init__(self, problem: Problem, noise: Perturber) -> None:
        self._problem, self._noise = problem, noise

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return the gradient of f_i at x, shape (d,), on all records."""
        return self._problem.gradient(x)

    @property
    def moduli(self) -> Moduli | None:
        """Bounds of the Hessian of f_i, computed from the records; None where it knows none."""
        found = getattr(self._problem, "moduli", None)
        return found if isinstance(found, Moduli) else None

    def perturb(self, value: FloatArray, scale: float, mechanism: str = "gaussian") -> FloatArray:
        """Return a value with noise of this scale that no account covers, in float64."""
        return self._noise.unaccounted(value, scale, mechanism)


class Records:
    """All that a half can do with an agent's records in one round.

    Parameters
    ----------
    held : Held
        The problem; the vectors of a stack are rows (N, d).
    noise : Perturber
        Of the release that was charged.

    Attributes
    ----------
    facts : Facts
        The agent's public numbers, on which the charge rests.
    dim : int
        Length of the model.
    dtype : np.dtype
        float32 or float64, of all vectors.
    """

    __slots__ = ("_noise", "_problem", "_row_norm", "dim", "dtype", "facts")

    def __init__(self, held: Held, noise: Perturber) -> None:
        problem, self._row_norm = held
        self._problem, self._noise = problem, noise
        self.facts: Facts = noise.facts
        others = self.facts.agents, self.facts.colluders
        if self.release.agents > 1 and (self.release.agents, self.release.colluders) != others:
            raise NoiseError("noise of a masked sum was charged that this node is not part of")
        self.dim: int = problem.dim
        self.dtype: np.dtype[Any] = problem.dtype

    @property
    def charged(self) -> bool:
        """Whether a mechanism was charged, so that every program answers with its noise."""
        return self._noise.charged

    @property
    def release(self) -> Release:
        """What was charged."""
        return self._noise.release

    def walk(self, task: LocalTask, streams: Streams) -> Walk:
        """Return what the solver of a local task comes to (see `privet.kernel.programs.steps`).

        Raises
        ------
        RecordsError
            If the solver cannot supply what the task needs.
        NoiseError
            If noise is charged and the task needs an un-noised gradient.
        """
        if self.charged:
            self._require_program("iterate" if task.solver == "noisy-gd" else "gradients")
            _require_plain((*task, *_numbers(task.gradients)))
        return walk(task, self._problem, self._row_norm, streams, self._noise)

    def gradient(self, gradients: Gradients, x: FloatArray, streams: Streams) -> FloatArray:
        """Return one gradient at x, clipped and noised as is charged (`Gradients.oracle`)."""
        require_model(x, self._problem)
        if self.charged:
            self._require_program("gradients")
            _require_plain((gradients, x, *_numbers(gradients)))
        return gradients.oracle(self._problem, streams, self._noise)(x)

    def drift(
        self, program: Drift, center: FloatArray, lam: FloatArray, streams: Streams
    ) -> FloatArray:
        """Return FedPDM's y of noised drift (see `privet.kernel.programs.drift`)."""
        self._require_program("drift")
        _require_plain((program, center, lam, *_numbers(program), *_numbers(program.gradients)))
        return drift(program, center, lam, self._problem, self._row_norm, streams, self._noise)

    def inexact(
        self,
        program: Inexact,
        inner: FloatArray,
        w: FloatArray,
        lam: FloatArray,
        rho: float,
        eta: float,
    ) -> Inner:
        """Return what DP-IADMM's inner steps come to (`privet.kernel.programs.inexact`)."""
        if self.charged:
            self._require_program("output" if program.perturbation == "output" else "gradients")
            _require_plain((program, inner, w, lam, rho, eta, *_numbers(program)))
        return inexact_steps(
            program, inner, w, lam, rho, eta, self._problem, self._row_norm, self._noise
        )

    def settle(self) -> None:
        """Raise ``NoiseError`` unless exactly the charged draws were taken."""
        self._noise.settle()

    def _require_program(self, name: str) -> None:
        """Refuse another program than the one that was charged (raises ``NoiseError``)."""
        if self.release.program != name:
            raise NoiseError(
                f"program {name!r} was asked for, {self.release.program!r} was charged: release() "
                "gives what the program's own release says"
            )

    @property
    def un_noised(self) -> UnNoised:
        """The records without noise.

        Raises
        ------
        NoiseError
            If a mechanism was charged.
        """
        if self.charged:
            raise NoiseError("records without noise were asked for although noise was charged")
        return UnNoised(self._problem, self._noise)

    def update(self, program: Update, task: LocalTask, streams: Streams) -> FloatArray:
        """Return the clipped difference that a task's steps make, noised as a whole.

        See `privet.kernel.programs.update`; what it raises is there.
        """
        if self.charged:
            self._require_program("update")
            _require_plain((program, task))
        return clipped_update(program, task, self._problem, self._row_norm, streams, self._noise)

    def custom(self, name: str, streams: Streams, /, **arguments: Any) -> FloatArray:
        """Return what another package's program gives (`privet.kernel.programs.custom`).

        ``arguments`` are public numbers, texts and arrays.

        Raises
        ------
        RecordsError
            If no program has this name.
        NoiseError
            If noise is charged for something else.
        """
        if self.charged:
            _require_plain(tuple(arguments.values()))
        return custom(name, self._problem, self._noise, streams, **arguments)


_PLAIN = frozenset({
    bool, int, float, str, type(None), np.ndarray, np.float64, np.float32, np.memmap,
    tuple, Drift, Gradients, Inexact, LocalTask, Moduli, Update,
})  # fmt: skip
"""What a charged program takes: an object of another class could keep what it is computed with."""


def _numbers(program: Gradients | Drift | Inexact | Moduli | Update) -> tuple[Any, ...]:
    """Return the fields of a program (raises ``NoiseError`` for one of another class)."""
    if type(program) not in _PLAIN:
        raise NoiseError(f"a charged program of class {type(program).__name__} is none of these")
    return tuple(getattr(program, name) for name in program.__slots__)


def _require_plain(values: tuple[Any, ...]) -> None:
    """Refuse what is neither a number, a text nor an array of numbers (raises ``NoiseError``)."""
    for value in values:
        held = value.dtype if isinstance(value, np.ndarray) else None
        if type(value) not in _PLAIN or (held is not None and held.hasobject):
            of = "" if held is None else f" of {held}"
            raise NoiseError(
                "a charged program takes numbers, texts and arrays, found "
                f"{type(value).__name__}{of}"
            )
        if isinstance(value, tuple):
            _require_plain(value)
        elif isinstance(value, Drift | Gradients | Inexact | Moduli | Update):
            _require_plain(_numbers(value))
