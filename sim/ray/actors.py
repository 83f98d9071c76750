"""Start the actors of the Ray engine, replace those that end, move agents, collect their states.

A seat is an actor with some of the nodes. What becomes of the nodes of an actor that ends:

* Its host lives: another actor takes its place, for which a round waits `REPLACE_PATIENCE`.
* Its host is gone, or that time is over: the nodes go to the actors that are left.
* None is left: the nodes are absent until a host joins.
* A node was at work on a message, which the arena says on this machine: it is named, and has the
  process to itself from then on. The other nodes go to processes without such a node; where there
  is none, it joins one that has such nodes alone. A run with one process names it only.

Their states are lost. As many actors as are wanted beyond those that are there wait in Ray's queue,
as reserves; one that starts, on a host that joined, is given a share of the nodes with their
states. A checkpoint has only the states of actors that answer in time, so that a busy actor, or one
that Ray has no room for, does not delay the run.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privet.agents.base import name_of
from privet.agents.state_tables import StateTable, of_agents
from privet.core import RunError

from .batches import Arena, new_arena
from .hosts import counted, living_hosts, what_is_left
from .session import cluster_cpus, cluster_gpus, last_line
from .waiting import Waiting

log = logging.getLogger("flwr.privet")

START_PATIENCE = 180.0
"""Seconds the processes may take to start."""
REPLACE_PATIENCE = 60.0
"""Seconds a round waits for a process in place of one that ended: on a busy machine a process needs
20 to import and to read data, and one that has no room would never start."""
STATES_PATIENCE = 60.0
"""Seconds the actors may take to hand over, or to take back, the states of their agents."""
DEATH_PATIENCE = 1.0
"""Seconds within which all calls of an actor that has ended have failed."""
MOST_FAILURES = 3
"""Replacements of one seat, or reserves, that may fail to start in a row."""
LOOK_AGAIN = 1.0
"""Seconds between two looks at the hosts of the cluster."""

Start = Callable[[list[int], str], Any]
"""Makes the actor for some nodes, which finds its arena at an address ("" where there is none)."""


@dataclass(slots=True, eq=False)
class Seat:
    """An actor, its nodes, and the memory for its messages and replies.

    Attributes
    ----------
    number : int
        Its place, which the actor that replaces it takes over.
    ready : reference
        The actor's answer that its ClientApp is made: the id of its host.
    host : str
        The id of its host; empty while the actor has not started.
    former_host : str
        That of the actor in whose place it is.
    since : float
        When it was asked for, on the monotonic clock.
    shared : bool
        Whether the actor is known to see the arena.
    failures : int
        The actors in a row that did not start in this seat before this one.
    apart : bool
        Whether its nodes are those at whose work a process ended.
    by_message : bool
        Whether a process of it ended and it is not known at whose work: until it has answered
        messages again, its nodes are sent messages, one after the other.
    """

    number: int
    nodes: list[int]
    actor: Any
    ready: Any
    arena: Arena | None
    since: float
    host: str = ""
    former_host: str = ""
    shared: bool = False
    failures: int = 0
    apart: bool = False
    by_message: bool = False


class Actors:
    """The actors of a ``RayGrid``.

    Parameters
    ----------
    ray : module
        Connected.
    start : callable
        Makes an actor.
    configs : mapping of node id to node config
    wanted : callable
        Returns how many actors there should be with the hosts that are there.
    waiting : Waiting

    Attributes
    ----------
    seats : list of Seat
        Those with nodes, in the order in which they began.
    reserves : list of Seat
        Actors that have not started, and have no nodes yet.
    hosts : dict of str to Host
        The living hosts when they were looked at last.
    """

    def __init__(
        self,
        ray: Any,
        start: Start,
        configs: Mapping[int, Mapping[str, Any]],
        wanted: Callable[[], int],
        waiting: Waiting,
    ) -> None:
        self._ray, self._start, self._configs = ray, start, configs
        self._wanted, self._waiting = wanted, waiting
        self._seat_of: dict[int, Seat] = {}
        self._failures = 0
        self._looked = time.monotonic()
        self.seats: list[Seat] = []
        self.reserves: list[Seat] = []
        self.hosts = living_hosts(ray)

    def seat_of(self, node: int) -> Seat | None:
        """Return the seat of a node; None for an unknown one."""
        return self._seat_of.get(node)

    def is_working(self, node: int) -> bool:
        """Return whether the actor of a node has started, and is not known to be gone."""
        seat = self._seat_of.get(node)
        return seat is not None and bool(seat.host)

    # ------------------------------------------------------------------ beginning and end

    def begin(self, blocks: Iterable[list[int]]) -> None:
        """Start an actor for each block of nodes (raises ``RunError`` where one does not start)."""
        for nodes in blocks:
            self.seats.append(self._seat(len(self.seats), nodes))
        ready = [seat.ready for seat in self.seats]
        _, missing = self._ray.wait(ready, num_returns=len(ready), timeout=START_PATIENCE)
        if missing:
            cpus, gpus = cluster_cpus(self._ray), sum(cluster_gpus(self._ray))
            raise RunError(
                f"{len(missing)} of {len(ready)} actors did not start within {START_PATIENCE:g} s: "
                f"Ray has {cpus} CPUs and {gpus:g} GPUs, which others may use"
            )
        try:
            for seat in self.seats:
                seat.host = self._ray.get(seat.ready)
        except self._ray.exceptions.RayError as error:
            raise RunError(f"the ClientApp could not be made: {last_line(error)}") from None
        self.hosts = living_hosts(self._ray)

    def end(self) -> None:
        """End the actors and let go of their memory."""
        for seat in (*self.seats, *self.reserves):
            self._ray.kill(seat.actor)
            seat.arena = None

    # ------------------------------------------------------------------ between two rounds

    def lost(self, seat: Seat, error: Exception) -> str:
        """Return why a seat gave no answer; if its actor is gone, another one takes its place.

        Raises
        ------
        RunError
            If one replacement after the other has failed to start.
        """
        if not isinstance(error, self._ray.exceptions.RayActorError):
            return last_line(error)
        started = bool(seat.host) or self._has_started(seat)
        why = "its process ended" if started else f"its process did not start: {last_line(error)}"
        node = seat.arena.at_work if started and seat.arena else 0
        if node:
            why += f" at the work of agent {name_of(self._configs[node], node)}"
        if seat in self.seats:
            seat.by_message |= started and not node
            self._replace(seat, 0 if started else seat.failures + 1, why, node)
        return why

    def _set_apart(self, seat: Seat, node: int) -> None:
        """Part a node, at whose work the process of a seat ended, from the seat's other nodes.

        None of them has a state: the process that ended had them.
        """
        others = [one for one in self.seats if one.host and one is not seat]
        takers = [one for one in others if not one.apart]
        rest = [one for one in seat.nodes if one != node]
        if seat.apart or not rest:
            seat.apart = True
        elif takers:
            seat.apart = True
            self._hand_out(seat, rest, takers)
        elif others:
            self._hand_out(seat, [node], others[:1])

    def tend(self, patience: float, busy: Container[int]) -> None:
        """Look at the hosts, wait for replacements, and move nodes to actors that work.

        A replacement is waited for ``patience`` seconds at most. Seats that are ``busy`` keep their
        nodes.

        Raises
        ------
        RunError
            If one replacement after the other has failed to start.
        """
        now = time.monotonic()
        if all(seat.host for seat in self.seats) and now < self._looked + LOOK_AGAIN:
            return
        end = now + patience
        while True:
            self._looked = time.monotonic()
            self._look()
            self._leave_lost_hosts()
            awaited = [seat for seat in self.seats if self._is_awaited(seat)]
            left = min(self._waiting.left(end), LOOK_AGAIN)
            if not awaited or left <= 0:
                break
            if self._waiting.wait([awaited[0].ready], left)[0]:
                self._welcome(awaited[0])
        if self._waiting.left() > 0:
            self._move_stranded()
            self._seat_reserves(busy)

    def _leave_lost_hosts(self) -> None:
        """Move the nodes of actors whose hosts are gone."""
        gone = [seat for seat in self.seats if seat.host and seat.host not in self.hosts]
        working = [seat for seat in self.seats if seat.host and seat not in gone]
        for seat in gone:
            if working:
                self._move(seat, working)
            else:
                self._replace(seat, 0, "")

    def _look(self) -> None:
        """Look at the hosts, and say who has joined."""
        before, self.hosts = self.hosts, living_hosts(self._ray)
        joined = [host for name, host in self.hosts.items() if name not in before]
        for host in joined:
            log.info("host %s joined", host)
        for name in before.keys() - self.hosts.keys():
            mine = [seat for seat in self.seats if name in (seat.host, seat.former_host)]
            nodes = sum(len(seat.nodes) for seat in mine)
            log.warning(
                "host %s is lost, with %s of this run and %s; %s",
                before[name],
                counted(len(mine), "process", "processes"),
                counted(nodes, "agent"),
                what_is_left(self._ray, self.hosts.values()),
            )
        if joined:
            self._failures = 0

    def _is_awaited(self, seat: Seat) -> bool:
        """Whether a seat's actor is starting and may do so in time."""
        here = not seat.former_host or seat.former_host in self.hosts
        return not seat.host and here and time.monotonic() < seat.since + REPLACE_PATIENCE

    def _welcome(self, seat: Seat) -> None:
        """Note the host of an actor that has started, or replace one that could not."""
        try:
            seat.host = self._ray.get(seat.ready)
        except self._ray.exceptions.RayError as error:
            self.lost(seat, error)

    def _has_arrived(self, seat: Seat) -> bool:
        """Return whether it is known that an actor has started, or that it could not."""
        return bool(self._ray.wait([seat.ready], num_returns=1, timeout=0.0)[0])

    def _replace(self, seat: Seat, failures: int, why: str, node: int = 0) -> None:
        """Put another actor into a seat; ``why`` is empty where a line has said it.

        ``node`` is the one at whose work the actor ended, if that is known.
        """
        place = f"process {seat.number + 1}"
        if failures >= MOST_FAILURES:
            raise RunError(
                f"{place} of {len(self.seats)} was replaced {failures} times in a row without "
                f"success: {why}"
            )
        if why:
            log.warning(
                "%s of %d is replaced, its %d agents lost their state: %s",
                *(place, len(self.seats), len(seat.nodes), why),
            )
        self._ray.kill(seat.actor)
        if node:
            self._set_apart(seat, node)
        successor = self._seat(seat.number, seat.nodes)
        successor.failures, successor.former_host = failures, seat.host or seat.former_host
        successor.apart, successor.by_message = seat.apart, seat.by_message
        self.seats[self.seats.index(seat)] = successor

    # ------------------------------------------------------------------ moving nodes

    def _move_stranded(self) -> None:
        """Give the nodes of actors that do not start in time to those that work."""
        for seat in list(self.seats):
            if not seat.host and not self._is_awaited(seat) and self._has_arrived(seat):
                self._welcome(seat)
        working = [seat for seat in self.seats if seat.host]
        stranded = [seat for seat in self.seats if not seat.host and not self._is_awaited(seat)]
        if working:
            for seat in stranded:
                self._move(seat, working)
        elif stranded:
            log.warning(
                "%s are absent until a process starts for them: %s",
                counted(sum(len(seat.nodes) for seat in stranded), "agent"),
                what_is_left(self._ray, self.hosts.values()),
            )

    def _move(self, seat: Seat, working: Sequence[Seat]) -> None:
        """Give the nodes of a seat, without states, to seats that work, the emptiest first."""
        self.seats.remove(seat)
        self._ray.kill(seat.actor)
        takers = [one for one in working if not one.apart] or working
        count, number = len(seat.nodes), self._hand_out(seat, seat.nodes, takers)
        log.warning(
            "%s of process %d, whose states are lost, go to %s on the hosts that are left",
            *(counted(count, "agent"), seat.number + 1),
            counted(number, "process", "processes"),
        )

    def _hand_out(self, seat: Seat, nodes: Sequence[int], working: Sequence[Seat]) -> int:
        """Give some of a seat's nodes, without states, to other seats; return to how many."""
        share = math.ceil(len(nodes) / len(working)) or 1
        parts = [list(nodes[first : first + share]) for first in range(0, len(nodes), share)]
        moved = set(nodes)
        seat.nodes = [one for one in seat.nodes if one not in moved]
        for taker, part in zip(
            sorted(working, key=lambda one: len(one.nodes)), parts, strict=False
        ):
            self._give(taker, part, None)
        return len(parts)

    def _seat_reserves(self, busy: Container[int]) -> None:
        """Give a share of the nodes to reserves that have started, and ask for as many as lack."""
        for seat in list(self.reserves):
            if not self._has_arrived(seat):
                continue
            try:
                seat.host = self._ray.get(seat.ready)
            except self._ray.exceptions.RayError as error:
                self._failures += 1
                self.reserves.remove(seat)
                self._ray.kill(seat.actor)
                log.warning("a further process did not start: %s", last_line(error))
                continue
            self._failures = 0
            if self._share_with(seat, busy):
                self.reserves.remove(seat)
                self.seats.append(seat)
        if self._failures >= MOST_FAILURES:
            return
        numbers = {seat.number for seat in (*self.seats, *self.reserves)}
        for number in range(self._wanted()):
            if number not in numbers:
                self.reserves.append(self._seat(number, []))

    def _share_with(self, seat: Seat, busy: Container[int]) -> int:
        """Move nodes, with their states, to a new actor until all have about as many.

        Return how many; none where all that could give some are busy.
        """
        fair, moved = len(self._configs) // (len(self.seats) + 1), 0
        for giver in sorted(self.seats, key=lambda one: -len(one.nodes)):
            count = min(len(giver.nodes) - fair, fair - moved)
            if not giver.host or giver.number in busy or count <= 0:
                continue
            nodes = giver.nodes[-count:]
            del giver.nodes[-count:]
            states = giver.actor.release.remote(nodes)
            if self._give(seat, nodes, states):
                moved += count
            elif not self._give(giver, nodes, states):
                self._give(giver, nodes, None)
        if moved:
            where = self.hosts.get(seat.host, "a host that joined")
            log.info("%s moved to a new process on %s", counted(moved, "agent"), where)
        return moved

    def _give(self, seat: Seat, nodes: list[int], states: Any) -> bool:
        """Give nodes to an actor, with their states if there are some; return whether it has them.

        Without states they are its own in any case: should the actor be gone, it is replaced.
        """
        configs = {node: self._configs[node] for node in nodes}
        given = seat.actor.adopt.remote(configs, states)
        if states is not None and list(self._answers([given], lambda _: None)):
            return False
        seat.nodes += nodes
        self._seat_of.update(dict.fromkeys(nodes, seat))
        return True

    # ------------------------------------------------------------------ states

    def states(
        self, busy: Container[int], accepted: Mapping[int, int] | None = None
    ) -> list[StateTable]:
        """Return the states that agents have, those of the nodes ``accepted`` as of a grid.

        The agents of seats that are ``busy``, that do not answer in time, or whose actor is gone
        count as holding none; a warning says so.
        """
        without: Counter[str] = Counter()
        requests: dict[Any, Seat] = {}
        for seat in self.seats:
            if seat.number in busy:
                without["still at work on an earlier round"] += len(seat.nodes)
            elif not seat.host:
                without["their process has not started"] += len(seat.nodes)
            else:
                here = seat.nodes if accepted is None else accepted.keys() & set(seat.nodes)
                some = None if accepted is None else {node: accepted[node] for node in here}
                if here:
                    requests[seat.actor.states.remote(some)] = seat
        states: list[StateTable] = []
        for reference, error in self._answers(list(requests), states.extend):
            without[error] += len(requests[reference].nodes)
        if without:
            log.warning(
                "%d of %d agents could not hand over their states: %s",
                without.total(),
                len(self._configs),
                "; ".join(f"{why} ({count})" for why, count in without.items()),
            )
        return states

    def restore(self, states: Sequence[StateTable]) -> None:
        """Restore the states that ``states`` returned (raises ``RunError`` if an actor cannot)."""
        requests = []
        for seat in self.seats:
            names = {name_of(self._configs[node], node) for node in seat.nodes}
            mine = [one for table in states if (one := of_agents(table, names)).names]
            if mine:
                requests.append(seat.actor.restore.remote(mine))
        for _, error in self._answers(requests, lambda _: None):
            raise RunError(f"the agents' states could not be put back: {error}")

    def _answers(
        self, requests: list[Any], take: Callable[[Any], object]
    ) -> Iterable[tuple[Any, str]]:
        """Pass the answers that arrive in time to ``take``; return the others and why."""
        if not requests:
            return []
        there, _ = self._ray.wait(requests, num_returns=len(requests), timeout=STATES_PATIENCE)
        arrived = set(there)
        missing: list[tuple[Any, str]] = []
        for reference in requests:
            if reference not in arrived:
                missing.append((reference, f"no answer within {STATES_PATIENCE:g} s"))
                continue
            try:
                take(self._ray.get(reference))
            except self._ray.exceptions.RayActorError:
                missing.append((reference, "their process ended"))
            except self._ray.exceptions.RayError as error:
                missing.append((reference, last_line(error)))
        return missing

    # ------------------------------------------------------------------ one actor

    def _seat(self, number: int, nodes: list[int]) -> Seat:
        arena = new_arena()
        actor = self._start(nodes, arena.address if arena else "")
        seat = Seat(number, nodes, actor, actor.ready.remote(), arena, time.monotonic())
        self._seat_of.update(dict.fromkeys(nodes, seat))
        return seat

    def _has_started(self, seat: Seat) -> bool:
        """Return whether an actor that is gone had made its ClientApp before."""
        try:
            self._ray.get(seat.ready, timeout=DEATH_PATIENCE)
        except self._ray.exceptions.RayError:
            return False
        return True
