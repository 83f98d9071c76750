"""``privet survival``: curves of survival over several sites' tables."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .config import given_keys
from .keys import ConfigOption, JsonOption, completed
from .of_tables import analysed, paths_and_keys, times_of

SurvivalArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE]... [KEY=VALUE]...",
        help="Tables (CSV, TSV, Parquet, or a folder of them), each that of a site, and run-config "
        "keys: time-column=days event-column=died, group-column=sex for a curve by group, "
        "id-column=site where one table has the rows of several sites.",
        autocompletion=completed,
    ),
]


def survival(
    arguments: SurvivalArgument = None,
    config: ConfigOption = None,
    times: Annotated[
        str, typer.Option(help="Times at which to print survival as well, as 365,730.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show Kaplan-Meier curves by group, medians, numbers at risk and log-rank tests of the pooled
    rows of several sites, by sums."""
    from privet.analyses import KaplanMeierResult
    from privet.sim.logs import plain, quiet

    asked = times_of(times)
    paths, keys = paths_and_keys(arguments or [])
    quiet() if as_json else plain()
    table, where, code = analysed(paths, given_keys(keys, config, algorithm="kaplan-meier"))
    if as_json:
        print(json.dumps(table))
    else:
        print("\n".join(where))
        print(KaplanMeierResult(table).text(asked))
    raise typer.Exit(code)
