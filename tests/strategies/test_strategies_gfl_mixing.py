"""The exchange between servers against eqs. (8) and (47) term by term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from privet.core import ConfigError
from privet.kernel import SystemNoise
from privet.strategies.gfl.graph import graph_edges, metropolis, neighbours
from privet.strategies.gfl.mixing import LocalMixer, MixingInput, Perturbation, combine
from privet.strategies.gfl.noise import SampledNoise
from support.graphs import without_edges

Array = NDArray[Any]
UNITS, DIM = 6, 3
WEIGHTS = metropolis(graph_edges("erdos-renyi", UNITS, seed=2, probability=0.5), UNITS)


class Given:
    """Noise from a table: ``shared`` (P, d), ``links`` (receiver, sender, d)."""

    def __init__(self, shared: Array, links: Array) -> None:
        self.table, self.links = shared, links

    def shared(self, unit: int, round_: int, dim: int) -> Array:
        return self.table[unit]

    def independent(
        self, unit: int, round_: int, receivers: Sequence[int], dim: int
    ) -> dict[int, Array]:
        return {receiver: self.links[receiver, unit] for receiver in receivers}


def draws(seed: int, units: int = UNITS) -> tuple[Array, Given]:
    rng = np.random.default_rng(seed)
    noise = Given(rng.standard_normal((units, DIM)), rng.standard_normal((units, units, DIM)))
    return rng.standard_normal((units, DIM)), noise


def brute_force(weights: Array, psi: Array, noise: Given, kind: str) -> Array:
    """Eq. (8), with g_pm written out link by link as eq. (47) gives it."""
    units = len(weights)
    mixed = np.zeros_like(psi)
    for p in range(units):
        for m in range(units):
            g = np.zeros(DIM)
            if kind == "homomorphic":
                own = weights[p, p]
                g = noise.table[m] if m != p else -(1 - own) / own * noise.table[p]
            elif kind == "random" and m != p:
                g = noise.links[p, m]
            mixed[p] += weights[p, m] * (psi[m] + g)
    return mixed


def exchange(
    kind: str, psi: Array, noise: Any, weights: Array = WEIGHTS, cut: Any = None
) -> tuple[MixingInput, Any]:
    mixer = LocalMixer(weights, cut)
    sent = Perturbation(kind, noise).outgoing(1, mixer.units, psi, mixer.weights)
    return sent, mixer.mix(1, sent)


@pytest.mark.parametrize("kind", ["none", "random", "homomorphic"])
def test_every_perturbation_is_the_papers_sum(kind: str) -> None:
    psi, noise = draws(0)
    _, mixed = exchange(kind, psi, noise)
    np.testing.assert_allclose(
        mixed.models, brute_force(WEIGHTS, psi, noise, kind), rtol=0, atol=1e-14
    )
    assert mixed.dropped == ()
    assert mixed.notes == ()
    assert mixed.residual == 0


@given(st.integers(0, 10_000), st.sampled_from(["ring", "star", "grid", "complete"]), st.data())
@settings(max_examples=50, deadline=None)
def test_homomorphic_noise_cancels_also_when_edges_fail(
    seed: int, kind: str, data: st.DataObject
) -> None:
    edges = graph_edges(kind, UNITS)
    failed = data.draw(st.sets(st.sampled_from(edges)))
    psi, noise = draws(seed)
    weights = metropolis(edges, UNITS)
    _, mixed = exchange("homomorphic", psi, noise, weights, {1: failed})
    np.testing.assert_allclose(mixed.models.mean(axis=0), psi.mean(axis=0), rtol=0, atol=1e-14)
    wanted = brute_force(without_edges(weights, failed), psi, noise, "homomorphic")
    np.testing.assert_allclose(mixed.models, wanted, rtol=0, atol=1e-13)
    assert mixed.dropped == tuple(sorted(failed))
    assert len(mixed.notes) == len(failed)


def test_what_does_not_cancel() -> None:
    """Random noise moves the centroid; so would homomorphic noise if the own model stayed clean."""
    psi, noise = draws(3)
    _, mixed = exchange("random", psi, noise)
    left = sum(
        WEIGHTS[p, m] * noise.links[p, m] for p in range(UNITS) for m in range(UNITS) if p != m
    )
    np.testing.assert_allclose(mixed.models.sum(axis=0) - psi.sum(axis=0), left, atol=1e-13)
    assert np.linalg.norm(left) > 0.1
    own = np.diag(WEIGHTS)[:, None]
    unbalanced = WEIGHTS @ (psi + noise.table) - own * noise.table
    residual = unbalanced.sum(axis=0) - psi.sum(axis=0)
    np.testing.assert_allclose(residual, ((1 - own) * noise.table).sum(axis=0), atol=1e-13)
    assert np.linalg.norm(residual) > 0.1


@pytest.mark.parametrize("kind", ["random", "homomorphic"])
def test_messages_are_all_that_a_receiver_needs(kind: str) -> None:
    """A unit that has its own model and noise and its neighbours' messages computes the same."""
    psi, noise = draws(5)
    sent, mixed = exchange(kind, psi, noise)
    for p in range(UNITS):
        received = {m: sent.message(m, p) for m in reversed(neighbours(WEIGHTS, p))}
        own = noise.table[p] if kind == "homomorphic" else None
        alone = combine(WEIGHTS[p], p, psi[p], own, received)
        assert np.array_equal(alone, mixed.models[p])
        for m, message in received.items():
            assert not np.allclose(message, psi[m])
    with pytest.raises(ValueError, match="does not travel"):
        combine(WEIGHTS[0], 0, psi[0], None, {0: psi[0]})


@pytest.mark.parametrize("kind", ["random", "homomorphic"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_seeded_noise_does_not_depend_on_who_hosts_the_unit(kind: str, mechanism: str) -> None:
    psi, _ = draws(1)
    noise = SampledNoise(0.3, mechanism, seed=11)
    perturbation = Perturbation(kind, noise)
    together = perturbation.outgoing(4, range(UNITS), psi, WEIGHTS)
    for unit in range(UNITS):
        alone = perturbation.outgoing(4, (unit,), psi[unit : unit + 1], WEIGHTS)
        for receiver in neighbours(WEIGHTS, unit):
            one, other = together.message(unit, receiver), alone.message(unit, receiver)
            assert np.array_equal(one, other)
    later = perturbation.outgoing(5, range(UNITS), psi, WEIGHTS)
    receiver = neighbours(WEIGHTS, 0)[0]
    assert not np.allclose(later.message(0, receiver), together.message(0, receiver))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("seed", [7, -1])
def test_noise_has_the_variance_that_was_asked_for(mechanism: str, seed: int) -> None:
    """Kolmogorov-Smirnov at a false-alarm rate of 1e-7 for the system's noise."""
    variance = 0.4
    noise = SampledNoise(variance, mechanism, seed, SystemNoise())
    found = np.concatenate(
        [
            noise.shared(0, 1, 24_000),
            *noise.independent(1, 1, (0, 2), 12_000).values(),
        ]
    )
    law = (
        stats.norm(scale=variance**0.5)
        if mechanism == "gaussian"
        else stats.laplace(scale=(variance / 2) ** 0.5)
    )
    assert law.var() == pytest.approx(variance)
    assert stats.kstest(found, law.cdf).pvalue > 1e-7


def test_single_precision_stays_single() -> None:
    psi, noise = draws(2)
    sent, mixed = exchange("homomorphic", psi.astype("f4"), noise)
    assert mixed.models.dtype == np.float32
    assert sent.message(0, 1).dtype == np.float32


def test_closing_without_noise_shows_the_last_models() -> None:
    """Who read all messages and then one clean w_p knows psi_p: g_p = (A M)_p - w_p."""
    psi, noise = draws(8)
    sent, mixed = exchange("homomorphic", psi, noise)
    messages = np.stack([sent.message(p, (p + 1) % UNITS) for p in range(UNITS)])
    g = (WEIGHTS @ messages)[2] - mixed.models[2]
    np.testing.assert_allclose(messages[2] - g, psi[2], atol=1e-13)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="gfl has none, random, homomorphic"):
        Perturbation("objective", SampledNoise(1.0, seed=0))
    with pytest.raises(ConfigError, match="needs a source of noise"):
        Perturbation("random")
    with pytest.raises(ConfigError, match=r"noise-variance = 0\.0"):
        SampledNoise(0.0, seed=0)
    with pytest.raises(ConfigError, match="noise-seed"):
        SampledNoise(1.0)
    with pytest.raises(ConfigError, match="column"):
        LocalMixer([[0.5, 0.4], [0.4, 0.5]])
