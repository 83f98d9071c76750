"""Presets, the benchmark's loops and the tables of DP-IADMM, on data that are at hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import iadmm as bench
from privet.datasets import Federation, federation_from_config
from privet.privacy import Facts
from privet.server_apps import read_config
from privet.sim.experiments import dp_iadmm_tables as tables
from privet.sim.experiments.dp_iadmm import PAPER, VARIANTS, Variant, run
from privet.sim.presets import load_preset, preset_names
from privet.wire import ConfigError
from support.paths import data_file


@pytest.fixture(scope="module")
def digits() -> Federation:
    return federation_from_config(
        {"algorithm": "dp-iadmm", "dataset": "digits", "partition": "iid", "beta": 1e-6}, 5
    )


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
    script = bench.script([rows.astype(float) for rows in images], labels, deviation=0.0)
    for _ in range(5):
        found = library(), loop(), script()
    for one, other in zip(found[1], found[2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for one, other in zip(found[0], found[2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
        assert np.abs(other).max() > 1e-3


def test_the_benchmark_prints_its_goals() -> None:
    shown: list[Any] = []
    bench.bench_iadmm(shown.append, quick=True)
    goals = {figure.figure: figure.goal for figure in shown if figure.goal is not None}
    assert goals == {"privet / GEMMs": 1.4, "privet / float64 script": 0.7}
    assert all(figure.value > 0 for figure in shown)


# ------------------------------------------------------------------ tables


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.name} {v.local_updates}")
def test_every_setting_of_a_variant_meets_its_epsilon(variant: Variant, digits: Federation) -> None:
    facts = Facts.of(max(digits.problems, key=lambda problem: problem.num_examples))
    tried = list(variant.settings(3.0, 20, facts))
    assert len(tried) == len(list(VARIANTS[0].settings(3.0, 20, facts)))
    for settings in tried[:: len(tried) - 1]:
        course = run(digits, 20 // variant.local_updates, settings, seed=1)
        assert 2.98 < course.epsilon <= 3.0


def test_the_papers_setting_claims_nothing(digits: Federation) -> None:
    course = run(digits, 4, {**PAPER, "epsilon": 1.0}, seed=1, every=2)
    assert course.epsilon == float("inf")
    assert course.rounds == (2, 4)
    assert course.at(4) == course.final


def test_lines_are_written_as_they_are(digits: Federation, tmp_path: Path) -> None:
    course = run(digits, 2, {"perturbation": "none"}, seed=1, every=1)
    lines = [{"method": "ObjP", "error": round(course.final, 2)}]
    tables.write_csv(tmp_path / "lines.csv", lines)
    with (tmp_path / "lines.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"method": "ObjP", "error": str(lines[0]["error"])}]
    assert tables.markdown(lines).splitlines()[2] == f"| ObjP | {lines[0]['error']} |"
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plots'")
    tables.picture(tmp_path / "p.svg", "title", {"a": {"ObjP, a": course}})
    assert "<svg" in (tmp_path / "p.svg").read_text()


@pytest.mark.slow
def test_mnist_in_the_papers_setting() -> None:
    """Another implementation, one seed: 20.6 at t = 400 for epsilon 1, 17.6 without noise."""
    from privet.sim.experiments.dp_iadmm import mnist

    data = mnist(str(data_file("mnist_20k.npz")))
    for epsilon, reference in ((1.0, 20.6), (float("inf"), 17.6)):
        course = run(data, 400, {**PAPER, "epsilon": epsilon}, seed=1)
        assert course.final == pytest.approx(reference, abs=1.5)
