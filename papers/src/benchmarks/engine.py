"""Messages per second of the engines, and what a coordinator costs.

The same code, a client that reads its model and sends it back, runs on the in-process engine and
in Flower's Ray simulation, on the same arrays, with this library's messages and with Flower's own
FedAvg; with this library's messages on the Ray engine as well (``sharded``). Then Fed-PLT is set
against FedAvg on the in-process engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.kernel import stream
from privet.problems import L2, BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from privet.strategies import FedPLT

from . import echo
from .cohort import bench_cohort, bench_peers
from .command import bench_command
from .figure import Figure, Show, best_seconds, undisturbed
from .sharded import bench_sharded, sharded_rates

AGENTS = 100
SIZES = (10, 10_000, 1_000_000)
RATIO_GOALS = {10: 30.0, 10_000: 30.0, 1_000_000: 10.0}
SHARDED_GOALS = {10: 30.0, 10_000: 30.0, 1_000_000: 10.0}


def bench_engine(
    show: Show, *, quick: bool = False, data_path: str = "", peers: Sequence[str] = ()
) -> None:
    """Compare the engines with each other, Flower's simulation and peers, and Fed-PLT with FedAvg.

    ``data_path`` is MNIST's file, for the agents that compute; ``peers`` are interpreters that have
    other libraries.
    """
    quiet()
    bench_sharded(show, quick=quick, data_path=data_path)
    # On either side of Flower's simulation, so that all three have met the same machine.
    before = _own_rates(quick)
    simulated = _ray_rates(quick)
    after = _own_rates(quick)
    for size, (its_own, its_averaged) in simulated.items():
        own, averaged, sharded = map(max, before[size], after[size])
        show(Figure("engine", _case(size), "inline, messages/s", own))
        show(Figure("engine", _case(size), "inline, FedAvg, messages/s", averaged))
        show(Figure("engine", _case(size), "Ray engine, messages/s", sharded))
        show(Figure("engine", _case(size), "Ray simulation, messages/s", its_own))
        show(Figure("engine", _case(size), "Ray simulation, FedAvg, messages/s", its_averaged))
        ratio = own / its_own
        show(Figure("engine", _case(size), "inline / Ray simulation", ratio, RATIO_GOALS[size]))
        ratio = sharded / its_own
        goal = SHARDED_GOALS[size]
        show(Figure("engine", _case(size), "Ray engine / Ray simulation", ratio, goal))
        ratio = averaged / its_averaged
        show(Figure("engine", _case(size), "inline / Ray simulation, FedAvg", ratio))
    bench_cohort(show, quick=quick)
    bench_command(show, quick=quick)
    bench_peers(show, quick=quick, interpreters=peers)
    _fed_plt_against_fed_avg(show, quick)
    for agents in (10, 100, 1000):
        _coordinator(show, agents)


def _case(size: int) -> str:
    return f"{size:g} floats, {AGENTS} agents"


def _own_rates(quick: bool) -> dict[int, tuple[float, float, float]]:
    """Return messages per second by size: in-process, FedAvg's in-process, on the Ray engine."""
    sharded = sharded_rates(2 if quick else 12)
    return {size: (*_inline_rates(size, 1 if quick else 3), sharded[size]) for size in SIZES}


def _inline_rates(size: int, repeats: int) -> tuple[float, float]:
    """Return messages per second of this library's messages and of FedAvg's, the best of some."""
    grid = InlineGrid(echo.client(), AGENTS)
    rounds = max(1, min(10, 1_000_000 // size))
    own = min(echo.exchange_seconds(grid, size, rounds) for _ in range(repeats))
    averaged = min(echo.fed_avg_seconds(grid, size, rounds) for _ in range(repeats))
    return AGENTS * rounds / own, AGENTS * rounds / averaged


def _ray_rates(quick: bool) -> dict[int, tuple[float, float]]:
    """Run the echo app in Flower's simulation; it prints its own rates, the best of some."""
    from support.simulation import run_simulation

    rates: dict[int, tuple[float, float]] = {}

    def read(line: str) -> None:
        _, marker, text = line.partition(echo.MARKER)
        if marker:
            found = json.loads(text)
            rates[int(found["size"])] = (float(found["own"]), float(found["fed-avg"]))

    with tempfile.TemporaryDirectory(prefix="privet-bench-") as folder:
        app = Path(folder, "echo-app")
        app.mkdir()
        for name, text in echo.APP_FILES.items():
            (app / name).write_text(text)
        outcome = run_simulation(
            app,
            num_supernodes=AGENTS,
            run_config={
                "sizes": ",".join(map(str, SIZES)),
                "rounds": 1 if quick else 2,
                "turns": 1 if quick else 3,
            },
            on_line=read,
        )
    if not outcome.completed:
        raise RuntimeError(f"the echo app failed: {outcome.details}")
    return rates


def _fed_plt_against_fed_avg(show: Show, quick: bool) -> None:
    """Time one message of Fed-PLT (5 local steps on 250 x 5) and one of FedAvg, interleaved."""
    rng = stream(0, "bench")
    problems = [
        BinaryLogistic(
            rng.standard_normal((250, 5)),
            np.where(rng.random(250) < 0.5, -1, 1),
            regularizer=L2(0.5),
        )
        for _ in range(AGENTS)
    ]
    grid = grid_of("fed-plt", problems, engine="inline")
    strategy = FedPLT(num_agents=AGENTS, local_epochs=5)
    session = strategy.begin(grid, ArrayRecord({"x": Array(np.zeros(5))}))
    echo_grid = InlineGrid(echo.client(), AGENTS)
    ours, theirs = [], []
    for _ in range(3 if quick else 40):
        ours.append(best_seconds(lambda: _round(strategy, grid, session), 1))
        with undisturbed():
            theirs.append(echo.fed_avg_seconds(echo_grid, 5, 1))
    message, reference = min(ours) / AGENTS, min(theirs) / AGENTS
    case = "250 x 5 logistic, 5 local steps"
    show(Figure("engine", case, "Fed-PLT, microseconds", message * 1e6))
    show(Figure("engine", case, "FedAvg with an empty client, microseconds", reference * 1e6))
    show(
        Figure("engine", case, "Fed-PLT / FedAvg message", message / reference, 1.0, at_least=False)
    )


def _round(strategy: FedPLT, grid: InlineGrid, session: Any) -> None:

    strategy.play_round(grid, session.round + 1)


def _coordinator(show: Show, agents: int) -> None:
    """Measure a coordinator in a process of its own: peak memory and its own time per round."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.coordinator", str(agents), "10000"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    found = json.loads(done.stdout)
    case = f"{agents} agents, d = 10000"
    show(Figure("engine", case, "coordinator, ms a round", found["milliseconds"]))
    show(Figure("engine", case, "coordinator, peak MB above idle", found["megabytes"]))
