"""How long the graph federated learning paper's regression takes in process."""

from __future__ import annotations

import time

from privet.sim.experiments.gfl import regression_network, run
from privet.sim.logs import hushed

from .figure import Figure, Show, undisturbed

GOAL = 20.0
ROUNDS = 100


def bench_gfl(show: Show, *, quick: bool = False) -> None:
    """Play 100 rounds of Section V-A: 10 units of 100 agents, 11 of each a round."""
    network = regression_network()
    rounds = 10 if quick else ROUNDS
    with hushed(), undisturbed():
        begin = time.perf_counter()
        run(network, rounds)
        seconds = time.perf_counter() - begin
    case = "10 units x 100 agents, L = 11"
    show(Figure("gfl", case, "seconds a round", seconds / rounds))
    show(
        Figure("gfl", case, f"seconds for {ROUNDS} rounds", seconds * ROUNDS / rounds, GOAL, False)
    )
