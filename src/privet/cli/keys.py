"""Run-config keys on the command line: ``privet keys``, ``privet run --help`` and completion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from privet.core.key import ConfigEntry, Key, Scalar, meant, shown

from .key_table import key_table

if TYPE_CHECKING:
    import click

COMMANDS = {
    "run": "algorithm=fed-plt dataset=digits num-agents=20 num-server-rounds=50",
    "data": "dataset=digits num-agents=20 partition=dirichlet",
    "describe": "NORTH.csv SOUTH.csv WEST.csv by=died --schema schema.toml",
    "survival": "STUDY.csv id-column=site time-column=days event-column=died group-column=arm",
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
FIRST = ("Common", "The run", "Privacy")
"""Topics of which `privet keys` lists the keys; of the others it says how many there are."""


class KeysCommand(TyperCommand):
    """A command that takes run-config keys: its help names algorithms, data sets, common keys."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, and the keys below it."""
        super().format_help(ctx, formatter)
        formatter.write("\n".join(_common_help(str(self.name))) + "\n")


def _common_help(command: str) -> Iterator[str]:
    from textwrap import wrap

    from privet.core import algorithms, analyses

    known = key_table()
    for heading, names in (
        ("Algorithms", list(algorithms())),
        ("Analyses of tables, as algorithm=NAME", list(analyses())),
        ("Data sets", list(known["dataset"].owners[""].choices)),
    ):
        yield f"{heading}:"
        yield from wrap(
            ", ".join(names),
            78,
            initial_indent="  ",
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
    yield "Common keys, of all that privet keys lists:"
    for name in COMMON:
        entry = known[name]
        key = entry.owners.get("") or next(iter(entry.owners.values()))
        yield from wrap(f"{name:18} {key.doc}", 78, initial_indent="  ", subsequent_indent=" " * 21)
    yield "Example:"
    yield f"  privet {command} {COMMANDS[command]}"


def completed(incomplete: str) -> list[str]:
    """Return the keys, or the values of a key, that a word on the command line may become.

    A key alone is returned with its values: as there are several, no shell puts a space after it.
    """
    name, equals, _ = incomplete.partition("=")
    if equals:
        return [one for one in _assigned(name) if one.startswith(incomplete)]
    found = [f"{key}=" for key in key_table() if key.startswith(name)]
    return [*found, *_assigned(found[0].removesuffix("="))] if len(found) == 1 else found


def _assigned(name: str) -> list[str]:
    """Return ``key=value`` for all choices that a key has, or for its default."""
    from privet.core import algorithms, analyses

    entry = key_table().get(name)
    if entry is None:
        return []
    values = sorted({one for key in entry.owners.values() for one in key.choices})
    if name == "algorithm":
        values = sorted({**algorithms(), **analyses()})
    elif isinstance(entry.default, bool):
        values = ["false", "true"]
    default = [] if entry.default == "" else [entry.default_text]
    return [f"{name}={value}" for value in values or default]


def completed_value(words: str, cursor: int) -> list[str] | None:
    """Return the values that bash may complete, None where the word at the cursor is no value.

    For bash ``key=value`` is three words, of which it completes the last.

    Parameters
    ----------
    words, cursor
        Bash's ``COMP_WORDS``, one a line, and ``COMP_CWORD``.
    """
    parts = words.split("\n")[: cursor + 1]
    *before, last = [*parts, ""] if parts[-1] == "=" else parts
    if len(before) < 3 or before[-1] != "=" or before[1] not in COMMANDS:
        return None
    found = completed(f"{before[-2]}={last}")
    return [one.partition("=")[2] for one in found]


def completed_preset(incomplete: str) -> list[str]:
    """Return the presets that a word may become."""
    from .presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def completed_algorithm(incomplete: str) -> list[str]:
    """Return the algorithms that a word may become, and the keys."""
    from privet.core import algorithms

    return [one for one in algorithms() if one.startswith(incomplete)] + completed(incomplete)


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
CohortOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The cohort to read of an operator's TOML file of cohorts, or the table or view of a "
        "database's URL.",
    ),
]
PresetOption = Annotated[
    str,
    typer.Option(
        help="Preset to start from, e.g. mnist or dp-iadmm/mnist.", autocompletion=completed_preset
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def by_topic() -> dict[str, list[ConfigEntry]]:
    """Return all keys by topic: the common ones first, then each topic's others."""
    known = key_table()
    found = {"Common": [known[name] for name in COMMON]}
    for entry in known.values():
        if entry.name not in COMMON:
            found.setdefault(entry.topic, []).append(entry)
    return found


def completed_word(incomplete: str) -> list[str]:
    """Return the keys and algorithms that a word may become."""
    from privet.core import algorithms, analyses

    names = (*key_table(), *algorithms(), *analyses())
    return [name for name in names if name.startswith(incomplete)]


def keys(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="A key, an algorithm or analysis, or a word of a name or meaning.",
            autocompletion=completed_word,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all", help="List the keys of every topic, without a word.")
    ] = False,
    json_lines: JsonLinesOption = False,
) -> None:
    """List the keys of most runs by topic, the common ones first; explain one; search all."""
    from privet.core import ConfigError, algorithms, analyses

    known = key_table()
    methods = {**algorithms(), **analyses()}
    for word in words or [""]:
        if word in known and not json_lines:
            show([word])
            continue
        if word in methods:
            matches = [
                ConfigEntry(name, {word: entry.owners[word]})
                for name, entry in known.items()
                if word in entry.owners
            ]
        elif word in known:
            matches = [known[word]]
        else:
            matches = [entry for entry in known.values() if word in _searched(entry)]
        if not matches:
            from privet.server_apps.config import unknown

            raise ConfigError(unknown(word, methods))
        topics = {"": matches} if word else by_topic()
        for topic, entries in topics.items():
            if json_lines:
                for entry in entries:
                    print(json.dumps(_as_json(entry, topic)))
                continue
            if topic and topic not in FIRST and not all_topics:
                print(f"{topic}: {len(entries)} keys")
                continue
            if topic:
                print(f"{topic}:")
            for entry in entries:
                default = "-" if entry.default == "" else entry.default_text
                print(f"{'  ' * bool(topic)}{entry.name:20} {default:>14}  {_meaning(entry)}")
        if not (word or all_topics or json_lines):
            print("privet keys --all lists these too, privet keys WORD searches all")


def _meaning(entry: ConfigEntry) -> str:
    return next(iter(entry.owners.values())).doc


def _searched(entry: ConfigEntry) -> str:
    return f"{entry.name} {_meaning(entry)}".lower()


def _as_json(entry: ConfigEntry, topic: str) -> dict[str, Any]:
    """Return a key as an object: its owners' descriptions by algorithm, "" being every run."""
    from privet.server_apps.run_folder import to_json

    used = {owner: described(key) for owner, key in entry.owners.items()}
    described_as = {"key": entry.name, "topic": topic or entry.topic, "default": entry.default}
    return dict(to_json({**described_as, "meaning": _meaning(entry), "of": used}))


def keys_to_explain(arguments: Sequence[str]) -> list[str]:
    """Return the keys that a command line requests help on: the words after ``--help``."""
    flag = next((word for word in arguments if word in ("-h", "--help")), "")
    if not flag or arguments[0] not in COMMANDS:
        return []
    words = arguments[arguments.index(flag) + 1 :]
    return [word.partition("=")[0] for word in words if not word.startswith("-")]


def as_key(option: str, arguments: Sequence[str]) -> str:
    """Return a hint for an unknown option that is the name of a key, else an empty string."""
    name = option.lstrip("-").replace("_", "-")
    name = next(iter(meant(name, key_table())), name)
    if not arguments or arguments[0] not in COMMANDS or name not in key_table():
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

    for name in names:
        entry = key_table().get(name)
        if entry is None:
            from privet.server_apps.config import unknown

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
    default = "empty" if key.default == "" else key.default_text
    parts = [key.doc, values(key), f"default {default}"]
    return "; ".join(part for part in [*parts, *uses(key)] if part)


def uses(key: Key) -> list[str]:
    """Return the values of other keys with which a key is used."""
    return [
        f"used with {other}"
        + ("" if used is None else f" = {' or '.join(_text(other, one) for one in used)}")
        for other, used in key.needs.items()
    ]


def _text(name: str, value: Scalar) -> str:
    """Return a value as configs have it, as its word where the key of that name has one."""
    entry = key_table().get(name)
    return next(iter(entry.owners.values())).text(value) if entry else shown(value)


def values(key: Key) -> str:
    """Return the choices or the range of a key."""
    if key.choices:
        return ", ".join(map(key.text, key.choices))
    if isinstance(key.default, bool):
        return "true, false"
    if isinstance(key.default, str):
        return "text"
    words = [f"{word} or" for word in key.words]
    bounds = [key.bounds] if key.bounds else []
    return " ".join([*words, "whole number" if type(key.default) is int else "number", *bounds])
