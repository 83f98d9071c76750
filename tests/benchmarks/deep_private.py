"""Accuracy against epsilon of private networks: the page docs/results/deep-private.md.

``PYTHONPATH=tests:papers python -m benchmarks.deep_private mnist_20k.npz docs/results`` plays what
is not yet in ``deep-private.csv``, a line a run of ``examples/torch_private.py``, and writes the
page.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet.sim.logs import quiet
from results.deep_private import EPSILONS, write

from .lines import append, read

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_private.py"
AGENTS, GRADIENTS, SEEDS = 10, 24, range(5)
RUNS: Mapping[str, tuple[str, float, dict[str, Any]]] = {
    "dp-fedsgd": ("dp-fedsgd", 2.0, {}),
    # FedPDM's run below is this one, by another way of writing.
    "dp-fedsgd-plain": ("dp-fedsgd", 8.0, {"momentum": 0.0}),
    "fed-pdm": ("fed-pdm", 4.0, {}),
    "fed-dyn": ("fed-dyn", 4.0, {}),
    "scaffold": ("scaffold", 4.0, {}),
}
"""By name in the file: the algorithm, its step, and its further settings."""
FIELDS = ("algorithm", "epsilon", "step-size", "seed", "rounds", "bytes-up", "accuracy", "spent")


def main(source: str, folder: str, *seeds: str) -> None:
    """Play what is missing (of some seeds), a line a run, and write the page's parts."""
    import torch

    quiet()
    torch.set_num_threads(1)
    results = Path(folder)
    federated: Any = runpy.run_path(str(EXAMPLE))["Federation"]
    table = results / "deep-private.csv"
    there = {(row["algorithm"], row["epsilon"], row["seed"]) for row in read(table)}
    for seed in map(int, seeds or SEEDS):
        federation = federated(source, AGENTS, seed)
        for epsilon in EPSILONS:
            for name, (algorithm, step, own) in RUNS.items():
                if (name, str(epsilon), str(seed)) in there:
                    continue
                line = federation.play(algorithm, epsilon, step, GRADIENTS, **own)
                line["spent"], line["epsilon"] = f"{line['epsilon']:.6f}", epsilon
                line["algorithm"] = name
                append(table, FIELDS, line)
                print(*line.values(), flush=True)
    write(results)


if __name__ == "__main__":
    main(*sys.argv[1:])
