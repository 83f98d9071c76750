"""Our models beside the authors' own code, round by round: docs/results/trajectories.md.

    PYTHONPATH=tests:papers/src .venv/bin/python -m results.trajectories docs/results PYTHON

PYTHON is an interpreter that has decent-bench (Python 3.13: ``pip install decent-bench``), which
plays the same agents (`benchmarks.peers.decent_rounds`). The table has the largest difference of
any coordinate of the server's model in any round, and where that is above `LEVEL` the first round
that differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.typing import NDArray

import benchmarks
from benchmarks.peers.work import Work
from privet.client_apps import client_app
from privet.problems import L2, BinaryLogistic
from privet.rounds.participation import All, Schedule
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import FedDyn, FedPD, FedPLT, Scaffold
from results.marked import fill

PAGE = "trajectories.md"
AGENTS, ROWS, DIM, ROUNDS, STEPS = 6, 20, 5, 60, 5
LEVEL = 1e-12
"""A larger difference than rounding leaves after `ROUNDS` rounds."""
NUMBERED = {"Fed-PLT": 1}
"""Rounds by which they number a model later: Fed-LT's server holds the one it last sent."""
Models = Mapping[str, NDArray[Any]]


def work_of(seed: int = 0) -> Work:
    """Return agents with means and labels of their own."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((AGENTS, ROWS, DIM)) + random.standard_normal(
        (AGENTS, 1, DIM)
    )
    chance = 1 / (1 + np.exp(-features @ random.standard_normal(DIM)))
    labels = (random.random(chance.shape) < chance).astype(int)
    steps = {"step_size": 0.05, "l2": 0.1, "penalty": 0.7}
    return Work("logistic", features, labels, np.zeros(DIM), **steps, epochs=STEPS, rounds=ROUNDS)


def schedule_of(name: str, seed: int = 0) -> NDArray[np.bool_]:
    """Return who takes part: all, or half of the agents, drawn anew for each round."""
    rows = np.ones((ROUNDS, AGENTS), bool)
    if name == "half":
        random = np.random.default_rng(seed)
        for row in rows:
            row[random.permutation(AGENTS)[: AGENTS // 2]] = False
    return rows


def ours(work: Work, schedule: NDArray[np.bool_]) -> Models:
    """Return the models that our strategies send after each round."""
    problems = [
        BinaryLogistic(features, 2 * labels - 1, regularizer=L2(work.l2))
        for features, labels in zip(work.features, work.labels, strict=True)
    ]
    rows = tuple(tuple(str(at) for at in np.flatnonzero(row)) for row in schedule)
    common: dict[str, Any] = {
        "num_agents": AGENTS,
        "participation": All() if schedule.all() else Schedule(rows),
    }
    rule = {"step_size_base": work.step_size, "step_size_rule": "constant"}
    rule |= {"max_local_steps": work.epochs}
    splitting = {"local_epochs": work.epochs, "step_size": work.step_size, "local_solver": "gd"}
    strategies = {
        "Fed-PLT": FedPLT(
            work.penalty, acceleration="none", local_start="own", returned_model="y",
            relaxation=1.0, **splitting, **common,
        ),
        "SCAFFOLD": Scaffold(**rule, **common),
        "FedDyn": FedDyn(fed_dyn_alpha=work.penalty, **rule, **common),
        "FedPD": FedPD(work.penalty, **splitting, **common),
    }  # fmt: skip
    if not schedule.all():
        del strategies["FedPD"]
    found = {}
    for name, strategy in strategies.items():
        after: dict[int, NDArray[Any]] = {}

        def keep(number: int, arrays: ArrayRecord, after: dict[int, NDArray[Any]] = after) -> Any:
            after[number] = np.concatenate([one.numpy().ravel() for one in arrays.values()])
            return MetricRecord({"loss": sum(one.value(after[number]) for one in problems)})

        app = client_app(strategy.algorithm, lambda context: problems[_place(context)])
        start = ArrayRecord({"x": Array(work.start)})
        strategy.start(InlineGrid(app, AGENTS), start, num_rounds=ROUNDS, evaluate_fn=keep)
        found[name] = np.stack([after[number] for number in range(1, ROUNDS + 1)])
    return found


def _place(context: Any) -> int:
    return int(context.node_config["partition-id"])


def theirs(work: Work, schedule: NDArray[np.bool_], python: str) -> tuple[str, Models]:
    """Return decent-bench's version and its models."""
    with tempfile.TemporaryDirectory() as folder:
        given, rows, models = (
            Path(folder, name) for name in ("work.npz", "rows.npy", "models.npz")
        )
        work.save(given)
        np.save(rows, schedule)
        done = subprocess.run(
            [python, "-m", "peers.decent_rounds", str(given), str(rows), str(models)],
            cwd=Path(benchmarks.__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        with np.load(models) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        return json.loads(done.stdout.splitlines()[-1])["version"], found


def difference(name: str, mine: NDArray[Any], other: NDArray[Any]) -> str:
    """Return the largest difference, and from which round on the models differ if they do."""
    later = NUMBERED.get(name, 0)
    by_round = np.abs(mine[: len(mine) - later] - other[later:]).max(axis=1)
    apart = np.flatnonzero(by_round > LEVEL)
    said = f"{by_round.max():.0e}"
    return f"{said}, from round {apart[0] + 1} on" if apart.size else said


def lines(python: str) -> list[str]:
    """Return the table."""
    work, cells, release = work_of(), {}, ""
    for roster in ("all", "half"):
        schedule = schedule_of(roster)
        mine = ours(work, schedule)
        release, other = theirs(work, schedule, python)
        for name, models in mine.items():
            cells[name, roster] = difference(name, models, other[name])
    names = list(dict.fromkeys(name for name, _ in cells))
    return [
        f"decent-bench {release}: {AGENTS} logistic agents of {ROWS} rows, {STEPS} full gradients "
        f"a round, {ROUNDS} rounds.",
        "",
        "| | all present | half present, by a schedule |",
        "|---|---|---|",
        *(
            f"| {name} | {cells[name, 'all']} | {cells.get((name, 'half'), 'not offered there')} |"
            for name in names
        ),
    ]


if __name__ == "__main__":
    quiet()
    fill(Path(sys.argv[1]) / PAGE, "table", lines(sys.argv[2]))
