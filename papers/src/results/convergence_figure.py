"""The README's curves, distance to the centralised optimum over rounds; light and dark.

``.venv/bin/python -m results.convergence_figure docs/images``
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.data import Federation, federation_from_config
from privet.kernel import Problem
from privet.problems import minimize
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedPLT, Fraction, Participation, PrimalDualStrategy, Round
from results.themes import themed

AGENTS, ROUNDS, LOCAL_STEPS = 10, 60, 30
"""Fed-PLT's Newton steps cost up to as many gradients a round as FedAvg takes steps."""
STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 1.9, 3.0)
"""Steps of FedAvg that are tried, in units of 1/L; beyond 2 a gradient step alone diverges."""
MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95)
"""Server momenta that are tried with each; 0 is FedAvg."""


def fed_plt(
    federation: Federation, optimum: NDArray[Any], participation: Participation | None
) -> list[float]:
    """Return ||x - x*|| after every round of Fed-PLT at its defaults."""
    found: list[float] = []

    def watch(done: Round, strategy: PrimalDualStrategy) -> None:
        model = strategy.run.model
        found.append(float(np.linalg.norm(model - optimum)))

    strategy = FedPLT(num_agents=AGENTS, participation=participation)
    grid = InlineGrid(client_app("fed-plt", lambda context: _problem(federation, context)), AGENTS)
    strategy.start(grid, _zeros(federation), num_rounds=ROUNDS, observers=(watch,))
    return found


def fed_avg(
    federation: Federation, optimum: NDArray[Any], step: float, momentum: float
) -> list[float]:
    """Return ||x - x*|| after every round of Flower's FedAvg with as many local gradient steps.

    With a server momentum it is FedAvgM (T.-M. H. Hsu, H. Qi, M. Brown, 2019).
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        problem = _problem(federation, context)
        x = message.content["arrays"]["x"].numpy()  # type: ignore[union-attr]
        for _ in range(LOCAL_STEPS):
            x = x - step * problem.gradient(x)
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord({"x": Array(x)}), "metrics": metrics})
        return Message(content, reply_to=message)

    found: list[float] = []

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number:
            found.append(float(np.linalg.norm(arrays["x"].numpy() - optimum)))

    common: dict[str, Any] = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": AGENTS,
        "min_available_nodes": AGENTS,
    }
    strategy = FedAvgM(server_momentum=momentum, **common) if momentum else FedAvg(**common)
    strategy.start(
        InlineGrid(app, AGENTS), _zeros(federation), num_rounds=ROUNDS, evaluate_fn=evaluate
    )
    return found


def _problem(federation: Federation, context: Context) -> Problem:
    return federation.problems[int(context.node_config["partition-id"])]


def _zeros(federation: Federation) -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(federation.dim))})


def draw(folder: Path) -> None:
    """Run everything and write the pictures."""
    quiet()
    federation = federation_from_config({}, AGENTS)  # scikit-learn's weight, C = 1
    optimum = minimize(federation.problems).x
    smoothness = max(problem.moduli.smoothness for problem in federation.problems)
    # Rivals get the best of a grid, judged by their own last distance.
    tried = {
        (factor, momentum): fed_avg(federation, optimum, factor / smoothness, momentum)
        for factor, momentum in product(STEPS, MOMENTA)
    }
    plain = min((one for one in tried if not one[1]), key=lambda one: tried[one][-1])
    heavy = min((one for one in tried if one[1]), key=lambda one: tried[one][-1])
    for factor, momentum in (plain, heavy):
        ended = factor in (STEPS[0], STEPS[-1]) or momentum == MOMENTA[-1]
        print(f"step {factor:g} / L, momentum {momentum:g}{', the end of the grid' * ended}")
    curves = {
        "Fed-PLT, all agents every round": fed_plt(federation, optimum, None),
        "Fed-PLT, half of the agents": fed_plt(federation, optimum, Fraction(0.5)),
        f"FedAvg, all agents, best of {len(STEPS)} steps": tried[plain],
        "FedAvgM, all agents, best of 28 settings": tried[heavy],
    }

    def plot(figure: Any) -> None:
        axes = figure.add_subplot()
        for label, curve in curves.items():
            axes.semilogy(range(1, ROUNDS + 1), curve, label=label)
        axes.set_xlabel(f"round ({LOCAL_STEPS} local gradients each, Fed-PLT at most)")
        axes.set_ylabel("distance to the optimum")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)

    themed(folder / "convergence", (7.0, 3.6), plot)
    for label, curve in curves.items():
        print(f"{label}: {curve[-1]:.2e} after {ROUNDS} rounds")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
