"""The report of one run or the comparison of several: one HTML file, readable on a phone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from privet.core import format as fmt
from privet.core.format import text
from privet.core.library import LIBRARY_VERSION
from privet.kernel.programs.custom import custom_in
from privet.rounds.late import late_ones
from privet.rounds.nearness import REACHED

from ..advice import advice, remark
from ..config import as_written, changed
from . import plots, tables
from .baselines import baselines_of, baselines_table
from .document import document
from .files import PAGE, write_outputs
from .headline import broken_promise, headline, swing
from .rows import csv_table, parquet_table
from .runs import (
    PLACES,
    RecordedRun,
    ReportError,
    data_of,
    diverged,
    read_runs,
    settings_of,
)
from .statement import in_words
from .verification import statement_page

__all__ = ["ReportError", "page", "write_report"]

_HIDDEN_VALUES = "infinite or too large, not drawn"
_HIDDEN = {
    "epsilon": "infinite ε, no guarantee",
    "stationarity": "zero, negative, infinite or too large, not drawn",
}
_DEFINITIONS = (
    "Loss, accuracy and stationarity are as the run recorded them, at the last round that has "
    "them; lower stationarity is closer to a stationary point of the objective. Bytes are the "
    "array and bytes contents of the messages, without transport; 1 kB is 1000 B. An ε is "
    "rounded up, and means something only with its δ and the assumptions beside it; it is the "
    "largest of any agent, over all the runs that its ledger knows."
)
_STAR = (
    '<p class="soft">\N{BLACK STAR} marks the best of the runs that neither failed nor diverged. A '
    "row has none where its numbers do not compare: accuracies need the same data, losses and "
    "gradients also the same objective, residuals also the same algorithm; bytes and times need "
    "the same data, agents and most rounds. The pooled objective, loss and penalty over all "
    "agents' rows, is what methods of one objective minimise: judge them by it.</p>"
)
MANY = plots.COLOURS
"""Of more runs than there are colours each has a row of a table in place of a column."""


def write_report(
    run_dirs: Sequence[Path],
    out: Path,
    *,
    csv: Path | None = None,
    parquet: Path | None = None,
    statement: Path | None = None,
) -> Path:
    """Write one self-contained HTML file about the runs and return its path.

    Reads ``history.jsonl`` of each folder and, where present, ``summary.json`` and
    ``privacy.json``. The file loads nothing. Its one script smooths and scales curves, and sorts
    and filters the table of many runs; without JavaScript everything can be read. Every final
    number is in an element ``#run-<position>-<metric>`` with its exact value in ``data-value``, and
    a point of a curve says its value where it is hovered.
    Curves need matplotlib (the ``plots`` extra); without it the page says so and has everything
    else. Equal run folders give an equal file, byte for byte, on one version of matplotlib.

    Parameters
    ----------
    run_dirs : sequence of path
        Run folders; several are drawn on the same axes.
    out : path
        The file to write; a folder means ``report.html`` inside it.
    csv, parquet : path, optional
        Files to write the histories to, a row per run and round.
    statement : path, optional
        File to write the privacy statement of a single private run to, a page to print and sign.

    Raises
    ------
    ReportError
        If there is no run folder, its files are missing or malformed (the error names file, line
        and expectation), or an output path is a file of a run.
    """
    folders = [Path(folder) for folder in run_dirs]
    path = Path(out) / PAGE if Path(out).is_dir() else Path(out)
    runs = read_runs(folders)
    outputs = {"--out": (path, page(runs))}
    if csv is not None:
        outputs["--csv"] = csv, csv_table(runs)
    if parquet is not None:
        outputs["--parquet"] = parquet, parquet_table(runs)
    if statement is not None:
        outputs["--statement"] = statement, statement_page(runs)
    write_outputs(outputs, folders)
    return path


def page(runs: Sequence[RecordedRun], *, refresh: int = 0) -> bytes:
    """Return the HTML report of the runs; ``refresh`` as in `document`."""
    names = [text(run.label) for run in runs]
    many = len(runs) > MANY
    title = _title(runs)

    def each(table: Callable[[RecordedRun, int], str]) -> str:
        return "\n".join(
            (f"<h3>{name}</h3>" if len(runs) > 1 else "") + content
            for number, (name, run) in enumerate(zip(names, runs, strict=True))
            if (content := table(run, number))
        )

    def folded(what: str, table: Callable[[RecordedRun, int], str]) -> str:
        return "\n".join(
            f"<details><summary>{name}: {what}</summary>{content}</details>"
            for number, (name, run) in enumerate(zip(names, runs, strict=True))
            if run.rounds and (content := table(run, number))
        )

    def kept(content: str) -> str:
        """Fold what has a part for each of many runs."""
        summary = f"<summary>of each of the {len(runs)} runs</summary>"
        return f"<details>{summary}{content}</details>" if many and content else content

    parts = [
        f"<header><h1>{text(title)}</h1>\n{_outcomes(runs)}</header>",
        _section("Final numbers", _final(runs, names)),
        _section("Baselines", _baselines(runs, names)),
        _section("Curves", _curves(runs)),
        _section("Failures and notes", kept(each(tables.incidents_table))),
        _section("Privacy account", kept(_account(runs, names))),
        _section("Settings", tables.settings_table(runs, names, different=not many)),
        _section("Run it again", kept(each(_command))),
        _section("Agents", kept(folded("what each agent did", tables.agents_table))),
        _section("Rounds", kept(folded("rounds at a glance", tables.rounds_table))),
        f"<footer><p>{_DEFINITIONS}</p></footer>",
    ]
    return document(title, "\n".join(filter(None, parts)), refresh=refresh).encode()


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>\n{content}</section>" if content else ""


def _title(runs: Sequence[RecordedRun]) -> str:
    if len(runs) > 1:
        return f"Comparison of {len(runs)} runs"
    algorithm, dataset = (runs[0].summary.get(key) for key in ("algorithm", "dataset"))
    if algorithm and dataset:
        return f"{algorithm} on {data_of(settings_of(runs[0]))}"
    return str(algorithm or runs[0].name)


def _outcomes(runs: Sequence[RecordedRun]) -> str:
    remarks = [_remarks(run) for run in runs]
    if len(runs) == 1:
        described = _described(runs[0])
        parts = [
            f'<p class="soft">{_about(runs[0])}</p>{described}',
            headline(runs[0]),
            *remarks[0],
        ]
        return f'<div class="outcome">{"".join(parts)}</div>'
    common = [remark for remark in remarks[0] if all(remark in other for other in remarks)]
    boxes = [
        f'<div class="outcome"><h3>{_swatch(number)} {text(run.label)}</h3>{content}</div>'
        for number, run in enumerate(runs)
        if (
            content := _described(run)
            + "".join(remark for remark in remarks[number] if remark not in common)
        )
    ]
    if len(boxes) > MANY:
        summary = f"<summary>Remarks on {len(boxes)} runs</summary>"
        boxes = [f"<details>{summary}{''.join(boxes)}</details>"]
    return "\n".join([*(["<p>All runs:</p>"] if common else []), *common, *boxes])


def _final(runs: Sequence[RecordedRun], names: Sequence[str]) -> str:
    """Return the final numbers of a comparison, and which folder each run is."""
    if len(runs) == 1:
        return ""
    heads = [f"{_swatch(number)}{name}" for number, name in enumerate(names)]
    table = (tables.sortable_table if len(runs) > MANY else tables.final_table)(runs, heads)
    folders = "".join(
        f'<li>{_swatch(number)}<span>{name}: <span class="soft">{_about(run)}</span></span></li>'
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
    )
    return (
        f"{table}{_STAR}<details><summary>Run folders</summary>"
        f'<ul class="folders">{folders}</ul></details>'
    )


def _baselines(runs: Sequence[RecordedRun], names: Sequence[str]) -> str:
    if len(runs) == 1:
        return baselines_table(runs[0], 0)
    table = baselines_of(runs, names)
    if len(runs) > MANY and table:
        return f"<details><summary>of each of the {len(runs)} runs</summary>{table}</details>"
    return table


def _about(run: RecordedRun) -> str:
    """Return a run's name, its end time and the version of Privet."""
    ended, version = run.summary.get("ended"), run.summary.get(LIBRARY_VERSION)
    when = f"ended {str(ended)[:16].replace('T', ' ')}" if ended else ""
    return text(", ".join(filter(None, (run.name, when, f"Privet {version}" if version else ""))))


def _described(run: RecordedRun) -> str:
    """Return the tags and notes that a run was given."""
    tags, notes = run.summary.get("tags") or (), run.summary.get("notes")
    parts = [f"<p data-tags>Tags: {text(', '.join(map(str, tags)))}</p>"] if tags else []
    parts += [f"<p data-notes>{text(notes)}</p>"] if notes else []
    return "".join(parts)


def _remarks(run: RecordedRun) -> list[str]:
    """Return remarks that stand at the top: status, divergence, privacy, repaired history."""
    result = [] if run.rounds else ['<p class="warn">No round was finished.</p>']
    status = run.summary.get("status")
    if status == "failed":
        cause = text(run.summary.get("cause", "no cause recorded"))
        result.append(f'<p class="warn" data-status="failed">The run failed: {cause}</p>')
    if status == "interrupted":
        result.append('<p class="warn" data-status="interrupted">The run was interrupted.</p>')
    if not run.summary and run.rounds:
        result.append('<p class="soft" data-status="open">The run has not ended.</p>')
    if measure := diverged(run):
        result.append(f'<p class="warn">The run diverged: {text(measure)}.</p>')
    if what := run.summary.get("no-better"):
        result.append(
            f'<p class="warn" data-no-better>The run is no better than its start: {text(what)}.</p>'
        )
    if run.late:
        lines = text(late_ones(run.late))
        result.append(
            f'<p class="warn" data-late>Agents missed the deadline of rounds: {lines}.</p>'
        )
    for name, why in run.odd_sites.items():
        result.append(
            f'<p class="warn" data-odd-site>Agent {text(name)} is not like the others: '
            f"{text(why)}; look at its labels, units and signs.</p>"
        )
    if what := run.summary.get("residual-unknown"):
        result.append(
            f'<p class="soft" data-residual="unknown">The residual is unknown: {text(what)}.</p>'
        )
    if what := run.summary.get("pooled-optimum"):
        kind = "note" if run.summary.get("estimated-error", 1.0) <= REACHED else "warn"
        result.append(f'<p class="{kind}" data-pooled-optimum>Pooled optimum: {text(what)}.</p>')
    if what := run.summary.get("plan"):
        result.append(f'<p class="note" data-plan>Noise: {text(what)}.</p>')
    if remarked := remark(run.summary):
        result.append(f'<p class="warn" data-remark>Beware: {text(remarked)}.</p>')
    if hint := advice({**run.summary, "run-folder": str(run.folder)}):
        result.append(f"<p data-advice>{text(hint)}</p>")
    if best := run.summary.get("best"):
        result.append(f"<p data-best>{text(fmt.kept(best))}.</p>")
    if promise := broken_promise(run):
        result.append(f'<p class="warn" data-privacy="broken">Privacy: {text(promise)}.</p>')
    if run.privacy.private is None or not (run.privacy.entries or run.privacy.private is False):
        result.append(
            '<p class="soft" data-privacy="none">No privacy account: no privacy is claimed.</p>'
        )
    result += [f'<p class="soft">History: {text(note)}.</p>' for note in run.notes]
    return result


def _account(runs: Sequence[RecordedRun], names: Sequence[str]) -> str:
    """Return what is promised: in words, as a table, and the technical lines folded."""
    table = tables.privacy_table(runs, names, technical=False)
    if not table:
        return ""
    technical = tables.privacy_table(runs, names, technical=True)
    words = [_in_words(run) for run in runs]
    many = len(runs) > 1
    said = "".join(
        (f"<h3>{name}</h3>" if many else "") + claim
        for name, claim in zip(names, words, strict=True)
        if claim
    )
    return f"{said}{table}<details><summary>Technical lines</summary>{technical}</details>"


def _in_words(run: RecordedRun) -> str:
    """Return the claims of a private run in words."""
    if run.privacy.private is False:
        return ""
    claims = []
    for entry in tables.entries_of(run.privacy):
        shown = fmt.epsilon(entry["epsilon"])
        towards = f"towards the {text(entry['to'])}"
        if shown == "∞":
            claims.append(f"no guarantee {towards} (ε = ∞)")
        else:
            delta = text(fmt.stated(entry.get("delta")))
            words = text(in_words(entry, settings_of(run).get("relation", "")))
            rests = custom_in(map(str, entry.get("assumptions") or ()))
            words += "".join(f" It rests on {text(line)}." for line in rests)
            claims.append(f"ε = {text(shown)} at δ = {delta} {towards}. {words}")
    return f'<p data-privacy="account">Privacy: {"; ".join(claims)}</p>'


def _command(run: RecordedRun, number: int) -> str:
    """Return the command that repeats a run, "" if its settings are not recorded."""
    config = run.summary.get("config")
    if not isinstance(config, dict):
        return ""
    given = {key: value for key, value in changed(config).items() if key not in PLACES}
    written = as_written(given)
    words = [shlex.quote(f"{key}={value}") for key, value in written.items()]
    return f'<pre data-run="{number}"><code>{text(" ".join(["privet run", *words]))}</code></pre>'


def _curves(runs: Sequence[RecordedRun]) -> str:
    if not plots.have_matplotlib():
        return (
            '<p class="warn" id="no-plots">Curves need matplotlib, which is not installed here: '
            "<code>pip install 'flwr-privet[plots]'</code>, then write the report again.</p>"
        )
    choices = [over for over in plots.OVER if any(_has_axis(run, over) for run in runs)]
    figures: dict[bool, list[str]] = {False: [], True: []}
    missing, notes = [], []
    for panel in plots.panels(runs):
        series = [read(run) for _, read in panel.curves for run in runs]
        recorded = [value for _, values in series for value in values]
        if not recorded:
            missing.append(panel.title.lower())
        elif panel.key == "failures" and not any(recorded):
            if not any(run.incidents for run in runs):
                notes.append("No failure in any recorded round.")
        elif panel.key == "participants" and len(set(recorded)) == 1:
            agents = "agent" if recorded[0] == 1 else "agents"
            notes.append(f"{recorded[0]} {agents} in every round.")
        elif not any(plots.drawable(panel, one)[0] for one in series):
            if hidden := _undrawn(panel, runs):
                notes.append(f"{panel.title}: {hidden}")
        else:
            figures[panel.folded].append(_figure(panel, runs, choices))
    if missing:
        notes.append(f"Not recorded: {', '.join(missing)}.")
    remarks = "".join(f'<p class="soft">{note}</p>' for note in notes)
    shown, folded = figures[False], figures[True]
    if not shown and not folded:
        return remarks
    # An odd number of figures leaves a place beside the last, which the notes take.
    aside = f'<div class="aside">{remarks}</div>' if remarks else ""
    drawn = f'<div class="plots">{"".join(shown)}{aside}</div>' if shown else remarks
    if folded:
        plotted = f'<div class="plots">{"".join(folded)}</div>'
        drawn += f"<details><summary>For researchers</summary>{plotted}</details>"
    controls = '<div class="controls"></div>'
    return f'<div class="curves">{_switch(choices)}{controls}{_legend(runs)}{drawn}</div>'


def _figure(panel: plots.Panel, runs: Sequence[RecordedRun], choices: Sequence[str]) -> str:
    drawn = "".join(
        f'<div class="over over-{over}">{plots.draw(panel, runs, over)}</div>'
        for over in (choices if panel.switched else ())
    )
    swings = [(run, swing(run, panel.key)) for run in runs]
    several = len(runs) > 1
    notes = [
        f"{text(run.label)}: {text(what)}" if several else text(what)
        for run, what in swings
        if what
    ]
    remark = "".join(f'<p class="note" data-swing>{note}</p>' for note in notes)
    if hidden := _undrawn(panel, runs):
        remark += f'<p class="soft"><small>{hidden}</small></p>'
    return (
        f'<figure id="figure-{panel.key}"><figcaption><h3>{panel.title}</h3></figcaption>'
        f"{_styles(panel, runs)}{drawn or plots.draw(panel, runs)}{remark}</figure>"
    )


def _has_axis(run: RecordedRun, over: str) -> bool:
    """Return whether a run has more than one value on an x axis; rounds are always drawn."""
    return over == "round" or len(set(filter(math.isfinite, run.progress(over).values()))) > 1


def _switch(choices: Sequence[str]) -> str:
    """Return the radio buttons that select the x axis of the curves."""
    inputs = []
    for over in choices:
        checked = " checked" if over == "round" else ""
        inputs.append(
            f'<input type="radio" name="over" id="over-{over}"{checked}>'
            f'<label for="over-{over}">{plots.OVER[over]}</label>'
        )
    return f'<span class="switch soft">Over </span>{"".join(inputs)}'


def _legend(runs: Sequence[RecordedRun]) -> str:
    """Return the legend of all figures; of many runs the table of final numbers is one."""
    if not 1 < len(runs) <= MANY:
        return ""
    items = "".join(
        f"<li>{_swatch(number)}{text(run.label)}</li>" for number, run in enumerate(runs)
    )
    return f'<ul class="legend">{items}</ul>'


def _styles(panel: plots.Panel, runs: Sequence[RecordedRun]) -> str:
    """Return the legend of a figure with several curves of each run."""
    ink = "--ink" if len(runs) > 1 else "--run-0"
    items = "".join(
        f"<li>{plots.swatch(style=style, colour=ink)}{name}</li>"
        for style, (name, _) in enumerate(panel.curves)
        if len(panel.curves) > 1
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def _swatch(number: int) -> str:
    return plots.swatch(style=number // plots.COLOURS, colour=plots.colour(number))


def _undrawn(panel: plots.Panel, runs: Sequence[RecordedRun]) -> str:
    """Return a note on the values that the axes cannot show."""
    notes = []
    most = plots.ceiling(panel, runs)
    for run in runs:
        if panel.key == "epsilon" and run.privacy.private is False:
            continue  # the page says already that nothing is promised
        for _, read in panel.curves:
            series = read(run)
            hidden = len(series[0]) - len(plots.drawable(panel, series, most)[0])
            if hidden:
                prefix = f"{text(run.label)}: " if len(runs) > 1 else ""
                notes.append(
                    f"{prefix}{_HIDDEN.get(panel.key, _HIDDEN_VALUES)}: {hidden} of "
                    f"{len(series[0])} rounds."
                )
    return "<br>".join(notes)
