"""Agents that work together against the same agents one by one, and against other libraries'.

Both engines hold the same problems and play the same rounds in turns. A hundred thousand agents run
in a process of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.kernel import Problem, stream
from privet.problems import L2, BinaryLogistic, MultinomialLogistic
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from privet.strategies import FedPLT

from .coordinator import peak_kilobytes
from .figure import Figure, Show, best_seconds
from .peer_rows import Peers, show_difference
from .peers.work import Work

MANY = 100_000
_MANY = "import json; from benchmarks.cohort import many; print(json.dumps(many({})))"


@dataclass(frozen=True)
class Case:
    """Agents of n examples with ``features`` numbers each, of 2 classes or more."""

    agents: int
    examples: int
    features: int
    classes: int = 2
    epochs: int = 5
    goal: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        kind = "softmax" if self.classes > 2 else "logistic"
        noise = ", noisy" if self.settings else ""
        noise = ", private" if "clip" in self.settings else noise
        dim = self.features * (self.classes if self.classes > 2 else 1)
        return f"{self.agents} agents, {kind} {self.examples}, d {dim}, E {self.epochs}{noise}"

    def problems(self) -> list[Problem]:
        """Return the agents' problems, of noise."""
        rng = stream(0, "bench")
        return [self._problem(rng) for _ in range(self.agents)]

    def _problem(self, rng: np.random.Generator) -> Problem:
        features = rng.standard_normal((self.examples, self.features))
        term = L2(0.5)
        if self.classes > 2:
            labels = rng.integers(self.classes, size=self.examples)
            return MultinomialLogistic(features, labels, self.classes, regularizer=term)
        signs = np.where(rng.random(self.examples) < 0.5, -1, 1)
        return BinaryLogistic(features, signs, regularizer=term)


CASES = (
    Case(1000, 250, 5, goal=10.0),
    Case(1000, 100, 20, 10, epochs=1, goal=8.0),
    Case(
        1000,
        250,
        5,
        goal=5.0,
        settings={"local_solver": "noisy-gd", "noise_variance": 0.1, "noise_seed": 1},
    ),
    Case(
        1000,
        250,
        5,
        goal=10.0,
        settings={
            "local_solver": "noisy-gd",
            "noise_variance": 0.1,
            "clip": 1.0,
            "row_norm": 4.0,
        },
    ),
    Case(10, 600, 785, 10, epochs=1, goal=1 / 1.02),
)

# Agents' work is the same for all; goals are for how many times ours theirs is.
PEER_GOALS: dict[str, float | None] = {
    "decent-bench": 8.0,
    "fedjax": None,
    "fluke-fl": None,
    "pfl": None,
}


def bench_cohort(show: Show, *, quick: bool = False) -> None:
    """Compare the cohort engine with the in-process engine, and run very many agents."""
    for case in CASES:
        alone, together = _seconds(case, 2 if quick else 10)
        updates = 1e6 / case.agents
        show(Figure("engine", str(case), "inline, us an update", alone * updates))
        show(Figure("engine", str(case), "cohort, us an update", together * updates))
        show(Figure("engine", str(case), "cohort against inline", alone / together, case.goal))
    _bench_asynchronous(show, quick)
    count = MANY // 10 if quick else MANY
    done = subprocess.run(
        [sys.executable, "-c", _MANY.format(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    title = f"{count} agents, d 5, 3 rounds"
    show(Figure("engine", title, "seconds of one core", found["seconds"], 20.0, at_least=False))
    show(Figure("engine", title, "peak MB", found["megabytes"], 2048.0, at_least=False))


def _bench_asynchronous(show: Show, quick: bool) -> None:
    """Compare an update of an asynchronous run with one of a synchronous run, in turns."""
    case = CASES[0]
    problems = case.problems()
    late = replace(case, settings={"asynchronous": True, "speeds": "stragglers", "relaxation": 1.0})
    rounds, versions = _Rounds(case, problems, "cohort"), _Rounds(late, problems, "cohort")
    alone: list[float] = []
    together: list[float] = []
    for _ in range(2 if quick else 10):
        alone.append(best_seconds(rounds.play, 1) / case.agents)
        begun = versions.session.uploads
        seconds = best_seconds(lambda: versions.play(10), 1)
        together.append(seconds / (versions.session.uploads - begun))
    title, ratio = f"{case}, asynchronous", min(together) / min(alone)
    show(Figure("engine", title, "cohort, us an update", min(together) * 1e6))
    name = "an update / one of a synchronous run"
    show(Figure("engine", title, name, ratio, 3.0, at_least=False))


def bench_peers(show: Show, *, quick: bool = False, interpreters: Sequence[str] = ()) -> None:
    """Compare the cohort engine's Fed-PLT with the peers' Fed-PLT and FedAvg, by processor time."""
    case = Case(1000, 250, 5)
    peers = Peers(tuple(PEER_GOALS), interpreters)
    if not peers.interpreters:
        return
    title = f"{case}, and peers"
    work = peer_work(case)
    problems = [
        BinaryLogistic(features, 2 * labels - 1, regularizer=L2(work.l2))
        for features, labels in zip(work.features, work.labels, strict=True)
    ]
    rounds = _Rounds(case, problems, "cohort")
    own: list[float] = []

    def turn() -> None:
        for _ in range(work.rounds):
            begin = time.process_time()
            rounds.play()
            own.append(time.process_time() - begin)

    found = peers.play(work, 1 if quick else 3, turn)
    show(Figure("engine", title, "cohort, us an update", min(own) * 1e6 / case.agents))
    expected = {"fed-plt": _plt_model(case, problems, work), "fed-avg": averaged(problems, work)}

    def objective(model: Any) -> float:
        return float(np.mean([each.value(np.asarray(model)) for each in problems]))

    for name, played in found.items():
        method = "fed-plt" if name == "decent-bench" else "fed-avg"
        peer = f"{name} {played.version}"
        cost = played.seconds * 1e6 / case.agents
        show(Figure("engine", title, f"{peer}, us an update", cost))
        ratio = played.seconds / min(own)
        show(Figure("engine", title, f"{peer} / cohort", ratio, PEER_GOALS[name]))
        three = [objective(each) for each in (work.start, played.model, expected[method])]
        show_difference(show, "engine", title, peer, three)


def peer_work(case: Case) -> Work:
    """Return agents whose labels tell of a common model, so that steps lead somewhere."""
    rng = stream(0, "bench")
    features = rng.standard_normal((case.agents, case.examples, case.features))
    chance = 1 / (1 + np.exp(-features @ rng.standard_normal(case.features)))
    labels = (rng.random(chance.shape) < chance).astype(int)
    splitting: Any = FedPLT(num_agents=case.agents).half.agent
    return Work(
        "logistic",
        features,
        labels,
        start=np.zeros(case.features),
        step_size=0.1,
        l2=0.5,
        penalty=splitting.rho,
        epochs=case.epochs,
        batch=case.examples,
        rounds=4,
    )


def _plt_model(case: Case, problems: Sequence[Problem], work: Work) -> Any:
    """Return the y of the last round of Fed-PLT."""
    rounds = _Rounds(case, problems, "cohort")  # which has played the first
    for _ in range(work.rounds - 1):
        rounds.play()
    return rounds.session.state.y


def averaged(problems: Sequence[Problem], work: Work) -> Any:
    """Return FedAvg's model, by its definition."""
    model = work.start
    for _ in range(work.rounds):
        ends = np.repeat(model[None], work.agents, axis=0)
        for _ in range(work.epochs):
            ends -= work.step_size * np.array(
                [each.gradient(end) for each, end in zip(problems, ends, strict=True)]
            )
        model = ends.mean(axis=0)
    return model


def _seconds(case: Case, repeats: int) -> tuple[float, float]:
    """Return the seconds of a round on the in-process and on the cohort engine, in turns."""
    problems = case.problems()
    rounds = [_Rounds(case, problems, engine) for engine in ("inline", "cohort")]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for one, found in zip(rounds, times, strict=True):
            found.append(best_seconds(one.play, 1))
    return min(times[0]), min(times[1])


class _Rounds:
    """A run of Fed-PLT, a round at a time."""

    def __init__(self, case: Case, problems: Sequence[Problem], engine: str = "auto") -> None:
        self.grid = grid_of("fed-plt", problems, engine=engine)
        self.strategy = FedPLT(
            num_agents=case.agents, local_epochs=case.epochs, step_size=0.1, **case.settings
        )
        start = ArrayRecord({"x": Array(np.zeros(problems[0].dim))})
        self.session = self.strategy.begin(self.grid, start)
        self.play()  # the first sends everybody a state

    def play(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.strategy.play_round(self.grid, self.session.round + 1)


def many(count: int) -> dict[str, float]:
    """Return the peak and the processor's seconds from the start of Python to the third round."""
    quiet()
    case = Case(count, 10, 5)
    rounds = _Rounds(case, case.problems())
    for _ in range(2):
        rounds.play()
    return {
        "seconds": time.process_time(),
        "megabytes": peak_kilobytes() / 1024,
    }
