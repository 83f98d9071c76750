"""Errors that a user reads: one line each, naming the key, file or agent."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

LONGEST_LINE = 300
_NEIGHBOURS = 1000
INSTEAD_OF_FLOWERS = (
    "take it off, and use an algorithm's own clip with target-epsilon (or its noise), and "
    "secure-sum where the coordinator is to see sums alone"
)
"""Replacements of Flower's parts for differential privacy and secure aggregation."""
INSTEAD_OF_OTHER_APPS = (
    "this ClientApp is not Privet's: use client_app(...), LoopParticipant, or Participant with its "
    "query handler (docs/how-to/flower-project.md)"
)
"""Replacement of a ClientApp of another strategy, such as FedAvg's."""


def one_line(text: str) -> str:
    """Return a text from elsewhere as one printable line of bounded length."""
    line = " ".join(text[: 4 * LONGEST_LINE].split())[:LONGEST_LINE]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def said_of(error: BaseException) -> str:
    """Return a failure from elsewhere as one line."""
    return one_line(f"{type(error).__name__}: {error}")


class PrivetError(Exception):
    """A failure whose text is one line, meant for the user, and names no data record.

    ``told`` is what a private node sends in its place (`privet.kernel.told.Told`); not needed where
    the text is one of these.
    """

    def __init__(self, text: str = "", told: str = "") -> None:
        super().__init__(text)
        self.told = told


class ConfigError(PrivetError, ValueError):
    """A configuration key is unknown, missing, or has a value that cannot be used."""


class WireError(PrivetError, ValueError):
    """Bytes or records that do not follow the message contract."""


class UploadError(PrivetError, ValueError):
    """An agent's upload that the server must not fold; the text is the reason."""


class NotFiniteError(UploadError, WireError):
    """Numbers of a message that are not finite, or too large to compute with or to be summed."""


class ImpossibleError(UploadError):
    """An upload that nobody's records can have given; the text says why."""


class ModelError(RuntimeError):
    """A module or loss of the user's own fails; the text says which in one line.

    ``told`` is as that of `PrivetError`.
    """

    def __init__(self, text: str, told: str = "") -> None:
        super().__init__(text)
        self.told = told


class RunError(PrivetError, RuntimeError):
    """A run that cannot go on; the text is the cause."""


class HopelessError(RunError):
    """A run that cannot go on until a person changes something; the text is the cause."""


class FruitlessError(RunError):
    """A run whose model is of no use, as no upload was folded or they diverge; the text says so."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is nearest to an unknown one, empty where none is near."""
    by_letters = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(by_letters), 1)
    return by_letters[near[0]] if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a line on an unknown name: the nearest known one, or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def near_path(path: Path) -> str:
    """Return the end of a line on a path that is not there: the nearest in its folder, or nothing.

    It looks at no more than 1,000 names.
    """
    try:
        if path.exists():
            return ""
        names = [one.name for one in islice(path.parent.iterdir(), _NEIGHBOURS)]
        names = [name for name in names if name != path.name]  # a link to nothing
    except OSError:
        return ""
    near = nearest(path.name, names)
    return f"; did you mean {str(path.with_name(near))!r}?" if near else ""


def listed(reasons: Iterable[str], most: int = 3) -> str:
    """Return the first reasons of many as one line, and how many more there are.

    Agents that say the same of themselves are named together, and so are nodes.

    >>> listed(["agent 0: no data", "agent 1: gone", "agent 2: no data"])
    'agents 0, 2: no data; agent 1: gone'
    """
    names_by_reason: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        whose, _, why = reason.partition(": ")
        kind, _, name = whose.partition(" ")
        if kind in ("agent", "node") and why:
            names_by_reason.setdefault((kind, why), []).append(name)
        else:
            names_by_reason["", reason] = []
    texts = [_of_all(kind, names, most) + why for (kind, why), names in names_by_reason.items()]
    more = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def _of_all(kind: str, names: list[str], most: int) -> str:
    if len(names) < 2:
        return "".join(f"{kind} {name}: " for name in names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{kind}s {', '.join(names[:most])}{more}: "
