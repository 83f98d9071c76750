"""The benchmark of databases: its records, and the figures that it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import sql as bench
from support.paths import ROOT

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: the extra sql")


def test_the_records_are_as_they_are_said_to_be(tmp_path: Path) -> None:
    bench.make_records(tmp_path, 20_000)
    with duckdb.connect(str(tmp_path / "records.duckdb"), read_only=True) as connection:
        rows = connection.sql("select * from visits").fetchnumpy()
    assert len(rows) == bench.NUMBERS + 4
    numbers = np.array([rows[f"x{place}"] for place in range(bench.NUMBERS)])
    # Five standard errors of a mean and of a variance of normal numbers.
    assert np.abs(numbers.mean(axis=1)).max() < 5 / np.sqrt(20_000)
    assert np.abs(numbers.var(axis=1) - 1).max() < 5 * np.sqrt(2 / 20_000)
    chance = 1 / (1 + np.exp(0.5 - numbers[0] + numbers[1] / 2))
    spread = np.sqrt((chance * (1 - chance)).sum())
    assert abs(rows["died"].sum() - chance.sum()) < 5 * spread


def test_the_benchmark_prints_its_goals_and_meets_them(monkeypatch: Any) -> None:
    monkeypatch.setattr(bench, "ROWS", 250_000)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'papers' / 'src'}:{ROOT / 'tests'}")
    shown: list[Any] = []
    bench.bench_sql(shown.append, quick=True)
    found = {figure.figure: figure for figure in shown}
    goals = {name: figure.goal for name, figure in found.items() if figure.goal is not None}
    assert goals == {
        f"Privet, {what}, MB": bench.MEMORY_GOAL for what in ("describe", "glm", "fed-plt")
    }
    assert all(found[name].holds for name in goals)
    assert {"pandas, describe, rows a second", "DuckDB, describe, rows a second"} <= found.keys()
