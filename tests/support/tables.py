"""Tables that tests write as CSV files and read as the data set ``csv`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from privet.data import Dataset, load


def csv(path: Path, table: pd.DataFrame, **keys: Any) -> Path:
    """Write a table and return its path; the keys are those of ``DataFrame.to_csv``."""
    path.parent.mkdir(exist_ok=True)
    table.to_csv(path, index=False, **keys)
    return path


def read(path: Path, **keys: Any) -> Dataset:
    """Read a table without an intercept."""
    return load("csv", data_path=path, intercept=False, **keys)


def doubts(data: Dataset) -> str:
    """Return what was doubted, one text a line."""
    return "\n".join(fault.text for fault in data.doubts)
