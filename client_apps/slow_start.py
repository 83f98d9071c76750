"""A ClientApp that starts so slowly that Flower is about to give it up."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

log = logging.getLogger("flwr.privet")

SLOW = 15.0
"""Seconds of Flower's 30 after which a start is worth a line."""


def process_age() -> float:
    """Return the seconds since this process was started, 0 where the system does not say."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return 0.0


def warn_of_slow_start() -> None:
    """Warn, in a process that Flower started for one message, if it took long to come this far."""
    if Path(sys.argv[0]).name == "flwr-clientapp" and (age := process_age()) > SLOW:
        log.warning(
            "this ClientApp needed %.0f s to start; Flower gives a process 30 s, and a node whose "
            "processes need more answers nothing: import less, or free the machine",
            age,
        )
