"""A table with everything that tables have, and the model of a run on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privet.server_apps.model_file import Model, load_model
from privet.sim.inline import run_inline

WARDS = ["east", "north", "west"]


def patients(rows: int = 90, gaps: bool = False) -> pd.DataFrame:
    """A table with numbers, a constant number, texts, a constant text, and three classes."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows).astype(float),
            "dose": rng.normal(3.0, 2.0, rows).round(3),
            "year": 2024.0,
            "ward": rng.choice(WARDS, rows),
            "site": "main",
            "code": rng.choice(["A", "B"], rows),
            "outcome": rng.choice(["none", "mild", "severe"], rows),
        }
    )
    if gaps:
        for name in ("age", "ward"):
            frame.loc[rng.choice(rows, 9, replace=False), name] = None
    return frame


def run(tmp_path: Path, frame: pd.DataFrame, **keys: Any) -> Model:
    """Train on all rows of a table, written with semicolons and decimal commas."""
    folder = tmp_path / "tables"
    folder.mkdir(exist_ok=True)
    for name in ("train", "test"):
        frame.to_csv(folder / f"{name}.csv", sep=";", decimal=",", index=False)
    config = {
        "dataset": "csv",
        "data-path": str(folder),
        "label-column": "outcome",
        "partition": "iid",
        "num-agents": 3,
        "num-server-rounds": 4,
        "output-dir": str(tmp_path / "runs"),
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }
    return load_model(run_inline(config, "run").folder)
