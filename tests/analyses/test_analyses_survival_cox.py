"""Cox models over sites: the worked table, and every sum by loops over deaths and those at risk."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from privet.analyses.cox import CoxAnalysis
from privet.analyses.frame import AnalysisError
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.pooled_cox import PooledCox
from support.analysis_sites import TABLES, federate, frames_by, table_columns
from support.cox_by_definition import ByDefinition

TIMES = {"time_column": "days", "event_column": "died"}


def in_order(table, terms, values):
    return np.array([values[table["short_terms"].index(term)] for term in terms])


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_worked_table_has_the_pooled_estimates(ties, rounded):
    worked = json.loads((TABLES / "cox-1.json").read_text())
    sites = frames_by(table_columns(TABLES / "cox-1.csv"))
    analysis = CoxAnalysis(**TIMES, formula="age + bmi + crp + sex + smoker", ties=ties)
    outcome = federate(analysis, sites, rounded=rounded)
    table, right = outcome.table, worked[ties]
    coef = in_order(table, worked["terms"], table["coef"])
    error = np.abs(coef - right["coef"])
    assert (error <= 1e-8 * np.maximum(np.abs(right["coef"]), right["se"])).all()
    assert in_order(table, worked["terms"], table["se"]["nonrobust"]) == pytest.approx(
        right["se"], rel=1e-8
    )
    assert table["loglik"] == pytest.approx(right["loglik"], rel=1e-11)
    assert table["concordance"] == pytest.approx(
        worked["lifelines_efron"]["concordance_stratified"], rel=1e-12
    )
    assert (table["n"], table["events"], table["num_strata"]) == (800, 558, 4)
    assert outcome.rounds <= 8
    assert table["rounds"] == outcome.rounds
    json.dumps(table, allow_nan=False)


def random_rows(seed, n=90, *, ties=6):
    """Rows with heavy ties, times of entry, weights and strata over three sites."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    time = np.ceil(rng.exponential(np.exp(-0.5 * x)) * ties) + 1.0
    entry = np.floor(rng.uniform(0.0, 0.7, n) * time)
    return {
        "days": time,
        "came": np.minimum(entry, time - 1.0),
        "died": rng.integers(0, 4, n) > 0,
        "x": x,
        "z": 1000.0 + 0.001 * rng.normal(size=n),
        "arm": rng.choice(["a", "b", "c"], n),
        "ward": rng.integers(0, 2, n).astype(float),
        "heavy": rng.integers(1, 5, n) * 0.37,
        "site": rng.choice(["u", "v", "w"], n),
    }


def by_definition(columns, ties, *, entry=True, weights=True, ward=True):
    x = np.column_stack(
        [columns["arm"] == "b", columns["arm"] == "c", columns["x"], columns["z"] - 1000.0]
    )
    strata = np.char.add(columns["site"], columns["ward"].astype(str) if ward else "")
    return ByDefinition(
        x,
        columns["days"],
        columns["died"],
        entry=columns["came"] if entry else None,
        weights=columns["heavy"] if weights else None,
        strata=strata,
        ties=ties,
    )


def bread(inverse, scores):
    return inverse @ scores.T @ scores @ inverse


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("seed", range(3))
def test_ties_entries_weights_and_strata_are_those_of_loops(seed, ties):
    columns = random_rows(seed)
    analysis = CoxAnalysis(
        **TIMES,
        entry_column="came",
        weight_column="heavy",
        strata_column="ward",
        formula="arm + x + z",
        ties=ties,
    )
    table = federate(analysis, frames_by(columns), rounded=True).table
    pooled = by_definition(columns, ties)
    b = pooled.fit()
    inverse = np.linalg.inv(pooled.information(b))
    se = np.sqrt(np.diag(inverse))
    assert (np.abs(table["coef"] - b) <= 1e-8 * np.maximum(np.abs(b), se)).all()
    assert table["se"]["nonrobust"] == pytest.approx(se, rel=1e-8)
    assert np.array(table["cov"]) == pytest.approx(inverse, rel=1e-6, abs=1e-9)
    assert table["loglik"] == pytest.approx(pooled.loglik(b), rel=1e-10)
    assert table["null_loglik"] == pytest.approx(pooled.loglik(0 * b), rel=1e-10)
    heavy = columns["heavy"][:, None] * pooled.residuals(b)
    assert table["se"]["robust"] == pytest.approx(np.sqrt(np.diag(bread(inverse, heavy))), rel=1e-7)
    of_sites = np.stack([heavy[columns["site"] == s].sum(axis=0) for s in "uvw"])
    assert table["se"]["cluster"] == pytest.approx(
        np.sqrt(np.diag(bread(inverse, of_sites))), rel=1e-6
    )
    assert table["pairs"] == pooled.pairs(b)
    for name, g in (("identity", lambda t: t), ("log", np.log)):
        single, joint = pooled.trend(b, g)
        assert table["ph_test"][name]["chi2"] == pytest.approx(single, rel=1e-6)
        assert table["ph_test"][name]["global_chi2"] == pytest.approx(joint, rel=1e-6)
    chosen, own = b[:2], inverse[:2, :2]
    for kind, covariance in (("nonrobust", own), ("robust", bread(inverse, heavy)[:2, :2])):
        test = table["tests"]["arm"][kind]
        assert test["chi2"] == pytest.approx(chosen @ np.linalg.solve(covariance, chosen), rel=1e-6)
        assert test["df"] == 2
    u, information = pooled.score(0 * b), pooled.information(0 * b)
    assert table["score_chi2"] == pytest.approx(u @ np.linalg.solve(information, u), rel=1e-8)
    assert table["wald_chi2"] == pytest.approx(b @ pooled.information(b) @ b, rel=1e-7)
    assert table["n"] == 90


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_firth_is_the_maximum_of_the_penalised_likelihood(ties):
    columns = random_rows(5, 40)
    columns["died"][columns["arm"] == "c"] = False  # without a penalty, no maximum
    analysis = CoxAnalysis(
        **TIMES, entry_column="came", formula="arm + x + z", ties=ties, firth=True
    )
    outcome = federate(analysis, frames_by(columns), rounded=True, most=60)
    pooled = by_definition(columns, ties, weights=False, ward=False)
    b = np.array(outcome.table["coef"])
    se = np.sqrt(np.diag(np.linalg.inv(pooled.information(b))))
    assert outcome.table["se"]["nonrobust"] == pytest.approx(se, rel=1e-6)
    best = pooled.penalised(b)
    for j in range(4):  # the slope is 0, by central differences in standard errors
        step = 1e-4 * se[j] * np.eye(4)[j]
        assert abs(pooled.penalised(b + step) - pooled.penalised(b - step)) / 2e-4 < 1e-6
        assert pooled.penalised(b + 1e3 * step) < best
    table = outcome.table
    ours = [table["penalised_loglik"], table["null_penalised_loglik"]]
    assert ours == pytest.approx([best, pooled.penalised(0 * b)], rel=1e-9)
    assert table["lr_chi2"] == pytest.approx(2.0 * (best - pooled.penalised(0 * b)), rel=1e-7)
    assert list(table["se"]) == ["nonrobust"]
    with pytest.raises(AnalysisError, match=r"without end along 'arm\[T\.c\]'.*firth"):
        federate(
            CoxAnalysis(**TIMES, entry_column="came", formula="arm + x + z", ties=ties),
            frames_by(columns),
        )


@pytest.mark.parametrize("scale", [2.0**-40, 1e-9, 1.0, 1e9, 2.0**40])
def test_units_of_columns_times_and_weights_do_not_matter(scale):
    columns = random_rows(1)
    columns["heavy"] = np.ones(90)
    sites = {"weight_column": "heavy", "formula": "arm + x"}
    plain = federate(CoxAnalysis(**TIMES, **sites), frames_by(columns), rounded=True).table
    moved = {**columns, "x": columns["x"] * scale, "days": columns["days"] * scale}
    moved["heavy"] = columns["heavy"] * scale
    table = federate(CoxAnalysis(**TIMES, **sites), frames_by(moved), rounded=True).table
    units = np.array([1.0, 1.0, scale])
    assert np.array(table["coef"]) * units == pytest.approx(plain["coef"], rel=1e-8)
    assert np.array(table["se"]["robust"]) * units == pytest.approx(plain["se"]["robust"], rel=1e-7)
    assert table["pairs"] == plain["pairs"]
    # Weights are counts of equal rows, so statistics rise with them.
    rise = np.array(plain["ph_test"]["log"]["chi2"]) * scale
    assert table["ph_test"]["log"]["chi2"] == pytest.approx(rise, rel=1e-6)


def test_columns_that_are_nearly_sums_of_others_keep_their_digits():
    columns = random_rows(2, 200)
    columns["year"] = 2000.0 + 5.0 * columns["x"]
    analysis = CoxAnalysis(**TIMES, formula="year + I(year ** 2)")
    table = federate(analysis, frames_by(columns), rounded=True).table
    centred = {**columns, "u": columns["year"] - 2000.0}
    plain = federate(CoxAnalysis(**TIMES, formula="u + I(u ** 2)"), frames_by(centred)).table
    assert table["coef"][1] == pytest.approx(
        plain["coef"][1], abs=1e-8 * plain["se"]["nonrobust"][1]
    )
    slope = plain["coef"][0] - 4000.0 * plain["coef"][1]
    assert table["coef"][0] == pytest.approx(slope, abs=1e-7 * table["se"]["nonrobust"][0])
    assert table["loglik"] == pytest.approx(plain["loglik"], rel=1e-10)


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 3e-7])
def test_a_column_that_is_nearly_another_costs_a_round_and_no_digits(apart):
    columns = random_rows(2, 200)
    columns["near"] = columns["x"] + apart * columns["heavy"]
    near = federate(CoxAnalysis(**TIMES, formula="x + near"), frames_by(columns), rounded=True)
    plain = federate(CoxAnalysis(**TIMES, formula="x + heavy"), frames_by(columns))
    table, right = near.table, plain.table
    # x a + (x + e h) b = x (a + b) + h (e b)
    ours = [sum(table["coef"]), apart * table["coef"][1]]
    digits = 1e-8 + 1e-15 / apart  # those of near itself
    assert (
        np.abs(np.subtract(ours, right["coef"])) < digits * np.array(right["se"]["nonrobust"])
    ).all()
    error = apart * table["se"]["nonrobust"][1]
    assert error == pytest.approx(right["se"]["nonrobust"][1], rel=1e-6)
    assert near.rounds <= plain.rounds + 2


def test_a_site_without_events_one_of_one_row_and_an_empty_one_are_right():
    columns = random_rows(4, 60)
    columns["died"][columns["site"] == "v"] = False
    lone = np.flatnonzero(columns["site"] == "w")[1:]
    columns = {name: np.delete(cells, lone) for name, cells in columns.items()}
    frames = frames_by(columns)
    frames.append(frames[0].taken(np.zeros(frames[0].rows, bool)))
    table = federate(CoxAnalysis(**TIMES, formula="arm + x + z"), frames, rounded=True).table
    pooled = by_definition(columns, "efron", entry=False, weights=False, ward=False)
    b = pooled.fit()
    se = np.sqrt(np.diag(np.linalg.inv(pooled.information(b))))
    assert (np.abs(table["coef"] - b) <= 1e-8 * np.maximum(np.abs(b), se)).all()
    assert (table["sites"], table["num_strata"]) == (3, 3)
    assert table["pairs"] == pooled.pairs(b)


def test_a_column_that_varies_at_one_site_has_no_error_clustered_by_site():
    columns = random_rows(10)
    columns["x"][columns["site"] != "u"] = 5.0
    table = federate(CoxAnalysis(**TIMES, formula="x + heavy"), frames_by(columns)).table
    assert table["se"]["cluster"][0] is None
    assert table["se"]["cluster"][1] > 0
    assert "no errors clustered by site for x" in table["notes"][1]


def test_without_a_formula_every_other_column_is_a_term():
    columns = random_rows(6)
    analysis = CoxAnalysis(
        **TIMES, entry_column="came", weight_column="heavy", strata_column="ward", id_column="site"
    )
    written = analysis.over(tuple(columns))
    assert written.formula == "x + z + arm"
    assert written.columns == ("days", "died", "came", "heavy", "ward", "x", "z", "arm")
    frame = frames_by(columns)[0]
    assert analysis.factors(frame) == ("died", "arm")
    assert analysis.over(frame.names).over(["x"]) == analysis.over(frame.names)


def test_an_outcome_may_be_written_if_it_is_the_event():
    assert CoxAnalysis(**TIMES, formula="died ~ x").columns == ("days", "died", "x")
    assert CoxAnalysis(**TIMES, formula="~ x").columns == ("days", "died", "x")
    with pytest.raises(AnalysisError, match="the outcome is 'lived'"):
        _ = CoxAnalysis(**TIMES, formula="lived ~ x").columns
    with pytest.raises(AnalysisError, match="'days' is the time and a term"):
        _ = CoxAnalysis(**TIMES, formula="x + days").columns


def test_missing_values_and_weights_of_0_are_left_out_and_counted():
    columns = random_rows(7)
    whole = frames_by(columns)
    columns = {name: list(cells) for name, cells in columns.items()}
    columns["x"][0] = None
    columns["heavy"][1] = 0.0
    settings = {**TIMES, "weight_column": "heavy", "formula": "x"}
    table = federate(CoxAnalysis(**settings), frames_by(columns)).table
    assert table["left_out"] == {"": 2, "days": 0, "died": 0, "heavy": 1, "x": 1}
    assert table["n"] == federate(CoxAnalysis(**settings), whole).table["n"] - 2


@pytest.mark.parametrize(
    ("change", "formula", "words"),
    [
        ({"died": np.zeros(90, int)}, "x", "the event occurs at no site"),
        ({}, "C(site)", r"'site\[T.v\]', 'site\[T.w\]' does not vary within any stratum"),
        ({}, "x + copy", "'x', 'copy' add up to the same"),
        ({"days": -np.ones(90)}, "x", "'days' has negative times"),
        ({"died": np.full(90, 2)}, "x", "'died' has codes other than 0"),
        ({}, "x + nothing", "'nothing' is not in the table"),
        ({}, "", "formula is empty"),
        ({}, "1", "no column beside the intercept"),
    ],
)
def test_what_has_no_estimate_is_one_line_that_names_the_column(change, formula, words):
    columns = random_rows(8)
    columns |= {"copy": 3.0 * columns["x"] - 7.0, **change}
    with pytest.raises(AnalysisError, match=words) as caught:
        federate(CoxAnalysis(**TIMES, formula=formula), frames_by(columns))
    assert "\n" not in str(caught.value)


def test_a_column_that_varies_only_where_nobody_dies_is_named():
    columns = random_rows(9)
    columns["died"][columns["site"] == "u"] = False
    columns["x"][columns["site"] != "u"] = 0.0
    with pytest.raises(AnalysisError, match="'x' does not vary among those at risk"):
        federate(CoxAnalysis(**TIMES, formula="x + arm"), frames_by(columns))


def test_few_sites_and_few_events_are_said():
    columns = random_rows(3)
    notes = federate(CoxAnalysis(**TIMES, formula="x + ward"), frames_by(columns)).table["notes"]
    assert len(notes) == 1
    assert "with 3 sites errors clustered" in notes[0]
    columns["died"][20:] = False
    notes = federate(CoxAnalysis(**TIMES, formula="x + heavy"), frames_by(columns)).table["notes"]
    assert "events for 2 columns" in notes[1]


ROW = st.tuples(
    st.integers(1, 5), st.booleans(), st.integers(-3, 3), st.sampled_from("uv"), st.integers(0, 4)
)


@given(st.lists(ROW, min_size=2, max_size=14), st.sampled_from(["efron", "breslow"]))
def test_a_small_table_has_the_estimate_of_loops_or_one_line(rows, ties):
    days, died, x, site, came = (list(cells) for cells in zip(*rows, strict=True))
    came = [min(entry, time - 1) for entry, time in zip(came, days, strict=True)]
    columns = {"days": days, "died": died, "x": x, "site": site, "came": came}
    analysis = CoxAnalysis(**TIMES, entry_column="came", formula="x", ties=ties)
    pooled = ByDefinition(np.array(x)[:, None], days, died, entry=came, strata=site, ties=ties)
    try:
        table = federate(analysis, frames_by(columns), rounded=True).table
    except AnalysisError:
        table = None
    flat = not any(died) or pooled.information(np.zeros(1))[0, 0] < 1e-9
    ends = [pooled.score(np.array([b]))[0] for b in (-25.0, 25.0)]
    without_end = ends[0] < 1e-6 or ends[1] > -1e-6
    assert (table is None) == (flat or without_end)
    if table is not None:  # how far it is from the maximum, in standard errors
        b = np.array(table["coef"])
        assert abs(pooled.score(b)[0]) * pooled.information(b)[0, 0] ** -0.5 < 1e-7


def rises_without_end(x, time, event, entry, site):
    """Whether some direction ranks each who dies at least as high as all at risk, one higher."""
    away = [
        x[i] - x[j]
        for i in np.flatnonzero(event)
        for j in np.flatnonzero((site == site[i]) & (entry < time[i]) & (time >= time[i]))
    ]
    found = linprog(
        -np.sum(away, axis=0), A_ub=-np.array(away), b_ub=np.zeros(len(away)), bounds=[(-1, 1)] * 2
    )
    return -found.fun > 1e-9


WIDE = st.tuples(
    st.integers(1, 9),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(-2, 2),
    st.integers(0, 5),
    st.sampled_from("uv"),
)


@given(st.lists(WIDE, min_size=5, max_size=25), st.sampled_from(["efron", "breslow"]))
def test_two_columns_have_an_estimate_unless_the_likelihood_rises_along_one(rows, ties):
    days, died, x, z, came, site = (np.array(cells) for cells in zip(*rows, strict=True))
    came = np.minimum(came, days - 1)
    columns = {"days": days, "died": died, "x": x, "z": z, "came": came, "site": site}
    both = np.stack([x, z], axis=1).astype(float)
    pooled = ByDefinition(both, days, died, entry=came, strata=site, ties=ties)
    information = pooled.information(np.zeros(2))
    assume(died.any() and np.linalg.eigvalsh(information)[0] > 1e-9)
    analysis = CoxAnalysis(**TIMES, entry_column="came", formula="x + z", ties=ties)
    if rises_without_end(both, days, died, came, site):
        with pytest.raises(AnalysisError, match="rises without end"):
            federate(analysis, frames_by(columns), rounded=True)
        return
    b = np.array(federate(analysis, frames_by(columns), rounded=True).table["coef"])
    score = pooled.score(b)
    assert score @ np.linalg.solve(pooled.information(b), score) < 1e-14


@pytest.mark.parametrize(
    "analysis",
    [
        CoxAnalysis(**TIMES, formula="x + arm"),
        CoxAnalysis(**TIMES, formula="x + arm", firth=True),
        PooledCox(**TIMES, formula="x + arm"),
        KaplanMeierAnalysis(**TIMES, group_column="arm"),
    ],
    ids=lambda analysis: f"{analysis.name}{' firth' * getattr(analysis, 'firth', False)}",
)
def test_sums_that_lack_a_site_are_asked_for_again(analysis):
    frames = frames_by(random_rows(11))
    whole = federate(analysis, frames)
    away = federate(analysis, frames, away={3: 1, 5: 0} if whole.rounds > 2 else {2: 2})
    assert away.rounds == whole.rounds + (2 if whole.rounds > 2 else 1)
    left = {"rounds": whole.table.get("rounds")}
    assert {**away.table, **left} == {**whole.table, **left}


def test_a_column_that_varies_in_few_of_many_strata_is_scaled_by_these():
    columns = random_rows(12, 400)
    site = np.array([f"s{number:02}" for number in np.arange(400) // 40])
    columns |= {"site": site, "rare": np.where(site == "s03", columns["ward"], 0.0)}
    table = federate(CoxAnalysis(**TIMES, formula="rare + x"), frames_by(columns), rounded=True)
    x = np.column_stack([columns["rare"], columns["x"]])
    pooled = ByDefinition(x, columns["days"], columns["died"], strata=site)
    b = pooled.fit()
    se = np.sqrt(np.diag(np.linalg.inv(pooled.information(b))))
    assert (np.abs(table.table["coef"] - b) <= 1e-8 * np.maximum(np.abs(b), se)).all()
