"""Results by lifelines' names: the numbers are those of the tables, with and without pandas."""

import sys

import numpy as np
import pytest
from scipy.stats import norm

from privet.analyses.cox import CoxAnalysis
from privet.analyses.cox_result import CoxResult
from privet.analyses.frame import AnalysisError
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.kaplan_meier_result import KaplanMeierResult
from support.analysis_sites import TABLES, federate, frames_by, table_columns

TIMES = {"time_column": "days", "event_column": "died"}


@pytest.fixture(scope="module")
def sites():
    return frames_by(table_columns(TABLES / "cox-1.csv"))


@pytest.fixture(scope="module")
def cox(sites):
    return federate(CoxAnalysis(**TIMES, formula="age + bmi + crp + sex + smoker"), sites).table


@pytest.fixture(scope="module")
def curves(sites):
    return federate(KaplanMeierAnalysis(**TIMES, group_column="sex"), sites).table


def test_a_cox_result_has_lifelines_names(cox):
    result = CoxResult(cox)
    assert result.params_["age"] == cox["coef"][3]
    assert result.hazard_ratios_["sex[T.M]"] == pytest.approx(np.exp(cox["coef"][0]))
    assert result.standard_errors_["age"] == cox["se"]["nonrobust"][3]
    assert result.variance_matrix_["age"]["bmi"] == cox["cov"][3][4]
    # lifelines 0.30.3, CoxPHFitter().fit(..., strata=["site"]).summary.loc["age"]
    row = {name: result.summary[name]["age"] for name in result.summary}
    assert row["exp(coef)"] == pytest.approx(1.03129714, rel=1e-7)
    assert row["coef lower 95%"] == pytest.approx(0.03081737 - 1.959964 * 0.0039842532, rel=1e-6)
    assert row["-log2(p)"] == pytest.approx(-np.log2(2 * norm.sf(row["z"])))
    assert result.confidence_intervals_["95% lower-bound"]["age"] == row["coef lower 95%"]
    assert result.concordance_index_ == pytest.approx(0.6443200956157983)
    assert result.log_likelihood_ratio_test()["degrees_freedom"] == 6
    assert result.proportional_hazard_test("log")["p"]["crp"] == cox["ph_test"]["log"]["p"][5]


def test_rows_left_out_are_said(sites):
    """As many as each column lacks at its site."""
    rows = table_columns(TABLES / "cox-1.csv")
    rows["age"] = [float("nan") if at % 50 == 0 else age for at, age in enumerate(rows["age"])]
    rows["sex"] = [None if at % 80 == 0 else sex for at, sex in enumerate(rows["sex"])]
    ages, sexes = (set(range(0, len(rows["age"]), step)) for step in (50, 80))
    frames = frames_by(rows)
    cox = federate(CoxAnalysis(**TIMES, formula="age + sex"), frames).table
    curves = federate(KaplanMeierAnalysis(**TIMES, group_column="sex"), frames).table
    why = "missing values, or times or events that cannot be used, left out"
    of_cox = f"{len(ages | sexes)} rows with {why}"
    assert f"{of_cox} (age {len(ages)}, sex {len(sexes)})" in CoxResult(cox).text()
    said = f"{len(sexes)} rows with {why} (sex {len(sexes)})"
    assert said in KaplanMeierResult(curves).text()


def test_other_errors_change_tests_and_intervals_alone(cox):
    plain, robust = CoxResult(cox), CoxResult(cox, "robust")
    assert robust.params_["age"] == plain.params_["age"]
    assert robust.standard_errors_["age"] == cox["se"]["robust"][3]
    assert robust.variance_matrix_["age"]["age"] == pytest.approx(cox["se"]["robust"][3] ** 2)
    assert robust.summary["z"]["age"] == pytest.approx(cox["coef"][3] / cox["se"]["robust"][3])
    with pytest.raises(AnalysisError, match="'HC0': the table has nonrobust, robust, cluster"):
        CoxResult(cox, "HC0")
    with pytest.raises(AnalysisError, match="'rank': no such test: it needs the pooled grid"):
        plain.proportional_hazard_test("rank")


def test_a_printed_cox_result_has_each_term_and_test_once(cox, capsys):
    CoxResult(cox).print_summary()
    lines = capsys.readouterr().out.splitlines()
    for start in [*cox["terms"], "concordance", "likelihood ratio", "smoker: chi2(2)"]:
        assert sum(line.startswith(start) for line in lines) == 1, start
    assert max(map(len, lines)) <= 100


def test_curves_have_lifelines_names(curves):
    result = KaplanMeierResult(curves)
    assert list(result) == ["", "F", "M"]
    assert result[""].median_survival_time_ == 616.0
    assert result.median_survival_time_ == {"F": 790.0, "M": 494.0}
    assert result["F"].median_interval_ == (662.0, 901.0)
    survival = result["F"].survival_function_
    assert (survival[0.0], len(survival)) == (1.0, len(curves["times"][1]) + 1)
    assert result["F"].survival_at([-1.0, 790.0, 789.9])[0] == 1.0
    before, after = result["F"].survival_at([789.9, 790.0])
    assert after <= 0.5 < before
    both = result.survival_function_
    assert both["M"][494.0] == result["M"].survival_at([494.0])[0]
    low, high = (
        result["M"].confidence_interval_[f"{end} 95%"][494.0] for end in ("lower", "upper")
    )
    assert low < result["M"].survival_at([494.0])[0] < high
    assert result["M"].event_table["at_risk"].max() == curves["group_n"][2]
    assert result["M"].at_risk_at([0.0, 1e9]) == [curves["group_n"][2], 0]


def test_printed_curves_have_numbers_at_risk_below_and_a_dash_for_no_median(sites, capsys):
    KaplanMeierResult(
        federate(KaplanMeierAnalysis(**TIMES, horizon=300.0), sites).table
    ).print_summary()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Kaplan-Meier curves of days to died, all sites"
    assert lines[3].split()[:4] == ["all", "800", lines[3].split()[2], "-"]
    assert lines[-1].split()[:2] == ["all", "800"]
    assert "log-rank" not in " ".join(lines)


def test_without_pandas_results_are_mappings(cox, curves, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = CoxResult(cox)
    assert result.params_ == dict(zip(cox["terms"], cox["coef"], strict=True))
    assert result.summary["coef"]["age"] == cox["coef"][3]
    curve = KaplanMeierResult(curves)["F"]
    assert curve.survival_function_[0.0] == 1.0
    assert list(KaplanMeierResult(curves).survival_function_) == ["F", "M"]
