"""The account: closed forms, agreement with dp_accounting, composition algebra, edges, totals."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.privacy import (
    Account,
    Release,
    UnsupportedAccountError,
    account,
    epsilon_rdp,
    rdp_curve,
    unnoised_release,
)

DELTA = 1e-5


def gaussian(multiplier: float, count: int = 1) -> Release:
    return Release(mechanism="gaussian", scale=multiplier, sensitivity=1.0, count=count)


def laplace(multiplier: float, count: int = 1) -> Release:
    return Release(mechanism="laplace", scale=multiplier, sensitivity=1.0, norm="l1", count=count)


any_release = st.builds(
    lambda make, multiplier, count: make(multiplier, count),
    st.sampled_from([gaussian, laplace]),
    st.floats(0.3, 300),
    st.integers(1, 50),
)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 40.0])
def test_gaussian_curve_is_alpha_over_two_sigma_squared(sigma: float) -> None:
    orders = np.array([1.0001, 1.5, 2.0, 17.0, 1e5])
    np.testing.assert_allclose(
        rdp_curve([gaussian(sigma, 3)], orders), 3 * orders / (2 * sigma**2), rtol=1e-14
    )


@pytest.mark.parametrize("scale", [0.02, 0.7, 3.0, 50.0, 1e4])
def test_laplace_curve_is_the_renyi_integral(scale: float) -> None:
    """Against log of the integral of p^a q^(1-a) over x < 0, 0 < x < t and x > t, over a - 1."""
    orders = np.array([1.05, 2.0, 9.0, 300.0])
    t = 1 / scale
    expected = []
    for a in orders:
        pieces = np.array(
            [
                (a - 1) * t,
                (a - 1) * t + math.log(-math.expm1(-(2 * a - 1) * t) / (2 * a - 1)),
                -a * t,
            ]
        ) - math.log(2)
        top = pieces.max()
        expected.append((top + math.log(np.exp(pieces - top).sum())) / (a - 1))
    # The oracle's own cancellation is about 1e-16 / t^2.
    np.testing.assert_allclose(rdp_curve([laplace(scale)], orders), expected, rtol=1e-6)
    assert np.all(rdp_curve([laplace(scale)], orders) <= t * (1 + 1e-12))
    assert np.all(rdp_curve([laplace(scale)], orders) <= orders * t**2 / 2 * (1 + 1e-9))


@pytest.mark.parametrize(
    "releases",
    [
        [gaussian(1.3)],
        [gaussian(7.0, 100), gaussian(2.0)],
        [laplace(20.0, 20000)],
        [laplace(0.4)],
        [laplace(3.0, 5), gaussian(4.0, 12), laplace(11.0)],
        [gaussian(5000.0)],
    ],
)
@pytest.mark.parametrize("delta", [1e-5, 1e-12, 0.2])
def test_rdp_agrees_with_dp_accounting(releases: list[Release], delta: float) -> None:
    import dp_accounting
    from dp_accounting import rdp

    orders = [1.02, 1.1, 1.5, 2.0, 3.7, 8.0, 20.0, 64.0, 500.0, 5e4]
    oracle = rdp.RdpAccountant(orders)
    for release in releases:
        event = {
            "gaussian": dp_accounting.GaussianDpEvent,
            "laplace": dp_accounting.LaplaceDpEvent,
        }[release.mechanism](release.noise_multiplier)
        oracle.compose(event, release.count)
    expected = float(oracle.get_epsilon(delta))
    assert epsilon_rdp(releases, delta, orders) == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(
    "releases",
    [[laplace(3.0, 7)], [laplace(3.0, 7), gaussian(4.0, 12)], [gaussian(1.0, 9), gaussian(5.0)]],
)
def test_pld_agrees_with_dp_accounting(releases: list[Release]) -> None:
    import dp_accounting
    from dp_accounting import pld

    oracle = pld.PLDAccountant(value_discretization_interval=1e-4)
    for release in releases:
        event = {
            "gaussian": dp_accounting.GaussianDpEvent,
            "laplace": dp_accounting.LaplaceDpEvent,
        }[release.mechanism](release.noise_multiplier)
        oracle.compose(event, release.count)
    expected = oracle.get_epsilon(DELTA)
    # Different discretisations of the same loss: the grids are 1e-3 and 1e-4 wide.
    assert account(releases, DELTA).pld == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("release", [laplace(2.0), gaussian(2.0)])
def test_both_accountants_bound_the_exact_single_use(release: Release) -> None:
    result = account([release], 1e-3)
    draws = np.linspace(-60, 60, 2_000_001)
    width = draws[1] - draws[0]
    if release.mechanism == "laplace":
        densities = [np.exp(-np.abs(draws - m) / 2) / 4 for m in (0.0, 1.0)]
    else:
        densities = [np.exp(-((draws - m) ** 2) / 8) / math.sqrt(8 * math.pi) for m in (0.0, 1.0)]

    def delta_at(epsilon: float) -> float:
        return float((np.maximum(densities[0] - math.exp(epsilon) * densities[1], 0)).sum() * width)

    low, high = 0.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > 1e-3 else (low, middle)
    assert high - 1e-4 <= result.pld <= high + 2e-3
    assert result.rdp >= high - 1e-4


@given(st.lists(any_release, min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_composition_algebra(releases: list[Release], rng) -> None:
    orders = np.array([1.2, 2.0, 10.0, 200.0])
    total = rdp_curve(releases, orders)
    shuffled = list(releases)
    rng.shuffle(shuffled)
    np.testing.assert_allclose(rdp_curve(shuffled, orders), total, rtol=1e-12)
    parts = sum(rdp_curve([release], orders) for release in releases)
    np.testing.assert_allclose(parts, total, rtol=1e-12)
    unrolled = [replace(r, count=1) for r in releases for _ in range(r.count)]
    np.testing.assert_allclose(rdp_curve(unrolled, orders), total, rtol=1e-10)
    assert epsilon_rdp(releases[1:], DELTA) <= epsilon_rdp(releases, DELTA) + 1e-12
    assert epsilon_rdp(releases, 1e-9) >= epsilon_rdp(releases, 1e-3)


@given(st.floats(0.2, 100), st.floats(1.01, 3.0))
@settings(max_examples=40, deadline=None)
def test_more_noise_costs_less(multiplier: float, factor: float) -> None:
    for make in (gaussian, laplace):
        assert epsilon_rdp([make(multiplier * factor)], DELTA) <= epsilon_rdp(
            [make(multiplier)], DELTA
        )


def test_scale_and_sensitivity_matter_by_their_ratio_only() -> None:
    small = Release(mechanism="gaussian", scale=0.003, sensitivity=0.001)
    assert account([small], DELTA).epsilon == pytest.approx(
        account([gaussian(3.0)], DELTA).epsilon, rel=1e-12
    )


def test_smaller_of_two_is_reported_and_both_are_kept() -> None:
    result = account([gaussian(2.0, 10)], DELTA)
    assert result.epsilon == min(result.rdp, result.pld)
    assert result.method == "pld"
    assert result.pld < result.rdp
    # A single weak Laplace release: both are within 1e-4 of t, whichever wins.
    single = account([laplace(20.0)], DELTA)
    assert single.epsilon == min(single.rdp, single.pld) <= 0.05


def test_edges() -> None:
    assert account([], DELTA) == Account(0.0, DELTA, "none", 0.0, 0.0)
    assert epsilon_rdp([], DELTA) == 0.0
    for bad in (unnoised_release("evaluation"), gaussian(0.0), laplace(0.0)):
        result = account([gaussian(1.0), bad], DELTA)
        assert result.epsilon == result.rdp == result.pld == math.inf
        assert epsilon_rdp([bad], DELTA) == math.inf
        assert np.all(np.isinf(rdp_curve([bad], [2.0])))
    silent = Release(mechanism="gaussian", scale=1.0, sensitivity=0.0)
    assert account([silent], DELTA).epsilon == 0.0
    # So much noise that delta alone covers it.
    assert account([gaussian(1e9)], DELTA).epsilon == 0.0
    # So little that the loss is astronomic, yet finite and quick; and the other extreme.
    assert 1e7 < account([gaussian(1e-4)], DELTA).epsilon < 1e9
    for multiplier in (1e-90, 1e-20, 1e-6, 1e-3, 1e12, 1e100):
        started = time.perf_counter()
        both = account([gaussian(multiplier), laplace(multiplier, 3)], DELTA)
        assert both.epsilon <= both.rdp
        assert time.perf_counter() - started < 10


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_is_checked(delta: float) -> None:
    for call in (account, epsilon_rdp):
        with pytest.raises(ValueError, match="delta"):
            call([gaussian(1.0)], delta)


def test_unsupported_combinations_refuse() -> None:
    for sampling in ("poisson", "without-replacement", "shuffled"):
        with pytest.raises(UnsupportedAccountError, match="sampling"):
            account([replace(gaussian(1.0), sampling=sampling)], DELTA)
    mixed = [gaussian(1.0), replace(gaussian(1.0), relation="add-remove")]
    with pytest.raises(UnsupportedAccountError, match="composed"):
        epsilon_rdp(mixed, DELTA)


@pytest.mark.parametrize(("updates", "rdp", "pld"), [(1, 56.6, 53.7), (10, 349.9, 339.5)])
def test_totals_of_dp_iadmm_at_its_printed_settings(updates: int, rdp: float, pld: float) -> None:
    """20000 rounds of E inner Laplace releases of .05 each, at delta 1e-5, in under 10 s."""
    from privet.privacy import as_printed, dp_iadmm_release

    release = dp_iadmm_release(
        clip=1.0, num_examples=1000, noise_scale=2.0 / 1000 / 0.05, local_updates=updates,
        mechanism="laplace",
    )  # fmt: skip
    started = time.perf_counter()
    result = account([release] * 20000, DELTA)
    assert time.perf_counter() - started < 10
    assert result.rdp == pytest.approx(rdp, rel=0.01)
    assert result.pld == pytest.approx(pld, rel=0.01)
    assert result.epsilon == result.pld
    assert as_printed.dp_iadmm_epsilon(0.05) == 0.05


def test_very_long_runs_stay_quick_and_pessimistic() -> None:
    """Ten million weak releases: by the central limit theorem close to a Gaussian of the same."""
    started = time.perf_counter()
    result = account([laplace(1000.0, 10**7)], DELTA)
    assert time.perf_counter() - started < 10
    limit = account([gaussian(1 / math.sqrt(1e7 * 1e-6))], DELTA).pld
    assert limit * 0.995 <= result.pld <= limit * 1.02


def test_many_distinct_laplace_releases_are_rounded_up_only() -> None:
    """Against the composition of all 200 distributions without any grouping."""
    from dp_accounting import pld

    multipliers = [10.0 + j / 10 for j in range(200)]
    result = account([laplace(m) for m in multipliers], DELTA)
    exact = functools.reduce(
        lambda left, right: left.compose(right),
        (
            pld.privacy_loss_distribution.from_laplace_mechanism(
                m, value_discretization_interval=1e-3
            )
            for m in multipliers
        ),
    ).get_epsilon_for_delta(DELTA)
    assert exact * (1 + 1e-4) < result.pld < exact * 1.01


def test_veto_speed() -> None:
    """The closed form takes well under a millisecond for a homogeneous run (best of 50)."""
    releases = [gaussian(10.0, 500)]
    best = math.inf
    for _ in range(50):
        started = time.perf_counter()
        epsilon_rdp(releases, DELTA)
        best = min(best, time.perf_counter() - started)
    assert best < 1e-3
