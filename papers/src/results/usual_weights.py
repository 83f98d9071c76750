"""Rounds and bytes to the pooled optimum at scikit-learn's weights: docs/results/usual-weights.md.

    python -m results.usual_weights docs/results DATA

plays what is missing and writes the tables. A finished cell is a line of ``usual-weights.jsonl``
and is not played again. DATA is the folder of Adult's files; without them Adult is left out.
``--size quick`` plays two sets by label at C = 1 in 30 rounds. ``--task``, ``--method``,
``--partition`` and ``--penalty-c`` choose cells.
"""

from __future__ import annotations

import logging
import math
import random
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedProx
from numpy.typing import NDArray

from privet.agents.cohort import FEWEST
from privet.data import federation_from_config
from privet.kernel import Moduli, Problem
from privet.problems import minimize
from privet.problems.stacks import Stack, stack_key
from privet.rounds.collect.outcome import OverflowedError
from privet.server_apps import read_config
from privet.server_apps.build import build_strategy
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from privet.sim.race import GivenUp
from privet.sim.tuning import moduli_of
from privet.strategies import PrimalDualStrategy, Round
from privet.wire import content_bytes
from results.marked import fill, suite
from studies.datasets.adult import TRAIN_FILE
from studies.runs import Runs
from studies.search import Found, compass

Vector = NDArray[Any]
Config = dict[str, Any]

AGENTS, WORK = 10, 30
"""Agents, and gradients that each rival takes in a round: Fed-PLT's Newton steps cost 12 to 30."""
TRIALS, BOUND = 5, 8
"""Settings that are tried of each rival, and the most where the best was at the end of the grid."""
ROUNDS: Mapping[str, int] = {"full": 200, "quick": 30}
LEVELS = (1e-2, 1e-4, 1e-6)
DIVERGED = 1e3
"""Relative distance at which a run is given up."""
STILL, STILL_ROUNDS = 1e-5, 10
"""A run is also ended where its distance has changed by less than this part in so many rounds."""
TASKS = ("iris", "wine", "breast-cancer", "diabetes", "digits", "adult")
PARTITIONS: Mapping[str, Config] = {
    "label": {"partition": "label"},
    "dirichlet .3": {"partition": "dirichlet", "dirichlet-alpha": 0.3},
    "iid": {"partition": "iid"},
}
PENALTIES = (1.0, 0.1, 10.0, 0.01, 100.0)
"""The values of C, in the order in which they are played."""
OURS, MISSED = "Fed-PLT", "-"


# ------------------------------------------------------------------ methods


@dataclass(frozen=True)
class Method:
    """A method with the one number that is searched of it; its others are those of its theory.

    Attributes
    ----------
    protocol : str
        Its registered name; FedAvg and FedProx are Flower's own.
    key : str
        What is searched; nothing where it is empty.
    start : callable
        ``moduli -> number``, the middle of the search.
    settings : callable
        ``(moduli, number) -> keys`` of the run config.
    """

    protocol: str = ""
    key: str = ""
    start: Callable[[Moduli], float] = lambda moduli: 1.0 / moduli.smoothness
    settings: Callable[[Moduli, float], Config] = lambda moduli, value: {}


def _curvature(moduli: Moduli) -> float:
    return math.sqrt(moduli.strong_convexity * moduli.smoothness)


def _splitting(moduli: Moduli) -> float:
    return 1.0 / _curvature(moduli)


def _proximal_step(moduli: Moduli, weight: float) -> float:
    """Return the best fixed step on f + (weight / 2) ||w - x||^2."""
    return 2.0 / (moduli.smoothness + moduli.strong_convexity + 2.0 * weight)


EPOCHS: Config = {"local-epochs": WORK}
STEPS: Config = {"max-local-steps": WORK, "step-size-rule": "constant"}
METHODS: Mapping[str, Method] = {
    OURS: Method("fed-plt"),
    "FedAvg": Method("", "step size"),
    "FedProx": Method("", "mu", _curvature),
    "SCAFFOLD": Method(
        "scaffold", "step size", settings=lambda _, value: {**STEPS, "step-size-base": value}
    ),
    "FedDyn": Method(
        "fed-dyn", "alpha", _curvature,
        lambda moduli, value: {
            **STEPS, "fed-dyn-alpha": value, "step-size-base": _proximal_step(moduli, value),
        },
    ),
    "LED": Method("led", "step size", settings=lambda _, value: {**EPOCHS, "step-size": value}),
    "FedLin": Method(
        # An iteration takes two rounds, and the gradients of two.
        "fed-lin", "step size",
        settings=lambda _, value: {"local-epochs": 2 * WORK, "step-size": value},
    ),
    "FedPD": Method("fed-pd", "rho", _splitting, lambda _, value: {**EPOCHS, "rho": value}),
    "Fed-PLT, as printed": Method(
        "fed-plt", "rho", _splitting,
        lambda _, value: {**EPOCHS, "local-solver": "gd", "rho": value},
    ),
}  # fmt: skip


# ------------------------------------------------------------------ a cell


@dataclass(frozen=True)
class Instance:
    """Problems of the agents, their pooled optimum and moduli, and the run config of their data."""

    problems: Sequence[Any]
    optimum: Vector
    moduli: Moduli
    config: Config


@lru_cache(maxsize=1)
def instance(folder: Path, task: str, partition: str, c: float) -> Instance:
    """Return the problems of a cell."""
    with tempfile.TemporaryDirectory() as place:
        given = {
            "algorithm": "fed-plt",
            "num-agents": AGENTS,
            "min-agents": AGENTS,
            "penalty-c": c,
            **PARTITIONS[partition],
            **_source(folder, task, Path(place)),
        }
        problems = federation_from_config(read_config(given), AGENTS).problems
    moduli = moduli_of(problems)
    assert moduli is not None
    given = {key: given[key] for key in ("num-agents", "min-agents", "penalty-c")}
    return Instance(problems, minimize(problems).x, moduli, given)


def _source(folder: Path, task: str, place: Path) -> Config:
    """Return the keys of a data set; scikit-learn's iris and wine are written as tables."""
    if task == "adult":
        return {"dataset": task, "data-path": str(folder.absolute())}
    if task not in ("iris", "wine"):
        return {"dataset": task}
    import sklearn.datasets

    held = getattr(sklearn.datasets, f"load_{task}")()
    columns = [f"column {number}" for number in range(held.data.shape[1])]
    lines = [",".join([*columns, "label"])]
    for row, label in zip(held.data, held.target, strict=True):
        lines.append(",".join([*map(repr, row.tolist()), f"class {label}"]))
    file = place / f"{task}.csv"
    file.write_text("\n".join(lines) + "\n")
    return {"dataset": "csv", "data-path": str(file), "label-column": "label"}


@dataclass
class Course:
    """Relative distance to the optimum and bytes sent, by round; ends the run where it is decided.

    Attributes
    ----------
    distances, megabytes : list of float
        After every round; megabytes of all agents up and down, since the first round.
    """

    optimum: Vector
    distances: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)

    def add(self, model: Vector, sent: float) -> None:
        """Note a round (raises ``GivenUp`` where the run arrives, diverges or stops changing)."""
        away = float(np.linalg.norm(model - self.optimum) / np.linalg.norm(self.optimum))
        self.distances.append(away if math.isfinite(away) else math.inf)
        self.megabytes.append(sent / 1e6)
        if not LEVELS[-1] < self.distances[-1] < DIVERGED or self._still:
            raise GivenUp("decided")

    @property
    def _still(self) -> bool:
        """Whether the distance has stopped changing, so that more rounds add nothing."""
        last = self.distances[-STILL_ROUNDS:]
        return len(last) == STILL_ROUNDS and max(last) - min(last) < STILL * last[-1]

    @property
    def diverged(self) -> bool:
        """Whether no round was played, or the last distance is `DIVERGED` or more."""
        return not self.distances or self.distances[-1] >= DIVERGED

    def score(self, most: int) -> float:
        """Return what is compared: the last distance, and of runs that arrive the rounds."""
        played = len(self.distances)
        if self.diverged:
            return DIVERGED * most / max(1, played)
        last = self.distances[-1]
        return last if last > LEVELS[-1] else LEVELS[-1] * played / most

    def reached(self, level: float) -> tuple[int, float] | None:
        """Return the round after which the distance was at most a level first, and its bytes."""
        for number, away in enumerate(self.distances, 1):
            if away <= level:
                return number, round(self.megabytes[number - 1], 4)
        return None


def run(cell: Instance, method: Method, value: float, most: int) -> Course:
    """Return the course of one run."""
    course = Course(cell.optimum)
    start = ArrayRecord({"x": Array(np.zeros(cell.optimum.size))})
    play = _flower if not method.protocol else _ours
    with np.errstate(all="ignore"):
        try:
            play(cell, method, value, most, start, course)
        except OverflowedError:
            course.distances.append(math.inf)
            course.megabytes.append(math.nan)
        except GivenUp:
            pass
    return course


def _ours(
    cell: Instance, method: Method, value: float, most: int, start: ArrayRecord, course: Course
) -> None:
    """Play a method of this library."""
    keys = method.settings(cell.moduli, value)
    config = read_config({**cell.config, **keys, "algorithm": method.protocol})
    sent = 0

    def watch(done: Round, strategy: PrimalDualStrategy) -> None:
        nonlocal sent
        sent += done.bytes_up + done.bytes_down
        course.add(strategy.run.model, sent)

    grid = grid_of(method.protocol, cell.problems)
    build_strategy(config).start(grid, start, num_rounds=most, observers=(watch,), log_rounds=False)


class _Counting(InlineGrid):
    """Counts the bytes of messages and replies."""

    sent = 0

    def deliver(self, message: Any) -> Any:
        self.sent += content_bytes(message.content)
        reply = super().deliver(message)
        self.sent += 0 if reply is None else content_bytes(reply.content)
        return reply


def _flower(
    cell: Instance, method: Method, value: float, most: int, start: ArrayRecord, course: Course
) -> None:
    """Play Flower's FedAvg or FedProx: steps on the mean loss of an agent, weights its examples."""
    mu = value if method.key == "mu" else 0.0
    step = value if method.key != "mu" else _proximal_step(cell.moduli, mu)
    app, stacks = ClientApp(), list(stacked(cell.problems))

    @lru_cache(maxsize=1)  # all agents of a round start from the same model
    def ends(model: bytes) -> Mapping[int, Vector]:
        x, found = np.frombuffer(model), dict[int, Vector]()
        for places, stack in stacks:
            start = np.broadcast_to(x, (len(places), x.size)) if isinstance(stack, Stack) else x
            rows = local_steps(stack, start, step, mu).reshape(-1, x.size)
            found |= zip(places, rows, strict=True)
        return found

    @app.train()
    def train(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        x = message.content["arrays"]["x"].numpy()  # type: ignore[union-attr]
        metrics = MetricRecord({"num-examples": cell.problems[place].num_examples})
        w = ends(x.tobytes())[place]
        content = RecordDict({"arrays": ArrayRecord({"x": Array(w)}), "metrics": metrics})
        return Message(content, reply_to=message)

    grid = _Counting(app, AGENTS)

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number:
            course.add(arrays["x"].numpy(), grid.sent)

    random.seed(0)  # Flower samples nodes with the global generator
    common: Config = {
        "fraction_evaluate": 0.0, "min_train_nodes": AGENTS, "min_available_nodes": AGENTS,
    }  # fmt: skip
    strategy = FedProx(proximal_mu=mu, **common) if mu else FedAvg(**common)
    strategy.start(grid, start, num_rounds=most, evaluate_fn=evaluate)


def stacked(problems: Sequence[Any]) -> Iterator[tuple[list[int], Any]]:
    """Return problems of one shape as a stack with their places, and others one by one."""
    groups: dict[Hashable, list[int]] = {}
    for place, problem in enumerate(problems):
        groups.setdefault(stack_key(problem) or place, []).append(place)
    for places in groups.values():
        if len(places) >= FEWEST and (stack := Stack([problems[i] for i in places])).agrees():
            yield places, stack
        else:
            yield from (([i], problems[i]) for i in places)


def local_steps(problem: Problem | Stack, x: Vector, step: float, mu: float) -> Vector:
    """Return the end of `WORK` steps on the agent's mean loss + (mu / 2) ||w - x||^2.

    Of a stack x and the end have a row for each agent.

    f_i = (n_i / D) (mean loss) + penalty, so that D f_i / n_i, weighted by n_i, sums to D times
    the objective.
    """
    scale = problem.divisor / problem.num_examples  # type: ignore[attr-defined]
    w = x
    for _ in range(WORK):
        w = w - step * (scale * problem.gradient(w) + mu * (w - x))
    return w


def play(
    folder: Path, *, size: str, task: str, partition: str, c: float, method: str
) -> dict[str, Any]:
    """Play a cell: search the method's number, and return the best run."""
    began = time.process_time()
    cell, made, most = instance(folder, task, partition, c), METHODS[method], ROUNDS[size]
    courses: dict[float, Course] = {}

    def score(values: Mapping[str, float]) -> float:
        value = values[made.key]
        # In more rounds than the quickest so far has taken a setting cannot be better.
        arrived = (len(one.distances) for one in courses.values() if one.reached(LEVELS[-1]))
        courses[value] = run(cell, made, value, min(arrived, default=most))
        return courses[value].score(most)

    if made.key:
        found = compass({made.key: made.start(cell.moduli)}, {}, score, TRIALS, BOUND)
    else:
        found = Found({}, 0)
    value = found.values.get(made.key, 0.0)
    course = courses[value] if made.key else run(cell, made, value, most)
    reached = [course.reached(level) for level in LEVELS]
    return {
        "chosen": found.values,
        "trials": found.trials,
        "inside": found.inside,
        "rounds": [one and one[0] for one in reached],
        "megabytes": [one and one[1] for one in reached],
        "played": len(course.distances),
        "distance": float(f"{course.distances[-1]:.3g}") if not course.diverged else None,
        "seconds": round(time.process_time() - began, 1),
    }


# ------------------------------------------------------------------ the page


Cell = tuple[str, str, float]
Results = Mapping[Cell, Mapping[str, Mapping[str, Any]]]


def measured(runs: Runs, size: str) -> Results:
    """Return what is in the file, by set, partition and C, and by method."""
    found: dict[Cell, dict[str, Mapping[str, Any]]] = {}
    for task, partition, c, method in product(TASKS, PARTITIONS, sorted(PENALTIES), METHODS):
        try:
            done = runs(size=size, task=task, partition=partition, c=c, method=method)
        except LookupError:
            continue
        found.setdefault((task, partition, c), {})[method] = done
    return found


def _order(one: Mapping[str, Any]) -> tuple[float, float]:
    """Return the order of methods in a cell: rounds to the last level, then bytes, or distance."""
    last, size = one["rounds"][-1], one["megabytes"][-1]
    away = math.inf if one["distance"] is None else one["distance"]
    return (last, size) if last else (math.inf, away)


def _end(one: Mapping[str, Any]) -> str:
    """Return where a run ended, in words."""
    return f"{one['rounds'][-1]} rounds" if one["rounds"][-1] else _away(one)


def _away(one: Mapping[str, Any]) -> str:
    """Return a run's last distance, in words."""
    return "diverged" if one["distance"] is None else f"{one['distance']:.1e}"


def best_rival(own: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the best of the rivals that were played."""
    return min((one for one in own if one != OURS), key=lambda one: _order(own[one]), default=None)


def whole(own: Mapping[str, Any]) -> bool:
    """Return whether all methods were played in a cell."""
    return own.keys() == METHODS.keys()


def summary(found: Results) -> list[str]:
    """Return a row for each cell: ours and the best rival."""
    head = ["set", "partition", "C", *(f"{OURS}: {level:.0e}" for level in LEVELS)]
    lines = [[*head, "best rival", "to 1e-06, or its end", "FedAvg"]]
    lines.append(["---"] * len(lines[0]))
    for task, partition, c in product(TASKS, PARTITIONS, sorted(PENALTIES)):
        own = found.get((task, partition, c), {})
        cells = [task, partition, f"{c:g}"]
        if OURS in own:
            cells += _levels(own[OURS])
        else:
            cells += ["not run yet", *[""] * (len(LEVELS) - 1)]
        rival = best_rival(own)
        if rival is not None and whole(own):
            cells += [rival, _last(own[rival]), _last(own["FedAvg"])]
        else:
            cells += ["not run yet", "", ""]
        lines.append(cells)
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _last(one: Mapping[str, Any]) -> str:
    """Return the rounds to the last level with their bytes, or where the run ended."""
    last = list(_levels(one))[-1]
    return _end(one) if last == MISSED else last


def _levels(one: Mapping[str, Any]) -> Iterator[str]:
    for rounds, size in zip(one["rounds"], one["megabytes"], strict=True):
        yield f"{rounds} ({size:.2g} MB)" if rounds else MISSED


def tables(found: Results) -> list[str]:
    """Return a table for each cell of which rivals were played, a set of data in each fold."""
    lines: list[str] = []
    played = (cell for cell, own in found.items() if not own.keys() <= {OURS})
    for task, cells in groupby(played, key=lambda cell: cell[0]):
        lines += ['<details markdown="1">', f"<summary>{task}</summary>", ""]
        for cell in cells:
            lines += [f"**{_name(cell)}**", "", *_table(found[cell]), ""]
        lines += ["</details>", ""]
    return lines[:-1]


def _table(own: Mapping[str, Any]) -> list[str]:
    head = ["method", "chosen", *(f"{level:.0e}" for level in LEVELS), "distance at the end"]
    rows = [head, ["---"] * len(head)]
    for method in sorted(own, key=lambda one: _order(own[one])):
        one = own[method]
        chosen = ", ".join(f"{key} {value:g}" for key, value in one["chosen"].items())
        edge = "" if one["inside"] else ", the end of the search"
        rows.append([method, chosen + edge, *_levels(one), _away(one)])
    return [f"| {' | '.join(cells)} |" for cells in rows]


def finding(found: Results) -> list[str]:
    """Return in how many cells who arrives, and where a rival is the quicker one."""
    ours = {cell: own[OURS] for cell, own in found.items() if OURS in own}
    arrived = [one["rounds"][-1] for one in ours.values() if one["rounds"][-1]]
    every = len(TASKS) * len(PARTITIONS) * len(PENALTIES)
    lines = [
        f"**At defaults Fed-PLT is within {LEVELS[-1]:.0e} of the pooled optimum in "
        f"{len(arrived)} of {len(ours)} cells, after {_span(arrived)} rounds.**",
        "",
    ]
    short = [cell for cell, one in ours.items() if not one["rounds"][-1]]
    if short:
        ends = (f"{_name(cell)} ({_end(ours[cell])})" for cell in short)
        lines.append(f"- It does not get there in: {'; '.join(ends)}.")
    compared = {cell: own for cell, own in found.items() if whole(own)}
    rivals = {cell: str(best_rival(own)) for cell, own in compared.items()}
    there = [
        own[rivals[cell]]["rounds"][-1]
        for cell, own in compared.items()
        if own[rivals[cell]]["rounds"][-1]
    ]
    lines.append(
        f"- All rivals were played in {len(compared)} cells. The best of them, tuned, gets there "
        f"in {len(there)}, after {_span(there)} rounds."
    )
    behind = [cell for cell, own in compared.items() if _is_ahead(own, rivals[cell])]
    lines.append(
        f"- In {len(compared) - len(behind)} of these {len(compared)} no rival needs fewer rounds "
        "than Fed-PLT."
    )
    if behind:
        names = (
            f"{_name(cell)} ({rivals[cell]}: {_end(compared[cell][rivals[cell]])}, "
            f"Fed-PLT: {_end(compared[cell][OURS])})"
            for cell in behind
        )
        lines.append(f"- A rival is quicker than Fed-PLT in: {'; '.join(names)}.")
    averaged = [own["FedAvg"] for own in found.values() if "FedAvg" in own]
    if averaged:
        passed = sum(one["rounds"][0] is not None for one in averaged)
        lines.append(
            f"- FedAvg with the best of its steps is within {LEVELS[0]:.0e} in {passed} of "
            f"{len(averaged)} cells, within {LEVELS[-1]:.0e} in "
            f"{sum(one['rounds'][-1] is not None for one in averaged)}."
        )
    lines.append(
        f"- Not run yet: Fed-PLT in {every - len(ours)} of {every} cells, its rivals in "
        f"{every - len(compared)}."
    )
    return lines


def _is_ahead(own: Mapping[str, Mapping[str, Any]], rival: str) -> bool:
    """Return whether a rival needs fewer rounds, or ends nearer where neither arrives."""
    ours, theirs = own[OURS], own[rival]
    if ours["rounds"][-1] and ours["rounds"][-1] == theirs["rounds"][-1]:
        return False
    return _order(theirs) < _order(ours)


def _name(cell: Cell) -> str:
    return f"{cell[0]}, {cell[1]}, C = {cell[2]:g}"


def _span(numbers: Sequence[int]) -> str:
    ends = sorted({min(numbers), max(numbers)}) if numbers else ["no"]
    return " to ".join(map(str, ends))


def write(results: Path, size: str) -> None:
    """Write the page's parts from the cells that are there."""
    found = measured(Runs(results / "usual-weights.jsonl"), size)
    page = results / "usual-weights.md"
    fill(page, "finding", finding(found))
    fill(page, "summary", summary(found))
    fill(page, "tables", tables(found))


# ------------------------------------------------------------------ the command


def wanted(given: Any) -> list[dict[str, Any]]:
    """Return the cells that are asked for: at one C all sets, and Fed-PLT before its rivals."""
    quick = given.size == "quick"
    tasks = given.task or (("iris", "breast-cancer") if quick else TASKS)
    if not (given.folder / TRAIN_FILE).is_file():
        tasks = [task for task in tasks if task != "adult"]
    partitions = given.partition or (("label",) if quick else tuple(PARTITIONS))
    penalties = given.penalty_c or ((1.0,) if quick else PENALTIES)
    methods = given.method or tuple(METHODS)
    return [
        {"size": given.size, "task": task, "partition": partition, "c": c, "method": method}
        for part in ([one for one in methods if one == OURS], [m for m in methods if m != OURS])
        for c, partition, task, method in product(penalties, partitions, tasks, part)
    ]


def estimate(folder: Path, cells: Iterable[Mapping[str, Any]]) -> float:
    """Return about how many seconds of a core the cells take, from gradients of their sets."""
    seconds, price = 0.0, dict[str, float]()
    for one in cells:
        task = one["task"]
        if task not in price:
            problem = instance(folder, task, "iid", 1.0).problems[0]
            x, began = np.zeros(problem.dim), time.perf_counter()
            for _ in range(WORK):
                problem.gradient(x)
            price[task] = AGENTS * (time.perf_counter() - began) + 1e-3  # of a round
        trials = TRIALS if METHODS[one["method"]].key else 1
        seconds += trials * ROUNDS[one["size"]] * price[task]
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Play what is missing, and write the page."""
    parser = suite(__doc__.splitlines()[0], ROUNDS, TASKS, METHODS)
    parser.add_argument("--partition", choices=list(PARTITIONS), action="append")
    parser.add_argument("--penalty-c", choices=PENALTIES, type=float, action="append")
    given = parser.parse_args(arguments)
    quiet()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    runs = Runs(given.results / "usual-weights.jsonl", partial(play, given.folder))
    if not given.write:
        left = [one for one in wanted(given) if not runs.has(**one)]
        minutes = estimate(given.folder, left) / 60
        print(f"{len(left)} cells to play, about {minutes:.0f} minutes of one core", flush=True)
        for number, one in enumerate(left, 1):
            print(f"{number} of {len(left)}:", end=" ", flush=True)
            runs(**one)
    write(given.results, given.size)


if __name__ == "__main__":
    main()
