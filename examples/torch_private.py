"""A small CNN trained privately by four algorithms: accuracy against epsilon.

    python examples/torch_private.py                              # scikit-learn's digits, a minute
    python examples/torch_private.py mnist.npz --agents 10 --epsilon 2 8 32 --gradients 30

Every agent charges the same number of clipped gradients of all its examples, each one release of
the Gaussian mechanism; the noise is solved for the total. FedDyn and SCAFFOLD take three of them in
a round, FedPDM and DP-FedSGD one. A file has x_train, y_train, x_test, y_test as MNIST's has.
"""

import argparse
import itertools
import json
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from torch import nn

from privet.client_apps import TorchProblem, client_app
from privet.sim import InlineGrid, quiet
from privet.strategies import DPFedSGD, FedDyn, FedPDM, Scaffold

LOCAL_STEPS = 3
STEP = {"step_size_rule": "constant", "clip": 1.0}
STRATEGIES = {
    # One gradient a round, then three.
    "dp-fedsgd": (1, lambda eta, **run: DPFedSGD(step_size_base=eta, **STEP, **run)),
    "fed-pdm": (
        1,
        # With one step, rho * eta = 1/2 leaves the public dual nothing of the past.
        lambda eta, **run: FedPDM(
            rho=0.5 / eta, step_size_base=eta, max_local_steps=1, dual="public", **STEP, **run
        ),
    ),
    "fed-dyn": (
        LOCAL_STEPS,
        lambda eta, **run: FedDyn(
            fed_dyn_alpha=0.1, step_size_base=eta, max_local_steps=LOCAL_STEPS, **STEP, **run
        ),
    ),
    "scaffold": (
        LOCAL_STEPS,
        lambda eta, **run: Scaffold(step_size_base=eta, max_local_steps=LOCAL_STEPS, **STEP, **run),
    ),
}


def network(side: int) -> nn.Module:
    """Return the CNN for square images: 19,334 parameters for 28 pixels a side."""
    torch.manual_seed(0)
    left = -(-side // 4)
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * left * left, 20),
        nn.Tanh(),
        nn.Linear(20, 10),
    )


def images(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training and test images as floats in [0, 1], one a row, with their labels."""
    if path:
        with np.load(path) as file:
            parts = [file[name] for name in ("x_train", "y_train", "x_test", "y_test")]
        top = 255.0
    else:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        train, test = order[:1500], order[1500:]
        parts, top = [x[train], y[train], x[test], y[test]], 16.0
    x, y, x_test, y_test = parts
    flat = [(each.reshape(len(each), -1) / top).astype("f4") for each in (x, x_test)]
    return flat[0], y.astype("i8"), flat[1], y_test.astype("i8")


def deal(labels: np.ndarray, agents: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Deal equally many examples to every agent, in proportions of classes from a Dirichlet law."""
    rng = np.random.default_rng(seed)
    piles = [list(rng.permutation(np.flatnonzero(labels == c))) for c in np.unique(labels)]
    size, parts = len(labels) // agents, [[] for _ in range(agents)]
    wishes = rng.dirichlet([alpha] * len(piles), agents)
    for place in range(size * agents):
        agent = place % agents
        weights = wishes[agent] * [len(pile) > 0 for pile in piles]
        if not weights.sum():
            weights = np.array([float(len(pile)) for pile in piles])
        parts[agent].append(piles[rng.choice(len(piles), p=weights / weights.sum())].pop())
    return [np.array(part) for part in parts]


class ImageFederation:
    """Agents that hold equal parts of the images, and the model's accuracy on those of the test."""

    def __init__(self, path: str, agents: int, seed: int) -> None:
        x, y, x_test, y_test = images(path)
        self.agents, self.seed, self.side = agents, seed, round(x.shape[1] ** 0.5)
        self.test = torch.from_numpy(x_test), y_test
        self.problems = [
            TorchProblem(network(self.side), nn.functional.cross_entropy, (x[rows], y[rows]))
            for rows in deal(y, agents, 0.3, seed)
        ]

    def play(
        self, name: str, epsilon: float, eta: float, gradients: int, **own: Any
    ) -> dict[str, Any]:
        """Train with an algorithm for some charged gradients an agent, and say what came of it."""
        steps, build = STRATEGIES[name]
        run = {"target_epsilon": epsilon} if np.isfinite(epsilon) else {}
        grid = InlineGrid(client_app(name, self.problem), self.agents)
        start = ArrayRecord(network(self.side).state_dict())
        result = build(eta, **run, **own).start(grid, start, num_rounds=gradients // steps)
        return {
            "algorithm": name,
            "epsilon": result.history[-1].epsilon,
            "step-size": eta,
            "seed": self.seed,
            "rounds": gradients // steps,
            "bytes-up": sum(done.bytes_up for done in result.history),
            "accuracy": round(self.accuracy(result.arrays), 4),
        }

    def problem(self, context: Context) -> TorchProblem:
        """Return the problem of one agent."""
        return self.problems[int(context.node_config["partition-id"])]

    def accuracy(self, arrays: ArrayRecord) -> float:
        """Return the share of the test images that a model names."""
        model = network(self.side)
        model.load_state_dict(arrays.to_torch_state_dict())
        inputs, labels = self.test
        with torch.no_grad():
            return float((model(inputs).argmax(1).numpy() == labels).mean())


def main() -> None:
    """Train every algorithm at every epsilon and print a line of JSON each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", default="")
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[16.0])
    parser.add_argument("--step-size", type=float, nargs="+", default=[1.0])
    parser.add_argument("--gradients", type=int, default=12, help="charged gradients an agent")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--algorithm", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    asked = parser.parse_args()
    quiet()
    for seed in asked.seed:
        federation = ImageFederation(asked.data, asked.agents, seed)
        runs = itertools.product(asked.algorithm, asked.epsilon, asked.step_size)
        for name, epsilon, eta in runs:
            print(json.dumps(federation.play(name, epsilon, eta, asked.gradients)), flush=True)


if __name__ == "__main__":
    main()
