"""``privet flower-run``: a run in Flower's Ray simulation, from start to verdict."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from .config import given_keys
from .keys import SettingsArgument


def flower_run(
    settings: SettingsArgument = None,
    app_dir: Annotated[
        Path, typer.Option(help="Folder of the Flower app's pyproject.toml.")
    ] = Path(),
    output_dir: Annotated[Path, typer.Option(help="Where the run folder goes.")] = Path("runs"),
    verbose: Annotated[bool, typer.Option(help="Show every line of Flower's log.")] = False,
) -> None:
    """Run an algorithm in Flower's Ray simulation and say how it went.

    Starts a SuperLink of its own and ends it afterwards. The exit code is 1 if the run failed.
    """
    from privet.core import ConfigError, RunError
    from privet.core.key import shown
    from privet.server_apps import read_config
    from privet.server_apps.config import keys_of_algorithm, table
    from privet.server_apps.execute import headline
    from privet.sim.flower_run import FlowerRunError, cause_of, run_simulation

    began = time.monotonic()
    raw = {"output-dir": str(output_dir.resolve()), **given_keys(settings)}
    config = read_config(raw)
    for key, own in keys_of_algorithm(config["algorithm"]).items():
        if raw.get(key) == table()[key].default != own.default:
            raise ConfigError(
                f"{key} = {shown(raw[key])}: in Flower's config this stands for the algorithm's "
                f"default, {shown(own.default)}; privet run takes it"
            )
    lines: list[str] = []

    def show(line: str) -> None:
        lines.append(line)
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
        raise RunError(_why(str(error), lines, output_dir)) from None
    if not outcome.completed:
        details = cause_of(lines) or outcome.details or outcome.status
        raise RunError(_why(f"run {outcome.run_id} failed: {details}", lines, output_dir))
    folder = Path(str(config["output-dir"])) / outcome.run_id
    summary = json.loads((folder / "summary.json").read_text())
    print()
    for label, value in headline(summary).items():
        print(f"{label}: {value}")
    print(
        f"seconds: {summary['seconds']:.1f} the rounds, {outcome.seconds:.1f} the run, "
        f"{time.monotonic() - began:.1f} in all"
    )
    sys.stdout.flush()


def _why(cause: str, lines: list[str], output_dir: Path) -> str:
    """Keep the log of a simulation that failed; return the cause and where the log is."""
    if not lines:
        return cause
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir.resolve() / f"flower-run-{datetime.now():%Y%m%d-%H%M%S}.log"
    path.write_text("\n".join(lines) + "\n")
    return f"{cause}; Flower's log is in {path}"
