"""DP-IADMM on MNIST-10k: the runs behind the tables.

Setting of the tables: P = 10 agents, iid, pixel / 255, no intercept, zero start, beta = 1e-6,
softmax regression, float32. Noise is seeded, so that a table can be computed again; the epsilons
are those of the same releases with the system's noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.client_apps import client_app
from privet.client_apps.guard import NoiseFactory
from privet.datasets import Federation, federation_from_config
from privet.privacy import AgentLedger, Facts
from privet.server_apps.calibration import Plan, smallest
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM
from privet.strategies.loop import play_round

AGENTS, BETA, DELTA = 10, 1e-6, 1e-5
Settings = Mapping[str, Any]

PAPER: Settings = {
    "mechanism": "laplace",
    "sensitivity": "paper",
    "rho_c1": 2.0,
    "rho_c2": 5.0,
    "rho_period": 10_000,
}
"""The paper's choice for MNIST: eta = 1/sqrt(t), rho by (24), noise scaled by the data."""


@dataclass(frozen=True, slots=True)
class Course:
    """One run: test errors in per cent of the last model, by round."""

    rounds: tuple[int, ...]
    errors: tuple[float, ...]
    average: float
    """Of the average with weights 2t / (T (T + 1)), at the end."""
    epsilon: float
    """What the releases cost at ``DELTA``; infinite without an account."""

    @property
    def final(self) -> float:
        """Error of the last model after the last round."""
        return self.errors[-1]

    def at(self, round_: int) -> float:
        """Error after a round."""
        return self.errors[self.rounds.index(round_)]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to be private, and the settings that are tried for it: all have equally many."""

    name: str
    perturbation: str
    mechanism: str
    local_updates: int
    clips: tuple[float, ...] = (0.5, 1.0, 2.0)
    rhos: tuple[float, ...] = (0.03, 0.1)
    smoothnesses: tuple[float, ...] = (0.1, 0.3, 1.0)
    row_norm: float = 0.0

    def settings(self, epsilon: float, work: int, facts: Facts) -> Iterable[dict[str, Any]]:
        """Return the settings to try: ``work`` gradients an agent, epsilon in total."""
        rounds = work // self.local_updates
        for clip in self.clips:
            noisy = {
                "perturbation": self.perturbation,
                "mechanism": self.mechanism,
                "local-updates": self.local_updates,
                "row-norm": self.row_norm,
                "clip": clip,
            }
            plan = Plan((), facts, tuple(range(1, rounds + 1)))
            scale = smallest("dp-iadmm", noisy, [plan], epsilon, DELTA)
            for rho in self.rhos:
                for smoothness in self.smoothnesses:
                    yield {
                        "perturbation": self.perturbation,
                        "mechanism": self.mechanism,
                        "local_updates": self.local_updates,
                        "eta_rule": "smooth",
                        "smoothness": smoothness,
                        "rho": rho,
                        "clip": clip,
                        "noise_scale": scale,
                        "row_norm": self.row_norm,
                        "delta": DELTA,
                    }


LAPLACE: Any = {"clips": (5.0, 20.0, 80.0), "smoothnesses": (0.3, 1.0, 3.0)}
"""Clips of the l1 norm, and more damping for the larger noise."""

VARIANTS: tuple[Variant, ...] = (
    Variant("objective, Gaussian", "objective", "gaussian", 1),
    Variant("objective, Gaussian", "objective", "gaussian", 10),
    Variant("objective, Laplace", "objective", "laplace", 1, **LAPLACE),
    Variant("objective, Laplace", "objective", "laplace", 10, **LAPLACE),
    Variant("output, Gaussian", "output", "gaussian", 1),
    # Its certificate needs bounded rows and steps that do not spread differences much.
    Variant(
        "output, Gaussian",
        "output",
        "gaussian",
        10,
        rhos=(0.5, 2.0),
        smoothnesses=(1.0, 3.0, 10.0),
        row_norm=5.0,
    ),
)


def mnist(path: str) -> Federation:
    """Return the ten agents of MNIST-10k and the held-out digits."""
    config = {
        "algorithm": "dp-iadmm",
        "dataset": "mnist",
        "data-path": path,
        "partition": "iid",
        "dtype": "float32",
        "beta": BETA,
        "intercept": "no",
    }
    return federation_from_config(config, AGENTS)


def run(
    federation: Federation,
    rounds: int,
    settings: Settings,
    *,
    seed: int,
    every: int = 0,
    noise_factory: NoiseFactory | None = None,
) -> Course:
    """Run DP-IADMM on the in-process engine and evaluate every so many rounds (0: at the end)."""
    problems = federation.problems
    app = client_app(
        "dp-iadmm",
        lambda context: problems[int(context.node_config["partition-id"])],
        noise_factory=noise_factory,
    )
    grid = InlineGrid(app, len(problems))
    strategy = DPIADMM(num_agents=len(problems), noise_seed=seed, **settings)
    start = np.zeros(federation.dim, problems[0].dtype)
    session = strategy.begin(grid, ArrayRecord({"x": Array(start)}))
    numbers, errors = [], []
    for number in range(1, rounds + 1):
        play_round(strategy, grid, number, evaluate=False)
        if number == rounds or (every and number % every == 0):
            numbers.append(number)
            errors.append(_error(federation, strategy.half.models(session.state)["last"]))
    models = strategy.half.models(session.state)
    ledgers = [agent.ledger for agent in session.roster.agents.values()]
    epsilon = math.inf
    if all(ledgers):
        epsilon = max(AgentLedger.from_json(text).spent(DELTA) for text in set(ledgers))
    average = _error(federation, models["weighted-average"])
    return Course(tuple(numbers), tuple(errors), average, epsilon)


def _error(federation: Federation, model: np.ndarray) -> float:
    return 100.0 * (1.0 - federation.evaluate(model)["accuracy"])
