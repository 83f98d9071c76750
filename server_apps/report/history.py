"""``history.jsonl`` of a run, read line by line for the report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.server_apps.report.json import NotJsonError, ReportError, fits_float, parse, quoted

Number = int | float

IDENTITY = ("algorithm", "dataset", "num-agents", "partition", "partition-seed", "seed")
"""Of the summary and configuration, what tells runs apart in every table."""
COUNTS = ("participants", "failures")
MEASURES = (
    "loss",
    "accuracy",
    "stationarity",
    "residual",
    "bytes-up",
    "bytes-down",
    "seconds",
    "epsilon",
)
NAMES = "participant-names"

_TAKEN = {"run", *IDENTITY, "round", "rounds", *COUNTS, NAMES, *MEASURES, "distance"}
_EXTRA_NAME = re.compile(r"(?!privacy-)[a-z0-9][a-z0-9-]*")
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure of an agent in a round, or a note about the round (agent "")."""

    round: int
    agent: str
    text: str


def read_history(path: Path) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Return the records of the rounds and notes on what was repaired (raises ``ReportError``)."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise ReportError(f"{path}: no such file; expected a run folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: cannot be read ({error})") from None
    records: dict[int, dict[str, Any]] = {}
    notes = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = parse(line, where, "a JSON object")
        except NotJsonError:
            if number < len(lines) or not _begun(line):
                raise
            notes.append(f"the last line of {path.name} is incomplete and was left out")
            break
        t, record = _record(row, where)
        if t in records:
            notes.append(f"round {t} was recorded more than once; the last record counts")
        records[t] = record
    return records, notes


def _begun(line: str) -> bool:
    """Say whether a line without an end is what a process killed while writing leaves."""
    return (line == "{" or line.startswith('{"')) and "\0" not in line


def _record(row: Any, where: str) -> tuple[int, dict[str, Any]]:
    if not isinstance(row, dict) or type(row.get("round")) is not int:
        raise ReportError(f"{where}: expected a JSON object with an integer 'round'")
    if not 0 <= row["round"] < _INT64:
        raise ReportError(f"{where}: expected a round below 2^63, got {quoted(row['round'])}")
    record: dict[str, Any] = {key: _number(row.get(key), key, where) for key in MEASURES}
    for key in COUNTS:
        value = row.get(key)
        if isinstance(value, list | dict):
            value = len(value)
        record[key] = _number(value, key, where)
    present = row.get("participants")
    record["names"] = tuple(map(str, present)) if isinstance(present, list) else ()
    record["incidents"] = _incidents(row)
    record["extras"] = _extras(row.get("measures") or {}, where)
    return row["round"], record


def _extras(measures: Any, where: str) -> dict[str, Number | None]:
    if not isinstance(measures, dict):
        raise ReportError(
            f"{where}: expected measures an object of numbers, got {quoted(measures)}"
        )
    for name in measures:
        if not _EXTRA_NAME.fullmatch(name) or name in _TAKEN:
            raise ReportError(
                f"{where}: expected a new name in kebab-case, got measure {quoted(name)}"
            )
    return {name: _number(value, name, where) for name, value in measures.items()}


def _incidents(row: Mapping[str, Any]) -> list[Incident]:
    failures, notes, t = row.get("failures"), row.get("notes"), row["round"]
    found = []
    if isinstance(failures, dict):
        found = [Incident(t, str(agent), str(reason)) for agent, reason in failures.items()]
    elif isinstance(failures, list):
        found = [Incident(t, str(agent), "failed") for agent in failures]
    if isinstance(notes, list):
        found += [Incident(t, "", str(note)) for note in notes]
    return found


def _number(value: Any, key: str, where: str) -> Number | None:
    if value is None:
        return None
    if isinstance(value, str) and value.lower() in {"inf", "-inf", "infinity", "nan"}:
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReportError(f'{where}: expected {key} a number, null or "inf", got {quoted(value)}')
    if isinstance(value, int) and abs(value) >= _INT64:
        if not fits_float(value):
            raise ReportError(
                f"{where}: expected {key} below 1.8e308, got {len(str(abs(value)))} digits"
            )
        value = float(value)
    return None if math.isnan(value) else value
