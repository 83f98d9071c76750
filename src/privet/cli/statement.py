"""``privet statement``: the statement of a private run, written again or verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .keys import JsonOption


def statement(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a private run.")],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compute the figures again from the releases, and compare the page, the model, "
            "the history and ledgers with what it states; exit code 1 if one differs.",
        ),
    ] = False,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="With --verify: a node's ledger; may be given several times."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the privacy statement of a run into its folder, or verify what it speaks of."""
    from privet.core import ConfigError, PrivetError
    from privet.core.errors import one_line
    from privet.kernel import LedgerError
    from privet.server_apps.report.files import PAGE, STATEMENT
    from privet.server_apps.report.runs import read_runs
    from privet.server_apps.report.verification import checks_of

    if ledger and not verify:
        raise ConfigError("--ledger: goes with --verify")
    if not verify:
        from privet.server_apps import write_report

        page = run_dir / STATEMENT
        write_report([run_dir], run_dir / PAGE, statement=page)
        typer.echo(json.dumps({"statement": str(page)}) if as_json else str(page))
        return
    try:
        (run,) = read_runs([run_dir])
        found = list(checks_of(run, ledger or ()))
    except LedgerError as error:
        raise PrivetError(str(error)) from None
    if as_json:
        checks = [{"holds": holds, "what": line} for holds, line in found]
        typer.echo(json.dumps({"verified": all(holds for holds, _ in found), "checks": checks}))
    else:
        for holds, line in found:
            typer.echo(one_line(line if holds else f"DIFFERS: {line}"))
    if not all(holds for holds, _ in found):
        raise typer.Exit(1)
