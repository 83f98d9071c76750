"""The common part of this library's engines: nodes, message ids, replies and checkpoints.

Engines differ only in where a ``Nodes`` lives and in how messages reach it.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import secrets
import threading
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from flwr.app import (
    ConfigRecord,
    Context,
    Error,
    Message,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from privet.agents.base import agent_name
from privet.agents.state import STATE_RECORD, AgentState, keep_state
from privet.agents.state_tables import StateTable, tabulated
from privet.core.threads import pin_blas_threads
from privet.kernel.node_rules import ALLOW_RUN_DATA
from privet.wire.flower_internals import empty_run, held_by, set_identity, set_message_id
from privet.wire.records import own_content

log = logging.getLogger("flwr.privet")

SERVER_NODE = 1
FIRST_NODE = 1000
NOT_CONNECTED = 5
RAISED = 2
CRASHED = 8
"""Flower's error codes for a disconnected node, an exception and the end of a node's process."""
_run_ids = itertools.count(1 + secrets.randbits(62))
"""As Flower's, they are those of no other process: a node keeps rows of a database by them."""

NodeConfig = Mapping[str, bool | int | float | str]
App = ClientApp | Callable[[Message, Context], Message]


M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = (1 << 31) - 1  # the largest C int
LARGEST_KEPT = 32 << 20  # the largest value that glibc accepts


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for the next message; return whether it accepted.

    Messages of a round are allocated and freed together; with its defaults every payload above
    128 kB is mapped, zeroed page by page and unmapped again, which costs ten times the copy.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    accepted = (mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT), mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
    return all(accepted)


class Nodes:
    """The nodes of one process: a ClientApp, and a context for each node.

    Parameters
    ----------
    client_app : ClientApp or callable
        ``(message, context) -> reply``.
    run_id : int
    configs : mapping of node id to node config
    run_config : mapping
    """

    def __init__(
        self,
        client_app: App,
        run_id: int,
        configs: Mapping[int, NodeConfig],
        run_config: Mapping[str, Any],
    ) -> None:
        prepare_process(run_id)
        self.client_app = client_app
        self._run_id, self._run_config = run_id, run_config
        self.contexts: dict[int, Context] = {}
        self.add(configs)

    def add(self, configs: Mapping[int, NodeConfig]) -> None:
        """Add nodes, whose agents have no state."""
        for node, config in configs.items():
            self.contexts[node] = Context(
                run_id=self._run_id,
                node_id=node,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(self._run_config),
            )

    def answer(self, message: Message) -> Message:
        """Return a node's reply to a message; the ClientApp gets a copy of the content.

        If the ClientApp raises, or returns no reply to the message, the reply is the error that
        Flower's runtimes send.
        """
        sent = message.content
        message.content = own_content(sent)
        try:
            reply = self.client_app(message, self.contexts[message.metadata.dst_node_id])
            if not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned {type(reply).__name__}, not a Message")
            if reply.metadata.reply_to_message_id != message.metadata.message_id:
                raise TypeError("the ClientApp returned a Message that is no reply to the one sent")
            return reply
        except Exception as error:
            return raised(message, error)
        finally:
            message.content = sent

    def states(
        self, accepted: Mapping[int, int] | None = None, elsewhere: Container[int] = ()
    ) -> list[StateTable]:
        """Return the states in contexts, but for those ``elsewhere``; ``accepted`` as of a grid."""
        states: list[tuple[str, AgentState]] = []
        for node in self.contexts if accepted is None else accepted:
            context = self.contexts.get(node)
            if context is None or node in elsewhere:
                continue
            record = held_by(context.state).get(STATE_RECORD)
            if record is not None and isinstance(record, ConfigRecord):  # which asks an ABC
                state = AgentState.from_record(record)
                if accepted is not None and state.rounds[-1:] == (accepted[node],):
                    state = state.only(state.experiment, accepted[node])
                states.append((agent_name(context), state))
        return tabulated(states)

    def restore(self, states: Iterable[StateTable]) -> None:
        """Restore the states, from ``states()``, that belong to these nodes."""
        here = {agent_name(context): context for context in self.contexts.values()}
        for table in states:
            for name, state in table.rows():
                if name in here:
                    keep_state(here[name], state)


def raised(message: Message, error: Exception) -> Message:
    """Return the error reply to a message whose handler raised."""
    log.error("node %d raised %r", message.metadata.dst_node_id, error)
    return Message(Error(RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)


def prepare_process(run_id: int) -> None:
    """Prepare a process for messages: one BLAS thread, freed memory kept, an identity."""
    pin_blas_threads()
    keep_freed_memory()
    set_identity(run_id, SERVER_NODE)


class LocalGrid(Grid):
    """A Flower Grid over simulated nodes; the subclass decides where they run.

    Parameters
    ----------
    nodes : int or sequence of mappings
        Number of nodes, or one node config each. A plain number gives every node
        ``partition-id`` and ``num-partitions`` as Flower's simulation does, and
        ``allow-run-data`` and the run's ``relation``: the author of the run config is also the
        operator of such nodes.
    run_config : mapping
        The run config of every node.

    Attributes
    ----------
    online : set of int
        The nodes that are connected; it may be changed between rounds.
    """

    def __init__(self, nodes: int | Sequence[NodeConfig], run_config: Mapping[str, Any]) -> None:
        terms = {ALLOW_RUN_DATA: True, "relation": run_config.get("relation", "replace-one")}
        configs: Sequence[NodeConfig] = (
            [{"partition-id": i, "num-partitions": nodes, **terms} for i in range(nodes)]
            if isinstance(nodes, int)
            else nodes
        )
        self.node_configs = {FIRST_NODE + i: dict(config) for i, config in enumerate(configs)}
        self.online = set(self.node_configs)
        self.stopping, self.round_timeout = threading.Event(), math.inf
        self._run = empty_run(next(_run_ids))
        self._ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        prepare_process(self._run.run_id)

    def serve(self, stopping: threading.Event, round_timeout: float) -> None:
        """Serve a run: the event cuts its waits short, none takes longer than a round may."""
        self.stopping, self.round_timeout = stopping, round_timeout

    # ------------------------------------------------------------------ an engine implements

    @abstractmethod
    def dispatch(self, messages: list[Message]) -> None:
        """Deliver messages to their nodes; every reply is passed to ``arrived``, now or later."""

    @abstractmethod
    def node_states(self, accepted: Mapping[int, int] | None = None) -> list[StateTable]:
        """Return the states that agents have; the tables may change in the next round.

        With ``accepted``, by node the round of the upload accepted last, those of these nodes
        alone, and none from before that round where the agent has done no more.
        """

    @abstractmethod
    def restore_node_states(self, states: Sequence[StateTable]) -> None:
        """Restore the states that ``node_states`` returned."""

    def arrived(self, message: Message, reply: Message) -> None:
        """Keep the reply to a message until it is pulled."""
        message_id = message.metadata.message_id
        set_message_id(reply, f"{message_id}r")
        self._replies[message_id] = reply

    def not_connected(self, message: Message) -> Message:
        """Return the error reply of a disconnected node."""
        node = message.metadata.dst_node_id
        return Message(Error(NOT_CONNECTED, f"node {node} is not connected"), reply_to=message)

    # ------------------------------------------------------------------ Flower's interface

    def set_run(self, run: Any) -> None:
        """Set the run this grid operates in."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run this grid operates in."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (Flower's older way; ``Message(...)`` does the same)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are connected."""
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send every message to its node and return the messages' ids."""
        set_identity(self._run.run_id, SERVER_NODE)
        batch = list(messages)
        ids = [str(next(self._ids)) for _ in batch]
        for message, message_id in zip(batch, ids, strict=True):
            set_message_id(message, message_id)
        self.dispatch(batch)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once, in the order of the messages."""
        here = sorted(self._replies.keys() & set(message_ids), key=int)
        return [self._replies.pop(key) for key in here]

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop the replies to these messages, also those still to come."""
        for message_id in message_ids:
            self._replies.pop(message_id, None)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push the messages and return the replies."""
        return list(self.pull_messages(self.push_messages(messages)))
