"""The baselines of a run, on its page and in a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from privet.core import format as fmt
from privet.core.format import text

from .. import baselines as known
from .runs import RecordedRun
from .tables import html_table

UN_NOISED = "baselines without noise, which epsilon does not cover"

_OUTSIDE = (
    "The baselines are fitted on the records without noise, as only a simulation can: no epsilon "
    "covers these figures, and they are no part of what it promises."
)
_TITLES = {
    known.POOLED: "All rows in one place",
    known.SCIKIT: "scikit-learn's default",
    known.VALIDATED: "scikit-learn, cross-validated",
    known.FED_AVG: "FedAvg with the same work",
    known.ALONE: "Each agent alone",
    known.CONSTANT: "The commonest class",
}


_COLUMNS = (
    ("accuracy", "Test accuracy", fmt.fraction),
    ("loss", "Test loss", fmt.measure),
    ("distance", "Distance to the pooled optimum", fmt.measure),
)


def _has(found: Mapping[str, Mapping[str, Any]], key: str) -> bool:
    return any(isinstance(one.get(key), int | float) for one in found.values())


def _title(name: str, one: Mapping[str, Any]) -> str:
    if name == known.CONSTANT and "accuracy" not in one:
        return "The same number for every row"
    return _TITLES[name]


def _figure(one: Mapping[str, Any], show: Any, key: str) -> str:
    spread = ""
    ends = [one.get(end) for end in ("lowest", "highest")]
    if "agents" in one and key == ("accuracy" if "accuracy" in one else "loss"):
        known = [show(end) if isinstance(end, int | float) else "not known" for end in ends]
        spread = f" ({known[0]} to {known[1]})"
    return f"{show(one[key])}{spread}"


def _found(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    entry = summary.get("baselines")
    entry = entry if isinstance(entry, Mapping) else {}
    return {name: entry[name] for name in _TITLES if isinstance(entry.get(name), Mapping)}


def _left_out(summary: Mapping[str, Any]) -> dict[str, str]:
    entry = summary.get("baselines")
    left = entry.get("left-out", {}) if isinstance(entry, Mapping) else {}
    return {_TITLES[name]: str(why) for name, why in left.items() if name in _TITLES}


def baselines_line(
    summary: Mapping[str, Any],
    accuracy: Callable[[float], str] = "{:.4f}".format,
    loss: Callable[[float], str] = fmt.loss,
) -> str:
    """Return test accuracies, or of a regression losses, in one line, "" without any."""
    parts = []
    for name, one in _found(summary).items():
        key, show = ("accuracy", accuracy) if "accuracy" in one else ("loss", loss)
        if isinstance(one.get(key), int | float):
            title = _title(name, one)
            parts.append(f"{title[0].lower()}{title[1:]} {_figure(one, show, key)}")
    parts += [f"{name[0].lower()}{name[1:]}: {why}" for name, why in _left_out(summary).items()]
    return ", ".join(parts).replace("fedAvg", "FedAvg")


def baselines_table(run: RecordedRun, number: int) -> str:
    """Return the table of a run's baselines beside its own numbers, "" without any."""
    found = _found(run.summary)
    left = _left_out(run.summary)
    if not found and not left:
        return ""
    own = {key: run.summary.get(key) for key in ("accuracy", "loss")}
    own["distance"] = run.summary.get("distance-to-optimum")
    shown = [*_COLUMNS[:2], *(one for one in _COLUMNS[2:] if _has(found, one[0]))]
    rows = []
    for name, title, one in (
        ("run", "This run", own),
        *((name, _title(name, one), one) for name, one in found.items()),
    ):
        cells = ""
        for key, _, show in shown:
            value = one.get(key)
            if not isinstance(value, int | float):
                cells += "<td>-</td>"
                continue
            where = f'id="run-{number}-baseline-{name}-{key}" data-value="{value!r}"'
            figure, _, spread = text(_figure(one, show, key)).partition(" (")
            figure += f" <small>({spread}</small>" if spread else ""
            cells += f"<td {where}>{figure}</td>"
        chosen = f" <small>({text(one['setting'])})</small>" if one.get("setting") else ""
        rows.append(f'<tr><th scope="row">{text(title)}{chosen}</th>{cells}</tr>')
    table = html_table(["", *(head for _, head, _ in shown)], rows, "numbers")
    notes = [f"{name}: {why}." for name, why in left.items()]
    if _is_private(run):
        notes.insert(0, _OUTSIDE)
    return table + "".join(f'<p class="soft">{text(note)}</p>' for note in notes)


def baselines_of(runs: Sequence[RecordedRun], names: Sequence[str]) -> str:
    """Return the table of several runs' baselines, test accuracies or losses; "" without any."""
    found = [_found(run.summary) for run in runs]
    rows = []
    for name in _TITLES:
        entries = [one.get(name) for one in found]
        known = next(filter(None, entries), None)
        if known is None:
            continue
        cells = "".join(_cell(number, name, one) for number, one in enumerate(entries))
        rows.append(f'<tr><th scope="row">{text(_title(name, known))}</th>{cells}</tr>')
    if not rows:
        return ""
    note = f'<p class="soft">{_OUTSIDE}</p>' if any(map(_is_private, runs)) else ""
    return html_table(["", *names], rows, "numbers") + note


def _cell(number: int, name: str, one: Mapping[str, Any] | None) -> str:
    key, show = ("accuracy", fmt.fraction) if one and "accuracy" in one else ("loss", fmt.measure)
    if not one or not isinstance(one.get(key), int | float):
        return "<td>-</td>"
    where = f'id="run-{number}-baseline-{name}-{key}" data-value="{one[key]!r}"'
    return f"<td {where}>{text(show(one[key]))}</td>"


def _is_private(run: RecordedRun) -> bool:
    return bool(run.summary.get("private"))
