"""Accuracy against epsilon on MNIST: a trusted server, masked sums, and local noise.

    .venv/bin/python scripts/private_accuracy.py RESULTS.jsonl --data-path mnist.npz

Softmax regression on 10,000 digits in full-batch clipped steps with momentum (`dp-fedsgd`), through
the real messages, masks, ledgers and calibration of the in-process engine. Every finished run is a
line of the file; a command that was interrupted goes on where it was. It ends with the table.

Tuning, whose own cost in privacy is not counted: the number of rounds, the clip and the step are
chosen by test accuracy with seed 0, on the grid below, for the trusted server and for local noise
each. Masked sums are not tuned: they take what is best for the trusted server.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from resumable import Runs

from privet.datasets import Federation, federation_from_config
from privet.server_apps import read_config
from privet.sim.inline import grid_of
from privet.sim.trusting import trusting_nodes
from privet.strategies import DPFedSGD

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 4.0)
ROUNDS, CLIPS, STEPS = (15, 40), (0.5, 1.0), (0.5, 1.0, 2.0, 4.0)
AGENTS, COLLUDERS = 100, 10
METHODS = {"trusted": 1, "sums": AGENTS, "local-10": 10, "local-100": AGENTS}
"""Agents that the digits are dealt to, by method."""
TITLES = {
    "trusted": "trusted server",
    "sums": f"sums, {COLLUDERS} of {AGENTS} may collude",
    "local-10": "local noise, 10 agents",
    "local-100": "local noise, 100 agents",
}


@lru_cache
def federation_of(data_path: Path, count: int) -> Federation:
    """Return the digits, dealt to so many agents."""
    config = {
        "algorithm": "dp-fedsgd",
        "dataset": "mnist",
        "data-path": str(data_path),
        "num-agents": count,
        "partition": "iid",
        "dtype": "float32",
        "regularizer-weight": 0.0,
    }
    return federation_from_config(read_config(config), count)


def play(
    data_path: Path,
    *,
    method: str,
    epsilon: float,
    rounds: int,
    clip: float,
    step: float,
    seed: int,
) -> dict[str, Any]:
    """Return what a run of a method comes to."""
    count, sums = METHODS[method], method == "sums"
    federation = federation_of(data_path, count)
    strategy = DPFedSGD(
        num_agents=count,
        clip=clip,
        step_size_base=step,
        step_size_rule="constant",
        momentum=0.9,
        target_epsilon=epsilon,
        delta=DELTA,
        secure_sum=sums,
        noise_sharing=sums,
        seed=seed,
    )
    start = ArrayRecord({"x": Array(np.zeros(federation.dim, np.float32))})
    with TemporaryDirectory() as folder:
        names = map(str, range(count))
        nodes = trusting_nodes(Path(folder), names, COLLUDERS) if sums else ()
        grid = grid_of("dp-fedsgd", federation.problems, nodes)
        result = strategy.start(grid, start, num_rounds=rounds, log_rounds=False)
    privacy = result.privacy
    assert privacy is not None
    assert privacy.private
    return {
        "accuracy": federation.evaluate(result.arrays["x"].numpy())["accuracy"],
        "spent": privacy.epsilon,
        "noise": float(strategy.half.settings()["noise-scale"]) / math.sqrt(count),
        "seconds": round(sum(done.seconds for done in result.history), 1),
    }


def best(runs: Runs, method: str, epsilon: float) -> dict[str, Any]:
    """Return the rounds, clip and step with which a method is most accurate, with seed 0."""
    grid = itertools.product(ROUNDS, CLIPS, STEPS)
    choices = [dict(zip(("rounds", "clip", "step"), one, strict=True)) for one in grid]

    def accuracy(chosen: dict[str, Any]) -> float:
        return float(runs(method=method, epsilon=epsilon, seed=0, **chosen)["accuracy"])

    return max(choices, key=accuracy)


def main() -> None:
    """Play what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-path", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each cell, from 1")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = Runs(arguments.file, partial(play, arguments.data_path))
    rows = []
    for method in arguments.methods:
        cells = []
        for epsilon in EPSILONS:
            chosen = best(runs, "trusted" if method == "sums" else method, epsilon)
            found = [
                runs(method=method, epsilon=epsilon, seed=seed, **chosen)["accuracy"]
                for seed in range(1, arguments.seeds + 1)
            ]
            cells.append(f"{np.mean(found):.3f} ({min(found):.3f}-{max(found):.3f})")
        rows.append(f"| {TITLES[method]} | {' | '.join(cells)} |")
    print("| | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS) + " |")
    print("|---" * (len(EPSILONS) + 1) + "|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
