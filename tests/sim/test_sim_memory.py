"""The in-process engine keeps freed memory, and its memory stays flat over many rounds."""

from __future__ import annotations

import sys

import pytest

from privet.sim.grid import keep_freed_memory
from support.federations import logistic_agents, train
from support.memory import resident_megabytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
def test_glibc_accepts_the_settings() -> None:
    assert keep_freed_memory()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_ten_thousand_rounds() -> None:
    """Only the history grows, by less than a kilobyte a round."""
    problems = logistic_agents(5)
    _, strategy, grid = train(problems, 1_000)
    before = resident_megabytes()
    for number in range(1_001, 10_001):
        strategy.play_round(grid, number)
    assert resident_megabytes() - before < 9_000 / 1024
