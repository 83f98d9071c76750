"""Robust folds against wrong sites, beside Flower's four: the page docs/results/robust.md.

    .venv/bin/python -m results.robust docs/results

plays what is not yet in docs/results/robust.jsonl, a line a run, and writes the page; it can be
stopped at any time, and begins with an estimate. ``--write`` plays nothing, ``--task`` one task
alone. scikit-learn's digits and its table of breast cancer are dealt to 11 sites of which 2 are
wrong, and to 20 of which 4 are, iid and by Dirichlet(0.3): of 20 sites with 4 wrong ones and 11
with 2 Bulyan has its n >= 4 f + 3.

Every method takes `STEPS` full gradient steps a round; its step size is the best of three by the
examples held out, of runs of another seed without an attack and with ALIE, so that all are tuned
alike; where moves may be mixed before they are trimmed, the same runs say whether they are. A fold
is told the number of wrong sites. The attacks are those of `privet.testing.attacks`,
for Flower's strategies as for ours.
"""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum
from numpy.typing import NDArray
from scipy.stats import chi2
from sklearn.datasets import load_breast_cancer, load_digits

from privet.client_apps import CallableProblem
from privet.core import RunError
from privet.data.partitions import partition
from privet.problems import L2, BinaryLogistic, MultinomialLogistic
from privet.rounds.odd_sites import ODD
from privet.rounds.robust import mixed, trimmed
from privet.strategies import GFL, DPFedAvg, FedPDM, FedPLT, Scaffold
from privet.testing.attacks import (
    ATTACKS,
    Attack,
    Seen,
    attacked_grid,
    differing_sites,
    flipped_labels,
    other_units,
)
from privet.wire.flower_internals import set_identity
from results.marked import fill
from studies.rule import BETTER, WORSE, standing
from studies.runs import Runs
from studies.statistics import Estimate, difference

Vector = NDArray[Any]

SEEDS, TUNING = 5, 1000
STEPS = 5
"""Gradient steps of a round."""
SIDES: Mapping[int, int] = {11: 2, 20: 4}
"""Wrong sites, by the number of sites."""
SPLITS = ("iid", "dirichlet")
PLAYED = ("none", "labels", "scaled", "flipped", "alie", "inner-product", "mimic", "drift")
"""The attacks; that on units needs a column with a unit, that on the dual an agent with one."""
TRIALS = (1 / 3, 1.0, 3.0)
"""Step sizes that are tried, of the task's middle."""
KAPPA = 0.2
"""Share of a model's drift that a penalty takes away: rho (alpha) is kappa / (step K)."""


# ------------------------------------------------------------------ tasks


class Perceptron(CallableProblem):
    """Softmax on tanh layers, the mean over rows, with an l2 term; x holds all weights, flat."""

    def __init__(self, features: Vector, labels: Vector, sizes: Sequence[int]) -> None:
        self.features, self.labels, self.sizes = features, labels, tuple(sizes)
        self._hot = np.eye(sizes[-1])[labels]
        super().__init__(self._loss, self._slope, width(sizes), len(labels))

    def flipped(self) -> Perceptron:
        """Return the problem with class c as K - 1 - c."""
        return Perceptron(self.features, self.sizes[-1] - 1 - self.labels, self.sizes)

    def _loss(self, x: Vector) -> float:
        scores = forward(x, self.features, self.sizes)[-1]
        of_label = scores[np.arange(len(scores)), self.labels]
        return float(np.mean(np.logaddexp.reduce(scores, axis=1) - of_label)) + 5e-4 * float(x @ x)

    def _slope(self, x: Vector) -> Vector:
        values = forward(x, self.features, self.sizes)
        scores = values[-1] - values[-1].max(axis=1, keepdims=True)
        chances = np.exp(scores)
        back = (chances / chances.sum(axis=1, keepdims=True) - self._hot) / len(self.labels)
        parts: list[Vector] = []
        layers = weights(x, self.sizes)
        for at in range(len(layers) - 1, -1, -1):
            parts += [back.sum(axis=0), (values[at].T @ back).ravel()]
            if at:
                back = (back @ layers[at][0].T) * (1.0 - values[at] ** 2)
        return np.concatenate(parts[::-1]) + 1e-3 * x


def width(sizes: Sequence[int]) -> int:
    """Return the number of weights of layers of these sizes."""
    return sum((one + 1) * two for one, two in pairwise(sizes))


def weights(x: Vector, sizes: Sequence[int]) -> list[tuple[Vector, Vector]]:
    """Return the matrix and the offsets of each layer."""
    found, at = [], 0
    for one, two in pairwise(sizes):
        matrix = x[at : at + one * two].reshape(one, two)
        found.append((matrix, x[at + one * two : at + (one + 1) * two]))
        at += (one + 1) * two
    return found


def forward(x: Vector, features: Vector, sizes: Sequence[int]) -> list[Vector]:
    """Return what each layer is given, and the scores."""
    values, layers = [features], weights(x, sizes)
    for number, (matrix, offsets) in enumerate(layers):
        out = values[-1] @ matrix + offsets
        values.append(np.tanh(out) if number < len(layers) - 1 else out)
    return values


@dataclass(frozen=True)
class Task:
    """A task: its table, the sites' problems, the model's start and scores.

    ``sizes`` are of a network's layers, empty of a linear model; ``step`` is the middle step size.
    One of ``few`` cells is played by Dirichlet alone.
    """

    title: str
    data: Callable[[], tuple[Vector, Vector]]
    rounds: int
    step: float
    sizes: tuple[int, ...] = ()
    few: bool = False

    def problem(self, features: Vector, labels: Vector, classes: int) -> Any:
        if self.sizes:
            return Perceptron(features, labels, self.sizes)
        if classes == 2:
            return BinaryLogistic(features, 2.0 * labels - 1.0, regularizer=L2(1e-3))
        return MultinomialLogistic(features, labels, classes=classes, regularizer=L2(1e-3))

    def start(self, seed: int, dim: int) -> Vector:
        if not self.sizes:
            return np.zeros(dim)
        rng = np.random.default_rng([61, seed])
        parts = []
        for one, two in pairwise(self.sizes):
            parts += [rng.normal(0, one**-0.5, one * two), np.zeros(two)]
        return np.concatenate(parts)

    def predicted(self, x: Vector, features: Vector, classes: int) -> Vector:
        if self.sizes:
            return np.asarray(forward(x, features, self.sizes)[-1].argmax(axis=1))
        if classes == 2:
            return (features @ x > 0).astype(int)
        # As `MultinomialLogistic` lays its coefficients out: a column a class.
        return np.asarray((features @ x.reshape(-1, classes)).argmax(axis=1))


@lru_cache
def _cancer() -> tuple[Vector, Vector]:
    features, labels = load_breast_cancer(return_X_y=True)
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    return np.hstack([scaled, np.ones((len(scaled), 1))]), labels


@lru_cache
def _digits() -> tuple[Vector, Vector]:
    features, labels = load_digits(return_X_y=True)
    return np.hstack([features / 16.0, np.ones((len(features), 1))]), labels


TASKS: Mapping[str, Task] = {
    "logistic": Task("breast cancer, logistic regression", _cancer, 15, 0.3),
    "softmax": Task("digits, softmax regression", _digits, 15, 2.0),
    "one layer": Task("digits, 24 hidden units", _digits, 20, 0.7, (65, 24, 10), few=True),
}


@dataclass(frozen=True)
class Dealt:
    """The sites of a run: problems, who is wrong, and the examples that judge a model."""

    problems: Sequence[Any]
    wrong: frozenset[int]
    judges: Mapping[str, tuple[Vector, Vector]]
    classes: int
    start: Vector


@lru_cache(maxsize=4)
def dealt(task: str, split: str, sites: int, seed: int) -> Dealt:
    """Deal a task's table: three fifths to the sites, a fifth held out, a fifth for the test."""
    made = TASKS[task]
    features, labels = made.data()
    rng = np.random.default_rng([seed, sites])
    order = rng.permutation(len(labels))
    ends = [3 * len(order) // 5, 4 * len(order) // 5]
    train, held, test = np.split(order, ends)
    own = {"dirichlet_alpha": 0.3} if split == "dirichlet" else {}
    parts = partition(labels[train], sites, split, seed=seed, **own)
    classes = int(labels.max()) + 1
    problems = [made.problem(features[train[rows]], labels[train[rows]], classes) for rows in parts]
    wrong = rng.choice(sites, SIDES[sites], replace=False)
    judges = {"held out": (features[held], labels[held]), "test": (features[test], labels[test])}
    start = made.start(seed, problems[0].dim)
    return Dealt(problems, frozenset(wrong.tolist()), judges, classes, start)


# ------------------------------------------------------------------ methods


@dataclass(frozen=True)
class Method:
    """A method: ``make(step, sites, faulty)`` returns a Strategy; Flower's have no protocol."""

    make: Callable[[float, int, int], Any]
    protocol: str = ""
    robust: bool = True


def _flower(kind: Callable[..., Any], **own: Callable[[int, int], Any]) -> Method:
    return Method(
        lambda step, sites, faulty: kind(**{key: of(sites, faulty) for key, of in own.items()})
    )


def _ours(kind: Callable[..., Any], protocol: str, rule: str = "", **keys: Any) -> Method:
    """Return one of ours; a value of ``keys`` that can be called is of the step size."""

    def make(step: float, sites: int, faulty: int) -> Any:
        own = {name: value(step) if callable(value) else value for name, value in keys.items()}
        if rule:
            own |= {"robust": rule, "faulty": faulty, "min_agents": 2 * faulty + 1}
        return kind(num_agents=sites, **own)

    return Method(make, protocol, bool(rule))


def _same(step: float) -> float:
    return step


STEPPED: Mapping[str, Any] = {
    "step_size_base": _same, "step_size_rule": "constant", "max_local_steps": STEPS,
}  # fmt: skip
SPLIT: Mapping[str, Any] = {
    "rho": lambda step: step * STEPS / KAPPA,
    "step_size": _same, "local_epochs": STEPS, "local_solver": "gd", "acceleration": "none",
}  # fmt: skip
PRIMAL_DUAL: Mapping[str, Any] = {
    **STEPPED, "rho": lambda step: KAPPA / (step * STEPS), "dual": "public"
}  # fmt: skip
UNITS: Mapping[str, Any] = {
    # mu is the length of all local steps together.
    "units": 2, "step_size": lambda step: step * STEPS, "local_epochs": STEPS,
}  # fmt: skip
MIXED = {"robust_mixing": True}

FLOWER: Mapping[str, Method] = {
    "FedMedian": _flower(FedMedian),
    "FedTrimmedAvg": _flower(FedTrimmedAvg, beta=lambda sites, faulty: faulty / sites + 1e-6),
    "Krum": _flower(Krum, num_malicious_nodes=lambda sites, faulty: faulty),
    "Bulyan": _flower(Bulyan, num_malicious_nodes=lambda sites, faulty: faulty),
}
UNMIXED = "FedAvg, trimmed"
"""Played where trials choose it: it is the fold of FedTrimmedAvg."""
OURS: Mapping[str, Method] = {
    "FedAvg, trimmed, mixed": _ours(DPFedAvg, "dp-fedavg", "trimmed", **STEPPED, **MIXED),
    "SCAFFOLD, clipped": _ours(Scaffold, "scaffold", "centred-clipping", **STEPPED),
    "Fed-PLT, clipped": _ours(FedPLT, "fed-plt", "centred-clipping", **SPLIT),
}
PLAIN: Mapping[str, Method] = {
    "FedAvg": _flower(FedAvg),
    "Fed-PLT": _ours(FedPLT, "fed-plt", **SPLIT),
    "FedPDM": _ours(FedPDM, "fed-pdm", **PRIMAL_DUAL),
    "GFL": _ours(GFL, "gfl", **UNITS),
}
"""Without a fold: of these three are claimed to be robust by themselves."""
METHODS = {
    **FLOWER, **OURS, **PLAIN, UNMIXED: _ours(DPFedAvg, "dp-fedavg", "trimmed", **STEPPED)
}  # fmt: skip
BY_TRIAL: Mapping[str, Sequence[str]] = {
    "FedAvg, trimmed, mixed by trial": ("FedAvg, trimmed, mixed", UNMIXED)
}
"""Methods that are the better of some by the runs that choose step sizes."""
REPORTED = (*BY_TRIAL, *OURS)
WITHOUT = "FedAvg without the wrong sites"
CLAIMED = ("Fed-PLT", "FedPDM", "GFL")


# ------------------------------------------------------------------ a run


def played(attack: str, problems: Sequence[Any]) -> Attack:
    """Return an attack of the kit; a network's labels are turned as a softmax model's are."""
    if attack == "none":
        return Attack("none")
    if attack == "labels":
        return Attack("labels", problem=_turned)
    return ATTACKS[attack]


def _turned(problem: Any) -> Any:
    return problem.flipped() if isinstance(problem, Perceptron) else flipped_labels(problem)


def play(
    *, task: str, split: str, sites: int, method: str, attack: str, seed: int, step: float,
    part: str,
) -> dict[str, Any]:  # fmt: skip
    """Play one run: the accuracy of its last model, who was named until when, and its seconds."""
    began = time.process_time()
    held = dealt(task, split, sites, seed)
    made, how = TASKS[task], played(attack, held.problems)
    found: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        if method == WITHOUT:
            right = [one for at, one in enumerate(held.problems) if at not in held.wrong]
            x = flower(FedAvg(), right, frozenset(), Attack("none"), held.start, made.rounds, step)
        elif METHODS[method].protocol:
            x, named = ours(METHODS[method], held, how, made.rounds, step)
            wrong = {str(place) for place in held.wrong}
            found["found"] = min((named[one] for one in wrong & named.keys()), default=0)
            found["blamed"] = len(named.keys() - wrong)
        else:
            strategy = METHODS[method].make(step, sites, SIDES[sites])
            x = flower(
                strategy, held.problems, held.wrong, how, held.start, made.rounds, step
            )  # fmt: skip
        features, labels = held.judges[part]
        right_ones = made.predicted(x, features, held.classes) == labels
    accuracy = float(right_ones.mean()) if np.isfinite(x).all() else 0.0
    seconds = round(time.process_time() - began, 2)
    return {"accuracy": round(accuracy, 4), **found, "seconds": seconds}


def local_moves(problems: Sequence[Any], x: Vector, step: float) -> list[Vector]:
    """Return by how far the local steps of each site lead from x."""
    moves = []
    for problem in problems:
        w = x.copy()
        for _ in range(STEPS):
            w -= step * problem.gradient(w)
        moves.append(w - x)
    return moves


def flower(
    strategy: Any, problems: Sequence[Any], wrong: frozenset[int], attack: Attack,
    start: Vector, rounds: int, step: float,
) -> Vector:  # fmt: skip
    """Return the model of a strategy of Flower's, whose ``aggregate_train`` is given each round.

    All sites weigh the same, as ours do: each says that it has one example.
    """
    own = [attack.problem(one) if at in wrong else one for at, one in enumerate(problems)]
    set_identity(1, 1)  # of the process that sends messages, which Flower asks for
    gc.freeze()  # Bulyan collects garbage once an upload
    x = start
    for number in range(1, rounds + 1):
        moves = local_moves(own, x, step)
        honest = np.array([move for at, move in enumerate(moves) if at not in wrong])
        if attack.move is not None:
            for at in wrong:
                moves[at] = attack.move(Seen(moves[at], honest, len(wrong), number))
        if not np.isfinite(moves).all():
            return np.full_like(x, math.nan)
        replies = []
        for at, move in enumerate(moves):
            content = RecordDict(
                {
                    "arrays": ArrayRecord({"x": Array(x + move)}),
                    "metrics": MetricRecord({"num-examples": 1}),
                }
            )
            replies.append(Message(content, at + 1, "train"))
        arrays, _ = strategy.aggregate_train(number, replies)
        if arrays is None:
            raise RunError(f"{type(strategy).__name__}: too few replies")
        x = np.asarray(arrays["x"].numpy())
    return x


def ours(
    method: Method, held: Dealt, attack: Attack, rounds: int, step: float
) -> tuple[Vector, dict[str, int]]:
    """Return the model of one of ours, and by site the round in which it was named."""
    sites = len(held.problems)
    strategy = method.make(step, sites, SIDES[sites])
    grid = attacked_grid(method.protocol, held.problems, held.wrong, attack)
    start = ArrayRecord({"x": Array(held.start)})
    try:
        result = strategy.start(grid, start, num_rounds=rounds, log_rounds=False)
    except RunError:  # numbers without end
        return np.full_like(held.start, math.nan), {}
    named = {
        note.removeprefix(ODD).partition(":")[0]: done.round
        for done in result.history
        for note in done.notes
        if note.startswith(ODD)
    }
    return np.asarray(result.arrays["x"].numpy()), named


# ------------------------------------------------------------------ what mixing costs

HONEST_SEEDS, HONEST = 15, "honest moves"


def play_honest(*, task: str, split: str, sites: int, seed: int, part: str) -> dict[str, Any]:
    """Play FedAvg of honest sites, and fold its moves m_i (n, d) aside, with and without mixing.

    Returns of each fold F the mean over rounds of ||F - mean||^2 / mean of ||m_i - mean||^2.
    """
    began = time.process_time()
    held, made = dealt(task, split, sites, seed), TASKS[task]
    x, rounds = held.start, []
    for _ in range(made.rounds):
        moves = np.array(local_moves(held.problems, x, made.step))
        mean, faulty = moves.mean(axis=0), SIDES[sites]
        spread = np.square(moves - mean).sum(axis=1).mean()
        folded = (trimmed(one, faulty).values for one in (moves, mixed(moves, faulty)))
        rounds.append([np.square(one.mean(axis=0) - mean).sum() / spread for one in folded])
        x = x + mean
    plain, after_mixing = np.mean(rounds, axis=0).tolist()
    seconds = round(time.process_time() - began, 2)
    return {"trimmed": round(plain, 5), "mixed": round(after_mixing, 5), "seconds": seconds}


def honest_runs(cell: Cell, runs: Runs) -> list[Mapping[str, Any]]:
    """Return the runs of honest sites of a cell."""
    where = {"task": cell.task, "split": cell.split, "sites": cell.sites, "part": HONEST}
    return [runs(**where, seed=seed) for seed in range(HONEST_SEEDS)]


def price(known: Sequence[Cell]) -> list[str]:
    """Return how far folds are from the mean where nobody is wrong (raises ``LookupError``)."""
    lines = ["| | trimmed | mixed, trimmed | chosen by trial |", "|---|---|---|---|"]
    for cell in known:
        each = honest_runs(cell, cell.runs)
        values = [np.mean([one[fold] for one in each]) for fold in ("trimmed", "mixed")]
        played, _ = cell.chosen(next(iter(BY_TRIAL)))
        chosen = "trimmed" if played == UNMIXED else "mixed"
        lines.append(f"| {_named(cell)} | {values[0]:.3f} | {values[1]:.3f} | {chosen} |")
    return lines


# ------------------------------------------------------------------ loud attacks

LOUD_SEEDS, LOUD_ROUNDS, EARLY = 20, 10, 5
APART = "apart"
"""The task of 11 sites of one truth that differ (`differing_sites`), of which 2 are wrong."""
LOUD: Mapping[str, Attack] = {
    "none": Attack("none"),
    "labels": ATTACKS["labels"],
    "units, tenths": Attack("units", problem=other_units(column=1)),  # column 0 is the intercept
    "units, hundredths": Attack("units", problem=other_units(100.0, column=1)),
    "scaled": ATTACKS["scaled"],
    "flipped": ATTACKS["flipped"],
    "false dual": ATTACKS["dual"],
}
DEFAULTS: Mapping[str, Method] = {
    "Fed-PLT": _ours(FedPLT, "fed-plt"),
    "Fed-PLT, gradient steps": _ours(FedPLT, "fed-plt", rho=1.0),
    "FedAvg": _ours(DPFedAvg, "dp-fedavg"),
    "SCAFFOLD": _ours(Scaffold, "scaffold"),
}
"""Methods as they are by default but for what their names say."""
WITH_DUAL = ("Fed-PLT, gradient steps",)
"""Those whose agents keep a dual that can be lied about: an accelerated Fed-PLT's keep none."""


def loud_jobs() -> list[tuple[str, str]]:
    """Return the methods and the attacks that are played on `APART`."""
    return [
        (method, attack)
        for method in DEFAULTS
        for attack in LOUD
        if attack != "false dual" or method in WITH_DUAL
    ]


@lru_cache(maxsize=2)
def _unharmed(method: str, seed: int) -> tuple[Dealt, Vector, dict[str, int]]:
    """Return the sites of a seed, the model of their run without an attack, and who was named."""
    problems = differing_sites(11, seed)
    held = Dealt(problems, frozenset({2, 7}), {}, 2, np.zeros(problems[0].dim))
    return held, *ours(DEFAULTS[method], held, LOUD["none"], LOUD_ROUNDS, 0.0)


def play_loud(*, task: str, method: str, attack: str, seed: int) -> dict[str, Any]:
    """Play one run: when a wrong site was named, how many others, and how far the model moved.

    ``moved`` is (y - x)^T H (y - x) of the models y with and x without the attack, with H the
    Fisher information of all rows at x: in squared standard errors, chi-squared with d degrees of
    freedom if y were what other rows of the same sites could have given; None without end.
    """
    began = time.process_time()
    with np.errstate(all="ignore"):
        held, x, named = _unharmed(method, seed)
        y = x
        if attack != "none":
            y, named = ours(DEFAULTS[method], held, LOUD[attack], LOUD_ROUNDS, 0.0)
        features = np.concatenate([one.features for one in held.problems])
        chance = 1.0 / (1.0 + np.exp(-features @ x))
        moved = float((chance * (1.0 - chance)) @ (features @ (y - x)) ** 2)
    wrong = {str(place) for place in held.wrong} if attack != "none" else set()
    return {
        "found": min((named[one] for one in wrong & named.keys()), default=0),
        "blamed": len(named.keys() - wrong),
        "moved": round(moved, 2) if math.isfinite(moved) else None,
        "seconds": round(time.process_time() - began, 2),
    }


def loud(runs: Runs) -> list[str]:
    """Return in how many runs a loud attack moved the model, and was named, by method.

    Raises
    ------
    LookupError
        If a run is missing.
    """
    noise = chi2.ppf(0.95, 8)
    said: dict[tuple[str, str], str] = {}
    named, moved = 0, 0
    for method, attack in loud_jobs():
        every = [
            runs(task=APART, method=method, attack=attack, seed=seed) for seed in range(LOUD_SEEDS)
        ]
        early = [0 < one["found"] <= EARLY for one in every]
        harmed = [one["moved"] is None or one["moved"] > noise for one in every]
        both = sum(one and two for one, two in zip(early, harmed, strict=True))
        named, moved = named + both, moved + sum(harmed)
        said[method, attack] = (
            f"{sum(one['blamed'] > 0 for one in every)} of {len(every)}"
            if attack == "none"
            else f"{both} of {sum(harmed)}; {sum(early)} of {len(every)}"
        )
    lines = [
        f"Of {moved} runs that an attack moved by more than the noise {named} named a wrong site "
        f"within {EARLY} rounds.",
        "",
        f"| | {' | '.join(DEFAULTS)} |",
        f"|---|{'---|' * len(DEFAULTS)}",
    ]
    for attack in LOUD:
        row = [said.get((method, attack), "") for method in DEFAULTS]
        lines.append(f"| {attack} | {' | '.join(row)} |")
    return lines


# ------------------------------------------------------------------ cells


@dataclass(frozen=True)
class Cell:
    """A task, a split and a number of sites, and the runs of a method on it."""

    runs: Runs = field(repr=False)
    task: str
    split: str
    sites: int

    def chosen(self, method: str) -> tuple[str, float]:
        """Return what is played of a method: itself, or one of `BY_TRIAL`; and its step size.

        They are those of the best mean accuracy on the examples held out.
        """
        mean = {
            (one, step): sum(
                self._run(method=one, attack=a, step=step, seed=TUNING, part="held out")["accuracy"]
                for a in ("none", "alie")
            )
            for one in BY_TRIAL.get(method, ("FedAvg" if method == WITHOUT else method,))
            for step in (TASKS[self.task].step * trial for trial in TRIALS)
        }
        best, step = max(mean, key=lambda one: mean[one])
        return WITHOUT if method == WITHOUT else best, step

    def of(self, method: str, attack: str) -> list[dict[str, Any]]:
        """Return the runs that are reported, a seed each."""
        played, step = self.chosen(method)
        run = partial(self._run, method=played, attack=attack, step=step, part="test")
        return [run(seed=seed) for seed in range(SEEDS)]

    def left(self, job: tuple[str, str]) -> int:
        """Return how many of a method's runs against an attack are missing; all if not tuned."""
        method, attack = job
        try:
            played, step = self.chosen(method)
        except LookupError:
            return SEEDS
        where = {"task": self.task, "split": self.split, "sites": self.sites}
        run = {**where, "method": played, "attack": attack, "step": step, "part": "test"}
        return sum(not self.runs.has(**run, seed=seed) for seed in range(SEEDS))

    def accuracies(self, method: str, attack: str) -> list[float]:
        """Return the accuracies in %."""
        return [100.0 * one["accuracy"] for one in self.of(method, attack)]

    def _run(self, **run: Any) -> dict[str, Any]:
        where = {"task": self.task, "split": self.split, "sites": self.sites}
        return dict(self.runs(**where, **run))


def cells(runs: Runs, tasks: Sequence[str]) -> list[Cell]:
    """Return all cells of some tasks."""
    return [
        Cell(runs, task, split, count)
        for count in SIDES
        for split in SPLITS[::-1]
        for task in tasks
        if not TASKS[task].few or split == "dirichlet"
    ]


def jobs(cell: Cell) -> list[tuple[str, str]]:
    """Return the methods and attacks that are played on a cell.

    The methods that are claimed to be robust by themselves are played on 11 sites by Dirichlet.
    """
    every = [*FLOWER, *REPORTED, "FedAvg"]
    if (cell.split, cell.sites) == ("dirichlet", 11):
        every += CLAIMED
    return [(WITHOUT, "none"), *((method, attack) for method in every for attack in PLAYED)]


def estimate(found: Runs, tasks: Sequence[str]) -> str:
    """Return how many runs are missing, and about how long they take."""
    count, seconds = 0, 0.0
    done = list(found.found.values())
    for cell in cells(found, tasks):
        alike = [one["seconds"] for one in done if one["run"]["task"] == cell.task]
        each = sum(alike) / len(alike) if alike else 0.3
        left = sum(map(cell.left, jobs(cell)))
        count, seconds = count + left, seconds + each * left
    for method, attack in loud_jobs():
        run = {"task": APART, "method": method, "attack": attack}
        left = sum(not found.has(**run, seed=seed) for seed in range(LOUD_SEEDS))
        count, seconds = count + left, seconds + 0.3 * left
    return f"{count} runs to play, about {seconds / 60:.0f} minutes of one core"


# ------------------------------------------------------------------ the page


def write(results: Path, tasks: Sequence[str]) -> None:
    """Write the parts of the page that are of runs."""
    runs, page = Runs(results / "robust.jsonl"), results / "robust.md"
    known = []
    for cell in cells(runs, tasks):
        try:
            for method, attack in jobs(cell):
                cell.of(method, attack)
            known.append(cell)
        except LookupError:
            continue
    fill(page, "finding", finding(known))
    fill(page, "accuracy", tables(known))
    fill(page, "claim", claim(known))
    fill(page, "named", naming(known))
    fill(page, "honest", honest(known))
    fill(page, "price", price(known))
    fill(page, "loud", loud(runs))


def best_of_flower(cell: Cell, attack: str) -> str:
    """Return which of Flower's four has the best mean."""
    return max(FLOWER, key=lambda one: float(np.mean(cell.accuracies(one, attack))))


def finding(known: Sequence[Cell]) -> list[str]:
    """Return how each of ours stands against the best of Flower's four, cell by cell."""
    every = [(cell, attack) for cell in known for attack in PLAYED]
    lines = [
        f"**Points of accuracy against the best of Flower's four in each of {len(every)} cells "
        "(task, split, sites, attack); better and worse are what stands by Holm's procedure over "
        "all of them:**",
        "",
    ]
    for method in REPORTED:
        gaps = [
            difference(
                cell.accuracies(method, attack),
                cell.accuracies(best_of_flower(cell, attack), attack),
            )
            for cell, attack in every
        ]
        words = standing(gaps)
        means = [gap.mean for gap in gaps]
        worst = min(zip(means, every, strict=True), key=lambda one: one[0])
        lower = [where for word, where in zip(words, every, strict=True) if word == WORSE]
        which = f" ({'; '.join(f'{_named(cell)}, {attack}' for cell, attack in lower)})"
        lines.append(
            f"- **{method}**: better in {words.count(BETTER)}, worse in {len(lower)}"
            f"{which if lower else ''}; mean "
            f"{np.mean(means):+.1f}, worst {worst[0]:+.1f} ({_named(worst[1][0])}, {worst[1][1]}); "
            f"within two points of FedAvg without the wrong sites in {_near(method, every)}"
        )
    return lines


def _near(method: str, every: Sequence[tuple[Cell, str]]) -> str:
    """Return in how many cells of each split the mean is at most two points lower."""
    said = []
    for split in SPLITS:
        own = [(cell, attack) for cell, attack in every if cell.split == split]
        near = [
            np.mean(cell.accuracies(method, attack))
            >= np.mean(cell.accuracies(WITHOUT, "none")) - 2
            for cell, attack in own
        ]
        said.append(f"{sum(near)} of {len(own)} {split}")
    return ", ".join(said)


def _named(cell: Cell) -> str:
    return f"{cell.task}, {cell.split}, {cell.sites} sites"


def tables(known: Sequence[Cell]) -> list[str]:
    """Return a table for each cell: accuracy in %, a row a method, a column an attack."""
    lines: list[str] = []
    for cell in known:
        clean = np.mean(cell.accuracies(WITHOUT, "none"))
        lines += [
            f"### {TASKS[cell.task].title}; {cell.split}, {SIDES[cell.sites]} of {cell.sites}",
            "",
            f"FedAvg without the wrong sites: {clean:.1f}.",
            "",
            f"| | {' | '.join(PLAYED)} |",
            f"|---|{'---|' * len(PLAYED)}",
        ]
        for method in [*FLOWER, *REPORTED, "FedAvg"]:
            row = [str(_short(cell.accuracies(method, attack))) for attack in PLAYED]
            lines.append(f"| {method} | {' | '.join(row)} |")
        lines.append("")
    return lines


def _short(values: Sequence[float]) -> str:
    mean = Estimate.of(values)
    return f"{mean.mean:.1f} ± {mean.half_width:.1f}"


def claim(known: Sequence[Cell]) -> list[str]:
    """Return what attacks do to methods that are claimed to be robust by themselves."""
    some = [cell for cell in known if (cell.split, cell.sites) == ("dirichlet", 11)]
    lines = [f"| | | {' | '.join(PLAYED)} |", f"|---|---|{'---|' * len(PLAYED)}"]
    for cell in some:
        for method in ["FedAvg", *CLAIMED]:
            row = [f"{np.mean(cell.accuracies(method, attack)):.1f}" for attack in PLAYED]
            lines.append(f"| {cell.task} | {method} | {' | '.join(row)} |")
    return lines


def naming(known: Sequence[Cell]) -> list[str]:
    """Return in how many runs a wrong site was named, and what the attack did to a plain run."""
    lines = [
        "| attack | runs | a wrong site named | within 5 rounds | an honest one named, iid "
        "| by Dirichlet | points lost by FedAvg |",
        "|---|---|---|---|---|---|---|",
    ]
    for attack in PLAYED:
        of_split = {
            split: [
                one
                for cell in known
                for name in OURS
                for one in cell.of(name, attack)
                if cell.split == split
            ]
            for split in SPLITS
        }
        runs = [one for each in of_split.values() for one in each]
        lost = [
            gap
            for cell in known
            for gap in np.subtract(
                cell.accuracies(WITHOUT, "none"), cell.accuracies("FedAvg", attack)
            )
        ]
        named = "" if attack == "none" else sum(one["found"] > 0 for one in runs)
        early = "" if attack == "none" else sum(0 < one["found"] <= 5 for one in runs)
        # Of an honest run all sites are.
        alike = attack == "none"
        blamed = " | ".join(
            f"{sum(one['blamed'] > 0 or (alike and one['found'] > 0) for one in each)} "
            f"of {len(each)}"
            for each in of_split.values()
        )
        lines.append(
            f"| {attack} | {len(runs)} | {named} | {early} | {blamed} | {np.mean(lost):+.1f} |"
        )
    return lines


def honest(known: Sequence[Cell]) -> list[str]:
    """Return what each fold costs where nobody is wrong, beside FedAvg of all sites."""
    lines = ["| | points below FedAvg without an attack: mean | worst cell |", "|---|---|---|"]
    for method in [*FLOWER, *REPORTED]:
        gaps = [
            float(
                np.mean(cell.accuracies("FedAvg", "none"))
                - np.mean(cell.accuracies(method, "none"))
            )
            for cell in known
        ]
        at = int(np.argmax(gaps))
        lines.append(f"| {method} | {np.mean(gaps):+.1f} | {gaps[at]:+.1f} ({_named(known[at])}) |")
    return lines


def job(results: Path, task: str, split: str, sites: int) -> None:
    """Play what is missing of a cell."""
    logging.getLogger("flwr").setLevel(logging.ERROR)  # of sites that are named, and divergence
    cell = Cell(Runs(results / "robust.jsonl", play), task, split, sites)
    for method, attack in jobs(cell):
        cell.of(method, attack)
    honest_runs(cell, Runs(results / "robust.jsonl", play_honest))


def job_of_loud(results: Path) -> None:
    """Play what is missing of the loud attacks."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = Runs(results / "robust.jsonl", play_loud)
    for method in DEFAULTS:
        for seed in range(LOUD_SEEDS):  # a seed's attacks share the run without one
            for attack in [one for own, one in loud_jobs() if own == method]:
                runs(task=APART, method=method, attack=attack, seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play what is missing, and write the page."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("--task", choices=list(TASKS), action="append", help="one task alone")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="play nothing, write what is there")
    given = parser.parse_args(arguments)
    tasks = given.task or list(TASKS)
    if not given.write:
        runs = Runs(given.results / "robust.jsonl")
        print(estimate(runs, tasks), flush=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.processes, context) as pool:
            every = [(one.task, one.split, one.sites) for one in cells(runs, tasks)]
            asked = [pool.submit(job, given.results, *one) for one in every]
            for done in [*asked, pool.submit(job_of_loud, given.results)]:
                done.result()
    write(given.results, tasks)


if __name__ == "__main__":
    main()
