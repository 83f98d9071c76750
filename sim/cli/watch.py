"""``privet watch``: the report of a run in progress, in a browser on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
        print(f"{run}: http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
