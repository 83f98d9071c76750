"""The in-process engine keeps freed memory, and its memory stays flat over many rounds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from privet.sim.memory import keep_freed_memory
from privet.strategies.loop import play_round
from support.federations import logistic_agents, train


def resident_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
def test_glibc_accepts_the_settings() -> None:
    assert keep_freed_memory()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_ten_thousand_rounds() -> None:
    """Only the history grows, by less than two kilobytes a round."""
    problems = logistic_agents(5)
    _, strategy, grid = train(problems, 500)
    before = resident_megabytes()
    for number in range(501, 10_001):
        play_round(strategy, grid, number, evaluate=False)
    assert resident_megabytes() - before < 9_500 * 2 / 1024
