"""``key=value`` pairs as people write them, and the key ``more``, which holds several."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date, time
from typing import Any

from .errors import ConfigError, one_line

MORE = "more"
"""Flower refuses a run-config key that an app's pyproject.toml does not list. An app lists a few
and this one, whose text holds any others."""

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"']\S*)"""
_PAIR = re.compile(rf"\s*([A-Za-z][\w-]*\s*=\s*{_VALUE})(?=\s|$)")


def parse_assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """Return ``key=value`` pairs with values in TOML types (bare words are texts).

    Raises
    ------
    ConfigError
        If a pair has no equals sign, or a key is given twice.
    """
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"{pair!r}: expected key=value")
        if key.strip() in parsed:
            raise ConfigError(f"{key.strip()}: given twice")
        parsed[key.strip()] = _value(key.strip(), text.strip())
    return parsed


def _value(key: str, text: str) -> Any:
    """Return a value as TOML has it (raises ``ConfigError``)."""
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = _number_or_text(text)
    except (ValueError, RecursionError):  # more digits than Python reads, or levels
        raise ConfigError(f"{key}: its value is too long to be read") from None
    if isinstance(value, float) and value == 0 and re.match(r"[-+.0_]*[1-9]", text):
        raise ConfigError(f"{key} = {text}: nearer 0 than a number can be held: write 0, or more")
    return text if isinstance(value, date | time) else value


def _number_or_text(text: str) -> float | str:
    """Return a number that TOML does not accept as one, such as .5, and other text unchanged."""
    try:
        return float(text) if text[:1] in "+-.0123456789" else text
    except ValueError:
        return text


def comma_list(names: Iterable[str]) -> str:
    r"""Return the value of a key of names, such as ``exclude``; ``\,`` is a comma of a name."""
    unique = dict.fromkeys(names)
    return ",".join(re.sub(r"\\(?=[\\, ]|$)|,", r"\\\g<0>", name) for name in unique)


def with_more(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config in which the pairs of its key ``more`` are keys like the others.

    Whoever reads a run config reads it through this: the server, and a node that takes from it
    which data it is dealt.

    >>> with_more({"rho": 2.0, "more": "clip=1 tags='a b'"})
    {'rho': 2.0, 'clip': 1, 'tags': 'a b'}

    Raises
    ------
    ConfigError
        If ``more`` is not a text of ``key=value`` pairs with white space between them, where a
        value with spaces is in quotes; or has a key that is given beside it too.
    """
    if MORE not in raw:
        return dict(raw)
    given = {key: value for key, value in raw.items() if key != MORE}
    pairs, text = [], raw[MORE]
    if not isinstance(text, str):
        raise ConfigError(f"{MORE} = {text!r}: expected a text of key=value pairs")
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _PAIR.match(text, at)
        if found is None:
            raise ConfigError(
                f"{MORE}: {one_line(text[at:].strip()[:60])!r} is not key=value; a value with "
                "spaces is in quotes"
            )
        pairs.append(found[1])
        at = found.end()
    more = parse_assignments(pairs)
    if MORE in more:
        raise ConfigError(f"{MORE}: it cannot hold itself")
    if twice := [key for key in more if key in given]:
        raise ConfigError(
            f"{twice[0]}: in {MORE} and a key of its own in the app's pyproject.toml; give it "
            "beside more alone"
        )
    return given | more
