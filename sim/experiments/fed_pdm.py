"""FedPDM and its rivals on MNIST-10k and Adult: the runs behind the tables.

Setting of the tables: 100 agents, K = 30 a round by uniform sampling, T = 200, Q = 10 steps on
mini-batches of 10, eta = 0.04 / sqrt(1 + t), softmax regression with an intercept, zero start,
h = 1e-4 ||x||_1, r = 1e-4 sum x^2/(1 + x^2), float32.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp.strategy import FedAvg, FedProx
from numpy.typing import NDArray

from privet.client_apps import client_app, sparse_mod
from privet.client_apps.local_sgd import local_sgd_app
from privet.datasets import load
from privet.problems import LinearModel, MultinomialLogistic, make_h, make_regularizer
from privet.sim.engine import InlineGrid
from privet.strategies import (
    DPFedSGD,
    FedDyn,
    FedPDM,
    Fraction,
    Participation,
    PrimalDualStrategy,
    Round,
    Scaffold,
    SparseUplink,
)
from privet.wire import content_bytes

AGENTS, SHARE, ROUNDS = 100, 0.3, 200
STEPS: dict[str, Any] = {
    "max_local_steps": 10,
    "batch": "sample",
    "batch_size": 10,
    "step_size_base": 0.04,
    "step_size_rule": "inverse-sqrt",
}
EVERY = 10
BETA, GAMMA = 1e-4, 1e-4
"""Weights of the nonconvex regulariser and of h = gamma ||x||_1."""

STRATEGIES: dict[str, type[PrimalDualStrategy]] = {
    "fed-pdm": FedPDM,
    "scaffold": Scaffold,
    "fed-dyn": FedDyn,
    "dp-fedsgd": DPFedSGD,
}


@dataclass(frozen=True, slots=True)
class Task:
    """The agents' problems and the held-out examples."""

    problems: tuple[LinearModel[Any], ...]
    features: NDArray[Any]
    labels: NDArray[Any]

    def accuracy(self, x: NDArray[Any]) -> float:
        """Return the share of held-out examples whose class is predicted."""
        return MultinomialLogistic.accuracy(x, self.features, self.labels)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: accuracies by round, and what travelled up to then."""

    rounds: tuple[int, ...]
    accuracies: tuple[float, ...]
    bytes_up: tuple[int, ...]
    seconds: float
    epsilon: float = float("inf")

    @property
    def final(self) -> float:
        """Accuracy after the last round."""
        return self.accuracies[-1]

    def mean_of_last(self, rounds: int) -> float:
        """Mean accuracy over the evaluations of the last ``rounds`` rounds."""
        last = self.rounds[-1] - rounds
        return float(
            np.mean([a for r, a in zip(self.rounds, self.accuracies, strict=True) if r > last])
        )


def mnist(path: str, images: int = 100, *, seed: int = 0, beta: float = BETA) -> Task:
    """Return MNIST-10k over 100 agents of four random labels each, in equal counts.

    With 100 images an agent every image is used about once; more are drawn with re-use. ``beta``
    is the weight of the nonconvex regulariser.
    """
    data = load("mnist", data_path=path, dtype="float32", intercept=True)
    rng = np.random.default_rng(seed)
    by_label = [np.flatnonzero(data.train_labels == label) for label in range(10)]
    parts = []
    for _ in range(AGENTS):
        own = rng.choice(10, 4, replace=False)
        parts.append(
            np.concatenate([rng.choice(by_label[label], images // 4, False) for label in own])
        )
    return _task(data, data.train_labels, data.test_labels, 10, parts, beta)


def adult(path: str, *, seed: int = 0, beta: float = BETA) -> Task:
    """Return Adult over 100 agents of one class each, in equal counts, rows within norm 1."""
    data = load("adult", data_path=path, dtype="float32", intercept=True)
    rng = np.random.default_rng(seed)
    train, test = ((labels > 0).astype(int) for labels in (data.train_labels, data.test_labels))
    parts = []
    for label in (0, 1):
        rows = rng.permutation(np.flatnonzero(train == label))
        share = round(AGENTS * float(np.mean(train == label)))
        parts += np.array_split(rows, share)
    return _task(data, train, test, 2, parts, beta)


def _task(
    data: Any,
    train: NDArray[Any],
    test: NDArray[Any],
    classes: int,
    parts: Sequence[NDArray[Any]],
    beta: float,
) -> Task:
    regularizer = make_regularizer("nonconvex", beta)
    problems = tuple(
        MultinomialLogistic(
            data.train_features[rows], train[rows], classes, regularizer=regularizer
        )
        for rows in parts
    )
    return Task(problems, data.test_features, test)


def run(
    task: Task,
    algorithm: str,
    *,
    rounds: int = ROUNDS,
    every: int = EVERY,
    participation: Participation | None = None,
    **settings: Any,
) -> Outcome:
    """Run one of this library's algorithms and return its course."""
    found: list[tuple[int, float, int]] = []
    total, epsilon = 0, float("inf")

    def watch(done: Round, strategy: PrimalDualStrategy) -> None:
        nonlocal total, epsilon
        total += done.bytes_up
        epsilon = done.epsilon
        if done.round % every == 0 or done.round == rounds or done.round > rounds - 20:
            assert strategy.session is not None
            model = strategy.half.models(strategy.session.state)["last"]
            found.append((done.round, task.accuracy(model), total))

    if algorithm in ("fed-pdm", "dp-fedsgd"):
        settings.setdefault("h", make_h("l1", **{"h-weight": GAMMA}))
    strategy = STRATEGIES[algorithm](
        num_agents=len(task.problems),
        participation=participation or Fraction(SHARE),
        **settings,
    )
    grid = InlineGrid(client_app(algorithm, _problem_of(task)), len(task.problems))
    begin = time.perf_counter()
    strategy.start(grid, _start(task), num_rounds=rounds, observers=(watch,))
    return _outcome(found, time.perf_counter() - begin, epsilon)


def run_flower(
    task: Task,
    name: str,
    *,
    rounds: int = ROUNDS,
    mu: float = 1.0,
    share: float = 1.0,
    **settings: Any,
) -> Outcome:
    """Run Flower's own FedAvg or FedProx with this library's local steps.

    With ``share`` < 1 the agents send the largest coordinates of what changed only.
    """
    found: list[tuple[int, float, int]] = []
    received = 0

    class Counting(InlineGrid):
        def deliver(self, message: Any) -> Any:
            nonlocal received
            reply = super().deliver(message)
            received += content_bytes(reply.content) if reply is not None else 0
            return reply

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number and (number % EVERY == 0 or number > rounds - 20):
            found.append((number, task.accuracy(arrays["x"].numpy()), received))
        return None

    common: dict[str, Any] = {
        "fraction_train": SHARE,
        "fraction_evaluate": 0.0,
        "min_available_nodes": AGENTS,
    }
    strategy = FedProx(proximal_mu=mu, **common) if name == "fed-prox" else FedAvg(**common)
    random.seed(0)  # Flower samples nodes with the global generator
    mods = [sparse_mod(share)] if share < 1 else None
    grid = Counting(local_sgd_app(_problem_of(task), mods=mods, **settings), len(task.problems))
    begin = time.perf_counter()
    outer = SparseUplink(strategy) if share < 1 else strategy
    outer.start(grid, _start(task), num_rounds=rounds, evaluate_fn=evaluate)
    return _outcome(found, time.perf_counter() - begin, float("inf"))


def _outcome(found: list[tuple[int, float, int]], seconds: float, epsilon: float) -> Outcome:
    numbers, accuracies, sizes = zip(*found, strict=True)
    return Outcome(numbers, accuracies, sizes, seconds, epsilon)


def _problem_of(task: Task) -> Callable[[Context], LinearModel[Any]]:
    return lambda context: task.problems[int(context.node_config["partition-id"])]


def _start(task: Task) -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(task.problems[0].dim, np.float32))})
