"""The perturber: what lands on the grid, what it refuses, and the law of what it releases."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privet.kernel import Clipped, Facts, NoiseError, Perturber, Release, SeededNoise, SystemNoise
from privet.kernel.perturb import FARTHEST, FINENESS, spacing
from support.adversary import ZeroNoise

NORMS = {"gaussian": "l2", "laplace": "l1"}


def release(mechanism: str = "gaussian", **changes: Any) -> Release:
    numbers: dict[str, Any] = {"scale": 0.7, "sensitivity": 0.2, "norm": NORMS[mechanism]}
    return Release(mechanism, **{**numbers, **changes})  # type: ignore[arg-type]


def facts(dim: int) -> Facts:
    return Facts(num_examples=10, divisor=10.0, dim=dim)


def perturbed(value: Any, charged: Release, source: Any) -> np.ndarray:
    value = np.asarray(value, np.float64)
    clipped = Clipped(value, charged.sensitivity, charged.norm)
    return Perturber(charged, source, facts(value.size)).perturb(clipped)


MECHANISMS = st.sampled_from(["gaussian", "laplace"])
SIZES = st.floats(-6, 6).map(lambda power: 10.0**power)
CHARGES = st.builds(
    lambda mechanism, scale, share: release(mechanism, scale=scale, sensitivity=scale * share),
    MECHANISMS, SIZES, st.floats(-3, 3).map(lambda power: 10.0**power),
)  # fmt: skip


@given(charged=CHARGES, dim=st.integers(1, 200_000))
def test_the_grid_is_a_power_of_two_that_costs_at_most_what_is_charged_for_it(
    charged: Release, dim: int
) -> None:
    step = spacing(charged, dim)
    assert math.frexp(step)[0] == 0.5
    size = Fraction(dim) if charged.norm == "l1" else Fraction(math.sqrt(dim))
    least = Fraction(min(charged.scale, charged.sensitivity)) / int(FINENESS)
    # Not coarser than allowed, and not needlessly fine.
    assert least / 4 < Fraction(step) * size <= least * (1 + Fraction(1, 2**50))
    # Two neighbours move by half a step a coordinate each: half of what the loss adds.
    rounding = step * (dim if charged.norm == "l1" else math.sqrt(dim))
    moved = charged.loss * charged.scale
    assert moved >= (charged.sensitivity + 2 * rounding) * (1 - 1e-12)


@settings(max_examples=60)
@given(charged=CHARGES, data=st.data(), dim=st.integers(1, 50))
def test_releases_are_multiples_of_the_grid_and_sums_are_exact(
    charged: Release, data: st.DataObject, dim: int
) -> None:
    """D (rint(u/D) + rint(g/D)), in rational numbers."""
    seed = data.draw(st.integers(0, 2**32))
    value = np.random.default_rng(seed).standard_normal(dim) * charged.sensitivity
    step = Fraction(spacing(charged, dim))
    found = perturbed(value, charged, SeededNoise(seed))
    kind = "laplace" if charged.mechanism == "laplace" else "gaussian"
    draws = getattr(SeededNoise(seed), kind)((1, dim), charged.scale)[0]
    for out, u, g in zip(found, value, draws, strict=True):
        wanted = step * (round(Fraction(u) / step) + round(Fraction(g) / step))
        assert Fraction(float(out)) == wanted


@settings(max_examples=60)
@given(charged=CHARGES, dim=st.integers(1, 50), seed=st.integers(0, 2**32))
def test_a_release_is_a_function_of_the_snapped_value_alone(
    charged: Release, dim: int, seed: int
) -> None:
    """What lies below the grid is gone: values of the same rint(u/D) give the same bytes."""
    rng = np.random.default_rng(seed)
    step = spacing(charged, dim)
    places = np.rint(rng.standard_normal(dim) * 1e6)
    one, two = ((places + rng.uniform(-0.499, 0.499, dim)) * step for _ in range(2))
    outputs = [perturbed(value, charged, SeededNoise(seed)) for value in (one, two)]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    # A step further is seen, as exactly that step.
    moved = perturbed(one + step, charged, SeededNoise(seed))
    np.testing.assert_array_equal(moved - outputs[0], step)


@given(
    value=st.floats(allow_nan=False, allow_infinity=False, min_value=1e20),
    sign=st.sampled_from([-1.0, 1.0]),
)
def test_far_values_are_held_at_a_public_place(value: float, sign: float) -> None:
    charged = release()
    found = perturbed([sign * value, 0.0], charged, ZeroNoise())
    assert found.tolist() == [sign * FARTHEST * spacing(charged, 2), 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_counts_as_zero_and_is_noised(bad: float) -> None:
    charged = release()
    found = perturbed([1.0, bad], charged, SeededNoise(4))
    assert found.tobytes() == perturbed([0.0, 0.0], charged, SeededNoise(4)).tobytes()
    assert np.isfinite(found).all()
    assert found.any()


def test_the_value_handed_in_is_left_alone() -> None:
    value = np.array([0.1, 0.2])
    perturbed(value, release(), SystemNoise())
    assert value.tolist() == [0.1, 0.2]


def test_given_draws_are_added_off_the_grid() -> None:
    """Worked instances come out as they were printed."""

    class Printed(ZeroNoise):
        def gaussian(self, size: Any, scale: float, dtype: Any = np.float64) -> Any:
            return np.full(size, 1 / 3)

    charged = release()
    noise = Perturber(charged, Printed(), facts(2), given=True)
    found = noise.perturb(Clipped(np.array([0.1, -0.7]), 0.2, "l2"))
    np.testing.assert_array_equal(found, np.array([0.1, -0.7]) + 1 / 3)
    noise.require_magnitude(np.array([1e300]))  # no grid, nothing to protect
    noise.settle()


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("count", "steps"), [(1, 1), (3, 1), (1, 4), (2, 3)])
def test_exactly_the_charged_draws_are_taken(count: int, steps: int) -> None:
    charged = release(count=count, steps=steps, contraction=0.5 if steps > 1 else 1.0)
    noise = Perturber(charged, SystemNoise(), facts(2))
    value = Clipped(np.zeros(2), charged.sensitivity, "l2")
    for taken in range(count * steps):
        assert noise.taken == taken
        with pytest.raises(NoiseError, match=f"{taken} draws were taken, {count * steps} charged"):
            noise.settle()
        noise.perturb(value)
    noise.settle()
    with pytest.raises(NoiseError, match=f"more than the {count * steps} draws"):
        noise.perturb(value)
    noise.settle()


def test_draws_differ_from_each_other() -> None:
    noise = Perturber(release(count=50), SystemNoise(), facts(3))
    value = Clipped(np.zeros(3), 0.2, "l2")
    outputs = np.array([noise.perturb(value) for _ in range(50)])
    # 150 draws on a grid of 1e5 places a deviation coincide once in some tens of runs; rows never.
    assert len({row.tobytes() for row in outputs}) == 50
    assert 0.3 < outputs.std() / 0.7 < 3.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Clipped(np.zeros(2), 0.2 * (1 + 1e-9), "l2"), "moves by 0.2 in l2, more than the 0.2"),
        (Clipped(np.zeros(2), 1.0, "l2"), "more than the"),
        (Clipped(np.zeros(2), math.inf, "l2"), "more than the"),
        (Clipped(np.zeros(2), math.nan, "l2"), "more than the"),
        (Clipped(np.zeros(2), 0.1, "l1"), "in l1, more than the 0.2 in l2"),
        (Clipped(np.zeros(3), 0.2, "l2"), r"shape \(3,\), expected \(2,\)"),
        (Clipped(np.zeros((1, 2)), 0.2, "l2"), r"shape \(1, 2\)"),
    ],
)
def test_what_was_not_charged_is_refused_and_draws_nothing(value: Clipped, reason: str) -> None:
    noise = Perturber(release(), SystemNoise(), facts(2))
    with pytest.raises(NoiseError, match=reason):
        noise.perturb(value)
    assert noise.taken == 0


def test_a_smaller_sensitivity_is_charged_in_full_and_accepted() -> None:
    charged = release()
    noise = Perturber(charged, ZeroNoise(), facts(1))
    assert noise.perturb(Clipped(np.array([0.5]), 0.01, "l2")) == pytest.approx(0.5, abs=1e-5)


def test_noise_that_nobody_charged_is_refused() -> None:
    noise = Perturber(Release("none"), SystemNoise(), facts(2))
    with pytest.raises(NoiseError, match="that was not charged"):
        noise.perturb(Clipped(np.zeros(2), 0.0, "l2"))
    noise.settle()


def test_noise_beside_that_which_was_charged_is_refused() -> None:
    noise = Perturber(release(), SystemNoise(), facts(2))
    with pytest.raises(NoiseError, match="in addition to"):
        noise.unaccounted(np.zeros(2), 1.0)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_unaccounted_noise_is_the_sources_own(mechanism: str) -> None:
    noise = Perturber(Release("none"), SeededNoise(8), facts(3))
    found = noise.unaccounted(np.ones(3), 0.5, mechanism)
    np.testing.assert_array_equal(found, 1.0 + getattr(SeededNoise(8), mechanism)((3,), 0.5))
    noise.settle()


@pytest.mark.parametrize(("scale", "sensitivity"), [(1.0, 1e-9), (1e60, 1e-60), (1e12, 1.0)])
def test_noise_that_float64_cannot_hold_beside_the_value_is_refused(
    scale: float, sensitivity: float
) -> None:
    with pytest.raises(NoiseError, match="too large for a sensitivity"):
        Perturber(release(scale=scale, sensitivity=sensitivity), SystemNoise(), facts(1000))


def test_sums_stay_below_the_exact_integers() -> None:
    """At the largest noise that is accepted, 64 deviations and the farthest value add exactly."""
    for dim in (1, 10**6):
        low, high = 1.0, 1e30
        while high / low > 1 + 1e-9:
            middle = math.sqrt(low * high)
            try:
                Perturber(release(scale=middle, sensitivity=1.0), ZeroNoise(), facts(dim))
                low = middle
            except NoiseError:
                high = middle
        step = spacing(release(scale=low, sensitivity=1.0), dim)
        assert 64 * low / step + FARTHEST < 2**53
        assert low > 1e4  # noise multipliers of any use are far below


def test_public_numbers_too_large_for_the_grid_are_refused() -> None:
    charged = release()
    noise = Perturber(charged, SystemNoise(), facts(2))
    most = FARTHEST * spacing(charged, 2)
    noise.require_magnitude(np.array([most, -most]), np.zeros(0))
    for bad in (2 * most, -2 * most, math.inf, math.nan):
        with pytest.raises(NoiseError, match="too large for noise"):
            noise.require_magnitude(np.zeros(2), np.array([0.0, bad]))
    Perturber(Release("none"), SystemNoise(), facts(2)).require_magnitude(np.array([math.inf]))


# ---------------------------------------------------------------------- law


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_law_is_the_ideal_mechanisms(mechanism: str) -> None:
    """D rint((u + g)/D) with u on the grid: KS and chi-square against the law, a fair lowest bit.

    500000 draws of system noise. False alarms: 1e-7 for each of the six tests. The grid is 1e5
    times finer than the noise, against a KS distance of 0.004 that is needed for an alarm.
    """
    count, value = 500_000, 0.35
    charged = release(mechanism, scale=1.3, sensitivity=1.0)
    found = perturbed(np.full(count, value), charged, SystemNoise())
    step = spacing(charged, count)
    snapped = np.rint(value / step) * step
    law = getattr(stats, {"gaussian": "norm"}.get(mechanism, mechanism))(snapped, 1.3)
    assert stats.kstest(found, law.cdf).pvalue > 1e-7
    edges = law.ppf(np.linspace(0, 1, 201))
    counted, _ = np.histogram(found, edges)
    assert stats.chisquare(counted).pvalue > 1e-7
    odd = int(np.count_nonzero(found / step % 2))
    assert stats.binomtest(odd, count).pvalue > 1e-7


def test_draws_made_in_batches_are_those_made_one_by_one() -> None:
    """A large round is drawn in parts, and each part is as long as what is left of the charge."""

    class Counting(ZeroNoise):
        sizes: ClassVar[list[Any]] = []

        def gaussian(self, size: Any, scale: float, dtype: Any = np.float64) -> Any:
            self.sizes.append(size)
            return np.zeros(size)

    source, dim = Counting(), 1 << 19
    noise = Perturber(release(count=5), source, facts(dim))
    value = Clipped(np.zeros(dim), 0.2, "l2")
    for _ in range(5):
        noise.perturb(value)
    assert source.sizes == [(2, dim), (2, dim), (1, dim)]
