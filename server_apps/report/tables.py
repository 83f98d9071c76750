"""The tables of the report: final numbers, privacy account, configuration, rounds.

Every final number sits in a cell with an ``id`` and the exact value in ``data-value``, so that
programs read the same page as people do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from privet.server_apps.report import format as fmt
from privet.server_apps.report.format import Number, text
from privet.server_apps.report.runs import COUNTS, MEASURES, Privacy, Run, extras_of

_SHOWN_ROUNDS = 20
_SHOWN_INCIDENTS = 30
_SHOWN_OCCASIONS = 8
_PRIVACY = {
    "to": "Towards",
    "epsilon": "ε",
    "delta": "δ",
    "method": "Method",
    "assumptions": "Assumptions",
    "as-printed": "ε as printed in the paper",
}

Show = Callable[[Number], str]

FINAL: tuple[tuple[str, str, Show], ...] = (
    ("rounds", "Rounds finished", fmt.number),
    ("participants", "Agents per round, mean", fmt.number),
    ("failures", "Failures, total", fmt.number),
    ("loss", "Loss", fmt.number),
    ("accuracy", "Accuracy", fmt.fraction),
    ("stationarity", "Stationarity", fmt.number),
    ("residual", "Fixed-point residual", fmt.number),
    ("distance", "Distance to the optimum", fmt.number),
    ("bytes-up", "Bytes up, total", fmt.byte_count),
    ("bytes-down", "Bytes down, total", fmt.byte_count),
    ("seconds", "Time in rounds", fmt.duration),
    ("epsilon", "Privacy spent, ε of the agents' ledgers", fmt.epsilon),
)
_SHOW: Mapping[str, Show] = {key: show for key, _, show in FINAL}


def shown(key: str, value: Number) -> str:
    """Return a number as the metric of that name is written."""
    # Rounding an epsilon to nearest would understate it.
    added: Show = fmt.epsilon if key.startswith("epsilon") else fmt.number
    return _SHOW.get(key, added)(value)


def title(key: str) -> str:
    """Return the name of an added column in words."""
    return key.replace("-", " ").capitalize()


def final(run: Run, key: str) -> tuple[Number, str] | None:
    """Return a final number and a remark, or None when it was not recorded.

    Losses, accuracies and the like are the last recorded; bytes, seconds and failures are sums
    over rounds; participants are the mean.
    """
    if key == "rounds":
        return len(run.rounds), ""
    if key == "distance":
        return _distance(run.summary)
    if key == "participants":
        _, counts = run.series(key)
        return (sum(counts) / len(counts), "") if counts else None
    if key in {"failures", "bytes-up", "bytes-down", "seconds"}:
        total = run.total(key)
        return None if total is None else (total, "")
    last = run.last(key)
    if last is None:
        return None
    t, value = last
    remarks = [f"round {t}"] if t != run.rounds[-1] else []
    if key == "epsilon" and run.privacy.private is False:
        remarks.append("not private")
    return value, ", ".join(remarks)


def _distance(summary: Mapping[str, Any]) -> tuple[Number, str] | None:
    measured = {key: value for key, value in summary.items() if key != "config"}
    for key, value in fmt.flat(measured).items():
        name = key.lower().replace("_", "-").replace(" ", "-")
        if "distance" in name and isinstance(value, int | float) and not isinstance(value, bool):
            return value, ""
    return None


def final_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Return the table of final numbers: one column per run, a dash where nothing was recorded."""
    rows = []
    added = [(key, title(key)) for key in extras_of(runs)]
    for key, label in (*((key, label) for key, label, _ in FINAL), *added):
        cells = [_final_cell(number, key, final(run, key)) for number, run in enumerate(runs)]
        if any("data-value" in cell for cell in cells):
            rows.append(f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>')
    return _table(["", *names], rows, "numbers")


def _final_cell(number: int, key: str, found: tuple[Number, str] | None) -> str:
    where = f'id="run-{number}-{key}" data-run="{number}" data-metric="{key}"'
    if found is None:
        return f'<td {where} class="absent">not recorded</td>'
    value, remark = found
    note = f" <small>({text(remark)})</small>" if remark else ""
    return f'<td {where} data-value="{text(_exact(value))}">{text(shown(key, value))}{note}</td>'


def _exact(value: Number) -> str:
    return repr(value) if math.isfinite(value) else str(float(value))


def privacy_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Return the table of privacy statements, or "" when no run folder has an account."""
    rows = [
        _privacy_row(number, position, name, entry, run.privacy)
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        for position, entry in enumerate(run.privacy.entries)
    ]
    return _table(["Run", *_PRIVACY.values()], rows, "account") if rows else ""


def _privacy_row(
    number: int, position: int, name: str, entry: Mapping[str, Any], privacy: Privacy
) -> str:
    cells = [f'<th scope="row">{name}</th>']
    for key, head in _PRIVACY.items():
        value = entry.get(key)
        where = f'id="run-{number}-privacy-{position}-{key}" data-label="{head}"'
        if key in {"epsilon", "as-printed"}:
            content = text(fmt.epsilon(value))
            void = key == "epsilon" and privacy.private is False
            content += " <small>(not private)</small>" if void else ""
        elif key == "assumptions" and isinstance(value, list):
            content = f"<ul>{''.join(f'<li>{text(item)}</li>' for item in value)}</ul>"
        else:
            content = text(fmt.stated(value) if key == "delta" else fmt.setting(value))
        exact = value if isinstance(value, str) or value is None else repr(value)
        stored = "" if key == "assumptions" or exact is None else f' data-value="{text(exact)}"'
        cells.append(f"<td {where}{stored}>{content}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def settings_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Return summaries and configurations side by side: what differs, then folded the rest."""
    columns = [fmt.flat(run.summary) for run in runs]
    differing: list[str] = []
    common: list[str] = []
    for key in dict.fromkeys(key for column in columns for key in column):
        values = [fmt.setting(column[key]) if key in column else "absent" for column in columns]
        cells = "".join(
            f'<td data-run="{number}" data-key="{text(key)}">{text(value)}</td>'
            for number, value in enumerate(values)
        )
        rows = differing if len(set(values)) > 1 else common
        rows.append(f'<tr><th scope="row">{text(key)}</th>{cells}</tr>')
    parts = [_table(["", *names], differing, "settings")] if differing else []
    if common:
        what = f"{len(common)} entries" + (" that are the same in all runs" if differing else "")
        table = _table(["", *names], common, "settings")
        parts.append(f"<details><summary>{what}</summary>{table}</details>")
    return "\n".join(parts)


def incidents_table(run: Run, number: int) -> str:
    """Return who failed in which rounds and why, equal reasons together; "" when all went well."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for incident in run.incidents:
        rounds.setdefault((incident.agent, incident.text), []).append(incident.round)
    rows = [
        f'<tr data-run="{number}"><th scope="row">{text(agent) or "-"}</th>'
        f'<td>{text(reason)}</td><td data-value="{len(when)}">{len(when)}</td>'
        f"<td>{text(_some(when))}</td></tr>"
        for (agent, reason), when in list(rounds.items())[:_SHOWN_INCIDENTS]
    ]
    if not rows:
        return ""
    table = _table(["Agent", "What", "Times", "Rounds"], rows, "settings")
    hidden = len(rounds) - len(rows)
    more = f'<p class="soft">{hidden} more in history.jsonl.</p>' if hidden else ""
    return table + more


def _some(rounds: Sequence[int]) -> str:
    if len(rounds) <= _SHOWN_OCCASIONS:
        return ", ".join(map(str, rounds))
    head = ", ".join(map(str, rounds[: _SHOWN_OCCASIONS - 1]))
    return f"{head} ... {rounds[-1]}"


def rounds_table(run: Run, number: int) -> str:
    """Return at most twenty rounds, evenly spaced, the first and the last among them."""
    count = len(run.rounds)
    step = max(1, math.ceil((count - 1) / (_SHOWN_ROUNDS - 1))) if count else 1
    positions = sorted({*range(0, count, step), *([count - 1] if count else [])})
    keys = [
        key
        for key in (*COUNTS, *MEASURES, *run.extras)
        if any(value is not None for value in run.columns[key])
    ]
    rows = []
    for position in positions:
        cells = []
        for key in keys:
            value = run.columns[key][position]
            known = "" if value is None else f' data-value="{text(_exact(value))}"'
            written = "" if value is None else text(shown(key, value))
            cells.append(f'<td data-metric="{key}"{known}>{written}</td>')
        t = run.rounds[position]
        rows.append(
            f'<tr data-run="{number}" data-round="{t}"><th scope="row">{t}</th>'
            f"{''.join(cells)}</tr>"
        )
    return _table(["round", *keys], rows, "numbers")


def _table(heads: Sequence[str], rows: Sequence[str], kind: str) -> str:
    """Wrap rows, whose cells are HTML already, in a table that scrolls sideways on its own."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
