"""The account: composition of totals, exact values by integration, dp_accounting, edges."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel import Release, Totals, UnsupportedAccountError, epsilon_of, gaussian_epsilon

DELTA = 1e-5


def gaussian(multiplier: float, count: int = 1) -> Release:
    """Release of loss 1 / multiplier: the allowance for the grid is taken off beforehand."""
    return Release("gaussian", scale=multiplier * _grid(multiplier), count=count)


def laplace(multiplier: float, count: int = 1) -> Release:
    return Release("laplace", scale=multiplier * _grid(multiplier), norm="l1", count=count)


def _grid(multiplier: float) -> float:
    return 1 + 2**-12 if multiplier >= 1 else 1 / (1 - multiplier * 2**-12)


def once(*releases: Release) -> list[tuple[Release, int]]:
    return [(release, 1) for release in releases]


any_release = st.builds(
    lambda make, multiplier, count: make(multiplier, count),
    st.sampled_from([gaussian, laplace]),
    st.floats(0.3, 300),
    st.integers(1, 9),
)


@given(st.lists(st.tuples(any_release, st.integers(1, 9)), max_size=12), st.randoms())
@settings(max_examples=30)
def test_totals_are_the_sum_whatever_the_order_and_grouping(messages, rng) -> None:
    totals = functools.reduce(lambda total, one: total.add(*one), messages, Totals())
    exact = sum(
        (Fraction(r.loss) ** 2 * r.count * times for r, times in messages
         if r.mechanism == "gaussian"), Fraction(0),
    )  # fmt: skip
    assert totals.gaussian[0] == float(exact)
    assert abs(sum(map(Fraction, totals.gaussian)) - exact) <= exact * Fraction(1, 2**100)
    unrolled = [replace(r, count=1) for r, times in messages for _ in range(r.count * times)]
    rng.shuffle(unrolled)
    other = functools.reduce(Totals.add, unrolled, Totals())
    assert other.mu == totals.mu
    assert other.laplace == totals.laplace
    assert Totals.from_dict(json.loads(json.dumps(totals.to_dict()))) == totals


@given(st.lists(st.tuples(st.floats(0.2, 50).map(gaussian), st.integers(1, 40)), min_size=1))
@settings(max_examples=60)
def test_gaussian_releases_compose_to_one_gaussian(messages) -> None:
    mu = math.sqrt(math.fsum(release.loss**2 * times for release, times in messages))
    assert epsilon_of(messages, DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-12)
    assert epsilon_of(messages[1:], DELTA) <= epsilon_of(messages, DELTA)
    assert epsilon_of(messages, 1e-9) >= epsilon_of(messages, 1e-3)


@pytest.mark.parametrize("multiplier", [0.1, 0.7, 1.0, 4.0, 60.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-11])
def test_one_laplace_release_has_a_closed_form(multiplier: float, delta: float) -> None:
    """delta = 1 - e^{(epsilon - t)/2} for 0 <= epsilon <= t."""
    exact = max(0.0, 1 / multiplier + 2 * math.log1p(-delta))
    found = epsilon_of(once(laplace(multiplier)), delta)
    assert exact <= found <= exact * (1 + 1e-3) + 1e-9


def staged(single, count: int):
    """Compose in square-root stages: one stage over very many truncates loosely."""
    if count <= 1000:
        return single.self_compose(count)
    inner = round(math.sqrt(count))
    outer, rest = divmod(count, inner)
    total = staged(staged(single, inner), outer)
    return total.compose(staged(single, rest)) if rest else total


@pytest.mark.parametrize(
    ("count", "loss"), [(7, 1 / 3), (500, 0.05), (30_000, 0.05), (200_000, 0.005), (12, 4.0)]
)
def test_laplace_agrees_with_a_finer_grid(count: int, loss: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    single = pld.from_laplace_mechanism(
        1 / loss, value_discretization_interval=loss / max(50, math.ceil(loss / 2e-3))
    )
    fine = staged(single, count).get_epsilon_for_delta(DELTA)
    found = epsilon_of([(laplace(1 / loss), count)], DELTA)
    assert fine * (1 - 1e-5) <= found <= fine * (1 + 5e-4)


@pytest.mark.parametrize(
    ("mu", "losses", "delta"),
    [(0.8, [0.5], 1e-6), (0.3, [1.5, 0.2], 1e-3), (2.0, [0.01], 0.05), (0.0, [2.0, 0.3], 1e-6),
     (0.4, [], 1e-5)],
)  # fmt: skip
def test_mixtures_agree_with_a_finer_grid(mu: float, losses: list[float], delta: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = 1e-4
    parts = [pld.from_laplace_mechanism(1 / t, value_discretization_interval=step) for t in losses]
    if mu:
        parts.append(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=step))
    fine = functools.reduce(lambda one, other: one.compose(other), parts)
    releases = [laplace(1 / loss) for loss in losses] + ([gaussian(1 / mu)] if mu else [])
    found = epsilon_of(once(*releases), delta)
    assert fine.get_epsilon_for_delta(delta) == pytest.approx(found, rel=2e-3)
    assert found >= fine.get_epsilon_for_delta(delta) * (1 - 2e-4)


@given(st.floats(0.2, 100), st.floats(1.01, 3.0))
@settings(max_examples=40, deadline=None)
def test_more_noise_costs_less(multiplier: float, factor: float) -> None:
    for make in (gaussian, laplace):
        more, less = make(multiplier * factor), make(multiplier)
        assert epsilon_of(once(more), DELTA) <= epsilon_of(once(less), DELTA)


def test_scale_and_sensitivity_matter_by_their_ratio_only() -> None:
    small = Release(mechanism="gaussian", scale=0.003, sensitivity=0.001)
    large = Release(mechanism="gaussian", scale=3.0, sensitivity=1.0)
    assert epsilon_of(once(small), DELTA) == pytest.approx(
        epsilon_of(once(large), DELTA), rel=1e-12
    )


def test_edges() -> None:
    assert epsilon_of([], DELTA) == 0.0
    assert epsilon_of(once(gaussian(1.0), Release("none", what="evaluation")), DELTA) == math.inf
    # As good as no noise: mu^2 would not be a number any more.
    assert epsilon_of(once(Release("gaussian", scale=1e-60, sensitivity=1e60)), DELTA) == math.inf
    # So much noise that delta alone covers it; nothing underflows to a free release.
    quiet = Release("gaussian", scale=1e100, sensitivity=1e-100)
    assert epsilon_of(once(quiet), DELTA) == 0.0
    assert Totals().add(quiet).mu > 0
    # So little that the loss is astronomic, yet finite; and the other extreme.
    assert 1e7 < epsilon_of(once(gaussian(1e-4)), DELTA) < 1e9
    for multiplier in (1e-90, 1e-20, 1e-6, 1e-3, 1e12, 1e90):
        both = epsilon_of(once(gaussian(multiplier), laplace(multiplier, 3)), DELTA)
        alone = epsilon_of(once(gaussian(multiplier)), DELTA)
        assert alone <= both <= (alone + 3 / multiplier) * (1 + 1e-3)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_is_checked(delta: float) -> None:
    for release in (gaussian(1.0), laplace(1.0), Release("none", what="x")):
        with pytest.raises(ValueError, match="delta"):
            epsilon_of(once(release), delta)


def test_mixed_relations_are_refused() -> None:
    mixed = once(gaussian(1.0), replace(gaussian(1.0), relation="add-remove"))
    with pytest.raises(UnsupportedAccountError, match="'replace-one' and 'add-remove'"):
        epsilon_of(mixed, DELTA)


@pytest.mark.parametrize(("count", "most"), [(10**7, 1.001), (10**12, math.sqrt(math.pi / 2))])
def test_very_long_runs_stay_pessimistic(count: int, most: float) -> None:
    """Weak releases without end: by the central limit theorem close to a Gaussian of the same."""
    loss = 1 / math.sqrt(count)
    result = epsilon_of([(laplace(1 / loss), count)], DELTA)
    assert gaussian_epsilon(0.9999, DELTA) <= result <= gaussian_epsilon(most, DELTA) * 1.0001


@given(st.lists(st.floats(1e-3, 10), min_size=100, max_size=300), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_of_many_distinct_laplace_releases_neighbours_are_joined(losses, seed) -> None:
    totals = Totals()
    for loss in losses:
        totals = totals.add(laplace(1 / loss))
    assert len(totals.laplace) == min(64, len({laplace(1 / loss).loss for loss in losses}))
    assert sum(count for _, count in totals.laplace) == len(losses)
    exact = sorted(laplace(1 / loss).loss for loss in losses)
    kept = [loss for loss, count in totals.laplace for _ in range(count)]
    assert all(up >= loss for up, loss in zip(kept, exact, strict=True))
    assert sum(up**2 for up in kept) <= 1.1 * sum(loss**2 for loss in exact)


@given(
    st.lists(
        st.tuples(st.floats(1e-3, 25.0), st.sampled_from([1.0, 1.0 - 2.0**-53, 0.3, 0.0123, 0.97])),
        min_size=1,
        max_size=250,
    ),
    st.booleans(),
    st.integers(0, 249),
)
@settings(max_examples=40, deadline=None)
def test_releases_added_at_once_give_the_totals_of_one_after_the_other(
    given: list[tuple[float, float]], pure: bool, cut: int
) -> None:
    """To the last bit, also where so many differ that they are rounded."""
    releases = [
        replace(laplace(1 / loss) if pure else gaussian(1 / loss), relation="add-remove")
        for loss, _ in given
    ]
    if not pure:
        releases = [replace(each, sampling=q) for each, (_, q) in zip(releases, given, strict=True)]
    one_by_one = Totals()
    for release in releases:
        one_by_one = one_by_one.add(release, 3)
    messages = [(release, 3) for release in releases]
    assert Totals().with_all(messages) == one_by_one
    assert Totals().with_all(messages[:cut]).with_all(messages[cut:]) == one_by_one


def test_rounding_up_costs_little() -> None:
    """Against the composition of all 200 distributions without any grouping."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    multipliers = [10.0 + j / 10 for j in range(200)]
    result = epsilon_of(once(*(laplace(m) for m in multipliers)), DELTA)
    exact = functools.reduce(
        lambda left, right: left.compose(right),
        (pld.from_laplace_mechanism(m, value_discretization_interval=1e-3) for m in multipliers),
    ).get_epsilon_for_delta(DELTA)
    assert exact < result < exact * 1.03


@pytest.mark.parametrize(
    "mapping",
    [
        3, [], {"other": 1}, {"relation": "none"}, {"gaussian": [1.0]}, {"gaussian": [1, 0.0]},
        {"gaussian": [-1.0, 0.0]}, {"gaussian": [math.nan, 0.0]}, {"laplace": [[1.0]]},
        {"laplace": [[1.0, 0]]}, {"laplace": [[2.0, 1], [1.0, 1]]}, {"laplace": [["1", 1]]},
        {"laplace": [[1.0, 1.0]]}, {"laplace": [[1.0, True]]}, {"unnoised": 1},
        {"unnoised": False}, {"laplace": [[math.inf, 1]]},
    ],
)  # fmt: skip
def test_hostile_totals_are_refused(mapping) -> None:
    with pytest.raises(ValueError, match="totals"):
        Totals.from_dict(mapping)
