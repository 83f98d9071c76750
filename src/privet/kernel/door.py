"""Privacy-critical: an agent's records in one round, bound to the release that was charged.

An algorithm's half never holds the records. It is given `Records`, which answers from a closed list
of programs (`privet.kernel.programs`). Where a mechanism was charged, each program returns noised
values only, so that whatever a half, a sparsifier or a coder computes from them is post-processing.
Where agents share the noise, this holds of the masked sum alone (`Half.noise_sharing`).
Where no mechanism was charged, the reply counts as un-noised and `Records.un_noised` answers as
well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from .bounded import BoolArray, Clipping, IntArray
from .errors import NoiseError, RecordsError
from .events import Release
from .facts import Facts
from .perturb import Perturber
from .programs.custom import custom
from .programs.drift import Drift, drift
from .programs.gradients import Gradients, require_model
from .programs.inexact import Inexact, Inner, inexact_steps
from .programs.statistics import Statistics, noised_statistics, statistics
from .programs.steps import LocalTask, Walk, walk
from .programs.update import ClippedUpdate, clipped_difference, clipped_update
from .records import FloatArray, Moduli, Problem, can_clip, can_clip_batches
from .streams import StackedStreams, Streams


class Held(NamedTuple):
    """A problem, or a stack of N agents' problems, with the bound that its rows were clipped to.

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
    """Un-noised access to the records where nothing was charged: the reply is not private.

    Parameters
    ----------
    problem : Problem
        The records, or a stack of N agents' records.
    noise : Perturber
        The noise of a release that charged nothing.
    """

    __slots__ = ("_noise", "_problem")

    def __init__(self, problem: Problem, noise: Perturber) -> None:
        self._problem, self._noise = problem, noise

    def gradient(self, x: FloatArray) -> FloatArray:
        """Return the gradient of f_i at x, shape (d,), on all records."""
        return self._problem.gradient(x)

    @property
    def moduli(self) -> Moduli | None:
        """Bounds of the Hessian of f_i, computed from the records; None where it has none."""
        moduli = getattr(self._problem, "moduli", None)
        return moduli if isinstance(moduli, Moduli) else None

    def perturb(self, value: FloatArray, scale: float, mechanism: str = "gaussian") -> FloatArray:
        """Return a value with noise of this scale that no account covers, in float64."""
        return self._noise.unaccounted(value, scale, mechanism)


class Records:
    """The closed list of operations on an agent's records in one round.

    Parameters
    ----------
    held : Held
        The problem; the vectors of a stack are rows (N, d).
    noise : Perturber
        The noise of the release that was charged.

    Attributes
    ----------
    facts : Facts
        The agent's public numbers, on which the charge rests.
    dim : int
        Length of the model.
    dtype : np.dtype
        float32 or float64, of all vectors.
    """

    __slots__ = ("_noise", "_problem", "_row_norm", "_streams", "dim", "dtype", "facts")

    def __init__(self, held: Held, noise: Perturber) -> None:
        problem, self._row_norm = held
        self._problem, self._noise = problem, noise
        self.facts: Facts = noise.facts
        others = self.facts.agents, self.facts.colluders
        if self.release.agents > 1 and (self.release.agents, self.release.colluders) != others:
            raise NoiseError("noise of a masked sum was charged that this node is not part of")
        stacked = len(getattr(problem, "shape", ())) > 1
        self._streams: type[Streams] = StackedStreams if stacked else Streams
        self.dim: int = problem.dim
        self.dtype: np.dtype[Any] = problem.dtype

    @property
    def charged(self) -> bool:
        """Whether a mechanism was charged, so that every program answers with its noise."""
        return self._noise.charged

    @property
    def release(self) -> Release:
        """The release that was charged."""
        return self._noise.release

    def walk(self, task: LocalTask, streams: Streams) -> Walk:
        """Return the walk of a local task's solver (see `privet.kernel.programs.steps`).

        Raises
        ------
        RecordsError
            If the solver cannot supply what the task needs.
        NoiseError
            If noise is charged and the task needs an un-noised gradient.
        """
        if not self.charged:
            return walk(task, self._problem, self._row_norm, streams, self._noise)
        self._require_task(task, streams)
        program = "iterate" if task.solver == "noisy-gd" else "gradients"
        self._require_program(program, task.gradients)
        with _silence():
            return walk(task, self._problem, self._row_norm, streams, self._noise)

    def gradient(self, gradients: Gradients, x: FloatArray, streams: Streams) -> FloatArray:
        """Return one gradient at x, clipped and noised as charged (`Gradients.oracle`)."""
        if not self.charged:
            require_model(x, self._problem)
            return gradients.oracle(self._problem, streams, self._noise)(x)
        self._require_vectors(x)
        self._require_gradients(gradients, streams)
        self._require_program("gradients", gradients)
        with _silence():
            return gradients.oracle(self._problem, streams, self._noise)(x)

    def clipped_sum(self, gradients: Gradients, total: FloatArray, unit: float = 1.0) -> FloatArray:
        """Return the noised gradient of a step whose clipped sum the caller computed.

        ((unit n / (D b)) total + xi) / unit, with xi the charged noise, b = min(batch size, n), or
        n for full batches, and n and D those of the facts.

        Parameters
        ----------
        gradients : Gradients
            Its batch size, clip C and relation; examples are clipped, whatever its ``clipping``.
        total : (d,) float64 array
            The sum over the step's examples of their clipped gradients.
        unit : float
            Factor of the value that the noise is added to: -gamma where it goes onto a step of
            that size.

        Raises
        ------
        NoiseError
            If nothing was charged, less was charged than the sum moves by, or no draw is left.

        Notes
        -----
        Privacy: one draw. The caller must guarantee, as no code here sees the examples: total is
        the sum of at most b vectors of l2 norm at most C, rounded no worse than
        `clipped_sensitivity` says, each a function of one record and of what was released before;
        the choice of records does not depend on their contents, and no record occurs twice.

        Then replacing a record changes one of the vectors, and moves the sum by at most 2 C, C for
        add-remove; replacing all of an agent's changes all b, and moves it by at most 2 b C. Times
        n / (D b) that is `Facts.sensitivity`, stated from the numbers that the charge was stated
        from. Where fewer than n records are held, n' say, the factor is n' / (D min(b, n')), which
        is no larger, as n / min(b, n) does not fall as n grows. The unit scales the sum and its
        sensitivity alike, and dividing by it follows the noise.

        `privet.agents.adapters.networks.clipping` gives this guarantee for PyTorch modules,
        except for the batches, which the training loop chooses.
        """
        _require_kind(Gradients, gradients)
        if type(total) is not np.ndarray or total.dtype.kind != "f":
            raise NoiseError("a charged program takes an array of floats for a sum")
        _require_plain(gradients, unit)
        self._require_program("gradients" if unit == 1.0 else "iterate", gradients)
        if self.release.steps > 1:
            raise NoiseError("noisy steps that are not released are not taken one by one")
        return gradients.clipped_sum(total, self._problem, self._noise, unit)

    def drift(
        self, program: Drift, center: FloatArray, lam: FloatArray, streams: Streams
    ) -> FloatArray:
        """Return FedPDM's y of noised drift (see `privet.kernel.programs.drift`)."""
        _require_kind(Drift, program)
        self._require_vectors(center, lam)
        self._require_plain(streams, program)
        self._require_program("drift", program.gradients)
        with _silence():
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
        """Return the result of DP-IADMM's inner steps (`privet.kernel.programs.inexact`)."""
        arguments = program, inner, w, lam, rho, eta, self._problem, self._row_norm, self._noise
        if not self.charged:
            return inexact_steps(*arguments)
        _require_kind(Inexact, program)
        self._require_vectors(inner, w, lam)
        _require_plain(program, rho, eta)
        self._require_program(
            "output" if program.perturbation == "output" else "gradients", program
        )
        with _silence():
            return inexact_steps(*arguments)

    def update(self, program: ClippedUpdate, task: LocalTask, streams: Streams) -> FloatArray:
        """Return the clipped difference that a task's steps make, noised as a whole.

        See `privet.kernel.programs.update`, also for the errors that it raises.
        """
        arguments = program, task, self._problem, self._row_norm, streams, self._noise
        if not self.charged:
            return clipped_update(*arguments)
        _require_kind(ClippedUpdate, program)
        self._require_task(task, streams)
        _require_plain(program)
        self._require_program("update", program)
        with _silence():
            return clipped_update(*arguments)

    def difference(self, program: ClippedUpdate, start: FloatArray, end: FloatArray) -> FloatArray:
        """Return the clipped difference that a training loop of the user's made, as ``update``.

        Privacy: one draw. Nothing is asked of the loop, which may have seen all records: where it
        came to is not a number that leaves. What is asked is that it does not fail because of a
        record, as a missing reply is seen.
        """
        if not self.charged:
            return clipped_difference(program, start, end, self._noise)
        _require_kind(ClippedUpdate, program)
        self._require_vectors(start, end)
        _require_plain(program)
        self._require_program("update", program)
        return clipped_difference(program, start, end, self._noise)

    def statistics(self, point: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return un-noised sums at a public point, by name (`privet.kernel.programs.statistics`).

        Raises
        ------
        NoiseError
            If a mechanism was charged.
        RecordsError
            If the problem has no sums.
        """
        return dict(statistics(self._problem, point, self._noise))

    def noised_statistics(self, program: Statistics, point: Mapping[str, FloatArray]) -> FloatArray:
        """Return a sum (k,) at a public point with the charged noise, in float64.

        Privacy: one draw.
        """
        _require_kind(Statistics, program)
        _require_plain(program)
        for array in point.values():
            if type(array) not in _ARRAYS:
                raise NoiseError(f"a charged program takes arrays, found {type(array).__name__}")
        self._require_program("statistics", program)
        with _silence():
            return noised_statistics(program, self._problem, point, self._noise)

    def custom(self, name: str, streams: Streams, /, **arguments: Any) -> FloatArray:
        """Return the result of another package's program (`privet.kernel.programs.custom`).

        ``arguments`` are public numbers, texts and arrays.

        Raises
        ------
        RecordsError
            If no program has this name.
        NoiseError
            If noise is charged for something else.
        """
        if self.charged:
            others = [v for v in arguments.values() if type(v) not in _ARRAYS or v.dtype.hasobject]
            self._require_plain(streams, *others)
        return custom(name, self._problem, self._noise, streams, **arguments)

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

    def settle(self) -> None:
        """Raise ``NoiseError`` unless exactly the charged draws were taken."""
        self._noise.settle()

    def _require_program(self, name: str, requested: _Program) -> None:
        """Refuse another program or relation than was charged (raises ``NoiseError``)."""
        charged = self.release
        if charged.program != name:
            raise NoiseError(
                f"program {name!r} was asked for, {charged.program!r} was charged: release() "
                "gives what the program's own release says"
            )
        if isinstance(requested, Gradients) and requested.poisson and name != "gradients":
            raise NoiseError(f"batch = 'poisson' has no proof in program {name!r}")
        turns = (charged.batches, charged.bands)
        known = isinstance(requested, Gradients) and name in ("gradients", "drift")
        asked = (requested.batches, requested.bands) if isinstance(requested, Gradients) else (1, 1)
        if turns != asked or (turns != (1, 1) and not known):
            raise NoiseError(
                f"batches in turn are not what was charged, or have no proof in program {name!r}"
            )
        if charged.steps > 1 and name != "iterate":
            raise NoiseError(f"program {name!r} has no steps that are not released")
        if requested.relation != charged.relation:
            raise NoiseError(
                f"relation = {requested.relation!r} was asked for, {charged.relation!r} was charged"
            )

    def _require_task(self, task: LocalTask, streams: Streams) -> None:
        """Refuse a local task that is made of anything but vectors, numbers and texts."""
        _require_kind(LocalTask, task)
        others = [each for each in (task.center, task.shift) if each is not None]
        self._require_vectors(task.start, *others)
        self._require_gradients(task.gradients, streams)
        _require_plain(task.step_size, task.steps, task.rho, task.solver, *task[8:])

    def _require_gradients(self, gradients: Gradients, streams: Streams) -> None:
        """Refuse gradients, or streams of their rows, that are not plain."""
        _require_kind(Gradients, gradients)
        if self._streams is not Streams or not _plain_numbers(streams, gradients):
            self._require_plain(streams, gradients)

    def _require_vectors(self, *vectors: FloatArray) -> None:
        """Refuse anything but vectors of the problem's shape and dtype (raises ``RecordsError``).

        Another shape may be answered by an error that says how many records there are, and other
        numbers by arithmetic that no sensitivity covers.
        """
        for each in vectors:
            if type(each) not in _ARRAYS:
                raise NoiseError(f"a charged program takes arrays, found {type(each).__name__}")
            require_model(each, self._problem)
            if each.dtype != self._problem.dtype:
                raise RecordsError(f"vector in {each.dtype}, expected {self._problem.dtype}")

    def _require_plain(self, streams: Streams, *values: Any) -> None:
        """Refuse streams of another class, which could choose the rows, and values not plain."""
        _require_kind(self._streams, streams)
        _require_plain(*_PARTS[self._streams](streams), *values)


def sampled_sum(
    records: Records,
    gradients: Gradients,
    count: int,
    sum_of: Callable[[BoolArray], FloatArray],
    unit: float = 1.0,
) -> FloatArray:
    """Return the noised gradient of a step of sampled records, of which the caller sums.

    (unit total / (q D) + xi) / unit, with xi the charged noise, q the charged probability and D
    the divisor of the facts. It is no method of `Records`, as no half may see coins.

    Parameters
    ----------
    records : Records
        Of an agent whose training loop holds the records.
    gradients : Gradients
    count : int
        Number of examples that the caller holds, at most the declared one.
    sum_of : callable
        Returns the sum (d,) of the clipped gradients of the examples that are true in (count,).
    unit : float
        As of `Records.clipped_sum`.

    Raises
    ------
    NoiseError
        If other records were charged, or no draw is left.

    Notes
    -----
    Privacy: one draw, and fresh coins for it. The caller must guarantee that example i is the same
    record in every step, that the sum is what `privet.kernel.records.Samplable` asks for, and that
    nothing but the sum depends on the coins.
    """
    _require_kind(Gradients, gradients)
    _require_plain(gradients, unit)
    records._require_program("gradients", gradients)
    return gradients.sampled_sum(count, sum_of, records._noise, unit)


def cyclic_sum(
    records: Records,
    gradients: Gradients,
    count: int,
    sum_of: Callable[[IntArray], FloatArray],
) -> FloatArray:
    """Return the noised gradient of the batch whose turn it is, of which the caller sums.

    n total / (b D) + xi, with xi the charged noise, b the batch's size, and n and D those of the
    facts. As `sampled_sum`, it is no method of `Records`.

    Parameters
    ----------
    records : Records
        Of an agent whose training loop holds the records.
    gradients : Gradients
    count : int
        Number of examples that the caller holds, which is the declared one.
    sum_of : callable
        Returns the sum (d,) of the clipped gradients of these examples (b,).

    Raises
    ------
    NoiseError
        If other batches were charged, another number of examples is held, or no draw is left.

    Notes
    -----
    Privacy: one draw. The caller must guarantee that example i is the same record in every step and
    round, at a place that depends on no record's values, and that the sum is what
    `Records.clipped_sum` asks for.
    """
    _require_kind(Gradients, gradients)
    _require_plain(gradients)
    records._require_program("gradients", gradients)
    return gradients.cyclic_sum(count, sum_of, records._noise)


_Program = Gradients | Inexact | ClippedUpdate | Statistics
_ARRAYS = (np.ndarray, np.memmap)
_NUMBERS = frozenset({bool, int, float, str, type(None), np.float64, np.float32})
_PARTS = {
    kind: attrgetter(*(each.name for each in fields(kind)))
    for kind in (
        *(Drift, Gradients, Inexact, Moduli, Streams, StackedStreams, ClippedUpdate, Statistics),
    )
}
"""Getter of the fields of a program, by its class."""


def _silence() -> np.errstate:
    """Silence warnings, or errors that a half makes of them: they could reveal an overflow."""
    return np.errstate(all="ignore")


def _require_kind(kind: type, value: Any) -> None:
    """Refuse a value of another class, subclasses included (raises ``NoiseError``)."""
    if type(value) is not kind:
        raise NoiseError(f"a charged program takes {kind.__name__}, found {type(value).__name__}")


def _plain_numbers(streams: Streams, gradients: Gradients) -> bool:
    """Whether these two hold numbers and texts alone, as they mostly do: a fast path."""
    return (
        type(streams) is Streams
        and type(streams.seed) in _NUMBERS
        and type(streams.agent) in _NUMBERS
        and type(streams.round) in _NUMBERS
        and type(gradients.batch_size) in _NUMBERS
        and type(gradients.replace) in _NUMBERS
        and type(gradients.clip) in _NUMBERS
        and type(gradients.clipping) in _NUMBERS
        and type(gradients.relation) in _NUMBERS
        and type(gradients.noise_scale) in _NUMBERS
        and type(gradients.poisson) in _NUMBERS
        and type(gradients.batches) in _NUMBERS
        and type(gradients.bands) in _NUMBERS
    )


def _require_plain(*values: Any) -> None:
    """Refuse all but numbers, texts, and programs or tuples of these (raises ``NoiseError``).

    An object of another class could store what it is computed with, or return another value when
    it is read again.
    """
    if _NUMBERS.issuperset(map(type, values)):
        return
    for value in values:
        kind = type(value)
        if kind is tuple:
            _require_plain(*value)
        elif kind in _PARTS:
            _require_plain(*_PARTS[kind](value))
        elif kind not in _NUMBERS:
            raise NoiseError(
                f"a charged program takes numbers, texts and vectors, found {kind.__name__}"
            )
