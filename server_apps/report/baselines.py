"""The baselines of a run, on its page and in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privet.core import format as fmt
from privet.core.format import text
from privet.server_apps import baselines as known
from privet.server_apps.report.runs import Run
from privet.server_apps.report.tables import html_table

UN_NOISED = "baselines without noise, which epsilon does not cover"

_TITLES = {
    known.POOLED: "All rows in one place",
    known.FED_AVG: "FedAvg with the same work",
    known.ALONE: "Each agent alone",
    known.CONSTANT: "The commonest class",
}


def _title(name: str, one: Mapping[str, Any]) -> str:
    if name == known.CONSTANT and "accuracy" not in one:
        return "The same number for every row"
    return _TITLES[name]


def _figure(one: Mapping[str, Any], show: Any, key: str) -> str:
    spread = ""
    if "agents" in one and key == ("accuracy" if "accuracy" in one else "loss"):
        spread = f" ({show(one['lowest'])} to {show(one['highest'])})"
    return f"{show(one[key])}{spread}"


def _found(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    entry = summary.get("baselines")
    entry = entry if isinstance(entry, Mapping) else {}
    return {name: entry[name] for name in _TITLES if isinstance(entry.get(name), Mapping)}


def _left_out(summary: Mapping[str, Any]) -> dict[str, str]:
    entry = summary.get("baselines")
    left = entry.get("left-out", {}) if isinstance(entry, Mapping) else {}
    return {_TITLES[name]: str(why) for name, why in left.items() if name in _TITLES}


def baselines_line(summary: Mapping[str, Any]) -> str:
    """Return test accuracies, or of a regression losses, in one line, "" without any."""
    parts = []
    for name, one in _found(summary).items():
        key, show = ("accuracy", "{:.4f}".format) if "accuracy" in one else ("loss", fmt.loss)
        if isinstance(one.get(key), int | float):
            title = _title(name, one)
            parts.append(f"{title[0].lower()}{title[1:]} {_figure(one, show, key)}")
    parts += [f"{name[0].lower()}{name[1:]}: {why}" for name, why in _left_out(summary).items()]
    return ", ".join(parts).replace("fedAvg", "FedAvg")


def baselines_table(run: Run, number: int) -> str:
    """Return the table of a run's baselines beside its own numbers, "" without any."""
    found = _found(run.summary)
    left = _left_out(run.summary)
    if not found and not left:
        return ""
    own = {key: run.summary.get(key) for key in ("accuracy", "loss")}
    rows = []
    for name, title, one in (
        ("run", "This run", own),
        *((name, _title(name, one), one) for name, one in found.items()),
    ):
        cells = ""
        for key, show in (("accuracy", fmt.fraction), ("loss", fmt.number)):
            value = one.get(key)
            if not isinstance(value, int | float):
                cells += "<td>-</td>"
                continue
            where = f'id="run-{number}-baseline-{name}-{key}" data-value="{value!r}"'
            cells += f"<td {where}>{text(_figure(one, show, key))}</td>"
        rows.append(f'<tr><th scope="row">{text(title)}</th>{cells}</tr>')
    table = html_table(["", "Test accuracy", "Test loss"], rows, "numbers")
    notes = [f"{name}: {why}." for name, why in left.items()]
    if run.summary.get("private"):
        notes.insert(
            0,
            "All but this run are fitted on the records without noise, as only a simulation can: "
            "no epsilon covers these figures, and they are no part of what it promises.",
        )
    return table + "".join(f'<p class="soft">{text(note)}</p>' for note in notes)
