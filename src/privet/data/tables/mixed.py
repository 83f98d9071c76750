"""Files of one folder that write the same columns in different ways, as one table.

What a column is, and which sign its decimals have, is decided by each file alone, as it would be
where that file is read alone; then the files' columns become of one kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .values import (
    EXACT,
    UnfitError,
    as_booleans,
    as_texts,
    cells,
    has_decimal_commas,
    has_unclear_points,
    is_boolean,
    is_plain,
    with_point,
    without_bounds,
)


def of_one_kind(
    tables: Mapping[str, Any], public: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tables, by file, with columns of one kind, and faults of files by column.

    Booleans of Parquet and texts true, False, 1 are booleans; numbers of any type, with decimal
    points or commas, numbers; anything else beside texts is texts. A column of kinds that are
    none together is without values, and its fault names two of the files. Columns that are
    ``public``, as a schema states what they hold, become texts where files have other types, and
    each cell is read by itself.
    """
    import pyarrow as pa

    commas = {
        file: any(
            has_decimal_commas(cells(table[name]))
            for name in table.column_names
            if name not in public
        )
        for file, table in tables.items()
    }
    faults: dict[str, str] = {}
    columns: dict[str, dict[str, Any]] = {file: {} for file in tables}
    for name in next(iter(tables.values())).column_names:
        parts = {file: cells(table[name]) for file, table in tables.items()}
        for file, values in parts.items() if name not in public else ():
            try:
                parts[file] = _pointed(values, commas[file])
            except UnfitError as error:
                faults.setdefault(name, f"{file}: {error}")
        read = _of_one_kind(name, parts, faults, public=name in public)
        for file, values in read.items():
            columns[file][name] = values
    return {file: pa.table(columns[file]) for file in tables}, faults


def _pointed(values: Any, commas: bool) -> Any:
    """Return a column with decimal commas as numbers (raises ``UnfitError`` where it is unclear
    what its signs are)."""
    if has_decimal_commas(values) or (commas and has_unclear_points(values)):
        return with_point(values)
    numbers = without_bounds(values)
    if numbers is not values and has_decimal_commas(numbers):
        import pyarrow.compute as pc

        with_point(numbers)  # refuses commas that may separate thousands
        return pc.replace_substring(values, ",", ".")
    return values


def _of_one_kind(
    name: str, parts: Mapping[str, Any], faults: dict[str, str], *, public: bool
) -> dict[str, Any]:
    import pyarrow as pa

    known = {file: values for file, values in parts.items() if values.null_count < len(values)}
    kinds = {values.type for values in known.values()}
    if len(kinds) < 2:
        kind = next(iter(kinds), None)
        return {
            file: values if kind is None or file in known else values.cast(kind)
            for file, values in parts.items()
        }
    if (
        not public
        and any(map(is_boolean, known.values()))
        and all(map(_may_be_boolean, known.values()))
    ):
        return {file: as_booleans(values, known=True) for file, values in parts.items()}
    numbers = {file: None if public else _as_numbers(values) for file, values in parts.items()}
    if all(one is not None for one in numbers.values()):
        return numbers
    for file, values in known.items():
        if not is_plain(values):
            other = next(one for one in known if known[one].type != values.type)
            faults[name] = (
                f"of type {values.type} in {file} and of type {known[other].type} in {other}: "
                "write it alike in all files"
            )
            return {each: pa.nulls(len(one)) for each, one in parts.items()}
    return {file: as_texts(values) for file, values in parts.items()}


def _may_be_boolean(values: Any) -> bool:
    """Return whether a column is one of booleans, or has no numbers but 0 and 1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = as_texts(values) if is_plain(values) else pa.array(["no"])
    return is_boolean(values) or bool(
        pc.all(pc.is_in(texts.drop_null(), pa.array(["0", "1"]))).as_py()
    )


def _as_numbers(values: Any) -> Any | None:
    """Return a column as float64, None where it is none of numbers that stay distinct."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (numeric or pa.types.is_string(kind) or pa.types.is_null(kind)):
        return None
    try:
        numbers = values.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return None
    large = pc.any(pc.greater(pc.abs(numbers), EXACT)).as_py()
    return None if large and not pa.types.is_floating(kind) else numbers
