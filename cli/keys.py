"""Run-config keys on the command line: ``privet keys``, ``privet run --help`` and completion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from privet.core.key import Key, shown

if TYPE_CHECKING:
    import click

COMMANDS = {
    "run": "algorithm=fed-plt dataset=digits num-agents=20 num-server-rounds=50",
    "data": "dataset=digits num-agents=20 partition=dirichlet",
    "tune": "fed-plt dataset=digits num-agents=20",
    "account": "target-epsilon=4 local-solver=noisy-gd clip=1 row-norm=1 num-server-rounds=10",
}
"""Commands that take run-config keys as arguments, with an example of these."""
COMMON = (
    "algorithm",
    "dataset",
    "data-path",
    "num-agents",
    "partition",
    "num-server-rounds",
    "local-epochs",
    "step-size",
    "target-epsilon",
    "resume",
)
"""The keys that most runs give, in the order of the help."""


class KeysCommand(TyperCommand):
    """A command that takes run-config keys: its help names algorithms, data sets, common keys."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, and the keys below it."""
        super().format_help(ctx, formatter)
        formatter.write("\n".join(_common_help(str(self.name))) + "\n")


def _common_help(command: str) -> Iterator[str]:
    from textwrap import wrap

    from privet.core import algorithms
    from privet.server_apps.config import table

    known = table()
    for heading, names in (
        ("Algorithms", list(algorithms())),
        ("Data sets", list(known["dataset"].owners[""].choices)),
    ):
        yield f"{heading}:"
        yield from wrap(", ".join(names), 78, initial_indent="  ", subsequent_indent="  ")
    yield "Common keys, of all that privet keys lists:"
    for name in COMMON:
        entry = known[name]
        key = entry.owners.get("") or next(iter(entry.owners.values()))
        yield from wrap(f"{name:18} {key.doc}", 78, initial_indent="  ", subsequent_indent=" " * 21)
    yield "Example:"
    yield f"  privet {command} {COMMANDS[command]}"


def completed(incomplete: str) -> list[str]:
    """Return the keys, or the values of a key, that a word on the command line may become."""
    from privet.core import algorithms
    from privet.server_apps.config import table

    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{key}=" for key in table() if key.startswith(name)]
    entry = table().get(name)
    choices = {one for key in entry.owners.values() for one in key.choices} if entry else set()
    if name == "algorithm":
        choices = set(algorithms())
    return [whole for one in sorted(choices) if (whole := f"{name}={one}").startswith(incomplete)]


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Run-config keys, e.g. rho=2.0; privet keys lists them.",
        autocompletion=completed,
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file of run-config keys.")
]
PresetOption = Annotated[
    str, typer.Option(help="Preset to start from, e.g. mnist or dp-iadmm/mnist.")
]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def keys(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...", help="A key, an algorithm, or a word of a name or meaning."
        ),
    ] = None,
) -> None:
    """List the run-config keys with defaults and meanings; explain a key; search for a word."""
    from privet.core import ConfigError, algorithms
    from privet.server_apps.config import keys_of_algorithm, table, unknown

    for word in words or [""]:
        if word in table():
            show([word])
            continue
        if word in algorithms():
            matches = [(key.default, key) for key in keys_of_algorithm(word).values()]
        else:
            entries = [(one.default, next(iter(one.owners.values()))) for one in table().values()]
            matches = [(d, key) for d, key in entries if word in f"{key.name} {key.doc}".lower()]
        if not matches:
            raise ConfigError(unknown(word, algorithms()))
        for default, key in matches:
            print(f"{key.name:20} {'-' if default == '' else shown(default):>14}  {key.doc}")


def keys_to_explain(arguments: Sequence[str]) -> list[str]:
    """Return the keys that a command line requests help on: the words after ``--help``."""
    flag = next((word for word in arguments if word in ("-h", "--help")), "")
    if not flag or arguments[0] not in COMMANDS:
        return []
    words = arguments[arguments.index(flag) + 1 :]
    return [word.partition("=")[0] for word in words if not word.startswith("-")]


def as_key(option: str, arguments: Sequence[str]) -> str:
    """Return a hint for an unknown option that is the name of a key, else an empty string."""
    from privet.server_apps.config import table

    name = option.lstrip("-").replace("_", "-")
    if not arguments or arguments[0] not in COMMANDS or name not in table():
        return ""
    rest = iter(arguments)
    given = next((word for word in rest if word.partition("=")[0] == option), option)
    value = given.partition("=")[2] or next(rest, "VALUE")
    return f"{option} is a run-config key: write {name}={value}"


def show(names: Sequence[str]) -> None:
    """Print the documentation of each key.

    Raises
    ------
    ConfigError
        If there is no such key; the line names the nearest.
    """
    from privet.core import ConfigError, algorithms
    from privet.server_apps.config import table, unknown

    for name in names:
        entry = table().get(name)
        if entry is None:
            raise ConfigError(unknown(name))
        print(name)
        descriptions: dict[str, list[str]] = {}
        for owner, key in entry.owners.items():
            descriptions.setdefault(described(key), []).append(owner)
        for text, owners in descriptions.items():
            users = "" if "" in owners else f" ({', '.join(sorted(owners))})"
            print(f"  {text}{users}")
        if name == "algorithm":
            print(f"  {', '.join(algorithms())}")


def described(key: Key) -> str:
    """Return a key in one line: meaning, values, default, where it is used."""
    default = "empty" if key.default == "" else shown(key.default)
    parts = [key.doc, values(key), f"default {default}"]
    return "; ".join(part for part in [*parts, *uses(key)] if part)


def uses(key: Key) -> list[str]:
    """Return the values of other keys with which a key is used."""
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
