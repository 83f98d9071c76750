"""What a study leaves behind: rows as CSV and JSON, a plot, a page a paper, and an overview."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from privet.core.errors import one_line

from .catalogue import PAPERS, names
from .errata import ERRATA
from .plots import draw
from .statistics import Estimate
from .study import Outcome, Row, Study, Verdict

log = logging.getLogger("flwr.privet")

OVERVIEW = "index.md"
_TWO_PLOTS = 500
"""Width in points from which a picture has two plots side by side."""
COUNTED = tuple(Verdict)
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
            "ours": ours.mean if math.isfinite(ours.mean) else None,
            "half-width": ours.half_width if math.isfinite(ours.half_width) else None,
            "repetitions": ours.count,
            "tried": ours.tried,
        }
    else:
        line["ours"] = ours
    held = {Verdict.REPRODUCED: True, Verdict.CONTRADICTED: False}.get(row.verdict)
    return line | {"verdict": str(row.verdict), "holds": held, "reason": row.why}


def provenance(full: bool) -> dict[str, Any]:
    """Return where and when a study was run: machine, versions, seeds, date."""
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
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
    text |= {"settings": [asdict(setting) for setting in study.settings], "entries": lines}
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
    lines: list[str] = []
    total = dict.fromkeys(COUNTED, 0)
    bars = []
    for paper in [*PAPERS, *(name for name in studies if name not in PAPERS)]:
        if paper not in studies:
            continue
        title = PAPERS.get(paper, paper)
        own = [text for _, text in studies[paper]]
        entries = [line for text in own for line in text["entries"]]
        parts = [_part(path, text) for path, text in studies[paper]]
        head = [f"# {title}: tables, figures and theorems", "", finding(entries), ""]
        if any(name.startswith(f"{paper}/") for name in ERRATA):
            head += [f"What is wrong in print, and what holds: [errata](errata.md#{paper}).", ""]
        tail = ["## How it was run", "", _written(studies[paper]), ""]
        (folder / f"{paper}.md").write_text("\n".join([*head, *parts, *tail]))
        bars.append(_bar(f"[{title}]({paper}.md)", _counts(entries)))
        for text in own:
            counts = _counts(text["entries"])
            total = {verdict: total[verdict] + counts[verdict] for verdict in COUNTED}
            name = f"[{_heading(text)}]({paper}.md#{_anchor(text)})"
            cells = (title, name, *(str(counts[verdict] or "") for verdict in COUNTED))
            lines.append("| " + " | ".join(cells) + " |")
    target = folder / OVERVIEW
    there = {text["study"] for own in studies.values() for _, text in own}
    absent = [name for name in names() if name not in there]
    every = [line for own in studies.values() for _, text in own for line in text["entries"]]
    target.write_text(_overview(lines, total, bars, _precision(every), absent))
    return target


def finding(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return what the entries amount to, in two sentences at most."""
    counts = _counts(entries)
    tested = sum(counts[verdict] for verdict in COUNTED[:3])
    if not tested:
        return "None of the entries can be tested."
    open_ones = counts[Verdict.NOT_DETERMINED]
    why = "as a setting is not printed or was changed"
    rest = f"; {open_ones} cannot be decided, {why}" if open_ones else ""
    said = f"{counts[Verdict.REPRODUCED]} of {tested} entries that can be tested are reproduced"
    wrong = [line["entry"] for line in entries if line["verdict"] == Verdict.CONTRADICTED]
    named = f"; {len(wrong)} contradicted: {'; '.join(wrong)}" if wrong else ", none contradicted"
    return f"**{said}{rest}{named}.**"


def _precision(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of the reproduced numbers lie in our interval too, as a sentence."""
    numbers = [
        line
        for line in entries
        if line["verdict"] == Verdict.REPRODUCED
        and isinstance(line["paper"], int | float)
        and line.get("half-width") is not None
    ]
    inside = sum(abs(line["ours"] - line["paper"]) <= line["half-width"] for line in numbers)
    return (
        f"Of {len(numbers)} printed numbers that are reproduced {inside} lie within our 95 % "
        f"interval; ours are off by up to 20 % in the other {len(numbers) - inside}."
    )


def verdict_word(verdict: str) -> str:
    """Return a verdict as a word in its colour, which the pages' style sheet knows."""
    return f'<span class="verdict {verdict.replace(" ", "-")}">{verdict}</span>'


def _bar(name: str, counts: Mapping[Verdict, int]) -> str:
    """Return a row of the summary picture: a bar with a part for each verdict."""
    parts = "".join(
        f'<span class="{str(verdict).replace(" ", "-")}" style="flex:{count}" '
        f'title="{count} {verdict}">{count}</span>'
        for verdict, count in counts.items()
        if count
    )
    return f'<div class="counts" markdown="span">{name}<span class="bar">{parts}</span></div>'


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
    total: Mapping[Verdict, int],
    bars: Sequence[str],
    precision: str,
    absent: Sequence[str],
) -> str:
    columns = ("paper", "what", *map(str, COUNTED))
    sums = ("**all**", "", *(f"**{total[verdict]}**" for verdict in COUNTED))
    tested = sum(total[verdict] for verdict in COUNTED[:3])
    return "\n".join(
        [
            "# The papers, entry by entry",
            "",
            f"**Of {tested} entries that can be tested {total[Verdict.REPRODUCED]} are reproduced "
            f"and {total[Verdict.CONTRADICTED]} contradicted; {total[Verdict.NOT_DETERMINED]} "
            "cannot be decided.**",
            precision,
            "",
            *bars,
            "",
            f'<p class="counts-legend">{" ".join(verdict_word(str(one)) for one in COUNTED)}</p>',
            "",
            f"An entry is {verdict_word('reproduced')} where ours agrees with it;",
            f"{verdict_word('contradicted')} where everything that it depends on is printed, was",
            f"run as printed, and the 95 % interval excludes it; {verdict_word('not determined')}",
            "where a setting is not printed or was changed: the row says which, and what happened",
            "under each reading tried. What follows from definitions is",
            f"{verdict_word('by construction')}, an assumption that nothing meets",
            f"{verdict_word('vacuous')}. What is wrong in print has a proof or an example, and",
            "what holds in its place, on the page of [errata](errata.md).",
            "Written by `privet reproduce`.",
            "",
            "| " + " | ".join(columns) + " |",
            "|---|---|" + "--:|" * len(COUNTED),
            *lines,
            "| " + " | ".join(sums) + " |",
            "",
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
