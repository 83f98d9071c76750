"""The benchmark of the regression table: its reference, and the figures that it prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import glm as bench
from support.paths import ROOT
from support.pooled import pooled


def test_the_pooled_fit_is_that_of_another_precision() -> None:
    sites = bench.sites_of(4, 3)
    columns = sites.columns.reshape(-1, 4)
    matrix = np.hstack([np.ones((len(columns), 1)), columns])
    outcome = sites.outcome.ravel()
    known = pooled("binomial", matrix, outcome, np.repeat([0, 1, 2], len(outcome) // 3))
    np.testing.assert_allclose(sites.coef, known.coef.astype(float), rtol=1e-9)
    np.testing.assert_allclose(sites.errors, known.errors("nonrobust"), rtol=1e-9)


def test_the_benchmark_prints_its_goals_and_meets_them(monkeypatch: Any) -> None:
    monkeypatch.setattr(bench, "MOST", 30)
    monkeypatch.setattr(bench, "ROWS", 200_000)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'papers' / 'src'}:{ROOT / 'tests'}")
    shown: list[Any] = []
    bench.bench_glm(shown.append, quick=True)
    found = {figure.figure: figure for figure in shown}
    goals = {name: figure.goal for name, figure in found.items() if figure.goal is not None}
    assert goals == {
        "Privet, rounds": 8,
        "Privet, error in se": 1e-8,
        "Privet, error of the se": 1e-8,
    }
    assert all(found[name].holds for name in goals)
    assert found["Fed-PLT, error in se"].value <= bench.CLOSE
    assert found["FedAvg, error in se"].value > 1e-3
    assert found["FedAvg, rounds"].value == 30
