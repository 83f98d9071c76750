"""What a study is: cases to run, the settings they stand for, and rows with verdicts."""

from __future__ import annotations

import json
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

from .rule import TOLERANCE, Gap, Side, under_each
from .statistics import Estimate, difference

Result: TypeAlias = Mapping[str, Any]
"""JSON values that a case gave."""
Results: TypeAlias = Mapping[str, list[Result]]
"""The results of a study by label, one for each seed, in the order of the seeds."""

MNIST, WHOLE = ("mnist_20k.npz",), ("mnist.npz",)
"""10,000 training digits, and 60,000."""
ADULT = ("adult-train.csv.gz", "adult-test.csv.gz")
FEMNIST = ("femnist_114_writers.npz",)


class Verdict(StrEnum):
    """What became of a printed entry or claim; `rule` says when it is which.

    By construction: it follows from the definitions in a line. Vacuous: an assumption that nothing
    meets.
    """

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    AGREES = "agrees under changed settings"
    DIFFERS = "differs under changed settings"
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
        The papers' own horizons and repetitions in place of shorter ones and the usual seeds.
    data_path : Path or None
        Folder with ``mnist_20k.npz``, ``femnist_114_writers.npz`` and the Adult files.
    night : bool
        The papers' own horizons with the usual seeds, and MNIST whole if ``data_path`` has
        ``mnist.npz``.
    """

    full: bool = False
    data_path: Path | None = None
    night: bool = False

    @property
    def long(self) -> bool:
        """Whether horizons are the papers' own."""
        return self.full or self.night

    @property
    def all_digits(self) -> bool:
        """Whether a night run has MNIST whole, 60,000 digits."""
        return self.night and self.data_path is not None and (self.data_path / WHOLE[0]).is_file()

    def seeds(self, printed: int, least: int = 5, further: int = 0) -> range:
        """Return at least five seeds, or in a full run as many as the paper has, if more.

        ``further`` seeds (`further_seeds`) are those of short horizons alone.
        """
        if self.full:
            return range(max(least, printed))
        return range(least if self.night else least + further)


def key_of(run: Mapping[str, Any]) -> str:
    """Return the name under which the results of a run are kept: a hash of what it is given."""
    return sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:24]


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
        return key_of({name: value for name, value in asdict(self).items() if name != "label"})


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


def further_seeds(study: str) -> Mapping[str, int]:
    """Return how many further seeds labels of a study have, for entries that were not determined.

    The numbers stand under ``seeds`` in the paper's data file; see `Study.judge`.
    """
    paper, _, part = study.partition("/")
    if not files(__package__).joinpath(f"{paper}.toml").is_file():
        return {}
    own: Mapping[str, int] = said_of(paper).get("seeds", {}).get(part, {})
    return own


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
    gaps : mapping
        What was judged, by reading: enough to judge again.
    """

    what: str
    printed: float | str
    ours: Estimate | str
    verdict: Verdict
    why: str = ""
    gaps: Mapping[str, Sequence[Gap]] = field(default_factory=dict)


class Rows(list[Row]):
    """The rows of a study, judged by `rule` as they are added.

    Parameters
    ----------
    paper : str
        Whose data file states how many entries are judged; one entry if there is none.
    changed : str
        Settings that all entries depend on and the paper does not print or ours changes.
    """

    def __init__(self, paper: str = "", changed: str = "") -> None:
        super().__init__()
        self.changed = changed
        self.entries: int = said_of(paper)["entries"] if paper else 1

    def number(
        self,
        what: str,
        printed: float,
        ours: Estimate,
        *,
        readings: Mapping[str, Estimate] | None = None,
        exact: bool = False,
        why: str = "",
        fitted: str = "",
        untuned: str = "",
    ) -> None:
        """Add a number with its tolerance.

        ``readings`` are further ones, which decide as well; ``fitted`` is the setting of ours that
        was chosen on entries like this one.
        """
        gaps = {
            name: [Gap.around(printed, one, TOLERANCE, exact=exact)]
            for name, one in {"": ours, **(readings or {})}.items()
        }
        side, found = under_each(gaps, self.entries)
        said = {
            Side.INSIDE: f"within {100 * TOLERANCE:g} %",
            Side.OUTSIDE: f"off by more than {100 * TOLERANCE:g} %",
            Side.OPEN: f"the interval holds both sides of {100 * TOLERANCE:g} %",
        }.get(side, found)
        parts = (said, f"fitted: {fitted}" if fitted else "", why)
        self._add(what, printed, ours, side, parts, gaps, untuned)

    def claim(
        self,
        what: str,
        gap: Estimate,
        ours: str = "",
        *,
        printed: str = "yes",
        why: str = "",
        untuned: str = "",
    ) -> None:
        """Add a claim that says that a difference is positive."""
        said = ours or f"difference {gap}"
        self.readings(what, {"": [gap]}, said, printed=printed, why=why, untuned=untuned)

    def readings(
        self,
        what: str,
        gaps: Mapping[str, Sequence[Estimate]],
        ours: str,
        *,
        printed: str = "yes",
        why: str = "",
        untuned: str = "",
    ) -> None:
        """Add a claim that says that differences are positive, under each reading of a setting."""
        own = {name: [Gap(one) for one in some] for name, some in gaps.items()}
        side, found = under_each(own, self.entries)
        self._add(what, printed, ours, side, (found, why), own, untuned)

    def _add(
        self,
        what: str,
        printed: float | str,
        ours: Estimate | str,
        side: Side,
        why: Sequence[str],
        gaps: Mapping[str, Sequence[Gap]],
        untuned: str,
    ) -> None:
        verdicts = {
            Side.INSIDE: Verdict.AGREES if self.changed else Verdict.REPRODUCED,
            Side.OUTSIDE: Verdict.DIFFERS if self.changed else Verdict.CONTRADICTED,
        }
        verdict = verdicts.get(side, Verdict.NOT_DETERMINED)
        if untuned:
            verdict = Verdict.NOT_DETERMINED
        parts = (untuned, *why, self.changed)
        said = "; ".join(dict.fromkeys(part for part in parts if part))
        self.append(Row(what, printed, ours, verdict, said, gaps))

    def falling(self, what: str, values: Sequence[Sequence[float | None]]) -> None:
        """Add the claim that values, by seed, fall from each place to the next."""
        steps = [difference(above, below) for above, below in pairwise(values)]
        self.readings(what, {"": steps}, " > ".join(str(Estimate.of(own)) for own in values))

    def beyond(self) -> None:
        """Say of the last row that it is not in the paper, and what its verdict would be."""
        why = "; ".join(part for part in (self[-1].verdict, self[-1].why) if part)
        self[-1] = replace(self[-1], verdict=Verdict.BEYOND, why=why, gaps={})


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

        The last rounds are looked at one by one, for their mean. Of further seeds a file of kept
        cases has the numbers alone.
        """
        own = [result for result in results if what in result]
        if not own:
            return cls([], [])
        rounds = own[0].get("rounds") or range(1, len(own[0][what]) + 1)
        columns = zip(rounds, *(result[what] for result in own), strict=False)
        return cls.of(
            {number: Estimate.of(each) for number, *each in columns if number % rounds[0] == 0}
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

    def judge(self, found: Results, options: Options) -> Outcome:
        """Conclude from the usual seeds, and what they leave open from the further ones alone.

        How many further seeds an entry has follows from its first ones, so that these are not
        counted again: each look is at the level of the rule by itself. An entry has a second look
        where all the arms that it compares have further seeds, over those that they share.
        """
        further = {
            label: len(found[label]) - count for label, count in further_seeds(self.name).items()
        }
        if options.long or not further:
            return self.conclude(found)
        every = self.conclude(found)
        first = self.conclude({name: own[: further.get(name)] for name, own in found.items()})
        second = self.conclude(
            {
                name: own[further[name] :] if name in further else own[:1]
                for name, own in found.items()
            }
        )
        looks = {row.what: row for row in second.rows if _has_seeds(row)}
        rows = [
            replace(again, why=f"{again.why}; {FURTHER}")
            if row.verdict is Verdict.NOT_DETERMINED and (again := looks.get(row.what))
            else row
            for row in first.rows
        ]
        return replace(every, rows=rows)


FURTHER = "by further seeds alone"
"""Ends the reason of an entry that had a second look."""


def _has_seeds(row: Row) -> bool:
    """Whether each interval of a row is of several seeds."""
    gaps = [gap for own in row.gaps.values() for gap in own]
    return bool(gaps) and all(gap.ours.tried > 1 for gap in gaps)
