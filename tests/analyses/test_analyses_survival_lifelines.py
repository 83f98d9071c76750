"""Survival models of three sites beside lifelines and statsmodels on the pooled rows.

``survival-NAME.csv`` are the tables of lifelines.datasets (MIT licence), their rows dealt to three
sites in turn, and one of this project's own with heavy ties, strata, weights and times of entry.
The answers in ``survival-NAME.json`` are those of lifelines 0.30.3 (Efron's ties, at a precision of
1e-14) and of statsmodels 0.15 (``PHReg``, Newton's method on its score and Hessian; ``survdiff``).
"""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest

from privet.analyses.cox import CoxAnalysis
from privet.analyses.cox_result import CoxResult
from privet.analyses.frame import AnalysisError
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.pooled_cox import PooledCox
from support.analysis_sites import TABLES, federate, frames_by

DATA_SETS = ("rossi", "lung", "gbsg2", "waltons")


def worked(name: str) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Columns, with None for empty cells, and the answers."""
    with (TABLES / f"survival-{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns: dict[str, list[Any]] = {}
    for column in rows[0]:
        texts = [row[column] or None for row in rows]
        try:
            columns[column] = [None if text is None else float(text) for text in texts]
        except ValueError:
            columns[column] = list(texts)
    return columns, json.loads((TABLES / f"survival-{name}.json").read_text())


def near(table: dict[str, Any], known: dict[str, Any], terms: list[str], digits: float) -> None:
    order = [table["terms"].index(term) for term in terms]
    coef, se = np.array(table["coef"])[order], np.array(table["se"]["nonrobust"])[order]
    error = np.abs(coef - known["coef"])
    assert (error <= digits * np.maximum(np.abs(known["coef"]), known["se"])).all()
    assert se == pytest.approx(known["se"], rel=digits)
    assert table["loglik"] == pytest.approx(known["loglik"], rel=1e-9)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("name", DATA_SETS)
def test_strata_by_site_are_those_of_the_pooled_rows(name: str, ties: str) -> None:
    columns, known = worked(name)
    analysis = CoxAnalysis(known["time"], known["event"], formula=known["formula"], ties=ties)
    table = federate(analysis, frames_by(columns), rounded=True).table
    assert (table["n"], table["events"]) == (known["n"], known["events"])
    if ties == "breslow":
        near(table, known["stratified_breslow"], known["terms"], 1e-7)
        return
    right = known["stratified"]
    near(table, right, known["terms"], 1e-7)
    assert table["concordance"] == pytest.approx(right["concordance"], abs=1e-12)
    order = [table["terms"].index(term) for term in known["terms"]]
    for transform, chi2 in right["ph_test"].items():
        found = np.array(table["ph_test"][transform]["chi2"])[order]
        assert found == pytest.approx(chi2, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("name", DATA_SETS)
def test_one_baseline_is_that_of_the_pooled_rows(name: str, ties: str) -> None:
    columns, known = worked(name)
    analysis = PooledCox(known["time"], known["event"], formula=known["formula"], ties=ties)
    table = federate(analysis, frames_by(columns), rounded=True).table
    near(table, known["pooled" if ties == "efron" else "pooled_breslow"], known["terms"], 1e-7)
    if ties == "efron":
        order = [table["terms"].index(term) for term in known["terms"]]
        assert list(table["ph_test"]) == ["identity", "log", "rank", "km"]
        for transform, chi2 in known["pooled"]["ph_test"].items():
            found = np.array(table["ph_test"][transform]["chi2"])[order]
            assert found == pytest.approx(chi2, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", DATA_SETS)
def test_absolute_risks_are_those_of_lifelines(name: str) -> None:
    columns, known = worked(name)
    analysis = PooledCox(known["time"], known["event"], formula=known["formula"])
    result = CoxResult(federate(analysis, frames_by(columns), rounded=True).table)
    asked = known["pooled"]["predicted"]
    whole = [row for row in range(len(columns[known["time"]])) if complete(columns, known, row)]
    rows = {key: [cells[whole[row]] for row in asked["rows"]] for key, cells in columns.items()}
    survival = result.predict_survival_function(rows, asked["times"])
    assert pytest.approx(np.array(asked["survival"]), rel=1e-7) == survival.to_numpy().T
    hazard = result.predict_cumulative_hazard(rows, asked["times"])
    assert np.exp(-hazard.to_numpy()) == pytest.approx(survival.to_numpy(), rel=1e-14)
    baseline = result.baseline_cumulative_hazard_
    assert [baseline[time] for time in asked["times"]] == pytest.approx(
        known["pooled"]["baseline"], rel=1e-7
    )
    assert result.baseline_survival_[asked["times"][1]] == pytest.approx(
        np.exp(-known["pooled"]["baseline"][1]), rel=1e-7
    )
    every = result.predict_survival_function(rows)
    assert every.index[0] == 0.0
    assert (every.iloc[0] == 1.0).all()
    assert every.loc[asked["times"][0]].to_numpy() == pytest.approx(survival.iloc[0].to_numpy())


def complete(columns: dict[str, list[Any]], known: dict[str, Any], row: int) -> bool:
    names = [known["time"], known["event"], *known["formula"].split(" + ")]
    return all(columns[name][row] is not None for name in names)


@pytest.mark.parametrize("name", DATA_SETS)
def test_curves_and_log_rank_are_those_of_lifelines(name: str) -> None:
    columns, known = worked(name)
    group = known["group"]
    times = (known["time"], known["event"])
    for level, right in known["kaplan_meier"].items():
        analysis = KaplanMeierAnalysis(*times, group_column=group, restriction=right["until"])
        table = federate(analysis, frames_by(columns), rounded=True).table
        at = table["groups"].index(level)
        places = [table["times"][at].index(time) for time in right["times"]]
        for key, digits in (("survival", 1e-12), ("ci95", 1e-10)):
            found = [table[key][at][place] for place in places]
            for one, other in zip(found, right[key], strict=True):
                ends = np.array(one, float), np.array(other, float)
                if one == [None, None]:  # where S is 0, lifelines' interval is [0, 0]
                    ends = np.zeros(2), ends[1]
                np.testing.assert_allclose(*ends, rtol=digits, atol=digits)
        assert [table["at_risk"][at][place] for place in places] == right["at_risk"]
        assert (table["median"][at], table["median_ci95"][at]) == (
            right["median"],
            right["median_ci95"],
        )
        assert table["restricted_mean"][at] == pytest.approx(right["restricted_mean"], rel=1e-9)
    assert table["logrank"]["chi2"] == pytest.approx(known["logrank"]["chi2"], rel=1e-12)
    assert table["logrank"]["p"] == pytest.approx(known["logrank"]["p"], rel=1e-10)


@pytest.mark.parametrize("name", ["rossi", "lung", "gbsg2"])
def test_a_nested_model_is_tested_by_the_likelihoods(name: str) -> None:
    columns, known = worked(name)
    first = known["formula"].split(" + ")[0]
    assert None not in columns[first]

    def fit(formula: str) -> CoxResult:
        analysis = CoxAnalysis(known["time"], known["event"], formula=formula)
        return CoxResult(federate(analysis, frames_by(columns), rounded=True).table)

    larger, smaller = fit(known["formula"]), fit(known["nested"]["formula"])
    for given in (smaller, smaller.table):
        test = larger.log_likelihood_ratio_test(given)
        assert test["test_statistic"] == pytest.approx(known["nested"]["chi2"], rel=1e-6)
        assert test["degrees_freedom"] == known["nested"]["df"]
    with pytest.raises(AnalysisError, match="not nested"):
        smaller.log_likelihood_ratio_test(larger)


def test_other_rows_ties_and_penalties_are_not_compared() -> None:
    columns, known = worked("rossi")

    def fit(formula: str, **keys: Any) -> dict[str, Any]:
        analysis = CoxAnalysis(known["time"], known["event"], formula=formula, **keys)
        return federate(analysis, frames_by(columns)).table

    larger = CoxResult(fit("age + prio"))
    for table, words in (
        (fit("prio", ties="breslow"), "differ in ties"),
        ({**fit("prio"), "n": 400}, "differ in n; fit the same rows"),
        (fit("prio", firth=True), "firth penalises"),
        ({**fit("prio"), "kind": "cox-pooled"}, "differ in kind"),
    ):
        with pytest.raises(AnalysisError, match=words) as caught:
            larger.log_likelihood_ratio_test(table)
        assert "\n" not in str(caught.value)


OWN: dict[str, Any] = {"entry_column": "came"}


def test_heavy_ties_strata_truncation_and_weights_are_those_of_lifelines_and_statsmodels() -> None:
    columns, known = worked("own")
    assert known["distinct_times"] < 50 < known["events"]
    formula, times = known["formula"], (known["time"], known["event"])
    frames = frames_by(columns)
    heavy: dict[str, Any] = {**OWN, "weight_column": "heavy"}
    analysis = CoxAnalysis(*times, formula=formula, strata_column="ward", **heavy)
    table = federate(analysis, frames, rounded=True).table
    near(table, known["lifelines_efron_all"], known["terms"], 1e-8)
    pooled = PooledCox(*times, formula=formula, time_unit=0.5, **heavy)
    table = federate(pooled, frames, rounded=True).table
    near(table, known["lifelines_efron_pooled"], known["terms"], 1e-8)
    for ties in ("efron", "breslow"):
        analysis = CoxAnalysis(*times, formula=formula, strata_column="ward", ties=ties, **OWN)
        table = federate(analysis, frames, rounded=True).table
        near(table, known[f"statsmodels_{ties}"], known["terms"], 1e-8)
        pooled = PooledCox(*times, formula=formula, ties=ties, time_unit=0.5, **OWN)
        table = federate(pooled, frames, rounded=True).table
        near(table, known[f"statsmodels_{ties}_pooled"], known["terms"], 1e-8)


def test_a_baseline_with_weights_is_that_of_lifelines_and_with_entries_of_its_definition() -> None:
    """lifelines' counts those at risk before their entry as well, so entries are by loops."""
    columns, known = worked("own")
    formula, times, frames = known["formula"], (known["time"], known["event"]), frames_by(columns)
    table = federate(
        PooledCox(*times, formula=formula, weight_column="heavy"), frames, rounded=True
    ).table
    right = known["lifelines_weights_pooled"]
    near(table, right, known["terms"], 1e-8)
    baseline = dict(zip(*right["baseline"].values(), strict=True))
    found = table["baseline"]
    expected = [baseline[time] for time in found["times"]]
    assert found["cumulative_hazard"] == pytest.approx(expected, rel=1e-8)

    analysis = PooledCox(*times, formula=formula, weight_column="heavy", time_unit=0.5, **OWN)
    table = federate(analysis, frames, rounded=True).table
    arm = np.array(columns["arm"])
    terms = {"arm[T.q]": arm == "q", "arm[T.r]": arm == "r"}
    terms |= {name: np.array(columns[name]) for name in ("x", "age")}
    x = np.column_stack([np.asarray(terms[name], float) for name in table["terms"]])
    risk = np.exp((x - x.mean(axis=0)) @ table["coef"]) * np.array(columns["heavy"])
    days, came, died = (np.array(columns[name]) for name in ("days", "came", "died"))
    hazard, total = [], 0.0
    for time in sorted(set(days[died == 1.0])):
        dying = (days == time) & (died == 1.0)
        total += (
            np.array(columns["heavy"])[dying].sum() / risk[(came < time) & (time <= days)].sum()
        )
        hazard.append(total)
    assert table["baseline"]["times"] == sorted(set(days[died == 1.0]))
    assert table["baseline"]["cumulative_hazard"] == pytest.approx(hazard, rel=1e-8)
    assert table["baseline"]["centre"] == pytest.approx(x.mean(axis=0), rel=1e-9)


def test_truncated_curves_and_stratified_log_ranks_are_those_of_others() -> None:
    columns, known = worked("own")
    times, frames = (known["time"], known["event"]), frames_by(columns)
    analysis = KaplanMeierAnalysis(*times, group_column="arm", time_unit=0.5, **OWN)
    table = federate(analysis, frames).table
    for level, right in known["kaplan_meier_entry"].items():
        at = table["groups"].index(level)
        assert table["times"][at] == right["times"]
        assert table["survival"][at] == pytest.approx(right["survival"], abs=1e-12)
        assert table["at_risk"][at] == right["at_risk"]
    for strata, key in (("", "logrank_by_site"), ("ward", "logrank_by_ward")):
        analysis = KaplanMeierAnalysis(*times, group_column="arm", strata_column=strata)
        table = federate(analysis, frames, rounded=True).table
        assert table["logrank_by_site"]["chi2"] == pytest.approx(known[key]["chi2"], rel=1e-10)
        assert table["logrank_by_site"]["p"] == pytest.approx(known[key]["p"], rel=1e-9)
    assert table["logrank"]["chi2"] == pytest.approx(known["logrank"]["chi2"], rel=1e-12)


def test_without_a_pooled_baseline_there_is_no_absolute_risk() -> None:
    columns, known = worked("rossi")
    analysis = CoxAnalysis(known["time"], known["event"], formula="age")
    result = CoxResult(federate(analysis, frames_by(columns)).table)
    asks = (
        lambda: result.predict_survival_function({"age": [30.0]}),
        lambda: result.predict_cumulative_hazard({"age": [30.0]}),
        lambda: result.baseline_survival_,
        lambda: result.baseline_cumulative_hazard_,
    )
    for ask in asks:
        with pytest.raises(AnalysisError, match="each site keeps its baseline") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_risks_before_after_and_without_a_value_are_said() -> None:
    columns, known = worked("rossi")
    analysis = PooledCox(known["time"], known["event"], formula="age")
    result = CoxResult(federate(analysis, frames_by(columns)).table)
    found = result.predict_survival_function({"age": [30.0, None]}, [0.0, 0.5, 52.0, 1e9])
    assert found[0].tolist()[:2] == [1.0, 1.0]
    assert found[0].tolist()[2] == found[0].tolist()[3] < 1.0
    assert found[1].isna().all()
    for times in ([-1.0], [float("nan")]):
        with pytest.raises(AnalysisError, match="from 0 on"):
            result.predict_survival_function({"age": [30.0]}, times)


def test_ranks_and_curves_need_the_pooled_grid() -> None:
    columns, known = worked("rossi")
    times = (known["time"], known["event"])
    pooled = CoxResult(federate(PooledCox(*times, formula="age"), frames_by(columns)).table)
    assert 0.0 < pooled.proportional_hazard_test("rank").loc["age", "p"] < 1.0
    own = CoxResult(federate(CoxAnalysis(*times, formula="age"), frames_by(columns)).table)
    with pytest.raises(AnalysisError, match="needs the pooled grid of baseline = pooled"):
        own.proportional_hazard_test("km")
    with pytest.raises(AnalysisError, match=r"'sqrt': no such test$"):
        own.proportional_hazard_test("sqrt")
