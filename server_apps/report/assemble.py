"""The report of one run or the comparison of several: one HTML file, readable on a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from privet.server_apps.report import format as fmt
from privet.server_apps.report import plots, tables
from privet.server_apps.report.document import document
from privet.server_apps.report.files import PAGE, Output, write_outputs
from privet.server_apps.report.format import text
from privet.server_apps.report.runs import ReportError, Run, read_runs

__all__ = ["ReportError", "page", "write_report"]

_TILES = (
    "accuracy",
    "loss",
    "stationarity",
    "distance",
    "bytes-up",
    "bytes-down",
    "seconds",
    "rounds",
)
_HIDDEN_VALUES = "infinite or too large, not drawn"
_HIDDEN = {
    "epsilon": "infinite ε, no guarantee",
    "stationarity": "zero, negative, infinite or too large, not drawn",
}
_DEFINITIONS = (
    "Loss, accuracy and stationarity are as the run recorded them, at the last round that has "
    "them; lower stationarity is closer to a stationary point of the objective. Bytes are the "
    "array and bytes contents of the messages, without transport; 1 kB is 1000 B. An ε is "
    "rounded up, and means something only with its δ and the assumptions beside it. The ε of a "
    "round is the largest total in any agent's own ledger, which adds up more cautiously than the "
    "account, and over all the runs the ledger knows."
)


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write one self-contained HTML file about the runs and return its path.

    Reads ``history.jsonl`` of each folder and, where present, ``summary.json`` and
    ``privacy.json``. The file loads nothing, contains no script, and needs no JavaScript; every
    final number is in a cell ``#run-<position>-<metric>`` with its exact value in ``data-value``.
    Curves need matplotlib (the ``plots`` extra); without it the page says so and has everything
    else. Equal run folders give an equal file, byte for byte, on one version of matplotlib.

    Parameters
    ----------
    run_dirs : sequence of path
        Run folders; several are drawn on the same axes.
    out : path
        The file to write; a folder means ``report.html`` inside it.

    Raises
    ------
    ReportError
        No run folder, or one whose files are missing or malformed: file, line, expectation. Or
        ``out`` is a file that a run left behind.
    """
    folders = [Path(folder) for folder in run_dirs]
    path = Path(out) / PAGE if Path(out).is_dir() else Path(out)
    content = page(read_runs(folders))
    write_outputs([Output("out", path, content, is_page=True)], folders)
    return path


def page(runs: Sequence[Run]) -> bytes:
    """Return the HTML file about runs that have been read."""
    names = [text(run.label) for run in runs]
    title = _title(runs)
    incidents = "\n".join(
        (f"<h3>{name}</h3>" if len(runs) > 1 else "") + table
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        if (table := tables.incidents_table(run, number))
    )
    details = "\n".join(
        f"<details><summary>{name}: rounds at a glance</summary>"
        f"{tables.rounds_table(run, number)}</details>"
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        if run.rounds
    )
    parts = [
        f"<header><h1>{text(title)}</h1>\n{_outcomes(runs)}</header>",
        _section("Final numbers", tables.final_table(runs, names)),
        _section("Curves", _curves(runs)),
        _section("Failures and notes", incidents),
        _section("Privacy account", tables.privacy_table(runs, names)),
        _section("Summary and configuration", tables.settings_table(runs, names)),
        _section("Rounds", details),
        f"<footer><p>{_DEFINITIONS}</p></footer>",
    ]
    return document(title, "\n".join(part for part in parts if part)).encode()


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>\n{content}</section>" if content else ""


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"Comparison of {len(runs)} runs"
    algorithm, dataset = (runs[0].summary.get(key) for key in ("algorithm", "dataset"))
    if algorithm and dataset:
        return f"{algorithm} on {dataset}"
    return str(algorithm or runs[0].name)


def _outcomes(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        run = runs[0]
        tiles = "".join(_tile(run, key) for key in _TILES)
        return (
            f'<div class="outcome"><p class="soft">{text(run.name)}</p>\n'
            f'<dl class="tiles">{tiles}</dl>\n{_remarks(run)}</div>'
        )
    return "\n".join(
        f'<div class="outcome"><h3>{_swatch(number)} {text(run.label)}</h3>{_full_name(run)}\n'
        f"<p>{text(_sentence(run))}</p>\n{_remarks(run)}</div>"
        for number, run in enumerate(runs)
    )


def _full_name(run: Run) -> str:
    return f'<p class="soft">{text(run.name)}</p>' if run.label != run.name else ""


def _tile(run: Run, key: str) -> str:
    found = tables.final(run, key)
    if found is None:
        return ""
    label = next(label for name, label, _ in tables.FINAL if name == key)
    value, remark = found
    note = f"<small>{text(remark)}</small>" if remark else ""
    return f"<div><dt>{label}</dt><dd>{text(tables.shown(key, value))}{note}</dd></div>"


def _sentence(run: Run) -> str:
    head = " on ".join(
        str(run.summary[key]) for key in ("algorithm", "dataset") if key in run.summary
    )
    count = len(run.rounds)
    facts = [f"{count} round{'' if count == 1 else 's'}"]
    for key, pattern in (
        ("accuracy", "accuracy {}"),
        ("loss", "loss {}"),
        ("stationarity", "stationarity {}"),
        ("bytes-up", "{} up"),
        ("bytes-down", "{} down"),
    ):
        found = tables.final(run, key)
        if found is not None:
            facts.append(pattern.format(tables.shown(key, found[0])))
    return f"{head}: {', '.join(facts)}." if head else f"{', '.join(facts)}."


def _remarks(run: Run) -> str:
    """What must not be overlooked: nothing happened, divergence, privacy, repaired history."""
    result = [] if run.rounds else ['<p class="warn">No round was finished.</p>']
    if run.summary.get("status") == "failed":
        cause = text(run.summary.get("cause", "no cause recorded"))
        result.append(f'<p class="warn" data-status="failed">The run failed: {cause}</p>')
    loss = run.last("loss")
    if loss is not None and math.isinf(loss[1]):
        result.append('<p class="warn">The run diverged: its last loss is infinite.</p>')
    result.append(_privacy_statement(run))
    result += [f'<p class="soft">History: {text(note)}.</p>' for note in run.notes]
    return "\n".join(result)


def _privacy_statement(run: Run) -> str:
    privacy = run.privacy
    if privacy.private is False:
        why = privacy.reason.removeprefix("not private: ")
        reason = f": {text(why)}" if why else ""
        return (
            f'<p class="warn" data-privacy="not-private"><strong>Not private</strong>{reason}</p>'
        )
    if not privacy.entries:
        return '<p class="soft" data-privacy="none">No privacy account: no privacy is claimed.</p>'
    claims = []
    for entry in privacy.entries:
        shown = fmt.epsilon(entry["epsilon"])
        towards = f"towards the {text(entry.get('to', 'coordinator'))}"
        if shown == "∞":
            claims.append(f"no guarantee {towards} (ε = ∞)")
        else:
            delta = text(fmt.stated(entry.get("delta")))
            claims.append(f"ε = {text(shown)} at δ = {delta} {towards}")
    return f'<p data-privacy="account">Privacy: {"; ".join(claims)}.</p>'


def _curves(runs: Sequence[Run]) -> str:
    if not plots.have_matplotlib():
        return (
            '<p class="warn" id="no-plots">Curves need matplotlib, which is not installed here: '
            "<code>pip install 'flwr-privet[plots]'</code>, then write the report again.</p>"
        )
    figures, missing = [], []
    for panel in plots.panels(runs):
        recorded = [value for _, read in panel.curves for run in runs for value in read(run)[1]]
        if not recorded:
            missing.append(panel.title.lower())
            continue
        if panel.key == "failures" and not any(recorded):
            content = "<p>No failure in any recorded round.</p>"
        else:
            content = _legend(panel, runs) + plots.draw(panel, runs) + _undrawn(panel, runs)
        figures.append(
            f'<figure id="figure-{panel.key}"><figcaption><h3>{panel.title}</h3></figcaption>'
            f"{content}</figure>"
        )
    note = f'<p class="soft">Not recorded: {", ".join(missing)}.</p>' if missing else ""
    return f'<div class="plots">{"".join(figures)}</div>{note}' if figures else note


def _legend(panel: plots.Panel, runs: Sequence[Run]) -> str:
    entries = []
    if len(runs) > 1:
        entries += [f"{_swatch(number)}{text(run.label)}" for number, run in enumerate(runs)]
    if len(panel.curves) > 1:
        entries += [
            f"{plots.swatch(style=style, colour='--ink' if len(runs) > 1 else '--run-0')}{name}"
            for style, (name, _) in enumerate(panel.curves)
        ]
    items = "".join(f"<li>{entry}</li>" for entry in entries)
    return f'<ul class="legend">{items}</ul>' if items else ""


def _swatch(number: int) -> str:
    return plots.swatch(style=number // plots.COLOURS, colour=plots.colour(number))


def _undrawn(panel: plots.Panel, runs: Sequence[Run]) -> str:
    """Say what the axes cannot show, rather than leave it out silently."""
    notes = []
    for run in runs:
        for _, read in panel.curves:
            series = read(run)
            hidden = len(series[0]) - len(plots.drawable(panel, series)[0])
            if hidden:
                prefix = f"{text(run.label)}: " if len(runs) > 1 else ""
                notes.append(
                    f"{prefix}{_HIDDEN.get(panel.key, _HIDDEN_VALUES)}: {hidden} of "
                    f"{len(series[0])} rounds."
                )
    return f'<p class="soft"><small>{"<br>".join(notes)}</small></p>' if notes else ""
