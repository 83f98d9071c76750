"""``privet ledger``: what a node's ledger file says was spent, and whether it can be trusted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from privet.core import ConfigError, PrivetError
from privet.core.errors import near_path

from .keys import JsonOption

if TYPE_CHECKING:
    from privet.kernel import Audit, RunSpent, Spent


def ledger(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The ledger-path of a node's config."),
    ],
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is given.")] = 1e-5,
    as_json: JsonOption = False,
) -> None:
    """Show what a node has spent, in total and by run, and check every line; changes nothing."""
    from privet.kernel import LedgerError, LedgerFile
    from privet.kernel.programs.custom import custom_in

    if not 0 < delta < 1:
        raise click.UsageError(f"--delta {delta}: expected a number in (0, 1)")
    if not file.exists():
        raise ConfigError(f"{file}: no such file; expected a node's ledger{near_path(file)}")
    if not file.is_file():
        raise ConfigError(f"{file}: not a regular file; expected a node's ledger")
    try:
        audit = LedgerFile(file.absolute()).verify()
    except LedgerError as error:
        raise PrivetError(str(error)) from None
    total = audit.spent(delta)
    custom = custom_in(what for run in audit.runs for what in run.custom)
    if as_json:
        named = {"custom-programs": list(custom)} if custom else {}
        typer.echo(json.dumps({**_mapping(total, audit), **named}))
    else:
        _print(total, audit.running.totals.relation, audit.open_torn, audit.runs)
        if (colluders := audit.running.totals.colluders) is not None:
            typer.echo(
                f"towards the coordinator and at most {colluders} other agents: noise was shared"
            )
        for what in custom:
            typer.echo(f"rests on {_printable(what)}")


def _mapping(total: Spent, audit: Audit) -> dict[str, Any]:
    totals = audit.running.totals
    return {
        **({} if totals.relation is None else {"relation": totals.relation}),
        **({} if totals.colluders is None else {"colluders": totals.colluders}),
        "epsilon": _number(total.epsilon),
        "delta": total.delta,
        "messages": total.messages,
        "torn": total.torn,
        "open-torn": audit.open_torn,
        "runs": [
            {
                "run": run.run,
                "agents": run.agents,
                "rounds": run.rounds,
                "first": run.first,
                "last": run.last,
                "messages": run.messages,
                "torn": run.torn,
                "epsilon": _number(run.totals.epsilon(total.delta)),
            }
            for run in audit.runs
        ],
    }


def _print(total: Spent, relation: str | None, open_torn: int, runs: tuple[RunSpent, ...]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from privet.core.terminal import console

    unit = f" ({relation})" if relation else ""
    table = Table(title=f"epsilon at delta = {total.delta:g}{unit}")
    for column in ("run", "agent"):
        table.add_column(column, overflow="fold")
    for column in ("rounds", "first", "last"):
        table.add_column(column, no_wrap=True)
    for column in ("messages", "torn", "epsilon"):
        table.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        rounds = "" if run.rounds is None else f"{run.rounds[0]}-{run.rounds[1]}"
        texts = (run.run or "-", ", ".join(run.agents), rounds, _day(run.first), _day(run.last))
        table.add_row(
            *(escape(_printable(text)) for text in texts),
            str(run.messages), str(run.torn), _text(run.totals.epsilon(total.delta)),
        )  # fmt: skip
    table.add_section()
    first, last = min((r.first for r in runs), default=""), max((r.last for r in runs), default="")
    table.add_row(
        "total", "", "", escape(_printable(_day(first))), escape(_printable(_day(last))),
        str(total.messages), str(total.torn), _text(total.epsilon),
    )  # fmt: skip
    console().print(table)
    if open_torn:
        typer.echo(
            f"{open_torn} torn at the end, to be sealed by the next charge and counted above"
        )
    typer.echo("every line is as it was written")


def _printable(text: str) -> str:
    """Replace control characters: names in notes come from others."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _day(time: str) -> str:
    return time[:10]


def _number(value: float | None) -> float | str:
    return "inf" if value is None or math.isinf(value) else value


def _text(value: float | None) -> str:
    return "inf" if value is None or math.isinf(value) else f"{value:.6g}"
