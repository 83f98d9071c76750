"""A regression in a run folder, read to predict new rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privet.analyses.cox_result import CoxResult
from privet.analyses.frame import AnalysisError
from privet.analyses.glm_result import GlmResult
from privet.analyses.glm_tests import likelihood_ratio
from privet.analyses.prediction import columns_of
from privet.core import ConfigError, PrivetError
from privet.core.shapes import parsed
from privet.data.frames import table_from_config

from .run_folder import SUMMARY, TABLE

_AS_READ = ("censored", "infinite", "dates")
"""The run's keys that say how cells are read."""


def is_analysis(path: Path) -> bool:
    """Say whether a path is the run folder of an analysis, or its ``table.json``."""
    return path.name == TABLE or (path / TABLE).is_file()


def load_regression(path: Path) -> GlmResult | CoxResult:
    """Return the regression of a run folder, or of its file ``table.json``.

    Raises
    ------
    ConfigError
        A file that is not there, is damaged, or is no regression: one line that names it.
    """
    file = path / TABLE if path.is_dir() else path
    try:
        table = parsed(file.read_bytes())
        kind = table["kind"]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{file} cannot be read as a regression: run it again") from None
    if kind not in ("glm", "cox", "cox-pooled"):
        raise ConfigError(f"{file}: {kind} predicts no rows; glm and cox do")
    try:
        columns_of(table)
        return GlmResult(table) if kind == "glm" else CoxResult(table)
    except (AnalysisError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{file} cannot be read as a regression: run it again") from None


@contextmanager
def read_whole(run: Path) -> Iterator[None]:
    """Say in one line that a run's table is damaged, where what is made of it fails within.

    What is wrong with new rows is an ``AnalysisError`` or ``PrivetError``, and stays one.
    """
    try:
        yield
    except (AnalysisError, PrivetError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        file = run / TABLE if run.is_dir() else run
        raise ConfigError(f"{file} cannot be read as a regression: run it again") from None


def nested_table(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the table of ``nested-run``; None where there is none (raises ``ConfigError``)."""
    path = str(config.get("nested-run", ""))
    if not path:
        return None
    smaller = load_regression(Path(path))
    if not isinstance(smaller, GlmResult):
        raise ConfigError(f"nested-run: {path} is no run of algorithm = glm")
    return smaller.table


def compared(table: Mapping[str, Any], smaller: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a table with its test against that of a nested run; and why there is none, if so,
    which a note of the table says as well."""
    try:
        return {**table, "likelihood_ratio": likelihood_ratio(smaller, table)}, ""
    except AnalysisError as error:
        why = str(error)
        return {**table, "likelihood_ratio": None, "notes": [*table["notes"], why]}, why


def read_new_rows(run: Path, rows: Path) -> Any:
    """Return the `Frame` of a table of new rows, its cells read as those of the run.

    Raises
    ------
    DataError
        As ``privet.data.frames.table_from_config``.
    """
    folder = run if run.is_dir() else run.parent
    try:
        config = parsed((folder / SUMMARY).read_bytes())["config"]
        chosen = {key: config[key] for key in _AS_READ if key in config}
    except (OSError, ValueError, KeyError, TypeError):
        chosen = {}
    return table_from_config({**chosen, "data-path": str(rows)}).frame
