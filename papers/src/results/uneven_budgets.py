"""Equal noise in all rounds and geometric schedules at one epsilon: distance to the optimum.

    .venv/bin/python -m results.uneven_budgets docs/results FOLDER

FOLDER has the files of Adult and mnist_20k.npz. Every finished run is a line of
docs/results/uneven-budgets.jsonl; a command that was interrupted goes on where it was. It ends with
finding, tables and pictures of docs/results/uneven-budgets.md.

All problems are strongly convex and no gradient is as long as the clip, so that a run without noise
shows the rate c of a round: it brings e_0, the squared distance at the start, down to c^(2 K) e_0.
The ratio of the schedule is the root of c. Either side chooses its rounds, and its step where there
are several, by runs of its own.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core import ConfigError, algorithm
from privet.data import federation_from_config
from privet.kernel import clip_rows, stream
from privet.problems import L2, LinearModel, RidgeRegression, minimize
from privet.server_apps import read_config
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from results.dots import Interval, Panel, draw
from results.marked import fill
from results.private_accuracy import adult, dp_iadmm, fed_pdm, fed_plt, mnist, sgd
from results.themes import themed
from studies.pages import verdict_word
from studies.rule import BETTER, UNDECIDED, WORSE, better_or_worse
from studies.runs import Runs
from studies.statistics import Estimate, student

DELTA = 1e-5
EPSILONS = (0.25, 1.0, 4.0)
SHARE = 0.5
METHODS: Mapping[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "fed-plt": ("Fed-PLT", fed_plt),
    "fed-pdm": ("FedPDM", fed_pdm),
    "dp-fedsgd": ("DP-FedSGD", partial(sgd, momentum=0.0)),
    "dp-iadmm": ("DP-IADMM", dp_iadmm),
}
NOISELESS = 0.0
"""Stands for a run without noise."""
TUNING = 1000
"""First seed of the runs by which rounds and step are chosen."""


# ------------------------------------------------------------------ problems


@dataclass(frozen=True)
class Data:
    """Agents, their optimum, and how well a model does on a test set, None where there is none."""

    problems: Sequence[LinearModel[Any]]
    optimum: NDArray[np.float64]
    accuracy: Callable[[NDArray[Any]], float | None] = lambda model: None


@dataclass(frozen=True)
class Setting:
    """A problem and how it is measured; ``paces`` are the steps, in clips of 1."""

    title: str
    make: Callable[[Path], Data]
    paces: tuple[float, ...]
    seeds: int
    tuning: int
    rounds: tuple[int, ...] = (2, 4, 8, 16, 32)
    clip: float = 1.0


def quadratic(_: Path) -> Data:
    """Return 50 agents of 250 rows, 50 in each of 5 directions: a curvature of .4 in all."""
    rows = np.tile(np.eye(5), (50, 1))
    optimum = 0.2 * np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    return Data([RidgeRegression(rows, rows @ optimum) for _ in range(50)], optimum)


def logistic(_: Path) -> Data:
    """Return 50 agents of 250 examples and 5 features, rows within norm 1."""
    config = {
        "algorithm": "fed-plt", "dataset": "synthetic", "num-agents": 50, "features": 5,
        "examples-per-agent": 250, "row-norm": 1.0, "regularizer-weight": 0.05,
    }  # fmt: skip
    problems = federation_from_config(read_config(config), 50).problems
    return Data(problems, minimize(problems).x)


def images(folder: Path) -> Data:
    """Return 100 agents of 100 digits, rows within norm 1."""
    return _dealt(mnist(folder), 10.0)


def people(folder: Path) -> Data:
    """Return 100 agents who share Adult, rows within norm 1."""
    return _dealt(adult(folder), 4.0)


def _dealt(data: Any, radius: float) -> Data:
    """Return records that are dealt at random, scaled so that norm ``radius`` is 1."""
    x, x_test = (clip_rows(part / radius, 1.0) for part in (data.x, data.x_test))
    made = type(data)(x, data.y, x_test, data.y_test, data.owners, data.agents, data.colluders)
    order = stream(0, "uneven budgets").permutation(len(data.y))
    problems = []
    for rows in np.array_split(order, data.agents):
        one = made.problem(np.sort(rows), float(len(rows)))
        one.regularizer = L2(0.001)
        problems.append(one)
    optimum = minimize(problems, tolerance=1e-3).x
    return Data(problems, optimum, lambda model: made.accuracy(model, x_test, data.y_test))


SETTINGS: Mapping[str, Setting] = {
    "quadratic": Setting("Least squares", quadratic, (0.5,), 20, 5),
    "logistic": Setting("Logistic regression", logistic, (8.0,), 10, 2),
    "adult": Setting("Adult", people, (4.0, 12.0), 5, 1),
    "mnist": Setting("MNIST", images, (6.0,), 5, 1, (4, 16, 32), math.sqrt(2.0)),
}


@lru_cache(maxsize=1)
def data_of(folder: Path, name: str) -> Data:
    return SETTINGS[name].make(folder)


# ------------------------------------------------------------------ runs


def play(
    folder: Path, *, data: str, method: str, epsilon: float, ratio: float, pace: float,
    rounds: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the squared distance of a run's model to the optimum, and its test accuracy.

    No distance where the first noise of a schedule is larger than its grid allows.
    """
    began, found, clip = time.process_time(), data_of(folder, data), SETTINGS[data].clip
    own = METHODS[method][1]({"clip": clip, "pace": pace, "share": SHARE})
    if epsilon > NOISELESS:
        own |= {"target_epsilon": epsilon, "delta": DELTA}
        if ratio < 1.0:
            own |= {"budget_schedule": "geometric", "budget_ratio": ratio}
    problems = found.problems
    strategy = algorithm(method).load_strategy()(num_agents=len(problems), seed=seed, **own)
    start = ArrayRecord({"x": Array(np.zeros(problems[0].dim, problems[0].dtype))})
    grid = grid_of(method, problems)
    try:
        result = strategy.start(grid, start, num_rounds=rounds, log_rounds=False)
    except ConfigError:
        return {"error": None}
    model = result.arrays["x"].numpy()
    gap = model.astype(np.float64) - found.optimum
    return {
        "error": float(gap @ gap),
        "start": float(found.optimum @ found.optimum),
        "accuracy": found.accuracy(model),
        "seconds": round(time.process_time() - began, 2),
    }


# ------------------------------------------------------------------ what is chosen and measured


@dataclass(frozen=True)
class Choice:
    """Rounds and step, the rate c that they have without noise, and what is left of e_0 then."""

    pace: float
    rounds: int
    rate: float
    left: float

    def theory(self) -> float:
        """Return how many times less noise the schedule leaves than equal noise, these rounds."""
        powers = self.rate ** np.arange(self.rounds)
        return float(self.rounds * (powers**2).sum() / powers.sum() ** 2)


@dataclass(frozen=True)
class Line:
    """A line of the tables: its cells, and the gain at the best with what theory foresees."""

    cells: list[str]
    gain: Interval
    theory: float


class Study:
    """The runs of one method on one problem."""

    def __init__(self, runs: Runs, data: str, method: str) -> None:
        self.data = data
        self._run = partial(runs, data=data, method=method)
        self.choices = []
        for pace, rounds in product(SETTINGS[data].paces, SETTINGS[data].rounds):
            plain = self._run(epsilon=NOISELESS, ratio=1.0, pace=pace, rounds=rounds, seed=0)
            share = plain["error"] / plain["start"]
            rate = share ** (0.5 / rounds)
            if rate < 1.0:
                self.choices.append(Choice(pace, rounds, rate, plain["error"]))

    def played(
        self, epsilon: float, choice: Choice, *, uneven: bool, seeds: range
    ) -> list[dict[str, Any]]:
        """Return the runs of a schedule."""
        ratio = round(math.sqrt(choice.rate), 6) if uneven else 1.0
        what = {"epsilon": epsilon, "ratio": ratio, "pace": choice.pace, "rounds": choice.rounds}
        return [self._run(**what, seed=seed) for seed in seeds]

    def best(self, epsilon: float, *, uneven: bool) -> Choice:
        """Return the choice of least mean squared distance in runs of other seeds."""
        seeds = range(TUNING, TUNING + SETTINGS[self.data].tuning)

        def score(choice: Choice) -> float:
            found = self.played(epsilon, choice, uneven=uneven, seeds=seeds)
            errors = [math.inf if one["error"] is None else one["error"] for one in found]
            return float(np.mean(errors))

        return min(self.choices, key=score)

    def line(self, epsilon: float) -> Line:
        """Return what either side reached, and the gains beside theory's."""
        seeds = range(1, SETTINGS[self.data].seeds + 1)
        even, uneven = (self.best(epsilon, uneven=one) for one in (False, True))
        found = self.played(epsilon, even, uneven=False, seeds=seeds)
        other = self.played(epsilon, uneven, uneven=True, seeds=seeds)
        alike = self.played(epsilon, uneven, uneven=False, seeds=seeds)
        cells = [f"{epsilon:g}", *(f"{one.pace:g}, {one.rounds}" for one in (even, uneven))]
        cells += [f"{_mean(runs, 'error'):.3g}" for runs in (found, other)]
        gain, theory = _gain(found, other), self._foreseen(found, even)
        assert gain is not None
        word = verdict_word(better_or_worse(gain[0], gain[2], equal=1.0))
        cells += [f"{word} {_range(gain)}", f"{theory:.2f}"]
        cells += [_range(_gain(alike, other, uneven.left)), f"{uneven.theory():.2f}"]
        if found[0]["accuracy"] is not None:
            each = (Estimate.of([one["accuracy"] for one in runs]) for runs in (found, other))
            cells += [f"{one.mean:.3f} ± {one.half_width:.3f}".replace("0.", ".") for one in each]
        return Line(cells, gain, theory)

    def _foreseen(self, found: list[dict[str, Any]], even: Choice) -> float:
        """Return the gain that theory foresees where either side has its best rounds, this step.

        The noise of a round is that which explains the error of the best runs with equal noise.
        """
        powers = (even.rate ** (2 * np.arange(even.rounds))).sum()
        noise = max(_mean(found, "error") - even.left, 0.0) / (even.rounds * powers)
        own = [one for one in self.choices if one.pace == even.pace]
        sums = [one.rate ** np.arange(one.rounds) for one in own]
        equal = min(
            one.left + noise * one.rounds * (each**2).sum()
            for one, each in zip(own, sums, strict=True)
        )
        least = min(one.left + noise * each.sum() ** 2 for one, each in zip(own, sums, strict=True))
        return float(equal / least)


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([one[key] for one in runs]))


def _gain(
    found: list[dict[str, Any]], other: list[dict[str, Any]], left: float = 0.0
) -> Interval | None:
    """Return a ratio of mean errors, less what is left without noise, with its 95 % interval.

    None where nothing exceeds what is left.
    """
    logs, spread = 0.0, 0.0
    for runs, sign in ((found, 1.0), (other, -1.0)):
        errors = np.array([one["error"] for one in runs]) - left
        if errors.mean() <= 0.0:
            return None
        logs += sign * math.log(errors.mean())
        spread += errors.var(ddof=1) / len(errors) / errors.mean() ** 2
    half = student(len(found)) * math.sqrt(spread)
    return math.exp(logs - half), math.exp(logs), math.exp(logs + half)


def _range(gain: Interval | None) -> str:
    if gain is None:
        return "no noise to see"
    low, middle, high = gain
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


HEAD = (
    "method", "epsilon", "pace, rounds: equal", "geometric", "squared distance: equal", "geometric",
    "gain, each side at its best", "theory", "noise, same rounds", "theory",
)  # fmt: skip


Lines = Mapping[tuple[str, float], Line]


def lines_of(runs: Runs, data: str) -> Lines:
    """Return the lines of a problem by method and epsilon; plays what is missing."""
    return {
        (method, epsilon): Study(runs, data, method).line(epsilon)
        for method, epsilon in product(METHODS, EPSILONS)
    }


def table(data: str, lines: Lines) -> list[str]:
    """Return the table of a problem."""
    rows = [[METHODS[method][0], *line.cells] for (method, _), line in lines.items()]
    head = [*HEAD, "accuracy: equal", "geometric"][: len(rows[0])]
    texts = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return [f"### {SETTINGS[data].title}", "", *texts, ""]


def measured(file: Path) -> dict[str, Lines]:
    """Return the lines of the problems whose runs are all in the file."""
    found = {}
    for data in SETTINGS:
        with suppress(LookupError):
            found[data] = lines_of(Runs(file), data)
    return found


def finding(found: Mapping[str, Lines]) -> list[str]:
    """Return where the schedule gains, by problem, from the intervals of the gains."""
    said, total = [], dict.fromkeys((BETTER, UNDECIDED, WORSE), 0)
    for data, lines in found.items():
        gains: dict[str, list[float]] = {word: [] for word in total}
        for line in lines.values():
            low, middle, high = line.gain
            gains[better_or_worse(low, high, equal=1.0)].append(middle)
        parts = []
        for word, own in gains.items():
            total[word] += len(own)
            if own:
                times = f"{min(own):.2f}" + (f" to {max(own):.2f}" if len(own) > 1 else "")
                parts.append(f"{verdict_word(word)} in {len(own)} ({times} times)")
        said.append(f"- {SETTINGS[data].title}: {', '.join(parts)}.")
    head = (
        f"**At the same epsilon the schedule ends nearer to the optimum than equal noise in "
        f"{total[BETTER]} of {sum(total.values())} comparisons, and farther in {total[WORSE]}; "
        f"{total[UNDECIDED]} are undecided.**"
    )
    return [head, "", *said]


def picture(found: Mapping[str, Lines], figure: Any) -> None:
    """Draw the gains beside theory's, a panel for each problem."""
    panels = [
        Panel(
            SETTINGS[data].title,
            "gain in squared distance",
            {
                "measured, 95 % interval": [line.gain for line in lines.values()],
                "theory": [(line.theory,) * 3 for line in lines.values()],
            },
            equal=1.0,
            log=True,
        )
        for data, lines in found.items()
    ]
    rows = [
        f"{title}, epsilon {epsilon:g}"
        for (title, _), epsilon in product(METHODS.values(), EPSILONS)
    ]
    draw(rows, panels, figure, alike=True)


def write(results: Path) -> None:
    """Write finding, tables and pictures from the runs that are there."""
    found = measured(results / "uneven-budgets.jsonl")
    page = results / "uneven-budgets.md"
    fill(page, "finding", finding(found))
    texts = [line for data, lines in found.items() for line in table(data, lines)]
    fill(page, "tables", texts[:-1])
    target = results.parent / "images" / "uneven-budgets"
    themed(target, (10.0, 4.2), partial(picture, found))


def main() -> None:
    """Play what is missing, and write the page's parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("folder", type=Path, help="of the data")
    parser.add_argument("--data", nargs="*", default=list(SETTINGS), choices=SETTINGS)
    arguments = parser.parse_args()
    quiet()
    file = arguments.results / "uneven-budgets.jsonl"
    for data in arguments.data:
        lines_of(Runs(file, partial(play, arguments.folder)), data)
    write(arguments.results)


if __name__ == "__main__":
    main()
