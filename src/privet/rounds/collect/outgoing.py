"""The outgoing side of a round: a broadcast for all or for a unit, and each agent's message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType

from privet.agents.terms import ARRIVAL_TIMES, ENCODING, MEAN_EXAMPLES, POOLED_WEIGHT
from privet.core import RunError, mapped
from privet.wire import AGENT_RECORD, RECORD, pack
from privet.wire.contract import agent_record, shared_record
from privet.wire.payload import opened
from privet.wire.records import record_dict

from ..half import Arrays, ServerHalf, Turn, grouped
from ..options import RunOptions
from ..session import Session

ALL = ""
"""The one group of agents where the algorithm does not divide them."""


@dataclass
class Outgoing:
    """The broadcast of a round, and the messages that carry it.

    Attributes
    ----------
    half, options, session
        The run's.
    turn : Turn
        The round's number and seed.
    chosen : tuple of str
        The agents chosen, in folding order.
    settings : str
        The agents' settings, encoded.
    beside : dict of str to ConfigRecord
        Records for the user's own handlers, the same for all agents.
    arrays : dict of str to array
        The arrays that all agents are sent.
    read : dict of str to array
        The same as agents read them: an encoded vector is decoded.
    shared : dict of str to ConfigRecord
        The encoded broadcast, by group.
    per_agent : dict of str to arrays
        The arrays that single agents are sent in addition, by name; for most algorithms empty.
    per_group : dict of str to arrays
        Those of the agents of a group, where agents have groups.
    messages : dict of str to Message
        The last message to each agent.
    states : dict of str to callable
        Factories of the records with agents' states, if these are too large to be held together:
        a record is in its message only while that is pushed.
    bytes : int
        The bytes of all messages so far.
    notes : list of str
        For the history: agents that were sent their state, or start from scratch.
    """

    half: ServerHalf[Any]
    options: RunOptions
    session: Session
    turn: Turn
    chosen: tuple[str, ...]
    settings: str
    beside: Mapping[str, ConfigRecord] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    read: Arrays = field(default_factory=dict)
    shared: dict[str, ConfigRecord] = field(default_factory=dict)
    per_agent: dict[str, Arrays] = field(default_factory=dict)
    per_group: dict[str, Arrays] = field(default_factory=dict)
    messages: dict[str, Message] = field(default_factory=dict)
    states: dict[str, Callable[[], ConfigRecord]] = field(default_factory=dict)
    bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def broadcast(self) -> None:
        """Have the half begin the round, and encode the arrays for the agents."""
        half, session = self.half, self.session
        session.state, arrays = half.broadcast(session.state, self.turn)
        self.arrays = {**arrays, **session.buffers_sent}
        self.read = opened(self.arrays, session.start.size)
        units, position = grouped(half), session.roster.positions
        if units is not None:
            groups = {units.group(session.state, position[name]) for name in self.chosen}
            self.per_group = {
                group: units.broadcast_to(session.state, group) for group in sorted(groups)
            }
            self.shared = {
                group: self._record({**self.arrays, **own}) for group, own in self.per_group.items()
            }
            return
        self.shared = {ALL: self._record(self.arrays)}
        for name in self.chosen:
            if extra := half.per_agent_broadcast(session.state, position[name], self.turn):
                self.per_agent[name] = extra

    def by_agent(self, messages: Iterable[Message]) -> dict[str, Message]:
        """Return messages of this round by their agents (raises ``RunError`` for another one)."""
        names = {id(message): name for name, message in self.messages.items()}
        found: dict[str, Message] = {}
        for message in messages:
            if id(message) not in names:
                number = self.turn.number
                raise RunError(f"round {number}: a message that is not one of the round's")
            found[names[id(message)]] = message
        return found

    def sent_to(self, name: str) -> Arrays:
        """Return the arrays that an agent was sent, as it reads them."""
        own = self.per_group[self.group_of(name)] if self.per_group else {}
        return {**self.read, **own, **self.per_agent.get(name, {})}

    def record_for(self, name: str) -> ConfigRecord:
        """Return the encoded broadcast for an agent."""
        if extra := self.per_agent.get(name):
            return self._record({**self.arrays, **extra})
        return self.shared[self.group_of(name)]

    def group_of(self, name: str) -> str:
        """Return the group of an agent."""
        units, session = grouped(self.half), self.session
        if units is None:
            return ALL
        return units.group(session.state, session.roster.positions[name])

    def _record(self, arrays: Arrays) -> ConfigRecord:
        half, experiment = self.half, self.session.experiment
        header = half.name, half.version, experiment, self.turn.number, self.settings
        return shared_record(*header, arrays)

    def messages_for(self, names: Iterable[str], *, force: bool = False) -> dict[str, Message]:
        """Build and remember the messages of this round for some agents.

        An agent whose node does not hold the state accepted last is sent it (``force`` sends it in
        any case), with the account of its releases, so that it does not start an empty one. If the
        half does not hold that state either, the agent starts again by its own rule. State and
        account of another node of this name are sent only if the run recovers by name.
        """
        half, session = self.half, self.session
        position = session.roster.positions
        # Agents that are sent the same state share one record: states may be large.
        agent_records: dict[tuple[int, bytes | None, str], ConfigRecord] = {}
        sizes: dict[int, int] = {}
        built: dict[str, Message] = {}
        for name in names:
            agent = session.roster.agents[name]
            recovery, ledger = None, ""
            if force or agent.tag == 0 or agent.tag not in agent.held:
                recovery = half.recovery_of(session.state, position[name], session.start)
                ledger = agent.ledger
            packed = None if recovery is None else pack(recovery)
            mapped.release()
            tag = 0 if force and packed is None else agent.tag
            if tag != agent.tag:
                self.notes.append(
                    f"agent {name} lost its state of round {agent.tag}: it starts again"
                )
            if packed is not None:
                self.bytes += len(packed)
                if agent.tag:
                    sent = f"agent {name} was sent its state of round {agent.tag}"
                    lost = half.recovery_note
                    self.notes.append(f"{sent}; {lost}" if lost else sent)
            record = self.record_for(name)
            self.states.pop(name, None)
            if packed is not None and self.options.folder and self.large(len(packed)):
                made, packed = partial(self._with_state, position[name], tag, ledger), None
                self.states[name] = made
            own_record = agent_records.get((tag, packed, ledger))
            if own_record is None:
                own_record = agent_record(tag, packed, ledger)
                agent_records[tag, packed, ledger] = own_record
            content = record_dict({RECORD: record, AGENT_RECORD: own_record, **self.beside})
            built[name] = Message(content, agent.node, MessageType.TRAIN)
            if id(record) not in sizes:
                sizes[id(record)] = payload_bytes(record)
            self.bytes += sizes[id(record)]
        self.messages.update(built)
        return built

    def _with_state(self, position: int, tag: int, ledger: str) -> ConfigRecord:
        session = self.session
        recovery = self.half.recovery_of(session.state, position, session.start)
        record = agent_record(tag, None if recovery is None else pack(recovery), ledger)
        mapped.release()
        return record

    def large(self, size: int) -> bool:
        """Whether this many bytes for each of the chosen agents are too many for memory."""
        return size * len(self.chosen) > mapped.LIMIT

    def forget(self) -> None:
        """Free the messages, which are as large as the model, before the uploads are folded."""
        self.shared, self.per_agent, self.messages = {}, {}, {}

    def end(self) -> None:
        """Free the arrays that were sent, once the round is over: the model before is one."""
        self.arrays, self.read = {}, {}


def settings_sent(half: ServerHalf[Any], options: RunOptions, session: Session) -> dict[str, Any]:
    """Return the settings that the agents are sent in a round.

    With weights by examples the mean number is fixed in the session by the first round's agents.
    """
    settings: dict[str, Any] = {**half.settings(), "seed": options.seed}
    if options.agent_weights == "examples":
        agents = session.roster.agents
        counts = [agents[name].num_examples for name in session.roster.names]
        session.mean_examples = session.mean_examples or sum(counts) / len(counts)
    if session.mean_examples:
        settings[MEAN_EXAMPLES] = session.mean_examples
    if session.pooled_weight:
        settings[POOLED_WEIGHT] = session.pooled_weight
    if options.folds_old:
        settings[ARRIVAL_TIMES] = True
    if session.encoding_sent:
        settings[ENCODING] = session.encoding_sent
    return settings


def payload_bytes(record: ConfigRecord) -> int:
    """Return the bytes of a record's arrays, without names and settings."""
    return sum(len(value) for value in record.values() if isinstance(value, bytes))
