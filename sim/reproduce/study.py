"""What a reproduction is: cases that run on their own, and what follows from their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Case: TypeAlias = Mapping[str, Any]
"""JSON values that a result depends on, the seed included; ``"case"`` names it for people."""
Result: TypeAlias = Mapping[str, Any]
"""JSON values that a case gave."""


MNIST = ("mnist_20k.npz",)
ADULT = ("adult-train.csv.gz", "adult-test.csv.gz")


@dataclass(frozen=True, slots=True)
class Options:
    """How much is run, and with which data.

    Attributes
    ----------
    full : bool
        The papers' own horizons and repetitions in place of shorter ones and one seed.
    data_path : Path or None
        Folder with ``mnist_20k.npz`` and the Adult files.
    """

    full: bool = False
    data_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a table, or one claim about a figure, beside what was measured.

    Attributes
    ----------
    what : str
        The entry, or the claim in words.
    paper, ours : float or str
        The printed figure (a claim: what it says) and the measured one.
    holds : bool or None
        Whether ours is within the tolerance; None where there is nothing to hold it against.
    tolerance : str
        In words, e.g. "20 %".
    reason : str
        Why it does not hold, where that is known.
    """

    what: str
    paper: float | str
    ours: float | str
    holds: bool | None
    tolerance: str = ""
    reason: str = ""

    @classmethod
    def number(
        cls, what: str, paper: float, ours: float, *, within: float, reason: str = ""
    ) -> Entry:
        """Return the entry of a figure that should agree up to a share ``within`` of it."""
        holds = math.isfinite(ours) and abs(ours - paper) <= within * abs(paper) + 1e-12
        return cls(what, paper, ours, holds, f"{100 * within:g} %", "" if holds else reason)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.holds is None:
            return "not compared"
        if self.holds:
            return "holds"
        return f"does not hold: {self.reason}" if self.reason else "does not hold, reason unknown"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot; ``low`` and ``high`` bound its shade."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: curves by label, or bars where every curve has one point."""

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    x_log: bool = False
    y_log: bool = False
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study found: the rows of its CSV file, its verdicts, its plots, and remarks."""

    rows: Sequence[Mapping[str, Any]]
    entries: Sequence[Entry]
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class Study:
    """A table or figure.

    Attributes
    ----------
    name : str
        ``paper/table`` as on the command line, e.g. ``fed-plt/table-2``.
    title : str
        What it shows.
    cases : callable
        ``options -> cases``. Cases of several studies that are equal are run once, so they carry
        nothing that does not matter.
    run : callable
        ``case -> result``; a function of a module, so that other processes can run it.
    conclude : callable
        ``(options, cases, results) -> Outcome``.
    files : tuple of str
        What it reads in ``options.data_path``.
    """

    name: str
    title: str
    cases: Callable[[Options], Sequence[Case]]
    run: Callable[[Case], Result]
    conclude: Callable[[Options, Sequence[Case], Sequence[Result]], Outcome]
    files: tuple[str, ...] = ()
