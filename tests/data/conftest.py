"""What tests of data share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.extras import extra


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Hugging Face's library with a cache of its own."""
    found = extra("datasets")
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return found


@pytest.fixture
def saved(library: Any, tmp_path: Path) -> Callable[..., str]:
    """Return what saves the columns of splits and gives the ``data-path`` to them."""

    def save(**splits: Any) -> str:
        tables = {
            name: library.Dataset.from_dict(columns) if isinstance(columns, dict) else columns
            for name, columns in splits.items()
        }
        library.DatasetDict(tables).save_to_disk(tmp_path / "saved")
        return f"hf:{tmp_path / 'saved'}"

    return save
