"""What a run folder holds, read for the report: history, summary, privacy account."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from privet.server_apps.report.history import COUNTS, MEASURES, Incident, Number, read_history
from privet.server_apps.report.json import ReportError, check_floats, parse
from privet.wire.errors import one_line

_RUN_NAME = re.compile(r"\d{8}-(\d\d)(\d\d)(\d\d)-\d+-(.+)")


@dataclass(frozen=True, slots=True)
class Privacy:
    """The account of a run: ``private`` is None when the run folder does not say."""

    private: bool | None
    reason: str
    entries: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: columns are aligned with ``rounds``; None is a value that was not recorded.

    ``label`` is a short name for pages; ``extras`` are the columns that an algorithm added.
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
    privacy: Privacy
    notes: tuple[str, ...]

    def series(self, key: str) -> tuple[list[int], list[Number]]:
        """Rounds and values of a column where it was recorded."""
        column = self.columns.get(key, (None,) * len(self.rounds))
        pairs = zip(self.rounds, column, strict=True)
        known = [(t, value) for t, value in pairs if value is not None]
        return [t for t, _ in known], [value for _, value in known]

    def cumulative(self, key: str) -> tuple[list[int], list[Number]]:
        """Rounds and running totals of a column where it was recorded."""
        rounds, values = self.series(key)
        return rounds, list(accumulate(values))

    def last(self, key: str) -> tuple[int, Number] | None:
        """Round and value of the last entry of a column, or None when there is none."""
        rounds, values = self.series(key)
        return (rounds[-1], values[-1]) if rounds else None

    def total(self, key: str) -> Number | None:
        """Sum of a column over the rounds where it was recorded, or None when there is none."""
        _, values = self.series(key)
        return sum(values) if values else None


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read run folders in the order given; runs whose folders share a name get distinct ones.

    Raises
    ------
    ReportError
        No folder given, a folder without ``history.jsonl``, or a file that is not what was
        expected.
    """
    if not folders:
        raise ReportError("expected at least one run folder")
    # Of a folder's name, bytes that are no text could not be written.
    resolved = [Path(os.fsencode(folder.resolve()).decode(errors="replace")) for folder in folders]
    names = [folder.name for folder in resolved]
    if len(set(names)) < len(names):
        names = [f"{folder.parent.name}/{folder.name}" for folder in resolved]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, start=1)]
    return [
        _read_run(folder, name, label)
        for folder, name, label in zip(folders, names, _labels(names), strict=True)
    ]


def _labels(names: Sequence[str]) -> list[str]:
    """Shorten names made of date, time, process and algorithm, where they stay distinct."""
    found = [_RUN_NAME.fullmatch(name) for name in names]
    if all(found):
        parts = [match.groups() for match in found if match]
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


def extras_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the columns that any of the runs added, in order of their first appearance."""
    return tuple(dict.fromkeys(key for run in runs for key in run.extras))


def _read_run(folder: Path, name: str, label: str) -> Run:
    records, notes = read_history(folder / "history.jsonl")
    summary = _read_json(folder / "summary.json")
    if not isinstance(summary, dict | None):
        raise ReportError(f"{folder / 'summary.json'}: expected a JSON object")
    # A configuration may have a seed of any length.
    found = {key: value for key, value in (summary or {}).items() if key != "config"}
    check_floats(found, str(folder / "summary.json"))
    rounds = tuple(sorted(records))
    rows = [records[t] for t in rounds]
    extras = tuple(dict.fromkeys(key for row in rows for key in row["extras"]))
    columns = {key: tuple(row[key] for row in rows) for key in (*COUNTS, *MEASURES)}
    columns |= {key: tuple(row["extras"].get(key) for row in rows) for key in extras}
    return Run(
        name=name,
        label=label,
        folder=folder,
        rounds=rounds,
        columns=columns,
        extras=extras,
        participants=tuple(row["names"] for row in rows),
        incidents=tuple(incident for row in rows for incident in row["incidents"]),
        summary=summary or {},
        privacy=_privacy(folder / "privacy.json"),
        notes=tuple(notes),
    )


def _read_json(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: cannot be read ({one_line(str(error))})") from None
    return parse(text, str(path), "JSON")


def _privacy(path: Path) -> Privacy:
    """Accept one entry, a list of entries, or an object that holds such a list."""
    account = _read_json(path)
    if account is None:
        return Privacy(private=None, reason="", entries=())
    check_floats(account, str(path))
    parts = account if isinstance(account, list) else [account]
    if not all(isinstance(part, dict) for part in parts):
        raise ReportError(f"{path}: expected a JSON object or a list of objects")
    nested = [
        entry
        for part in parts
        for value in part.values()
        if isinstance(value, list)
        for entry in value
        if isinstance(entry, dict)
    ]
    entries = [entry for entry in (*parts, *nested) if "epsilon" in entry]
    stated = [entry["private"] for entry in (*parts, *nested) if "private" in entry]
    reasons = [str(entry["reason"]) for entry in (*parts, *nested) if entry.get("reason")]
    return Privacy(
        private=all(value is True for value in stated) if stated else None,
        reason="; ".join(dict.fromkeys(reasons)),
        entries=tuple(entries),
    )
