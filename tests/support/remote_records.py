"""An agent's records in a process of their own: plain requests go there, plain answers come back.

A half that is given `RemoteRecords` shares no interpreter with the problem, the noise and the real
`Records`. What crosses the pipe is made of a closed list of kinds, each by its own numbers, so that
no object of the half's ever runs on the other side.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privet.kernel import (
    BudgetRefused,
    Facts,
    Moduli,
    NoCertificateError,
    NoiseError,
    Perturber,
    Records,
    RecordsError,
    Release,
    SeededNoise,
)
from privet.kernel.door import Held
from privet.kernel.programs.drift import Drift
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.inexact import Inexact, Inner
from privet.kernel.programs.statistics import Statistics
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.programs.update import ClippedUpdate
from privet.kernel.streams import StackedStreams, Streams

Array = NDArray[Any]
Requests: TypeAlias = Sequence[tuple[str, Sequence[Any]]]

_TUPLES = {kind.__name__: kind for kind in (LocalTask, Walk, Inner)}
_PROGRAMS = {
    kind.__name__: kind
    for kind in (
        *(
            Gradients,
            Drift,
            Inexact,
            ClippedUpdate,
            Moduli,
            Streams,
            StackedStreams,
            Facts,
            Release,
        ),
    )
}
_ERRORS = {
    kind.__name__: kind for kind in (BudgetRefused, NoCertificateError, NoiseError, RecordsError)
}
_PLAIN = (type(None), bool, int, float, str)
_METHODS = (
    "walk",
    "gradient",
    "clipped_sum",
    "drift",
    "inexact",
    "update",
    "difference",
    "custom",
    "settle",
)
_FACTS = ("facts", "dim", "dtype", "charged", "release", "un_noised")
_UN_NOISED = ("gradient", "moduli", "perturb")


class Uncrossable(TypeError):
    """What is not of the kinds that requests and answers are made of."""


def packed(value: Any) -> tuple[Any, ...]:
    """Return a value as built-in tuples, texts, numbers and bytes.

    Raises
    ------
    Uncrossable
        For a value of any other class, subclasses included, or an array of objects.
    """
    kind = type(value)
    if kind in _PLAIN:
        return "plain", value
    if kind in (np.float64, np.float32):
        return "number", kind.__name__, value.tobytes()
    if kind in (np.ndarray, np.memmap) and not value.dtype.hasobject:
        held = io.BytesIO()
        np.save(held, np.asarray(value), allow_pickle=False)
        return "array", held.getvalue()
    if isinstance(value, np.dtype):
        return "dtype", value.str
    name = kind.__name__
    if kind is tuple or kind is _TUPLES.get(name):
        return name, [packed(each) for each in value]
    if kind is _PROGRAMS.get(name):
        return name, [packed(getattr(value, each.name)) for each in dataclasses.fields(kind)]
    raise Uncrossable(f"a value of class {name} does not cross")


def unpacked(found: tuple[Any, ...]) -> Any:
    """Return what `packed` was given."""
    name, content = found[0], found[-1]
    if name == "plain":
        return content
    if name == "number":
        return np.frombuffer(content, found[1])[0]
    if name == "array":
        return np.load(io.BytesIO(content), allow_pickle=False)
    if name == "dtype":
        return np.dtype(content)
    parts = [unpacked(each) for each in content]
    if name == "tuple":
        return tuple(parts)
    return (_TUPLES.get(name) or _PROGRAMS[name])(*parts)


class RemoteRecords:
    """The public surface of `Records`, whose every answer comes from the other process."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    @property
    def facts(self) -> Facts:
        found: Facts = self._ask("facts")
        return found

    @property
    def dim(self) -> int:
        found: int = self._ask("dim")
        return found

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self._ask("dtype")
        return found

    @property
    def charged(self) -> bool:
        found: bool = self._ask("charged")
        return found

    @property
    def release(self) -> Release:
        found: Release = self._ask("release")
        return found

    def walk(self, task: LocalTask, streams: Streams) -> Walk:
        found: Walk = self._ask("walk", task, streams)
        return found

    def gradient(self, gradients: Gradients, x: Array, streams: Streams) -> Array:
        found: Array = self._ask("gradient", gradients, x, streams)
        return found

    def drift(self, program: Drift, center: Array, lam: Array, streams: Streams) -> Array:
        found: Array = self._ask("drift", program, center, lam, streams)
        return found

    def inexact(
        self, program: Inexact, inner: Array, w: Array, lam: Array, rho: float, eta: float
    ) -> Inner:
        found: Inner = self._ask("inexact", program, inner, w, lam, rho, eta)
        return found

    def clipped_sum(self, gradients: Gradients, total: Array, unit: float = 1.0) -> Array:
        found: Array = self._ask("clipped_sum", gradients, total, unit)
        return found

    def update(self, program: ClippedUpdate, task: LocalTask, streams: Streams) -> Array:
        found: Array = self._ask("update", program, task, streams)
        return found

    def difference(self, program: ClippedUpdate, start: Array, end: Array) -> Array:
        found: Array = self._ask("difference", program, start, end)
        return found

    def statistics(self, point: Mapping[str, Array]) -> dict[str, Array]:
        found: dict[str, Array] = self._ask("statistics", point)
        return found

    def noised_statistics(self, program: Statistics, point: Mapping[str, Array]) -> Array:
        found: Array = self._ask("noised_statistics", program, point)
        return found

    def custom(self, name: str, streams: Streams, /, **arguments: Any) -> Array:
        found: Array = self._ask("custom", name, streams, tuple(arguments.items()))
        return found

    def settle(self) -> None:
        self._ask("settle")

    @property
    def un_noised(self) -> RemoteUnNoised:
        self._ask("un_noised")
        return RemoteUnNoised(self._ask)


class RemoteUnNoised:
    """The public surface of `UnNoised`."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def gradient(self, x: Array) -> Array:
        found: Array = self._ask("un_noised.gradient", x)
        return found

    @property
    def moduli(self) -> Moduli | None:
        found: Moduli | None = self._ask("un_noised.moduli")
        return found

    def perturb(self, value: Array, scale: float, mechanism: str = "gaussian") -> Array:
        found: Array = self._ask("un_noised.perturb", value, scale, mechanism)
        return found


class Noted(Perturber):
    """Adds the noise it should, and keeps what was handed to it and what it gave back."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.handed: list[Array] = []
        self.released: list[Array] = []

    def perturb(self, clipped: Any) -> Array:
        value = np.array(clipped.value)
        self.released.append(super().perturb(clipped))
        self.handed.append(value)
        return self.released[-1].copy()


class Following(Noted):
    """Takes its draws such that what it gives back is what another gave back."""

    first: Noted

    def perturb(self, clipped: Any) -> Array:
        own, number = super().perturb(clipped), len(self.handed) - 1
        return self.first.released[number].copy() if number < len(self.first.released) else own


class Room:
    """The process that holds records; ended by `close`."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other,))
        self._process.start()
        other.close()

    @property
    def pid(self) -> int | None:
        """Of the process; None once it has ended."""
        return self._process.pid if self._process.is_alive() else None

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        self._pipe.close()  # at the end of the pipe it ends by itself
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def hold(self, place: str, build: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Hold under a name what ``build(*arguments)`` makes there, see `behind`."""
        self._pipe.send(("hold", place, build, arguments, options))

    def records(self, place: str) -> RemoteRecords:
        """Return what a half may have of the records held under a name."""

        def ask(method: str, *arguments: Any) -> Any:
            return _opened(self._asked(place, method, [packed(each) for each in arguments]))

        return RemoteRecords(ask)

    def converse(self, place: str, requests: Requests) -> tuple[list[Said], Requests]:
        """Return what each request is answered with, and the requests as they were made."""
        found, made, vectors = list[Said](), list[Any](), list[Array]()
        for method, arguments in requests:
            request = [packed(_settled(each, vectors)) for each in arguments]
            said = self._asked(place, method, request)
            if said.error is None:
                vectors += _vectors(unpacked(said.answer))
            found.append(said)
            made.append((method, request))
        return found, made

    def again(self, place: str, made: Requests) -> list[Said]:
        """Return what each of these requests is answered with; they are sent at once."""
        self._pipe.send(("script", place, made))
        found: list[Said] = _opened(self._pipe.recv())
        return found

    def handed(self, *places: str) -> list[list[Array]]:
        """Return what was handed to the noise so far, in each place."""
        self._pipe.send(("handed", *places))
        found: list[list[Array]] = _opened(self._pipe.recv())
        return found

    def _asked(self, place: str, method: str, request: list[Any]) -> Said:
        self._pipe.send(("script", place, [(method, request)]))
        found: Said = _opened(self._pipe.recv())[0]
        return found


class Said(NamedTuple):
    """A packed answer or the class and text of an error, and the draws that were taken by then."""

    answer: Any
    error: tuple[str, str] | None
    taken: int


def _opened(said: Said) -> Any:
    """Return an answer, or raise the error."""
    if said.error is None:
        return said.answer if isinstance(said.answer, list) else unpacked(said.answer)
    name, text = said.error
    raise (_ERRORS.get(name) or getattr(builtins, name, RuntimeError))(text)


@dataclasses.dataclass(frozen=True)
class Earlier:
    """Stands for a multiple of a vector that an earlier request was answered with."""

    back: int
    factor: float = 1.0
    otherwise: Any = None


def _settled(value: Any, answers: list[Any]) -> Any:
    """Return a request's argument with earlier answers put in."""
    if isinstance(value, Earlier):
        if not answers:
            return value.otherwise
        with np.errstate(all="ignore"):
            found = answers[-1 - value.back % len(answers)]
            return found * found.dtype.type(value.factor)
    if type(value) is LocalTask:
        return LocalTask(*(_settled(each, answers) for each in value))
    return value


def _vectors(answer: Any) -> list[Array]:
    parts = answer if isinstance(answer, tuple) else (answer,)
    return [part for part in parts if isinstance(part, np.ndarray)]


def behind(
    held: Held,
    release: Release,
    facts: Facts,
    *,
    seed: int = 0,
    kind: type[Records] = Records,
    first: Records | None = None,
) -> Records:
    """Return records behind seeded noise, or behind noise that gives back what ``first``'s did."""
    noise = (Noted if first is None else Following)(release, SeededNoise(seed, "room"), facts)
    if isinstance(noise, Following):
        noise.first = first._noise  # type: ignore[union-attr, assignment]
    return kind(held, noise)


def serve(pipe: Connection) -> None:
    """Answer requests until the pipe is closed."""
    places: dict[str, Any] = {}
    with pipe:
        while True:
            try:
                kind, *content = pipe.recv()
            except (EOFError, OSError):
                return
            if kind == "hold":
                place, build, arguments, options = content
                if "first" in options:
                    options["first"] = places[options["first"]]
                places[place] = build(*arguments, **options)
                continue
            try:
                if kind == "handed":
                    answer: Any = [places[place]._noise.handed for place in content]
                else:
                    place, requests = content
                    answer = [_said(places[place], *request) for request in requests]
                pipe.send(Said(answer, None, 0))
            except Exception as error:
                pipe.send(Said(None, (type(error).__name__, str(error)), 0))


def _said(records: Any, method: str, request: list[Any]) -> Said:
    answer = refusal = None
    try:
        answer = packed(_answered(records, method, [unpacked(each) for each in request]))
    except Exception as error:
        refusal = type(error).__name__, str(error)
    return Said(answer, refusal, records._noise.taken)


def _answered(records: Records, method: str, arguments: list[Any]) -> Any:
    if method == "custom":
        *named, pairs = arguments
        return records.custom(*named, **dict(pairs))
    if method in _METHODS:
        return getattr(records, method)(*arguments)
    if method in _FACTS:
        found = getattr(records, method)
        return None if method == "un_noised" else found
    owner, _, name = method.partition(".")
    if owner != "un_noised" or name not in _UN_NOISED:
        raise Uncrossable(f"records have no method {method}")
    found = getattr(records.un_noised, name)
    return found(*arguments) if callable(found) else found


def surface(kind: type) -> set[str]:
    """Return the public names of a class and of its slots."""
    slots: Mapping[str, Any] = dict.fromkeys(getattr(kind, "__slots__", ()))
    return {name for name in (*dir(kind), *slots) if not name.startswith("_")}
