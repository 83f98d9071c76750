"""``privet data``: what a run would read, and how it would be dealt to the agents."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import assignment, given_keys, with_cohort
from .data_sites import compare, refused
from .keys import CohortOption, ConfigOption, JsonOption, completed

if TYPE_CHECKING:
    from rich.table import Table

    from privet.core import ConfigError
    from privet.data import Dataset, Federation
    from privet.data.dataset import Fault
    from privet.data.source_column import SourceColumn
    from privet.data.tables.faults import TableError

_SHOWN_AGENTS = 20
_SHOWN_CLASSES = 10
_DEALING = {
    "iid": "rows are dealt at random, the default for a table (partition=iid); partition=label "
    "gives each agent few of the labels, natural-id those of one id of id-column, or of one file "
    "of a folder",
    "label": "rows are dealt by partition=label, the default: each agent gets few of the labels; "
    "partition=iid deals them at random",
    "natural-id": "rows are dealt by id-column (partition=natural-id): each agent has those of one "
    "id",
}
"""The line on how rows are dealt by default, by partition."""
_DEALT = ("partition", "num-agents")
"""Keys of how rows are dealt, which a preset has values of its own for."""
_REFUSED = {
    ("missing", "mean"): ("missing", "category"),
    ("missing", "drop"): ("missing", "category"),
    ("infinite", "drop"): ("infinite", "missing"),
}
"""Values that depend on the records, which private runs refuse, and what to take in their place."""
_GAPS = "where values are missing, write the schema anew with missing=category, or add missing=zero"
_INFINITE = "take the rows with infinite numbers out of the file, or add infinite=missing"
_TO_CHOOSE = "choose the label-column first: put its name in place of COLUMN below"
_UNLIKE = (
    "this process reads the folder as one table all the same; for a deployment mend these files, "
    "or give all nodes the same schema"
)
_IN_THE_FILE = "no key repairs all of it: edit the file, then check it again"


TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]... [KEY=VALUE]...",
        help="A table (CSV, TSV, Parquet, or a folder of them), or a cohort of a database (a TOML "
        "file of cohorts, or a URL), and run-config keys as for "
        "privet run; without a file, the data set of the keys. Several tables are compared, as "
        "those of sites with files of their own.",
        autocompletion=completed,
    ),
]
SchemaOption = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="OUT",
        help="Write the ranges and categories of the table's columns to a new TOML file, to be "
        "replaced by public ones and given as the key schema.",
    ),
]


def data(
    arguments: TablesArgument = None,
    config: ConfigOption = None,
    schema: SchemaOption = None,
    cohort: CohortOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the columns, types and labels that a run would read, and what each agent would get; of
    several tables, in what they differ."""
    from privet.core import ConfigError
    from privet.data import DataError
    from privet.data.sql.snapshots import held

    words = with_cohort(arguments or [], cohort)
    files, given = _files_and_keys(words, config, schema)
    if len(files) > 1:
        if not compare(files, given, as_json=as_json):
            raise typer.Exit(2)
        return
    try:
        with held(given):  # a database is asked once
            _check(files, given, schema, as_json=as_json)
    except DataError as error:
        raise ConfigError(str(error)) from None


def _check(files: list[str], given: dict[str, Any], schema: Path | None, *, as_json: bool) -> None:
    """Show one table, or the data set of the keys (raises ``ConfigError``, and ``typer.Exit``)."""
    from privet.core import ConfigError
    from privet.data.settings import DATA_KEYS
    from privet.data.tables.faults import TableError
    from privet.server_apps import read_config
    from privet.server_apps.build import agents_of

    resolved = read_config(given)
    agents = agents_of(resolved)
    try:
        federation, unfit = _dealt(resolved, agents)
    except TableError as error:
        faults, keys, left = _mended(resolved, agents, error)
        if schema:
            keys = _for_private(resolved, agents, keys)
        if as_json:
            texts = list(dict.fromkeys(fault.text for fault in faults))
            print(json.dumps({"faults": texts, "keys": keys, "left": left}))
        else:
            _list_faults(f"{given['data-path']} cannot be used as it is:", faults, left)
            _print_next(files, given, keys, left, schema)
        if schema:
            print(f"{schema} is not written before the table can be read", file=sys.stderr)
        raise typer.Exit(2) from None
    dataset = federation.dataset
    if schema and not dataset.source_columns:
        raise ConfigError(f"--schema: dataset {dataset.name} has fixed columns")
    others = [key for key in given if key not in {"algorithm", "num-agents", *DATA_KEYS}]
    if not as_json:
        _show_columns(dataset, others)
    if unfit:
        raise unfit
    unlike = _refused_nodes(files, given, resolved)
    if as_json:
        shown = _as_json(federation, resolved["partition"], others)
        print(json.dumps({**shown, "refused-nodes": unlike}))
    else:
        _show_agents(federation, resolved["partition"])
    if schema:
        _write(schema, dataset)
        if not as_json:
            print(schema.resolve())
            print(_next_private(resolved, given, schema.resolve()))
    elif dataset.name == "csv" and not as_json:
        _print_next(files, given, _without_doubts(resolved, agents, {}, dataset.doubts))
    if unlike and not as_json:
        _show_refused(unlike)
    if unlike:
        raise typer.Exit(2)


def _files_and_keys(
    words: Sequence[str], config: Path | None, schema: Path | None
) -> tuple[list[str], dict[str, Any]]:
    """Return the tables that a command line names, and the given keys: a single table is in them.

    Raises
    ------
    ConfigError
        If the keys name another table, or a schema is to be written of several.
    """
    from privet.core import ConfigError
    from privet.data.sql.cohorts import table_keys

    files = [word for word in words if _is_file(word)]
    given = given_keys([word for word in words if word not in files], config)
    if len(files) > 1 and schema:
        raise ConfigError(f"--schema: expected one file, found {', '.join(files)}")
    if files and "data-path" in given:
        raise ConfigError(f"data-path = {given['data-path']}: the file is {files[0]}; give one")
    if len(files) == 1:
        path = given_keys([f"data-path={json.dumps(files[0], ensure_ascii=False)}"])
        given = {"dataset": table_keys(files[0])["dataset"], **given, **path}
    return files, given


def _dealt(resolved: Mapping[str, Any], agents: int) -> tuple[Federation, ConfigError | None]:
    """Return the data as they are dealt; with one agent and the reason where they cannot be.

    Raises
    ------
    TableError
        If a table cannot be used.
    ConfigError
        If there are no data at all.
    """
    from privet.core import ConfigError
    from privet.data import DataError, federation_from_config
    from privet.data.tables.faults import TableError

    try:
        return federation_from_config(resolved, agents), None
    except TableError:
        raise
    except DataError as error:
        # Show the table even if it cannot be partitioned as requested.
        unfit = ConfigError(str(error))
    try:
        return federation_from_config({**resolved, "partition": "iid"}, 1), unfit
    except DataError:
        raise unfit from None


def _refused_nodes(
    files: Sequence[str], given: Mapping[str, Any], resolved: Mapping[str, Any]
) -> dict[str, str]:
    """Return why nodes that have one file each of a folder would be turned away, by file."""
    from privet.data.tables.files import node_files

    of_nodes = node_files(files[0]) if files and not resolved["id-column"] else []
    return refused(of_nodes, given) if len(of_nodes) > 1 else {}


def _write(schema: Path, dataset: Dataset) -> None:
    """Write a table's ranges and categories to a new file (raises ``ConfigError``)."""
    from privet.core import ConfigError
    from privet.data.tables.schema import write_schema

    try:
        with schema.open("x", encoding="utf-8") as file:
            file.write(write_schema(dataset.source_columns))
    except FileExistsError:
        raise ConfigError(f"--schema {schema}: exists already") from None
    except OSError as error:
        raise ConfigError(f"--schema {schema}: {error.strerror}") from None


def _show_refused(unlike: Mapping[str, str]) -> None:
    """Print which nodes would be turned away, and why."""
    print("nodes that have one of these files each would be turned away:")
    print(*(f"- {file}: {why}" for file, why in unlike.items()), sep="\n")
    print(_UNLIKE)


def _show_columns(dataset: Dataset, others: list[str]) -> None:
    """Print what would be read, and the given keys that say nothing about data."""
    from privet.core.terminal import console

    print(dataset.description)
    print(
        f"{len(dataset.train_labels)} rows to train on, {len(dataset.test_labels)} held out; "
        f"{_task(dataset)}"
    )
    if dataset.source_columns:
        console().print(_columns(dataset.source_columns))
    if others:
        print(f"not used here, as nothing of the data depends on them: {', '.join(others)}")


def _show_agents(federation: Federation, partition: str) -> None:
    """Print what each agent would get, and why private runs would refuse the data."""
    from privet.core.terminal import console

    print(f"{len(federation.parts)} agents, partition = {partition}")
    screen = console()
    screen.print(_agents(federation))
    if federation.dataset.doubts:
        _list_faults("worth a look:", federation.dataset.doubts)
    if reason := federation.dataset.data_dependent:
        screen.print(f"private runs: {reason}", soft_wrap=True, highlight=False)


def _as_json(federation: Federation, partition: str, others: list[str]) -> dict[str, Any]:
    dataset = federation.dataset
    return {
        "description": dataset.description,
        "rows": len(dataset.train_labels),
        "held-out": len(dataset.test_labels),
        "task": dataset.task,
        "columns": [
            {"name": one.name, "holds": _holds(one), "missing": one.missing, "width": one.width}
            for one in dataset.source_columns
        ],
        "partition": partition,
        "examples": [len(part) for part in federation.parts],
        "doubts": [fault.text for fault in dataset.doubts],
        "refused-in-private-runs": dataset.data_dependent,
        "unused-keys": others,
    }


def _next_private(config: Mapping[str, Any], given: Mapping[str, Any], schema: Path) -> str:
    """Return the next steps after a schema was written: private runs by presets for tables.

    They read and deal the table as it was shown here where keys say so, but take no key that
    private runs refuse; what a preset says otherwise is named.
    """
    from privet.data.settings import DATA_KEYS

    from .presets import load_preset, preset_names

    fitting = {name: load_preset(name) for name in preset_names()}
    fitting = {name: keys for name, keys in fitting.items() if keys.get("dataset") == "csv"}
    own = {
        key: value
        for key, value in given.items()
        if key in {"num-agents", *DATA_KEYS} - {"dataset", "schema", "missing-labels"}
        and (key, value) not in _REFUSED
    }
    if config["dataset"] != "csv":  # that of the presets
        own = {"dataset": config["dataset"], **own}
    keys = {"data-path": config["data-path"], **own, "schema": str(schema), "target-epsilon": 4}
    words = [assignment(key, value) for key, value in keys.items()]
    lines = []
    if config["missing-labels"] == "drop":
        lines.append(
            "Take the rows without a label or id out of the file: a private run reads them all."
        )
    for key, value in _REFUSED:
        if config[key] == value:
            instead = _GAPS if key == "missing" else _INFINITE
            lines.append(f"A private run refuses {key} = {value}: {instead} below.")
    lines.append(
        "Put ranges and categories into it that are publicly known, take out the line "
        "from-records = true, and then, such as for epsilon 4:"
    )
    for name, preset in fitting.items():
        changed = [key for key in _DEALT if key not in given and preset[key] != config[key]]
        if changed:
            said = " ".join(assignment(key, preset[key]) for key in changed)
            lines.append(f"(dealt by {said} of the preset, not as above)")
        lines.append(shlex.join(["privet", "run", "--preset", name, *words]))
    return "\n".join(lines)


def _is_file(word: str) -> bool:
    """Return whether a word of the command line names a table rather than a key's value."""
    from privet.data.sql.cohorts import URLS

    return "=" not in word or word.startswith(URLS) or Path(word).exists()


def _list_faults(heading: str, faults: Iterable[Fault], left: str = "") -> None:
    from privet.data.tables.faults import together

    print(heading)
    for text in together(((), fault.text) for fault in faults):
        print(f"- {text}")
    if left:
        print(f"- {left}")


def _mended(
    resolved: Mapping[str, Any], agents: int, error: TableError
) -> tuple[list[Fault], dict[str, str], str]:
    """Return all faults, the keys that mend them, and what no key mends.

    The keys are tried, as what they leave out may bring other faults to light.
    """
    from privet.data import DataError, federation_from_config
    from privet.data.tables.faults import TableError

    faults, keys = list(error.faults), dict(error.keys)
    while "label-column" not in keys:
        try:
            dataset = federation_from_config({**resolved, **keys}, agents).dataset
        except TableError as next_error:
            faults += next_error.faults
            if not next_error.keys.items() - keys.items():
                break
            keys |= next_error.keys
        except DataError as last_error:
            return faults, keys, str(last_error)
        else:
            faults += dataset.doubts
            return faults, _without_doubts(resolved, agents, keys, dataset.doubts), ""
    return faults, keys, _TO_CHOOSE if "label-column" in keys else _IN_THE_FILE


def _without_doubts(
    resolved: Mapping[str, Any], agents: int, keys: dict[str, str], doubts: Iterable[Fault]
) -> dict[str, str]:
    """Return keys that leave doubtful columns out too, where a table can be used without them."""
    from privet.data import DataError, federation_from_config
    from privet.data.tables.faults import mending

    config = {**resolved, **keys}
    further = {**keys, **mending(doubts, str(config["drop-columns"]))}
    try:
        federation_from_config({**resolved, **further}, agents)
    except DataError:
        return keys
    return further


def _for_private(resolved: Mapping[str, Any], agents: int, keys: dict[str, str]) -> dict[str, str]:
    """Return keys that private runs take as well, where the table can be used with them."""
    from privet.data import DataError, federation_from_config

    further = {**keys, **dict(_REFUSED[pair] for pair in keys.items() if pair in _REFUSED)}
    if further.get("infinite") == "missing":
        further["missing"] = "category"
    try:
        federation_from_config({**resolved, **further}, agents)
    except DataError:
        return keys
    return further


def _print_next(
    files: list[str],
    given: Mapping[str, Any],
    keys: Mapping[str, str],
    left: str = "",
    schema: Path | None = None,
) -> None:
    """Print the command to go on with: a run, or this one again where keys do not mend all or a
    schema is still to be written."""
    from privet.data.loaders import TABLES
    from privet.data.settings import dealt_by

    if "partition" not in given:
        print(_DEALING[dealt_by(given)])
    command, shown = ["privet", "run"], {**given, **keys}
    if left or schema:
        command = ["privet", "data", *files]
        shown = {key: value for key, value in shown.items() if not files or key != "data-path"}
        if files and shown["dataset"] in TABLES:
            shown.pop("dataset")
    words = [*command, *(assignment(*pair) for pair in shown.items())]
    print(f"\n{shlex.join([*words, '--schema', str(schema)] if schema else words)}")


def _task(dataset: Dataset) -> str:
    """Return a description of the target."""
    label = dataset.source_columns[-1] if dataset.source_columns else None
    of = f" of column {label.name}" if label else ""
    if dataset.task == "regression":
        return f"a quantity to predict (regression){of}"
    names = ", ".join(label.categories) if label else f"{dataset.classes} classes"
    plus = f"; +1 is {label.categories[1]}" if label and dataset.task == "binary" else ""
    return f"classes{of}: {names}{plus}" if label else names


def _columns(columns: Iterable[SourceColumn]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("column", "holds")
    table.add_column("missing", justify="right")
    table.add_column("becomes", justify="right")
    *inputs, label = columns
    for column in (*inputs, label):
        width = "the label" if column is label else str(column.width or "left out")
        table.add_row(escape(column.name), escape(_holds(column)), str(column.missing), width)
    return table


def _holds(column: SourceColumn) -> str:
    """Return a description of a column's values."""
    if column.constant:
        return f"{(*column.categories, f'{column.low:g}')[0]} in every row"
    if not column.categories:
        return f"numbers {column.low:g} to {column.high:g}"
    more = " ..." if len(column.categories) > 4 else ""
    return f"{len(column.categories)} categories: {', '.join(column.categories[:4])}{more}"


def _agents(federation: Federation) -> Table:
    """Return the number of examples of each agent, by class if there are few."""
    import numpy as np
    from rich.table import Table

    dataset = federation.dataset
    values = np.unique(dataset.train_labels) if dataset.task != "regression" else np.array([])
    names = [f"{value:+d}" if dataset.task == "binary" else str(value) for value in values]
    if dataset.source_columns and len(values):
        names = list(dataset.source_columns[-1].categories)
        values = np.array([-1, 1]) if dataset.task == "binary" else np.arange(len(names))
    if len(values) > _SHOWN_CLASSES:
        values, names = np.array([]), []
    table = Table("agent")
    for head in ("examples", *names):
        table.add_column(head, justify="right")
    parts = federation.parts
    for number, part in enumerate(parts[:_SHOWN_AGENTS]):
        labels = dataset.train_labels[part]
        counts = [int((labels == value).sum()) for value in values]
        table.add_row(*map(str, (number, len(part), *counts)))
    if len(parts) > _SHOWN_AGENTS:
        sizes = [len(part) for part in parts]
        table.add_row("...", f"{min(sizes)} to {max(sizes)}")
    return table
