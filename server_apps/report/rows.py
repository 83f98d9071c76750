"""The histories of runs as one table, a row per run and round: CSV and Parquet."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from typing import Any

from privet.analyses.text_table import plain_cell
from privet.core import format as fmt

from .runs import (
    COUNTS,
    IDENTITY,
    MEASURES,
    NAMES,
    PACE,
    RecordedRun,
    differing,
    extras_of,
    settings_of,
)

_WHOLE = {"round", *COUNTS, "bytes-up", "bytes-down", "uploads"}
_TEXTS = {"run", "algorithm", "dataset", "partition"}

Columns = dict[str, list[Any]]


def history_columns(runs: Sequence[RecordedRun]) -> Columns:
    """Return the columns of the table, each as long as all histories together.

    ``run`` (the folder's name); of the run's summary and configuration ``algorithm, dataset,
    num-agents, partition, partition-seed, seed`` and, as ``config.KEY``, every other key in which
    the runs differ; ``round``; ``participants, failures`` (counts), ``loss, accuracy,
    stationarity, residual, bytes-up, bytes-down`` (of the round, not running totals), ``seconds,
    epsilon``; the algorithms' additional measures; where a run has a clock, ``clock`` (seconds
    since the run began) and ``uploads`` (folded since then); ``participant-names``. None is a value
    that was not recorded.
    """
    settings = [settings_of(run) for run in runs]
    keys = (*COUNTS, *MEASURES, *extras_of(runs))
    columns: Columns = {"run": [], **{key: [] for key in IDENTITY}}
    others = [f"config.{key}" for key in differing(settings) if key not in IDENTITY]
    paces = [{key: run.progress(key) for key in PACE} for run in runs]
    timed = [key for key in PACE if any(pace[key] for pace in paces)]
    columns |= {key: [] for key in (*others, "round", *keys, *timed, NAMES)}
    for run, known, pace in zip(runs, settings, paces, strict=True):
        count = len(run.rounds)
        columns["run"] += [run.name] * count
        for key in IDENTITY:
            columns[key] += [known.get(key)] * count
        for key in others:
            columns[key] += [known.get(key.removeprefix("config."))] * count
        columns["round"] += run.rounds
        for key in keys:
            columns[key] += run.columns.get(key, (None,) * count)
        for key in timed:
            columns[key] += [pace[key].get(number) for number in run.rounds]
        columns[NAMES] += run.participants
    return columns


def csv_table(runs: Sequence[RecordedRun]) -> bytes:
    """Return `history_columns` of the runs as a CSV file.

    An empty field is a value that was not recorded. Participants' names are separated by spaces,
    and one that holds a space or a quote is in quotes, as `shlex.split` reads it. A text that a
    spreadsheet would take for a formula begins with an apostrophe: agents and nodes choose names.
    """
    columns = history_columns(runs)
    columns[NAMES] = [shlex.join(names) for names in columns[NAMES]]
    columns = {plain_cell(key): [*map(plain_cell, values)] for key, values in columns.items()}
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return file.getvalue().encode()


def parquet_table(runs: Sequence[RecordedRun]) -> bytes:
    """Return `history_columns` of the runs as a Parquet file.

    Counts and bytes are int64, measures float64, participants' names lists of strings; a key of the
    configuration is int64, float64 or bool where every run's value is one, else text.
    """
    import pyarrow
    from pyarrow import parquet

    columns = history_columns(runs)
    arrays = {key: _array(key, values, pyarrow) for key, values in columns.items()}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()


def _array(key: str, values: list[Any], arrow: Any) -> Any:
    if key == NAMES:
        return arrow.array(map(list, values), arrow.list_(arrow.string()))
    if key in _TEXTS:
        return arrow.array(values, arrow.string())
    whole = all(value is None or isinstance(value, int) for value in values)
    if (key in _WHOLE and whole) or (key in IDENTITY and all(value is None for value in values)):
        return arrow.array(values, arrow.int64())
    if key in IDENTITY or key.startswith("config."):
        return _settings_array(values, arrow)
    return arrow.array(values, arrow.float64())


def _settings_array(values: list[Any], arrow: Any) -> Any:
    # JSON has no infinity; a configuration stores it as a string.
    numbers = [float(value) if value in ("inf", "-inf") else value for value in values]
    try:
        return arrow.array(numbers)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError):
        texts = [value if value is None else fmt.setting(value) for value in values]
        return arrow.array(texts, arrow.string())
