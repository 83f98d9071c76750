"""What a study leaves behind: a CSV file, a plot, its verdicts as JSON, and a page over all."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .study import Entry, Outcome, Panel, Study

SUMMARY = "reproduced.md"


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
    """Write the page over all studies that have left their verdicts in a folder."""
    texts = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    texts = {stem: text for stem, text in texts.items() if "study" in text}
    parts = [_part(stem, text) for stem, text in texts.items()]
    head = "# The papers' tables and figures, reproduced\n\nWritten by `privet reproduce`.\n"
    target = folder / SUMMARY
    target.write_text("\n".join([head, _counts(list(texts.values())), *parts]))
    return target


def _counts(texts: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| study | what | hold | do not hold | not compared |", "|---|---|---|---|---|"]
    for text in texts:
        verdicts = [entry["holds"] for entry in text["entries"]]
        counts = " | ".join(str(verdicts.count(value)) for value in (True, False, None))
        lines.append(
            f"| [{text['study']}](#{_anchor(text['study'])}) | {text['title']} | {counts} |"
        )
    return "\n".join([*lines, ""])


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
