"""How long the graph federated learning paper's regression takes in process."""

from __future__ import annotations

import time

from privet.core.log_level import hushed
from studies import Case
from studies.runner import play
from studies.workloads import build

from .figure import Figure, Show, undisturbed

GOAL = 20.0
ROUNDS = 100


def bench_gfl(show: Show, *, quick: bool = False) -> None:
    """Play 100 rounds of Section V-A: 10 units of 100 agents, 11 of each a round."""
    rounds = 10 if quick else ROUNDS
    settings = {
        "step_size": 0.7,
        "batch": "sample",
        "perturbation": "homomorphic",
        "noise_variance": 0.1,
        "mechanism": "laplace",
        "noise_seed": 0,
    }
    workload = {"name": "regression", "draw": 0}
    build(workload)
    case = Case("bench", 0, workload, "gfl", settings, rounds, "deviation")
    with hushed(), undisturbed():
        begin = time.perf_counter()
        play(case)
        seconds = time.perf_counter() - begin
    what = "10 units x 100 agents, L = 11"
    show(Figure("gfl", what, "seconds a round", seconds / rounds))
    show(
        Figure("gfl", what, f"seconds for {ROUNDS} rounds", seconds * ROUNDS / rounds, GOAL, False)
    )
