"""Privacy-critical: an agent's state, the last two rounds, in Flower's context and in a file.

Two states are kept because the agent cannot know whether its reply arrived: every message names
the round the server accepted last, and the agent goes on from exactly that one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from privet.core import ConfigError, WireError, files
from privet.core.files import read_npz, state_path, write_npz
from privet.kernel import Told
from privet.wire import pack, unpack
from privet.wire.flower_internals import held_by
from privet.wire.records import config_record

STATE_RECORD = "privet.state"
IN_FILE = "in-file"
"""The latest round of the state in the node's file, in a record that has no states of its own."""
PRIVATE_RECORD = "privet.private"
"""Set in the context's state of a node that was enrolled in a private run."""


class AgentState(NamedTuple):
    """States of one experiment by round, packed, oldest first, and the agent's ledger text."""

    experiment: str = ""
    rounds: tuple[int, ...] = ()
    states: tuple[bytes, ...] = ()
    ledger: str = ""
    fully_charged: bool = False
    """Whether every round since the agent began was charged and noised by the system."""
    private: bool = False
    """Whether it has held an account of another experiment: what is private stays so."""

    def of(self, experiment: str) -> AgentState:
        """Return what of the state belongs to an experiment.

        An account is stated to its own coordinator alone, and what another one has sent of it ends
        with that run: the node's own ledger file adds up what all runs together spend.
        """
        if experiment == self.experiment:
            return self
        return AgentState(experiment, private=self.private or bool(self.ledger))

    def at(self, experiment: str, round_: int) -> dict[str, NDArray[Any]] | None:
        """Return the state after a round, None if it is not held."""
        if experiment != self.experiment or round_ not in self.rounds:
            return None
        return unpack(self.states[self.rounds.index(round_)])

    def only(self, experiment: str, round_: int) -> AgentState:
        """Return the state reduced to one round."""
        if experiment != self.experiment or round_ not in self.rounds:
            return self._replace(rounds=(), states=())
        return self._replace(rounds=(round_,), states=(self.states[self.rounds.index(round_)],))

    def follow(
        self,
        experiment: str,
        base_round: int,
        base: Mapping[str, NDArray[Any]] | bytes,
        round_: int,
        new: Mapping[str, NDArray[Any]],
        ledger: str,
        fully_charged: bool,
    ) -> AgentState:
        """Return the state that holds the base and the new round.

        ``fully_charged`` applies to both. ``base`` is packed where it was sent: it then replaces
        the state that is held of its round.
        """
        if isinstance(base, bytes):
            kept = base
        elif experiment == self.experiment and base_round in self.rounds:
            kept = self.states[self.rounds.index(base_round)]
        else:
            kept = pack(base)
        return AgentState(
            *(experiment, (base_round, round_), (kept, pack(new)), ledger, fully_charged),
            self.of(experiment).private,
        )

    def to_members(self) -> dict[str, NDArray[Any]]:
        """Return the state as named arrays, for a file or a checkpoint."""
        tag = {
            "experiment": self.experiment,
            "rounds": self.rounds,
            "ledger": self.ledger,
            "covered": self.fully_charged,
            **({"private": True} if self.private else {}),
        }
        members: dict[str, NDArray[Any]] = {"tag": np.frombuffer(json.dumps(tag).encode(), "u1")}
        for round_, blob in zip(self.rounds, self.states, strict=True):
            members[f"round-{round_}"] = np.frombuffer(blob, "u1")
        return members

    @classmethod
    def from_members(cls, members: Mapping[str, NDArray[Any]]) -> AgentState:
        """Return the state of ``to_members`` (raises ``KeyError`` or ``ValueError``)."""
        tag = json.loads(members["tag"].tobytes())
        rounds = tuple(int(round_) for round_ in tag["rounds"])
        states = tuple(members[f"round-{round_}"].tobytes() for round_ in rounds)
        marks = tag.get("covered") is True, tag.get("private") is True
        return cls(str(tag["experiment"]), rounds, states, str(tag["ledger"]), *marks)

    def to_record(self) -> ConfigRecord:
        """Return the state as a record for Flower's context."""
        rounds = ",".join(map(str, self.rounds))
        mark = "c" if self.fully_charged else "u"
        mark = mark.upper() if self.private else mark
        about = f"{mark}{rounds}:{len(self.experiment)}:{self.experiment}{self.ledger}"
        return config_record({"about": about, "states": list(self.states)})

    @classmethod
    def from_record(cls, record: ConfigRecord) -> AgentState:
        """Return the state of ``to_record``."""
        held = held_by(record)
        about = str(held["about"])
        rounds, _, rest = about[1:].partition(":")
        length, _, rest = rest.partition(":")
        end = int(length)
        return cls(
            rest[:end],
            tuple(int(round_) for round_ in rounds.split(",") if round_),
            tuple(held["states"]),
            rest[end:],
            about[:1] in "cC",
            about[:1].isupper(),
        )


def read_state(context: Context) -> AgentState:
    """Return the agent's state from the context or from ``state-path``, else an empty one.

    Of a large state the context has the account alone, and of which round the file's must be: an
    older one, or that of another run, is not gone on from.

    Raises
    ------
    WireError
        If the file is damaged.
    """
    record: Any = held_by(context.state).get(STATE_RECORD)
    if record is None:
        return _in_file(context)
    held = AgentState.from_record(record)
    if not (latest := int(record.get(IN_FILE, 0))):
        return held
    found = _in_file(context)
    usable = found.experiment == held.experiment and max(found.rounds, default=0) >= latest
    return found if usable else held


def _in_file(context: Context) -> AgentState:
    """Return the state in the file ``state-path`` (raises ``WireError`` where it is damaged)."""
    path = state_path(context.node_config)
    if path is None or not path.exists():
        return AgentState()
    try:
        return AgentState.from_members(read_npz(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WireError(
            f"state-path {path} is damaged ({type(error).__name__})", Told.STATE
        ) from None


def write_state(context: Context, state: AgentState) -> None:
    """Store the state, in the file first: a reply is never sent before its state is safe."""
    path = state_path(context.node_config)
    if path is not None:
        write_npz(path, state.to_members())
    keep_state(context, state)


def require_room(context: Context, size: int) -> None:
    """Refuse a task whose state, of about so many bytes, cannot be written when it is done.

    Called before the task is charged: an upload whose state is not safe is not sent.

    Raises
    ------
    ConfigError
    """
    path = state_path(context.node_config)
    if path is None:
        return
    try:
        files.require_room(path, size)
    except OSError as error:
        raise ConfigError(
            f"state-path {path} cannot be written: {error.strerror}: nothing is computed or "
            "charged until it can",
            Told.STATE,
        ) from None


LARGE = 1 << 20
"""Size in bytes above which older states are dropped once a round is charged, and a broadcast is
dropped once it is decoded."""


def keep_state(context: Context, state: AgentState) -> None:
    """Store the state in the context alone; a large one that is in the node's file stays there.

    Flower moves the context from the SuperNode to the process of a message and back.
    """
    large = sum(map(len, state.states)) > LARGE
    in_file = large and state_path(context.node_config) is not None
    record = (state._replace(rounds=(), states=()) if in_file else state).to_record()
    if in_file:
        record[IN_FILE] = max(state.rounds)
    held_by(context.state)[STATE_RECORD] = record
