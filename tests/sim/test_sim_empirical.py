"""Bounds on epsilon from what a mechanism gave out, checked on mechanisms of a known epsilon."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, chi, norm

from privet.kernel import gaussian_epsilon
from privet.sim.empirical import (
    best_guesses,
    deviation_bound,
    gaussian_bound,
    guessing_bound,
    guessing_chance,
    mu_bound,
    numbers_of_guesses,
    scale_bound,
)

DELTA = 1e-5


@given(st.integers(1, 60), st.floats(0.05, 5.0), st.data())
def test_without_delta_the_chance_is_the_binomial_tail(
    count: int, epsilon: float, data: st.DataObject
) -> None:
    correct = data.draw(st.integers(0, count))
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(
        math.comb(count, k) * q**k * (1 - q) ** (count - k) for k in range(correct, count + 1)
    )
    assert guessing_chance(correct, count, count, epsilon, 0.0) == pytest.approx(tail, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.02), (1.0, 0.1), (2.0, 0.3)])
def test_no_guesses_on_the_worst_mechanism_are_more_often_right(
    epsilon: float, delta: float
) -> None:
    """By all outcomes: every (epsilon, delta) mechanism is a function of this one.

    It gives a coin away with probability delta, and else tells it with odds e^epsilon to 1 (P.
    Kairouz, S. Oh, P. Viswanath 2015). Who passes where a coin was not given away, but for as many
    guesses as are asked for, is the best at a fixed number of guesses.
    """
    canaries, guesses = 6, 4
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = np.zeros(guesses + 1)
    for sure in product((True, False), repeat=canaries):
        chance = math.prod(delta if one else 1 - delta for one in sure)
        known = min(sum(sure), guesses)
        for more in range(guesses - known + 1):
            law[known + more] += chance * binom.pmf(more, guesses - known, right)
    assert law.sum() == pytest.approx(1.0)
    for correct in range(guesses + 1):
        exact = law[correct:].sum()
        assert guessing_chance(correct, guesses, canaries, epsilon, delta) >= exact - 1e-12


def test_the_bound_is_where_the_chance_is_the_error() -> None:
    bound = guessing_bound(90, 100, 1000, DELTA, error=0.01)
    assert guessing_chance(90, 100, 1000, bound, DELTA) == pytest.approx(0.01, rel=1e-6)
    assert bound < math.log(9)
    assert guessing_bound(50, 100, 1000, DELTA, error=0.01) == 0.0
    assert guessing_bound(0, 0, 10, DELTA, error=0.01) == 0.0
    more = [guessing_bound(v, 100, 100, DELTA, error=0.01) for v in range(60, 101)]
    assert more == sorted(more)
    with pytest.raises(ValueError, match="expected 0 <= correct"):
        guessing_bound(11, 10, 100, DELTA, error=0.01)


@pytest.mark.slow
def test_false_alarms_of_both_bounds_are_as_rare_as_they_say() -> None:
    """The Gaussian mechanism of mu, attacked by its best statistic, 400 times.

    Half of the error is that of one direction: 40 alarms of 400 are expected, and more than 65 have
    a chance of 4e-5; the guesses, which Gaussian noise answers with worse odds, stay far below.
    """
    rng, mu, error, audits = np.random.default_rng(0), 1.0, 0.2, 400
    epsilon = gaussian_epsilon(mu, DELTA)
    measured = guessed = 0
    for _ in range(audits):
        truth = rng.random(200) < 0.5
        scores = rng.standard_normal(200) + mu * (truth - 0.5)
        measured += gaussian_bound(scores[truth], scores[~truth], DELTA, error=error) > epsilon
        bound, _, _ = best_guesses(scores, truth, DELTA, error=error, counts=(20, 200))
        guessed += bound > epsilon
    assert 18 <= measured <= 65
    assert guessed == 0


def test_randomised_response_is_proven_almost_whole() -> None:
    """Its epsilon is that of the binomial law itself: the bound is tight but for the error."""
    rng, epsilon, error = np.random.default_rng(1), 1.5, 0.05
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    alarms, bounds = 0, []
    for _ in range(400):
        truth = rng.random(2000) < 0.5
        told = np.where(rng.random(2000) < right, truth, ~truth)
        bound, _, _ = best_guesses(2.0 * told - 1.0, truth, 0.0, error=error, counts=(2000,))
        alarms += bound > epsilon
        bounds.append(bound)
    assert 5 <= alarms <= 38  # 20 but for the steps of the binomial law
    assert np.mean(bounds) > 1.35


@pytest.mark.parametrize("error", [1e-6, 0.01, 0.5])
def test_the_scale_of_one_laplace_draw_is_bounded_exactly(error: float) -> None:
    """P[|g| / s < t] = 1 - e^-t: the bound is 1 where that is the error."""
    assert scale_bound(-math.log1p(-error), 1, error=error) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_the_scale_of_laplace_noise_is_exceeded_as_often_as_is_said(share: float) -> None:
    """Of 4000 audits 800 are wrong at an error of .2: six deviations are 152."""
    rng, count, error = np.random.default_rng(7), 60, 0.2
    sums = np.abs(rng.laplace(0.0, share, (4000, count))).sum(axis=1)
    bounds = sums * scale_bound(1.0, count, error=error)  # in proportion
    assert 648 < (bounds < share).sum() < 952
    assert bounds.mean() < 1.2 * share


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_deviation_of_gaussian_noise_is_exceeded_as_often_as_is_said(share: float) -> None:
    """Of 4000 audits 800 are wrong at an error of .2: six deviations are 152."""
    rng, count, error = np.random.default_rng(9), 60, 0.2
    squares = (rng.normal(0.0, share, (4000, count)) ** 2).sum(axis=1)
    bounds = np.array([deviation_bound(one, count, error=error) for one in squares])
    assert 648 < (bounds < share).sum() < 952
    assert bounds.mean() < 1.15 * share


def test_half_of_the_noise_is_found_by_a_hundred_draws() -> None:
    sizes = np.abs(np.random.default_rng(8).laplace(0.0, 0.5, 100))
    assert scale_bound(float(sizes.sum()), 100, error=1e-3) < 0.8
    assert scale_bound(0.0, 100, error=1e-3) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1e-7, 1e-5, 1e-3])
def test_guesses_that_can_prove_nothing_take_no_part_of_the_error(delta: float) -> None:
    shares, error = (0.005, 0.02, 0.1, 0.3, 1.0), 5e-4
    counts = numbers_of_guesses(1280, delta, error=error, shares=shares)
    for count in counts[:-1]:
        assert guessing_bound(count, count, 1280, delta, error=error / 5) > 0
    for count in {6, 26, 128, 384} - set(counts):
        assert guessing_bound(count, count, 1280, delta, error=error / 5) == 0
    assert counts[-1] == 1280
    assert (len(counts) > 3) == (delta < 1e-6)


def test_mu_is_measured_in_either_direction_and_needs_a_spread() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.standard_normal(500), rng.standard_normal(500) + 2.0
    bound = mu_bound(first, second, error=1e-3)
    assert 1.6 < bound < 2.1
    assert mu_bound(second, first, error=1e-3) == bound
    assert mu_bound(first, first, error=1e-3) == 0.0
    with pytest.raises(ValueError, match="samples"):
        mu_bound(np.ones(3), np.ones(3), error=0.1)


@pytest.mark.parametrize(
    ("each", "seen", "error"),
    [(2, 4.0, 0.3), (3, 60.0, 0.1), (50, 5.0, 1e-3), (375, 68.7, 5e-7), (375, 100.0, 1e-9)],
)
def test_at_the_bound_what_was_seen_has_half_the_chance(
    each: int, seen: float, error: float
) -> None:
    """P[T >= t] by an adaptive rule over scipy's chi, for samples whose t is known by hand."""
    signs = np.tile([1.0, -1.0], each)  # mean 0, and as many squares as numbers
    freedom, spread = 4 * each - 2, math.sqrt(1.0 / each)
    gap = seen * spread * math.sqrt(4 * each / freedom)
    shift = mu_bound(signs, signs + gap, error=error) / spread

    def chance(s: float) -> float:
        root = math.sqrt(freedom)
        return float(chi.pdf(s * root, freedom) * root * norm.cdf(shift - seen * s))

    near, width = shift / seen, 10.0 / math.sqrt(2 * freedom)
    found, _ = quad(
        chance, 0.0, 1.0 + width, points=[near, 1.0], epsabs=0.0, epsrel=1e-9, limit=400
    )
    assert 0.0 < shift < seen
    assert found == pytest.approx(error / 2, rel=1e-6)
