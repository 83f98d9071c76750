"""Accuracy against epsilon of private networks: the table of docs/results/deep-private.md.

``PYTHONPATH=tests python -m benchmarks.deep_private mnist_20k.npz docs/results/deep-private`` plays
what is not yet in ``deep-private.csv``, a line a run of ``examples/torch_private.py``, and writes
the table into ``deep-private.md``.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from privet.sim.logs import quiet
from studies.statistics import Estimate

from .lines import append, between, read

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_private.py"
AGENTS, GRADIENTS, EPSILONS, SEEDS = 10, 24, (2, 8, 32), range(5)
METHODS = {
    "dp-fedsgd": ("DP-FedSGD, momentum 0.9", 2.0),
    "fed-pdm": ("FedPDM, Q = 1", 4.0),
    "fed-dyn": ("FedDyn, Q = 3", 4.0),
    "scaffold": ("SCAFFOLD, Q = 3", 4.0),
}
FIELDS = ("algorithm", "epsilon", "step-size", "seed", "rounds", "bytes-up", "accuracy", "spent")


def page(rows: list[dict[str, str]]) -> str:
    """Return the table: mean accuracy in % with half a 95 % interval, by method and epsilon."""
    epsilons = " | ".join(f"epsilon {epsilon}" for epsilon in EPSILONS)
    lines = [f"| method | step | rounds | MB up, all agents | seeds | {epsilons} |"]
    lines.append("|---" * (5 + len(EPSILONS)) + "|")
    for name, (method, step) in METHODS.items():
        own = [row for row in rows if row["algorithm"] == name]
        if not own:
            continue
        moved = max(int(row["bytes-up"]) for row in own) / 1e6
        counts, cells = set(), []
        for epsilon in EPSILONS:
            found = [100 * float(row["accuracy"]) for row in own if row["epsilon"] == str(epsilon)]
            counts.add(len(found))
            if found:
                of = Estimate.of(found)
                spread = f" ± {of.half_width:.1f}" if len(found) > 1 else ""
                cells.append(f"{of.mean:.1f}{spread}")
            else:
                cells.append("")
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
        head = [method, f"{step:g}", own[0]["rounds"], f"{moved:.1f}", seeds]
        lines.append("| " + " | ".join([*head, *cells]) + " |")
    return "\n".join(lines) + "\n"


def main(source: str, target: str, *seeds: str) -> None:
    """Play what is missing (of some seeds), a line a run, and write the table into the page."""
    quiet()
    torch.set_num_threads(1)
    federated: Any = runpy.run_path(str(EXAMPLE))["Federation"]
    table = Path(f"{target}.csv")
    there = {(row["algorithm"], row["epsilon"], row["seed"]) for row in read(table)}
    for seed in map(int, seeds or SEEDS):
        federation = federated(source, AGENTS, seed)
        for epsilon in EPSILONS:
            for name, (_, step) in METHODS.items():
                if (name, str(epsilon), str(seed)) in there:
                    continue
                line = federation.play(name, epsilon, step, GRADIENTS)
                line["spent"], line["epsilon"] = f"{line['epsilon']:.6f}", epsilon
                append(table, FIELDS, line)
                print(*line.values(), flush=True)
    between(Path(f"{target}.md"), page(read(table)))


if __name__ == "__main__":
    main(*sys.argv[1:])
