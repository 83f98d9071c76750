"""The loops that the benchmark of DP-IADMM compares."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import iadmm as bench


def test_the_benchmark_compares_the_same_algorithm() -> None:
    rng = np.random.default_rng(0)
    images = [rng.random((30, 6), np.float32) for _ in range(3)]
    labels = [rng.integers(0, bench.CLASSES, 30) for _ in range(3)]
    library = bench.library(images, labels, noisy=False)
    loop = bench.bare_loop(images, labels, deviation=0.0)
    proven = bench.proven_loop(images, labels, noisy=False)
    script = bench.script([rows.astype(float) for rows in images], labels, deviation=0.0)
    for _ in range(5):
        *others, expected = library(), loop(), proven(), script()
    for found in others:
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
            assert np.abs(other).max() > 1e-3


def test_the_benchmark_prints_its_goals() -> None:
    shown: list[Any] = []
    bench.bench_iadmm(shown.append, quick=True)
    goals = {figure.figure: figure.goal for figure in shown if figure.goal is not None}
    assert goals == {
        f"privet, {run} / {what}": goal
        for run in ("private", "un-noised")
        for what, goal in (("loop of the proof", 1.25), ("float64 script", 0.7))
    }
    assert all(figure.value > 0 for figure in shown)
