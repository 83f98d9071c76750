"""`ServerHalf`: an algorithm's mathematics on the server, derived from its `ServerMethod`.

The author of an algorithm writes the `ServerMethod` (method.py); the class here adds what follows
from it: settings, tables, checkpoints. A run calls it in each round (run.py has all six steps):

- ``admit`` inserts a newly enrolled agent into the state;
- ``broadcast`` begins the round and returns the arrays for all participants,
  ``per_agent_broadcast`` those for a single one;
- ``recovery_of`` returns the state for an agent whose node does not hold it;
- ``decoded`` and ``accept`` check an upload (or a block of uploads), and return it with the state
  that its agents hold from now on;
- ``fold`` ends the round: ``mirror`` writes the agents' states into the tables, and ``fold_sums``
  computes the next model from sums of the uploads. A secure sum calls ``fold_sums`` alone.

A half whose agents belong to units is a `GroupedHalf`: each unit is sent a broadcast of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privet.agents.half import Half
from privet.agents.inputs import parts, starting_rows
from privet.agents.loop_defaults import NO_LOOPS, Loops
from privet.agents.terms import PrivacyTerms
from privet.agents.upload_bounds import norm_of
from privet.core import RunError, mapped
from privet.core.key import keys_of, owned, read
from privet.core.mapped import blocks, column_sums, empty, repeated, written
from privet.data.agreement import Agreement
from privet.kernel import Facts
from privet.wire import Settings
from privet.wire.payload import ENCODED

from .method import UNSAVED, Arrays, HalfState, Positions, S, ServerMethod, Turn, Vector
from .table_rows import PLACES, ROWS, filled, is_large, some_rows, tables_of_rows
from .uploads import LARGE, Block, ClearSums, Uploads, decoded, followed, in_part, sum_in_order


def _saved(state: HalfState | type[HalfState]) -> list[str]:
    return [entry.name for entry in fields(state) if not entry.metadata.get("unsaved")]


@dataclass(frozen=True)
class ServerHalf(ServerMethod[S]):
    """The mathematics of a server, without Flower.

    `ServerMethod` declares the methods that an algorithm's author writes. The others are derived
    from them here.

    Parameters
    ----------
    agent : Half
        The agents' half: a frozen dataclass whose fields are the run-config keys that travel.
    terms : PrivacyTerms
        The privacy terms; they are sent to the agents as well if the algorithm has a private form.
    folder : Path, optional
        The directory of tables that are too large for memory (`privet.core.mapped`).
    """

    terms: PrivacyTerms = field(default=PrivacyTerms(), kw_only=True)
    folder: Path | None = field(default=None, kw_only=True, repr=False, compare=False)

    @classmethod
    def from_config(cls, agent: Half, config: Mapping[str, Any], **parts: Any) -> Self:
        """Return the half of a resolved run config: its keys, the privacy terms and its parts."""
        own_keys = {name: owned(config, key, cls) for name, key in keys_of(cls).items()}
        return cls(agent=agent, terms=read(PrivacyTerms, config), **own_keys, **parts)

    @property
    def name(self) -> str:
        """Protocol name, as in the registry."""
        return self.agent.name

    @property
    def version(self) -> int:
        """Protocol version; both halves must agree."""
        return self.agent.version

    @property
    def masked(self) -> bool:
        """Whether this run's uploads are masked, so that the server sees sums of them alone.

        By default the agents' ``secure-sum``, which needs a half that is folded by ``fold_sums``.
        """
        return self.agent.secure_sum

    @property
    def steps_by_mean(self) -> bool:
        """Whether the model moves by `Half.model_step` times the mean move, and by nothing else."""
        return False

    @property
    def noise_key(self) -> str:
        """The run-config key of the noise, empty where the algorithm has no private form."""
        return self.agent.noise_key

    def next_round(self, number: int, last: int) -> int:
        """Return the round to play after ``number - 1``: a later one if others are ahead."""
        return number

    no_server_optimizer: ClassVar[str] = "what its server computes is no step of a model"
    """Why no optimizer of the server may take its step; empty where it may."""

    no_adaptive_step: ClassVar[str] = ""
    """Why adam and yogi may not, which rescale every coordinate; empty where they may."""

    no_robust: ClassVar[str] = "no fold of it is a function of moves that may be changed one by one"
    """Why no robust fold may change its uploads (`privet.rounds.robust`); empty where it may."""

    def guarded(self) -> ServerHalf[Any]:
        """Return the half of a run whose uploads are folded by a robust rule.

        Raises
        ------
        ConfigError
            If its settings do not allow that.
        """
        return self

    def ascent(self, before: Vector, state: S, turn: Turn) -> Vector:
        """Return what adam and yogi rescale after a round (d,): by default the model's step.

        It must be 0 where the method rests, and computed from the uploads alone: it is then
        post-processing of what was released, and costs no privacy.
        """
        step: Vector = getattr(state, self.last) - before
        return step

    # ------------------------------------------------------------------ the agents' settings

    def settings(self) -> Settings:
        """Return the parameters that travel to the agents: their half's fields, by key."""
        return self._settings

    @cached_property
    def _settings(self) -> Settings:
        agent_keys = {
            entry.name.replace("_", "-"): getattr(self.agent, entry.name)
            for entry in fields(self.agent)
        }
        agent_keys.pop("secure-sum", None)
        masked = {"secure-sum": True} if self.masked else {}
        terms = self.terms.settings() if self.noise_key else {}
        return {**terms, **agent_keys, **masked}

    @cached_property
    def accounts_as_asked(self) -> dict[tuple[str, str, int], str]:
        """By account, public numbers and round, the account with the release of that round."""
        return {}

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
        """The half's settings objects, whose fields are run-config keys as well, by field."""
        held = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {n: each for n, each in held.items() if is_dataclass(each) and keys_of(type(each))}

    def informed(self, encoding: Agreement) -> ServerHalf[Any]:
        """Return the half for agents whose columns mean what they have agreed on.

        Raises
        ------
        ConfigError
            If it needs to know more of them.
        """
        return self

    def delayed(self, facts: Sequence[Facts]) -> Self:
        """Return the half for uploads of models of different ages, with open settings chosen.

        Parameters
        ----------
        facts : sequence of Facts
            The public numbers of the agents that state any.

        Raises
        ------
        ConfigError
            If its settings do not allow that.
        """
        return self

    def with_moduli(self, facts: Sequence[Facts]) -> ServerHalf[Any]:
        """Return the half for agents of these facts in a run that waits for its agents.

        It may be of another class, which ``variant`` returns of its settings after a resume.
        """
        return self

    def variant(self) -> ServerHalf[Any]:
        """Return the half that plays the present settings: by default this one."""
        return self

    def without_moduli(self, loops: Loops = NO_LOOPS) -> Self:
        """Return the half with defaults for problems of unknown moduli in its open settings.

        They follow from the step of the agents' training loops, where these state it.
        """
        others = self.agent.around_loops(loops) if loops.step else self.agent.without_moduli
        return self.with_settings(others) if others else self

    def weakness(self, loops: Loops) -> str:
        """Return where this method is known to be weak on problems of unknown moduli, or nothing.

        ``loops.step`` is 0 where no training loop states its step.
        """
        return ""

    # ------------------------------------------------------------------ the state

    def tables(self, start: Vector, count: int) -> dict[str, Any]:
        """Return the tables (N, d) before round 1, by name; without rows if uploads are masked."""
        tables = {}
        for name, row in self.rows(start).items():
            tables[name] = repeated(row, 0 if self.masked else count, self.folder)
        return tables

    def initialise(self, start: Vector, count: int) -> S:
        """Return the state before round 1, all agents at the starting model (d,).

        By default the start, and the tables.
        """
        made: Any = self.state
        return self.completed(made(start, **self.tables(start, count)))

    def admit(self, state: S, position: int, start: Vector) -> S:
        """Return the state with a new agent inserted at this position."""
        for name, row in self._mirrored(start).items():
            table = getattr(state, name)
            longer = empty((len(table) + 1, *table.shape[1:]), table.dtype, self.folder)
            others = np.delete(np.arange(len(longer)), position)
            for part in blocks(table):
                longer[others[part]] = table[part]
            longer[position] = row
            setattr(state, name, longer)
        return self.completed(state)

    def renew(self, state: S, position: int, start: Vector) -> S:
        """Return the state with this agent's row as ``admit`` inserts it."""
        for name, row in self._mirrored(start).items():
            getattr(state, name)[position] = row
        return self.completed(state)

    def _mirrored(self, start: Vector) -> Arrays:
        return {} if self.masked else self.rows(start)

    def recovery(self, state: S, positions: Positions) -> Arrays | None:
        """Return the states that some agents need to continue; None if only they hold them.

        By default these are their rows of every table, by the table's name. An array that they have
        in common may be given once, of shape (d,).
        """
        return {name: getattr(state, name)[positions] for name in self._tables}

    @cached_property
    def _tables(self) -> tuple[str, ...]:
        return tuple(self.rows(np.empty(0)))

    def recovery_of(self, state: S, position: int, start: Vector) -> Arrays | None:
        """Return the state that one agent is sent to continue or to begin; None if only it has it.

        In a masked run this is the starting row: the server has no other.
        """
        if self.masked:
            return self.rows(start) or None
        held = self.recovery(state, slice(position, position + 1))
        if held is None:
            return None
        return starting_rows(held, 0)

    def summed(self, state: S) -> Sequence[int]:
        """Return the positions of the agents of the last sum, of a method with `Half.repeats`."""
        return ()

    def model(self, state: S) -> Vector:
        """Return the model (d,) that is the run's result."""
        model: Vector = getattr(state, self.last)
        return model

    def residual(self, state: S) -> float:
        """Return a squared fixed-point residual that is 0 at a solution."""
        return state.residual

    def dump(self, state: S, changed: Positions | None = None) -> Arrays:
        """Return the state as arrays for a checkpoint: its fields, by name.

        Of a large table of which most rows are zeros, as those of agents that never took part, the
        others alone are there (`privet.rounds.table_rows`). With ``changed``, places of agents,
        their rows alone are there of every large table of agents' rows.
        """
        arrays: dict[str, Any] = {}
        of_agents = self._mirrored(np.empty(0))
        for name in _saved(state):
            array = np.asarray(getattr(state, name))
            if is_large(array):
                if changed is not None and name in of_agents:
                    arrays |= some_rows(name, array, np.asarray(changed))
                    continue
                places = written(array)
                if 2 * len(places) < len(array):
                    arrays |= some_rows(name, array, places)
                    continue
            arrays[name] = array
        return arrays

    def load(self, arrays: Arrays) -> S:
        """Return the state of ``dump``; arrays are writable copies, but large ones are not copied.

        Raises
        ------
        RunError
            If these are the arrays of another state.
        """
        names, some = _saved(self.state), tables_of_rows(arrays)
        values: dict[str, Any] = {name: filled(arrays, name, self.folder) for name in some}
        for name, array in arrays.items():
            if not array.ndim:
                values[name] = array.item()
            elif not any(name in (table + ROWS, table + PLACES) for table in some):
                values[name] = array if array.nbytes > mapped.LIMIT else array.copy()
        if sorted(values) != sorted(names):
            raise RunError(
                f"resume: the checkpoint's state has {', '.join(sorted(values)) or 'nothing'}, "
                f"{self.name} of this version {', '.join(sorted(names))}"
            )
        state: Any = self.state(**values)
        return self.completed(state)

    def resumed(self, state: S, asked: Sequence[int]) -> S:
        """Return a state with which a private run is resumed, or ends while it folds uploads.

        ``asked`` are the rounds after the state's that agents were asked for, once for each
        request: what the server released in them is not known.
        """
        return state

    # ------------------------------------------------------------------ a round

    def accept(self, state: S, block: Block) -> tuple[Block, NDArray[np.uint64]]:
        """Check uploads; return them with the states their agents hold from now on, and digests.

        By default `Half.follow` computes these states.

        Raises
        ------
        UploadError
            With a named reason (shape, dtype, numbers that are not finite).
        """
        held = self.recovery(state, block.where) or {}
        shapes, like = self.summands(state), getattr(state, self.last)
        return followed(self.agent, held, block, shapes, like)

    def decoded(self, state: S, position: int, sent: Arrays, upload: Arrays) -> Arrays:
        """Return one agent's upload with its coded arrays decoded, before ``accept``.

        ``sent`` are the arrays that were broadcast to the agent.

        Raises
        ------
        WireError
            If a code is not one of as many numbers as the model has, or there are too many.
        """
        if ENCODED in upload:  # `uploads.followed` decodes a sparse one
            return upload
        like = getattr(state, self.last)
        held = self.recovery_of(state, position, like) or {}
        near = self.agent.reference(held, sent)
        return dict(decoded(upload, near, like, len(self.summands(state))))

    def upload_bound(
        self, agent: Half, facts: Facts, held: Arrays, sent: Arrays, round_: int
    ) -> float:
        """Return `Half.upload_bound` of an agent that computes as ``agent``, coded or not.

        ``held`` is the agent's state as the server knows it, ``sent`` what was broadcast to it.
        """
        most = agent.upload_bound(facts, held, sent, round_)
        if not agent.codes:
            return most
        # Half a step of the code is less than three times the root mean square of the difference
        # to what both sides hold, and a step that follows the noise is half its deviation.
        near = sum(map(norm_of, agent.reference(held, sent).values()))
        return near + 4.0 * (most + near)

    def mirror(self, state: S, uploads: Uploads) -> None:
        """Write the states that the agents hold after these uploads into the tables."""
        dim = getattr(state, self.last).size
        tables = {name: getattr(state, name) for name in self._mirrored(np.empty(0))}
        for block in uploads:
            if block.state is None:
                self._mirror_in_parts(state, block, tables, dim)
                continue
            for name, rows in {**block.upload, **block.state}.items():
                if name in tables:
                    tables[name][block.where] = rows

    def _mirror_in_parts(
        self, state: S, block: Block, tables: Mapping[str, Vector], dim: int
    ) -> None:
        held = self.recovery(state, block.where) or {}
        for part in parts(dim):
            upload = in_part(block.upload, part, dim)
            before = in_part(held, part, dim), in_part(block.sent, part, dim)
            for name, rows in {**upload, **self.agent.follow(*before, upload)}.items():
                if name in tables:
                    tables[name][block.where, part] = rows

    def fold(self, state: S, uploads: Uploads, turn: Turn) -> S:
        """End a round with the accepted uploads of the participants.

        By default ``mirror`` updates the tables, and ``fold_sums`` the rest of the state.
        """
        self.mirror(state, uploads)
        return self.fold_sums(state, ClearSums(uploads), turn)


_ROWS_AT_ONCE = 1 << 12

STEP_KEYS = ("step-size", "step-size-base")
"""Keys of the length of local steps."""


def step_keys(half: ServerHalf[Any]) -> list[str]:
    """Return the run-config keys of the length of an algorithm's steps along gradients."""
    own = {key.name for key in keys_of(type(half)).values()}
    return [key for key in STEP_KEYS if key in own or key in half.settings()]


class GroupedHalf(ServerHalf[S]):
    """A server half whose agents belong to units that are sent different models."""

    @abstractmethod
    def place(self, state: S, position: int, name: str, unit: str) -> S:
        """Return the state with an agent in its unit; called once for every agent.

        ``unit`` is the one in the agent's node config, empty if that has none.

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
        """Return the arrays for the agents of a unit, in addition to those of ``broadcast``."""


def grouped(half: ServerHalf[S]) -> GroupedHalf[S] | None:
    """Return the half if it divides its agents into units, else None."""
    return half if isinstance(half, GroupedHalf) else None


def mean_rows(table: Vector, positions: Sequence[int]) -> Vector:
    """Return the mean of some rows of a table (N, d), added in this order, one at a time."""
    if table[:1].nbytes > LARGE:  # views
        rows = (table[position : position + 1] for position in positions)
        total = sum_in_order(rows if table.nbytes > mapped.LIMIT else list(rows), table[0])
    else:
        starts = range(0, len(positions), _ROWS_AT_ONCE)
        some = (table[list(positions[first : first + _ROWS_AT_ONCE])] for first in starts)
        total = sum_in_order(some, table[0])
    total /= total.dtype.type(len(positions))
    return total


def mean_row(table: Vector) -> Vector:
    """Return the mean over the agents of a table (N, d)."""
    mean = column_sums(table)
    mean /= table.dtype.type(len(table))
    return mean


__all__ = [
    "UNSAVED",
    "Arrays",
    "GroupedHalf",
    "HalfState",
    "Positions",
    "ServerHalf",
    "ServerMethod",
    "Turn",
    "Vector",
    "grouped",
    "mean_row",
    "mean_rows",
    "step_keys",
]
