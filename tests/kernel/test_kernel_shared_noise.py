"""Noise that agents share out: the law of the sum, what it hides, and that the ring holds it."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats
from scipy.interpolate import BSpline

from privet.kernel import (
    Clipped,
    Facts,
    NoiseError,
    Perturber,
    Release,
    SeededNoise,
    Totals,
    UnsupportedAccountError,
    shared_spacing,
)
from privet.kernel.events import SHARED_GRID
from privet.wire import ring

Array = NDArray[np.float64]
REACH = 60


def rounded(deviation: float) -> Array:
    """Return the probabilities of rint(g) at -REACH..REACH, g normal."""
    edges = np.arange(-REACH, REACH + 2) - 0.5
    upper = stats.norm.sf(edges / deviation)
    lower = stats.norm.cdf(edges / deviation)
    return np.where(edges[:-1] >= 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])


def of_sum(deviation: float, count: int) -> Array:
    """Return the probabilities of the sum of so many rounded draws, from the middle outwards."""
    law = rounded(deviation)
    for _ in range(count - 1):
        law = np.convolve(law, rounded(deviation))
    return law


def of_rounded_sum(deviation: float, count: int) -> Array:
    """Return the probabilities of rint(G + V) by quadrature: V is count - 1 uniforms.

    G + V and the uniform that rint amounts to have the density of G with a cardinal B-spline of
    degree count - 1, which is that of a sum of count uniforms.
    """
    spline = BSpline.basis_element(np.arange(count + 1) - count / 2, extrapolate=False)
    wide = deviation * math.sqrt(count)
    nodes, weights = special.roots_legendre(64)
    places = np.arange(-REACH * count, REACH * count + 1)
    total = np.zeros(places.size)
    for piece in range(count):  # a polynomial between two knots
        points = piece - count / 2 + (nodes + 1) / 2
        shares = weights / 2 * spline(points)
        total += (shares * stats.norm.pdf(places[:, None] - points, scale=wide)).sum(axis=1)
    return total


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("deviation", [0.5, 0.8, 1.1, 1.5])
def test_the_sum_of_rounded_draws_is_a_rounded_sum_up_to_aliasing(
    deviation: float, count: int
) -> None:
    """Total variation at most count^2 exp(-pi^2 a^2); at a = 1/2 it can be seen, at 3/2 hardly."""
    apart = 0.5 * np.abs(of_sum(deviation, count) - of_rounded_sum(deviation, count)).sum()
    alias = count**2 * math.exp(-((math.pi * deviation) ** 2))
    assert apart <= alias + 1e-13
    if deviation == 0.5:
        assert apart > 1e-3


def gaussian_delta(mu: float, epsilon: float) -> float:
    tails = special.log_ndtr(-epsilon / mu + np.array([mu, -mu]) / 2)
    return float(np.exp(tails[0]) - np.exp(epsilon + tails[1]))


def exact_delta(law: Array, shift: int, epsilon: float) -> float:
    """Return sup over events of P - e^epsilon Q, Q being P moved by so many integers."""
    first, second = np.pad(law, (shift, 0)), np.pad(law, (0, shift))
    worst = (first - math.exp(epsilon) * second, second - math.exp(epsilon) * first)
    return max(float(np.maximum(gap, 0).sum()) for gap in worst)


@pytest.mark.parametrize("shift", [1, 3, 8])
@pytest.mark.parametrize(("agents", "colluders"), [(3, 0), (6, 2), (10, 1)])
def test_what_the_honest_agents_noise_hides_is_what_is_charged(
    agents: int, colluders: int, shift: int
) -> None:
    """In one dimension, with a value that moves by whole steps of the grid: exactly."""
    deviation = 1.6
    law = of_sum(deviation, agents - colluders)
    charged = Release(
        "gaussian", scale=deviation, sensitivity=shift, agents=agents, colluders=colluders
    )
    alias = agents**2 * math.exp(-((math.pi * deviation) ** 2)) * 3
    reached, larger = 0.0, deviation * math.sqrt(agents - colluders + 1)
    too_small = False
    for epsilon in np.linspace(0, charged.loss * 4, 25):
        exact, said = exact_delta(law, shift, epsilon), gaussian_delta(charged.loss, epsilon)
        assert exact <= said + (1 + math.exp(epsilon)) * alias
        reached = max(reached, exact / said)
        too_small |= exact > 1.05 * gaussian_delta(shift / larger, epsilon) > 1e-9
    assert reached > 0.8
    assert too_small, "with one agent's noise more nothing would be seen"


@given(
    scale=st.floats(-6, 6).map(lambda power: 10.0**power),
    share=st.floats(-3, 3).map(lambda power: 10.0**power),
    dim=st.integers(1, 10**6),
    agents=st.integers(3, 1000),
    colluders=st.integers(0, 1200),
)
def test_the_charge_is_that_of_the_honest_noise_and_twice_the_rounding(
    scale: float, share: float, dim: int, agents: int, colluders: int
) -> None:
    charged = Release(
        "gaussian", scale=scale, sensitivity=scale * share, agents=agents, colluders=colluders
    )
    honest = max(agents - colluders, 1)
    step = shared_spacing(scale, dim)
    assert math.frexp(step)[0] == 0.5
    assert Fraction(step) ** 2 * dim <= (Fraction(scale) * Fraction(SHARED_GRID) / 2) ** 2 * (
        1 + Fraction(1, 2**50)
    )
    moved = scale * share + 2 * step * math.sqrt(dim)
    assert charged.loss >= moved / (scale * math.sqrt(honest)) * (1 - 1e-12)
    assert charged.loss <= (share + SHARED_GRID) / math.sqrt(honest) * (1 + 1e-12)
    assert charged.noise_multiplier == pytest.approx(math.sqrt(honest) / share)
    assert Release.from_dict(charged.to_dict()) == charged


def test_with_ten_of_a_hundred_colluding_the_noise_is_a_trusted_servers_within_6_percent() -> None:
    """Of one loss: the deviation of all shares together over that of one noise on the sum."""
    alone = Release("gaussian", scale=1.0, sensitivity=0.7)
    share = 1.0540925533894598 / 10.0  # sqrt(100 / 90), each of 100 agents its part
    loss = replace(alone, scale=share, agents=100, colluders=10).loss
    assert loss == pytest.approx(alone.loss, rel=1e-3)
    assert share * math.sqrt(100) < 1.06


@settings(max_examples=40)
@given(data=st.data(), dim=st.integers(1, 20), agents=st.integers(3, 12))
def test_the_ring_holds_the_integers_of_the_grid(
    data: st.DataObject, dim: int, agents: int
) -> None:
    """The sum of what leaves is, in whole numbers, that of all values, draws and shifts."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    scale = 10.0 ** rng.uniform(-4, 4)
    step = shared_spacing(scale, dim)
    charged = Release("gaussian", scale=scale, sensitivity=scale / 3, agents=agents)
    facts = Facts(10, 10.0, dim, agents=agents)
    wanted, total = [0] * dim, None
    for place in range(agents):
        value = rng.standard_normal(dim) * scale * 10.0 ** rng.uniform(-3, 3)
        public = rng.standard_normal(dim).astype(rng.choice(["f4", "f8"])) * 7
        noise = Perturber(charged, SeededNoise(place), facts)
        noised = noise.perturb(Clipped(value, scale / 3, "l2")) + noise.beside(public)
        draws = SeededNoise(place).gaussian((1, dim), scale)[0]
        for at in range(dim):
            parts = (value[at], draws[at], public[at])
            wanted[at] += sum(round(Fraction(float(part)) / Fraction(step)) for part in parts)
        words = ring.encode({"g": noised / (step * ring.UNIT)}, agents)
        if total is None:
            total = words
        else:
            ring.add(total, words)
    assert total is not None
    assert total.words.view(np.int64).tolist() == wanted
    mean = ring.decode(total)["g"] * (step * ring.UNIT)
    assert mean.tolist() == [float(Fraction(number) * Fraction(step)) for number in wanted]


def test_public_numbers_that_a_sum_cannot_hold_are_refused() -> None:
    charged = Release("gaussian", scale=1.0, sensitivity=1.0, agents=3)
    noise = Perturber(charged, SeededNoise(0), Facts(10, 10.0, 1, agents=3))
    farthest = 2.0**45 * shared_spacing(1.0, 1)
    assert noise.beside(np.array([farthest])) == farthest
    with pytest.raises(NoiseError, match="too large"):
        noise.beside(np.array([2 * farthest]))
    # A value is held, so that no refusal tells of it.
    held = noise.perturb(Clipped(np.array([1e300]), 1.0, "l2"))
    assert abs(held[0] - farthest) < 20


def test_every_upload_of_a_large_federation_fits_whatever_the_value() -> None:
    dim, agents = 2, 100_000
    charged = Release("gaussian", scale=1.0, sensitivity=1.0, agents=agents)
    noise = Perturber(charged, SeededNoise(0), Facts(10, 10.0, dim, agents=agents))
    step = shared_spacing(1.0, dim)
    public = np.full(dim, 2.0**45 * step)
    noised = noise.perturb(Clipped(np.full(dim, np.finfo("f8").max), 1.0, "l2"))
    ring.encode({"g": (noised + noise.beside(public)) / (step * ring.UNIT)}, agents)


def test_accounts_against_different_colluders_do_not_mix() -> None:
    one = Release("gaussian", scale=1.0, sensitivity=1.0, agents=10, colluders=2)
    other = Release("gaussian", scale=1.0, sensitivity=1.0, agents=10, colluders=3)
    alone = Release("gaussian", scale=1.0, sensitivity=1.0)
    totals = Totals().add(alone).add(one)
    assert totals.colluders == 2
    assert Totals.from_dict(totals.to_dict()) == totals
    assert totals.mu == pytest.approx(
        math.sqrt((1 + 2**-12) ** 2 + (1 + SHARED_GRID) ** 2 / 8), rel=1e-12
    )
    with pytest.raises(UnsupportedAccountError, match="2 and 3 colluders"):
        totals.add(other)
    for wrong in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="totals"):
            Totals.from_dict({**totals.to_dict(), "colluders": wrong})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"agents": 0}, "agents"),
        ({"agents": 2.0}, "agents"),
        ({"agents": 3, "colluders": -1}, "colluders"),
        ({"agents": 3, "colluders": True}, "colluders"),
        ({"agents": 3, "mechanism": "laplace", "norm": "l1"}, "agents"),
        ({"agents": 3, "steps": 2}, "agents"),
    ],
)
def test_releases_that_cannot_be_shared_are_refused(changes: dict, field: str) -> None:
    with pytest.raises(ValueError, match=f"release field '{field}'"):
        Release(**{"mechanism": "gaussian", "scale": 1.0, "sensitivity": 1.0, **changes})
