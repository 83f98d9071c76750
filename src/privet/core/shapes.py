"""JSON that was read from a file, checked for the shape that its readers take.

Files of a run are cut by full disks, edited by hand and copied in part. One check when they are
read gives the line that names the entry, so that what uses them needs no guard of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LARGEST = 1 << 63
"""Above every whole number of 64 bits."""
_NAMES: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    None: "null",
}


@dataclass(frozen=True, slots=True)
class Entries:
    """The shape of an object: of entries by name, of all others, and which must be there."""

    known: Mapping[str, Any] = field(default_factory=dict)
    others: Any = object
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Items:
    """The shape of a list: that of each of its items."""

    each: Any


REAL = (float, None, "inf", "-inf")
"""A number as run folders have them: NaN is null, and an infinity a text."""


def parsed(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises
    ------
    ValueError
        If it is not JSON, is nested too deeply, or has half of a pair of surrogates, which no page
        can be written with.
    """
    try:
        value = json.loads(text)
        if (b"\\ud" if isinstance(text, bytes) else "\\ud") in text.lower():  # type: ignore[operator]
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text has half of a pair of surrogates") from None
    return value


def require(value: Any, shape: Any, where: str = "") -> None:
    """Refuse a value that is not of a shape.

    A shape is a type (``object`` for any value), None, a text that is meant literally, `Entries`,
    `Items`, or a tuple of types, None and texts of which one must fit. A whole number is a number
    too, true and false are none, and one of more than 64 bits, which need not have a float near it,
    is refused.

    Raises
    ------
    ValueError
        One line with the entry and what was expected there.
    """
    if isinstance(shape, Entries):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}expected a JSON object")
        for name in shape.required:
            if name not in value:
                raise ValueError(f"{where}expected an entry {name!r}")
        for name, one in value.items():
            require(one, shape.known.get(name, shape.others), _below(where, name))
    elif isinstance(shape, Items):
        if not isinstance(value, list):
            raise ValueError(f"{where}expected a list")
        for number, one in enumerate(value):
            require(one, shape.each, _below(where, number))
    else:
        options = shape if isinstance(shape, tuple) else (shape,)
        if not any(_fits(value, one) for one in options):
            named = [_NAMES.get(one, repr(one)) for one in options]
            raise ValueError(f"{where}expected {' or '.join(named)}")


def _fits(value: Any, shape: Any) -> bool:
    if shape in (int, float) and isinstance(value, int):
        return not isinstance(value, bool) and -_LARGEST <= value < _LARGEST
    if isinstance(shape, type):
        return isinstance(value, shape)
    return bool(value == shape and type(value) is type(shape))


def _below(where: str, name: object) -> str:
    return f"{where.removesuffix(': ')}.{name}: ".removeprefix(".")
