"""``privet bench``: ratios measured in one run on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def bench(
    name: Annotated[str, typer.Argument(help="Benchmark: engine, clipping, iadmm, wire.")],
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    quick: Annotated[bool, typer.Option(help="Fewer repetitions.")] = False,
) -> None:
    """Measure and print figures with their goals; exit code 0 whatever holds."""
    from privet.sim.benchmarks import BENCHMARKS, Figure
    from privet.wire import ConfigError

    if name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {name!r}: known are {', '.join(sorted(BENCHMARKS))}")

    def show(figure: Figure) -> None:
        if json_lines:
            print(json.dumps(figure.to_dict()), flush=True)
            return
        goal = "" if figure.goal is None else f"  goal {figure.goal_text}"
        verdict = "" if figure.holds is None else ("  holds" if figure.holds else "  MISSED")
        print(
            f"{figure.case:34} {figure.figure:38} {figure.value:12.4g}{goal}{verdict}", flush=True
        )

    BENCHMARKS[name](show, quick=quick)
