"""The Ray engine's share of ``bench engine``: messages a second, and agents that compute.

The agents that compute are Fed-PLT's on multinomial logistic regression of 28 x 28 images in ten
classes (7850 parameters): on MNIST where its file is given, else on noise of the same size, which
costs the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp

from privet.client_apps import client_app
from privet.data import federation_from_config
from privet.kernel import stream
from privet.problems import L2, MultinomialLogistic
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.sim.ray.engine import RayGrid
from privet.sim.ray.session import local_cpus, ray_session
from privet.strategies import FedPLT

from . import echo
from .figure import Figure, Show, best_seconds

AGENTS, ROWS, PIXELS, CLASSES, LOCAL_EPOCHS = 100, 160, 784, 10, 10
DIM = (PIXELS + 1) * CLASSES
SPEED_GOAL = 1.5


def bench_sharded(show: Show, *, quick: bool, data_path: str = "") -> None:
    """Compare the Ray engine with the in-process one where agents compute."""
    with ray_session(num_cpus=local_cpus()):
        _computing(show, 2 if quick else 10, data_path)


def sharded_rates(repeats: int) -> dict[int, float]:
    """Return the Ray engine's messages a second by size, the best of some rows of rounds."""
    rates: dict[int, float] = {}
    with ray_session(num_cpus=local_cpus()), RayGrid(echo.client, AGENTS) as grid:
        for size in (10, 10_000, 1_000_000):
            rounds = max(1, min(10, 1_000_000 // size))
            turns = range(repeats if size <= echo.SMALL else 2)
            best = min(echo.exchange_seconds(grid, size, rounds) for _ in turns)
            rates[size] = AGENTS * rounds / best
    return rates


def _computing(show: Show, turns: int, data_path: str) -> None:
    """Time one round on either engine, taking turns so that both meet the same machine."""
    factory = partial(image_app, data_path)
    with RayGrid(factory, AGENTS) as grid:
        steps = {
            "inline": _rounds(InlineGrid(factory(), AGENTS)),
            "Ray engine": _rounds(grid),
        }
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(turns):
            for name, step in steps.items():
                best[name] = min(best[name], best_seconds(step, 1))
        actors = len(grid.actors)
    case = f"{'MNIST' if data_path else 'images'}, d = {DIM}, {AGENTS} agents"
    for name, seconds in best.items():
        show(Figure("engine", case, f"{name}, ms a round", seconds * 1e3))
    ratio = best["inline"] / best["Ray engine"]
    show(Figure("engine", case, f"inline / Ray engine, {actors} actors", ratio, SPEED_GOAL))


def _rounds(grid: Any) -> Callable[[], None]:
    """Return what plays the next round of a run on a grid."""
    strategy = FedPLT(num_agents=AGENTS, rho=10.0, local_epochs=LOCAL_EPOCHS)
    session = strategy.begin(grid, ArrayRecord({"x": Array(np.zeros(DIM))}))

    def step() -> None:
        strategy.play_round(grid, session.round + 1)

    step()  # the agents' problems are built in the first round
    return step


def image_app(data_path: str) -> ClientApp:
    """Return the ClientApp of the agents with images."""
    problems: Any = _mnist(data_path) if data_path else None

    def problem(context: Context) -> Any:
        number = int(context.node_config["partition-id"])
        return _noise(number) if problems is None else problems[number]

    return client_app("fed-plt", problem)


def _mnist(data_path: str) -> Any:
    config = {"dataset": "mnist", "data-path": data_path, "intercept": "yes", "partition": "iid"}
    return federation_from_config(read_config(config), AGENTS).problems


def _noise(number: int) -> MultinomialLogistic:
    rng = stream(number, "bench")
    images = np.hstack([rng.random((ROWS, PIXELS)), np.ones((ROWS, 1))])
    return MultinomialLogistic(images, rng.integers(0, CLASSES, ROWS), CLASSES, regularizer=L2(0.1))
