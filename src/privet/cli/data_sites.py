"""``privet data A B ...``: whether several sites' tables mean the same, before anybody deploys."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .config import given_keys

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.data.dataset import Fault
    from privet.data.meaning import Meaning

_SCALED = (
    "means and deviations are agreed on at enrolment, from number, mean and sum of squares of each "
    "site's rows; private runs and secure sums need a schema (privet data FILE --schema OUT writes "
    "a first one)"
)
_SHOWN = 4
"""Categories that a line names."""
_ALIKE = "if it writes one of these in another way, write it as they do"
_ANOTHER_ORDER = "as the others in another order, which is put into theirs"


def compare(files: Sequence[str], given: Mapping[str, Any], *, as_json: bool) -> bool:
    """Print in what the tables of several sites differ, and what is doubtful about them; return
    whether all can be used and mean the same.

    Each is read as a node reads a file of its own, and they are compared as at enrolment. Of one
    that cannot be used the faults are printed, and the others are compared.
    """
    tables, faulty, base, found = _enrolled(files, given)
    orders = dict.fromkeys(files, "")
    lacking: list[tuple[str, str]] = []
    for file, (meaning, _) in tables.items():
        if base is not None and not found[file]:
            orders[file], lines = _order(meaning, base)
            lacking += [(name, f"{file}: column {name}: {line}") for name, line in lines.items()]
    same = not (faulty or any(found.values()))
    scaled = any(meaning.rows for meaning, _ in tables.values())
    doubts = _doubts({file: data for file, (_, data) in tables.items()}, files, lacking)
    if as_json:
        said = {
            file: {"difference": found[file], "order": orders[file], "fault": faulty.get(file, "")}
            for file in files
        }
        known = {"tables": said, "same": same, "scaled-by-rows": scaled, "doubts": doubts}
        print(json.dumps(known))
        return same
    if base is not None:
        classes = ", ".join(base.label.get("classes", ["a quantity"]))
        print(f"columns: {', '.join(base.columns)}; label {base.label['name']}: {classes}")
    alike = "as the others" if len(tables) > 1 else "can be read"
    for file in files:
        fault = f"cannot be used: {faulty[file]}" if file in faulty else ""
        print(f"- {file}: {fault or found[file] or orders[file] or alike}")
    if doubts:
        print("worth a look:", *doubts, sep="\n- ")
    if same and scaled:
        print(_SCALED)
    if any(found.values()):
        print("nodes that differ are turned away: mend their tables, or give all the same schema")
    return same


def _doubts(
    tables: Mapping[str, Dataset], files: Sequence[str], lacking: Sequence[tuple[str, str]]
) -> list[str]:
    """Return the doubts about each table, and about all together; what both are about is told once.

    ``lacking`` has lines on categories that a table lacks, by name of the column.
    """
    from privet.data.tables.faults import together
    from privet.data.tables.sites import between_tables

    between: list[Fault] = []
    told = set[str]()
    if len(tables) > 1:
        short = _short(files)
        between = between_tables({short[file]: data for file, data in tables.items()})
        told = {one.text.partition(":")[0] for one in between}
    own: dict[str, list[str]] = {}
    weights = {one.text: one.weight for one in between}
    named = told | {f"column {name}" for name, _ in lacking}
    for file, data in tables.items():
        for one in data.doubts:
            if not (one.of_sites and one.text.partition(":")[0] in named):
                own.setdefault(one.text, []).append(file)
                weights[one.text] = one.weight
    lines: list[tuple[Sequence[str], str]] = [(known, text) for text, known in own.items()]
    lines += [((), line) for name, line in lacking if f"column {name}" not in told]
    lines += [((), one.text) for one in between]
    return together(sorted(lines, key=lambda one: -weights.get(one[1], 2)))


def refused(files: Sequence[str], given: Mapping[str, Any]) -> dict[str, str]:
    """Return by file why a deployment whose nodes have one each would turn that node away."""
    _, faulty, _, found = _enrolled(files, given)
    return {file: why for file in files if (why := faulty.get(file) or found[file])}


class _Enrolled(NamedTuple):
    """Tables as nodes that have one each would enrol with them."""

    tables: dict[str, tuple[Meaning, Dataset]]
    """Those that can be used, by file."""
    faulty: dict[str, str]
    """The faults of the others."""
    meaning: Meaning | None
    """What the tables agree on, if on anything."""
    differences: dict[str, str]
    """By file, why its node would be turned away; empty where it would not, or is faulty."""


def _enrolled(files: Sequence[str], given: Mapping[str, Any]) -> _Enrolled:
    from privet.data.agreement import agreement

    read = {file: _read(file, given) for file in files}
    faulty = {file: one for file, one in read.items() if isinstance(one, str)}
    tables = {file: one for file, one in read.items() if not isinstance(one, str)}
    agreed = agreement({file: meaning.text for file, (meaning, _) in tables.items()})
    differences = dict.fromkeys(files, "")
    short = _short(files)
    others = agreed.like({short[file]: meaning.text for file, (meaning, _) in tables.items()})
    for file, (meaning, _) in tables.items():
        differences[file] = agreed.unfit(meaning.text, others)
    return _Enrolled(tables, faulty, agreed.meaning, differences)


def _short(files: Sequence[str]) -> dict[str, str]:
    """Return how lines name files, from the folder that all are in."""
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
    return {file: os.path.relpath(file, folder) for file in files}


def _order(one: Meaning, base: Meaning) -> tuple[str, dict[str, str]]:
    """Return how a table that the others take is put into their form, empty where it is in it, and
    by column the doubt about categories of the others that no row of it has."""
    known = {name: facts.get("categories", []) for name, facts in one.columns.items()}
    others = {name: facts.get("categories", []) for name, facts in base.columns.items()}
    lines = {}
    for name, texts in known.items():
        lacking = [text for text in others[name] if text not in texts]
        shown = f"{', '.join(lacking[:_SHOWN])}{_more(lacking)}"
        if not texts:  # numbers, of which 0 and 1 are booleans beside such
            continue
        if lacking and len(texts) == 1:
            lines[name] = f"{texts[0]} in every row, and other tables have {shown}, too: {_ALIKE}"
        elif lacking:
            lines[name] = f"no row has {shown}, which other tables have: {_ALIKE}"
    moved = list(known) != list(others) or any(
        known[name] != [text for text in others[name] if text in known[name]] for name in others
    )
    return _ANOTHER_ORDER if moved else "", lines


def _more(texts: Sequence[str]) -> str:
    return f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""


def _read(file: str, given: Mapping[str, Any]) -> tuple[Meaning, Dataset] | str:
    """Return a node's table, or why it cannot be used."""
    from privet.data import DataError
    from privet.data.problem import own_table
    from privet.data.sql.cohorts import table_keys
    from privet.server_apps import read_config

    path = given_keys([f"data-path={json.dumps(file, ensure_ascii=False)}"])
    kind = table_keys(file)["dataset"]
    config = read_config({"dataset": kind, **given, **path, "partition": "none"})
    try:
        return own_table(config)
    except DataError as error:
        return str(error).removeprefix(f"{config['data-path']}: ")
