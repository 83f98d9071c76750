"""Section V of the graph federated learning paper: its problem, and the real run of it.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning". `run` plays the Strategy,
ClientApps and messages on the in-process engine; ``gfl_simulated.py`` computes the same recursion
on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.datasets.regression import regression
from privet.problems import L2, LinearModel, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.sim.grid import NodeConfig
from privet.strategies import GFL
from privet.strategies.gfl.graph import Matrix, graph_edges, metropolis
from privet.wire import stream

Vector = NDArray[Any]

GRAPH: Mapping[str, Any] = {"seed": 1, "probability": 0.4}
"""Of the random graph; the paper does not give its own."""
RHO, MU, VARIANCE = 0.1, 0.7, 0.1
EPOCHS, BATCHES, PARTICIPANTS = (1, 10), (5, 10), 11


@dataclass(frozen=True)
class Network:
    """A problem of Section V: every agent's data and settings, and the graph.

    Attributes
    ----------
    problems : tuple of LinearModel
        In the order of the units, equally many each.
    units : int
    epochs, batches : tuple of int
        E_k and B_k of every agent.
    participants : int
        L.
    weights : array (P, P)
    """

    problems: tuple[LinearModel[Any], ...]
    units: int
    epochs: tuple[int, ...]
    batches: tuple[int, ...]
    participants: int
    weights: Matrix = field(repr=False)

    @property
    def each(self) -> int:
        """Agents of a unit, K."""
        return len(self.problems) // self.units

    @cached_property
    def optimum(self) -> Vector:
        """w^o, the minimiser of the mean of all agents' losses."""
        from privet.problems import Zero, minimize

        return minimize(self.problems, Zero()).x


@lru_cache(maxsize=4)
def regression_network(
    units: int = 10, each: int = 100, seed: int = 0, graph: str = "erdos-renyi"
) -> Network:
    """Return the problem of Section V-A: two features, 100 examples an agent."""
    agents, examples = units * each, 100
    data = regression(seed, 2, agents * examples, agents)
    features = data.train_features.reshape(agents, examples, 2)
    targets = data.train_labels.reshape(agents, examples)
    problems = tuple(
        RidgeRegression(u, d, regularizer=L2(2 * RHO))
        for u, d in zip(features, targets, strict=True)
    )
    rng = stream(seed, "gfl agents")
    epochs = tuple(int(e) for e in rng.integers(EPOCHS[0], EPOCHS[1] + 1, agents))
    batches = tuple(int(b) for b in rng.integers(BATCHES[0], BATCHES[1] + 1, agents))
    weights = metropolis(graph_edges(graph, units, **GRAPH), units)
    return Network(problems, units, epochs, batches, min(PARTICIPANTS, each), weights)


@dataclass(frozen=True, slots=True)
class Course:
    """Squared deviations after every round: of the centroid (58), and the units' mean (59)."""

    centroid: Vector
    units: Vector

    def steady(self, burn_in: int) -> tuple[float, float]:
        """Return the means after ``burn_in`` rounds."""
        return float(self.centroid[burn_in:].mean()), float(self.units[burn_in:].mean())


# ------------------------------------------------------------------ the real one


def run(
    network: Network,
    rounds: int,
    *,
    mu: float = MU,
    variance: float = VARIANCE,
    kind: str = "homomorphic",
    seed: int = 0,
    evaluate: Any = None,
    **options: Any,
) -> Course:
    """Play Strategy, ClientApps and messages in process.

    ``evaluate(models) -> number`` replaces the squared deviation of the centroid; ``options`` are
    further arguments of `GFL`.
    """
    nodes: list[NodeConfig] = [
        {
            "partition-id": index,
            "num-partitions": len(network.problems),
            "unit": str(index // network.each),
            "local-epochs": network.epochs[index],
            "batch-size": network.batches[index],
        }
        for index in range(len(network.problems))
    ]
    centroid: list[float] = []
    units: list[float] = []

    def monitor(round_: int, models: Mapping[str, Vector]) -> dict[str, float]:
        if evaluate is not None:
            centroid.append(evaluate(models["last"]))
            return {}
        best = network.optimum
        own = [model for name, model in models.items() if name != "last"]
        centroid.append(_square(models["last"] - best))
        units.append(float(np.mean([_square(model - best) for model in own])))
        return {}

    strategy = GFL(
        weights=network.weights,
        step_size=mu,
        batch="sample",
        participants=network.participants,
        perturbation=kind,
        noise_variance=variance,
        mechanism="laplace",
        noise_seed=seed,
        seed=seed,
        num_agents=len(nodes),
        monitor=monitor,
        **options,
    )

    def problem(context: Context) -> LinearModel[Any]:
        return network.problems[int(context.node_config["partition-id"])]

    start = ArrayRecord({"w": Array(np.zeros(network.problems[0].dim))})
    strategy.start(InlineGrid(client_app("gfl", problem), nodes), start, num_rounds=rounds)
    return Course(np.array(centroid), np.array(units))


def _square(vector: Vector) -> float:
    return float(vector @ vector)
