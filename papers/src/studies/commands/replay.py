"""``privet replay``: worked instances and runs, by the real Strategy, ClientApp and messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from privet.sim.recorded import Recorded
    from studies.replays import Replay

TOLERANCE = 1e-9


def replay(
    files: Annotated[
        list[Path], typer.Argument(help="Instance files (JSON), or folders of asynchronous runs.")
    ],
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line; the only format.")
    ] = False,
) -> None:
    """Replay worked instances, or asynchronous runs, and print the largest difference of each.

    A run, deployed or simulated, is played again from its history and config: the same agents are
    sent the same versions, and fold in the same ones.

    Exit code 0 if every file agrees to 1e-9.
    """
    from privet.sim.logs import quiet

    quiet()
    exact = True
    for file in files:
        result = _replayed(file)
        print(json.dumps(result.to_dict()), flush=True)
        exact = exact and result.max_abs_error <= TOLERANCE
    raise typer.Exit(0 if exact else 1)


def _replayed(file: Path) -> Replay | Recorded:
    if file.is_dir():
        from privet.sim.recorded import replay_run

        return replay_run(file)
    from studies.replays import replay_file

    return replay_file(file)
