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
    as_json: JsonOption = False,
) -> None:
    """Write the report of one run, or a comparison of several, and print where it is."""
    from privet.server_apps import write_report

    target = out or (run_dirs[0] if len(run_dirs) == 1 else Path())
    path = write_report(run_dirs, target, csv=csv, parquet=parquet, statement=statement)
    written = {"report": path, "csv": csv, "parquet": parquet, "statement": statement}
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
