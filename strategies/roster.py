"""Enrolment: which node is which agent.

Flower's node ids are random per run. Every node is asked once for its stable agent name; from
then on everything is keyed by name and folded in sorted order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from privet.wire import (
    ENROL,
    FAILED,
    RECORD,
    REFUSED,
    Enrolment,
    RunError,
    Update,
    WireError,
    sort_names,
)
from privet.wire.contract import CONTRACT_VERSION
from privet.wire.enrolment import read_enrolment
from privet.wire.errors import one_line

from .exchange import Reply, exchange

log = logging.getLogger("flwr.privet")

CLIENT_APP_FAILED = 2
"""Flower's error code for an exception of the ClientApp."""
NO_HANDLER = "No query function registered"
"""What Flower says of a ClientApp that was not made by this library."""
ENROL_PATIENCE = 180.0
"""Seconds the connected nodes have to answer before round 1. After a crash of the SuperLink they
are busy with the lost run for about a minute."""
ENROL_TIMEOUT = 30.0
"""Seconds a node that appears later may take to answer; one that does not is asked again."""


@dataclass(frozen=True, slots=True)
class Question:
    """What enrolment asks about and checks against."""

    protocol: str
    version: int
    experiment: str
    dim: int
    dtype: np.dtype[Any]
    quiet: bool = False
    """Whether agents must keep the texts of their failures to themselves (a private run)."""
    secure_sum: bool = False
    """Whether agents must give a public key, for a run in which uploads are masked."""


class Agent(NamedTuple):
    """One enrolled agent.

    ``tag`` is the round of the upload last accepted from it (0 for none); ``held`` are the rounds
    whose state its node is known to hold.
    """

    node: int
    num_examples: int = 0
    tag: int = 0
    held: tuple[int, ...] = ()
    foreign: bool = False
    ledger: str = ""
    """The agent's account of its releases, as it last sent it."""
    unit: str = ""
    """The unit it says it belongs to; empty where it says nothing."""
    public_key: bytes = b""
    """Its key for secure sums, empty where there is none or it was lost."""
    out: str = ""
    """Why it is asked no more in this run, empty while it is asked."""


@dataclass
class Roster:
    """The agents by name, and the nodes that were turned away."""

    agents: dict[str, Agent] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    online: frozenset[int] = frozenset()
    _sorted: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """Agent names in folding order."""
        if self._sorted.keys() != self.agents.keys():
            self._sorted = dict.fromkeys(sort_names(self.agents))
        return list(self._sorted)

    def connected(self, name: str) -> bool:
        """Whether the agent's node was there when the grid was last asked."""
        return self.agents[name].node in self.online

    def said(self, name: str, ledger: str) -> None:
        """Note an agent's account of its releases."""
        self.agents[name] = self.agents[name]._replace(ledger=ledger)

    def accepted(self, name: str, update: Update) -> None:
        """Note that an agent's upload of a round was folded."""
        old = self.agents[name]
        # A foreign agent says only with its uploads how many examples it has.
        count = update.num_examples if old.foreign else old.num_examples
        self.agents[name] = old._replace(
            num_examples=count,
            tag=update.round,
            held=(old.tag, update.round),
            ledger=update.ledger,
        )

    def enrol_all(self, grid: Grid, question: Question, timeout: float) -> None:
        """Ask every connected node until all have answered or ``timeout`` seconds are over."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            # One long wait: a node that is busy with an older run answers when it is done, and
            # asking it again would only lengthen its queue.
            self.refresh(grid, question, max(left, 1.0))
            if not self._unknown() or time.monotonic() >= deadline:
                return
            time.sleep(0.5)

    def _unknown(self) -> list[int]:
        known = {agent.node for agent in self.agents.values()} | set(self.rejected)
        return sorted(self.online - known)

    def _keyless(self) -> list[int]:
        """Nodes of known agents that lost their keys."""
        return [
            agent.node
            for agent in self.agents.values()
            if not agent.public_key
            and agent.node in self.online
            and agent.node not in self.rejected
        ]

    def refresh(self, grid: Grid, question: Question, timeout: float) -> list[str]:
        """Enrol nodes not seen before, or without a key that they need; return the new names."""
        self.online = frozenset(grid.get_node_ids())
        before = set(self.agents)
        keyless = self._keyless() if question.secure_sum else []
        self._ask(grid, sorted([*self._unknown(), *keyless]), question, timeout)
        return sort_names(set(self.agents) - before)

    def ask_again(
        self, grid: Grid, names: Iterable[str], question: Question, timeout: float
    ) -> None:
        """Enrol agents of the roster anew: which states they hold, and their public keys."""
        self._ask(grid, [self.agents[name].node for name in names], question, timeout)

    def _ask(self, grid: Grid, nodes: list[int], question: Question, timeout: float) -> None:
        if not nodes:
            return
        record = ConfigRecord(
            {
                "contract": CONTRACT_VERSION,
                "protocol": question.protocol,
                "version": question.version,
                "experiment": question.experiment,
                "quiet": question.quiet,
                "secure-sum": question.secure_sum,
            }
        )
        messages = {str(node): Message(RecordDict({RECORD: record}), node, ENROL) for node in nodes}
        replies = exchange(grid, messages, timeout)
        for node in nodes:
            self._enrol(node, replies[str(node)], question)

    def _enrol(self, node: int, reply: Reply, question: Question) -> None:
        if reply.content is None:
            if reply.code in (FAILED, REFUSED):
                self._reject(node, reply.reason)
            elif NO_HANDLER in reply.reason and not question.secure_sum:
                log.warning(
                    "node %d has no enrolment handler: enrolled under its node id, "
                    "so this run is not reproducible",
                    node,
                )
                self.agents[str(node)] = Agent(node, foreign=True)
            elif reply.code == CLIENT_APP_FAILED or NO_HANDLER in reply.reason:
                self._reject(node, f"node {node}: {reply.reason}")
            else:  # busy or gone: it is asked again
                log.info("node %d did not answer the enrolment question: %s", node, reply.reason)
            return
        try:
            said = read_enrolment(reply.content)
        except WireError as error:
            self._reject(node, f"node {node}: {error}")
            return
        problem = _mismatch(said, question)
        if problem:
            self._reject(node, f"agent {said.agent}: {one_line(problem)}")
            return
        self._admit(node, said, question)

    def _admit(self, node: int, said: Enrolment, question: Question) -> None:
        held = said.rounds if said.experiment == question.experiment else ()
        old = self.agents.get(said.agent)
        if old is None:
            self.agents[said.agent] = Agent(
                node, said.num_examples, held=held, unit=said.unit, public_key=said.public_key
            )
            return
        if old.node == node:
            self.agents[said.agent] = old._replace(held=held, public_key=said.public_key)
            return
        if old.node in self.online:
            log.warning("agent %s: two nodes carry this name, the newer one counts", said.agent)
            self.rejected[old.node] = f"agent {said.agent}: replaced by a newer node"
        self.agents[said.agent] = old._replace(
            node=node,
            num_examples=said.num_examples,
            held=held,
            public_key=said.public_key,
            out="",
        )
        log.warning("agent %s came back on another node", said.agent)

    def _reject(self, node: int, reason: str) -> None:
        self.rejected[node] = reason
        log.warning("node turned away: %s", reason)


def _mismatch(said: Enrolment, question: Question) -> str:
    if (said.protocol, said.version) != (question.protocol, question.version):
        return (
            f"speaks {said.protocol} version {said.version}, "
            f"this run {question.protocol} version {question.version}"
        )
    if said.num_examples < 1:
        return "has no data"
    if said.dim != question.dim:
        return f"its model has {said.dim} parameters, the server's {question.dim}"
    if said.dtype != str(question.dtype):
        return f"computes in {said.dtype}, the server in {question.dtype}"
    if question.secure_sum and not said.public_key:
        return "gives no public key, which this run's secure sum needs"
    return ""


def wait_for_nodes(
    grid: Grid,
    wanted: int,
    least: int,
    timeout: float,
    *,
    settle: float = 1.0,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until the nodes are there and return how many.

    With ``wanted`` > 0, until that many are connected; otherwise until at least ``least`` are and
    the number has not changed for ``settle`` seconds.

    Raises
    ------
    RunError
        When ``timeout`` seconds pass first: one line with the number that came and the flag.
    """
    begin = time.monotonic()
    count, since = -1, begin
    while True:
        now = time.monotonic()
        found = len(list(grid.get_node_ids()))
        if found != count:
            count, since = found, now
        if wanted > 0 and count >= wanted:
            return count
        if wanted == 0 and count >= least and now - since >= settle:
            return count
        if now - begin >= timeout:
            need = wanted or least
            raise RunError(
                f"waited {timeout:g} s for {need} agents and {count} came: start more SuperNodes, "
                f"or in simulation give --federation-config 'num-supernodes={need}'"
            )
        sleep(min(0.1, timeout))
