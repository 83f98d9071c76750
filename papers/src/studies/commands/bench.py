"""``privet bench``: ratios measured in one run on this machine, by the benchmarks of a checkout."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from privet.cli.keys import JsonLinesOption
from privet.core import ConfigError
from privet.core.errors import did_you_mean

ROOT = Path(__file__).resolve().parents[4]
"""The checkout, where the papers are installed from one."""


def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="Benchmark: engine, clipping, deployed, gfl, glm, hosts, iadmm, masks, "
            "privacy, private-step, sql, torch, wire.",
            autocompletion=lambda: list(_benchmarks()),
        ),
    ],
    json_lines: JsonLinesOption = False,
    quick: Annotated[bool, typer.Option(help="Fewer repetitions.")] = False,
    data_path: Annotated[
        str,
        typer.Option(help="MNIST's file, for bench engine; without it, random data of that size."),
    ] = "",
    nodes: Annotated[
        int, typer.Option(help="SuperNodes of bench deployed; 4 without it.", min=0)
    ] = 0,
    dim: Annotated[
        int, typer.Option(help="Compare models of so many numbers in bench deployed.", min=0)
    ] = 0,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            help="Python with other libraries, for bench engine (decent-bench, fedjax, fluke-fl, "
            "pfl) and torch (the last two); may be given several times."
        ),
    ] = None,
) -> None:
    """Measure and print figures with their goals; exit code 0 whether or not they are met."""
    known = _benchmarks()
    if name not in known:
        near = did_you_mean(name, known)
        raise ConfigError(f"unknown benchmark {name!r}: known are {', '.join(sorted(known))}{near}")
    if data_path and name != "engine":
        raise ConfigError(f"--data-path: bench {name} makes its own data")
    if peers and name not in ("engine", "torch"):
        raise ConfigError(f"--peers: bench {name} has none")

    def show(figure: Any) -> None:
        if json_lines:
            print(json.dumps(figure.to_dict()), flush=True)
            return
        goal = "" if figure.goal is None else f"  goal {figure.goal_text}"
        verdict = "" if figure.holds is None else ("  holds" if figure.holds else "  MISSED")
        print(
            f"{figure.case:34} {figure.figure:38} {figure.value:12.4g}{goal}{verdict}", flush=True
        )

    if nodes and name != "deployed":
        raise ConfigError(f"--nodes: bench {name} starts none")
    if dim and name != "deployed":
        raise ConfigError(f"--dim: bench {name} has models of its own")
    given = {"data_path": data_path, "peers": peers, "nodes": nodes, "dim": dim}
    known[name](show, quick=quick, **{key: value for key, value in given.items() if value})


def _benchmarks() -> dict[str, Any]:
    """Return the benchmarks by name, importable in this process and its children.

    Raises
    ------
    ConfigError
        Outside a checkout, whose servers and clients of the tests they take.
    """
    # At the front, as installed packages may have these names: Opacus has one of benchmarks.
    folders = [str(ROOT / folder) for folder in ("tests", "papers/src")]
    if not (ROOT / "tests" / "support").is_dir():
        raise ConfigError("bench: pip install -e papers in a checkout, beside its tests")
    sys.path[:] = [*folders, *(one for one in sys.path if one not in folders)]
    known = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *known])
    return import_module("benchmarks").BENCHMARKS  # type: ignore[no-any-return]
