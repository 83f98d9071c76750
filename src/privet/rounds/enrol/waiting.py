"""The wait for nodes: before a run or a round, and for the agents of a checkpoint.

A resumed run goes on without those that stay away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from flwr.serverapp import Grid

from privet.core import RunError
from privet.wire import sort_names

from ..roster import EnrolledAgent

log = logging.getLogger("flwr.privet")

REPEAT = 10.0
"""Seconds between two log lines that name the missing agents."""
NAMED = 10
"""Agents named in a line at most."""
STABLE = 1.0
"""Seconds without a new node after which the connected nodes are taken to be all."""
LOOK = 0.1
"""Seconds between two looks at the grid."""


def wait_for_nodes(grid: Grid, wanted: int, least: int, timeout: float) -> None:
    """Wait until the nodes are there, before a run or a round begins.

    With ``wanted`` > 0, until that many are connected; otherwise until at least ``least`` are and
    the number has not changed for a second.

    Raises
    ------
    RunError
        When ``timeout`` seconds pass first: one line with the number that came and the flag.
    """
    begin = time.monotonic()
    count, since = -1, begin
    while True:
        now = time.monotonic()
        connected = len(list(grid.get_node_ids()))
        if connected != count:
            count, since = connected, now
        if wanted > 0 and count >= wanted:
            return
        if wanted == 0 and count >= least and now - since >= STABLE:
            return
        if now - begin >= timeout:
            need = wanted or least
            raise RunError(
                f"waited {timeout:g} s for {need} agents and {count} came: start more SuperNodes, "
                f"or in simulation give --federation-config 'num-supernodes={need}'"
            )
        time.sleep(min(0.1, timeout))


def wait_for_return(
    grid: Grid,
    saved: Mapping[str, EnrolledAgent],
    wanted: int,
    least: int,
    timeout: float,
    patience: float,
    stopping: threading.Event,
) -> None:
    """Wait until a resumed run can begin.

    It begins when ``wanted`` nodes are connected (with 0: ``least``, and no more for a second).
    After ``timeout`` seconds ``least`` of them are enough; with fewer it waits for ``patience``
    seconds more. About every ten seconds a line names the agents that are missing.

    Parameters
    ----------
    saved : mapping of str to Agent
        The checkpoint's agents.

    Raises
    ------
    RunError
        If fewer than ``least`` are connected at the end, or ``stopping`` is set.
    """
    begin = time.monotonic()
    logged, count, since = begin, -1, begin
    while True:
        now = time.monotonic()
        online = frozenset(grid.get_node_ids())
        if len(online) != count:
            count, since = len(online), now
        if wanted > 0 and count >= wanted:
            return
        if wanted == 0 and count >= least and now - since >= STABLE:
            return
        waited = now - begin
        if waited >= timeout and count >= least:
            log.warning("resume: %s; the run goes on without them", _missing(saved, online, wanted))
            return
        if waited >= timeout + patience:
            raise RunError(
                f"resume: waited {waited:.0f} s; {_missing(saved, online, wanted)}, below "
                f"min-agents = {least}: start their SuperNodes and resume again"
            )
        if now - logged >= REPEAT:
            logged = now
            log.info("resume: waiting for agents: %s", _missing(saved, online, wanted))
        if stopping.wait(min(LOOK, max(timeout, LOOK / 10))):
            raise RunError("asked to stop while waiting for the agents of the checkpoint")


def _missing(saved: Mapping[str, EnrolledAgent], online: frozenset[int], wanted: int) -> str:
    """Return a line with the number of connected nodes and the names of missing agents.

    If nodes have other ids than before, as without keys, their agents are not known yet.
    """
    away = [name for name, agent in saved.items() if agent.node not in online]
    strangers = len(online - {agent.node for agent in saved.values()})
    line = f"{len(online)} of {wanted or len(saved)} nodes are connected"
    if away:
        more = f" and {len(away) - NAMED} more" if len(away) > NAMED else ""
        line += f"; not seen: agents {', '.join(sort_names(away)[:NAMED])}{more}"
    if away and strangers:
        line += f" ({strangers} connected under a new node id may be among them)"
    return line
