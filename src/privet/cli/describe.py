"""``privet describe``: what several sites' tables hold, and a schema from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .config import assignment, given_keys, with_cohort
from .keys import CohortOption, ConfigOption, JsonOption, completed
from .of_tables import analysed, paths_and_keys

DescribedArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE|RUN]... [KEY=VALUE]...",
        help="Tables (CSV, TSV, Parquet, or a folder of them), or a cohort of a database (a TOML "
        "file of cohorts, or a URL), each that of a site; or the run "
        "folder of a description, as flwr run leaves it; and run-config keys, such as "
        "id-column=site where one table has the rows of several sites.",
        autocompletion=completed,
    ),
]
OF_CELLS = ("censored", "infinite", "dates")
"""Keys of how a cell is read, which a run with the schema needs as well."""
OutOption = Annotated[
    Path | None,
    typer.Option("--schema", metavar="OUT", help="Write a schema of the columns to a new file."),
]


def describe(
    arguments: DescribedArgument = None,
    config: ConfigOption = None,
    schema: OutOption = None,
    cohort: CohortOption = "",
    as_json: JsonOption = False,
) -> None:
    """Describe the columns of several sites' tables by sums: counts, missing values, means,
    deviations, quantiles, categories, and what the sites disagree about."""
    from privet.analyses.description_table import disagreements
    from privet.core import ConfigError
    from privet.core.exits import Exit
    from privet.data.described_schema import schema_of
    from privet.data.source_column import SourceColumn
    from privet.data.tables.schema import read_schema
    from privet.server_apps.run_folder import TABLE
    from privet.sim.logs import plain, quiet

    paths, keys = paths_and_keys(arguments or [])
    if schema and schema.exists():
        raise ConfigError(f"--schema {schema}: is there already; name a new file")
    quiet() if as_json else plain()
    public: Mapping[str, SourceColumn] = {}
    given: Mapping[str, Any] = {}
    folder = next((Path(one) for one in paths if (Path(one) / TABLE).is_file()), None)
    if folder is not None:
        if len(paths) > 1 or keys:
            raise ConfigError(f"{folder}: a run folder is described alone, without keys")
        table, where, code = _read(folder / TABLE), [f"run folder: {folder}"], Exit.DONE
    else:
        given = given_keys(with_cohort(keys, cohort), config, algorithm="describe")
        table, where, code = analysed(paths, given)
        public = read_schema(str(given.get("schema", ""))).columns
    if schema:
        schema.write_text(schema_of(table, public), encoding="utf-8")
    if as_json:
        print(json.dumps(table))
        raise typer.Exit(code)
    print("\n".join(where))
    _show(table, disagreements(table))
    if schema:
        read = [assignment(key, given[key]) for key in OF_CELLS if key in given]
        print(f"schema: {schema}{', for runs with ' if read else ''}{' '.join(read)}")
    raise typer.Exit(code)


def _read(file: Path) -> dict[str, Any]:
    from privet.core import ConfigError

    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        if table["analysis"] != "describe":
            raise ValueError(f"it is the result of {table['analysis']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: no description: {error}") from None
    found: dict[str, Any] = table
    return found


def _show(table: dict[str, Any], lines: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from privet.analyses.table_one import count_of, table_one
    from privet.analyses.text_table import aligned

    console = Console(highlight=False, markup=False)
    shown = Table("column", "n", "missing", "mean", "sd", "median", "5 % to 95 %")
    for name, column in table["columns"].items():
        quantiles = column.get("quantiles", {})
        texts = ", ".join(
            f"{text} {count_of(column, text)}" for text in list(column.get("categories", {}))[:6]
        )
        ends = " to ".join(_digits(quantiles[q]) for q in ("0.05", "0.95")) if quantiles else texts
        numbers = [column.get("mean"), column.get("sd")]
        cells = ["" if one is None else f"{one:.6g}" for one in numbers]
        cells.append(_digits(quantiles["0.5"]) if quantiles else "")
        counts = f"{column['n']:.0f}", f"{column['missing']:.0f}"
        shown.add_row(name, *counts, *cells, ends)
    sites = "1 site" if table["sites"] == 1 else f"{table['sites']} sites"
    console.print(f"{table['rows']:.0f} rows of {sites}")
    console.print(shown)
    if error := table.get("count_error"):
        console.print(
            f"counts are noised: each has a standard error of {error:.3g} rows, an n of "
            f"{table['n_error']:.3g}; 0 stands for what is below",
            soft_wrap=True,
        )
    if table.get("by"):
        console.print("\n".join(aligned(table_one(table))), soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)


def _digits(value: float) -> str:
    """Return a quantile in the five digits that are known of it."""
    return f"{float(f'{value:.5g}'):.15g}"
