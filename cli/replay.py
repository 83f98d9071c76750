"""``privet replay``: worked instances through the real Strategy, ClientApp and messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .checkout import from_checkout

TOLERANCE = 1e-9


def replay(
    files: Annotated[list[Path], typer.Argument(help="Instance files (JSON).")],
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line; the only format.")
    ] = False,
) -> None:
    """Replay worked instances and print the largest difference of each.

    Exit code 0 if every file agrees to 1e-9.
    """
    from privet.sim.logs import quiet

    from_checkout("replay")
    from studies.replays import replay_file

    quiet()
    exact = True
    for file in files:
        result = replay_file(file)
        print(json.dumps(result.to_dict()), flush=True)
        exact = exact and result.max_abs_error <= TOLERANCE
    raise typer.Exit(0 if exact else 1)
