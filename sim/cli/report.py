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
    from privet.server_apps.report import page
    from privet.server_apps.report.files import PAGE, Output, write_outputs
    from privet.server_apps.report.rows import csv_table, parquet_table
    from privet.server_apps.report.runs import read_runs

    runs = read_runs(run_dirs)
    target = out or (run_dirs[0] if len(run_dirs) == 1 else Path())
    if target.is_dir():
        target /= PAGE
    outputs = [Output("--out", target, page(runs))]
    if csv is not None:
        outputs.append(Output("--csv", csv, csv_table(runs), (".csv",)))
    if parquet is not None:
        outputs.append(Output("--parquet", parquet, parquet_table(runs), (".parquet",)))
    write_outputs(outputs, run_dirs)
    for output in outputs:
        typer.echo(output.path.resolve())
