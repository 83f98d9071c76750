"""Read run folders for the report: history, summary and privacy account."""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from privet.core.errors import ConfigError, PrivetError, near_path, one_line, said_of
from privet.core.files import read_text
from privet.core.format import Number, setting
from privet.core.shapes import REAL, Entries, Items, parsed, require
from privet.rounds.divergence import found_in
from privet.rounds.failure import Failure
from privet.rounds.late import Late, late_agents
from privet.rounds.odd_sites import odd_sites
from privet.strategies import Round

from ..config import changed

log = logging.getLogger("flwr.privet")

HISTORY = "history.jsonl"
JOURNAL = "asked.jsonl"
SUMMARY = "summary.json"
PRIVACY = "privacy.json"
IDENTITY = ("algorithm", "dataset", "num-agents", "partition", "partition-seed", "seed")
"""Keys of the summary and configuration that identify a run in every table."""
COUNTS = ("participants", "failures")
MEASURES = tuple(
    key
    for key in Round(1, ()).to_dict()
    if key not in {"round", "participants", "failures", "notes"}
)
"""The measures that every round has."""
NAMES = "participant-names"
PACE = ("clock", "uploads")
"""Entries of `RecordedRun.progress` for runs with a clock: seconds, and uploads folded so far."""

PLACES = ("output-dir", "resume", "track", "tags", "notes")
"""Settings that place and describe one run, and do not affect its results."""
_LABEL_KEYS = 3
"""Largest number of settings in a label."""

_BASELINE = Entries(
    {**dict.fromkeys(("accuracy", "loss", "lowest", "highest", "distance"), REAL), "setting": str}
)
_SPENT = Entries(dict.fromkeys(("epsilon", "delta"), float), required=("epsilon", "delta"))
_SHAPES = {
    SUMMARY: Entries(
        {
            "config": Entries({"relation": str, "target-epsilon": (*REAL, str)}),
            "tags": Items(str),
            **dict.fromkeys(("accuracy", "loss", "distance-to-optimum", "objective-excess"), REAL),
            "start": _BASELINE,
            "baselines": Entries({"left-out": Entries()}, others=_BASELINE),
            "best": Entries(
                {"value": float, "metric": str},
                required=("file", "metric", "value", "round"),
            ),
            "schema": Entries(
                {"columns": Entries(others=Items((float, str))), "described": _SPENT}
            ),
            "failures": Entries(
                others=Entries({"code": str, "text": str}, required=("code", "text"))
            ),
            **dict.fromkeys(("sha-256", "ledger-heads"), Entries(others=str)),
            **dict.fromkeys(("experiment", "code"), str),
            "records": Entries(others=int),
            "draw-length": int,
            "trained": Items(str),
            "pooled-optimum": str,
            "estimated-error": float,
        }
    ),
    PRIVACY: Entries(
        {
            "private": (bool, None),
            "reason": str,
            "accounts": Items(
                Entries(
                    {
                        **dict.fromkeys(("epsilon", "delta", "mu", "as-printed"), (*REAL, str)),
                        **dict.fromkeys(("to", "method"), (str, None)),
                        "assumptions": Items(str),
                        "drawn-delta": REAL,
                        "person": Entries(
                            {
                                "rows": int,
                                **dict.fromkeys(("epsilon", "delta", "drawn-delta"), REAL),
                            }
                        ),
                    },
                    required=("epsilon",),
                )
            ),
            "unbound": Items(str),
            "apart": Items(str),
            "agents": Entries(
                others=Entries(
                    {
                        "epsilon": (*REAL, str),
                        "releases": Items(Entries({"times": int}, required=("times",))),
                    }
                )
            ),
        }
    ),
}
"""What the pages take the files of a run folder to hold; other entries are shown as they are."""

_TAKEN = {
    "run",
    *IDENTITY,
    "round",
    "rounds",
    *COUNTS,
    NAMES,
    *MEASURES,
    *PACE,
    "distance",
    "objective",
}
_EXTRA_NAME = re.compile(r"(?!privacy-)[a-z0-9][a-z0-9-]*")
_RUN_NAME = re.compile(r"\d{8}-(\d\d)(\d\d)(\d\d)-\d+-(.+)")


class ReportError(PrivetError, ValueError):
    """A report cannot be made; the text names the file or option and what is wrong."""


class ReportUsageError(ReportError, ConfigError):
    """A path or option that no report can be made of, or written to."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure of an agent in a round, or a note about the round (agent "")."""

    round: int
    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordedPrivacy:
    """The privacy account of a run; ``private`` is None if the run folder has none."""

    private: bool | None
    reason: str
    entries: tuple[Mapping[str, Any], ...]
    agents: Mapping[str, Any]
    unbound: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run: columns are aligned with ``rounds``; None is a value that was not recorded.

    ``label`` is a short name for pages; ``extras`` are the columns that an algorithm added. Where
    uploads are folded as they come, the column ``clock`` is the time since the run began, and
    ``ages`` are for each of the participants the versions since the model that it was sent.
    ``found`` says how it diverged by its history, whatever the summary says.
    """

    name: str
    label: str
    folder: Path
    rounds: tuple[int, ...]
    columns: Mapping[str, tuple[Number | None, ...]]
    extras: tuple[str, ...]
    participants: tuple[tuple[str, ...], ...]
    incidents: tuple[Incident, ...]
    summary: Mapping[str, Any]
    privacy: RecordedPrivacy
    notes: tuple[str, ...]
    late: Mapping[str, Late]
    odd_sites: Mapping[str, str]
    ages: tuple[tuple[int, ...], ...] = ()
    found: str = ""

    def series(self, key: str) -> tuple[list[int], list[Number]]:
        """Return the rounds in which a column was recorded and its values."""
        column = self.columns.get(key, (None,) * len(self.rounds))
        pairs = zip(self.rounds, column, strict=True)
        known = [(t, value) for t, value in pairs if value is not None]
        return [t for t, _ in known], [value for _, value in known]

    def cumulative(self, key: str) -> tuple[list[int], list[Number]]:
        """Return the rounds in which a column was recorded and its running totals."""
        rounds, values = self.series(key)
        return rounds, list(accumulate(values))

    def progress(self, over: str) -> dict[int, Number]:
        """Return how far the run was after each round, along one of `plots.OVER`.

        Uploads are counted where the run has a clock.
        """
        if over == "round":
            return {t: t for t in self.rounds}
        if over in ("epsilon", "clock"):
            return dict(zip(*self.series(over), strict=True))
        if over == "uploads":
            known = any(self.ages)
            return dict(zip(*self.cumulative("participants"), strict=True)) if known else {}
        parts = ("bytes-up", "bytes-down") if over == "bytes" else (over,)
        totals = [dict(zip(*self.cumulative(part), strict=True)) for part in parts]
        return {
            t: sum(one[t] for one in totals) for t in self.rounds if all(t in o for o in totals)
        }

    def last(self, key: str) -> tuple[int, Number] | None:
        """Return the round and value of a column's last entry, or None if there is none."""
        rounds, values = self.series(key)
        return (rounds[-1], values[-1]) if rounds else None

    def total(self, key: str) -> Number | None:
        """Return the sum of a column's recorded values, or None if there is none."""
        _, values = self.series(key)
        return sum(values) if values else None


def read_runs(folders: Sequence[Path]) -> list[RecordedRun]:
    """Read run folders in the order given; runs whose folders share a name get distinct ones.

    Where several are given, runs that were refused before their first round are left out with a
    warning.

    Raises
    ------
    ReportError
        If no folder is given, a folder has no ``history.jsonl``, or a file is malformed.
    """
    if not folders:
        raise ReportUsageError("expected at least one run folder")
    twice = Counter(folder.resolve() for folder in folders)
    if again := next((one for one, count in twice.items() if count > 1), None):
        raise ReportUsageError(f"{again}: named twice; name each run once")
    refused = [folder for folder in folders if _was_refused(folder)]
    if len(refused) < len(folders):
        for folder in refused:
            log.warning("%s: its run was refused before the first round, left out", folder)
        folders = [folder for folder in folders if folder not in refused]
    # Bytes of a folder's name that are not valid text could not be written to the report.
    resolved = [Path(os.fsencode(folder.resolve()).decode(errors="replace")) for folder in folders]
    names = [folder.name for folder in resolved]
    if len(set(names)) < len(names):
        names = [f"{folder.parent.name}/{folder.name}" for folder in resolved]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, start=1)]
    runs = [_read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
    labels = _labels_by_settings(runs) or _labels(names)
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _was_refused(folder: Path) -> bool:
    """Return whether the folder's run ended before its first round."""
    return (folder / SUMMARY).is_file() and not (folder / HISTORY).exists()


def diverged(run: RecordedRun) -> str:
    """Return how a run diverged by its history or its summary, "" if it did not."""
    return run.found or str(run.summary.get("diverged", ""))


def data_of(settings: Mapping[str, Any]) -> str:
    """Return the data set, and the name of its file where a path names one."""
    file = Path(str(settings.get("data-path") or "")).name
    return f"{settings.get('dataset')}{file and f', {file}'}"


def settings_of(run: RecordedRun) -> dict[str, Any]:
    """Return the settings of a run: its configuration and the identifying keys."""
    config = run.summary.get("config")
    top = {key: run.summary[key] for key in IDENTITY if key in run.summary}
    return {**(config if isinstance(config, dict) else {}), **top}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which settings differ, in the order of their first appearance."""
    keys = dict.fromkeys(key for known in settings for key in known)
    return [key for key in keys if len({repr(known.get(key)) for known in settings}) > 1]


def _labels_by_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """Return labels of the algorithm and its settings that differ and are not defaults.

    The list is empty if the labels would not be distinct.
    """
    settings = [settings_of(run) for run in runs]
    algorithms = [str(known.get("algorithm", "")) for known in settings]
    if not all(algorithms):
        return []
    labels = []
    for name, config in zip(algorithms, settings, strict=True):
        alike = [known for known in settings if known.get("algorithm") == name]
        chosen = changed(config)
        keys = [key for key in differing(alike) if key in chosen and key not in PLACES]
        keys.sort(
            key=lambda key: key != "target-epsilon"
        )  # the setting that readers look for first
        named = [f"{key}={setting(config[key])}" for key in keys[:_LABEL_KEYS]]
        labels.append(" ".join([name, *named]))
    return labels if len(set(labels)) == len(runs) else []


def _labels(names: Sequence[str]) -> list[str]:
    """Shorten names made of date, time, process and algorithm, where they stay distinct."""
    matches = [_RUN_NAME.fullmatch(name) for name in names]
    if all(matches):
        parts = [match.groups() for match in matches if match]
        for labels in (
            [algorithm for *_, algorithm in parts],
            [
                f"{algorithm} {hours}:{minutes}:{seconds}"
                for hours, minutes, seconds, algorithm in parts
            ],
        ):
            if len(set(labels)) == len(names):
                return labels
    return list(names)


def extras_of(runs: Sequence[RecordedRun]) -> tuple[str, ...]:
    """Return the columns that any of the runs added, in order of their first appearance."""
    return tuple(dict.fromkeys(key for run in runs for key in run.extras))


def _read_run(folder: Path, name: str) -> RecordedRun:
    summary = read_json(folder / SUMMARY)
    history, notes = read_history(folder / HISTORY)
    extras = tuple(dict.fromkeys(key for done in history for key in done.measures))
    keys = (*COUNTS, *MEASURES, *extras)
    times = tuple(None if math.isnan(done.clock) else done.clock for done in history)
    clock: dict[str, tuple[Number | None, ...]] = (
        {} if all(time is None for time in times) else {"clock": times}
    )
    return RecordedRun(
        name=name,
        label=name,
        folder=folder,
        rounds=tuple(done.round for done in history),
        columns={key: tuple(_value(done, key) for done in history) for key in keys} | clock,
        extras=extras,
        participants=tuple(done.participants for done in history),
        incidents=(
            *(incident for done in history for incident in _incidents(done)),
            *_of_failed_round(summary),
        ),
        summary=summary,
        privacy=_privacy(read_json(folder / PRIVACY)),
        notes=tuple(notes),
        late=late_agents(history),
        odd_sites=odd_sites(history),
        ages=tuple(tuple(done.round - sent for sent in done.versions) for done in history),
        found=found_in(history, _start(summary)),
    )


def _start(summary: Mapping[str, Any]) -> Round:
    """Return the measures of the starting model, where the summary has them."""
    start = summary.get("start", {})
    loss, accuracy = (
        math.nan if start.get(key) is None else float(start[key]) for key in ("loss", "accuracy")
    )
    return Round(0, (), loss=loss, accuracy=accuracy)


def read_history(path: Path) -> tuple[list[Round], list[str]]:
    """Return the rounds in order, and notes on repairs of the history.

    Raises
    ------
    ReportError
        If there is no such file, or a line but an incomplete last one is no round.
    """
    try:
        lines = read_text(path).split("\n")
    except (FileNotFoundError, NotADirectoryError):
        below = next(path.parent.glob(f"*/{path.name}"), None)
        hint = f", such as {below.parent}" if below else near_path(path.parent)
        raise ReportUsageError(f"{path}: no such file; expected a run folder{hint}") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: expected lines of JSON ({said_of(error)})") from None
    history: dict[int, Round] = {}
    notes = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            done = Round.from_dict(parsed(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):  # a process that is killed leaves half a line
                notes.append(f"the last line of {path.name} is incomplete and was left out")
                break
            raise ReportError(f"{path}, line {number}: not a round ({said_of(error)})") from None
        for name in done.measures:
            if not _EXTRA_NAME.fullmatch(name) or name in _TAKEN:
                raise ReportError(
                    f"{path}, line {number}: expected a new name in kebab-case, "
                    f"got measure {name!r}"
                )
        if done.round in history:
            notes.append(f"round {done.round} was recorded more than once; the last record counts")
        history[done.round] = done
    return [history[number] for number in sorted(history)], notes


def figures(done: Round) -> dict[str, Number]:
    """Return the numbers of a round that the report shows, by name, where they are finite."""
    values = {key: _value(done, key) for key in (*COUNTS, *MEASURES, *done.measures)}
    return {k: v for k, v in values.items() if v is not None and math.isfinite(v)}


def _value(done: Round, key: str) -> Number | None:
    if key in COUNTS:
        return len(getattr(done, key))
    known = key in MEASURES
    value = getattr(done, key.replace("-", "_")) if known else done.measures.get(key, math.nan)
    return None if math.isnan(value) else value


def _incidents(done: Round) -> list[Incident]:
    failures = [Incident(done.round, agent, why.text) for agent, why in done.failures.items()]
    return failures + [Incident(done.round, "", note) for note in done.notes]


def _of_failed_round(summary: Mapping[str, Any]) -> list[Incident]:
    """Return the failures of the round that ended a run, which has no line in the history."""
    number, failures = summary.get("failed-round"), summary.get("failures")
    if not isinstance(number, int) or not isinstance(failures, dict):
        return []
    return [Incident(number, a, Failure.from_json(why).text) for a, why in failures.items()]


def read_json(path: Path) -> dict[str, Any]:
    """Return a summary or privacy account, checked for its shape; an empty one without a file.

    Raises
    ------
    ReportError
        One line that names the file, and the entry that is of another shape.
    """
    try:
        content: dict[str, Any] = parsed(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: expected JSON ({said_of(error)})") from None
    try:
        require(content, _SHAPES[path.name])
    except ValueError as error:
        raise ReportError(f"{path}: {one_line(str(error))}") from None
    return content


def _privacy(account: Mapping[str, Any]) -> RecordedPrivacy:
    return RecordedPrivacy(
        account.get("private"),
        account.get("reason", ""),
        tuple(account.get("accounts", ())),
        account.get("agents", {}),
        tuple(account.get("unbound", ())),
        tuple(account.get("apart", ())),
    )
