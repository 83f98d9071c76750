"""The in-process engine keeps freed memory, and its memory stays flat over many rounds."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from privet.problems import BinaryLogistic
from privet.sim.grid import keep_freed_memory
from privet.sim.inline import grid_of
from privet.strategies import FedPLT, Fraction
from support.federations import logistic_agents, train, zeros
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_agents_that_work_together_hold_their_data_once_and_states_where_they_took_part() -> None:
    """Their data are 50 MB, and tables of all their states before and after a round 100 MB."""
    agents, dim = 400, 8_000
    rng = np.random.default_rng(0)
    pool, signs = rng.standard_normal((100, dim)), np.where(rng.random(100) < 0.5, -1, 1)
    before = resident_megabytes()
    problems = [BinaryLogistic(pool[i : i + 2], signs[i : i + 2]) for i in np.arange(agents) % 98]
    grid = grid_of("fed-plt", problems, engine="cohort")
    strategy = FedPLT(num_agents=agents, participation=Fraction(0.02), local_epochs=2)
    strategy.start(grid, zeros(dim), num_rounds=2)
    assert resident_megabytes() - before < 90
