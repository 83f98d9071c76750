"""Synchronous rounds of this checkout against another one's, in turns: what a change has cost.

``PYTHONPATH=tests:papers/src python -m benchmarks.earlier OTHER/.venv/bin/python [TURNS [PART]]``
starts a process of each interpreter, which holds the agents of the cases with a part in their
names, and plays rounds when it is asked to. The two are asked in turns, first one and then the
other, the next time the other way round, so that other work on the machine disturbs both alike.
Then the next pair of processes does the same. A figure is the median of the ratios of processor
time, with its 95 % interval.

The rounds are those of the built-in solvers, and of a training loop of one's own: ten steps of a
perceptron, small, so that the library's own time counts, and large, so that its copies do.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

GOAL = 1.03
"""No interval lies above this ratio as a whole."""
PAIRS = 6
"""Pairs of processes, one after the other."""

CASES: dict[str, dict[str, Any]] = {
    "Fed-PLT, inline, 100 agents, d 5": {"agents": 100},
    "Fed-PLT, cohort, 1000 agents, d 5": {"agents": 1000, "engine": "cohort"},
    "Fed-PLT, private, inline, 100 agents, d 5": {
        "agents": 100,
        "settings": {
            "local_solver": "noisy-gd",
            "noise_variance": 0.1,
            "clip": 1.0,
            "row_norm": 4.0,
        },
    },
    "Fed-PLT, inline, 50 agents, d 10000": {"agents": 50, "dim": 10_000, "examples": 4},
    "SCAFFOLD, cohort, 1000 agents, d 5": {
        "algorithm": "scaffold",
        "agents": 1000,
        "engine": "cohort",
    },
    **{
        f"{name}, own loop, 4 agents, d {(64 + 1 + 4) * width + 4}": {
            "algorithm": algorithm,
            "agents": 4,
            "width": width,
        }
        for name, algorithm in (
            ("Fed-PLT", "fed-plt"),
            ("FedDyn", "fed-dyn"),
            ("SCAFFOLD", "scaffold"),
        )
        for width in (16, 16_000)
    },
}


def player(
    algorithm: str = "fed-plt",
    agents: int = 100,
    dim: int = 5,
    examples: int = 250,
    engine: str = "inline",
    settings: dict[str, Any] | None = None,
    width: int = 0,
) -> Callable[[int], float]:
    """Return what plays some rounds and returns the processor seconds of them.

    With a ``width`` they are rounds of a loop that trains a perceptron of so many hidden neurons.
    """
    if width:
        return loop_player(algorithm, agents, width)
    from flwr.app import Array, ArrayRecord

    from privet.problems import L2, BinaryLogistic
    from privet.sim.inline import grid_of
    from privet.strategies import FedPLT, Scaffold

    rng = np.random.default_rng(0)
    problems = [
        BinaryLogistic(
            rng.standard_normal((examples, dim)),
            np.where(rng.random(examples) < 0.5, -1, 1),
            regularizer=L2(0.5),
        )
        for _ in range(agents)
    ]
    grid = grid_of(algorithm, problems, engine=engine)
    if algorithm == "fed-plt":
        strategy: Any = FedPLT(num_agents=agents, local_epochs=5, **settings or {})
    else:
        strategy = Scaffold(num_agents=agents)
    return played(strategy, grid, ArrayRecord({"x": Array(np.zeros(dim))}))


def loop_player(algorithm: str, agents: int, width: int) -> Callable[[int], float]:
    """Return what `player` returns, of a loop of ten steps of 16 rows in PyTorch."""
    from privet.client_apps import LoopParticipant, initial_arrays
    from privet.sim.engine import InlineGrid
    from privet.strategies import FedDyn, FedPLT, Scaffold

    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    nn, steps, step_size = torch.nn, 10, 0.05
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 4))
    inputs, labels = torch.randn(steps, 16, 64), torch.randint(4, (steps, 16))
    participant = LoopParticipant(algorithm, model, lambda context: 16 * steps)
    app = participant.app()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        with participant.round(message, context, model) as local:
            optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
            for rows, targets in zip(inputs, labels, strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(rows), targets).backward()
                local.correct(model)
                optimizer.step()
        return local.reply()

    fixed: Any = {
        "step_size_base": step_size,
        "step_size_rule": "constant",
        "max_local_steps": steps,
    }
    if algorithm == "fed-plt":
        strategy: Any = FedPLT(num_agents=agents, step_size=step_size, local_epochs=steps)
    else:
        of_steps: Any = FedDyn if algorithm == "fed-dyn" else Scaffold
        strategy = of_steps(num_agents=agents, **fixed)
    return played(strategy, InlineGrid(app, agents), initial_arrays(model))


def played(strategy: Any, grid: Any, start: Any) -> Callable[[int], float]:
    """Begin a run, and return what plays its next rounds and returns their processor seconds."""
    session = strategy.begin(grid, start)

    def play(rounds: int) -> float:
        begin = time.process_time()
        for _ in range(rounds):
            strategy.play_round(grid, session.round + 1)
        return time.process_time() - begin

    return play


def answer() -> None:
    """Play the rounds that each line of the input asks for, and write the seconds."""
    from privet.sim.logs import quiet

    quiet()
    players: dict[str, Callable[[int], float]] = {}
    for line in sys.stdin:
        case, rounds = json.loads(line)
        if case not in players:
            players[case] = player(**CASES[case])
        print(json.dumps(players[case](rounds)), flush=True)


class Checkout:
    """A process of one interpreter that plays rounds."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--answer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, case: str, rounds: int) -> float:
        """Return what the rounds took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([case, rounds]) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def interval(ratios: Any) -> tuple[float, float, float]:
    """Return the median of ratios (pairs, turns), and its 95 % interval by bootstrap.

    Pairs are drawn, and turns within each: where a process has its memory counts as much as what
    else the machine does.
    """
    ratios = np.asarray(ratios)
    pairs, turns = ratios.shape
    rng = np.random.default_rng(0)
    which = (
        rng.integers(pairs, size=(4000, pairs, 1)),
        rng.integers(turns, size=(4000, pairs, turns)),
    )
    medians = np.median(ratios[which].reshape(4000, -1), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def main(other: str, turns: int = 10, part: str = "") -> None:
    """Print a line for each case with a part in its name."""
    cases = [each for each in CASES if part in each]
    ratios: dict[str, list[list[float]]] = {case: [] for case in cases}
    for _ in range(PAIRS):
        here, there = Checkout(sys.executable), Checkout(other)
        try:
            for case in cases:
                ratios[case].append(pair(here, there, case, turns))
        finally:
            here.close()
            there.close()
    for case in cases:
        middle, low, high = interval(ratios[case])
        verdict = "holds" if low <= GOAL else "does not hold"
        print(f"{case}: {middle:.3f} [{low:.3f}, {high:.3f}], at most {GOAL}: {verdict}")


def pair(here: Checkout, there: Checkout, case: str, turns: int) -> list[float]:
    """Return the ratios of a case, of two processes that take turns."""
    once = [each.seconds(case, 3) for each in (here, there)]
    rounds = max(1, round(0.3 / (max(once) / 3)))
    ratios = []
    for turn in range(turns):
        order = (here, there) if turn % 2 else (there, here)
        took = {each: each.seconds(case, rounds) for each in order}
        ratios.append(took[here] / took[there])
    return ratios


if __name__ == "__main__":
    if sys.argv[1] == "--answer":
        answer()
    else:
        main(sys.argv[1], int("".join(sys.argv[2:3]) or 10), "".join(sys.argv[3:4]))
