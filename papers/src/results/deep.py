"""Accuracy and bytes of the methods on a small network: the page docs/results/deep.md.

    .venv/bin/python -m results.deep docs/results

writes finding, table and pictures from the runs in deep.csv, which benchmarks.deep plays.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from results.dots import Panel, draw, interval
from results.marked import fill
from results.themes import themed
from studies.pages import by_verdict, compared
from studies.statistics import Estimate, difference

LOOKS = (5, 10, 15, 20)
"""Rounds after which the model was evaluated."""
WEIGHTED = "weighted by examples"
"""Part of the settings of methods whose agents count by their examples."""


class Measured:
    """The runs of the file, by method and settings: the most accurate at the end first."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        runs: dict[tuple[str, str], dict[str, Mapping[str, str]]] = {}
        for row in rows:
            runs.setdefault((row["method"], row["settings"]), {})[row["seed"]] = row
        self.runs = runs
        ends = {name: self.at(name, LOOKS[-1]).mean for name in runs}
        self.runs = {name: runs[name] for name in sorted(runs, key=ends.__getitem__, reverse=True)}
        self.plain = [name for name in self.runs if name[0] == "FedAvg" and "up" not in name[1]]
        self.reference = max(self.plain, key=lambda name: self.at(name, LOOKS[-1]).mean)

    def at(self, name: tuple[str, str], look: int) -> Estimate:
        """Return the accuracy in % after a round."""
        return Estimate.of([_accuracy(row, look) for row in self.runs[name].values()])

    def gap(self, name: tuple[str, str]) -> Estimate:
        """Return by how many points a method ends above the best FedAvg, over common seeds."""
        own, other = self.runs[name], self.runs[self.reference]
        seeds = [seed for seed in own if seed in other]
        ours, theirs = (
            [_accuracy(runs[seed], LOOKS[-1]) for seed in seeds] for runs in (own, other)
        )
        return difference(ours, theirs)

    def finding(self) -> list[str]:
        """Return which methods end above the best FedAvg, which level with it, which below."""
        best = self.at(self.reference, LOOKS[-1])
        head = (
            f"**Points of accuracy after {LOOKS[-1]} rounds, against FedAvg with the best of its "
            f"steps ({self.reference[1]}: {best.mean:.1f} ± {best.half_width:.1f} %):**"
        )
        gaps = [
            (f"{method} ({settings}):", self.gap((method, settings)))
            for method, settings in self.runs
            if (method, settings) not in self.plain and WEIGHTED not in settings
        ]
        return [head, "", *by_verdict(gaps)]

    def table(self) -> list[str]:
        """Return mean accuracy with half a 95 % interval, and bytes, by method."""
        looks = [f"round {look}" for look in LOOKS]
        head = ["method", "settings", "against the best FedAvg", *looks, "least at the end"]
        head += ["MB up", "MB down", "seeds"]
        lines = [head, ["---"] * len(head)]
        for name, own in self.runs.items():
            against = "" if name == self.reference else compared(self.gap(name))
            found = [self.at(name, look) for look in LOOKS]
            accuracies = [f"{one.mean:.1f} ± {one.half_width:.1f}" for one in found]
            least = min(_accuracy(row, LOOKS[-1]) for row in own.values())
            moved = [np.mean([int(row[way]) for row in own.values()]) for way in ("up", "down")]
            megabytes = [f"{size / 1e6:.2f}" for size in moved]
            lines.append([*name, against, *accuracies, f"{least:.1f}", *megabytes, str(len(own))])
        return [f"| {' | '.join(cells)} |" for cells in lines]

    def picture(self, figure: Any) -> None:
        """Draw the accuracies, a panel for each of the rounds."""
        panels = [
            Panel(
                f"round {look}",
                "accuracy, %",
                {"": [interval(self.at(name, look)) for name in self.runs]},
                equal=self.at(self.reference, look).mean,
            )
            for look in LOOKS
        ]
        draw([", ".join(name) for name in self.runs], panels, figure, alike=True)
        figure.axes[0].set_xlim(0, 100)


def _accuracy(row: Mapping[str, str], look: int) -> float:
    return 100 * float(row[f"round {look}"])


def write(results: Path) -> None:
    """Write finding, table and pictures from the runs that are there."""
    found = Measured(runs_of(results))
    fill(results / "deep.md", "finding", found.finding())
    fill(results / "deep.md", "table", found.table())
    themed(results.parent / "images" / "deep", (10.0, 4.6), found.picture)


def runs_of(results: Path) -> list[dict[str, str]]:
    """Return the lines of the file."""
    with (results / "deep.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
