"""What a run in the clear keeps of each site, by messages of every kind of sum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.sim.inline import run_inline
from support.analysis_sites import TABLES, table_of
from support.patients_of_sites import patients


def run(folder: Path, engine: str = "inline", **keys: Any) -> dict[str, Any]:
    config = {
        "algorithm": "glm",
        "formula": "died ~ age + sex",
        "data-path": str(TABLES / "glm-binomial-1.csv"),
        "id-column": "site",
        "output-dir": str(folder),
        **keys,
    }
    finished = run_inline(config, "run", engine=engine)
    table: dict[str, Any] = json.loads((Path(finished.folder) / "table.json").read_text())
    assert str(finished.result.fitted) == str(type(finished.result.fitted)(table))  # type: ignore[attr-defined]
    return table


@pytest.mark.parametrize("engine", ["inline", "cohort"])
def test_sites_have_their_own_numbers_under_their_names(tmp_path: Path, engine: str) -> None:
    table = run(tmp_path, engine)
    columns = table_of("glm-binomial-1.csv")
    marks, died = np.array(columns["site"]), np.array(columns["died"])
    own = [marks == name for name in table["site_names"]]
    assert table["by_site"] == [{"n": mine.sum(), "events": died[mine].sum()} for mine in own]
    assert [test["df"] for test in table["heterogeneity"]] == [3, 3, 3, 3]
    assert "<h2>Sites</h2>" in (tmp_path / "run" / "report.html").read_text()


def test_a_site_with_turned_outcomes_is_named_at_the_end_with_exclude(tmp_path: Path) -> None:
    columns = patients(1800, sites=6)
    turned = np.array(columns["site"]) == "s3"
    died = np.where(turned, 1 - columns["died"], columns["died"]).astype(int)
    rows = zip(columns["site"], columns["age"], died, strict=True)
    lines = [f"{site},{age:.3f},{outcome}" for site, age, outcome in rows]
    (tmp_path / "all.csv").write_text("\n".join(["site,age,died", *lines]))
    config = {
        "algorithm": "glm",
        "formula": "died ~ age",
        "data-path": str(tmp_path / "all.csv"),
        "id-column": "site",
        "output-dir": str(tmp_path),
    }
    said = run_inline(config, "run", engine="inline").headline()["not like the others"]
    assert said.startswith("s3: it differs from the pooled model by more than the others do")
    assert said.endswith("exclude=s3")


def test_masked_runs_have_none(tmp_path: Path) -> None:
    table = run(tmp_path, **{"secure-sum": True})
    assert (table["by_site"], table["heterogeneity"]) == (None, None)
    assert "<h2>Sites</h2>" not in (tmp_path / "run" / "report.html").read_text()
