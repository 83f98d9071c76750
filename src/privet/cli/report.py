"""``privet report`` and ``privet watch``: the page of finished runs, and of one in progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .keys import JsonOption


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
    statement: Annotated[
        Path | None,
        typer.Option(
            metavar="HTML",
            help="Also write the privacy statement of a private run to this file: one page to "
            "print and sign. A private run has written its own as statement.html.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Of an analysis: also write its table in Markdown.")
    ] = None,
    latex: Annotated[
        Path | None, typer.Option(help="Of an analysis: also write its table in LaTeX.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of one run, or a comparison of several, and print where it is.

    Of an analysis it is the page of its table, and --csv has the table's rows.
    """
    from privet.core import ConfigError
    from privet.server_apps import write_report
    from privet.server_apps.analysis import report_table
    from privet.server_apps.regression_file import is_analysis

    target = out or (run_dirs[0] if len(run_dirs) == 1 else Path())
    of_tables = {"--markdown": markdown, "--latex": latex}
    of_runs = {"--parquet": parquet, "--statement": statement}
    tables = [one for one in run_dirs if is_analysis(one)]
    if tables and len(run_dirs) > 1:
        raise ConfigError(f"{tables[0]}: an analysis has a report of its own: name it alone")
    for option, place in (of_runs if tables else of_tables).items():
        if place is not None:
            raise ConfigError(f"{option}: {'not of' if tables else 'of'} an analysis")
    if tables:
        path = report_table(run_dirs[0], target, csv, markdown, latex)
    else:
        path = write_report(run_dirs, target, csv=csv, parquet=parquet, statement=statement)
    written = {"report": path, "csv": csv, "parquet": parquet, "statement": statement}
    written |= {"markdown": markdown, "latex": latex}
    places = {name: str(file.resolve()) for name, file in written.items() if file}
    typer.echo(json.dumps(places) if as_json else "\n".join(places.values()))


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A run folder, or one of run folders: then the newest."
        ),
    ],
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = 0,
) -> None:
    """Serve the report of a run on 127.0.0.1 and refresh it while the run goes on, until Ctrl-C."""
    from privet.server_apps.report.watch import newest, served

    run = newest(folder)
    with served(run, port) as server:
        print(f"{run}: {server.url}", flush=True)
        server.serve_forever()
