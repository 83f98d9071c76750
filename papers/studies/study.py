"""What a study is: cases to run, the settings they stand for, and rows with verdicts."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from .statistics import Estimate, difference

Result: TypeAlias = Mapping[str, Any]
"""JSON values that a case gave."""
Results: TypeAlias = Mapping[str, list[Result]]
"""The results of a study by label, one for each seed, in the order of the seeds."""

MNIST = ("mnist_20k.npz",)
ADULT = ("adult-train.csv.gz", "adult-test.csv.gz")
FEMNIST = ("femnist_114_writers.npz",)


class Verdict(StrEnum):
    """What became of a printed entry or claim.

    Reproduced: ours agrees. Contradicted: everything that the entry depends on is printed, was run
    as printed, and the interval excludes it. Not determined: neither; the row says which setting is
    not printed or was changed, and what happened under each reading tried. By construction: it
    follows from the definitions in a line. Vacuous: an assumption that nothing meets.
    """

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    NOT_DETERMINED = "not determined"
    NOT_TESTABLE = "not testable"
    CONSTRUCTION = "by construction"
    VACUOUS = "vacuous"
    BEYOND = "not in the paper"


@dataclass(frozen=True, slots=True)
class Options:
    """How much is run, and with which data.

    Attributes
    ----------
    full : bool
        The papers' own horizons and repetitions in place of shorter ones and five seeds.
    data_path : Path or None
        Folder with ``mnist_20k.npz``, ``femnist_114_writers.npz`` and the Adult files.
    """

    full: bool = False
    data_path: Path | None = None

    def seeds(self, printed: int) -> range:
        """Return five seeds, or in a full run as many as the paper has, if that is more."""
        return range(max(5, printed) if self.full else 5)


@dataclass(frozen=True, slots=True)
class Case:
    """One run, as data: equal cases of several studies are run once.

    Attributes
    ----------
    label : str
        What the study calls it; not part of what is run.
    seed : int
        Of participation, mini-batches and noise; the draw of the data is in ``workload``.
    workload : mapping
        ``"name"`` of a builder in `workloads`, and its arguments.
    algorithm : str
        A registered algorithm, Flower's ``fed-avg`` or ``fed-prox``, or a numerical check.
    settings : mapping
        Arguments of the Strategy.
    rounds : int
        At most; ``measure`` may end a run earlier.
    measure : str
        Of `runner.MEASURES`.
    options : mapping
        Of the runner: ``participation``, ``tolerance``, ``every``, ``tail``, ``search``.
    """

    label: str
    seed: int
    workload: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 0
    measure: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name under which the result is kept: a hash of everything but the label."""
        content = {name: value for name, value in asdict(self).items() if name != "label"}
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of the table a study opens with.

    Attributes
    ----------
    what, printed, ours, why : str
        ``printed`` is "not printed" where the paper is silent; ``why`` says why ours differs, and
        that a number was fitted where it was.
    """

    what: str
    printed: str
    ours: str
    why: str = ""


@cache
def said_of(paper: str) -> Mapping[str, Any]:
    """Return what the data file of a paper holds."""
    return tomllib.loads(files(__package__).joinpath(f"{paper}.toml").read_text())


def settings_of(paper: str, *names: str, **numbers: Any) -> tuple[Setting, ...]:
    """Return settings of a paper's data file by name, with the ``numbers`` that they speak of."""
    own = said_of(paper)["settings"]
    return tuple(Setting(*(text.format(**numbers) for text in own[name])) for name in names)


def tuned(paper: str, comparison: str, algorithm: str) -> dict[str, Any]:
    """Return the settings that an earlier search found; a full run searches again."""
    return dict(said_of(paper)["tuned"][comparison][algorithm])


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a table, or one claim, beside what was measured.

    Attributes
    ----------
    what : str
        The entry, or the claim in words.
    printed : float or str
        The printed number; of a claim what it says.
    ours : Estimate or str
        With its 95 % interval.
    verdict : Verdict
    why : str
        What the verdict rests on: the open setting, the readings tried, the counterexample.
    """

    what: str
    printed: float | str
    ours: Estimate | str
    verdict: Verdict
    why: str = ""


class Rows(list[Row]):
    """The rows of a study, judged as they are added.

    Parameters
    ----------
    unprinted : str
        Settings that all entries depend on and the paper does not print or ours changes. Where
        there are any, what is off is not determined; where there are none it is contradicted if
        the 95 % interval, from the spread over the seeds, excludes what is printed.
    """

    def __init__(self, unprinted: str = "") -> None:
        super().__init__()
        self.unprinted = unprinted

    def number(
        self,
        what: str,
        printed: float,
        ours: Estimate,
        *,
        within: float = 0.2,
        why: str = "",
        fitted: str = "",
    ) -> None:
        """Add a number, reproduced where ours is within a share of it.

        ``fitted`` is the setting of ours that was chosen on entries like this one.
        """
        off, verdict = abs(ours.mean - printed), Verdict.CONTRADICTED
        if ours.complete and off <= within * abs(printed) + 1e-12:
            verdict, why = Verdict.REPRODUCED, why or f"within {100 * within:g} %"
            why = f"{why}; fitted: {fitted}" if fitted else why
        elif self.unprinted or off <= ours.half_width:
            verdict, why = Verdict.NOT_DETERMINED, why or self.unprinted
        self.append(Row(what, printed, ours, verdict, why))

    def claim(
        self, what: str, gap: Estimate, ours: str = "", *, printed: str = "yes", why: str = ""
    ) -> None:
        """Add a claim that says that a difference is positive, reproduced where its interval is."""
        self.readings(what, {"": gap}, ours or f"difference {gap}", printed=printed, why=why)

    def readings(
        self,
        what: str,
        gaps: Mapping[str, Estimate],
        ours: str,
        *,
        printed: str = "yes",
        why: str = "",
    ) -> None:
        """Add a claim that says that a difference is positive, under each reading of a setting.

        It is reproduced, or contradicted, where it is so under all of them; otherwise the row says
        what was found under which.
        """
        verdict = Verdict.NOT_DETERMINED
        if all(gap.low > 0 for gap in gaps.values()):
            verdict = Verdict.REPRODUCED
        elif all(gap.high < 0 for gap in gaps.values()) and not self.unprinted:
            verdict = Verdict.CONTRADICTED
        else:
            found = {name: _found(gap) for name, gap in gaps.items()}
            said = set(found.values())
            parts = [f"{name}: {one}" for name, one in found.items()] if len(said) > 1 else [*said]
            why = "; ".join(part for part in (*parts, why or self.unprinted) if part)
        self.append(Row(what, printed, ours, verdict, why))

    def falling(self, what: str, values: Sequence[Sequence[float | None]]) -> None:
        """Add the claim that values, by seed, fall from each place to the next."""
        steps = [difference(above, below) for above, below in pairwise(values)]
        said = " > ".join(str(Estimate.of(own)) for own in values)
        self.claim(what, min(steps, key=lambda step: step.low), said)

    def beyond(self) -> None:
        """Say of the last row that it is not in the paper, and what its verdict would be."""
        why = "; ".join(part for part in (self[-1].verdict, self[-1].why) if part)
        self[-1] = replace(self[-1], verdict=Verdict.BEYOND, why=why)


def _found(gap: Estimate) -> str:
    """Return in words what became of a difference that a claim says is positive."""
    if math.isnan(gap.mean):
        return "not all arrive"
    if gap.low > 0:
        return "as printed"
    return "the opposite was measured" if gap.high < 0 else "alike within the spread"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot; ``low`` and ``high`` bound its band."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @classmethod
    def of(cls, estimates: Mapping[float, Estimate]) -> Curve:
        """Return means with their intervals, by x."""
        own = estimates.values()
        bounds = ([getattr(one, name) for one in own] for name in ("mean", "low", "high"))
        return cls(list(estimates), *bounds)

    @classmethod
    def course(cls, results: Sequence[Result], what: str = "course") -> Curve:
        """Return the mean of courses with its band, in rounds as far apart as the first is.

        The last rounds are looked at one by one, for their mean.
        """
        rounds = results[0].get("rounds") or range(1, len(results[0][what]) + 1)
        columns = zip(rounds, *(result[what] for result in results), strict=False)
        return cls.of(
            {number: Estimate.of(own) for number, *own in columns if number % rounds[0] == 0}
        )


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot.

    Attributes
    ----------
    curves : mapping of str to Curve
        Ours, by label; bars where ``bars`` and every curve is a single point.
    printed : mapping of str to Curve
        The paper's values under the same labels, or under "printed" for all.
    """

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    printed: Mapping[str, Curve] = field(default_factory=dict)
    x_log: bool = False
    y_log: bool = False
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study found."""

    rows: Sequence[Row]
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Study:
    """A table, a figure, or a paper's theorems.

    Attributes
    ----------
    name : str
        ``paper/table`` as on the command line, e.g. ``fed-plt/table-2``.
    cases : callable
        ``options -> cases``.
    conclude : callable
        ``results by label -> Outcome``.
    settings : tuple of Setting
        The table that its page opens with.
    files : tuple of str
        What it reads in ``options.data_path``.
    full_only : bool
        Whether ``all`` and the paper's name leave it out without ``--full``.
    """

    name: str
    title: str
    cases: Callable[[Options], Sequence[Case]]
    conclude: Callable[[Results], Outcome]
    settings: tuple[Setting, ...] = ()
    files: tuple[str, ...] = ()
    full_only: bool = False
