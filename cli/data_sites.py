"""``privet data A B ...``: whether several sites' tables mean the same, before anybody deploys."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .config import assignment, given_keys

_SCALED = (
    "means and deviations are agreed on at enrolment, from number, mean and sum of squares of each "
    "site's rows; private runs and secure sums need a schema (privet data FILE --schema OUT writes "
    "a first one)"
)
_ANOTHER_ORDER = "as the others in another order, which is put into theirs"


def compare(files: Sequence[str], given: Mapping[str, Any], *, as_json: bool) -> bool:
    """Print in what the tables of several sites differ; return whether they mean the same.

    Each is read as a node reads a file of its own, and they are compared as at enrolment.

    Raises
    ------
    ConfigError
        If one of them cannot be used: names it.
    """
    from privet.data.agreement import agreement
    from privet.data.scaling import of_units

    meanings = {file: _meaning(file, given) for file in files}
    agreed = agreement({file: one.text for file, one in meanings.items()})
    found = {file: agreed.unfit(one.text, "the others") for file, one in meanings.items()}
    base = agreed.meaning
    assert base is not None  # every table states its columns
    orders = {file: _order(one, base) for file, one in meanings.items()}
    same, scaled = not any(found.values()), any(one.rows for one in meanings.values())
    doubts = of_units(meanings)
    if as_json:
        tables = {file: {"difference": found[file], "order": orders[file]} for file in files}
        known = {"tables": tables, "same": same, "scaled-by-rows": scaled, "doubts": doubts}
        print(json.dumps(known))
        return same
    classes = ", ".join(base.label.get("classes", ["a quantity"]))
    print(f"columns: {', '.join(base.columns)}; label {base.label['name']}: {classes}")
    for file in files:
        print(f"- {file}: {found[file] or orders[file] or 'as the others'}")
    if doubts:
        print("worth a look:", *doubts, sep="\n- ")
    if same and scaled:
        print(_SCALED)
    if not same:
        print("nodes that differ are turned away: mend their tables, or give all the same schema")
    return same


def _order(one: Any, base: Any) -> str:
    """Return how a table that the others take is put into their form; empty where it is in it."""
    known = {name: facts.get("categories", []) for name, facts in one.columns.items()}
    single = {name: texts[0] for name, texts in known.items() if len(texts) == 1}
    others = {name: facts.get("categories", []) for name, facts in base.columns.items()}
    if list(known) != list(others) or any(
        known[name] != others[name] for name in others if name not in single
    ):
        return _ANOTHER_ORDER
    alone = [f"{name} = {text}" for name, text in single.items() if others[name] != [text]]
    return f"as the others, with {', '.join(alone)} in every row" if alone else ""


def _meaning(file: str, given: Mapping[str, Any]) -> Any:
    from privet.core import ConfigError
    from privet.data import DataError, problem_from_config
    from privet.data.table_faults import TableError
    from privet.server_apps import read_config

    path = given_keys([f"data-path={json.dumps(file, ensure_ascii=False)}"])
    config = read_config({"dataset": "csv", **given, **path, "partition": "none"})
    try:
        return problem_from_config(config, 0, 1, own=True).meaning
    except TableError as error:
        texts = "; ".join(fault.text for fault in error.faults if fault.stops)
        command = shlex.join(["privet", "data", file, *map(assignment, given, given.values())])
        raise ConfigError(f"{file}: {texts}; to list all faults: {command}") from None
    except DataError as error:
        raise ConfigError(str(error)) from None
