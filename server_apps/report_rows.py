"""The histories of runs as one table, a row per run and round: CSV and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privet.server_apps import report_format as fmt
from privet.server_apps.report_runs import (
    COUNTS,
    MEASURES,
    ReportError,
    Run,
    extras_of,
    read_runs,
)

IDENTITY = ("algorithm", "dataset", "num-agents", "partition", "partition-seed", "seed")
_WHOLE = {"num-agents", "partition-seed", "seed", "round", *COUNTS, "bytes-up", "bytes-down"}
_NAMES = "participant-names"

Columns = dict[str, list[Any]]


def history_columns(runs: Sequence[Run]) -> Columns:
    """Return the columns of the table, each as long as all histories together.

    ``run`` (the folder's name); of the run's summary and configuration ``algorithm, dataset,
    num-agents, partition, partition-seed, seed`` and, as ``config.KEY``, every other key in which
    the runs differ; ``round``; ``participants, failures`` (counts), ``loss, accuracy,
    stationarity, residual, bytes-up, bytes-down`` (of the round, not running totals), ``seconds,
    epsilon``; what else the algorithms measured; ``participant-names``. None is a value that was
    not recorded.
    """
    settings = [_settings(run) for run in runs]
    keys = (*COUNTS, *MEASURES, *extras_of(runs))
    columns: Columns = {"run": [], **{key: [] for key in IDENTITY}}
    differing = [f"config.{key}" for key in _differing(settings)]
    columns |= {key: [] for key in (*differing, "round", *keys, _NAMES)}
    for run, known in zip(runs, settings, strict=True):
        count = len(run.rounds)
        columns["run"] += [run.name] * count
        for key in IDENTITY:
            columns[key] += [known.get(key)] * count
        for key in differing:
            columns[key] += [known.get(key.removeprefix("config."))] * count
        columns["round"] += run.rounds
        for key in keys:
            columns[key] += run.columns.get(key, (None,) * count)
        columns[_NAMES] += run.participants
    return columns


def _settings(run: Run) -> dict[str, Any]:
    config = run.summary.get("config")
    top = {key: run.summary[key] for key in IDENTITY if key in run.summary}
    return {**(config if isinstance(config, dict) else {}), **top}


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for known in settings for key in known)
    return [
        key
        for key in keys
        if key not in IDENTITY and len({repr(known.get(key)) for known in settings}) > 1
    ]


def write_csv(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write `history_columns` of the runs as a CSV file and return its path.

    An empty field is a value that was not recorded; participants' names are separated by spaces.

    Raises
    ------
    ReportError
        As ``write_report``.
    """
    columns = history_columns(read_runs([Path(folder) for folder in run_dirs]))
    columns[_NAMES] = [" ".join(names) for names in columns[_NAMES]]
    path = _ready(out)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def write_parquet(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write `history_columns` of the runs as a Parquet file and return its path.

    Counts, seeds and bytes are int64, measures float64, participants' names lists of strings;
    ``config.KEY`` is int64, float64 or bool where every run's value is one, else text.

    Raises
    ------
    ReportError
        As ``write_report``; or pyarrow, the extra ``parquet``, is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ReportError(
            "Parquet needs pyarrow, which is not installed: pip install 'flwr-privet[parquet]'"
        ) from None
    columns = history_columns(read_runs([Path(folder) for folder in run_dirs]))
    arrays = {key: pyarrow.array(*_typed(key, values, pyarrow)) for key, values in columns.items()}
    path = _ready(out)
    parquet.write_table(pyarrow.table(arrays), path)
    return path


def _typed(key: str, values: list[Any], arrow: Any) -> tuple[list[Any], Any]:
    if key == _NAMES:
        return [list(names) for names in values], arrow.list_(arrow.string())
    if key in _WHOLE and all(value is None or type(value) is int for value in values):
        return values, arrow.int64()
    if key in {"run", "algorithm", "dataset", "partition"}:
        return [value if value is None else str(value) for value in values], arrow.string()
    if not key.startswith("config."):
        return [value if value is None else float(value) for value in values], arrow.float64()
    return _setting_typed(values, arrow)


def _setting_typed(values: list[Any], arrow: Any) -> tuple[list[Any], Any]:
    known = [value for value in values if value is not None]
    for kind, stored in ((bool, arrow.bool_()), (int, arrow.int64())):
        if all(type(value) is kind for value in known):
            return values, stored
    # JSON has no infinity: a configuration has it as a string.
    if all(type(value) in {int, float} or value in ("inf", "-inf") for value in known):
        return [value if value is None else float(value) for value in values], arrow.float64()
    return [value if value is None else fmt.setting(value) for value in values], arrow.string()


def _ready(out: Path) -> Path:
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
