"""How the agents of a round are asked: by a message each, or at once where a grid can do that."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType

from privet.agents.inputs import starting_rows
from privet.core import mapped
from privet.wire import AGENT_RECORD, RECORD, pack
from privet.wire.contract import agent_record
from privet.wire.records import record_dict

from ..together import Together, WorksTogether
from .broadcast import payload_bytes
from .round import OpenRound


def messages_for(
    opened: OpenRound, names: Iterable[str], *, force: bool = False
) -> dict[str, Message]:
    """Build and remember the messages of a round for some agents.

    An agent whose node does not hold the state accepted last is sent it (``force`` sends it in any
    case), with the account of its releases, so that it does not start an empty one. If the half
    does not hold that state either, the agent starts again by its own rule. State and account of
    another node of this name are sent only if the run recovers by name.
    """
    half, session, tally = opened.half, opened.session, opened.tally
    position = session.roster.positions
    # Agents that are sent the same state share one record: states may be large.
    agent_records: dict[tuple[int, bytes | None, str], ConfigRecord] = {}
    sizes: dict[int, int] = {}
    built: dict[str, Message] = {}
    for name in names:
        agent = session.roster.agents[name]
        recovery, ledger = None, ""
        if force or agent.tag == 0 or not agent.is_up_to_date:
            recovery = half.recovery_of(session.state, position[name], session.start)
            ledger = agent.ledger
        packed = None if recovery is None else pack(recovery)
        mapped.release()
        tag = 0 if force and packed is None else agent.tag
        if tag != agent.tag:
            tally.notes.append(f"agent {name} lost its state of round {agent.tag}: it starts again")
        if packed is not None:
            tally.bytes_down += len(packed)
            if agent.tag and agent.refolded != agent.tag:
                sent = f"agent {name} was sent its state of round {agent.tag}"
                lost = half.recovery_note
                tally.notes.append(f"{sent}; {lost}" if lost else sent)
        record = opened.broadcast.record_for(name)
        tally.states.pop(name, None)
        if packed is not None and opened.options.folder and opened.large(len(packed)):
            made, packed = partial(_with_state, opened, position[name], tag, ledger), None
            tally.states[name] = made
        own_record = agent_records.get((tag, packed, ledger))
        if own_record is None:
            own_record = agent_record(tag, packed, ledger)
            agent_records[tag, packed, ledger] = own_record
        content = record_dict({RECORD: record, AGENT_RECORD: own_record, **opened.broadcast.beside})
        built[name] = Message(content, agent.node, MessageType.TRAIN)
        if id(record) not in sizes:
            sizes[id(record)] = payload_bytes(record)
        tally.bytes_down += sizes[id(record)]
    tally.messages.update(built)
    return built


def _with_state(opened: OpenRound, position: int, tag: int, ledger: str) -> ConfigRecord:
    session = opened.session
    recovery = opened.half.recovery_of(session.state, position, session.start)
    record = agent_record(tag, None if recovery is None else pack(recovery), ledger)
    mapped.release()
    return record


def work_together(opened: OpenRound, grid: WorksTogether, names: list[str]) -> list[str]:
    """Have a grid compute the agents that need no message at once; return the others.

    An agent needs no message if it holds the state that was accepted last, or is new. One whose
    result does not come is in ``Tally.missing``, and is not asked again in this round.
    """
    session, agents, tally = opened.session, opened.session.roster.agents, opened.tally
    position, sent = session.roster.positions, opened.broadcast
    batches: dict[tuple[str, bool, tuple[Any, ...]], list[str]] = {}
    for name in names:
        agent = agents[name]
        shapes = tuple((key, array.shape) for key, array in sent.per_agent.get(name, {}).items())
        # A new agent with an account is sent it, by message.
        if agent.is_up_to_date if agent.tag else not agent.ledger:
            batches.setdefault((sent.group_of(name), agent.tag == 0, shapes), []).append(name)
    parts: dict[tuple[Any, ...], list[Together]] = {}
    for (group, begins, shapes), batch in batches.items():
        places = [position[name] for name in batch]
        states = opened.half.recovery(session.state, np.array(places)) if begins else None
        if begins and states is None:
            continue
        nodes, tags = zip(*((agents[name].node, agents[name].tag) for name in batch), strict=True)
        left = max(0.0, opened.options.round_timeout - tally.used)
        rows = {key: np.stack([sent.per_agent[name][key] for name in batch]) for key, _ in shapes}
        begun = time.monotonic()
        worked = grid.train_together(sent.shared[group], nodes, np.array(tags), states, rows, left)
        tally.used += time.monotonic() - begun
        asked = len(worked.missing)
        tally.missing |= {batch[place]: reply for place, reply in worked.missing.items()}
        if worked.done:
            done = Together.of(batch, places, worked.done)
            parts.setdefault(shapes, []).append(done)
            asked += len(done.names)
        size = payload_bytes(sent.record_for(batch[0]))
        if states is not None:
            size += len(pack(starting_rows(states, 0)))
        tally.bytes_down += size * asked
    tally.together = [Together.merged(alike) for alike in parts.values()]
    ended = {*tally.missing, *(name for one in tally.together for name in one.names)}
    return [name for name in names if name not in ended]
