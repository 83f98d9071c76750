"""The page of Fed-PLT and its rivals: ``python -m privet.sim.experiments.fed_plt_rivals_page``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from privet.sim.experiments.fed_plt_rivals import (
    AGENTS,
    CASES,
    Case,
    Row,
    read_rows,
    run,
    write_rows,
    write_tuned,
)
from privet.sim.logs import quiet
from privet.sim.ray.session import ray_session

NAMES = {
    "fed-pd": "FedPD",
    "fed-lin": "FedLin",
    "tamuna": "TAMUNA",
    "led": "LED",
    "five-gcs": "5GCS",
    "fed-plt": "Fed-PLT",
    "fed-split": "FedSplit",
}
INTRODUCTION = """# Fed-PLT and its rivals, tuned alike

Written by `python -m privet.sim.experiments.fed_plt_rivals_page docs/results --tuned
sim/reproduce/tuned.json`. Logistic regression,
100 agents of 250 examples, epsilon 0.5, all agents starting at the same 10 N(0, I) (nonconvex:
N(0, I), as farther out the regulariser is flat and most runs stay there). A run has arrived when
||sum_i grad f_i||^2 <= 1e-5 at the mean model. N_e = 5 local steps (TAMUNA: in the mean) where they
are not tuned. Every algorithm's own parameters are searched by one tuner with the same number of
settings, on draws of the problem other than those reported; how many of each stands under each
heading. `printed` is what the paper's computation time stands for. Times are N (gradients t_G +
exchanges t_C) iterations with gradients as counted: FedLin needs 5 where the paper counts 6,
because the gradient it sends serves its first local step as well, and 5GCS needs 6 where the paper
counts 5, for the one it sends. **Bold** is the least time of a column.

What each algorithm is, and who wins when: [rivals.md](../rivals.md).
"""


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for name, case in CASES.items():
        own = [row for row in rows if row.case == name]
        if own and not case.free:
            parts.append(f"## {case.title}\n\n{_budget(own)}\n\n{table(case, own)}")
    free = [row for row in rows if CASES[row.case].free]
    if free:
        parts.append(f"{FREE} {_budget(free)}\n\n{free_table(free)}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


FREE = """## Local steps tuned too (not in the paper), convex

Time at each t_C (t_G = 1), and the number of local steps that was found best for it."""


def _budget(rows: Sequence[Row]) -> str:
    """Return a sentence on what was spent; in one table it is the same for all."""
    (spent,) = {(row.tried, row.tuning_draws, row.draws) for row in rows}
    return "Each tuned with {} settings (draws: {}), reported on {} other draws.".format(*spent)


def table(case: Case, rows: Sequence[Row]) -> str:
    """Return the table of one case."""
    costs = [f"{cost:g}" for cost in case.costs]
    head = ["algorithm", "iterations", "printed", "exchanges", "gradients"]
    head += [f"t_C = {cost}" for cost in costs] + ["tuned", "settings that arrive"]
    least = {cost: min(_worth(row, cost) for row in rows) for cost in costs}
    lines = []
    for row in sorted(rows, key=lambda one: _worth(one, f"{case.tuned_at:g}")):
        lines.append(
            [
                NAMES[row.algorithm],
                _iterations(row),
                "" if row.printed is None else str(row.printed),
                str(row.exchanges),
                f"{row.gradients:.1f}",
                *(_time(row, cost, least[cost]) for cost in costs),
                _settings(row),
                f"{row.arrived} of {row.tried}",
            ]
        )
    return markdown(head, lines)


def free_table(rows: Sequence[Row]) -> str:
    """Return the table of the cases in which the local steps were tuned."""
    cases = [name for name, case in CASES.items() if case.free]
    cases = [name for name in cases if any(row.case == name for row in rows)]
    cost = {name: f"{CASES[name].tuned_at:g}" for name in cases}
    found = {(row.case, row.algorithm): row for row in rows}
    least = {
        name: min(_worth(row, cost[name]) for row in rows if row.case == name) for name in cases
    }
    lines = []
    for algorithm, shown in NAMES.items():
        own = {name: found.get((name, algorithm)) for name in cases}
        if any(own.values()):
            lines.append(
                [
                    shown,
                    *(
                        ""
                        if row is None
                        else f"{_time(row, cost[name], least[name])} "
                        f"(N_e = {row.settings['local-epochs']})"
                        for name, row in own.items()
                    ),
                ]
            )
    return markdown(["algorithm", *(f"t_C = {cost[name]}" for name in cases)], lines)


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _worth(row: Row, cost: str) -> float:
    time = row.times[cost]
    return math.inf if row.reached < row.draws or math.isnan(time) else time


def _iterations(row: Row) -> str:
    if not row.reached:
        return "does not arrive"
    text = f"{row.iterations:.1f} ± {row.deviation:.1f}"
    return text if row.reached == row.draws else f"{text} ({row.reached} of {row.draws} arrive)"


def _time(row: Row, cost: str, least: float) -> str:
    time = row.times[cost]
    if math.isnan(time):
        return "-"
    text = f"{time / 1000:.3g}k" if time < 1e6 else f"{time / 1e6:.3g}M"
    return f"**{text}**" if row.reached == row.draws and time == least else text


def _settings(row: Row) -> str:
    searched = {
        key: value
        for key, value in row.settings.items()
        if key not in ("local-epochs", "local-solver", "common-convexity")
    }
    return ", ".join(f"{key} {value:.3g}" for key, value in searched.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not in the folder's JSON file yet, and write the page."""
    parser = argparse.ArgumentParser(description=f"Fed-PLT's rivals over {AGENTS} agents.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--settings", type=int, default=30)
    parser.add_argument("--tuning-draws", type=int, default=4)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tuned", type=Path, help="file for the settings found")
    given = parser.parse_args(arguments)
    quiet()
    kept = given.folder / "fed-plt-rivals.json"

    def keep(rows: list[Row]) -> None:
        write_rows(kept, rows)
        (given.folder / "fed-plt-rivals.md").write_text(page(rows))
        if given.tuned is not None:
            write_tuned(given.tuned, rows)
        print(rows[-1], flush=True)

    # One session for all searches, where there are processes to share.
    session = ray_session(num_cpus=given.workers) if given.workers > 1 else nullcontext()
    with session:
        run(
            given.cases,
            done=read_rows(kept),
            on_row=keep,
            draws=given.draws,
            settings=given.settings,
            tuning_draws=given.tuning_draws,
            workers=given.workers,
        )


if __name__ == "__main__":
    main()
