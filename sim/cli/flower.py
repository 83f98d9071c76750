"""``privet flower-run``: a run in Flower's Ray simulation, from start to verdict."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from .config import given_keys


def flower_run(
    settings: Annotated[
        list[str] | None, typer.Argument(help="Run-config keys as key=value, e.g. rho=2.0")
    ] = None,
    app_dir: Annotated[
        Path, typer.Option(help="Folder of the Flower app's pyproject.toml.")
    ] = Path(),
    output_dir: Annotated[Path, typer.Option(help="Where the run folder goes.")] = Path("runs"),
    verbose: Annotated[bool, typer.Option(help="Show every line of Flower's log.")] = False,
) -> None:
    """Run an algorithm in Flower's Ray simulation and say how it went.

    Starts a SuperLink of its own, asks it for the verdict, and ends everything it started.
    Exit code 1 if the run failed.
    """
    from privet.server_apps import read_config
    from privet.server_apps.execute import headline
    from privet.sim.flower_run import FlowerRunError, run_simulation
    from privet.wire import RunError

    began = time.monotonic()
    raw = {"output-dir": str(output_dir.resolve()), **given_keys(settings)}
    config = read_config(raw)

    def show(line: str) -> None:
        text = line.split(" : ", 1)[-1].strip()
        if verbose:
            print(line, flush=True)
        elif text.startswith(("round ", "run failed", "agent ", "node ")):
            print(text, flush=True)

    print(
        f"{config['algorithm']} on {config['dataset']}: {config['num-agents']} agents, "
        "starting Flower's simulation (Ray) ...",
        flush=True,
    )
    try:
        outcome = run_simulation(
            app_dir, num_supernodes=int(config["num-agents"]), run_config=raw, on_line=show
        )
    except FlowerRunError as error:
        raise RunError(str(error)) from None
    if not outcome.completed:
        raise RunError(f"run {outcome.run_id} ended with {outcome.status}: {outcome.details}")
    folder = Path(str(config["output-dir"])) / outcome.run_id
    summary = json.loads((folder / "summary.json").read_text())
    print()
    for label, value in headline(summary).items():
        print(f"{label}: {value}")
    print(f"report: {folder / 'report.html'}")
    print(
        f"seconds: {summary['seconds']:.1f} the rounds, {outcome.seconds:.1f} the run, "
        f"{time.monotonic() - began:.1f} in all"
    )
    sys.stdout.flush()
