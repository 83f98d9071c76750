"""Asynchronous runs against waiting, deadlines and rivals, in seconds of a virtual clock.

    .venv/bin/python -m results.asynchrony docs/results FOLDER

FOLDER has mnist_20k.npz. With ``--night`` the runs of the network are played, and no others; they
need PyTorch. Every finished run is a line of docs/results/asynchrony.jsonl; a command
that was interrupted goes on where it was. It begins with an estimate of its time, and ends with the
tables and figures of docs/results/asynchrony.md.

A method has one or two parameters, searched on its own grid of powers by runs of another seed, half
as long: `TRIALS` for each, and more where the best is still at the end of what was tried.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core import RunError, algorithm
from privet.kernel import Problem, stream
from privet.problems import L2, BinaryLogistic, MultinomialLogistic, minimize
from privet.rounds.speeds import Speeds, SpeedSettings
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from results.marked import fill
from results.themes import themed
from studies.runs import Runs
from studies.search import TRIALS, compass

AGENTS, LATENCY = 100, 10.0
TUNING = 1000
"""Seed of the runs that choose a method's parameters."""
NEVER = 1e6
"""Seconds of the virtual clock after which a reply is late where nothing is dropped."""

SPEEDS: Mapping[str, Mapping[str, Any]] = {
    "equal": {"speeds": "equal"},
    "lognormal": {"speeds": "lognormal"},
    "stragglers": {"speeds": "stragglers"},
    "absences": {"speeds": "equal", "absences": 0.05, "absence_seconds": 150.0},
}


# ------------------------------------------------------------------ problems


@dataclass(frozen=True)
class Data:
    """Agents and the model they begin with, and how far a model is from the optimum.

    ``grid`` is the engine of an algorithm and the agents' node configs; L is ``curvature``.
    """

    grid: Callable[[str, Sequence[Mapping[str, Any]]], InlineGrid]
    start: ArrayRecord
    error: Callable[[NDArray[Any]], float]
    curvature: float = 1.0


def of_problems(problems: Sequence[Problem], error: Callable[[NDArray[Any]], float]) -> Data:
    """Return agents that hold a problem each and begin at 0."""
    first = problems[0]
    start = ArrayRecord({"x": Array(np.zeros(first.dim, first.dtype))})
    curvature = max(one.moduli.smoothness for one in problems)
    return Data(lambda name, nodes: grid_of(name, problems, nodes), start, error, curvature)


@dataclass(frozen=True)
class Setting:
    """A problem, what is measured, and how long runs are.

    ``levels`` are errors whose times are measured; a search ends at ``target``, and a run at
    ``horizon`` seconds of the clock. ``tick`` is the time between looks at the error. A search
    tries ``trials`` settings, in runs of half the horizon; with ``race`` they last as long as the
    best so far, asynchronous ones ``race`` seconds at most.
    """

    title: str
    make: Callable[[Path, str, int], Data]
    steps: int
    levels: tuple[float, ...]
    target: float
    horizon: Mapping[str, float]
    seeds: int
    tick: float = 0.0
    guess: float = 2.0
    agents: int = AGENTS
    trials: int = TRIALS
    race: float = 0.0


def slow_agents(speeds: str, seed: int) -> list[int]:
    """Return the slowest tenth of the agents; where all are alike, some tenth."""
    model = "stragglers" if speeds in ("equal", "absences") else speeds
    names = [str(number) for number in range(AGENTS)]
    drawn = Speeds(SpeedSettings(**SPEEDS[model]), seed, names)
    order = sorted(range(AGENTS), key=lambda agent: -drawn.factor(names[agent]))
    return order[: AGENTS // 10]


def logistic(_: Path, speeds: str, seed: int) -> Data:
    """Return agents of 250 examples, with models around (1, ..., 1); slow agents' lie 3 further."""
    rng, slow = stream(seed, "asynchrony"), set(slow_agents(speeds, seed))
    problems = []
    for agent in range(AGENTS):
        truth = 1.0 + rng.standard_normal(5) + (agent in slow) * 3.0 / math.sqrt(5.0)
        rows = rng.standard_normal((250, 5))
        likely = rng.random(250) < 1.0 / (1.0 + np.exp(-rows @ truth))
        problems.append(BinaryLogistic(rows, np.where(likely, 1, -1), regularizer=L2(0.5)))
    optimum = minimize(problems).x
    size = float(np.linalg.norm(optimum))
    return of_problems(problems, lambda x: float(np.linalg.norm(x - optimum)) / size)


def softmax(folder: Path, speeds: str, seed: int) -> Data:
    """Return agents of 50 images of two labels, in float32."""
    with np.load(folder / "mnist_20k.npz") as held:
        images, labels = held["x_train"], held["y_train"].astype(int)
    rng = stream(0, "asynchrony")
    chosen = rng.permutation(len(labels))[: 50 * AGENTS]
    chosen = chosen[np.argsort(labels[chosen], kind="stable")].reshape(2 * AGENTS, 25)
    pieces = chosen[rng.permutation(2 * AGENTS)].reshape(AGENTS, 50)
    scaled = np.hstack([images / 255.0, np.ones((len(images), 1))]).astype("f4")
    problems = [
        MultinomialLogistic(scaled[rows], labels[rows], 10, regularizer=L2(0.02)) for rows in pieces
    ]
    least = _least(problems)

    def value(x: NDArray[Any]) -> float:
        return float(np.mean([one.value(x) for one in problems]))

    begin = value(np.zeros(problems[0].dim, "f4"))
    return of_problems(problems, lambda x: (value(x) - least) / (begin - least))


@lru_cache(maxsize=1)
def _minimum(*problems: Problem) -> float:
    found = minimize(list(problems), tolerance=1e-5).x
    return float(np.mean([one.value(found) for one in problems]))


def _least(problems: Sequence[Problem]) -> float:
    return _minimum(*problems)


def small_network(folder: Path, _: str, seed: int) -> Data:
    """Return the agents of docs/results/deep.md; the error is the share of wrong test images."""
    from results.asynchrony_network import Network

    made = Network(folder / "mnist_20k.npz", SETTINGS["network"].agents, seed)
    return Data(lambda name, _: made.grid(name), made.start, made.error)


SETTINGS: Mapping[str, Setting] = {
    "logistic": Setting(
        "Logistic regression", logistic, 5, (1e-1, 1e-2, 1e-4, 1e-8), 1e-4,
        {"equal": 800.0, "lognormal": 1500.0, "stragglers": 3600.0, "absences": 3600.0}, 2,
    ),
    "softmax": Setting(
        "MNIST softmax", softmax, 20, (1e-1, 1e-2), 1e-1,
        {"equal": 1500.0, "lognormal": 2000.0, "stragglers": 4000.0, "absences": 2000.0}, 1,
        tick=10.0, guess=12.0,
    ),
    "network": Setting(
        "MNIST network", small_network, 10, (0.2, 0.1), 0.1,
        {"equal": 600.0, "stragglers": 4000.0}, 2, tick=10.0, guess=15.0,
        agents=10, trials=5, race=1000.0,
    ),
}  # fmt: skip


@lru_cache(maxsize=4)
def data_of(folder: Path, name: str, speeds: str, seed: int) -> Data:
    return SETTINGS[name].make(folder, speeds, seed)


# ------------------------------------------------------------------ methods


@dataclass(frozen=True)
class Method:
    """A method, how it collects uploads, and the middle of its grid.

    ``grid`` has a key's middle, by which a step size is multiplied with 1/L where ``by_curvature``
    names it, and ``most`` a key's largest value that is allowed.
    """

    algorithm: str
    way: str
    grid: Mapping[str, float]
    own: Mapping[str, Any] = field(default_factory=dict)
    steps_key: str = "local_epochs"
    by_curvature: tuple[str, ...] = ()
    most: Mapping[str, float] = field(default_factory=dict)

    def arguments(
        self, setting: Setting, curvature: float, values: Mapping[str, float], slow_task: float
    ) -> dict[str, Any]:
        """Return the Strategy's arguments; a deadline is ``slow_task`` seconds."""
        found: dict[str, Any] = {**WAYS[self.way], **self.own}
        found["round_timeout"] = slow_task if self.way in ("deadline", "fold") else NEVER
        for key, value in values.items():
            found[key] = value / curvature if key in self.by_curvature else value
        if self.steps_key:
            found[self.steps_key] = setting.steps
        return found


WAYS: Mapping[str, Mapping[str, Any]] = {
    "wait": {},
    "deadline": {"late_replies": "drop"},
    "fold": {"late_replies": "fold"},
    "asynchronous": {"asynchronous": True},
}


def _plt(way: str, relaxation: float) -> Method:
    return Method("fed-plt", way, {"rho": 1.5}, {"relaxation": relaxation, "returned_model": "y"})


def _iadmm(way: str) -> Method:
    own = {"eta_rule": "smooth", "perturbation": "none"}
    return Method("dp-iadmm", way, {"rho": 0.5}, own, "local_updates")


def _pdm(way: str) -> Method:
    own = {"aggregation": "latest", "step_size_rule": "constant"}
    grid = {"rho": 0.5, "step_size_base": 0.5}
    return Method("fed-pdm", way, grid, own, "max_local_steps", ("step_size_base",))


def _local(name: str, key: str, most: Mapping[str, float]) -> Method:
    grid = {"step_size": 0.3, key: 0.3}
    return Method(name, "asynchronous", grid, {}, "local_epochs", ("step_size",), most)


METHODS: Mapping[str, Method] = {
    "Fed-PLT, waits, a = 1": _plt("wait", 1.0),
    "Fed-PLT, deadline, a = 1": _plt("deadline", 1.0),
    "Fed-PLT, late-replies = fold, a = 1": _plt("fold", 1.0),
    "Fed-PLT, asynchronous, a = 1": _plt("asynchronous", 1.0),
    "Fed-PLT, asynchronous, a = 1/2": _plt("asynchronous", 0.5),
    "DP-IADMM, waits": _iadmm("wait"),
    "DP-IADMM, asynchronous": _iadmm("asynchronous"),
    "FedPDM (latest), waits": _pdm("wait"),
    "FedPDM (latest), asynchronous": _pdm("asynchronous"),
    "FedBuff": _local("fed-buff", "server_step_size", {}),
    "FedAsync": _local("fed-async", "fed_async_alpha", {"fed_async_alpha": 1.0}),
    "AREA": Method("area", "asynchronous", {"step_size": 1.0}, {}, "", ("step_size",)),
}  # fmt: skip


WAITING, BOLD, SAFE = (
    "Fed-PLT, waits, a = 1", "Fed-PLT, asynchronous, a = 1", "Fed-PLT, asynchronous, a = 1/2",
)  # fmt: skip


def _network(name: str, way: str, grid: Mapping[str, float], **own: Any) -> Method:
    """Return a method of the network, whose moduli nobody knows: every step size is searched."""
    steps_key = "max_local_steps" if name == "fed-pdm" else "local_epochs"
    if way == "asynchronous":
        own["buffer"] = 2
    return Method(name, way, grid, own, steps_key, most={"fed_async_alpha": 1.0})


_PLT, _LATER = {"rho": 10.0, "step_size": 0.16}, {"rho": 30.0, "step_size": 0.16}
_PDM = {"rho": 0.1, "step_size_base": 0.1}
_LATEST = {"aggregation": "latest", "step_size_rule": "constant"}
NETWORK: Mapping[str, Method] = {
    "Fed-PLT, waits, a = 1": _network("fed-plt", "wait", _PLT, relaxation=1.0),
    "Fed-PLT, asynchronous, a = 1": _network("fed-plt", "asynchronous", _LATER, relaxation=1.0),
    "FedBuff": _network("fed-buff", "asynchronous", {"step_size": 0.2, "server_step_size": 0.5}),
    "FedAsync": _network("fed-async", "asynchronous", {"step_size": 0.2, "fed_async_alpha": 0.5}),
    "FedPDM (latest), asynchronous": _network("fed-pdm", "asynchronous", _PDM, **_LATEST),
    "Fed-PLT, asynchronous, a = 1/2": _network("fed-plt", "asynchronous", _LATER, relaxation=0.5),
}


SEARCHED: Mapping[str, Method] = {
    f"{name}, own step": replace(
        METHODS[name], grid={"rho": 1.5, "step_size": 3.0}, by_curvature=("step_size",)
    )
    for name in (BOLD, WAITING)
}
"""Fed-PLT with a local step size that is searched, where the moduli's bounds are loose."""


def methods_of(data: str) -> Mapping[str, Method]:
    """Return the methods that a problem is played with."""
    return {
        "logistic": METHODS,
        "softmax": {**METHODS, **SEARCHED},
        "network": NETWORK,
    }[data]


# ------------------------------------------------------------------ runs


def play(
    folder: Path, *, data: str, method: str, speeds: str, seed: int, until: float,
    limit: float, values: Mapping[str, float], own_steps: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Return the error of a run over the clock; the slow agents may have steps of their own."""
    began, setting, chosen = time.process_time(), SETTINGS[data], methods_of(data)[method]
    found = data_of(folder, data, speeds, seed)
    steps = setting.steps if chosen.steps_key else 1
    latency = 1.0 if own_steps else LATENCY
    arguments = chosen.arguments(setting, found.curvature, values, 1.5 * (latency + steps))
    strategy = algorithm(chosen.algorithm).load_strategy()(
        num_agents=setting.agents, seed=seed, task_latency=latency, **SPEEDS[speeds], **arguments
    )
    slow = set(slow_agents(speeds, seed)) if own_steps else ()
    nodes = [{"local-epochs": own_steps} if agent in slow else {} for agent in range(AGENTS)]
    clock, errors = [0.0], [1.0]

    def over(done: Any) -> bool:
        if done.clock < clock[-1] + setting.tick and done.clock < limit:
            return False
        error = found.error(strategy.run.models()["last"])
        clock.append(done.clock)
        errors.append(error if error < 1e3 else 1e3)  # also where it is not a number
        return errors[-1] <= until or errors[-1] >= 1e3 or done.clock >= limit

    grid = found.grid(chosen.algorithm, nodes)
    try:
        strategy.start(grid, found.start, num_rounds=10**6, log_rounds=False, should_stop=over)
    except RunError:  # numbers without end
        clock.append(clock[-1])
        errors.append(1e3)
    looks = np.unique(np.geomspace(1, len(clock), 60).astype(int) - 1)
    times = [
        next((at for at, one in zip(clock, errors, strict=True) if one <= level), None)
        for level in setting.levels
    ]
    return {
        "times": times,
        "end": float(np.mean(errors[-max(1, len(errors) // 10) :])),
        "clock": clock[-1],
        "curve": [[round(clock[at], 1), float(f"{errors[at]:.3g}")] for at in looks],
        "seconds": round(time.process_time() - began, 2),
    }


class Study:
    """The runs of one method under one model of speeds."""

    def __init__(self, runs: Runs, data: str, method: str, speeds: str) -> None:
        self.setting, chosen = SETTINGS[data], methods_of(data)[method]
        self._run = partial(runs, data=data, method=method, speeds=speeds)
        self.limit = self.setting.horizon[speeds]
        self._longest = self.limit / 2.0
        if self.setting.race:
            most = math.inf if chosen.way == "wait" else self.setting.race
            self._longest = min(self.limit, most)
        self.values, self.trials, _ = compass(
            chosen.grid, chosen.most, self._score, self.setting.trials
        )

    def _score(self, values: dict[str, float]) -> float:
        """Return the time to the target, or more where a run does not come there."""
        setting = self.setting
        found = self._run(seed=TUNING, until=setting.target, limit=self._longest, values=values)
        time_ = found["times"][setting.levels.index(setting.target)]
        if setting.race and time_ is not None:
            self._longest = min(self._longest, float(time_))
        return NEVER * (1.0 + found["end"]) if time_ is None else float(time_)

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that are reported, to the last level."""
        last = self.setting.levels[-1]
        seeds = range(1, self.setting.seeds + 1)
        one = partial(self._run, until=last, limit=self.limit, values=self.values)
        return [one(seed=seed) for seed in seeds]

    def times(self) -> list[float | None]:
        """Return the median times to the levels; None where a run does not come there."""
        each = zip(*(one["times"] for one in self.runs()), strict=True)
        return [None if None in level else float(np.median(level)) for level in each]

    def end(self) -> float:
        """Return the median of the last errors; of runs that do not come there, of a tenth."""
        found = self.runs()
        ends = [one["end"] if one["times"][-1] is None else one["curve"][-1][1] for one in found]
        return float(np.median(ends))


# ------------------------------------------------------------------ tables

Lines = list[list[str]]


def rows(runs: Runs, data: str, speeds: str) -> Iterator[list[str]]:
    """Yield the lines of a problem under a model of speeds, a method each; plays what is missing.

    Methods whose runs are not there are left out where nothing is played.
    """
    for method in methods_of(data):
        with suppress(LookupError):
            study = Study(runs, data, method, speeds)
            cells = ["-" if one is None else f"{one:.0f}" for one in study.times()]
            chosen = ", ".join(f"{key} {value:g}" for key, value in study.values.items())
            yield [method, *cells, f"{study.end():.1e}", f"{chosen}, of {study.trials}"]


def claims(runs: Runs) -> Iterator[list[str]]:
    """Yield the figures of the claims, each beside what was asked for."""

    def to(method: str, speeds: str) -> float:
        found = Study(runs, "softmax", method, speeds).times()[0]
        return math.inf if found is None else found

    for name, method, goal, equal in (
        ("a = 1", BOLD, 1 / 5, 2.0), ("a = 1/2 (`auto` without moduli)", SAFE, 1 / 3, 4.0),
    ):  # fmt: skip
        for speeds, most in (("stragglers", goal), ("equal", equal)):
            with suppress(LookupError):
                ratio = to(method, speeds) / to(WAITING, speeds)
                what = f"MNIST softmax, {speeds}, {name}: time to a 10 % gap, over that of waiting"
                yield [what, f"{ratio:.2f}", f"at most {most:.2f}"]
    for method, asked in ((BOLD, "1e-8"), ("FedBuff", "stops at 5e-2 or more")):
        with suppress(LookupError):
            end = Study(runs, "logistic", method, "stragglers").end()
            yield [f"logistic, stragglers, {method}: error at the end", f"{end:.1e}", asked]


def finding(runs: Runs) -> Iterator[str]:
    """Yield a sentence or two on each problem and model of speeds: who is first, and who stops."""
    for data, speeds in (*PARTS, *NIGHT):
        setting, studies = SETTINGS[data], dict[str, Study]()
        for method in methods_of(data):
            with suppress(LookupError):
                studies[method] = Study(runs, data, method, speeds)
                studies[method].runs()
        times = {method: study.times() for method, study in studies.items()}
        if WAITING not in times or BOLD not in times:
            continue
        levels = dict.fromkeys((setting.target, setting.levels[-1]))
        firsts = [
            _first(level, {one: each[setting.levels.index(level)] for one, each in times.items()})
            for level in levels
        ]
        ends = [
            f"{one} at {studies[one].end():.1e}" for one, each in times.items() if each[-1] is None
        ]
        stops = f" Not there by the end: {'; '.join(ends)}." if ends else ""
        yield f"- **{setting.title}, {speeds}**: {'; '.join(firsts)}.{stops}"


def _first(level: float, times: Mapping[str, float | None]) -> str:
    """Return who comes to a level first, beside Fed-PLT's times."""
    there = {method: time_ for method, time_ in times.items() if time_ is not None}
    if not there:
        return f"to {_level(level)} nobody comes"
    first = min(there, key=lambda method: there[method])
    bold = min((there[one] for one in (BOLD, SAFE) if one in there), default=None)
    own = {"Fed-PLT, asynchronous": bold, "Fed-PLT, waits": there.get(WAITING)}
    others = [f"{one} {_seconds(time_)}" for one, time_ in own.items() if not first.startswith(one)]
    return f"to {_level(level)} {first} is first ({'; '.join([_seconds(there[first]), *others])})"


def _level(value: float) -> str:
    return f"{value:g}" if value >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


def _seconds(value: float | None) -> str:
    return "does not come there" if value is None else f"{value:.0f} s"


def shorter(runs: Runs) -> Iterator[list[str]]:
    """Yield the times with shorter tasks for the slow agents, and a latency of 1 s."""
    with suppress(LookupError):
        values = Study(runs, "logistic", BOLD, "stragglers").values
        for steps in (5, 2, 1):
            found = [
                runs(data="logistic", method=BOLD, speeds="stragglers", seed=seed, until=1e-8,
                     limit=3600.0, values=values, own_steps=steps)["times"]
                for seed in (1, 2)
            ]  # fmt: skip
            yield [str(steps), *(f"{np.median([one[at] for one in found]):.0f}" for at in (2, 3))]


def tables(runs: Runs) -> list[str]:
    """Return all tables, the claims first; plays what is missing."""
    parts: list[tuple[str, list[str], Lines]] = [
        ("Claims", ["figure", "measured", "goal"], list(claims(runs))),
        (
            "Shorter tasks for slow agents",
            ["local-epochs of the slow tenth", "to 1e-4", "to 1e-8"],
            list(shorter(runs)),
        ),
    ]
    for data, speeds in (*PARTS, *NIGHT):
        setting = SETTINGS[data]
        levels = [f"to {_level(level)}" for level in setting.levels]
        title = f"{setting.title}, {speeds}, {setting.horizon[speeds]:g} s at most"
        head = ["method", *levels, "error at the end", "chosen, of tried"]
        parts.append((title, head, list(rows(runs, data, speeds))))
    lines = []
    for title, head, found in parts:
        marks = ["---"] * len(head)
        table = [f"| {' | '.join(row)} |" for row in (head, marks, *found)]
        lines += [f"### {title}", "", *(table if found else ["Not run."]), ""]
    return lines


COLOURS = {
    "fed-plt": "#2a8fd6",
    "dp-iadmm": "#e08214",
    "fed-pdm": "#35a853",
    "fed-buff": "#e0443e",
    "fed-async": "#a06cd5",
    "area": "#a8795c",
    "own step": "#17b8a6",
}
DASHES = {"asynchronous": "-", "fold": "-.", "wait": "--", "deadline": ":"}


def _look(method: Method) -> dict[str, Any]:
    """Return a line's colour, the algorithm's, its dashes, the way's, and its width."""
    width = 1.0 if method.own.get("relaxation") == 0.5 else 1.8
    dashes = DASHES[method.way]
    colour = COLOURS["own step" if method in SEARCHED.values() else method.algorithm]
    return {"color": colour, "linestyle": dashes, "linewidth": width}


def figure(stem: Path, runs: Runs, speeds: str) -> None:
    """Draw error over the clock of all methods, a panel a problem that was played."""
    curves: dict[str, dict[str, Any]] = {}
    for data in SETTINGS:
        for method in methods_of(data):
            with suppress(LookupError):
                curve = Study(runs, data, method, speeds).runs()[0]["curve"]
                curves.setdefault(data, {})[method] = np.array(curve[1:]).T

    def draw(picture: Any) -> None:
        panels = np.atleast_1d(picture.subplots(1, len(curves)))
        drawn: dict[str, Any] = {}
        for panel, (data, found) in zip(panels, curves.items(), strict=True):
            for method, (clock, error) in found.items():
                (line,) = panel.plot(clock, error, **_look(methods_of(data)[method]))
                drawn.setdefault(method, line)
            panel.set(xscale="log", yscale="log", xlabel="virtual seconds")
            panel.set(title=SETTINGS[data].title, ylim=(SETTINGS[data].levels[-1] / 2, 1.2))
        panels[0].set_ylabel("error")
        picture.legend(
            drawn.values(), drawn, fontsize=9, loc="outside lower center", ncols=4, frameon=False
        )

    themed(stem, (11.0, 5.2), draw)


PARTS: Sequence[tuple[str, str]] = (
    *(("logistic", speeds) for speeds in ("stragglers", "equal", "lognormal", "absences")),
    *(("softmax", speeds) for speeds in ("stragglers", "equal", "lognormal")),
)


NIGHT: Sequence[tuple[str, str]] = tuple(("network", name) for name in ("stragglers", "equal"))


def estimate(file: Path, parts: Sequence[tuple[str, str]]) -> str:
    """Return how many runs of some parts are missing at most, and about how long they take."""
    found = list(Runs(file, play).found.values())
    minutes, missing = 0.0, 0
    for data, speeds in parts:
        setting = SETTINGS[data]
        whole = [one for one in found if one["run"]["data"] == data]
        done = sum(one["run"]["speeds"] == speeds for one in whole)
        left = max(0, len(methods_of(data)) * (setting.trials + setting.seeds) - done)
        each = np.mean([one["seconds"] for one in whole]) if whole else setting.guess
        missing, minutes = missing + left, minutes + left * each / 60.0
    return f"about {missing} runs to play, {minutes:.0f} minutes of one core"


def main() -> None:
    """Play what is missing, and write the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("folder", type=Path, help="of the data")
    parser.add_argument("--write", action="store_true", help="play nothing, write what is there")
    parser.add_argument("--claims", action="store_true", help="play the claims' runs alone")
    parser.add_argument("--night", action="store_true", help="play the network's runs alone")
    arguments = parser.parse_args()
    quiet()
    logging.getLogger("flwr").setLevel(logging.ERROR)  # a deadline names every late agent
    file = arguments.results / "asynchrony.jsonl"
    if not arguments.write:
        parts = NIGHT if arguments.night else PARTS
        print(estimate(file, parts), flush=True)
        runs = Runs(file, partial(play, arguments.folder))
        if not arguments.night:
            print(*claims(runs), *shorter(runs), sep="\n", flush=True)
        for data, speeds in () if arguments.claims else parts:
            print(*rows(runs, data, speeds), sep="\n", flush=True)
    found = Runs(file)
    lines = tables(found)
    print("\n".join(lines))
    page = arguments.results / "asynchrony.md"
    fill(page, "finding", list(finding(found)))
    fill(page, "tables", lines[:-1])
    figure(arguments.results.parent / "images" / "asynchrony", found, "stragglers")


if __name__ == "__main__":
    main()
