"""The account of sampled records: exact laws by integration, dp_accounting, order and rounding."""

from __future__ import annotations

import functools
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from privet.kernel import (
    Release,
    Totals,
    epsilon_of,
    gaussian_epsilon,
)
from privet.kernel.ledger_lines import dearer
from privet.kernel.sampled import _by_law, sampled_epsilon

DELTA = 1e-5
NODES = np.linspace(-1.0, 1.0, 100_001)
WEIGHTS = np.full(NODES.size, NODES[1] - NODES[0])
"""The trapezoidal rule, which does not mind the kink of the integrand."""


def sampled(mu: float, q: float, count: int = 1, **more: float) -> Release:
    scale = 1 / mu
    return Release("gaussian", scale=scale, count=count, relation="add-remove", sampling=q, **more)


def deltas(mu: float, q: float, uses: int, epsilon: float) -> tuple[float, float]:
    """Return delta of both directions of one or two uses, by quadrature over all but one number."""
    x = NODES * (10 + mu) + mu / 2
    weights = WEIGHTS * (10 + mu)

    def laws(there: bool) -> tuple[np.ndarray, np.ndarray]:
        plain = stats.norm.pdf(x)
        mixed = (1 - q) * plain + q * stats.norm.pdf(x, mu)
        return (mixed, plain) if there else (plain, mixed)

    def one(there: bool, epsilon: np.ndarray) -> np.ndarray:
        """Of one use, in closed form: the event is a half line."""
        edge = epsilon if there else -epsilon
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (np.exp(edge) - 1 + q) / q
            place = np.where(ratio > 0, np.log(ratio) / mu + mu / 2, -np.inf)
        tail = stats.norm.sf if there else stats.norm.cdf
        plain, moved = tail(place), tail(place - mu)
        mixed = (1 - q) * plain + q * moved
        return mixed - np.exp(epsilon) * plain if there else plain - np.exp(epsilon) * mixed

    found = []
    for there in (True, False):
        if uses == 1:
            found.append(float(one(there, np.array(epsilon))))
        else:
            first, second = laws(there)
            rest = epsilon - np.log(first / second)
            found.append(float(weights @ (first * one(there, rest))))
    return found[0], found[1]


@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize(
    ("mu", "q"), [(0.5, 0.5), (1.0, 0.01), (2.0, 0.3), (0.1, 0.9), (4.0, 1e-3)]
)
def test_one_and_two_uses_are_bounded_closely_in_both_directions(
    mu: float, q: float, uses: int
) -> None:
    for delta in (1e-3, 1e-6):
        claimed = sampled_epsilon(0.0, ((mu, q, uses),), delta)

        def excess(epsilon: float, delta: float = delta) -> float:
            return max(deltas(mu, q, uses, epsilon)) - delta

        exact = 0.0 if excess(0.0) <= 0 else optimize.brentq(excess, 0.0, 60.0, xtol=1e-12)
        assert exact <= claimed <= exact * 1.001 + 1e-7


@pytest.mark.parametrize(
    ("mu", "q", "delta"),
    [(1e-3, 0.5, 1e-9), (0.01, 0.5, 1e-6), (0.05, 0.9, 1e-9), (0.3, 0.99, 1e-3)],
)
def test_each_direction_alone_is_bounded_closely_where_epsilon_is_small(
    mu: float, q: float, delta: float
) -> None:
    """Also of losses whose grid has points without mass far beyond those that have some."""
    whole = gaussian_epsilon(mu, delta)
    for direction, there in enumerate((True, False)):

        def excess(epsilon: float, direction: int = direction) -> float:
            return deltas(mu, q, 1, epsilon)[direction] - delta

        exact = optimize.brentq(excess, 0.0, 2 * whole, xtol=1e-14)
        claimed = _by_law(0.0, ((mu, q, 1),), delta, whole, there)
        assert exact * (1 - 1e-7) <= claimed <= exact * 1.001


@pytest.mark.parametrize(
    ("mu", "q", "uses", "delta"),
    [(0.7, 0.05, 200, 1e-5), (0.2, 0.1, 100, 1e-6), (1, 0.001, 20_000, 1e-5), (0.5, 0.5, 4, 1e-3)],
)
def test_dp_accounting_says_the_same_of_each_direction(
    mu: float, q: float, uses: int, delta: float
) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    claimed = sampled_epsilon(0.0, ((mu, q, uses),), delta)
    above, below = (
        pld.from_gaussian_mechanism(
            1 / mu,
            sampling_prob=q,
            value_discretization_interval=1e-4,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(uses)
        for pessimistic in (True, False)
    )
    assert claimed >= below.get_epsilon_for_delta(delta)
    assert claimed == pytest.approx(above.get_epsilon_for_delta(delta), rel=2e-3)
    # Each direction by itself: our delta is at least the optimistic one at the claimed epsilon.
    assert below.get_delta_for_epsilon(claimed) <= delta


def test_sampled_and_whole_releases_compose_as_dp_accounting_has_it() -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    mixed = (
        Totals().add(sampled(0.5, 0.1, 50)).add(sampled(1.0, 0.02, 10)).add(sampled(0.4, 1.0, 3))
    )
    laws = [(0.5, 0.1, 50), (1.0, 0.02, 10), (0.4, 1.0, 3)]
    whole = functools.reduce(
        lambda law, other: law.compose(other),
        [
            pld.from_gaussian_mechanism(
                1 / mu, sampling_prob=q, value_discretization_interval=1e-3
            ).self_compose(count)
            for mu, q, count in laws
        ],
    )
    assert mixed.epsilon(DELTA) == pytest.approx(whole.get_epsilon_for_delta(DELTA), rel=2e-3)
    assert mixed.method == "pld"


@given(st.floats(0.05, 3.0), st.floats(0.001, 0.95), st.integers(1, 3000))
@settings(max_examples=5, deadline=None)
def test_sampling_never_costs_more_and_more_of_it_never_less(
    mu: float, q: float, uses: int
) -> None:
    less, more = (sampled_epsilon(0.0, ((mu, rate, uses),), DELTA) for rate in (q, (1 + q) / 2))
    assert 0 <= less <= more * 1.001
    assert more <= gaussian_epsilon(mu * math.sqrt(uses), DELTA) * (1 + 1e-12)


@given(st.permutations(range(5)))
@settings(max_examples=5, deadline=None)
def test_totals_do_not_depend_on_the_order(order: list[int]) -> None:
    every = [
        sampled(0.5, 0.1, 2),
        sampled(0.5, 0.1),
        sampled(0.25, 0.2),
        sampled(0.5, 1.0),
        sampled(0.5, 0.2),
    ]
    forwards = functools.reduce(Totals.add, every, Totals())
    other = functools.reduce(Totals.add, (every[place] for place in order), Totals())
    assert other == forwards
    assert Totals.from_dict(json.loads(json.dumps(forwards.to_dict()))) == forwards
    assert len(forwards.sampled) == 3


def test_of_many_different_releases_neighbours_are_joined() -> None:
    each = [sampled(0.01 * (1 + i / 97), 0.2 + i / 1000) for i in range(90)]
    kept = functools.reduce(Totals.add, each, Totals())
    assert len(kept.sampled) == 64
    assert sum(count for *_, count in kept.sampled) == 90
    exact = tuple(sorted((one.loss, one.sampling, 1) for one in each))
    for (loss, q, _), (most, rate, _) in zip(exact, _spread(kept), strict=True):
        assert loss <= most <= loss * 1.03
        assert q <= rate <= q * 1.03
    whole = sampled_epsilon(0.0, exact, 1e-3)
    assert whole * (1 - 1e-3) <= kept.epsilon(1e-3) <= whole * 1.01


def _spread(totals: Totals) -> list[tuple[float, float, int]]:
    return list(itertools.chain.from_iterable([(m, q, 1)] * n for m, q, n in totals.sampled))


def test_extreme_numbers_err_upwards() -> None:
    # Counted as if all took part, or with a larger rate: never less than the truth.
    assert Totals().add(sampled(1e-7, 0.1)).sampled == ()
    assert Totals().add(sampled(50.0, 0.1)).sampled == ()
    tiny = sampled_epsilon(0.0, ((1.0, 1e-300, 10),), DELTA)
    assert 0 <= tiny < 1e-3
    assert sampled_epsilon(0.0, ((1.0, 0.01, 10**9),), DELTA) > 1e3
    assert sampled_epsilon(0.0, ((1.0, 0.01, 1000),), 1e-13) == gaussian_epsilon(
        math.sqrt(1000.0) * (1.0 + 2.0**-50), 1e-13
    )


@pytest.mark.parametrize("relation", ["replace-one", "replace-agent"])
def test_other_relations_have_no_proof(relation: str) -> None:
    with pytest.raises(
        ValueError, match=r"'sampling' is 0\.1, .* under relation 'add-remove' only"
    ):
        Release("gaussian", scale=1.0, relation=relation, sampling=0.1)  # type: ignore[arg-type]


def test_other_mechanisms_have_no_proof() -> None:
    with pytest.raises(ValueError, match=r"'sampling' is 0\.1"):
        Release("laplace", scale=1.0, norm="l1", relation="add-remove", sampling=0.1)
    with pytest.raises(ValueError, match=r"'sampling' is 0\.1"):
        sampled(1.0, 0.1, steps=3)  # type: ignore[arg-type]
    for q in (0.0, 1.5, math.nan, -0.1):
        with pytest.raises(ValueError, match="'sampling'"):
            sampled(1.0, q)


def laplace(loss: float, count: int = 1) -> Release:
    return Release("laplace", scale=1 / loss, norm="l1", count=count, relation="add-remove")


def exact_beside_laplace(mu: float, q: float, loss: float) -> float:
    """Return epsilon of one sampled and one Laplace use, by quadrature over the Laplace loss.

    It is t with mass 1/2, -t with mass e^-t / 2, and has the density e^((l - t) / 2) / 4 between.
    Given that it is l, the sampled use is left with epsilon - l, and the event is a half line.
    """
    step = 2 * loss / 4000
    inside = np.arange(-loss + step / 2, loss, step)
    losses = np.array([loss, -loss, *inside])
    density = np.array([0.5, np.exp(-loss) / 2, *(np.exp((inside - loss) / 2) / 4 * step)])
    assert density.sum() == pytest.approx(1.0, abs=1e-6)

    def delta(epsilon: float) -> float:
        found = []
        for there in (True, False):
            edge = epsilon - losses
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = (np.exp(edge if there else -edge) - 1 + q) / q
                place = np.where(ratio > 0, np.log(ratio) / mu + mu / 2, -np.inf)
            tail = stats.norm.sf if there else stats.norm.cdf
            plain, moved = tail(place), tail(place - mu)
            mixed = (1 - q) * plain + q * moved
            first, second = (mixed, plain) if there else (plain, mixed)
            found.append(float(density @ (first - np.exp(edge) * second)))
        return max(found)

    return float(optimize.brentq(lambda epsilon: delta(epsilon) - DELTA, 0.0, 60.0))


@pytest.mark.parametrize("loss", [0.01, 0.3, 2.0])
@pytest.mark.parametrize(("mu", "q"), [(0.5, 0.01), (1.0, 0.3), (3.0, 1e-3), (4.0, 0.9)])
def test_beside_laplace_noise_no_less_than_the_exact_epsilon(
    mu: float, q: float, loss: float
) -> None:
    both = [(sampled(mu, q), 1), (laplace(loss), 1)]
    found, exact = epsilon_of(both, DELTA), exact_beside_laplace(mu, q, loss)
    assert exact * (1 - 1e-6) <= found <= exact + loss + 0.5


def test_beside_laplace_noise_no_less_than_another_library() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    mu, q, uses, loss, times = 1.0, 0.05, 50, 0.2, 20
    theirs = (
        pld.from_gaussian_mechanism(1 / mu, sampling_prob=q, value_discretization_interval=1e-3)
        .self_compose(uses)
        .compose(
            pld.from_laplace_mechanism(1 / loss, value_discretization_interval=1e-3).self_compose(
                times
            )
        )
    )
    exact = theirs.get_epsilon_for_delta(DELTA)
    found = epsilon_of([(sampled(mu, q), uses), (laplace(loss), times)], DELTA)
    assert 0.99 * exact <= found <= 2.5 * exact


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ((sampled(1.0, 0.01), 1000), (laplace(3e-5), 1)),
        ((laplace(0.01), 10_000), (sampled(5.0, 1e-9), 1)),
    ],
    ids=["a Laplace release", "a sampled release"],
)
def test_one_release_of_another_kind_costs_about_what_it_costs_alone(
    many: tuple[Release, int], one: tuple[Release, int]
) -> None:
    """Else one message of next to no epsilon would spend what is left of a node's budget."""
    before, after = epsilon_of([many], DELTA), epsilon_of([many, one], DELTA)
    assert before <= after <= 1.1 * before + epsilon_of([one], DELTA)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.01, 0.3, 2.0]), st.sampled_from([0.0, 1e-3, 0.5, 1.0])),
        min_size=2,
        max_size=5,
    )
)
def test_no_further_release_of_any_kind_lowers_epsilon(given: list[tuple[float, float]]) -> None:
    """Of Laplace (0), sampled and full (1) Gaussian releases, in any order."""
    totals, spent = Totals(), 0.0
    for loss, q in given:
        totals = totals.add(sampled(loss, q) if q else laplace(loss))
        now = totals.epsilon(DELTA)
        assert now >= spent * (1 - 1e-4)  # each has a grid of its own
        spent = now
    every = epsilon_of(
        [(sampled(loss, 1.0) if q else laplace(loss), 1) for loss, q in given], DELTA
    )
    assert spent <= every * (1 + 1e-6)


def test_a_torn_line_costs_no_less_than_either_release() -> None:
    for one, other in [
        (sampled(1.0, 0.1), sampled(0.5, 1.0)),
        (sampled(0.2, 0.1, 26), sampled(1.0, 0.1)),
    ]:
        both = [dearer(one, other), dearer(other, one)]
        for worst in both:
            cost = Totals().add(worst).epsilon(DELTA)
            assert cost >= max(Totals().add(each).epsilon(DELTA) for each in (one, other))
