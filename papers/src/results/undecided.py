"""What would decide the entries that are not determined: docs/results/undecided.md.

    python -m results.undecided docs/results

writes the page from the studies' JSON files and the seconds of the kept cases in that folder. Of an
entry whose interval crosses an end of what is asked it says how many seeds would end that if the
mean and the spread stay as they were measured, at the level of the rule (`studies.rule`), and what
they cost at most: the study's whole cases for so many seeds. Of the others it says what is missing.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from studies.catalogue import PAPERS, chosen
from studies.pages import NOT_SHOWN, file_name
from studies.rule import FAMILY, Gap, Side
from studies.statistics import Estimate, student
from studies.study import FURTHER, Verdict, said_of

from .kept_cases import kept

log = logging.getLogger("flwr.privet")

PAGE = "undecided.md"
CORES = 2
NIGHT = 10.0
"""Hours of a night."""
MOST_SEEDS = 10_000
SEEDS = 5
"""Seeds of an entry that was run once."""
ENDLESS, ONCE, MISSING, GRID, READINGS, PRINT = (
    f"more than {MOST_SEEDS:,} seeds: the mean lies at the end of what is asked",
    "a spread: it was run once",
    "settings, or rounds, with which every run arrives",
    "a wider grid: the settings were tuned to its end",
    "the setting in print: its readings disagree",
    "what its reason names",
)
AT_THE_END = "is the end of its grid", "is at the end of its box"
"""Texts of a reason that say so of settings."""


@dataclass(frozen=True, slots=True)
class Need:
    """What an entry needs.

    Attributes
    ----------
    study, entry : str
    why : str
        What is missing, "" where it is seeds.
    seeds : int
        How many would decide it, 0 where seeds are not what is missing.
    hours : float
        On `CORES` cores, at most.
    side : str
        What would then be found, if the means stay.
    reason : str
        What is missing in words, where nothing was judged.
    """

    study: str
    entry: str
    why: str = ""
    seeds: int = 0
    hours: float = 0.0
    side: str = ""
    reason: str = ""


def seeds_for(gap: Gap, chance: float) -> int:
    """Return from how many seeds on the interval at the level 1 - ``chance`` crosses no end.

    The interval of n seeds is t_{n-1} s / sqrt(n), s the spread that was measured; 0 where the mean
    lies on an end, or `MOST_SEEDS` are too few.
    """
    ours = gap.ours
    margin = min(abs(ours.mean - end) for end in (gap.low, gap.high))
    spread = ours.half_width * math.sqrt(ours.count) / student(ours.count)
    if margin <= 0:
        return 0
    fewest = max(2, math.ceil((spread / margin) ** 2))  # t is above 1 at every such level
    return next(
        (n for n in range(fewest, MOST_SEEDS + 1) if student(n, chance) * spread < margin * n**0.5),
        0,
    )


def reading_needs(gaps: Sequence[Gap], entries: int) -> tuple[Side, int]:
    """Return what a claim about several gaps comes to by their means, and after how many seeds.

    It differs as soon as one gap does, at the level 1 - .05 / (m k), and agrees once all do. The
    side is MISSING or SINGLE where seeds are not what is missing; 0 seeds are no number of them.
    """
    sides = [gap.side(entries) for gap in gaps]
    for side in (Side.MISSING, Side.SINGLE):
        if side in sides:
            return side, 0
    outside = [gap for gap in gaps if not gap.low <= gap.ours.mean <= gap.high]
    if outside:
        some = [seeds_for(gap, FAMILY / (entries * len(gaps))) for gap in outside]
        return Side.OUTSIDE, min(filter(None, some), default=0)
    every = [seeds_for(gap, FAMILY / entries) for gap in gaps]
    return Side.INSIDE, max(every) if all(every) else 0


def need_of(study: str, line: Mapping[str, Any], entries: int, seconds: float) -> Need:
    """Return what one entry needs; ``seconds`` are those of a core for one seed of its study."""
    readings: dict[str, list[Gap]] = {}
    for one in line["judged"]:
        mean, half = (math.nan if one[key] is None else one[key] for key in ("mean", "half-width"))
        low, high = one["region"]
        ours = Estimate(mean, half, one["repetitions"], one["tried"])
        ends = (-math.inf if low is None else low, math.inf if high is None else high)
        readings.setdefault(one["reading"], []).append(Gap(ours, *ends))
    entry, reason = line["entry"], line["reason"]
    if not readings:
        return Need(study, entry, PRINT, reason=reason.partition(";")[0])
    if any(text in reason for text in AT_THE_END):
        return Need(study, entry, GRID)
    found = {name: reading_needs(gaps, entries) for name, gaps in readings.items()}
    sides = {side for side, _ in found.values()}
    if Side.MISSING in sides:
        return Need(study, entry, MISSING)
    if Side.SINGLE in sides:
        return Need(study, entry, ONCE, SEEDS, SEEDS * seconds / CORES / 3600)
    if len(sides) > 1:
        return Need(study, entry, READINGS)
    (side,) = sides
    numbers = [number for _, number in found.values()]
    if not all(numbers):
        return Need(study, entry, ENDLESS)
    seeds = max(numbers)
    word = "as printed" if side is Side.INSIDE else "not as printed"
    return Need(study, entry, "", seeds, seeds * seconds / CORES / 3600, word)


def seconds_of_a_seed(folder: Path) -> dict[str, float]:
    """Return the seconds of a core that the cases of each study took, a seed of all labels."""
    found: dict[str, dict[str, list[float]]] = {}
    for paper in PAPERS:
        for run in kept(folder / f"{paper}-cases.jsonl"):
            found.setdefault(run["study"], {}).setdefault(run["case"], []).append(run["seconds"])
    return {name: sum(map(fmean, own.values())) for name, own in found.items()}


def needs(folder: Path) -> Iterator[Need]:
    """Yield what each entry of a folder's studies needs that is not determined."""
    seconds = seconds_of_a_seed(folder)
    for study in chosen(["all"], full=True):
        path = folder / f"{file_name(study.name)}.json"
        if not path.is_file():
            continue
        for line in json.loads(path.read_text())["entries"]:
            if line["verdict"] == Verdict.NOT_DETERMINED:
                entries = said_of(study.name.partition("/")[0])["entries"]
                yield need_of(study.name, line, entries, seconds.get(study.name, math.nan))


@dataclass(frozen=True, slots=True)
class Played:
    """An entry that had a second look, see `studies.study.Study.judge`."""

    study: str
    entry: str
    seeds: int
    verdict: str


def played(folder: Path) -> Iterator[Played]:
    """Yield the entries of a folder's studies that had a second look."""
    for study in chosen(PAPERS):
        path = folder / f"{file_name(study.name)}.json"
        if not path.is_file():
            continue
        for line in json.loads(path.read_text())["entries"]:
            if line["reason"].endswith(FURTHER):
                seeds = min(one["tried"] for one in line["judged"])
                yield Played(study.name, line["entry"], seeds, line["verdict"])


def page(found: Sequence[Need], further: Sequence[Played]) -> str:
    """Return the page."""
    by_seeds = sorted((one for one in found if one.side), key=lambda one: one.hours)
    night = [one for one in by_seeds if one.hours <= NIGHT]
    others = Counter(one.why for one in found if one.why)
    ended = Counter(one.verdict for one in further)
    open_ = ended[Verdict.NOT_DETERMINED]
    lines = [
        "# What would decide the entries that are not determined",
        "",
        f"**This page decides none of them: of {len(found)} entries {len(by_seeds)} ask for more "
        f"seeds, {len(night)} of them less than a night of {NIGHT:g} hours on {CORES} cores each, "
        "if means and spread stay as they were measured; the others ask for what seeds do not "
        "give.**",
        "",
        f"{NOT_SHOWN} whether means and spread stay, so of no entry which way it goes.",
        "",
        "| what is missing | entries |",
        "|---|--:|",
        f"| more seeds, below a night | {len(night)} |",
        f"| more seeds, a night or more | {len(by_seeds) - len(night)} |",
        *(f"| {why} | {count} |" for why, count in others.most_common()),
        "",
        "Seeds are those of the [rule](index.md) at its level for the paper's number of entries.",
        "Hours are an upper bound: all cases of the study for so many seeds, on cores like those",
        "that the kept cases ran on; an entry compares one to ten of up to forty. A mean of few",
        "seeds is uncertain itself: where it lies near the end of what is asked, the number of",
        "seeds is the least reliable figure here.",
        "Written by `python -m results.undecided docs/results`.",
        "",
        "## Played on { #played }",
        "",
        f"**{len(further)} entries that five to a hundred seeds left open had a second look, by "
        f"further seeds alone: {ended[Verdict.AGREES]} are as printed, {ended[Verdict.DIFFERS]} "
        f"are not, and {open_} are still open.** They are those that asked for less than a night,",
        "and others whose arms are all among theirs. How many further seeds an arm has was",
        "computed from the first ones, and stood on this page before the further ones were",
        "played (now under `seeds` in `papers/src/studies/*.toml`); the first ones are not",
        "counted again. Each look is at the level of the rule, so that of a paper's verdicts none",
        "is wrong by chance in 18 of 20 repetitions. No seeds are added to what is still open:",
        "whoever adds seeds until an entry is decided decides too much by chance. The best errors",
        "of DP-IADMM's Figure 2 are now the least of ten runs, as in print, five times; they were",
        "the least of five, which has no interval. A verdict says which sign a difference has, not",
        "that it matters: with thousands of seeds a few hundredths of a point are enough.",
        "",
        "| study | entry | further seeds | now |",
        "|---|---|--:|---|",
        *(
            f"| {one.study} | {_cell(one.entry)} | {one.seeds:,} | {one.verdict} |"
            for one in further
        ),
        "",
        "## More seeds",
        "",
        "| study | entry | seeds | hours | then, by the mean |",
        "|---|---|--:|--:|---|",
        *(
            f"| {one.study} | {_cell(one.entry)} | {one.seeds:,} | {_hours(one.hours)} "
            f"| {one.side} |"
            for one in by_seeds
        ),
        "",
        "## Something else",
        "",
        "| study | entry | what is missing |",
        "|---|---|---|",
        *(
            f"| {one.study} | {_cell(one.entry)} | {_missing(one)} |"
            for one in found
            if not one.side
        ),
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _hours(hours: float) -> str:
    return "not measured" if math.isnan(hours) else f"{hours:.2g}"


def _missing(one: Need) -> str:
    if one.reason:
        return _cell(one.reason)
    if one.seeds and not math.isnan(one.hours):
        return f"{one.why}; {one.seeds} seeds are {_hours(one.hours)} hours"
    return one.why


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    (FOLDER / PAGE).write_text(page(list(needs(FOLDER)), list(played(FOLDER))))
