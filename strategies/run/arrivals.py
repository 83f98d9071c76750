"""Waiting for the nodes before a run, or a round, begins."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from privet.wire import RunError


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
