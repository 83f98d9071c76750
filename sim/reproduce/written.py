"""What a study leaves behind: a CSV file, a plot, its verdicts as JSON, and a page over all."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privet.wire.errors import one_line

from .study import Entry, Outcome, Panel, Study

SUMMARY = "reproduced.md"
log = logging.getLogger("flwr.privet")


_COUNTED = ("| study | what | hold | do not hold | not compared |", "|---|---|---|---|---|")


def file_name(name: str) -> str:
    """Return the file name, without its ending, of a study."""
    return name.replace("/", "-")


def write_study(study: Study, outcome: Outcome, folder: Path) -> None:
    """Write ``.csv``, ``.json`` and, where there are plots, ``.svg``."""
    stem = folder / file_name(study.name)
    rows = list(outcome.rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with stem.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    entries = [entry_line(study.name, entry) for entry in outcome.entries]
    text: dict[str, Any] = {"study": study.name, "title": study.title, "entries": entries}
    text |= {"notes": list(outcome.notes), "plot": bool(outcome.panels)}
    stem.with_suffix(".json").write_text(json.dumps(text, indent=1) + "\n")
    if outcome.panels:
        draw(stem.with_suffix(".svg"), study.title, outcome.panels)


def entry_line(name: str, entry: Entry) -> dict[str, Any]:
    """Return one verdict as JSON values."""
    return {
        "study": name,
        "entry": entry.what,
        "paper": entry.paper,
        "ours": entry.ours,
        "tolerance": entry.tolerance,
        "holds": entry.holds,
        "reason": entry.reason,
    }


def write_summary(folder: Path) -> Path:
    """Write the page over all studies that have left their verdicts in a folder.

    A file that cannot be read is named in the log and left out.
    """
    lines, parts = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            text = json.loads(path.read_text())
            if "study" in text:
                line, part = _count(text), _part(path.stem, text)
                lines.append(line)
                parts.append(part)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is left out, no verdicts of a study (%s)", path, one_line(str(error)))
    head = "# The papers' tables and figures, reproduced\n\nWritten by `privet reproduce`.\n"
    table = "\n".join([*_COUNTED, *lines, ""])
    target = folder / SUMMARY
    target.write_text("\n".join([head, table, *parts]))
    return target


def _count(text: Mapping[str, Any]) -> str:
    verdicts = [entry["holds"] for entry in text["entries"]]
    counts = " | ".join(str(verdicts.count(value)) for value in (True, False, None))
    return f"| [{text['study']}](#{_anchor(text['study'])}) | {text['title']} | {counts} |"


def _anchor(name: str) -> str:
    return name.replace("/", "").replace(".", "")


def _part(stem: str, text: Mapping[str, Any]) -> str:
    lines = [f"## {text['study']}", "", f"{text['title']} ([rows]({stem}.csv))", ""]
    lines += ["| entry | paper | ours | tolerance | verdict |", "|---|---|---|---|---|"]
    for line in text["entries"]:
        entry = Entry(
            line["entry"],
            line["paper"],
            line["ours"],
            line["holds"],
            line["tolerance"],
            line["reason"],
        )
        cells = (
            entry.what,
            number(entry.paper),
            number(entry.ours),
            entry.tolerance,
            entry.verdict,
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"- {note}" for note in text["notes"]), ""]
    if text["plot"]:
        lines += [f"![{text['title']}]({stem}.svg)", ""]
    return "\n".join(lines)


def number(value: float | str) -> str:
    """Return a figure with four digits; texts as they are."""
    return value if isinstance(value, str) else f"{value:.4g}"


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw the panels side by side, at most three in a row."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    across = min(3, len(panels))
    down = -(-len(panels) // across)
    with mpl.rc_context({"svg.hashsalt": "privet", "font.size": 9}):
        figure = Figure(figsize=(4.4 * across, 3.6 * down), layout="constrained")
        figure.suptitle(title)
        for place, panel in enumerate(panels, start=1):
            _panel(figure.add_subplot(down, across, place), panel)
        figure.savefig(path, metadata={"Date": None})


def _panel(axes: Any, panel: Panel) -> None:
    for place, (label, curve) in enumerate(panel.curves.items()):
        if panel.bars:
            axes.bar(place, curve.y[0], label=label)
            continue
        (line,) = axes.plot(
            curve.x, curve.y, label=label, lw=1.2, marker="." if len(curve.x) < 12 else ""
        )
        if curve.low:
            axes.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.15)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.x_log:
        axes.set_xscale("log")
    if panel.y_log:
        axes.set_yscale("log")
    if panel.bars:
        axes.set_xticks([])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7)
