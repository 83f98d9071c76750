"""A schema: the public ranges and categories of a table's columns, in a TOML file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from privet.core.errors import near_path
from privet.core.files import read_given

from ..dataset import DataError, brief
from ..source_column import SourceColumn
from .values import normal

MARK = "from-records"
"""The key of a file that `privet data --schema` wrote: its values are those of the records."""
DESCRIBED = "described"
"""The table of a file that `privet describe --schema` wrote of a noised description."""
GAP = ""
"""Listed among the values of a column in which values may be missing."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns that are used, by name; none where no schema is given.

    ``from_records`` says that ranges and categories were read from the records, and are not public.
    ``described`` has the ``epsilon`` and ``delta`` of a noised description of these columns, which
    each site has spent beside what later runs cost; empty for none.
    """

    columns: Mapping[str, SourceColumn] = field(default_factory=dict)
    from_records: bool = False
    described: Mapping[str, float] = field(default_factory=dict)

    @property
    def dependence(self) -> str:
        """Why it is not public, and how to make it so; empty where it is."""
        if not self.from_records:
            return ""
        return (
            f"the schema holds {MARK} = true, as it was written from the records: put ranges and "
            f"categories in it that are publicly known of such data, then take out the line {MARK}"
        )


def read_schema(path: str) -> Schema:
    """Return the schema in a file, an empty one without a path (raises ``DataError``)."""
    if not path:
        return Schema()
    try:
        document = tomllib.loads(read_given(Path(path)))
    except OSError as error:
        raise DataError(f"schema {path}: {error.strerror}{near_path(Path(path))}") from None
    except (ValueError, RecursionError) as error:  # one of nested lists
        raise DataError(f"schema {path}: expected TOML ({brief(error)})") from None
    columns, mark = document.get("columns"), document.get(MARK, False)
    if not isinstance(columns, dict) or not columns or set(document) - _TABLES:
        raise DataError(f"schema {path}: expected one table [columns], and perhaps one [units]")
    if not isinstance(mark, bool):
        raise DataError(f"schema {path}: {MARK} = {mark!r}: expected true or false")
    columns = {normal(name): values for name, values in columns.items()}
    public = {name: _column(name, values) for name, values in columns.items()}
    for name, column in public.items():
        if column is None:
            raise DataError(
                f"schema {path}: {name} = {columns[name]!r}: expected [low, high], or a list of "
                "different texts"
            )
    known = {name: column for name, column in public.items() if column}
    for name, unit in _units(path, document.get("units", {})).items():
        if name not in known or known[name].categories:
            raise DataError(f"schema {path}: a unit of {name}, which is no column of numbers")
        known[name] = replace(known[name], unit=unit)
    return Schema(known, mark, _described(path, document.get(DESCRIBED, {})))


_TABLES = {"columns", "units", MARK, DESCRIBED}


def _described(path: str, spent: Any) -> dict[str, float]:
    keys = {"epsilon", "delta"}
    if spent == {}:
        return {}
    if isinstance(spent, dict) and spent.keys() == keys:
        numbers = [one for one in spent.values() if type(one) in (int, float)]
        if len(numbers) == len(keys) and all(0 < one < np.inf for one in numbers):
            return {key: float(spent[key]) for key in sorted(keys)}
    raise DataError(f"schema {path}: expected epsilon and delta above 0 in [{DESCRIBED}]")


def _units(path: str, units: Any) -> dict[str, str]:
    if not isinstance(units, dict) or not all(isinstance(one, str) for one in units.values()):
        raise DataError(f'schema {path}: expected texts in [units], such as sodium = "mmol/l"')
    return {normal(name): normal(unit) for name, unit in units.items()}


def _column(name: str, values: Any) -> SourceColumn | None:
    """Return the column that a list of values describes, None where it is neither of two kinds."""
    known = [value for value in values if value != GAP] if isinstance(values, list) else []
    gap = isinstance(values, list) and values.count(GAP) == 1
    if not known or len(known) + gap != len(values):
        return None
    if all(isinstance(value, str) for value in known):
        known = [normal(value) for value in known]
        if len(set(known)) < len(known):
            return None
        return SourceColumn(name, 0, tuple(known), public=True, gap=gap)
    if len(known) == 2 and all(type(value) in (int, float) for value in known):
        low, high = known
        if -np.inf < low <= high < np.inf:
            return SourceColumn(name, 0, low=low, high=high, public=True, gap=gap)
    return None


def write_schema(
    columns: tuple[SourceColumn, ...], described: Mapping[str, float] | None = None
) -> str:
    """Return the text of a schema with what columns of a table hold, marked as such.

    With ``described``, a noised description's ``epsilon`` and ``delta``, columns are public, and
    the file says what that description cost.
    """
    lines = [
        "# Read from the records. For a private run, put ranges and categories here that are",
        f"# publicly known of such data, and then take out the line {MARK}. A column that you",
        "# delete is left out.",
        f"{MARK} = true",
        "",
        "[columns]",
    ]
    if described:
        lines = [
            "# Public ranges and categories, and columns that a noised description was made of. A",
            "# column that you delete is left out.",
            "",
            f"[{DESCRIBED}]  # what the description cost at each site, beside later runs",
            *(f"{key} = {described[key]!r}" for key in ("epsilon", "delta")),
            "",
            "[columns]",
        ]
    for column in columns:
        values: list[Any] = list(column.categories) or [column.low, column.high]
        values += [GAP] if column.gap else []
        name, listed = (_toml(one) for one in (column.name, values))
        lines.append(f"{name} = {listed}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return a text, or a list, as TOML has it: as JSON, but for a letter that it forbids."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
