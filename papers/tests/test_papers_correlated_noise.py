"""The theorem on correlated noise (docs/identities.md), on mechanisms that were drawn at random."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def largest(x: Matrix, rng: np.random.Generator) -> float:
    """Return the largest sum of X_jk <d_j, d_k> over vectors of length 1, by coordinate ascent.

    In as many dimensions as there are vectors the ascent ends at the largest: its lifted problem
    has no other maxima.
    """
    d = rng.standard_normal(x.shape)
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    before, value = -np.inf, float(np.sum(x * (d @ d.T)))
    while value - before > 1e-12 * value:
        for k in range(len(x)):
            pull = x[k] @ d - x[k, k] * d[k]
            if length := float(np.linalg.norm(pull)):
                d[k] = pull / length
        before, value = value, float(np.sum(x * (d @ d.T)))
    return value


def error(x: Matrix, a: Matrix, rng: np.random.Generator) -> float:
    """Return E(C) of X = C'C."""
    return largest(x, rng) * float(np.trace(a @ np.linalg.solve(x, a.T)))


def prefix(rounds: int) -> Matrix:
    return np.tril(np.ones((rounds, rounds)))


@pytest.mark.parametrize("kind", ["prefix sums", "momentum", "any"])
def test_no_mechanism_is_better_than_independent_noise(kind: str) -> None:
    rng = np.random.default_rng(1)
    nearest = np.inf
    for _ in range(60):
        rounds = int(rng.integers(2, 9))
        a = prefix(rounds)
        if kind == "momentum":
            a = a @ np.tril(0.9 ** np.subtract.outer(np.arange(rounds), np.arange(rounds)))
        elif kind == "any":
            a = rng.standard_normal((rounds, rounds))
        lengths = np.linalg.norm(a, axis=0)
        least = float(lengths.sum()) ** 2
        c = np.diag(np.sqrt(lengths)) + rng.choice([0.01, 0.1, 1.0]) * np.tril(
            rng.standard_normal((rounds, rounds))
        )
        found = error(c.T @ c, a, rng)
        assert found >= least * (1 - 1e-9)
        nearest = min(nearest, found / least)
        assert error(np.diag(lengths), a, rng) == pytest.approx(least, rel=1e-9)
    assert nearest < 1.02


def test_a_schedule_gains_at_most_9_over_8() -> None:
    rounds = np.arange(1, 200_001, dtype=float)
    gain = rounds**2 * (rounds + 1) / 2 / np.cumsum(np.sqrt(rounds)) ** 2
    assert gain[0] == 1.0
    assert (gain < 9 / 8).all()
    assert gain[-1] > 1.1249


@pytest.mark.parametrize(("rounds", "times"), [(16, 1.43), (32, 1.53), (64, 1.62)])
def test_the_square_root_of_prefix_sums_costs_more(rounds: int, times: float) -> None:
    """Its entries are positive, so that the worst changes all point the same way."""
    first = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, rounds))])
    places = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    root = np.where(places >= 0, first[np.abs(places)], 0.0)
    a = prefix(rounds)
    assert np.allclose(root @ root, a)
    x = root.T @ root
    assert largest(x, np.random.default_rng(0)) == pytest.approx(x.sum(), rel=1e-9)
    independent = rounds * float(np.sum(a * a))
    found = np.sqrt(x.sum() * np.trace(a @ np.linalg.solve(x, a.T)) / independent)
    assert found == pytest.approx(times, abs=0.005)
