"""One million rows at a site, described in bounded memory: CSV, Parquet and a folder of both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROWS, COLUMNS = 1_000_000, 6
BYTES_A_CELL = 72
"""With what reading takes: the columns themselves are 8 bytes a number, 4 a category."""

SITE = """
import json, resource, sys
import pandas, pyarrow.parquet  # so that importing them is in no difference
from privet.analyses.description import DescribeAnalysis
from privet.data.analysed import AnalysedTable
from privet.data.frames import table_from_config
from privet.kernel.analysis_rules import AnalysisRules
from privet.server_apps import read_config

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

config = read_config({"algorithm": "describe", "dataset": "csv", "data-path": sys.argv[1]})
idle = peak()
rules = AnalysisRules(min_cell=5)
site = AnalysedTable(DescribeAnalysis(), table_from_config(config), own=True, rules=rules)
analysis = site.analysis
state = analysis.begin(site.levels)
while not state.done:
    state = analysis.step(state, site.statistics(analysis.point(state)))
print(json.dumps({"grown": peak() - idle, "table": analysis.table(state)}))
"""


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    found = pd.DataFrame(
        {
            "age": rng.normal(60, 12, ROWS).round(1),
            "crp": rng.lognormal(1, 1, ROWS),
            "visits": rng.integers(0, 40, ROWS),
            "bmi": rng.normal(26, 4, ROWS),
            "sex": rng.choice(["F", "M"], ROWS),
            "smoker": rng.choice(["current", "former", "never"], ROWS),
        }
    )
    found.loc[rng.random(ROWS) < 0.1, "bmi"] = np.nan
    return found


def written(folder: Path, kind: str, rows: pd.DataFrame) -> Path:
    if kind == "folder":
        (folder / "site").mkdir()
        rows[: ROWS // 2].to_csv(folder / "site" / "a.csv", index=False)
        rows[ROWS // 2 :].to_parquet(folder / "site" / "b.parquet")
        return folder / "site"
    path = folder / f"site.{kind}"
    rows.to_csv(path, index=False) if kind == "csv" else rows.to_parquet(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_a_million_rows_are_described_in_bounded_memory(
    tmp_path: Path, kind: str, rows: pd.DataFrame
) -> None:
    """Measured 272 to 299 MiB."""
    path = written(tmp_path, kind, rows)
    child = [sys.executable, "-c", SITE, str(path)]
    said = subprocess.run(child, capture_output=True, text=True, timeout=1200, check=True)
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    assert found["grown"] <= BYTES_A_CELL * ROWS * COLUMNS
    table = found["table"]
    assert table["rows"] == ROWS
    for name in ("age", "crp", "visits", "bmi"):
        column, known = table["columns"][name], rows[name].dropna()
        assert (column["n"], column["missing"]) == (len(known), ROWS - len(known))
        assert column["mean"] == pytest.approx(known.mean(), rel=1e-12)
        assert column["sd"] == pytest.approx(known.std(), rel=1e-12)
    for name in ("sex", "smoker"):
        assert table["columns"][name]["categories"] == rows[name].value_counts().to_dict()
