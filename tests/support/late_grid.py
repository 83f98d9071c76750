"""A grid of real time: replies come later, out of order, as errors, or never.

Unlike the engines' it holds messages back, so a run waits for replies by the clock. With the
fixture ``clock`` time passes only while the run sleeps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from privet.sim.engine import InlineGrid
from privet.sim.grid import FIRST_NODE
from privet.wire.flower_internals import set_message_id
from support.federations import app_of

UNAVAILABLE, GONE = 3, 5
"""Flower's error codes of an expired message, and of a node without a heartbeat."""


class Out(NamedTuple):
    """A message that is out: when its reply is there, and until when it may be fetched."""

    message: Message
    reply: Message | None
    due: float
    expires: float


class LateGrid(Grid):
    """Nodes that answer in the order of their messages, each after some seconds.

    Parameters
    ----------
    problems : sequence
        Of each agent.
    seconds : callable
        ``(agent, number) -> seconds`` of an agent's task, its ``number``-th from 1.
    fault : callable, optional
        ``(agent, number) -> reply``: an ``Error`` in place of the reply, or None for none.
    """

    def __init__(
        self,
        problems: Sequence[Any],
        seconds: Callable[[int, int], float],
        fault: Callable[[int, int], Error | None] = lambda agent, number: None,
        app: Any = None,
    ) -> None:
        self.inner = InlineGrid(app or app_of(problems), len(problems))
        self.seconds, self.fault = seconds, fault
        self.agents = {FIRST_NODE + agent: agent for agent in range(len(problems))}
        self.online = set(self.agents)
        self.computed = dict.fromkeys(range(len(problems)), 0)
        self.asked = dict.fromkeys(range(len(problems)), 0)
        self.pulls = 0
        self.out: dict[str, Out] = {}
        self._free: dict[int, float] = {}
        self._ids = itertools.count(1)

    def kill(self, agent: int) -> None:
        """End an agent's node: what it worked on is answered with an error."""
        (node,) = (node for node, number in self.agents.items() if number == agent)
        self.online.discard(node)
        now = time.monotonic()
        for key, one in self.out.items():
            if one.message.metadata.dst_node_id == node and one.due > now:
                error = Message(Error(GONE, "node unavailable"), reply_to=one.message)
                self.out[key] = one._replace(reply=error, due=now)

    def start_again(self, agent: int) -> None:
        """Start an agent's node again, with a new id and without the state of the old one."""
        (old,) = (node for node, number in self.agents.items() if number == agent)
        new = 1 + max(self.agents)
        self.agents[new] = self.agents.pop(old)
        context = self.inner.contexts.pop(old)
        context.node_id, context.state = new, RecordDict()
        self.inner.contexts[new] = context
        self.inner.online.add(new)
        self.online.add(new)

    # ------------------------------------------------------------------ Flower's interface

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **more: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        key, now, node = str(next(self._ids)), time.monotonic(), message.metadata.dst_node_id
        set_message_id(message, key)
        message.metadata.__dict__["_created_at"] = time.time()  # not datetime's, which goes on
        expires, agent = now + message.metadata.ttl, self.agents[node]
        trains = message.metadata.message_type == "train"
        self.asked[agent] += trains
        number = self.asked[agent]
        start = max(now, self._free.get(node, now))
        reply: Message | None = None
        due = start
        if start < expires:
            if trains:
                due = self._free[node] = start + self.seconds(agent, number)
                self.computed[agent] += 1
            error = self.fault(agent, number) if trains else None
            reply = Message(error, reply_to=message) if error else self.inner.deliver(message)
        self.out[key] = Out(message, reply, due, expires)
        return key

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now, replies = time.monotonic(), []
        self.pulls += 1
        for key in message_ids:
            one = self.out[key]
            if one.reply is not None and one.due <= now < one.expires:
                replies.append(one.reply)
                self.out[key] = one._replace(reply=None)
            elif now >= one.expires or one.due <= now:
                replies.append(Message(Error(UNAVAILABLE, "expired"), reply_to=one.message))
        return replies
