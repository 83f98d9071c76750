"""``privet run --help KEY``: what a run-config key means, what it may be, and who uses it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from privet.wire.key import Key, shown

COMMANDS = ("run", "tune", "account")
"""Commands that take run-config keys as arguments."""


def asked(arguments: Sequence[str]) -> list[str]:
    """Return the keys whose help a command line asks for: the words after its ``--help``."""
    if not arguments or arguments[0] not in COMMANDS or "--help" not in arguments:
        return []
    words = arguments[arguments.index("--help") + 1 :]
    return [word.partition("=")[0] for word in words if not word.startswith("-")]


def show(names: Sequence[str]) -> None:
    """Print what there is to say of each key.

    Raises
    ------
    ConfigError
        If there is no such key; the line names the nearest.
    """
    from privet.server_apps.config import table, unknown
    from privet.wire import ConfigError

    for name in names:
        entry = table().get(name)
        if entry is None:
            raise ConfigError(unknown(name))
        print(name)
        said: dict[str, list[str]] = {}
        for owner, key in entry.owners.items():
            said.setdefault(described(key), []).append(owner)
        for text, owners in said.items():
            users = "" if "" in owners else f" ({', '.join(sorted(owners))})"
            print(f"  {text}{users}")


def described(key: Key) -> str:
    """Return a key in one line: meaning, values, default, where it is used."""
    default = "empty" if key.default == "" else shown(key.default)
    parts = [key.doc, values(key), f"default {default}"]
    return "; ".join(part for part in [*parts, *uses(key)] if part)


def uses(key: Key) -> list[str]:
    """Return beside which values of other keys a key is used."""
    return [
        f"used with {other}" + ("" if used is None else f" = {' or '.join(map(shown, used))}")
        for other, used in key.needs.items()
    ]


def values(key: Key) -> str:
    """Return the choices or the range of a key."""
    if key.choices:
        return ", ".join(key.choices)
    if isinstance(key.default, bool):
        return "true, false"
    if isinstance(key.default, str):
        return "text"
    bounds = [f"{'>' if key.open_low else '>='} {key.low:g}"] if key.low > -math.inf else []
    bounds += [f"<= {key.high:g}"] if key.high < math.inf else []
    return " ".join(["whole number" if type(key.default) is int else "number", *bounds])
