"""Which coordinates travel: top-k against a sort, rand-k against what uniform means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from privet.wire.sparse import selection
from privet.wire.sparse.index_coding import SparseError
from privet.wire.sparse.selection import index_seed, rand_k, top_k

RNG = np.random.default_rng(3)


def by_sorting(vector: NDArray[np.float64], k: int) -> list[int]:
    order = sorted(range(len(vector)), key=lambda i: (-abs(vector[i]), i))
    return sorted(order[:k])


values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, np.inf]),
    st.floats(-1e300, 1e300, allow_nan=False),
)


@given(arrays(np.float64, st.integers(0, 80), elements=values), st.data())
def test_top_k_is_that_of_a_sort(vector: NDArray[np.float64], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, vector.size))
    assert top_k(vector, k).tolist() == by_sorting(vector, k)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("zeros", [0.0, 0.4, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("levels", [0, 3])
def test_top_k_on_larger_inputs(dtype: str, zeros: float, levels: int) -> None:
    vector = RNG.standard_normal(20_000).astype(dtype)
    if levels:
        vector = np.round(vector * levels) / levels
    vector[RNG.random(20_000) < zeros] = 0
    for k in (0, 1, 399, 401, 1999, 2000, 2001, 9000, 19_999, 20_000):
        expected = np.sort(np.argsort(-np.abs(vector), kind="stable")[:k])
        assert np.array_equal(top_k(vector, k), expected)


@pytest.mark.parametrize("levels", [1, 3])
def test_ties_over_several_blocks_go_to_the_smaller_index(levels: int) -> None:
    vector = np.round(RNG.standard_normal(150_001) * levels) / levels
    order = np.argsort(-np.abs(vector), kind="stable")
    for k in (1, 1000, 15_000, 31_000, 40_000, 75_000):
        assert np.array_equal(top_k(vector, k), np.sort(order[:k]))
    same = np.full(150_001, -2.0)
    same[140_000] = 3.0
    assert top_k(same, 70_000).tolist() == [*range(69_999), 140_000]


def test_top_k_does_not_gather_most_entries_or_sort_out_what_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal entries, and those of a sample that is smaller than all else, are no few."""
    sizes, largest = [], selection._largest

    def counted(vector: NDArray[np.float64], k: int) -> NDArray[np.intp]:
        sizes.append(vector.size)
        return largest(vector, k)

    monkeypatch.setattr(selection, "_largest", counted)
    dim = 20_000
    small = np.where(np.arange(dim) % (1 + dim // selection._SAMPLE), 1.0, 1e-300)
    for vector in (np.ones(dim), small):
        assert selection._candidates(vector, 100) is None
        assert top_k(vector, 100).tolist() == np.flatnonzero(vector == 1.0)[:100].tolist()
    few = np.zeros(dim)
    few[-50:] = 1.0
    sizes.clear()
    assert top_k(few, 15_000).tolist() == [*range(14_950), *range(dim - 50, dim)]
    assert top_k(few, 50).tolist() == [*range(dim - 50, dim)]
    assert not sizes


@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_top_k_refuses_what_is_not_a_number(zeros: float) -> None:
    vector = np.where(RNG.random(100) < zeros, 0.0, 1.0)
    vector[50] = np.nan
    for k in (1, 60):
        with pytest.raises(SparseError, match="not numbers"):
            top_k(vector, k)
    with pytest.raises(SparseError, match="k = 101"):
        top_k(vector, 101)


@given(st.integers(0, 2**64 - 1), st.integers(1, 300), st.data())
def test_rand_k_is_a_set_of_k(seed: int, dim: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, dim))
    found = rand_k(seed, dim, k)
    assert len(found) == k
    assert len(set(found.tolist())) == k
    assert all(0 <= index < dim for index in found)
    assert found.tolist() == sorted(found.tolist())
    assert np.array_equal(found, rand_k(seed, dim, k))


def test_rand_k_is_the_stream_of_philox_words() -> None:
    words = np.random.Philox(key=5).random_raw(50) % np.uint64(1000)
    found: list[int] = []
    for word in words.tolist():
        if len(set(found)) < 20:
            found.append(word)
    assert rand_k(5, 1000, 20).tolist() == sorted(set(found))


@pytest.mark.parametrize(("dim", "k"), [(20, 3), (20, 10), (20, 16)])
def test_rand_k_takes_every_index_and_pair_equally_often(dim: int, k: int) -> None:
    runs = 6000
    member = np.zeros((runs, dim))
    for seed in range(runs):
        member[seed, rand_k(index_seed(seed, "a", 1), dim, k)] = 1
    share = k / dim
    # Six standard deviations: one false alarm in more than 10^6 runs of this test.
    limit = 6 * np.sqrt(share * (1 - share) / runs)
    assert np.abs(member.mean(axis=0) - share).max() < limit
    pairs = (member.T @ member / runs)[np.triu_indices(dim, 1)]
    both = share * (k - 1) / (dim - 1)
    assert np.abs(pairs - both).max() < 6 * np.sqrt(both * (1 - both) / runs)


def test_seeds_differ_between_agents_and_rounds() -> None:
    seeds = {index_seed(s, a, r) for s in range(3) for a in ("1", "2", "11") for r in range(1, 5)}
    assert len(seeds) == 36
    for seed in (-1, 2**64):
        with pytest.raises(SparseError, match="64-bit"):
            rand_k(seed, 10, 2)
    with pytest.raises(SparseError, match="k = 11"):
        rand_k(1, 10, 11)
