"""Start the actors of the Ray engine, replace those that end, and collect their states.

A seat is a block of nodes; the actor in it may change. A checkpoint has only the states of actors
that answer in time, so that a busy actor, or one that Ray has no room for, does not delay the run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from privet.client_apps.state_tables import StateTable
from privet.core import RunError
from privet.core.errors import one_line
from privet.sim.ray.batches import Arena, new_arena
from privet.sim.ray.session import cluster_cpus, cluster_gpus

log = logging.getLogger("flwr.privet")

START_PATIENCE = 180.0
"""Seconds the processes may take to start."""
STATES_PATIENCE = 60.0
"""Seconds the actors may take to hand over, or to take back, the states of their agents."""
DEATH_PATIENCE = 1.0
"""Seconds within which all calls of an actor that has ended have failed."""
MOST_FAILURES = 3
"""Replacements of one seat that may fail to start in a row."""

Start = Callable[[list[int], str], Any]
"""Makes the actor for some nodes, which finds its arena at an address ("" where there is none)."""


@dataclass(slots=True)
class Seat:
    """An actor, its nodes, and the memory for its messages and replies.

    ``ready`` is the reference to the actor's answer that its ClientApp is made. ``shared`` is true
    if the actor is known to see the arena. ``failures`` counts the actors in a row that did not
    start in this seat before this one.
    """

    number: int
    nodes: list[int]
    actor: Any
    ready: Any
    arena: Arena | None
    shared: bool = False
    failures: int = 0


class Actors:
    """The actors of a ``RayGrid``.

    Parameters
    ----------
    ray : module
        Connected.
    start : callable
        Makes an actor.
    blocks : iterable of lists of int
        The nodes of each actor.

    Attributes
    ----------
    seats : list of Seat
    number : dict of int to int
        The number of a node's seat.
    """

    def __init__(self, ray: Any, start: Start, blocks: Iterable[list[int]]) -> None:
        self._ray = ray
        self._start = start
        self.seats = [self._seat(number, nodes) for number, nodes in enumerate(blocks)]
        self.number = {node: seat.number for seat in self.seats for node in seat.nodes}

    def wait_until_ready(self) -> None:
        """Wait for all actors to start (raises ``RunError`` where one does not)."""
        ready = [seat.ready for seat in self.seats]
        _, missing = self._ray.wait(ready, num_returns=len(ready), timeout=START_PATIENCE)
        if missing:
            cpus, gpus = cluster_cpus(self._ray), sum(cluster_gpus(self._ray))
            raise RunError(
                f"{len(missing)} of {len(ready)} actors did not start within {START_PATIENCE:g} s: "
                f"Ray has {cpus} CPUs and {gpus:g} GPUs, which others may use"
            )
        try:
            self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            raise RunError(f"the ClientApp could not be made: {last_line(error)}") from None

    def lost(self, seat: Seat, error: Exception) -> str:
        """Return why a seat gave no answer; if its actor is gone, another one takes its place.

        Raises
        ------
        RunError
            If one replacement after the other has failed to start.
        """
        if not isinstance(error, self._ray.exceptions.RayActorError):
            return last_line(error)
        started = self._has_started(seat)
        why = "its process ended" if started else f"its process did not start: {last_line(error)}"
        if self.seats[seat.number] is seat:
            self._replace(seat, 0 if started else seat.failures + 1, why)
        return why

    def states(self, busy: Container[int]) -> list[StateTable]:
        """Return the state of every agent that has one.

        The agents of seats that are ``busy``, that do not answer in time, or whose actor is gone
        count as holding none; a warning says so.
        """
        without: Counter[str] = Counter()
        requests: dict[Any, Seat] = {}
        for seat in self.seats:
            if seat.number in busy:
                without["still at work on an earlier round"] += len(seat.nodes)
            else:
                requests[seat.actor.states.remote()] = seat
        states: list[StateTable] = []
        for reference, error in self._answers(list(requests), states.extend):
            without[error] += len(requests[reference].nodes)
        if without:
            log.warning(
                "the checkpoint holds no state of %d of %d agents: %s",
                without.total(),
                len(self.number),
                "; ".join(f"{why} ({count})" for why, count in without.items()),
            )
        return states

    def restore(self, states: Sequence[StateTable]) -> None:
        """Restore the states that ``states`` returned (raises ``RunError`` if an actor cannot)."""
        sent = self._ray.put(list(states))
        requests = [seat.actor.restore.remote(sent) for seat in self.seats]
        for _, error in self._answers(requests, lambda _: None):
            raise RunError(f"the agents' states could not be put back: {error}")

    def end(self) -> None:
        """End the actors and let go of their memory."""
        for seat in self.seats:
            self._ray.kill(seat.actor)
            seat.arena = None

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

    def _seat(self, number: int, nodes: list[int]) -> Seat:
        arena = new_arena()
        actor = self._start(nodes, arena.address if arena else "")
        return Seat(number, nodes, actor, actor.ready.remote(), arena)

    def _has_started(self, seat: Seat) -> bool:
        """Return whether an actor that is gone had made its ClientApp before."""
        try:
            self._ray.get(seat.ready, timeout=DEATH_PATIENCE)
        except self._ray.exceptions.RayError:
            return False
        return True

    def _replace(self, seat: Seat, failures: int, why: str) -> None:
        place = f"process {seat.number + 1} of {len(self.seats)}"
        if failures >= MOST_FAILURES:
            raise RunError(f"{place} was replaced {failures} times in a row without success: {why}")
        log.warning(
            "%s is replaced, its %d agents lost their state: %s", place, len(seat.nodes), why
        )
        successor = self._seat(seat.number, seat.nodes)
        successor.failures = failures
        self.seats[seat.number] = successor


def last_line(error: Exception) -> str:
    """Return the last line of a Ray error, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)
