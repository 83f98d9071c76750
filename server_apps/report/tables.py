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
from privet.core.errors import PrivetError
from privet.core.format import Number, text
from privet.core.library import LIBRARY_VERSION
from privet.core.registry import algorithm
from privet.rounds.half import STEP_KEYS

from ..account import ASSUMPTIONS
from ..config import changed
from .runs import (
    COUNTS,
    MEASURES,
    PLACES,
    RecordedPrivacy,
    RecordedRun,
    differing,
    extras_of,
    settings_of,
)

_SHOWN_ROUNDS = 20
_SHOWN_INCIDENTS = 30
_SHOWN_OCCASIONS = 8
_SHOWN_AGENTS = 200
_SHOWN_ELSEWHERE = {
    *("accuracy", "loss", "stationarity", "distance-to-optimum", "seconds", "rounds"),
    *("bytes-up", "bytes-down", "private", "privacy", "status", "cause", "failed-round", "plan"),
    *("ended", LIBRARY_VERSION, "run-folder", "config.algorithm", "config.dataset"),
    *("objective-excess", "residual-unknown", "pooled-optimum", "estimated-error"),
    *("tags", "notes", "config.tags", "config.notes"),
    *("best.file", "best.metric", "best.value", "best.round", "best.privacy"),
}
"""Entries of a summary that the page shows in another place."""
_PARTS_SHOWN_ELSEWHERE = (
    "failures.",
    "baselines.",
    "late.",
    "odd-sites.",
    "schema.columns.",
    "sha-256.",
    "records.",
)
_PRIVACY = {
    "to": "Towards",
    "epsilon": "ε",
    "delta": "δ",
    "assumptions": "Provided that",
}
_TECHNICAL = {
    "observer": "Towards",
    "method": "Method",
    "as-printed": "ε by the paper's formula, which is no promise",
    "sampler": "The sampler of the noise",
}
_LISTS = ("assumptions", "sampler")

Show = Callable[[Number], str]

FINAL: tuple[tuple[str, str, Show], ...] = (
    ("accuracy", "Accuracy", fmt.fraction),
    ("objective", "Pooled objective above its least", fmt.measure),
    ("loss", "Loss", fmt.measure),
    ("epsilon", "Privacy spent, ε", fmt.epsilon),
    ("rounds", "Rounds finished", fmt.number),
    ("participants", "Agents per round, mean", fmt.number),
    ("failures", "Failures, total", fmt.number),
    ("stationarity", "Stationarity", fmt.measure),
    ("residual", "Fixed-point residual", fmt.measure),
    ("distance", "Distance to the optimum", fmt.measure),
    ("bytes-up", "Bytes up, total", fmt.byte_count),
    ("bytes-down", "Bytes down, total", fmt.byte_count),
    ("seconds", "Time in rounds", fmt.duration),
)
_LEAST = (
    *("failures", "loss", "objective", "stationarity", "residual", "distance"),
    *("bytes-up", "bytes-down"),
)
_BEST: Mapping[str, Callable[[Sequence[Number]], Number]] = {
    "accuracy": max,
    **dict.fromkeys((*_LEAST, "seconds", "epsilon"), min),
}
"""The best of a metric's values, over the runs that did not fail."""
_DATA = ("dataset", "data-path", "data-seed", "label-column")
_OBJECTIVE = (*_DATA, "loss", "regularizer", "regularizer-weight")
_FIRST = ("Accuracy", "Pooled objective above its least", "Loss", "Privacy spent, ε")
_WORK = (*_DATA, "num-agents", "num-server-rounds", "asynchronous")
_COMPARABLE: Mapping[str, tuple[str, ...]] = {
    "accuracy": _DATA,
    **dict.fromkeys(("loss", "objective", "stationarity", "distance"), _OBJECTIVE),
    # It measures how far an algorithm is from its own fixed point.
    "residual": ("algorithm", *_OBJECTIVE),
    **dict.fromkeys(("bytes-up", "bytes-down", "seconds"), _WORK),
    "epsilon": ("delta", "relation"),
}
"""Settings in which runs must agree for a metric to mean the same in all of them."""
_SHOW: Mapping[str, Show] = {key: show for key, _, show in FINAL}


def shown(key: str, value: Number) -> str:
    """Return a number in the format of the metric ``key``."""
    # Rounding an epsilon to nearest would understate it.
    added: Show = fmt.epsilon if key.startswith("epsilon") else fmt.number
    return _SHOW.get(key, added)(value)


def title(key: str) -> str:
    """Return the title of an added column."""
    return key.replace("-", " ").capitalize()


def final(run: RecordedRun, key: str) -> tuple[Number, str] | None:
    """Return a final number and a remark, or None when it was not recorded.

    Losses, accuracies and the like are the last recorded; bytes, seconds and failures are sums
    over rounds; participants are the mean.
    """
    if key == "rounds":
        return len(run.rounds), ""
    if key == "distance":
        return _distance(run.summary)
    if key == "objective":
        excess = run.summary.get("objective-excess")
        return (excess, "") if isinstance(excess, int | float) else None
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


def figure(run: RecordedRun, key: str) -> str:
    """Return the final number of one run as a term and its value, "" where it was not recorded."""
    result = final(run, key)
    label = dict(_metrics([run]))[key]
    if result is None:
        return ""
    return f"<dt>{label}</dt><dd {attributes(0, key, result)}>{_written(key, result)}</dd>"


def figures(run: RecordedRun, without: Sequence[str]) -> str:
    """Return the final numbers of one run as entries of an HTML list, but those of some keys."""
    shown = [figure(run, key) for key, _ in _metrics([run]) if key not in without]
    return "".join(f"<div>{one}</div>" for one in shown if one)


def is_claimed(run: RecordedRun) -> bool:
    """Return whether the privacy account of a run states the epsilon of its history."""
    spent = run.last("epsilon")
    stated = {fmt.epsilon(entry.get("epsilon")) for entry in run.privacy.entries}
    return run.privacy.private is True and spent is not None and fmt.epsilon(spent[1]) in stated


def final_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> str:
    """Return the table of final numbers: one column per run, the best of a row marked."""
    cells = _final_cells(runs)
    rows = [f'<tr><th scope="row">{label}</th>{"".join(row)}</tr>' for label, row in cells.items()]
    return html_table(["", *names], rows, "numbers")


def sortable_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> str:
    """Return the table of final numbers of many runs: one row per run, with what differs.

    The script of the page sorts it by the ``data-value`` of cells, or else by their text.
    """
    settings = [settings_of(run) for run in runs]
    chosen = {key for one in settings for key in changed(one)} - {*PLACES, "algorithm"}
    given = {
        text(key): [
            f'<td data-key="{text(key)}">{text(fmt.setting(one[key])) if key in one else "-"}</td>'
            for one in settings
        ]
        for key in differing(settings)
        if key in chosen
    }
    # What is read first stands where a phone shows it, before the settings.
    numbers = _final_cells(runs)
    leading = {label: numbers[label] for label in _FIRST if label in numbers}
    cells = leading | given | numbers
    rows = [
        f'<tr data-run="{number}"><th scope="row">{name}</th>'
        + "".join(column[number] for column in cells.values())
        + "</tr>"
        for number, name in enumerate(names)
    ]
    return html_table(["Run", *cells], rows, "numbers sortable")


def _final_cells(runs: Sequence[RecordedRun]) -> dict[str, list[str]]:
    """Return the cells of the final numbers, a list over the runs by each label."""
    found: dict[str, list[str]] = {}
    for key, label in _metrics(runs):
        numbers = [final(run, key) for run in runs]
        if not any(numbers):
            continue
        best = _best(key, runs, numbers)
        cells = []
        for number, result in enumerate(numbers):
            kind = "absent" if result is None else "best" if result[0] == best else ""
            marked = f' class="{kind}"' if kind else ""
            content = "not recorded" if result is None else _written(key, result)
            cells.append(f"<td {attributes(number, key, result)}{marked}>{content}</td>")
        found[label] = cells
    if any(tuned := [_tuned(run) for run in runs]):
        found["Method's settings"] = [
            f'<td data-run="{number}" data-tuned>{text(one) or "-"}</td>'
            for number, one in enumerate(tuned)
        ]
    return found


def _tuned(run: RecordedRun) -> str:
    """Return which of the settings that `tune` searches a run was given, "" where unknown."""
    config = run.summary.get("config")
    if not isinstance(config, dict):
        return ""
    try:
        searched = algorithm(str(config.get("algorithm"))).load_strategy().search
    except PrivetError:
        return ""
    keys = (*STEP_KEYS, *(axis.key for axis in searched))
    given = {key: value for key, value in changed(config).items() if key in keys}
    settings = ", ".join(f"{key}={fmt.setting(value)}" for key, value in given.items())
    return settings or "defaults, not tuned"


def _metrics(runs: Sequence[RecordedRun]) -> list[tuple[str, str]]:
    added = [(key, title(key)) for key in extras_of(runs)]
    return [*((key, label) for key, label, _ in FINAL), *added]


def _best(
    key: str, runs: Sequence[RecordedRun], numbers: Sequence[tuple[Number, str] | None]
) -> Number | None:
    """Return the best number of a row.

    None if all are equal, the metric has no best, or the numbers are not of the same quantity. A
    loss is that of a model on its way where the pooled objective is not near its least yet, and
    less than another for that reason alone: no such run has the best.
    """
    settings = [settings_of(run) for run in runs]
    if any(same in _COMPARABLE.get(key, ()) for same in differing(settings)):
        return None
    known = [
        result[0]
        for run, result in zip(runs, numbers, strict=True)
        if result is not None and run.summary.get("status") not in ("failed", "diverged")
        if key != "loss" or _has_converged(run, result[0])
    ]
    return _BEST[key](known) if key in _BEST and len(set(known)) > 1 else None


_NEAR = 0.01
"""Share of the loss by which the pooled objective of a run that converged is above its least."""


def _has_converged(run: RecordedRun, loss: Number) -> bool:
    """Whether the pooled objective is near its least, or that is not known."""
    excess = final(run, "objective")
    return excess is None or excess[0] <= _NEAR * abs(loss)


def attributes(number: int, key: str, result: tuple[Number, str] | None) -> str:
    """Return the attributes of the element that shows a final number, its exact value in them."""
    stored = "" if result is None else f' data-value="{text(_exact(result[0]))}"'
    return f'id="run-{number}-{key}" data-run="{number}" data-metric="{key}"{stored}'


def _written(key: str, result: tuple[Number, str]) -> str:
    value, remark = result
    if key == "epsilon" and remark == "not private" and math.isinf(value):
        return "not private"
    return text(shown(key, value)) + (f" <small>({text(remark)})</small>" if remark else "")


def _exact(value: Number) -> str:
    return repr(value) if math.isfinite(value) else str(float(value))


def privacy_table(runs: Sequence[RecordedRun], names: Sequence[str], *, technical: bool) -> str:
    """Return the table of what is promised, or of its technical lines; "" without an account."""
    columns = _TECHNICAL if technical else _PRIVACY
    rows = [
        _privacy_row(number, position, name, entry, run.privacy, columns)
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        for position, entry in enumerate(entries_of(run.privacy))
    ]
    heads = ["Run", *columns.values()]
    return html_table(heads, rows, "account") if rows else ""


def entries_of(privacy: RecordedPrivacy) -> list[dict[str, Any]]:
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
    number: int,
    position: int,
    name: str,
    entry: Mapping[str, Any],
    privacy: RecordedPrivacy,
    columns: Mapping[str, str],
) -> str:
    cells = [f'<th scope="row">{name}</th>']
    entry = {**entry, "observer": entry.get("to"), **_assumptions(entry.get("assumptions"))}
    for key, head in columns.items():
        value = entry.get(key)
        where = f'id="run-{number}-privacy-{position}-{key}" data-label="{head}"'
        if key in {"epsilon", "as-printed"}:
            content = text(fmt.epsilon(value))
            void = key == "epsilon" and privacy.private is False
            content += " <small>(not private)</small>" if void else ""
        elif key in _LISTS and isinstance(value, list):
            content = f"<ul>{''.join(f'<li>{text(item)}</li>' for item in value)}</ul>"
        else:
            content = text(fmt.stated(value) if key == "delta" else fmt.setting(value))
        exact = value if isinstance(value, str) or value is None else repr(value)
        stored = "" if key in _LISTS or exact is None else f' data-value="{text(exact)}"'
        cells.append(f"<td {where}{stored}>{content}</td>")
    return f"<tr>{''.join(cells)}</tr>"


SAMPLER = ASSUMPTIONS[-1:]
"""The assumption on the noise's sampler, which is technical."""


def _assumptions(lines: Any) -> dict[str, Any]:
    """Return an account's assumptions, those on the noise's sampler apart."""
    if not isinstance(lines, list):
        return {}
    return {
        "assumptions": [line for line in lines if line not in SAMPLER],
        "sampler": [line for line in lines if line in SAMPLER],
    }


def settings_table(
    runs: Sequence[RecordedRun], names: Sequence[str], *, different: bool = True
) -> str:
    """Return the settings: those that differ, those not at their default, the rest folded.

    Without ``different`` those that differ and are not defaults are left out: they have columns in
    `sortable_table`.
    """
    columns = [_settings(run) for run in runs]
    several = len(runs) > 1
    chosen = {key for run in runs for key in _chosen(run)}
    unequal = set(differing(columns)) if several else set()
    parts: defaultdict[tuple[bool, bool], list[str]] = defaultdict(list)
    for key in dict.fromkeys(key for column in columns for key in column):
        if several and key.removeprefix("config.") in PLACES:
            continue
        values = [fmt.setting(column[key]) if key in column else "-" for column in columns]
        cells = "".join(
            f'<td data-run="{number}" data-key="{text(key)}">{text(value)}</td>'
            for number, value in enumerate(values if key in unequal else values[:1])
        )
        name = text(key.removeprefix("config."))
        row = f'<tr><th scope="row">{name}</th>{cells}</tr>'
        parts[key in unequal, key in chosen].append(row)
    equal = ["", "All runs" if several else names[0]]
    result = []
    if different and (rows := parts[True, True]):
        result.append(f"<h3>Different</h3>{html_table(['', *names], rows, 'settings')}")
    if rows := parts[False, True]:
        heading = "<h3>The same in all, and not the defaults</h3>" if several else ""
        result.append(f"{heading}{html_table(equal, rows, 'settings')}")
    for differ, heads, what in (
        (True, ["", *names], "others that differ"),
        (False, equal, "others that are the same" if several else "others"),
    ):
        if rows := parts[differ, False]:
            table = html_table(heads, rows, "settings")
            result.append(f"<details><summary>{len(rows)} {what}</summary>{table}</details>")
    return "\n".join(result)


def _settings(run: RecordedRun) -> dict[str, Any]:
    """Return the entries of summary and configuration that the page does not show elsewhere."""
    return {
        key: value
        for key, value in fmt.flat(run.summary).items()
        if key not in _SHOWN_ELSEWHERE and not key.startswith(_PARTS_SHOWN_ELSEWHERE)
    }


def _chosen(run: RecordedRun) -> set[str]:
    config = run.summary.get("config")
    chosen = changed(config) if isinstance(config, dict) else {}
    return {"algorithm", "dataset", *(f"config.{key}" for key in chosen)}


def agents_table(run: RecordedRun, number: int) -> str:
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
        for name, age in zip(names, of_round, strict=False):  # a round may have no ages
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


def incidents_table(run: RecordedRun, number: int) -> str:
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


def rounds_table(run: RecordedRun, number: int) -> str:
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


def numbers_table(heads: Sequence[str], rows: Sequence[str]) -> str:
    """As `html_table`, of an analysis: heads are texts, some of them names of the sites' data."""
    return html_table([text(head) for head in heads], rows, "numbers")


def of_sites(names: Sequence[str]) -> str:
    """Return how many sites there are."""
    return "1 site" if len(names) == 1 else f"{len(names)} sites"


def p_cell(value: float | None) -> str:
    """Return a p-value as HTML, or nothing for one that there is not."""
    if value is None:
        return ""
    return "&lt; 0.001" if value < 0.001 else f"{value:.3f}"


def in_cell(value: Number | None) -> str:
    """Return a number as HTML, or nothing for one that there is not."""
    return "" if value is None else text(fmt.number(value))
