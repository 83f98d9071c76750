"""Cox models with one baseline for all sites: the pooled rows' likelihood by loops."""

from dataclasses import replace

import numpy as np
import pytest

from privet.analyses.cox_state import EVALUATE
from privet.analyses.frame import AnalysisError
from privet.analyses.pooled_cox import PooledCox
from privet.analyses.pooled_cox_sums import traffic
from support.analysis_sites import TABLES, federate, frames_by, table_columns
from support.cox_by_definition import ByDefinition

TIMES = {"time_column": "days", "event_column": "died"}


def rows_of_sites(seed, n=90):
    """Rows with ties, entries and weights; sites differ in their columns, times and risks."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["u", "v", "w"], n)
    x = rng.normal(size=n) + 2.0 * (site == "v")
    time = np.ceil(6.0 * rng.exponential(np.exp(-0.5 * x))) + 1.0
    return {
        "days": time,
        "came": np.minimum(np.floor(0.7 * rng.random(n) * time), time - 1.0),
        "died": rng.integers(0, 4, n) > 0,
        "x": x,
        "year": 2000.0 + rng.integers(0, 9, n),
        "heavy": rng.integers(1, 5, n) * 0.37,
        "site": site,
    }


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("seed", range(2))
def test_the_estimates_and_errors_are_those_of_the_pooled_rows(seed, ties, rounded):
    columns = rows_of_sites(seed)
    analysis = PooledCox(
        **TIMES, entry_column="came", weight_column="heavy", formula="C(site) + x + year", ties=ties
    )
    outcome = federate(analysis, frames_by(columns), rounded=rounded)
    table = outcome.table
    site = columns["site"]
    x = np.column_stack([site == "v", site == "w", columns["x"], columns["year"] - 2000.0])
    kinds = {"entry": columns["came"], "weights": columns["heavy"]}
    pooled = ByDefinition(x, columns["days"], columns["died"], ties=ties, **kinds)
    b = pooled.fit()
    inverse = np.linalg.inv(pooled.information(b))
    se = np.sqrt(np.diag(inverse))
    assert (np.abs(table["coef"] - b) <= 1e-8 * np.maximum(np.abs(b), se)).all()
    assert table["se"]["nonrobust"] == pytest.approx(se, rel=1e-7)
    assert table["loglik"] == pytest.approx(pooled.loglik(b), rel=1e-9)
    assert table["null_loglik"] == pytest.approx(pooled.loglik(0 * b), rel=1e-9)
    heavy = columns["heavy"][:, None] * pooled.residuals(b)
    meat = heavy.T @ heavy
    assert table["se"]["robust"] == pytest.approx(
        np.sqrt(np.diag(inverse @ meat @ inverse)), rel=1e-6
    )
    of_sites = np.stack([heavy[site == s].sum(axis=0) for s in "uvw"])
    right = np.sqrt(np.diag(inverse @ of_sites.T @ of_sites @ inverse))
    assert table["se"]["cluster"][2:] == pytest.approx(right[2:], rel=1e-6)
    assert table["se"]["cluster"][:2] == [None, None]  # indicators of sites have none
    for name, g in (("identity", lambda t: t), ("log", np.log)):
        single, joint = pooled.trend(b, g)
        assert table["ph_test"][name]["chi2"] == pytest.approx(single, rel=1e-6)
        assert table["ph_test"][name]["global_chi2"] == pytest.approx(joint, rel=1e-6)
    assert (table["num_strata"], table["concordance"], table["strata"]) == (1, None, "")
    assert outcome.rounds <= 10


NAMES = ["age", "bmi", "crp", "sex_M", "smoker_former", "smoker_never"]
COEF = np.array(
    [
        0.03944038336946787,
        0.021658765520264436,
        0.0402919009928956,
        0.39940149013496357,
        -0.5269044968967942,
        -0.6310239413322479,
    ]
)
SE = np.array(
    [
        0.003205627199681423,
        0.011134828430161562,
        0.0059625132495098356,
        0.08701957327014002,
        0.11907729625019937,
        0.11113684703939111,
    ]
)
LOGLIK = -3177.334359710701


def test_the_worked_table_without_strata_is_that_of_lifelines():
    # lifelines 0.30.3, X = pandas.get_dummies(d.drop(columns="site"), columns=["sex", "smoker"],
    # drop_first=True, dtype=float): CoxPHFitter().fit(X, "days", "died",
    # fit_options={"precision": 1e-13}).params_, .standard_errors_, .log_likelihood_
    sites = frames_by(table_columns(TABLES / "cox-1.csv"))
    analysis = PooledCox(**TIMES, formula="age + bmi + crp + sex + smoker")
    table = federate(analysis, sites, rounded=True).table
    order = [table["short_terms"].index(name) for name in NAMES]
    error = np.abs(np.array(table["coef"])[order] - COEF)
    assert (error <= 1e-8 * np.maximum(np.abs(COEF), SE)).all()
    assert np.array(table["se"]["nonrobust"])[order] == pytest.approx(SE, rel=1e-8)
    assert table["loglik"] == pytest.approx(LOGLIK, rel=1e-11)


def test_times_off_the_grid_are_moved_and_counted():
    columns = rows_of_sites(3)
    moved = {**columns, "days": columns["days"] - 0.5}
    analysis = PooledCox(**TIMES, formula="x")
    plain = federate(analysis, frames_by(columns)).table
    table = federate(analysis, frames_by(moved)).table
    assert table["coef"] == pytest.approx(plain["coef"], rel=1e-12)
    assert "90 rows have times that are not on the grid" in table["notes"][-1]
    half = federate(PooledCox(**TIMES, formula="x", time_unit=0.5), frames_by(moved)).table
    assert half["notes"] == plain["notes"]


@pytest.mark.parametrize(
    ("change", "formula", "words"),
    [
        ({"died": np.zeros(90, int)}, "x", "the event occurs at no site"),
        ({"x": np.zeros(90)}, "x", "'x' is 0 in all rows"),
        ({"x": np.full(90, 5.0)}, "x", "'x' does not vary"),
        ({"copy": 1.0}, "x + copy", "'x', 'copy' add up to the same"),
        ({"days": np.arange(1, 91) * 2.0**20}, "x", "time-unit: a grid of 134217728 times"),
    ],
)
def test_what_has_no_estimate_is_one_line(change, formula, words):
    columns = rows_of_sites(4)
    columns |= change
    if "copy" in change:
        columns["copy"] = 3.0 * columns["x"] - 7.0
    with pytest.raises(AnalysisError, match=words):
        federate(PooledCox(**TIMES, formula=formula), frames_by(columns))


def test_what_a_site_sends_is_said_before_it_is_sent():
    # 2 of: 1, 10 columns and 55 products at 1000 times; 10 columns of the dead, a count of rows.
    assert traffic(1000, 10, efron=True) == 8 * (2 * 66 * 1000 + 10 + 1)
    columns = rows_of_sites(5)
    outcome = federate(PooledCox(**TIMES, formula="x + year"), frames_by(columns))
    state = outcome.state
    asking = replace(state, phase=EVALUATE)
    shapes = PooledCox(**TIMES, formula="x + year").shapes(asking)
    sent = 8 * sum(int(np.prod(shape)) for shape in shapes.values())
    assert sent == traffic(len(state.places), 2, efron=True)
