"""``privet report``: the page of finished runs, and their histories as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Run folders with history.jsonl.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="HTML file to write, or a folder for report.html; by default the run folder, or "
            "the current folder for several runs."
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Also write the histories to this CSV file, a row per run and round."),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Also write the same rows to this Parquet file.")
    ] = None,
) -> None:
    """Write the report of one run, or a comparison of several, and print where it is."""
    from privet.server_apps import write_report

    target = out or (run_dirs[0] if len(run_dirs) == 1 else Path())
    path = write_report(run_dirs, target, csv=csv, parquet=parquet)
    for written in filter(None, (path, csv, parquet)):
        typer.echo(written.resolve())
