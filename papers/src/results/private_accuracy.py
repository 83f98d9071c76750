"""Accuracy against epsilon on MNIST, Adult and FEMNIST: every way to the same promise.

    .venv/bin/python -m results.private_accuracy docs/results FOLDER

FOLDER has mnist_20k.npz, the files of Adult and femnist_114_writers.npz. Every finished run is a
line of docs/results/private.jsonl; a command that was interrupted goes on where it was. It ends
with the tables of docs/results/private.md and the pictures private-light.svg and -dark.svg.

All federated runs are real: messages, masks, ledgers and calibration of the in-process engine.
Tuning never sees the test set: a fifth of the training records is held out. For a method and a data
set it tries settings at epsilon 2, spread over a box and then around the best, and from there some
around the best at each next epsilon. That choice costs privacy itself, which no figure here counts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core import ConfigError, RunError, algorithm
from privet.data import load
from privet.kernel import gaussian_epsilon, gaussian_scale, stream
from privet.problems import BinaryLogistic, LinearModel, MultinomialLogistic, NoRegularizer
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from privet.sim.trusting import trusting_nodes
from privet.sim.tuning import hypercube
from results.marked import fill
from results.objective_perturbation import noise_scale, perturbed
from results.themes import themed
from studies.runs import Runs
from studies.statistics import Estimate, welch

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS = range(1, 11)
OF_SUMS = 5
"""The first of them, of runs with masked sums, which take twenty times as long."""
FIRST, SPREAD = 2.0, 7
"""Where tuning begins, and how many settings it tries over the whole box."""
CLOSER = {"adult": 5, "mnist": 3, "femnist": 3}
"""How many it tries around the best, there and at each next epsilon."""
TUNING = 1000
"""Seed of the deal of records, and of what is held out, while tuning."""
POOL = 4

Settings = dict[str, Any]
Features = NDArray[np.float32]
Point = NDArray[np.float64]


# ------------------------------------------------------------------ data


@dataclass(frozen=True)
class Data:
    """Records with who wrote them (nobody in particular: empty), and the test set."""

    x: Features
    y: NDArray[np.int64]
    x_test: Features
    y_test: NDArray[np.int64]
    owners: NDArray[Any]
    agents: int
    colluders: int

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    def problem(self, rows: NDArray[np.intp], divisor: float) -> LinearModel[Any]:
        """Return the mean loss over some records, their sum divided by ``divisor``."""
        if self.classes == 2:
            signs = 2.0 * self.y[rows] - 1.0
            return BinaryLogistic(self.x[rows], signs, regularizer=NoRegularizer(), divisor=divisor)
        return MultinomialLogistic(
            self.x[rows], self.y[rows], self.classes, regularizer=NoRegularizer(), divisor=divisor
        )

    def accuracy(self, model: NDArray[Any], x: Features, y: NDArray[np.int64]) -> float:
        if self.classes == 2:
            return float(BinaryLogistic.accuracy(model, x, 2 * y - 1))
        return float(MultinomialLogistic.accuracy(model, x, y))


def mnist(folder: Path) -> Data:
    """Return 10,000 digits, their pixels in [0, 1], for 100 agents."""
    found = load("mnist", data_path=str(folder / "mnist_20k.npz"), dtype="float32", intercept=False)
    parts = found.train_features, found.train_labels, found.test_features, found.test_labels
    return Data(*parts, np.empty(0), 100, 10)


def adult(folder: Path) -> Data:
    """Return UCI Adult, standardised by public constants, for 100 agents."""
    found = load("adult", data_path=str(folder), dtype="float32", intercept=True)
    labels = [(part > 0).astype(np.int64) for part in (found.train_labels, found.test_labels)]
    parts = found.train_features, labels[0], found.test_features, labels[1]
    return Data(*parts, np.empty(0), 100, 10)


def femnist(folder: Path) -> Data:
    """Return characters of 114 writers, an agent each; pixels are averaged, 16 to one."""
    with np.load(folder / "femnist_114_writers.npz") as file:
        parts = {name: file[name] for name in ("x_train", "x_test", "y_train", "y_test", "w_train")}

    def pooled(images: NDArray[np.uint8]) -> Features:
        side = 28 // POOL
        square = (1.0 - images / np.float32(255)).reshape(-1, side, POOL, side, POOL)
        return np.ascontiguousarray(square.mean(axis=(2, 4), dtype=np.float32).reshape(-1, side**2))

    labels = [parts[name].astype(np.int64) for name in ("y_train", "y_test")]
    return Data(
        pooled(parts["x_train"]), labels[0], pooled(parts["x_test"]), labels[1],
        parts["w_train"], 114, 11,
    )  # fmt: skip


DATA: Mapping[str, Callable[[Path], Data]] = {"adult": adult, "mnist": mnist, "femnist": femnist}


@lru_cache(maxsize=3)
def data_of(folder: Path, name: str) -> Data:
    return DATA[name](folder)


@lru_cache(maxsize=4)
def dealt(
    folder: Path, name: str, agents: int, seed: int
) -> tuple[tuple[LinearModel[Any], ...], Features, NDArray[np.int64]]:
    """Return the agents' problems and what accuracy is measured on.

    Records without an owner are dealt at random. With the seed of tuning a fifth is held out. All
    sums are divided by the largest number of records of an agent, which is public: so the record of
    an agent with few is hidden by the noise of all.
    """
    data = data_of(folder, name)
    rng = stream(seed, "private accuracy")
    order = rng.permutation(len(data.y))
    x, y = data.x_test, data.y_test
    if seed == TUNING:
        aside, order = np.split(order, [len(order) // 5])
        x, y = data.x[aside], data.y[aside]
    if data.owners.size and agents == data.agents:
        parts = [order[data.owners[order] == owner] for owner in np.unique(data.owners)]
    else:
        parts = np.array_split(order, agents)
    most = max(map(len, parts))
    return tuple(data.problem(np.sort(rows), float(most)) for rows in parts), x, y


# ------------------------------------------------------------------ methods


@dataclass(frozen=True)
class Method:
    """A line of the tables: how it is tuned, and what its settings mean.

    Attributes
    ----------
    axes : mapping of str to (low, high)
        Of the box, on a logarithmic scale.
    strategy : callable
        ``axes' values -> arguments of the Strategy``.
    agents : int
        1 for all records in one place, 0 for the data's own number.
    like : str
        The method whose settings it takes, in place of a search of its own.
    only : str
        The data set that it is measured on, empty for all.
    relation : str
        Neighbours that its epsilon is about.
    trusted : bool
        Whether the server is one that adds the noise: as it is by agents who send their shares of
        it in clear, which no epsilon holds for towards the server itself.
    """

    title: str
    name: str
    axes: Mapping[str, tuple[float, float]]
    strategy: Callable[[Settings], Settings]
    agents: int = 0
    like: str = ""
    only: str = ""
    relation: str = "replace-one"
    trusted: bool = False

    @property
    def masked(self) -> bool:
        """Whether the server sees sums of uploads alone."""
        return self.strategy in (shared, whole_shared)


ROUNDS, CLIP = (4.0, 32.0), (0.1, 2.0)
MOMENTUM = 0.9


def sgd(of: Settings, momentum: float = MOMENTUM) -> Settings:
    """Return clipped gradient steps; ``pace`` is the length of the first one at most."""
    return {
        "clip": of["clip"],
        "step_size_base": of["pace"] / of["clip"],
        "step_size_rule": "constant",
        "momentum": momentum,
    }


def scheduled(of: Settings) -> Settings:
    """As ``sgd``; the last round's noise is ``fall`` times the first one's."""
    ratio = of["fall"] ** (1.0 / max(of["rounds"] - 1, 1))
    return {**sgd(of), "budget_schedule": "geometric", "budget_ratio": ratio}


def fed_plt(of: Settings) -> Settings:
    """One noisy step of length ``pace`` at most, a ``share`` of the way to 2 y - z."""
    step = of["pace"] / of["clip"]
    return {
        "clip": of["clip"],
        "local_solver": "noisy-gd",
        "local_epochs": 1,
        "step_size": step,
        "smoothness": 1.0 / step,
        "rho": step / of["share"],
    }


def fed_pdm(of: Settings) -> Settings:
    """One step, the dual public; a round moves by 2 eta u."""
    step = of["pace"] / of["clip"] / 2.0
    return {
        "preset": "private",
        "clip": of["clip"],
        "step_size_base": step,
        "rho": of["share"] / step,
    }


def dp_iadmm(of: Settings) -> Settings:
    """One update z <- (rho w + lam - g + z / eta) / (rho + 1 / eta), rho a ``share`` of both."""
    whole = of["clip"] / of["pace"]
    return {
        "clip": of["clip"],
        "eta_rule": "smooth",
        "smoothness": (1.0 - of["share"]) * whole,
        "rho": of["share"] * whole,
    }


def shared(of: Settings) -> Settings:
    return {**sgd(of), "secure_sum": True, "noise_sharing": True}


BATCHES = 4


def in_turn(of: Settings, bands: int = 1) -> Settings:
    """Return steps along a quarter of the records, each of which has its turn."""
    return {**sgd(of), "batch": "cyclic", "batches": BATCHES, "noise_bands": bands}


UNEQUAL = 164 * 114 / 15_440
"""The most records of a FEMNIST writer over the mean: steps along sums are so much shorter."""


def shortened(of: Settings) -> Settings:
    return sgd({**of, "pace": of["pace"] / UNEQUAL})


def whole(of: Settings) -> Settings:
    """Return steps along the mean gradient of each agent, clipped; all its records are hidden."""
    return {**sgd(of), "clipping": "batch", "relation": "replace-agent"}


def whole_shared(of: Settings) -> Settings:
    return {**shared(of), **whole(of)}


STEPS = {"rounds": ROUNDS, "clip": CLIP}
FAST = {**STEPS, "pace": (0.1, 5.0)}
TURNS = {"rounds": (16.0, 128.0), "clip": CLIP, "pace": (0.025, 1.25)}
"""As `FAST`, of as many gradients."""
PLAIN = {**STEPS, "pace": (1.0, 40.0)}
SPLIT = {**PLAIN, "share": (0.03, 0.9)}
METHODS: Mapping[str, Method] = {
    "central": Method("all records in one place, momentum", "dp-fedsgd", FAST, sgd, agents=1),
    "shortened": Method(
        "all records in one place, momentum, steps 1/1.21 as long", "dp-fedsgd", FAST, shortened,
        agents=1, like="central", only="femnist",
    ),
    "objective": Method(
        "all records in one place, objective perturbation", "",
        {"radius": (0.2, 1.0), "regularizer": (1e-5, 1e-1)}, dict, agents=1,
    ),
    "sums": Method("DP-FedSGD, momentum, sums", "dp-fedsgd", FAST, shared, like="central"),
    "local": Method(
        "DP-FedSGD, local noise", "dp-fedsgd", PLAIN, partial(sgd, momentum=0.0)
    ),
    "momentum": Method("DP-FedSGD, local noise, momentum", "dp-fedsgd", FAST, sgd),
    "schedule": Method(
        "DP-FedSGD, local noise, momentum, schedule", "dp-fedsgd",
        {**FAST, "fall": (0.2, 1.0)}, scheduled,
    ),
    "fed-plt": Method("Fed-PLT, local noise", "fed-plt", SPLIT, fed_plt),
    "fed-pdm": Method("FedPDM, local noise", "fed-pdm", SPLIT, fed_pdm),
    "dp-iadmm": Method("DP-IADMM, local noise", "dp-iadmm", SPLIT, dp_iadmm),
    "ten": Method("DP-FedSGD, local noise, momentum, 10 agents", "dp-fedsgd", FAST, sgd, agents=10),
    "ten-turns": Method(
        "DP-FedSGD, local noise, momentum, 10 agents, batches in turn", "dp-fedsgd", TURNS,
        in_turn, agents=10,
    ),
    "ten-bands": Method(
        "DP-FedSGD, local noise, momentum, 10 agents, batches in turn, 4 bands", "dp-fedsgd",
        TURNS, partial(in_turn, bands=BATCHES), agents=10,
    ),
    "forty": Method(
        "all records in one place, momentum, 40 rounds", "dp-fedsgd",
        {"rounds": (40.0, 40.0), "clip": (0.7, 0.7), "pace": (0.3, 4.0)}, sgd, agents=1,
        only="mnist",
    ),
    "forty-sums": Method(
        "DP-FedSGD, momentum, sums, 40 rounds", "dp-fedsgd", FAST, shared, like="forty",
        only="mnist",
    ),
    "agents-server": Method(
        "whole agents: noise of a trusted server, momentum", "dp-fedsgd", FAST, whole,
        only="femnist", relation="replace-agent", trusted=True,
    ),
    "agents-sums": Method(
        "whole agents: DP-FedSGD, momentum, sums", "dp-fedsgd", FAST, whole_shared,
        like="agents-server", only="femnist", relation="replace-agent",
    ),
    "agents-local": Method(
        "whole agents: DP-FedSGD, local noise, momentum", "dp-fedsgd", FAST, whole,
        only="femnist", relation="replace-agent",
    ),
}  # fmt: skip


# ------------------------------------------------------------------ runs


def play(
    folder: Path, *, data: str, method: str, epsilon: float, seed: int, **of: Any
) -> dict[str, Any]:
    """Return the accuracy of one run, NaN where its settings cannot be used, and what it took."""
    began = time.process_time()
    agents = METHODS[method].agents or data_of(folder, data).agents
    problems, x, y = dealt(folder, data, agents, seed)
    try:
        if method == "objective":
            model, spent = one_place(problems[0], epsilon, seed, of), epsilon
        else:
            model, spent = federated(folder, data, method, epsilon, seed, of)
        accuracy = data_of(folder, data).accuracy(model, x, y)
    except (ConfigError, RunError):  # noise too large for its grid, or numbers that overflow
        accuracy = spent = None
    seconds = round(time.process_time() - began, 2)
    return {"accuracy": accuracy, "spent": spent, "seconds": seconds}


def one_place(problem: LinearModel[Any], epsilon: float, seed: int, of: Settings) -> Any:
    """Return the model of objective perturbation, in float64."""
    longest = float(np.quantile(np.linalg.norm(problem.features, axis=1), 0.95))
    radius, count = of["radius"] * longest, problem.num_examples
    lam = of["regularizer"] * count * radius**2
    classes = getattr(problem, "classes", 2)
    sigma = noise_scale(epsilon, DELTA, radius, lam, classes)
    if math.isinf(sigma):
        raise ConfigError("the regulariser alone costs as much")
    return perturbed(problem, radius, lam, sigma, stream(seed, "objective perturbation"))


def federated(
    folder: Path, data: str, method: str, epsilon: float, seed: int, of: Settings
) -> tuple[Any, float]:
    """Return the last model of a run, and what it spent."""
    own, known = METHODS[method], data_of(folder, data)
    problems, _, _ = dealt(folder, data, own.agents or known.agents, seed)
    if own.relation == "replace-agent":  # the mean of each agent's own records is clipped
        problems = tuple(one.with_divisor(float(one.num_examples)) for one in problems)
    settings = own.strategy(of)
    if own.trusted:
        mu = math.sqrt(len(problems)) / gaussian_scale(epsilon, DELTA)
        epsilon = gaussian_epsilon(mu, DELTA)
    strategy = algorithm(own.name).load_strategy()(
        num_agents=len(problems),
        target_epsilon=epsilon,
        delta=DELTA,
        seed=seed,
        **settings,
    )
    start = ArrayRecord({"x": Array(np.zeros(problems[0].dim, np.float32))})
    with TemporaryDirectory() as place:
        nodes: Sequence[Any] = [{"relation": own.relation}] * len(problems)
        if settings.get("noise_sharing"):
            names = map(str, range(len(problems)))
            nodes = trusting_nodes(Path(place), names, known.colluders, own.relation)
        grid = grid_of(own.name, problems, nodes)
        result = strategy.start(grid, start, num_rounds=of["rounds"], log_rounds=False)
    assert result.privacy is not None
    assert result.privacy.private
    return result.arrays["x"].numpy(), result.privacy.epsilon


# ------------------------------------------------------------------ tuning


def tuned(runs: Runs, data: str, method: str, epsilon: float) -> Settings:
    """Return the best settings that were tried on held-out training records."""
    return _settings(method, _best(runs, data, method, epsilon))


def _best(runs: Runs, data: str, method: str, epsilon: float) -> Point:
    """Return the best point of the box: searched at `FIRST`, from there on step by step."""

    def score(point: Point) -> float:
        run = {"data": data, "method": method, "epsilon": epsilon, "seed": TUNING}
        found = runs(**run, **_settings(method, point))["accuracy"]
        return -1.0 if found is None else float(found)

    place, axes = EPSILONS.index(epsilon), len(METHODS[method].axes)
    if epsilon == FIRST:
        best = max(_points(f"{method} {data}", SPREAD, axes), key=score)
    else:
        near = EPSILONS[place + 1 if epsilon < FIRST else place - 1]
        best = _best(runs, data, method, near)
    around = (_points(f"{method} {data} {epsilon:g}", CLOSER[data], axes) - 0.5) / 2.0
    return max([best, *np.clip(best + around, 0.0, 1.0)], key=score)


def _points(name: str, count: int, dim: int) -> Point:
    return hypercube(stream(0, "private tuning", name), count, dim)


def _settings(method: str, point: Point) -> Settings:
    """Return the values of a point of the box."""
    found: Settings = {
        key: float(f"{low * (high / low) ** share:.4g}")
        for (key, (low, high)), share in zip(METHODS[method].axes.items(), point, strict=True)
    }
    if "rounds" in found:
        found["rounds"] = round(found["rounds"])
    return found


def cells_of(
    names: Iterable[str], methods: Iterable[str], epsilons: Iterable[float]
) -> Iterator[tuple[str, str, float]]:
    """Return the cells of the tables that are measured at all."""
    for data, method, epsilon in product(names, methods, epsilons):
        if METHODS[method].only in ("", data):
            yield data, method, epsilon


def cell(runs: Runs, data: str, method: str, epsilon: float) -> list[float | None]:
    """Return the test accuracies of a method at an epsilon, one for each seed."""
    chosen = tuned(runs, data, METHODS[method].like or method, epsilon)
    run = {"data": data, "method": method, "epsilon": epsilon}
    seeds = SEEDS[:OF_SUMS] if METHODS[method].masked else SEEDS
    return [runs(**run, seed=seed, **chosen)["accuracy"] for seed in seeds]


# ------------------------------------------------------------------ what is left behind

NAMES = {"adult": "Adult", "mnist": "MNIST", "femnist": "FEMNIST"}
SHOWN = ("central", "sums", "local", "fed-plt", "fed-pdm", "dp-iadmm")
"""Lines of the picture."""
LOCAL = ("local", "momentum", "schedule", "fed-plt", "fed-pdm", "dp-iadmm")
"""Lines with noise of each agent's own, of as many agents."""
Cells = Mapping[tuple[str, str, float], Estimate]


def measured(file: Path) -> Cells:
    """Return the means of all cells whose runs are all in the file."""

    runs, found = Runs(file), {}
    for data, method, epsilon in cells_of(DATA, METHODS, EPSILONS):
        with suppress(LookupError):
            found[data, method, epsilon] = Estimate.of(cell(runs, data, method, epsilon))
    return found


def tables(cells: Cells, file: Path) -> list[str]:
    """Return a table for every data set, and what tuning has cost."""
    lines: list[str] = []
    for data in [data for data in DATA if any(key[0] == data for key in cells)]:
        head = " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
        lines += ["", f"## {NAMES[data]}", "", f"| test accuracy | {head} |"]
        lines.append("|---" * (len(EPSILONS) + 1) + "|")
        for method, own in METHODS.items():
            row = [cells.get((data, method, epsilon)) for epsilon in EPSILONS]
            if any(row):
                lines.append(f"| {own.title} | {' | '.join(map(_said, row))} |")
    done = [json.loads(line) for line in file.read_text().splitlines()]
    tuning = [run for run in done if run["run"]["seed"] == TUNING]
    spent = [sum(run["seconds"] for run in some) / 60 for some in (tuning, done)]
    said = f"{len(tuning)} of {len(done)} runs were for tuning, {spent[0]:.0f} of {spent[1]:.0f}"
    return [*lines[1:], "", f"{said} minutes of one core."]


def finding(cells: Cells, epsilon: float = 1.0) -> list[str]:
    """Return what the tables amount to at one epsilon, in a sentence for each data set."""
    said = []
    for data in DATA:
        lost = _lost(cells, data, epsilon)
        if not lost:
            continue
        own = sorted(LOCAL, key=lost.__getitem__)
        best, worst = (
            f"{_per_cent(lost[one])} ({METHODS[one].title.partition(',')[0]})"
            for one in (own[0], own[-1])
        )
        said.append(
            f"- {NAMES[data]}: {_per_cent(lost['sums'])} with noise shared over masked sums; with "
            f"noise of each agent's own {best} to {worst}."
        )
    head = f"Points of accuracy lost at epsilon {epsilon:g} against all records in one place"
    return [f"**{head}:**", "", *said] if said else []


def _lost(cells: Cells, data: str, epsilon: float) -> dict[str, float]:
    """Return how far each line is below all records in one place; nothing if one was not run."""
    found = {one: cells.get((data, one, epsilon)) for one in ("central", "sums", *LOCAL)}
    if None in found.values():
        return {}
    means = {method: one.mean for method, one in found.items() if one}
    return {method: means["central"] - mean for method, mean in means.items()}


def best_lines(cells: Cells) -> list[str]:
    """Return the best line with local noise of every cell, and those that round to the same."""
    head = " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| | {head} |", "|---" * (len(EPSILONS) + 1) + "|"]
    for data in DATA:
        row = []
        for epsilon in EPSILONS:
            lost = {one: round(_lost(cells, data, epsilon)[one], 3) for one in LOCAL}
            least = min(lost.values())
            names = [METHODS[one].title.replace(", local noise", "") for one in LOCAL
                     if lost[one] == least]  # fmt: skip
            row.append(f"{'; '.join(names)}: {-least:.3f}".replace("-0.", "-."))
        lines.append(f"| {NAMES[data]} | {' | '.join(row)} |")
    return lines


MARGINS = {"sums": 0.01, "fed-pdm": 0.02, "ten-bands": 0.01}
"""What still counts as level, in accuracy; stated before the test."""
BESIDE: Mapping[str, Sequence[str]] = {
    "sums": ("central",),
    "fed-pdm": ("local", "momentum", "schedule"),
    "ten-bands": ("ten", "ten-turns"),
}
"""Lines that a line is compared with: the one of the highest mean."""


def level(gap: Estimate, margin: float) -> str:
    """Return in a word where the interval of a difference lies, by two one-sided tests."""
    if gap.low > -margin and gap.high < margin:
        return "level"
    return "below" if gap.high < 0 else "above" if gap.low > 0 else "undecided"


def levels(file: Path) -> list[str]:
    """Return the tests of these claims: a table a claim, corrected for its 15 cells."""
    lines: list[str] = []
    for method, margin in MARGINS.items():
        head = " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
        lines += ["", f"| {METHODS[method].title}, margin {margin:g} | {head} |"]
        lines.append("|---" * (len(EPSILONS) + 1) + "|")
        for data in DATA:
            cells = [_tested(file, data, method, epsilon, margin) for epsilon in EPSILONS]
            lines.append(f"| {NAMES[data]} | {' | '.join(cells)} |")
    return lines[1:]


def _tested(file: Path, data: str, method: str, epsilon: float, margin: float) -> str:
    runs = Runs(file)

    def scores(name: str) -> list[float]:
        return [score or 0.0 for score in cell(runs, data, name, epsilon)]

    best = max(map(scores, BESIDE[method]), key=sum)
    gap = welch(scores(method), best, 0.05 / (len(DATA) * len(EPSILONS)))
    said = f"{gap.mean:+.3f} ± {gap.half_width:.3f}".replace("0.", ".")
    return f"{level(gap, margin)}, {said}"


def _per_cent(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f}"


def _said(found: Estimate | None) -> str:
    if found is None:
        return "not run"
    space = "\N{NO-BREAK SPACE}"
    return f"{found.mean:.3f}{space}±{space}{found.half_width:.3f}".replace("0.", ".")


def picture(cells: Cells, figure: Any) -> None:
    """Draw accuracy over epsilon, a panel for each data set."""
    shown = [data for data in DATA if (data, SHOWN[0], EPSILONS[0]) in cells]
    for place, axes in enumerate(figure.subplots(1, len(shown), squeeze=False)[0]):
        for method in SHOWN:
            own = [epsilon for epsilon in EPSILONS if (shown[place], method, epsilon) in cells]
            found = [cells[shown[place], method, epsilon] for epsilon in own]
            label = METHODS[method].title.removesuffix(", momentum")
            # What the others are compared with lies above them, and lets them be seen.
            above = {"zorder": 5, "linestyle": "--"} if method == SHOWN[0] else {}
            axes.errorbar(
                own,
                [one.mean for one in found],
                [one.half_width for one in found],
                label=label,
                **above,
            )
        axes.set(title=NAMES[shown[place]], xlabel="epsilon", xscale="log")
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("test accuracy")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)


def write(results: Path) -> None:
    """Write the tables into the page, and the pictures."""
    file = results / "private.jsonl"
    cells = measured(file)
    fill(results / "private.md", "finding", finding(cells))
    fill(results / "private.md", "tables", tables(cells, file))
    fill(results / "private.md", "best", best_lines(cells))
    fill(results / "private.md", "levels", levels(file))
    themed(results.parent / "images" / "private", (8.0, 3.8), partial(picture, cells))


# ------------------------------------------------------------------ main


def main() -> None:
    """Play what is missing; write tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("folder", type=Path, help="of the data")
    parser.add_argument("--data", nargs="*", default=list(DATA), choices=DATA)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS, choices=EPSILONS)
    arguments = parser.parse_args()
    quiet()
    runs = Runs(arguments.results / "private.jsonl", partial(play, arguments.folder))
    for data, method, epsilon in cells_of(arguments.data, arguments.methods, arguments.epsilons):
        cell(runs, data, method, epsilon)
    write(arguments.results)


if __name__ == "__main__":
    main()
