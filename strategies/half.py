"""What an algorithm's server half is: a few pure functions on arrays, most of them derived.

A half is a frozen dataclass of parameters, its state a dataclass of arrays and numbers. From the
two `ServerHalf` derives what is the same for all algorithms; a half writes what is its own. A half
that sees every upload is a `FoldingHalf`, one that needs only sums of them a `SummingHalf`, one
whose agents belong to units a `GroupedHalf`; it may be several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from math import nan
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from privet.client_apps.half import Half
from privet.client_apps.inputs import parts
from privet.client_apps.state import LARGE
from privet.client_apps.terms import PrivacyTerms
from privet.core import NotFiniteError, RunError, UploadError, WireError, mapped
from privet.core.key import keys_of, owned, read
from privet.core.mapped import blocks, column_sums, empty, release
from privet.kernel import Facts, stream
from privet.wire import Settings, digest, finite
from privet.wire.dense import digest_of, digests
from privet.wire.payload import ENCODED
from privet.wire.ring import Shapes
from privet.wire.sparse import SparseVector, decode
from privet.wire.value_coding import decode_values

Vector = NDArray[Any]
Arrays = dict[str, Vector]

Follow = Callable[[Vector, Vector, Vector], Vector]
"""What an agent's row of a table, its upload and what it was told make of the row, all (d,) and
entry by entry."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The round a half is asked to do something in.

    Attributes
    ----------
    number : int
        Counted from 1.
    seed : int
        The run's.
    """

    number: int
    seed: int = 0

    def stream(self, purpose: str) -> np.random.Generator:
        """Return the generator of (seed, purpose, round); each purpose has its own."""
        return stream(self.seed, purpose, round_=self.number)


UNSAVED: Mapping[str, bool] = {"unsaved": True}
"""Metadata of a state's field that checkpoints are without: `completed` computes it anew."""


@dataclass(slots=True)
class HalfState:
    """A server's state: fields that are arrays or Python numbers.

    A field with the metadata `UNSAVED` is not in checkpoints.

    Attributes
    ----------
    residual : float
        A squared fixed-point residual that is 0 at a solution; NaN before the first round.
    """

    residual: float = field(default=nan, kw_only=True)


S = TypeVar("S", bound=HalfState)


def _saved(state: HalfState | type[HalfState]) -> list[str]:
    return [entry.name for entry in fields(state) if not entry.metadata.get("unsaved")]


@dataclass(frozen=True)
class ServerHalf(ABC, Generic[S]):
    """The mathematics of a server, without Flower.

    Agents are numbered by position in the sorted list of their names. What an agent holds is one
    row of each table (N, d) of the state; `rows` says which. Methods that return a state may reuse
    the one they were given: large tables are not copied every round.

    Parameters
    ----------
    agent : Half
        The agents' half: a frozen dataclass whose fields are the run-config keys that travel.
    terms : PrivacyTerms
        Travels as well where the algorithm has a private form.
    folder : Path, optional
        Where tables are that are too large for the memory (`privet.core.mapped`).
    """

    last: ClassVar[str] = "x"
    """Name of the state's field that is the run's result."""
    tells: ClassVar[Mapping[str, str]] = {}
    """Arrays of a broadcast that may be coded (`Half.hears`), and the field of the state that goes
    on with what the agents decode."""
    state: ClassVar[type[HalfState]]
    """The class of the state."""

    agent: Half
    terms: PrivacyTerms = field(default=PrivacyTerms(), kw_only=True)
    folder: Path | None = field(default=None, kw_only=True, repr=False, compare=False)

    @classmethod
    def from_config(cls, agent: Half, config: Mapping[str, Any], **parts: Any) -> Self:
        """Return the half of a resolved run config: its own keys and the terms beside its parts."""
        own = {name: owned(config, key, cls) for name, key in keys_of(cls).items()}
        return cls(agent=agent, terms=read(PrivacyTerms, config), **own, **parts)

    @property
    def name(self) -> str:
        """Protocol name, as in the registry."""
        return self.agent.name

    @property
    def version(self) -> int:
        """Protocol version; both halves must agree."""
        return self.agent.version

    @property
    def secure_sum(self) -> bool:
        """Whether this run's uploads are masked; the setting ``secure-sum`` then travels along."""
        return False

    @property
    def noise_key(self) -> str:
        """The run-config key of the noise, empty where the algorithm has no private form."""
        return self.agent.noise_key

    def next_round(self, number: int, last: int) -> int:
        """Return the round to play after ``number - 1``: a later one where others are further."""
        return number

    # ------------------------------------------------------------------ what agents are told

    def settings(self) -> Settings:
        """Return the parameters that travel to the agents: their half's fields, by key."""
        return self._settings

    @cached_property
    def _settings(self) -> Settings:
        own = {
            entry.name.replace("_", "-"): getattr(self.agent, entry.name)
            for entry in fields(self.agent)
        }
        own.pop("secure-sum", None)
        masked = {"secure-sum": True} if self.secure_sum else {}
        terms = self.terms.settings() if self.noise_key else {}
        return {**terms, **own, **masked}

    def with_settings(self, changes: Settings) -> Self:
        """Return the half with other values of some run-config keys, its own and its agents'.

        Raises
        ------
        ConfigError
            If the agents would refuse these values.
        """

        def varied(part: Any) -> dict[str, Any]:
            return {n: changes[k.name] for n, k in keys_of(type(part)).items() if k.name in changes}

        new = {name: replace(part, **varied(part)) for name, part in self.parts.items()}
        new["agent"] = type(self.agent).from_settings({**self.settings(), **changes})
        return replace(self, **new, **varied(self))

    @property
    def parts(self) -> dict[str, Any]:
        """What else than the half itself has run-config keys: its settings objects, by field."""
        held = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {n: each for n, each in held.items() if is_dataclass(each) and keys_of(type(each))}

    def without_moduli(self) -> Self:
        """Return the half with what was left open settled for problems of unknown moduli."""
        others = self.agent.without_moduli
        return self.with_settings(others) if others else self

    def contraction(self, facts: Facts) -> float:
        """Return by what factor a round brings the model nearer to its limit, at least.

        From public numbers; 1 where theory knows none.
        """
        return 1.0

    # ------------------------------------------------------------------ the state

    def rows(self, start: Vector) -> Arrays:
        """Return what an agent holds before its first round, by name of the state's table."""
        return {}

    def tables(self, start: Vector, count: int) -> dict[str, Any]:
        """Return the tables (N, d) before round 1, by name."""
        tables = {}
        for name, row in self.rows(start).items():
            table = empty((count, *np.atleast_1d(row).shape), row.dtype, self.folder)
            for part in blocks(table):
                table[part] = row
            tables[name] = table
        return tables

    def initialise(self, start: Vector, count: int) -> S:
        """Return the state before round 1, all agents at the starting model (d,).

        By default the start, and the tables.
        """
        made: Any = self.state
        return self.completed(made(start, **self.tables(start, count)))

    def completed(self, state: S) -> S:
        """Return the state with what follows from its tables, after they were set or changed."""
        return state

    def admit(self, state: S, position: int, start: Vector) -> S:
        """Return the state with a new agent inserted at this position."""
        for name, row in self.rows(start).items():
            table = getattr(state, name)
            longer = empty((len(table) + 1, *table.shape[1:]), table.dtype, self.folder)
            others = np.delete(np.arange(len(longer)), position)
            for part in blocks(table):
                longer[others[part]] = table[part]
            longer[position] = row
            setattr(state, name, longer)
        return self.completed(state)

    def renew(self, state: S, position: int, start: Vector) -> S:
        """Return the state in which this agent is again what ``admit`` inserts."""
        for name, row in self.rows(start).items():
            getattr(state, name)[position] = row
        return self.completed(state)

    def recovery(self, state: S, position: int) -> Arrays | None:
        """Return the state an agent needs to go on, or None where the server does not hold it.

        By default its row of every table, by the table's name.
        """
        return {name: getattr(state, name)[position] for name in self.rows(np.empty(0))}

    def model(self, state: S) -> Vector:
        """Return the model (d,) that is the run's result."""
        found: Vector = getattr(state, self.last)
        return found

    def models(self, state: S) -> Arrays:
        """Return the models (d,) by name: ``"last"``, which is ``model``, and others."""
        return {"last": self.model(state)}

    def residual(self, state: S) -> float:
        """Return a squared fixed-point residual that is 0 at a solution."""
        return state.residual

    def dump(self, state: S) -> Arrays:
        """Return the state as arrays for a checkpoint: its fields, by name."""
        return {name: np.asarray(getattr(state, name)) for name in _saved(state)}

    def load(self, arrays: Arrays) -> S:
        """Return the state of ``dump``; its arrays may be written into, and large ones are kept.

        Raises
        ------
        RunError
            If these are the arrays of another state.
        """
        names = _saved(self.state)
        if sorted(arrays) != sorted(names):
            raise RunError(
                f"resume: the checkpoint's state has {', '.join(sorted(arrays)) or 'nothing'}, "
                f"{self.name} of this version {', '.join(sorted(names))}"
            )
        values: dict[str, Any] = {
            name: (array if array.nbytes > mapped.LIMIT else array.copy())
            if array.ndim
            else array.item()
            for name, array in arrays.items()
        }
        state: Any = self.state(**values)
        return self.completed(state)

    # ------------------------------------------------------------------ a round

    def broadcast(self, state: S, turn: Turn) -> tuple[S, Arrays]:
        """Begin a round: return the state and the arrays all participants are sent.

        By default the run's result so far, as ``x``.
        """
        return state, {"x": getattr(state, self.last)}

    def told(self, state: S, arrays: Arrays) -> S:
        """Return the state of a round whose broadcast decodes to these arrays, where it is coded.

        Once more where the round is tried again.
        """
        for name, array in arrays.items():
            setattr(state, self.tells[name], array)
        return state

    def measures(self, state: S) -> dict[str, float]:
        """Return what else is measured of the state after a round, by kebab-case name."""
        return {}

    def notes(self, state: S, silent: Sequence[str]) -> tuple[str, ...]:
        """Return what else the history says of a round that has ended.

        ``silent`` are the agents of the roster whose uploads are not in it, in order.
        """
        return ()

    @property
    def recovery_note(self) -> str:
        """What an agent loses that is sent its state; mostly nothing."""
        return ""

    def own(self, state: S, position: int, turn: Turn) -> Arrays:
        """Return what one participant is sent besides, in a message of its own; mostly nothing."""
        return {}


STEP_KEYS = ("step-size", "step-size-base")
"""Keys of the length of local steps."""


def step_keys(half: ServerHalf[Any]) -> list[str]:
    """Return the run-config keys of the length of an algorithm's local steps."""
    return [key for key in STEP_KEYS if key in half.settings()]


class FoldingHalf(ServerHalf[S]):
    """A server half that sees every agent's upload."""

    stacks: ClassVar[bool] = False
    """Whether ``accept`` and ``recovery`` take several agents at once: an array of positions, and
    an upload that is `Rows`. Row by row what they say of one, they then use `present`, `checked`
    and `agreed`."""

    def decoded(self, state: S, position: int, sent: Arrays, upload: Arrays) -> Arrays:
        """Return an upload with its coded arrays (`Half.sends`) decoded, before ``accept``.

        ``sent`` is what the agent was broadcast. An array that was not worth coding is as it was.

        Raises
        ------
        WireError
            If a code is not one of as many numbers as the model has, or there are more codes than
            the agent's half makes.
        """
        coded = {
            name: array
            for name, array in upload.items()
            if array.dtype == np.uint8 and name != ENCODED
        }
        if not coded:
            return upload
        if len(coded) > max(1, len(self.agent.sends)):  # a few bytes may stand for a whole model
            raise WireError(f"upload has {len(coded)} coded arrays")
        start = getattr(state, self.last)
        reference = self.agent.reference(self.recovery(state, position) or {}, sent)
        return {
            **upload,
            **{
                name: decode_values(array, start.size, start.dtype, reference.get(name))
                for name, array in coded.items()
            },
        }

    @abstractmethod
    def accept(self, state: S, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check one upload; return what is folded and the digest both sides must agree on.

        Raises
        ------
        UploadError
            With a named reason (shape, dtype, numbers that are not finite).
        """

    @abstractmethod
    def fold(self, state: S, uploads: Mapping[int, Arrays], turn: Turn) -> S:
        """End a round with the accepted uploads of the participants, in order of position."""


class GroupSum(NamedTuple):
    """The sum of the uploads of a group of agents.

    Attributes
    ----------
    arrays : dict of str to float64 array
        The sums, by the names of ``SummingHalf.summands``; exact sums of numbers that the agents
        rounded to multiples of 2^-40.
    positions : tuple of int
        Whose uploads were added.
    """

    arrays: Arrays
    positions: tuple[int, ...]


class SummingHalf(ServerHalf[S]):
    """A server half that needs only sums of uploads, so that it can do with masked ones.

    In such a run ``recovery`` is asked for agents that begin (tag 0) only, and what the agents
    upload is not compared with anything.
    """

    restarts: ClassVar[bool] = False
    """Whether an agent that lost its state may begin again; if not it is out of the run."""

    @property
    def secure_sum(self) -> bool:
        """Whether this run's uploads are masked."""
        return True

    @abstractmethod
    def summands(self, state: S) -> Shapes:
        """Return names and shapes of the arrays that every agent uploads, in order."""

    @abstractmethod
    def fold_sums(self, state: S, sums: Mapping[str, GroupSum], turn: Turn) -> S:
        """End a round with the sums by group; a group that came to none is not there."""


def summing(half: ServerHalf[S]) -> SummingHalf[S] | None:
    """Return the half as one of a secure sum, None where uploads are not masked."""
    return half if isinstance(half, SummingHalf) and half.secure_sum else None


class GroupedHalf(ServerHalf[S]):
    """A server half whose agents belong to units that are sent different models."""

    @abstractmethod
    def place(self, state: S, position: int, name: str, unit: str) -> S:
        """Return the state with an agent in its unit; called once for every agent.

        ``unit`` is what the agent's node config says, empty where it says nothing.

        Raises
        ------
        ConfigError
            If there is no such unit.
        """

    @abstractmethod
    def group(self, state: S, position: int) -> str:
        """Return the unit of an agent."""

    @abstractmethod
    def broadcast_to(self, state: S, group: str) -> Arrays:
        """Return what the agents of a unit are sent beside the arrays of ``broadcast``."""


def grouped(half: ServerHalf[S]) -> GroupedHalf[S] | None:
    """Return the half as one that divides its agents into units, None where it does not."""
    return half if isinstance(half, GroupedHalf) else None


# ---------------------------------------------------------------------- uploads


class Rows(dict[str, Vector]):
    """The arrays of several agents' uploads, a row (k, ...) each."""


class Lazy(Mapping[int, Arrays]):
    """Arrays by position, each made when it is asked for: large ones one after the other."""

    def __init__(self, makers: Mapping[int, Callable[[], Arrays]]) -> None:
        self._makers = makers

    def __len__(self) -> int:
        return len(self._makers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._makers)

    def __getitem__(self, position: int) -> Arrays:
        release()
        return self._makers[position]()


class Uploads(Mapping[int, Arrays]):
    """Accepted uploads as rows: a mapping of every position to its own, in order.

    Attributes
    ----------
    positions : array (k,) of int
        Increasing.
    rows : dict of str to array (k, d)
    """

    def __init__(self, positions: NDArray[np.intp], rows: Arrays) -> None:
        self.positions, self.rows = positions, rows

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[int]:
        return iter(self.positions.tolist())

    def __getitem__(self, position: int) -> Arrays:
        row = int(np.searchsorted(self.positions, position))
        if row == len(self.positions) or self.positions[row] != position:
            raise KeyError(position)
        return {name: array[row] for name, array in self.rows.items()}


def agreed(upload: Arrays, vector: Vector) -> Any:
    """Return the digest of what both sides must agree on, of `Rows` one each."""
    return digests(vector) if isinstance(upload, Rows) else digest(vector)


def next_row(
    name: str, upload: Arrays, follow: Follow, row: Vector, sent: Vector, told: Vector
) -> tuple[Arrays, Any]:
    """Return what follows of an agent's row of a table under its name, and the row's digest.

    A large row is looked at in parts and not kept: `advance` makes it once more, in its place.

    Raises
    ------
    NotFiniteError
        If a number is not finite, as where one of the upload is not.
    """
    if isinstance(upload, Rows) or told.nbytes <= LARGE:
        new = follow(row, sent, told)
        require_finite(new)
        return {name: new}, agreed(upload, new)

    def made() -> Iterator[Vector]:
        for part in parts(told.size):
            new = follow(row[part], sent[part], told[part])
            require_finite(new)
            yield new

    return {}, digest_of(made())


def advance(
    table: Vector,
    name: str,
    uploads: Mapping[int, Arrays],
    follow: Follow,
    sent: str,
    told: Vector,
) -> None:
    """Write what follows of the uploads' arrays ``sent`` into a table (N, d), as `next_row` has it.

    ``told`` is what the agents were broadcast.
    """
    if isinstance(uploads, Uploads):
        put(table, uploads, name)
        return
    for position, arrays in uploads.items():
        row = table[position]
        if name in arrays:
            row[...] = arrays[name]
            continue
        for part in parts(told.size):
            row[part] = follow(row[part], arrays[sent][part], told[part])


def present(upload: Arrays, name: str, like: Vector) -> Vector:
    """Return one array of an upload, of the shape and dtype of ``like`` (raises `UploadError`)."""
    array, shape = upload.get(name), like.shape
    if isinstance(upload, Rows) and array is not None:
        shape = (len(array), *shape)
    if array is None or array.shape != shape or array.dtype != like.dtype:
        said = f"no {name}" if array is None else f"{name} of shape {array.shape} {array.dtype}"
        raise UploadError(f"upload has {said}, expected {like.shape} {like.dtype}")
    return array


def present_sparse(upload: Arrays, like: Vector, reference: Vector | None = None) -> SparseVector:
    """Return the sparse vector of an upload, of the length and dtype of ``like`` (d,).

    Its numbers may be coded, as differences to ``reference`` (d,); it may be a view on the message.

    Raises
    ------
    UploadError, WireError
        If it is not one; that its numbers are finite is for `require_finite`.
    """
    if ENCODED not in upload:
        raise UploadError(
            f"upload holds {', '.join(upload) or 'nothing'}, expected a sparse vector"
        )
    vector = decode(upload[ENCODED], max_dim=like.size, reference=reference)
    if vector.dim != like.size or vector.values.dtype != like.dtype:
        raise UploadError(
            f"upload is of length {vector.dim} in {vector.values.dtype}, expected "
            f"{like.size} in {like.dtype}"
        )
    return vector


def require_finite(array: Vector) -> None:
    """Raise `NotFiniteError` for numbers that are not finite, or were too large to compute with."""
    if not finite(array):
        raise NotFiniteError("upload holds numbers that are not finite, or too large")


def checked(upload: Arrays, name: str, like: Vector) -> Vector:
    """Return one array of an upload, of the shape and dtype of ``like`` and finite.

    Raises
    ------
    UploadError
    """
    array = present(upload, name, like)
    require_finite(array)
    return array


def mean_of(uploads: Mapping[int, Arrays], name: str, like: Vector) -> Vector:
    """Return the mean of one array over the uploads, in order, one at a time."""
    total: Vector
    if isinstance(uploads, Uploads) and like.size > 1:  # numpy adds single numbers in pairs
        total = np.add.reduce(uploads.rows[name], axis=0, initial=0)
    else:
        total = np.zeros_like(like)
        for arrays in uploads.values():
            total += arrays[name]
    total /= total.dtype.type(len(uploads))
    return total


def put(table: Vector, uploads: Mapping[int, Arrays], name: str) -> None:
    """Write one array of every upload into its agent's row of a table (N, d)."""
    if isinstance(uploads, Uploads):
        table[uploads.positions] = uploads.rows[name]
        return
    for position, arrays in uploads.items():
        table[position] = arrays[name]


def mean_row(table: Vector) -> Vector:
    """Return the mean over the agents of a table (N, d)."""
    mean = column_sums(table)
    mean /= table.dtype.type(len(table))
    return mean


def rows_of(table: Vector, uploads: Mapping[int, Arrays]) -> Mapping[int, Arrays]:
    """Return the rows of a table (N, d) of those who uploaded, by position, as ``row``."""
    if isinstance(uploads, Uploads):
        return Uploads(uploads.positions, {"row": table[uploads.positions]})

    def row(position: int) -> Arrays:
        return {"row": table[position]}

    return Lazy({position: partial(row, position) for position in uploads})


def apart(uploads: Mapping[int, Arrays], center: Vector, name: str = "x") -> float:
    """Return the mean over the uploads of ||x_i - center||^2."""
    return sum(squared_gaps(uploads, center, name)) / len(uploads)


def squared_gaps(uploads: Mapping[int, Arrays], center: Vector, name: str = "x") -> list[float]:
    """Return ||x_i - center||^2 of every upload, in order."""
    if isinstance(uploads, Uploads):
        gaps = uploads.rows[name] - center
        squares: list[float] = np.matmul(gaps[:, None], gaps[:, :, None])[:, 0, 0].tolist()
        return squares
    return [squared_gap(arrays[name], center) for arrays in uploads.values()]


def squared_gap(x: Vector, y: Vector, out: Vector | None = None) -> float:
    """Return ||x - y||^2, computed in ``out`` where that is given."""
    gap = np.subtract(x, y, out=out)
    return float(gap.dot(gap))
