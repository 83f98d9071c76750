"""``privet bench``: ratios measured in one run on this machine."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer


def bench(
    name: Annotated[
        str, typer.Argument(help="Benchmark: engine, clipping, iadmm, masks, privacy, wire.")
    ],
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    quick: Annotated[bool, typer.Option(help="Fewer repetitions.")] = False,
    data_path: Annotated[
        str, typer.Option(help="MNIST's file for bench engine; noise of its size without.")
    ] = "",
) -> None:
    """Measure and print figures with their goals; exit code 0 whatever holds."""
    from privet.sim.benchmarks import BENCHMARKS, Figure
    from privet.sim.benchmarks.engine import bench_engine
    from privet.wire import ConfigError

    if name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {name!r}: known are {', '.join(sorted(BENCHMARKS))}")
    if data_path and name != "engine":
        raise ConfigError(f"--data-path: bench {name} makes its own data")

    def show(figure: Figure) -> None:
        if json_lines:
            print(json.dumps(figure.to_dict()), flush=True)
            return
        goal = "" if figure.goal is None else f"  goal {figure.goal_text}"
        verdict = "" if figure.holds is None else ("  holds" if figure.holds else "  MISSED")
        print(
            f"{figure.case:34} {figure.figure:38} {figure.value:12.4g}{goal}{verdict}", flush=True
        )

    measure = partial(bench_engine, data_path=data_path) if data_path else BENCHMARKS[name]
    measure(show, quick=quick)
