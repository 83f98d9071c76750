"""What a round sends to its agents: arrays for all, for a group, or for one agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from privet.agents.terms import ARRIVAL_TIMES, ENCODING, MEAN_EXAMPLES, POOLED_WEIGHT, WHOLE_SUM
from privet.wire.contract import encode_settings, shared_record
from privet.wire.flower_internals import held_by
from privet.wire.payload import opened
from privet.wire.records import config_record
from privet.wire.survivors import THRESHOLD

from ..half import Arrays, ServerHalf, Turn, grouped
from ..options import RunOptions
from ..session import Session

ALL = ""
"""The one group of agents where the algorithm does not divide them."""


@dataclass(frozen=True)
class Broadcast:
    """The broadcast of a round.

    Attributes
    ----------
    header : tuple
        The first arguments of `shared_record`: protocol, version, experiment, round, settings.
    beside : dict of str to ConfigRecord
        Records for the user's own handlers, the same for all agents.
    arrays : dict of str to array
        The arrays that all agents are sent.
    read : dict of str to array
        The same as agents read them: an encoded vector is decoded.
    shared : dict of str to ConfigRecord
        The encoded broadcast, by group.
    groups : dict of str to str
        The group of each chosen agent, where the algorithm divides its agents into groups.
    per_group : dict of str to arrays
        The arrays that the agents of a group are sent in addition.
    per_agent : dict of str to arrays
        Those that single agents are sent in addition, by name; for most algorithms empty.
    per_sum : dict of str to mapping
        Fields of a record that single agents of a secure sum are sent in addition, by name.
    """

    header: tuple[str, int, str, int, str]
    beside: Mapping[str, ConfigRecord]
    arrays: dict[str, Any]
    read: dict[str, Any]
    shared: dict[str, ConfigRecord]
    groups: Mapping[str, str]
    per_group: Mapping[str, Arrays]
    per_agent: dict[str, Arrays]
    per_sum: dict[str, Mapping[str, bytes]] = field(default_factory=dict)

    def group_of(self, name: str) -> str:
        """Return the group of an agent."""
        return self.groups.get(name, ALL)

    def sent_to(self, name: str) -> Arrays:
        """Return the arrays that an agent was sent, as it reads them."""
        own = self.per_group[self.groups[name]] if self.groups else {}
        return {**self.read, **own, **self.per_agent.get(name, {})}

    def sent_to_each(self, names: Sequence[str]) -> Arrays:
        """Return the arrays that some agents were sent, a row each where these differ."""
        if not (self.groups or self.per_agent):
            return self.read
        return sent_rows([self.sent_to(name) for name in names])

    def record_for(self, name: str) -> ConfigRecord:
        """Return the encoded broadcast for an agent."""
        if extra := self.per_agent.get(name):
            return shared_record(*self.header, {**self.arrays, **extra})
        shared = self.shared[self.group_of(name)]
        if own := self.per_sum.get(name):
            return config_record({**held_by(shared), **own})
        return shared

    def forget_records(self) -> None:
        """Free the encoded arrays, as large as the model, before the uploads are folded."""
        self.shared.clear()
        self.per_agent.clear()
        self.per_sum.clear()

    def forget_arrays(self) -> None:
        """Free the arrays that were sent, once the round is over: the model before is one."""
        self.arrays.clear()
        self.read.clear()


def broadcast(
    half: ServerHalf[Any],
    options: RunOptions,
    session: Session,
    turn: Turn,
    chosen: tuple[str, ...],
    beside: Mapping[str, ConfigRecord],
) -> Broadcast:
    """Have the half begin a round with the agents ``chosen``; return what they are sent."""
    settings = encode_settings(settings_sent(half, options, session))
    header = half.name, half.version, session.experiment, turn.number, settings
    session.state, common = half.broadcast(session.state, turn)
    arrays = {**common, **session.buffers_sent}
    units, position = grouped(half), session.roster.positions
    groups: dict[str, str] = {}
    per_group: dict[str, Arrays] = {}
    per_agent: dict[str, Arrays] = {}
    if units is not None:
        groups = {name: units.group(session.state, position[name]) for name in chosen}
        per_group = {
            group: units.broadcast_to(session.state, group)
            for group in sorted(set(groups.values()))
        }
        shared = {
            group: shared_record(*header, {**arrays, **own}) for group, own in per_group.items()
        }
    else:
        shared = {ALL: shared_record(*header, arrays)}
        for name in chosen:
            if extra := half.per_agent_broadcast(session.state, position[name], turn):
                per_agent[name] = extra
    read = opened(arrays, session.start.size)
    return Broadcast(header, beside, arrays, read, shared, groups, per_group, per_agent)


def sent_rows(sent: Sequence[Arrays]) -> Arrays:
    """Return what some agents were sent, a row each where that differs."""
    rows: Arrays = {}
    for key, first in sent[0].items():
        each = [arrays[key] for arrays in sent]
        if all(array is first for array in each):
            rows[key] = first
            continue
        table = np.stack(each)
        rows[key] = table if table.ndim > 1 else table[:, None]
    return rows


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
    if options.sum_threshold:
        settings[THRESHOLD] = options.sum_threshold
    elif half.masked and half.steps_by_mean and options.server_optimizer == "none":
        settings[WHOLE_SUM] = len(session.roster.names)
    if session.encoding_sent:
        settings[ENCODING] = session.encoding_sent
    return settings


def payload_bytes(record: ConfigRecord) -> int:
    """Return the bytes of a record's arrays, without names and settings."""
    return sum(len(value) for value in record.values() if isinstance(value, bytes))
