"""Reading JSON that may be damaged: what the report cannot show is one line naming the place."""

from __future__ import annotations

import json
from typing import Any

from privet.wire.errors import PrivetError, one_line

DEEPEST = 32
_DEPTH = f"lists and objects are nested more than {DEEPEST} deep"


class ReportError(PrivetError, ValueError):
    """What keeps a report from being made: one line with the file or option and what is wrong."""


class NotJsonError(ReportError):
    """A text that does not follow JSON's grammar."""


def parse(text: str, where: str, expected: str) -> Any:
    """Return the value of a JSON text (raises ``ReportError``).

    Refused are also lists and objects more than ``DEEPEST`` deep, and texts that are not Unicode.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotJsonError(f"{where}: expected {expected} ({error.msg})") from None
    except RecursionError:
        raise ReportError(f"{where}: expected {expected} ({_DEPTH})") from None
    except ValueError as error:  # a number of thousands of digits
        raise ReportError(f"{where}: expected {expected} ({one_line(str(error))})") from None
    if "\\u" in text or text.count("[") + text.count("{") > DEEPEST:
        _check(value, where)
    return value


def check_floats(value: Any, where: str) -> None:
    """Refuse whole numbers that no float can hold."""
    for _, item in _items(value):
        if type(item) is int and not fits_float(item):
            digits = len(str(abs(item)))
            raise ReportError(
                f"{where}: expected numbers below 1.8e308, got one of {digits} digits"
            )


def fits_float(value: int) -> bool:
    """Return whether a whole number is in the range of floats."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def quoted(value: object) -> str:
    """Return a value as it is written, in one line of bounded length."""
    return one_line(repr(value))


def _check(value: Any, where: str) -> None:
    for depth, item in _items(value):
        if depth > DEEPEST:
            raise ReportError(f"{where}: {_DEPTH}")
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                raise ReportError(f"{where}: expected Unicode, got {quoted(item)}") from None


def _items(value: Any) -> list[tuple[int, Any]]:
    """Return everything in a value, itself and names included, with its depth."""
    found = [(0, value)]
    for depth, item in found:  # `found` grows
        if isinstance(item, dict):
            found += [(depth + 1, name) for name in item]
            found += [(depth + 1, inner) for inner in item.values()]
        elif isinstance(item, list):
            found += [(depth + 1, inner) for inner in item]
    return found
