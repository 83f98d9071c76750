"""The tables of the report: final numbers, privacy account, configuration, rounds.

Every final number is in a cell with an ``id`` and the exact value in ``data-value``, so that
programs can read the page.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from privet.core import format as fmt
from privet.core.format import Number, text
from privet.core.library import LIBRARY_VERSION
from privet.server_apps.config import changed
from privet.server_apps.report.runs import (
    COUNTS,
    MEASURES,
    Privacy,
    Run,
    differing,
    extras_of,
)

_SHOWN_ROUNDS = 20
_SHOWN_INCIDENTS = 30
_SHOWN_OCCASIONS = 8
_SHOWN_AGENTS = 200
_SHOWN_ELSEWHERE = {
    *("accuracy", "loss", "stationarity", "distance-to-optimum", "seconds", "rounds"),
    *("bytes-up", "bytes-down", "private", "privacy", "status", "cause", "failed-round", "plan"),
    *("ended", LIBRARY_VERSION, "run-folder", "config.algorithm", "config.dataset"),
    "residual-unknown",
    *("tags", "notes", "config.tags", "config.notes"),
    *("best.file", "best.metric", "best.value", "best.round", "best.privacy"),
}
"""Entries of a summary that the page shows in another place."""
_PARTS_SHOWN_ELSEWHERE = ("failures.", "baselines.", "late.", "schema.columns.")
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
    ("epsilon", "Privacy spent, ε", fmt.epsilon),
)
_LEAST = ("failures", "loss", "stationarity", "residual", "distance", "bytes-up", "bytes-down")
_BEST: Mapping[str, Callable[[Sequence[Number]], Number]] = {
    "accuracy": max,
    **dict.fromkeys((*_LEAST, "seconds", "epsilon"), min),
}
"""The best of a metric's values, over the runs that did not fail."""
_SHOW: Mapping[str, Show] = {key: show for key, _, show in FINAL}


def shown(key: str, value: Number) -> str:
    """Return a number in the format of the metric ``key``."""
    # Rounding an epsilon to nearest would understate it.
    added: Show = fmt.epsilon if key.startswith("epsilon") else fmt.number
    return _SHOW.get(key, added)(value)


def title(key: str) -> str:
    """Return the title of an added column."""
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
    if key == "failures":
        return sum(bool(one.agent) for one in run.incidents), ""
    if key in {"bytes-up", "bytes-down", "seconds"}:
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


def tiles(run: Run) -> str:
    """Return the recorded final numbers of one run as an HTML list."""
    entries = []
    for key, label in _metrics([run]):
        result = final(run, key)
        if result is not None and not (key == "epsilon" and _is_claimed(run, result[0])):
            content = f"<dd {_attributes(0, key, result)}>{_written(key, result)}</dd>"
            entries.append(f"<div><dt>{label}</dt>{content}</div>")
    return f'<dl class="tiles">{"".join(entries)}</dl>'


def _is_claimed(run: Run, epsilon: Number) -> bool:
    """Return whether the privacy account of a run states the same epsilon."""
    stated = {fmt.epsilon(entry.get("epsilon")) for entry in run.privacy.entries}
    return run.privacy.private is True and fmt.epsilon(epsilon) in stated


def final_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Return the table of final numbers: one column per run, the best of a row marked."""
    rows = []
    for key, label in _metrics(runs):
        numbers = [final(run, key) for run in runs]
        best = _best(key, runs, numbers)
        cells = []
        for number, result in enumerate(numbers):
            kind = "absent" if result is None else "best" if result[0] == best else ""
            marked = f' class="{kind}"' if kind else ""
            content = "not recorded" if result is None else _written(key, result)
            cells.append(f"<td {_attributes(number, key, result)}{marked}>{content}</td>")
        if any(numbers):
            rows.append(f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>')
    return html_table(["", *names], rows, "numbers")


def _metrics(runs: Sequence[Run]) -> list[tuple[str, str]]:
    added = [(key, title(key)) for key in extras_of(runs)]
    return [*((key, label) for key, label, _ in FINAL), *added]


def _best(
    key: str, runs: Sequence[Run], numbers: Sequence[tuple[Number, str] | None]
) -> Number | None:
    """Return the best number of a row, None if all are equal or the metric has no best."""
    known = [
        result[0]
        for run, result in zip(runs, numbers, strict=True)
        if result is not None and run.summary.get("status") != "failed"
    ]
    return _BEST[key](known) if key in _BEST and len(set(known)) > 1 else None


def _attributes(number: int, key: str, result: tuple[Number, str] | None) -> str:
    stored = "" if result is None else f' data-value="{text(_exact(result[0]))}"'
    return f'id="run-{number}-{key}" data-run="{number}" data-metric="{key}"{stored}'


def _written(key: str, result: tuple[Number, str]) -> str:
    value, remark = result
    return text(shown(key, value)) + (f" <small>({text(remark)})</small>" if remark else "")


def _exact(value: Number) -> str:
    return repr(value) if math.isfinite(value) else str(float(value))


def privacy_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Return the table of privacy statements, or "" when no run folder has an account."""
    rows = [
        _privacy_row(number, position, name, entry, run.privacy)
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        for position, entry in enumerate(entries_of(run.privacy))
    ]
    return html_table(["Run", *_PRIVACY.values()], rows, "account") if rows else ""


def entries_of(privacy: Privacy) -> list[dict[str, Any]]:
    """Return the account's entries, merging those that differ only in their observer."""
    merged: dict[str, dict[str, Any]] = {}
    for entry in privacy.entries:
        same = repr({key: value for key, value in entry.items() if key != "to"})
        to = str(entry.get("to", "coordinator"))
        if same in merged:
            to = f"{merged[same]['to']} and {to}"
        merged[same] = {**entry, "to": to}
    return list(merged.values())


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
    """Return the settings: those that differ, those not at their default, the rest folded."""
    columns = [_settings(run) for run in runs]
    chosen = {key for run in runs for key in _chosen(run)}
    different_keys = set(differing(columns)) if len(runs) > 1 else set()
    parts: list[list[str]] = [[], [], []]
    for key in dict.fromkeys(key for column in columns for key in column):
        values = [fmt.setting(column[key]) if key in column else "absent" for column in columns]
        cells = "".join(
            f'<td data-run="{number}" data-key="{text(key)}">{text(value)}</td>'
            for number, value in enumerate(values)
        )
        rank = 0 if key in different_keys else 1 if key in chosen else 2
        name = text(key.removeprefix("config."))
        parts[rank].append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    different, given, others = parts
    result = []
    if different:
        result.append(f"<h3>Different</h3>{html_table(['', *names], different, 'settings')}")
    if given:
        heading = "<h3>The same, and not the defaults</h3>" if len(runs) > 1 else ""
        result.append(f"{heading}{html_table(['', *names], given, 'settings')}")
    if others:
        table = html_table(["", *names], others, "settings")
        result.append(f"<details><summary>{len(others)} others</summary>{table}</details>")
    return "\n".join(result)


def _settings(run: Run) -> dict[str, Any]:
    """Return the entries of summary and configuration that the page does not show elsewhere."""
    return {
        key: value
        for key, value in fmt.flat(run.summary).items()
        if key not in _SHOWN_ELSEWHERE and not key.startswith(_PARTS_SHOWN_ELSEWHERE)
    }


def _chosen(run: Run) -> set[str]:
    config = run.summary.get("config")
    chosen = changed(config) if isinstance(config, dict) else {}
    return {"algorithm", "dataset", *(f"config.{key}" for key in chosen)}


def agents_table(run: Run, number: int) -> str:
    """Return the table of agents: rounds, failures, bytes and epsilon; "" without agents.

    Where uploads are folded as they come, also how old the models were that an agent was sent, in
    versions, and how many of its tasks were withdrawn.
    """
    rounds: Counter[str] = Counter()
    up: defaultdict[str, float] = defaultdict(float)
    sent = dict(zip(*run.series("bytes-up"), strict=True))
    for t, names in zip(run.rounds, run.participants, strict=True):
        rounds.update(names)
        for name in names:
            up[name] += sent.get(t, 0) / len(names)
    failures = Counter(one.agent for one in run.incidents if one.agent)
    ages: defaultdict[str, list[int]] = defaultdict(list)
    for names, of_round in zip(run.participants, run.ages, strict=True) if any(run.ages) else ():
        for name, age in zip(names, of_round, strict=True):
            ages[name].append(age)
    agents = sorted({*rounds, *failures, *run.privacy.agents}, key=_in_order)
    rows = []
    for name in agents[:_SHOWN_AGENTS]:
        account = run.privacy.agents.get(name)
        spent = account.get("epsilon") if isinstance(account, dict) else None
        epsilon = fmt.epsilon(spent) if run.privacy.private is True else "-"
        old = ages[name]
        aged = (f"{sum(old) / len(old):.1f}", max(old)) if old else ("-", "-")
        late = run.late[name].late if name in run.late else 0
        cells = (
            rounds[name],
            *((*aged, late) if any(run.ages) else ()),
            failures[name],
            fmt.byte_count(round(up[name]) if math.isfinite(up[name]) else up[name]),
            epsilon,
        )
        rows.append(
            f'<tr data-run="{number}" data-agent="{text(name)}"><th scope="row">{text(name)}</th>'
            + "".join(f"<td>{text(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    if not rows:
        return ""
    hidden = len(agents) - len(rows)
    more = f'<p class="soft">{hidden} more in history.jsonl.</p>' if hidden else ""
    heads = ["Agent", "Rounds", "Failures", "Bytes up, equal shares of a round", "ε"]
    if any(run.ages):
        heads[1:2] = ["Uploads", "Age, mean", "Age, largest", "Withdrawn"]
    return html_table(heads, rows, "numbers") + more


def _in_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def incidents_table(run: Run, number: int) -> str:
    """Return the table of failures and notes, grouped by reason; "" if there are none."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for incident in run.incidents:
        rounds.setdefault((incident.agent, incident.text), []).append(incident.round)
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (agent, reason), when in rounds.items():
        together.setdefault((reason, tuple(when)), []).append(agent)
    rows = [
        f'<tr data-run="{number}"><th scope="row">{text(_some(agents)) or "-"}</th>'
        f'<td>{text(reason)}</td><td data-value="{len(when)}">{len(when)}</td>'
        f"<td>{text(_some(when))}</td></tr>"
        for (reason, when), agents in list(together.items())[:_SHOWN_INCIDENTS]
    ]
    if not rows:
        return ""
    table = html_table(["Agents", "What", "Times", "Rounds"], rows, "settings")
    hidden = len(together) - len(rows)
    more = f'<p class="soft">{hidden} more in history.jsonl.</p>' if hidden else ""
    return table + more


def _some(items: Sequence[object]) -> str:
    if len(items) <= _SHOWN_OCCASIONS:
        return ", ".join(map(str, items))
    head = ", ".join(map(str, items[: _SHOWN_OCCASIONS - 1]))
    return f"{head} ... {items[-1]}"


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
    return html_table(["round", *keys], rows, "numbers")


def html_table(heads: Sequence[str], rows: Sequence[str], kind: str) -> str:
    """Wrap rows, whose cells are HTML already, in a table that scrolls sideways."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
