"""Presets, the benchmark's loops and the tables of DP-IADMM, on data that are at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import iadmm as bench
from privet.cli.presets import load_preset, preset_names
from privet.core import ConfigError
from privet.server_apps import read_config

# ------------------------------------------------------------------ presets


def test_every_preset_is_a_run_config() -> None:
    assert {"dp-iadmm/adult", "dp-iadmm/mnist"} <= set(preset_names())
    for name in preset_names():
        config = read_config(load_preset(name))
        assert config["algorithm"] == name.partition("/")[0]
        assert config["data-path"] == ""


def test_a_preset_is_found_by_its_short_name() -> None:
    assert load_preset("mnist", "dp-iadmm") == load_preset("dp-iadmm/mnist")
    with pytest.raises(ConfigError, match=r"preset 'nope': known are .*dp-iadmm/mnist"):
        load_preset("nope")
    with pytest.raises(ConfigError, match="preset 'mnist': known are none"):
        load_preset("mnist", "no-such-algorithm")


# ------------------------------------------------------------------ the benchmark's loops


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
