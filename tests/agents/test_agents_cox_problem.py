"""Cox's partial likelihood as a problem: its value, slope and moduli, and which runs it refuses."""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from privet.client_apps import CoxProblem
from privet.core import ConfigError
from privet.kernel import can_clip
from privet.problems import L2
from privet.sim import grid_of
from privet.strategies import (
    LED,
    DPFedAvg,
    DPFedSGD,
    FedDyn,
    FedLin,
    FedPD,
    FedPDM,
    FedPLT,
    Scaffold,
)
from support.analysis_sites import TABLES
from support.cox_by_definition import ByDefinition

ROSSI = json.loads((TABLES / "survival-rossi.json").read_text())
SCALE = np.array([0.5, 6.0, 0.4, 0.5, 0.4, 0.5, 3.0])
"""Public sizes of the columns."""


def rossi() -> list[CoxProblem]:
    """The rows of three sites, with one divisor for all, of columns in units of `SCALE`."""
    with (TABLES / "survival-rossi.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    site = np.array([row["site"] for row in rows])
    features = np.array([[float(row[term]) for term in ROSSI["terms"]] for row in rows]) / SCALE
    time = np.array([float(row["week"]) for row in rows])
    event = np.array([float(row["arrest"]) for row in rows])
    return [
        CoxProblem(features[own], time[own], event[own], divisor=len(rows) / 3)
        for own in (site == name for name in sorted(set(site.tolist())))
    ]


def start() -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(7))})


def error(result: Any) -> float:
    """How far the coefficients are from lifelines', in standard errors."""
    known = ROSSI["stratified"]
    found = result.arrays["x"].numpy() / SCALE
    return float(np.max(np.abs(found - known["coef"]) / known["se"]))


def random_rows(seed: int, n: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    time = np.ceil(4.0 * rng.exponential(size=n)) + 1.0
    return {
        "features": rng.normal(size=(n, 3)) * [1.0, 5.0, 0.2],
        "time": time,
        "event": rng.integers(0, 3, n) > 0,
        "entry": np.minimum(np.floor(0.6 * rng.random(n) * time), time - 1.0),
        "strata": rng.choice(["a", "b"], n),
        "weights": rng.integers(1, 4, n) * 0.5,
    }


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient_are_those_of_loops(seed: int, ties: str) -> None:
    rows = random_rows(seed)
    weight = 0.3
    problem = CoxProblem(**rows, ties=ties, regularizer=L2(weight), divisor=40.0)
    kinds = {name: rows[name] for name in ("entry", "strata", "weights")}
    pooled = ByDefinition(rows["features"], rows["time"], rows["event"], ties=ties, **kinds)
    b = np.random.default_rng(seed).normal(size=3) * [0.5, 0.1, 2.0]
    assert problem.value(b) == pytest.approx(
        -pooled.loglik(b) / 40.0 + weight * b @ b / 2.0, rel=1e-11
    )
    slope = -pooled.score(b) / 40.0 + weight * b
    np.testing.assert_allclose(problem.gradient(b), slope, rtol=1e-10, atol=1e-12)
    assert (problem.dim, problem.num_examples, problem.dtype) == (3, 60, np.float64)


@given(st.integers(0, 10_000), st.sampled_from(["efron", "breslow"]), st.floats(0.1, 20.0))
def test_the_moduli_bound_the_hessian(seed: int, ties: str, far: float) -> None:
    rows = random_rows(seed, 15)
    problem = CoxProblem(**rows, ties=ties)
    kinds = {name: rows[name] for name in ("entry", "strata", "weights")}
    pooled = ByDefinition(rows["features"], rows["time"], rows["event"], ties=ties, **kinds)
    b = far * np.random.default_rng(seed + 1).normal(size=3)
    b /= np.abs(rows["features"] @ b).max()
    largest = np.linalg.eigvalsh(pooled.information(far * b) / 15.0)[-1]
    assert largest <= problem.moduli.smoothness * (1.0 + 1e-12)


def test_moduli_follow_the_divisor_and_the_regulariser() -> None:
    rows = random_rows(0)
    alone = CoxProblem(**rows).moduli.smoothness
    other = CoxProblem(**rows, regularizer=L2(0.5)).with_divisor(120.0).moduli
    assert other.smoothness == pytest.approx(alone / 2.0 + 0.5)
    assert other.strong_convexity == pytest.approx(0.5)


def test_fed_plt_without_a_regulariser_ends_at_lifelines_coefficients() -> None:
    strategy = FedPLT(rho=30.0, local_epochs=10)
    result = strategy.start(grid_of("fed-plt", rossi()), start(), num_rounds=200)
    assert error(result) < 1e-9


EXACT: dict[str, Any] = {
    "fed-pd": (FedPD(rho=5.0, local_epochs=20), 100),
    "fed-lin": (FedLin(step_size=0.1), 200),
    "led": (LED(step_size=0.1), 100),
}


@pytest.mark.parametrize("name", EXACT)
def test_other_exact_methods_end_there_as_well(name: str) -> None:
    strategy, rounds = EXACT[name]
    result = strategy.start(grid_of(name, rossi()), start(), num_rounds=rounds)
    assert error(result) < 1e-4


def test_the_engines_give_the_same_bits() -> None:
    found = []
    for engine in ("inline", "cohort"):
        grid = grid_of("fed-plt", rossi(), engine=engine)
        found.append(FedPLT(rho=30.0, local_epochs=5).start(grid, start(), num_rounds=20))
    one, other = (result.arrays["x"].numpy() for result in found)
    assert one.tobytes() == other.tobytes()


def test_a_site_without_events_one_of_one_row_and_late_entries_are_right() -> None:
    rows = random_rows(4)
    none = CoxProblem(rows["features"], rows["time"], np.zeros(60))
    assert none.value(np.ones(3)) == 0.0
    assert not none.gradient(np.ones(3)).any()
    assert (none.moduli.strong_convexity, none.moduli.smoothness) == (0.0, 0.0)
    single = CoxProblem([[1.0, 2.0, 3.0]], [5.0], [1.0])
    assert not single.gradient(np.ones(3)).any()
    parts = rossi()
    with_both = [*parts, CoxProblem(np.zeros((4, 7)), [1.0, 2.0, 3.0, 4.0], np.zeros(4))]
    with_both.append(CoxProblem(np.ones((1, 7)), [3.0], [1.0]))
    strategy = FedPLT(rho=30.0, local_epochs=10)
    result = strategy.start(grid_of("fed-plt", with_both), start(), num_rounds=200)
    assert error(result) < 1e-5


NOISED: dict[str, Any] = {
    "fed-plt": FedPLT(step_size=0.1, local_solver="noisy-gd", clip=1.0, noise_variance=0.5),
    "dp-fedsgd": DPFedSGD(clip=1.0, noise_scale=0.5),
    "fed-dyn": FedDyn(clip=1.0, noise_scale=0.5),
    "scaffold": Scaffold(clip=1.0, noise_scale=0.5),
}


@pytest.mark.parametrize("name", NOISED)
def test_noise_by_clipped_records_is_refused_with_the_reason(name: str) -> None:
    assert not can_clip(rossi()[0])
    with pytest.raises(Exception, match=r"risk sets of a Cox model") as caught:
        NOISED[name].start(grid_of(name, rossi()), start(), num_rounds=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("dp-fedavg", DPFedAvg(clip=1.0, noise_scale=0.5)),
        ("fed-pdm", FedPDM(clip=1.0, noise_scale=0.5, clipping="batch", step_size_base=0.1)),
    ],
)
def test_what_clips_a_whole_upload_is_charged(name: str, strategy: Any) -> None:
    """The bound is that of the clip, whatever the vector is computed from."""
    result = strategy.start(grid_of(name, rossi()), start(), num_rounds=1)
    assert 0.0 < result.history[0].epsilon < np.inf


def test_a_mini_batch_is_refused_with_the_reason() -> None:
    problem = rossi()[0]
    with pytest.raises(ConfigError, match="takes no mini-batches: a row is at risk"):
        problem.gradient(np.zeros(7), np.arange(5))
    for call in (
        lambda: problem.clipped_term(np.zeros(7), 1.0),
        lambda: problem.sampled_term(np.zeros(7), 1.0, np.ones(144, bool), 144),
    ):
        with pytest.raises(ConfigError, match="no gradient of one row"):
            call()
    strategy = FedPLT(local_solver="sgd", batch_size=16, step_size=0.1)
    with pytest.raises(Exception, match="takes no mini-batches") as caught:
        strategy.start(grid_of("fed-plt", rossi()), start(), num_rounds=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"time": [1.0, 2.0]}, r"time has shape \(2,\), expected \(3,\)"),
        ({"time": [1.0, -2.0, 3.0]}, "time must be from 0 on"),
        ({"time": [1.0, np.inf, 3.0]}, "time must be finite"),
        ({"event": [1, 2, 1]}, "event must be 0"),
        ({"entry": [0.0, 2.0, 1.0]}, "entry must be before time"),
        ({"weights": [1.0, 0.0, 1.0]}, "weights must be above 0"),
        ({"strata": ["a"]}, r"strata has shape \(1,\)"),
        ({"ties": "exact"}, "ties is 'exact'"),
        ({"features": [1.0, 2.0, 3.0]}, "features must be"),
        ({"features": [[np.nan], [1.0], [2.0]]}, "features must be"),
        ({"features": np.zeros((0, 1)), "time": [], "event": []}, "no data"),
    ],
)
def test_what_is_no_table_of_times_is_one_line(change: dict[str, Any], words: str) -> None:
    rows = {"features": [[1.0], [2.0], [4.0]], "time": [1.0, 2.0, 3.0], "event": [1, 0, 1]}
    with pytest.raises(ConfigError, match=words) as caught:
        CoxProblem(**{**rows, **change})
    assert "\n" not in str(caught.value)
