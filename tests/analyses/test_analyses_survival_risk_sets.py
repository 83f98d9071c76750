"""Sums over those at risk and pairs in order, by loops; digits that differences would lose."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from privet.analyses.concordance import pairs_of
from privet.analyses.follow_up import FollowUp
from privet.analyses.risk_sets import AtCoefficients, RiskSets
from privet.analyses.spans import Spans
from support.cox_by_definition import ByDefinition

SPAN = st.tuples(st.integers(0, 11), st.integers(1, 12)).map(
    lambda pair: (min(pair[0], pair[1] - 1), pair[1])
)


@given(st.lists(SPAN, min_size=1, max_size=30), st.booleans())
def test_sums_both_ways_are_those_of_the_incidence_matrix(spans, entries):
    first, last = np.array(sorted(spans, key=lambda span: span[1])).T
    first = first if entries else np.zeros_like(first)
    at_risk = (first[:, None] <= np.arange(12)) & (np.arange(12) < last[:, None])
    found = Spans.of(first, last, 12)
    rng = np.random.default_rng(0)
    rows, times = rng.normal(size=(len(first), 2)), rng.normal(size=(12, 2))
    np.testing.assert_allclose(found.over_rows(rows), at_risk.T @ rows, atol=1e-12)
    np.testing.assert_allclose(found.over_times(times), at_risk @ times, atol=1e-12)
    np.testing.assert_allclose(found.over_rows(rows[:, 0]), at_risk.T @ rows[:, 0], atol=1e-12)


def test_a_small_sum_beside_large_ones_keeps_all_digits():
    # Row 0 is alone at the first time; the others, which enter later, are e^60 times as heavy.
    values = np.array([1.0, 1e26, 3e26])
    sums = Spans.of(np.array([0, 1, 1]), np.array([1, 2, 2]), 2).over_rows(values)
    assert sums.tolist() == [1.0, 4e26]
    hazards = Spans.of(np.array([0, 1, 1]), np.array([1, 2, 2]), 2).over_times(
        np.array([1e26, 1.0])
    )
    assert hazards.tolist() == [1e26, 1.0, 1.0]


ROW = st.tuples(st.integers(1, 6), st.booleans(), st.integers(-2, 2), st.integers(0, 5))


@given(st.lists(ROW, min_size=1, max_size=25))
def test_pairs_are_those_of_loops(rows):
    time, event, x, entry = (np.array(cells) for cells in zip(*rows, strict=True))
    entry = np.minimum(entry, time - 1)
    columns = x[:, None].astype(float)
    times = FollowUp(time.astype(float), event, entry.astype(float))
    sets = RiskSets.of(columns, np.ones(len(x)), times, efron=True)
    if sets is None:
        assert not event.any()
        return
    found = pairs_of(sets, sets.columns[:, 0])
    right = ByDefinition(columns, time, event, entry=entry).pairs(np.ones(1))
    assert [found.concordant, found.tied, found.all] == right


def test_coefficients_far_out_give_finite_numbers():
    rng = np.random.default_rng(1)
    x, time = rng.normal(size=(50, 2)), rng.integers(1, 9, 50).astype(float)
    for entry in (np.full(50, -np.inf), time - 1.0):
        times = FollowUp(time, rng.random(50) < 0.5, entry)
        sets = RiskSets.of(x, np.ones(50), times, efron=True)
        at = AtCoefficients.of(sets, np.array([1e4, -1e5]))
        numbers = (at.loglik, at.score, at.information, at.residuals, at.penalty_slope(np.eye(2)))
        assert all(np.isfinite(one).all() for one in numbers)


def test_a_column_far_from_0_among_those_at_risk_keeps_its_digits():
    # Who is censored before the first death is in no risk set, whatever the row's columns are.
    rng = np.random.default_rng(2)
    x, time = rng.normal(size=(30, 2)), 1.0 + rng.integers(1, 9, 30)
    event = rng.random(30) < 0.6
    plain = RiskSets.of(x, np.ones(30), FollowUp(time, event, np.zeros(30)), efron=True)
    far, early = np.vstack([x + 1e6, [[-3e7, -3e7]]]), np.append(time, 0.5)
    times = FollowUp(early, np.append(event, False), np.full(31, -np.inf))
    sets = RiskSets.of(far, np.ones(31), times, efron=True)
    b, inverse = np.array([0.3, -0.2]), np.array([[0.1, 0.02], [0.02, 0.2]])
    ours, right = (AtCoefficients.of(one, b) for one in (sets, plain))
    np.testing.assert_allclose(ours.information, right.information, rtol=1e-8)
    np.testing.assert_allclose(
        ours.penalty_slope(inverse), right.penalty_slope(inverse), rtol=1e-7, atol=1e-8
    )
