"""Accuracy against epsilon of private networks: the page docs/results/deep-private.md.

    PYTHONPATH=papers .venv/bin/python -m results.deep_private docs/results

writes finding, table and pictures from the runs in deep-private.csv, which
tests/benchmarks/deep_private.py plays.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results.dots import Panel, draw, interval
from results.marked import fill
from results.themes import themed
from results.verdicts import by_verdict
from studies.statistics import Estimate, difference

EPSILONS = (2, 8, 32)
TITLES = {
    "dp-fedsgd": "DP-FedSGD, momentum 0.9",
    "dp-fedsgd-plain": "DP-FedSGD, no momentum",
    "fed-pdm": "FedPDM, Q = 1",
    "fed-dyn": "FedDyn, Q = 3",
    "scaffold": "SCAFFOLD, Q = 3",
}
REFERENCE = "dp-fedsgd"


class Measured:
    """The runs of the file: accuracies in %, by method, epsilon and seed."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.rows = rows
        self.names = [name for name in TITLES if any(row["algorithm"] == name for row in rows)]

    def runs(self, name: str, epsilon: int) -> dict[str, float]:
        """Return the accuracies by seed."""
        return {
            row["seed"]: 100 * float(row["accuracy"])
            for row in self.rows
            if (row["algorithm"], row["epsilon"]) == (name, str(epsilon))
        }

    def at(self, name: str, epsilon: int) -> Estimate:
        """Return the mean accuracy."""
        return Estimate.of(list(self.runs(name, epsilon).values()))

    def gap(self, name: str, epsilon: int) -> Estimate:
        """Return by how many points a method is above `REFERENCE`, over common seeds."""
        own, other = self.runs(name, epsilon), self.runs(REFERENCE, epsilon)
        seeds = [seed for seed in own if seed in other]
        return difference([own[seed] for seed in seeds], [other[seed] for seed in seeds])

    def megabytes(self, name: str) -> float:
        """Return the largest upload of all agents in a run."""
        return max(int(row["bytes-up"]) for row in self.rows if row["algorithm"] == name) / 1e6

    def finding(self) -> list[str]:
        """Return by how much each method is above or below the reference."""
        head = f"**Points of accuracy at the same epsilon, against {TITLES[REFERENCE]}:**"
        gaps = [
            (f"{TITLES[name]}, epsilon {epsilon}:", self.gap(name, epsilon))
            for name in self.names
            if name != REFERENCE
            for epsilon in EPSILONS
        ]
        sizes = ", ".join(
            dict.fromkeys(
                f"{self.megabytes(name):.1f} ({TITLES[name].partition(',')[0]})"
                for name in self.names
            )
        )
        return [head, "", *by_verdict(gaps), "", f"Megabytes sent by all agents: {sizes}."]

    def table(self) -> list[str]:
        """Return mean accuracy in % with half a 95 % interval, by method and epsilon."""
        head = ["method", *(f"epsilon {epsilon}" for epsilon in EPSILONS)]
        head += ["step", "rounds", "MB up, all agents", "seeds"]
        lines = [head, ["---"] * len(head)]
        for name in self.names:
            found = [self.at(name, epsilon) for epsilon in EPSILONS]
            cells = [f"{one.mean:.1f} ± {one.half_width:.1f}" for one in found]
            first = next(row for row in self.rows if row["algorithm"] == name)
            counts = " to ".join(map(str, sorted({one.count for one in found})))
            size = f"{self.megabytes(name):.1f}"
            lines.append(
                [
                    TITLES[name],
                    *cells,
                    f"{float(first['step-size']):g}",
                    first["rounds"],
                    size,
                    counts,
                ]
            )
        return [f"| {' | '.join(cells)} |" for cells in lines]

    def picture(self, figure: Any) -> None:
        """Draw the accuracies, a panel for each epsilon."""
        panels = [
            Panel(
                f"epsilon {epsilon}",
                "test accuracy, %",
                {"": [interval(self.at(name, epsilon)) for name in self.names]},
                equal=self.at(REFERENCE, epsilon).mean,
            )
            for epsilon in EPSILONS
        ]
        draw([TITLES[name] for name in self.names], panels, figure, alike=True)


def write(results: Path) -> None:
    """Write finding, table and pictures from the runs that are there."""
    found = Measured(runs_of(results))
    fill(results / "deep-private.md", "finding", found.finding())
    fill(results / "deep-private.md", "table", found.table())
    themed(results.parent / "images" / "deep-private", (9.0, 2.4), found.picture)


def runs_of(results: Path) -> list[dict[str, str]]:
    """Return the lines of the file."""
    with (results / "deep-private.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
