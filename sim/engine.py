"""The in-process engine: a Flower Grid that calls the ClientApp directly.

Same Strategy, same ClientApp, same messages as in a deployment; only the transport is a function
call. This is the one file that leans on Flower's internals (message ids and the task identity);
it imports neither Ray nor scikit-learn.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from privet.client_apps import agent_name
from privet.client_apps.state import STATE_RECORD, AgentState
from privet.sim.memory import keep_freed_memory
from privet.wire import pack, unpack
from privet.wire.threads import pin_blas_threads

log = logging.getLogger("flwr.privet")

SERVER_NODE = 1
FIRST_NODE = 1000
_run_ids = itertools.count(1)

NodeConfig = Mapping[str, bool | int | float | str]


class InlineGrid(Grid):
    """Runs every agent in this process, one after the other.

    Parameters
    ----------
    client_app : ClientApp or callable
        What handles a message: ``(message, context) -> reply``.
    nodes : int or sequence of mappings
        Number of nodes, or one node config each. A plain number gives every node
        ``partition-id`` and ``num-partitions`` as Flower's simulation does.
    run_config : mapping, optional
        Passed to the ClientApp's context.
    """

    def __init__(
        self,
        client_app: ClientApp | Callable[[Message, Context], Message],
        nodes: int | Sequence[NodeConfig],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        pin_blas_threads()
        keep_freed_memory()
        configs = (
            [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
            if isinstance(nodes, int)
            else nodes
        )
        self.client_app = client_app
        run_id = next(_run_ids)
        self._run = Run.create_empty(run_id)
        self.contexts = {
            FIRST_NODE + i: Context(
                run_id=run_id,
                node_id=FIRST_NODE + i,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i, config in enumerate(configs)
        }
        self.online = set(self.contexts)
        self._ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self._become_server()

    def _become_server(self) -> None:
        # Message() reads the identity of the running task from here.
        TaskIdentity.run_id = self._run.run_id
        TaskIdentity.node_id = SERVER_NODE
        TaskIdentity.task_id = 0

    # ------------------------------------------------------------------ Flower's interface

    def set_run(self, run: Run) -> None:
        """Set the run this grid operates in."""
        self._run = run

    @property
    def run(self) -> Run:
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
        """Run every message through its node and keep the replies."""
        self._become_server()
        ids: list[str] = []
        seen: set[int] = set()
        for message in messages:
            message_id = str(next(self._ids))
            message.metadata.__dict__["_message_id"] = message_id
            # Some strategies put one RecordDict into all their messages: each node gets its own.
            if id(message.content) in seen:
                message.content = RecordDict(dict(message.content.items()))
            seen.add(id(message.content))
            reply = self.deliver(message)
            if reply is not None:
                self._replies[message_id] = reply
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once."""
        return [self._replies.pop(key) for key in list(message_ids) if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push the messages and return the replies."""
        return list(self.pull_messages(self.push_messages(messages)))

    # ------------------------------------------------------------------ what happens in a node

    def deliver(self, message: Message) -> Message | None:
        """Run one message at its node; None is a reply that never arrives.

        An exception of the ClientApp becomes the error reply that Flower's runtimes send.
        """
        node = message.metadata.dst_node_id
        if node not in self.online:
            return Message(Error(5, f"node {node} is not connected"), reply_to=message)
        try:
            reply = self.client_app(message, self.contexts[node])
        except Exception as error:
            log.error("node %d raised %r", node, error)
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(2, reason), reply_to=message)
        reply.metadata.__dict__["_message_id"] = f"{message.metadata.message_id}r"
        return reply

    # ------------------------------------------------------------------ checkpoints

    def node_states(self) -> dict[str, bytes]:
        """Return the packed state of every agent that has one, by agent name."""
        states: dict[str, bytes] = {}
        for context in self.contexts.values():
            record = context.state.get(STATE_RECORD)
            if isinstance(record, ConfigRecord):
                members = AgentState.from_record(record).to_members()
                states[agent_name(context)] = pack(members)
        return states

    def restore_node_states(self, states: Mapping[str, bytes]) -> None:
        """Put back what ``node_states`` returned."""
        for context in self.contexts.values():
            blob = states.get(agent_name(context))
            if blob is not None:
                state = AgentState.from_members(unpack(blob))
                context.state[STATE_RECORD] = state.to_record()
