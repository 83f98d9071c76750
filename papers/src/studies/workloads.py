"""The federations of the papers' experiments: every agent's problem, a start, a held-out score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError
from privet.data import Dataset, federation_from_config, load
from privet.data.built_in import linear_examples
from privet.kernel import Moduli, Zero, stream
from privet.problems import (
    L2,
    BinaryLogistic,
    LinearModel,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
    make_regularizer,
    minimize,
)
from privet.sim.grid import NodeConfig

Vector = NDArray[Any]


@dataclass(frozen=True)
class Workload:
    """What a case is run on.

    Attributes
    ----------
    problems : tuple of LinearModel
        f_1 ... f_N.
    start : array (d,)
    score : callable, optional
        ``model -> accuracy`` on the held-out examples.
    nodes : tuple of mappings
        Node configs beyond ``partition-id``, one an agent; empty for none.
    strategy : mapping
        Arguments of the Strategy that belong to the workload, e.g. a graph.
    """

    problems: tuple[LinearModel[Any], ...]
    start: Vector
    score: Callable[[Vector], float] | None = None
    nodes: tuple[NodeConfig, ...] = ()
    strategy: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def optimum(self) -> Vector:
        """The minimiser of the sum of all agents' losses."""
        return minimize(self.problems, Zero()).x


def build(workload: Mapping[str, Any]) -> Workload:
    """Return the workload that a case names; the last few are kept.

    Raises
    ------
    ConfigError
        If there is no builder of that name.
    """
    arguments = {key: value for key, value in workload.items() if key != "name"}
    return _build(workload["name"], tuple(sorted(arguments.items())))


@lru_cache(maxsize=24)
def _build(name: str, arguments: tuple[tuple[str, Any], ...]) -> Workload:
    if name not in BUILDERS:
        raise ConfigError(f"workload {name!r}: known are {', '.join(BUILDERS)}")
    return BUILDERS[name](**dict(arguments))


def logistic(
    draw: int, regularizer: str = "l2", features: int = 5, start_scale: float = 10.0
) -> Workload:
    """Return Section VII of the Fed-PLT paper: N = 100, q_i = 250, epsilon = 0.5, iid.

    All agents start at one point of N(0, start_scale^2 I); the paper prints neither the generator
    of the data nor the start.
    """
    config = {
        "dataset": "synthetic",
        "data-seed": draw,
        "features": features,
        "partition": "iid",
        "partition-seed": draw,
        "regularizer": regularizer,
        "regularizer-weight": 0.5,
    }
    federation = federation_from_config(config, 100)
    start = start_scale * stream(draw, "start").standard_normal(federation.dim)
    return Workload(federation.problems, start)


class AuthorsLogistic(MultinomialLogistic):
    """A loss of the authors' OutP, divided by an agent's own examples: they take L = I_p / 4."""

    @classmethod
    def of(cls, problem: MultinomialLogistic) -> Self:
        """Return the same problem with this divisor."""
        rows, labels, classes = problem.features, problem.labels, problem.classes
        size = float(problem.num_examples)
        return cls(rows, labels, classes, regularizer=problem.regularizer, divisor=size)

    @property
    def moduli(self) -> Moduli:
        """Return what the authors' code takes for bounds of the Hessian."""
        return Moduli(0.0, self.num_examples / 4.0)


def digits_in_ten(folder: str, divisor: str = "all", file: str = "mnist_20k.npz") -> Workload:
    """Return the MNIST half of the DP-IADMM paper: P = 10 iid, x/255, zero start, beta 1e-6.

    ``divisor`` "own" is for the authors' OutP (`AuthorsLogistic`).
    """
    config = {
        "algorithm": "dp-iadmm",
        "dataset": "mnist",
        "data-path": str(Path(folder) / file),
        "partition": "iid",
        "dtype": "float32",
        "beta": 1e-6,
        "intercept": "no",
    }
    federation = federation_from_config(config, 10)
    problems: Sequence[Any] = federation.problems
    if divisor == "own":
        problems = [AuthorsLogistic.of(problem) for problem in problems]

    def score(model: Vector) -> float:
        return federation.evaluate(model)["accuracy"]

    return Workload(tuple(problems), np.zeros(federation.dim, np.float32), score)


def femnist(folder: str, divisor: str = "all") -> Workload:
    """Return the FEMNIST half of the DP-IADMM paper: one writer an agent, 1 - x/255, 62 classes."""
    with np.load(Path(folder) / "femnist_114_writers.npz") as data:
        features = {part: 1.0 - data[f"x_{part}"].astype(np.float32) / 255 for part in SPLIT}
        labels = {part: data[f"y_{part}"].astype(int) for part in SPLIT}
        writers = data["w_train"]
    agents = sorted(set(writers.tolist()))
    problems = []
    for writer in agents:
        rows = np.flatnonzero(writers == writer)
        own = features["train"][rows], labels["train"][rows], 62
        regularizer = L2(2e-6 / len(agents))
        problem = MultinomialLogistic(*own, regularizer=regularizer, divisor=float(len(writers)))
        problems.append(problem if divisor == "all" else AuthorsLogistic.of(problem))

    def score(model: Vector) -> float:
        return MultinomialLogistic.accuracy(model, features["test"], labels["test"])

    return Workload(tuple(problems), np.zeros(problems[0].dim, np.float32), score)


SPLIT = ("train", "test")
LOSSES: Mapping[str, Any] = {"softmax": MultinomialLogistic, "(41)": OneClassLogistic}


def digits_by_label(
    folder: str, draw: int, images: int = 100, validation: bool = False, **model: Any
) -> Workload:
    """Return the MNIST half of the FedPDM paper: 100 agents of four random labels, equal counts.

    With ``validation`` the score is the accuracy on a fifth of the training digits, which no agent
    has: for tuning. ``model`` is that of `_classified`.
    """
    path = str(Path(folder) / "mnist_20k.npz")
    data = load("mnist", data_path=path, dtype="float32", intercept=True)
    rng = np.random.default_rng([draw, 4])
    labels = data.train_labels
    pool, held = _held_out(rng, data, labels, data.test_labels, validation)
    by_label = [pool[labels[pool] == label] for label in range(10)]
    parts = []
    for _ in range(100):
        own = rng.choice(10, 4, replace=False)
        parts.append(
            np.concatenate([rng.choice(by_label[label], images // 4, False) for label in own])
        )
    return _classified(data.train_features, labels, held, parts, 10, rng, **model)


def adult_by_class(folder: str, draw: int, validation: bool = False, **model: Any) -> Workload:
    """Return the Adult half of the FedPDM paper: 100 agents of one class each, equal counts."""
    data = load("adult", data_path=folder, dtype="float32", intercept=True)
    rng = np.random.default_rng([draw, 2])
    labels, test = ((part > 0).astype(int) for part in (data.train_labels, data.test_labels))
    pool, held = _held_out(rng, data, labels, test, validation)
    parts = []
    for label in (0, 1):
        rows = rng.permutation(pool[labels[pool] == label])
        parts += np.array_split(rows, round(100 * float(np.mean(labels[pool] == label))))
    return _classified(data.train_features, labels, held, parts, 2, rng, **model)


def _held_out(
    rng: np.random.Generator, data: Dataset, labels: Vector, test_labels: Vector, validation: bool
) -> tuple[Vector, tuple[Vector, Vector]]:
    """Return the rows that agents may have, and the examples that the score is taken on."""
    if not validation:
        return np.arange(len(labels)), (data.test_features, test_labels)
    order = rng.permutation(len(labels))
    aside, pool = np.split(order, [len(labels) // 5])
    aside.sort()
    pool.sort()
    return pool, (data.train_features[aside], labels[aside])


def _classified(
    features: Vector,
    labels: Vector,
    held: tuple[Vector, Vector],
    parts: Sequence[Vector],
    classes: int,
    rng: np.random.Generator,
    *,
    loss: str = "softmax",
    beta: float = 1e-4,
    start_scale: float = 0.0,
) -> Workload:
    """Return a classifier's workload; ``loss`` "(41)" is the paper's, with one-hot labels."""
    kind = LOSSES[loss]
    regularizer = make_regularizer("nonconvex", beta) if beta else make_regularizer("none", 0.0)
    problems = tuple(
        kind(features[rows], labels[rows], classes, regularizer=regularizer) for rows in parts
    )
    start = start_scale * rng.standard_normal(problems[0].dim)

    def score(x: Vector) -> float:
        return float(kind.accuracy(x, *held))

    return Workload(problems, start.astype(np.float32), score)


def regression(
    draw: int, scale: float = 1.0, graph: str = "erdos-renyi", units: int = 10, each: int = 100
) -> Workload:
    """Return Section V-A of the GFL paper: d = u'w* + v, agents of unlike covariances and noises.

    The paper prints neither: they are those of `linear_examples`, the covariances times ``scale``.
    E_k is uniform in 1 ... 10, B_k in 5 ... 10.
    """
    rng = np.random.default_rng([draw, 53])
    agents, examples = units * each, 100
    truth = rng.standard_normal(2)
    problems = []
    for _ in range(agents):
        u, d = linear_examples(rng, truth, examples, scale)
        problems.append(RidgeRegression(u, d, regularizer=L2(0.2)))
    drawn = {"graph_seed": draw, "graph_probability": 0.4} if graph == "erdos-renyi" else {}
    strategy = {"graph": graph, "units": units, "participants": min(11, each), **drawn}
    return _graph_workload(problems, strategy, rng)


def adult_on_ring(folder: str, draw: int) -> Workload:
    """Return Section V-B of the GFL paper on Adult in place of the click data.

    5 servers on a ring with 10 agents each, 5,101 examples dealt unequally, agents with noise of
    their own on their features, regularised logistic loss; the held-out set is clean.
    """
    data = load("adult", data_path=folder)
    rng = stream(draw, "gfl adult")
    units, agents, examples, least = 5, 50, 5101, 20
    order = rng.permutation(len(data.train_labels))[:examples]
    spare = examples - least * agents
    cuts = np.sort(rng.integers(0, spare + 1, agents - 1))
    sizes = least + np.diff(np.concatenate([[0], cuts, [spare]]))
    problems = []
    for rows in np.split(order, np.cumsum(sizes)[:-1]):
        features = np.array(data.train_features[rows])
        spread = rng.uniform(0.0, 1.0)
        features[:, :-1] += spread * rng.standard_normal((len(rows), features.shape[1] - 1))
        problems.append(BinaryLogistic(features, data.train_labels[rows], regularizer=L2(0.06)))

    def score(model: Vector) -> float:
        return BinaryLogistic.accuracy(model, data.test_features, data.test_labels)

    strategy = {"graph": "ring", "units": units, "participants": agents // units}
    return _graph_workload(problems, strategy, rng, score)


def _graph_workload(
    problems: Sequence[LinearModel[Any]],
    strategy: Mapping[str, Any],
    rng: np.random.Generator,
    score: Callable[[Vector], float] | None = None,
) -> Workload:
    each = len(problems) // strategy["units"]
    nodes: list[NodeConfig] = [
        {
            "unit": str(agent // each),
            "local-epochs": int(rng.integers(1, 11)),
            "batch-size": int(rng.integers(5, 11)),
        }
        for agent in range(len(problems))
    ]
    return Workload(tuple(problems), np.zeros(problems[0].dim), score, tuple(nodes), strategy)


BUILDERS: Mapping[str, Callable[..., Workload]] = {
    "logistic": logistic,
    "digits-in-ten": digits_in_ten,
    "femnist": femnist,
    "digits-by-label": digits_by_label,
    "adult-by-class": adult_by_class,
    "regression": regression,
    "adult-on-ring": adult_on_ring,
}
