"""What a table in the clear says of each site, against the pooled rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import chi2, f

from privet.analyses.cox import CoxAnalysis
from privet.analyses.cox_result import CoxResult
from privet.analyses.glm import Glm
from privet.analyses.glm_result import GlmResult
from privet.analyses.pooled_cox import PooledCox
from privet.analyses.site_tests import against_pooled, between_sites, odd_sites
from privet.server_apps.report.regression import regression_page
from support.analysis_sites import fitted, table_of
from support.cox_by_definition import ByDefinition
from support.patients_of_sites import patients
from support.pooled import means, pooled

TIMES = {"time_column": "days", "event_column": "died"}


def by_the_formula(score: Any, own: Any, pooled_information: Any, scale: float = 1.0) -> Any:
    """The statistic by a pseudo-inverse, and the rank of its matrix."""
    middle = own - own @ np.linalg.solve(pooled_information, own)
    size = np.sqrt(np.diag(pooled_information))
    middle, score = middle / np.outer(size, size), score / size
    back = np.linalg.pinv(middle, rcond=1e-8, hermitian=True)
    return score @ back @ score / scale, np.linalg.matrix_rank(middle, tol=1e-8, hermitian=True)


def agree(found: dict[str, Any], statistic: float, rank: int, several: int) -> None:
    assert found["chi2"] == pytest.approx(statistic, rel=1e-6)
    assert found["df"] == rank
    assert found["p"] == pytest.approx(chi2.sf(statistic, rank), rel=1e-5)
    assert found["p_corrected"] == pytest.approx(min(1.0, several * found["p"]))


@pytest.mark.parametrize(
    ("family", "outcome"), [("binomial", "died"), ("poisson", "visits"), ("gaussian", "pressure")]
)
@pytest.mark.parametrize("weights", ["", "heavy"])
def test_each_site_is_tested_against_the_pooled_rows(
    family: str, outcome: str, weights: str
) -> None:
    columns = patients(500)
    glm = Glm(family, f"{outcome} ~ age + cells", weight_column=weights)
    table = fitted(glm, columns, columns["site"], rounded=False)
    matrix = np.stack([np.ones(500), columns["age"], columns["cells"]], axis=1)
    heavy = columns[weights] if weights else np.ones(500)
    whole = pooled(family, matrix, columns[outcome], columns["site"], weights=heavy)
    mean, variance = (x.astype(float) for x in means(family, matrix @ whole.coef))
    information = matrix.T @ (matrix * (heavy * variance)[:, None])
    marks = np.array(columns["site"])
    for place, site in enumerate(sorted(set(columns["site"]))):
        own, count = marks == site, int((marks == site).sum())
        score = matrix[own].T @ (heavy * (columns[outcome] - mean))[own]
        part = matrix[own].T @ (matrix[own] * (heavy * variance)[own, None])
        expected = by_the_formula(score, part, information, whole.scale)
        agree(table["heterogeneity"][place], *expected, several=5)
        if family == "gaussian":
            assert table["by_site"][place] == {"n": count}
        else:
            events = round(columns[outcome][own].sum())
            assert table["by_site"][place] == {"n": count, "events": events}
    json.dumps(table, allow_nan=False)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_each_site_of_a_cox_model_is_tested(ties: str) -> None:
    columns = table_of("cox-1.csv")
    analysis = CoxAnalysis(**TIMES, formula="age + sex", ties=ties)
    table = fitted(analysis, columns, columns["site"], rounded=False)
    male = (np.array(columns["sex"]) == "M") * 1.0
    order = {"age": np.array(columns["age"]), "sex[T.M]": male}
    matrix = np.stack([order[term] for term in table["terms"]], axis=1)
    time, died = np.array(columns["days"]), np.array(columns["died"]) == 1
    marks = np.array(columns["site"])
    sites = [
        ByDefinition(matrix[own], time[own], died[own], ties=ties)
        for own in (marks == site for site in sorted(set(columns["site"])))
    ]
    coef = np.array(table["coef"])
    information = sum(site.information(coef) for site in sites)
    for site, counts, found in zip(sites, table["by_site"], table["heterogeneity"], strict=True):
        assert counts == {"n": len(site.x), "events": site.event.sum()}
        expected = by_the_formula(site.score(coef), site.information(coef), information)
        agree(found, *expected, several=4)
    json.dumps(table, allow_nan=False)


def test_one_baseline_for_all_sites_has_counts_and_no_tests() -> None:
    columns = table_of("cox-1.csv")
    analysis = PooledCox(**TIMES, formula="age")
    table = fitted(analysis, columns, columns["site"], rounded=False)
    assert sum(site["events"] for site in table["by_site"]) == table["events"]
    assert table["heterogeneity"] is None


def test_with_site_intercepts_the_rank_falls() -> None:
    columns = patients(400, sites=3)
    table = fitted(Glm(formula="died ~ age + C(site)"), columns, columns["site"], rounded=False)
    assert [test["df"] for test in table["heterogeneity"]] == [1, 1, 1]


def test_two_sites_have_one_number_and_the_table_says_so() -> None:
    columns = patients(400, sites=2)
    table = fitted(Glm(formula="died ~ age"), columns, columns["site"], rounded=False)
    first, second = table["heterogeneity"]
    assert first["chi2"] == pytest.approx(second["chi2"], rel=1e-6)
    assert first["chi2"] > 0
    assert any(note.startswith("the tests of two sites") for note in table["notes"])


def test_a_site_of_other_rows_is_seen_and_what_to_do_is_said() -> None:
    columns = patients(1500, sites=4)
    last = np.array(columns["site"]) == "s3"
    columns["died"] = np.where(last, 1.0 - columns["died"], columns["died"])
    table = fitted(Glm(formula="died ~ age + bmi"), columns, columns["site"], rounded=False)
    p = [test["p"] for test in table["heterogeneity"]]
    assert p.index(min(p)) == 3
    assert min(p) < 1e-6
    assert any(note.startswith("sites differ from the pooled model") for note in table["notes"])


def test_one_site_and_penalised_estimates_have_no_tests() -> None:
    columns = patients(300)
    alone = fitted(Glm(formula="died ~ age"), columns, ["s0"] * 300, rounded=False)
    assert alone["heterogeneity"] is None
    assert alone["by_site"] == [{"n": 300, "events": alone["events"]}]
    glm = Glm(formula="died ~ age", firth=True)
    table = fitted(glm, columns, columns["site"], rounded=False)
    assert table["heterogeneity"] is None
    assert sum(site["n"] for site in table["by_site"]) == 300


def test_a_site_without_rows_has_nothing_to_test() -> None:
    columns = patients(300, sites=3)
    columns["age"][np.array(columns["site"]) == "s1"] = np.nan
    table = fitted(Glm(formula="died ~ age"), columns, columns["site"], rounded=False)
    nothing = {"chi2": 0.0, "df": 0, "p": None, "p_corrected": None, "p_between": None}
    assert table["heterogeneity"][1] == nothing
    assert table["by_site"][1] == {"n": 0, "events": 0}
    GlmResult(table).summary()
    json.dumps(table, allow_nan=False)


def test_masked_sums_say_nothing_of_sites() -> None:
    columns = patients(300)
    table = fitted(Glm(formula="died ~ age"), columns, columns["site"])
    assert (table["by_site"], table["heterogeneity"]) == (None, None)
    assert "p corrected" not in GlmResult(table).summary()


def test_summary_and_page_show_the_sites() -> None:
    columns = patients(900, sites=30)
    glm = Glm(formula="died ~ age")
    names = [f"<{site}>" for site in sorted(set(columns["site"]))]
    table = fitted(glm, columns, columns["site"], rounded=False) | {"site_names": names}
    text, page = GlmResult(table).summary(), regression_page(table)
    assert sum(line.startswith("<s") for line in text.splitlines()) == 20
    lowest = min(range(30), key=lambda at: table["heterogeneity"][at]["p"])
    assert names[lowest] in text
    assert "20 of 30 sites, those with the lowest p" in text
    assert "20 of 30 sites, those with the lowest p" in page
    assert f"&lt;{names[lowest][1:-1]}&gt;" in page
    assert "p corrected" in page
    few = table_of("cox-1.csv")
    analysis = CoxAnalysis(**TIMES, formula="age")
    cox = fitted(analysis, few, few["site"], rounded=False)
    cox["site_names"] = ["hill", "north", "south", "west"]
    assert sum(line.startswith("hill  ") for line in CoxResult(cox).text().splitlines()) == 1
    assert "<h2>Sites</h2>" in regression_page(cox)


@pytest.mark.parametrize(("sites", "is_shown"), [(3, False), (8, True)])
def test_a_column_that_no_site_has_a_value_of_is_not_shown(sites: int, is_shown: bool) -> None:
    """Of three sites none has a p-value against the spread of the two others."""
    columns = patients(900, sites=sites)
    table = fitted(Glm(formula="died ~ age"), columns, columns["site"], rounded=False)
    table["site_names"] = sorted(set(columns["site"]))
    assert all((test["p_between"] is None) != is_shown for test in table["heterogeneity"])
    for shown in (GlmResult(table).summary(), regression_page(table)):
        assert "p corrected" in shown
        assert "chi2 is the score test that a site shares the pooled model" in shown
        assert ("p between" in shown) == is_shown


# ------------------------------------------------------------------ against the others' spread


def parts_of(seed: int, tau: float, sites: int = 8, columns: int = 3) -> list[Any]:
    """Return squares and variances of sites whose coefficients deviate with tau^2."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(sites, 5.0), columns).T
    spread = shares * (1 - shares)
    scores = rng.normal(0, np.sqrt(spread + tau**2 * spread**2))
    return list(zip(scores**2, spread, strict=True))


@pytest.mark.parametrize("tau", [0.0, 10.0])
def test_the_spread_is_that_of_the_others_by_a_root_and_the_test_is_of_f(tau: float) -> None:
    parts = parts_of(5, tau)
    for place, p in enumerate(between_sites(parts)):
        others = [part for other, part in enumerate(parts) if other != place]
        squares, spread = (np.concatenate(some) for some in zip(*others, strict=True))

        def surplus(square: float, squares: Any = squares, spread: Any = spread) -> float:
            return float((squares / (spread + square * spread**2)).sum() - squares.size)

        square = brentq(surplus, 0.0, 1e6) if surplus(0.0) > 0 else 0.0
        own, variances = parts[place]
        mean = (own / (variances + square * variances**2)).mean()
        assert p == pytest.approx(f.sf(mean, own.size, squares.size), rel=1e-6)


@pytest.mark.parametrize("tau", [0.0, 3.0, 30.0])
def test_of_honest_sites_one_is_named_as_often_as_stated(tau: float) -> None:
    named = sum(8 * between_sites(parts_of(seed, tau)).min() < 0.05 for seed in range(600))
    assert named <= 43  # 5 % of 600 and two and a half standard deviations


def test_sites_that_differ_are_not_named_and_one_with_turned_outcomes_is() -> None:
    columns = patients(4000, sites=8)
    rng, marks = np.random.default_rng(2), np.array(columns["site"])
    for site in sorted(set(columns["site"])):  # honest sites: other baseline risks
        turned = (marks == site) & (rng.random(4000) < rng.uniform(0.0, 0.3))
        columns["died"] = np.where(turned, 1.0, columns["died"])
    glm, names = Glm(formula="died ~ age + bmi"), [f"s{place}" for place in range(8)]
    table = fitted(glm, columns, columns["site"], rounded=False)
    assert sum(test["p_corrected"] < 0.05 for test in table["heterogeneity"]) >= 3
    assert odd_sites(table, names) == {}

    columns["died"] = np.where(marks == "s3", 1.0 - columns["died"], columns["died"])
    table = fitted(glm, columns, columns["site"], rounded=False)
    found = odd_sites(table, names)
    assert list(found) == ["s3"]
    assert found["s3"].startswith("it differs from the pooled model by more than the others do")


def test_among_three_sites_nobody_is_held_against_the_others() -> None:
    assert np.isnan(between_sites(parts_of(1, 0.0, sites=3))).all()
    assert not np.isnan(between_sites(parts_of(1, 0.0, sites=4))).any()


def test_scores_that_do_not_add_up_to_0_are_less_their_share_of_the_sum() -> None:
    rng = np.random.default_rng(4)
    designs = [rng.normal(size=(40, 3)) for _ in range(5)]
    own = [design.T @ design for design in designs]
    scores = [rng.normal(size=3) * 5 + 2 for _ in range(5)]
    whole, total = sum(own), sum(scores)
    found = against_pooled(zip(scores, own, strict=True), whole, 1.0)
    for score, information, (statistic, freedom, _) in zip(scores, own, found, strict=True):
        less = score - information @ np.linalg.solve(whole, total)
        assert (statistic, freedom) == pytest.approx(by_the_formula(less, information, whole))
