"""Which k of d coordinates travel: the largest, or a random set both sides can draw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.kernel.streams import hash_of

from .index_coding import Indices, SparseError

_SAMPLE = 1 << 12
"""Entries looked at to find those that may be chosen."""
_BLOCK = 1 << 15
"""Entries searched for ties at a time."""


def top_k(vector: NDArray[Any], k: int) -> Indices:
    """Return the indices of the k entries of largest magnitude, ascending.

    Always exactly k: ties, and zeros where there are fewer than k others, go to the smaller index.

    Parameters
    ----------
    vector : float array (d,)
    k : int
        0 <= k <= d.

    Raises
    ------
    SparseError
        If k is out of range, or a choice has to be made among numbers of which one is a NaN.
    """
    dim = vector.size
    if not 0 <= k <= dim:
        raise SparseError(f"top-k: k = {k}, expected 0 ... {dim}")
    if k in (0, dim):
        return np.arange(k, dtype=np.intp)
    if np.isnan(vector.max()):
        raise SparseError("top-k: the vector holds numbers that are not numbers")
    some = _candidates(vector, k)
    if some is None:
        return _largest(vector, k)
    return some if len(some) == k else some[_largest(vector[some], k)]


def _candidates(vector: NDArray[Any], k: int) -> Indices | None:
    """Return indices, ascending, that hold the k sought, None where those are not few.

    A partition of all is slow, and slower among many equal entries, such as zeros. A magnitude that
    a few more than k entries have is found in a sample.
    """
    dim = vector.size
    sample = np.abs(vector[:: 1 + dim // _SAMPLE])
    share = k / dim * len(sample)
    rank, half = math.ceil(share + 4 * math.sqrt(share)), len(sample) // 2
    sample.partition(place := max(len(sample) - rank, half))
    low = sample[place]
    if low > 0:
        if place == half:
            return None
        large = (vector >= low) | (vector <= -low)
        return np.flatnonzero(large) if k <= np.count_nonzero(large) <= dim // 2 else None
    chosen = vector != 0
    missing = k - int(np.count_nonzero(chosen))
    if missing > 0:
        chosen[np.flatnonzero(~chosen)[:missing]] = True
    return np.flatnonzero(chosen)


def _largest(vector: NDArray[Any], k: int) -> Indices:
    """Return the indices of the 0 < k <= d largest magnitudes by partition."""
    size = np.abs(vector)
    size.partition(size.size - k)
    threshold = size[size.size - k]
    # The partition has scrambled the magnitudes; comparing twice is cheaper than a copy of them.
    chosen = (vector >= threshold) | (vector <= -threshold)
    excess, end = int(np.count_nonzero(chosen)) - k, vector.size
    while excess > 0:  # of entries as large as the threshold, those of the largest index go
        start = max(0, end - _BLOCK)
        ties = start + np.flatnonzero(np.abs(vector[start:end]) == threshold)
        dropped = ties[max(0, len(ties) - excess) :]
        chosen[dropped] = False
        excess, end = excess - len(dropped), start
    return np.flatnonzero(chosen)


def _mask(dim: int, k: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return a mask and its first ``dim`` entries, the rest of it true.

    numpy lists the true entries without branching, four times faster, only where more than a tenth
    are true: a mask of k entries just below that is made longer.
    """
    extra = (dim - 10 * k) // 9 + 2 if dim / 50 < k <= dim / 10 else 0
    mask = np.zeros(dim + extra, np.bool_)
    mask[dim:] = True
    return mask, mask[:dim]


def rand_k(seed: int, dim: int, k: int) -> Indices:
    """Return k of ``dim`` indices drawn uniformly without replacement, ascending.

    From the raw 64-bit words of Philox keyed by ``seed``, a stream numpy keeps stable: words modulo
    ``dim`` are taken until k differ (until dim - k are left out, where that is less). The modulo
    favours no index by more than dim / 2^64.

    Parameters
    ----------
    seed : int
        0 ... 2^64 - 1; see ``index_seed``.
    """
    if not 0 <= k <= dim:
        raise SparseError(f"rand-k: k = {k}, expected 0 ... {dim}")
    if not 0 <= seed < 2**64:
        raise SparseError(f"rand-k: seed {seed} is not a 64-bit number")
    source = np.random.Philox(key=seed)
    few = min(k, dim - k)
    mask, drawn = _mask(dim, few)
    missing = few
    while missing:
        # Never more words than are missing: the draw ends exactly at the last index it needs.
        drawn[source.random_raw(missing) % np.uint64(dim)] = True
        missing = few - int(np.count_nonzero(drawn))
    return np.flatnonzero(mask)[:k] if few == k else np.flatnonzero(~drawn)


def index_seed(seed: int, agent: str, round_: int) -> int:
    """Return the seed of an agent's index set in a round; it depends on no data."""
    return int.from_bytes(hash_of(8, seed, "indices", agent, round_), "little")


def budget(count: int, share: float, dim: int) -> int:
    """Return k: ``count`` where it is given, else ``share`` of ``dim``, from 1 to ``dim``."""
    return min(count, dim) if count else max(1, round(share * dim))
