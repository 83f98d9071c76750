"""What an audit says that it would have found, against simulations of its tests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privet.kernel import gaussian_epsilon
from privet.sim.empirical import best_guesses, deviation_bound, gaussian_bound, scale_bound
from privet.sim.power import CHANCE, Power, separation, smallest_lack_of_draws

TRIALS = 600
SPREAD = math.sqrt(CHANCE * (1 - CHANCE) / TRIALS)
"""Standard error of the share of trials that find a lack."""


def found_by_gap(power: Power, lack: float, canaries: int, rng: np.random.Generator) -> float:
    """Return the share of simulated audits whose gap of means proves more than the claim."""
    apart, half = power.separation / (1 - lack), canaries // 2
    found = 0
    for _ in range(TRIALS):
        first, second = rng.normal(apart, 1, half), rng.normal(0, 1, canaries - half)
        found += gaussian_bound(first, second, power.delta, error=power.error) > power.epsilon
    return found / TRIALS


@pytest.mark.parametrize("canaries", [300, 2400])
def test_gap_finds_the_stated_lack_nine_times_in_ten(canaries: int) -> None:
    mu, delta = 0.9, 1e-5
    power = Power(0.8 * mu, gaussian_epsilon(mu, delta), delta, mu, 1e-3 / 3, (1.0,))
    lack = power.smallest_lack(canaries)
    rng = np.random.default_rng(1)
    assert found_by_gap(power, lack, canaries, rng) == pytest.approx(CHANCE, abs=4 * SPREAD)
    assert found_by_gap(power, 0.7 * lack, canaries, rng) < CHANCE - 4 * SPREAD
    # The number of canaries for this lack is that number again.
    assert power.canaries_for(lack) == pytest.approx(canaries, rel=0.02)


def test_guesses_find_the_stated_lack_nine_times_in_ten() -> None:
    delta, error, canaries, shares = 1e-9, 1e-3, 1000, (0.3,)
    power = Power(0.5, 1.0, delta, math.nan, error, shares)
    lack = power.smallest_lack(canaries)
    assert 0.05 < lack < 0.6
    apart, rng, found = power.separation / (1 - lack), np.random.default_rng(2), 0
    for _ in range(TRIALS):
        truth = rng.random(canaries) < 0.5
        scores = np.where(truth, apart / 2, -apart / 2) + rng.normal(size=canaries)
        bound, *_ = best_guesses(scores, truth, delta, error=error, counts=[300])
        found += bound > power.epsilon
    # The number of right guesses is whole: the share may be above, by one more or less.
    assert CHANCE - 4 * SPREAD < found / TRIALS < CHANCE + 0.04 + 4 * SPREAD


@pytest.mark.parametrize("gaussian", [True, False])
def test_spread_finds_the_stated_lack_nine_times_in_ten(gaussian: bool) -> None:
    count, error, rng = 400, 1e-3, np.random.default_rng(3)
    lack = smallest_lack_of_draws(count, gaussian=gaussian, error=error)
    trials, found = 4000, 0
    inflated = (1 - lack) * (1 + 2.0**-9)  # as sizes are, at most
    for _ in range(trials):
        if gaussian:
            squares = float((rng.normal(0, inflated, count) ** 2).sum())
            found += deviation_bound(squares, count, error=error) < 1
        else:
            total = float(rng.exponential(inflated, count).sum())
            found += scale_bound(total, count, error=error) < 1
    spread = math.sqrt(CHANCE * (1 - CHANCE) / trials)
    assert found / trials == pytest.approx(CHANCE, abs=4 * spread)


def test_what_delta_keeps_from_being_proven_is_found_by_no_number_of_canaries() -> None:
    power = Power(2.0, 4.0, 1e-3, math.nan, 1e-4, (0.1, 1.0))
    assert math.isnan(power.smallest_lack(10_000))
    assert power.canaries_for(0.3) == 0


def test_separation_is_in_deviations() -> None:
    first, second = np.array([3.0, 5.0]), np.array([0.0, 2.0])
    assert separation(first, second) == pytest.approx(3 / math.sqrt(2))
    assert separation(first, np.array([])) == 0
