"""What a study leaves behind: rows as CSV and JSON, a plot, a page a paper, and an overview."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from privet.core.errors import one_line

from .catalogue import PAPERS, names
from .errata import ERRATA
from .plots import draw
from .rule import BETTER, TOLERANCE, UNDECIDED, WORSE, better_or_worse
from .statistics import Estimate
from .study import Outcome, Row, Study, Verdict, said_of

log = logging.getLogger("flwr.privet")

OVERVIEW = "index.md"
NOT_SHOWN = "What it does not show:"
"""Begins a sentence of every page of results."""
_TWO_PLOTS = 500
"""Width in points from which a picture has two plots side by side."""
COUNTED = tuple(Verdict)
TESTED = COUNTED[: COUNTED.index(Verdict.NOT_DETERMINED) + 1]
"""Verdicts of what can be tested."""
HOLDS = {
    Verdict.REPRODUCED: True,
    Verdict.AGREES: True,
    Verdict.CONTRADICTED: False,
    Verdict.DIFFERS: False,
}
VERSIONS = ("flwr", "numpy", "scipy", "scikit-learn")


def file_name(name: str) -> str:
    """Return the file name, without its ending, of a study."""
    return name.replace("/", "-")


def row_line(name: str, row: Row) -> dict[str, Any]:
    """Return one row as JSON values; intervals are two further fields."""
    ours = row.ours
    line: dict[str, Any] = {"study": name, "entry": row.what, "paper": row.printed}
    if isinstance(ours, Estimate):
        line |= {
            "ours": _finite(ours.mean),
            "half-width": _finite(ours.half_width),
            "repetitions": ours.count,
            "tried": ours.tried,
        }
    else:
        line["ours"] = ours
    return line | {"verdict": str(row.verdict), "holds": HOLDS.get(row.verdict), "reason": row.why}


def judged(row: Row) -> list[dict[str, Any]]:
    """Return what was judged as JSON values: enough to judge again under another rule."""
    return [
        {
            "reading": name,
            "mean": _finite(gap.ours.mean),
            "half-width": _finite(gap.ours.half_width),
            "repetitions": gap.ours.count,
            "tried": gap.ours.tried,
            "region": [_finite(gap.low), _finite(gap.high)],
        }
        for name, gaps in row.gaps.items()
        for gap in gaps
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def provenance(full: bool) -> dict[str, Any]:
    """Return where and when a study was run: machine, versions, seeds, date."""
    pools = threadpool_info()
    blas = {
        f"{one['internal_api']} for {one['architecture']}" for one in pools if "architecture" in one
    }
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"
    return {
        "machine": ", ".join([machine, *sorted(blas)]),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in VERSIONS},
        "date": datetime.now(UTC).date().isoformat(),
        "full": full,
    }


def write_study(study: Study, outcome: Outcome, folder: Path, *, full: bool = False) -> None:
    """Write ``.csv``, ``.json`` and, where there are plots, ``.svg``."""
    stem = folder / file_name(study.name)
    lines = [row_line(study.name, row) for row in outcome.rows]
    with stem.with_suffix(".csv").open("w", newline="") as file:
        columns = list(dict.fromkeys(key for line in lines for key in line))
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    text: dict[str, Any] = {"study": study.name, "title": study.title}
    entries = [
        line | {"judged": judged(row)} for line, row in zip(lines, outcome.rows, strict=True)
    ]
    text |= {"settings": [asdict(setting) for setting in study.settings], "entries": entries}
    text |= {"notes": list(outcome.notes), "plot": bool(outcome.panels)}
    text["provenance"] = provenance(full)
    stem.with_suffix(".json").write_text(json.dumps(text, indent=1, allow_nan=False) + "\n")
    if outcome.panels:
        draw(stem.with_suffix(".svg"), study.title, outcome.panels)


def write_pages(folder: Path) -> Path:
    """Write a page for each paper and the overview, from the studies' JSON files in a folder.

    A file that cannot be read is named in the log and left out.
    """
    studies: dict[str, list[tuple[Path, Mapping[str, Any]]]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stem):
        try:
            text = json.loads(path.read_text())
            if "study" in text:
                _part(path, text)  # fails here where it would fail below
                paper = text["study"].partition("/")[0]
                studies.setdefault(paper, []).append((path, text))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is left out, no rows of a study (%s)", path, one_line(str(error)))
    bars, lines = [], []
    for paper in [*PAPERS, *(name for name in studies if name not in PAPERS)]:
        if paper not in studies:
            continue
        title = PAPERS.get(paper, paper)
        own = [text for _, text in studies[paper]]
        entries = [line for text in own for line in text["entries"]]
        parts = [_part(path, text) for path, text in studies[paper]]
        head = [f"# {title}: tables, figures and theorems", "", finding(entries), ""]
        if paper in PAPERS:
            head += [f"{NOT_SHOWN} {said_of(paper)['not-shown']}", ""]
        if any(name.startswith(f"{paper}/") for name in ERRATA):
            head += [f"What is wrong in print, and what holds: [errata](errata.md#{paper}).", ""]
        tail = ["## How it was run", "", _written(studies[paper]), ""]
        (folder / f"{paper}.md").write_text("\n".join([*head, *parts, *tail]))
        bars.append(_bar(f"[{title}]({paper}.md)", _counts(entries)))
        lines += [f"## {title}", ""]
        for text in own:
            name = f"[{_heading(text)}]({paper}.md#{_anchor(text)})"
            lines.append(_bar(name, _counts(text["entries"]), "counts entries"))
        lines.append("")
    target = folder / OVERVIEW
    there = {text["study"] for own in studies.values() for _, text in own}
    absent = [name for name in names() if name not in there]
    target.write_text(_overview(lines, bars, summary(folder), absent))
    return target


def finding(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return what the entries amount to, as a sentence."""
    counts = _counts(entries)
    tested = sum(counts[verdict] for verdict in TESTED)
    if not tested:
        return "None of the entries can be tested."
    wrong = [line["entry"] for line in entries if line["verdict"] == Verdict.CONTRADICTED]
    named = f": {'; '.join(wrong)}" if wrong else ""
    which = "1 entry" if tested == 1 else f"{tested} entries"
    return f"**Of {which} that can be tested {_said(counts)}{named}.**"


def summary(folder: Path) -> str:
    """Return what became of all entries in a folder, by kind, as one sentence."""
    kinds: dict[str, list[Mapping[str, Any]]] = {"statements": [], "tables and figures": []}
    for path in sorted(folder.glob("*.json")):
        try:
            text = json.loads(path.read_text())
            name = "statements" if text["study"].endswith("/theorems") else "tables and figures"
            kinds[name] += text["entries"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # `write_pages` names it
    parts = []
    for name, entries in kinds.items():
        counts = _counts(entries)
        tested = sum(counts[verdict] for verdict in TESTED)
        if tested:
            of = name if name == "statements" else f"entries of {name}"
            parts.append(f"of {tested} {of} that can be tested {_said(counts)}")
    said = "; ".join(parts)
    return f"{said[:1].upper()}{said[1:]}."


def _said(counts: Mapping[Verdict, int]) -> str:
    """Return the counts in words; what is not there is left out, but for contradictions."""
    words = {
        Verdict.REPRODUCED: ("is reproduced", "are reproduced"),
        Verdict.AGREES: ("agrees under changed settings", "agree under changed settings"),
        Verdict.DIFFERS: ("differs under changed settings", "differ under changed settings"),
        Verdict.NOT_DETERMINED: ("is not determined", "are not determined"),
        Verdict.CONTRADICTED: ("is contradicted", "are contradicted"),
    }
    parts = [
        f"{counts[verdict]} {many if counts[verdict] > 1 else one}"
        for verdict, (one, many) in words.items()
        if counts[verdict]
    ]
    if not counts[Verdict.CONTRADICTED]:
        parts.append("none is contradicted")
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]


def verdict_word(verdict: str) -> str:
    """Return a verdict as a word in its colour, which the pages' style sheet knows."""
    return f'<span class="verdict {verdict.replace(" ", "-")}">{verdict}</span>'


def points(gap: Estimate) -> str:
    """Return a difference in points with its sign and interval."""
    return f"{gap.mean:+.1f} ± {gap.half_width:.1f}"


def compared(gap: Estimate) -> str:
    """Return the cell of a table: the verdict in its colour, and the difference."""
    return f"{verdict_word(better_or_worse(gap.low, gap.high))} {points(gap)}"


def by_verdict(gaps: Iterable[tuple[str, Estimate]]) -> list[str]:
    """Return a line of a list for each verdict, with what it is about."""
    found: dict[str, list[str]] = {BETTER: [], UNDECIDED: [], WORSE: []}
    for name, gap in gaps:
        found[better_or_worse(gap.low, gap.high)].append(f"{name} {points(gap)}")
    return [f"- {verdict_word(word)} {'; '.join(own)}" for word, own in found.items() if own]


def _bar(name: str, counts: Mapping[Verdict, int], kind: str = "counts") -> str:
    """Return a name beside a bar with a part for each verdict; the style sheet knows the kind."""
    parts = "".join(
        f'<span class="{str(verdict).replace(" ", "-")}" style="flex:{count}" '
        f'title="{count} {verdict}">{count}</span>'
        for verdict, count in counts.items()
        if count
    )
    return f'<div class="{kind}" markdown="span">{name}<span class="bar">{parts}</span></div>'


def _heading(text: Mapping[str, Any]) -> str:
    """Return a study's title in words, with the number of the table or figure it is about."""
    kind, _, rest = text["study"].partition("/")[2].partition("-")
    number = rest.partition("-")[0]
    title = text["title"].partition(": ")[2] or text["title"]
    title = f"{title[:1].upper()}{title[1:]}"
    return f"{kind.capitalize()} {number}: {title}" if number.isdigit() else title


def _anchor(text: Mapping[str, Any]) -> str:
    return str(text["study"]).replace("/", "").replace(".", "")


def _overview(
    lines: Sequence[str],
    bars: Sequence[str],
    said: str,
    absent: Sequence[str],
) -> str:
    word = {verdict: verdict_word(str(verdict)) for verdict in COUNTED}
    return "\n".join(
        [
            "# The papers, entry by entry",
            "",
            f"**{said}**",
            "",
            f"{NOT_SHOWN} how the authors' own runs went. Nearly all entries of tables and figures",
            "depend on settings that are not printed, and an entry says how ours differ.",
            "",
            *bars,
            "",
            f'<p class="counts-legend">{" ".join(word.values())}</p>',
            "",
            "The rule was written before the runs (`papers/src/studies/rule.py`), and asks as much",
            "of a contradiction as of agreement. A printed number counts as reproduced if ours is",
            f"within {100 * TOLERANCE:g} % of it, a claim",
            "of superiority if the difference is positive. Our interval, from the spread over the "
            "seeds, is at",
            "the level 1 - 0.05/m, where m is how many entries of the paper are judged in this way",
            f"(Bonferroni). An entry is {word[Verdict.REPRODUCED]} where the interval lies wholly",
            f"inside of what is asked, {word[Verdict.CONTRADICTED]} where it lies wholly outside,",
            "if all that it depends on is printed and was run as printed. Where a setting is not",
            f"printed, or ours is another, that is {word[Verdict.AGREES]} or",
            f"{word[Verdict.DIFFERS]}; of a setting with several readings, under each of them.",
            f"Else it is {word[Verdict.NOT_DETERMINED]}: the interval crosses the end, readings",
            "disagree, a run does not arrive or was made once, or settings were tuned to the end",
            "of their grid. Some entries that stayed open had a second look at the same level, by",
            "further seeds alone; their reasons say so. A statement is reproduced where it holds",
            "on all instances tried, which",
            "proves nothing, and contradicted by one on which it does not. What follows from",
            f"definitions is {word[Verdict.CONSTRUCTION]}, an assumption that nothing meets",
            f"{word[Verdict.VACUOUS]}. What is wrong in print has a proof or an example, and",
            "what holds in its place, on the page of [errata](errata.md); what would decide an",
            "entry that is not determined, and its cost, on a [page of its own](undecided.md). The",
            "JSON file of a study has the intervals that were judged. Written by",
            "`privet reproduce`.",
            "",
            *lines,
            *([f"Not run, and left out: {', '.join(absent)}.", ""] if absent else []),
        ]
    )


def _written(own: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    places = {json.dumps(text["provenance"], sort_keys=True): text for _, text in own}
    said = []
    for text in places.values():
        where = text["provenance"]
        versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
        horizon = "printed horizons" if where["full"] else "shorter horizons"
        said.append(
            f"{where['date']}, {where['machine']}, Python {where['python']}, {versions}; {horizon}"
        )
    return (
        "Written by `privet reproduce`. Seeds are 0, 1, 2, ...; draws of the data are the same "
        "(Fed-PLT's begin at 100, those of tuning at 1000); ± is half a 95 % interval (Student's "
        "t). Run on " + "; ".join(said) + "."
    )


def _counts(entries: Sequence[Mapping[str, Any]]) -> dict[Verdict, int]:
    verdicts = [line["verdict"] for line in entries]
    return {verdict: verdicts.count(str(verdict)) for verdict in COUNTED}


def _part(path: Path, text: Mapping[str, Any]) -> str:
    lines = [f"## {_heading(text)} {{ #{_anchor(text)} }}", "", finding(text["entries"]), ""]
    if text["plot"]:
        lines += [*_picture(path.with_suffix(".svg"), text["title"]), ""]
    lines += ["| entry | paper | ours | verdict | why |", "|---|---|---|---|---|"]
    for line in text["entries"]:
        said = verdict_word(line["verdict"])
        cells = [line["entry"], number(line["paper"]), _ours(line), said, line["reason"]]
        lines.append(_table_line(cells))
    lines += ["", *(f"- {note}" for note in text["notes"]), ""]
    if text["settings"]:
        lines += ['<details markdown="1">', "<summary>Settings: printed and ours</summary>", ""]
        lines += ["| setting | printed | ours | why |", "|---|---|---|---|"]
        for setting in text["settings"]:
            cells = [setting[name] for name in ("what", "printed", "ours", "why")]
            lines.append(_table_line(cells))
        lines += ["", "</details>", ""]
    lines += [f"`privet reproduce {text['study']}`; [its rows]({path.stem}.csv).", ""]
    return "\n".join(lines)


def _picture(path: Path, title: str) -> list[str]:
    """Return a study's picture, scrolled on pages that are narrower than two plots side by side."""
    image = f"![{title}]({path.name})"
    head = path.read_text()[:2000] if path.is_file() else ""
    found = re.search(r' width="([\d.]+)pt"', head)
    if found is None or float(found[1]) < _TWO_PLOTS:
        return [image]
    return ['<div class="panels" markdown="1">', "", image, "", "</div>"]


def _table_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _ours(line: Mapping[str, Any]) -> str:
    if "half-width" not in line:
        return number(line["ours"])
    mean, half = (math.nan if line[name] is None else line[name] for name in ("ours", "half-width"))
    return str(Estimate(mean, half, line["repetitions"], line["tried"]))


def number(value: float | str) -> str:
    """Return a figure with four digits; texts as they are."""
    return value if isinstance(value, str) else f"{value:.4g}"
