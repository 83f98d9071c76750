"""The codecs: bytes against the entropy, speed of coding, selecting and summing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core.threads import pin_blas_threads
from privet.kernel import stream
from privet.wire.sparse import decode, encode
from privet.wire.sparse.selection import rand_k, top_k
from privet.wire.sparse.sums import SparseSum
from privet.wire.value_coding import decode_values, encode_values

from .figure import Figure, Show, best_seconds

DIMS = (785, 7850, 100_000, 1_000_000)
SHARES = (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0)
DIM, COUNT, MESSAGES = 1_000_000, 100_000, 100


def bench_wire(show: Show, *, quick: bool = False) -> None:
    """Measure sizes on random sets, and speeds at d = 1e6, k/d = 0.1."""
    pin_blas_threads()
    rng = stream(0, "bench")
    for dim in DIMS:
        for share in SHARES[2:5] if quick else SHARES:
            _size(show, rng, dim, max(1, int(share * dim)))
    repeats = 5 if quick else 25
    _coding(show, rng, repeats)
    for kind in ("f4", "f8"):
        _selecting(show, rng, kind, repeats)
    _summing(show, rng, 3 if quick else 9)
    for dim in (7850, DIM):
        for kind in ("f4", "f8"):
            _values(show, rng, dim, kind, repeats)


def _size(show: Show, rng: np.random.Generator, dim: int, k: int) -> None:
    indices = np.sort(rng.choice(dim, k, replace=False))
    size = len(encode(rng.standard_normal(k).astype("f4"), indices, dim))
    bits = math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)
    bound = 4 * k + bits / math.log(2) / 8
    limit = 1.005 * bound + 32 if 2 * k <= dim else 1.03 * bound
    case = f"d = {dim}, k/d = {k / dim:.3g}"
    show(Figure("wire", case, "bytes / bytes allowed", size / limit, 1.0, at_least=False))


def _coding(show: Show, rng: np.random.Generator, repeats: int) -> None:
    indices = np.sort(rng.choice(DIM, COUNT, replace=False))
    values = rng.standard_normal(COUNT).astype("f4")
    data = encode(values, indices, DIM)
    there = best_seconds(lambda: encode(values, indices, DIM), repeats)
    back = best_seconds(lambda: decode(data, max_dim=DIM), repeats)
    rate = 4 * COUNT / (there + back) / 1e6
    case = "d = 1e6, k/d = 0.1"
    show(Figure("wire", case, "encode, ms", there * 1e3))
    show(Figure("wire", case, "decode, ms", back * 1e3))
    show(Figure("wire", case, "encode + decode, MB/s of int32 indices", rate, 100.0))
    draw = best_seconds(lambda: rand_k(1, DIM, COUNT), repeats)
    show(Figure("wire", case, "rand-k by seed, ms", draw * 1e3))


def _values(show: Show, rng: np.random.Generator, dim: int, kind: str, repeats: int) -> None:
    values, reference = rng.standard_normal((2, dim)).astype(kind)
    for bits in (4, 8, 16):
        coded = encode_values(values, 1, reference, bits=bits)
        assert coded is not None
        data = coded.data
        there = best_seconds(lambda b=bits: encode_values(values, 1, reference, bits=b), repeats)  # type: ignore[misc]
        back = best_seconds(lambda d=data: decode_values(d, dim, values.dtype, reference), repeats)  # type: ignore[misc]
        case = f"d = {dim}, {kind}, value-bits = {bits}"
        size = values.nbytes / 1e6
        show(Figure("wire", case, "bits of a normal number", 8 * len(data) / dim))
        # Small vectors are bound by calls, and code in a fraction of a millisecond.
        goal = 100.0 if dim == DIM else None
        show(Figure("wire", case, "encode, MB/s", size / there, goal))
        show(Figure("wire", case, "decode, MB/s", size / back, goal))


def _selecting(show: Show, rng: np.random.Generator, kind: str, repeats: int) -> None:
    dense = rng.standard_normal(DIM).astype(kind)
    ties = np.round(4 * dense) / 4
    sparse = np.where(rng.random(DIM) < 0.05, dense, 0).astype(kind)

    def plain(vector: NDArray[Any]) -> NDArray[Any]:
        return np.argpartition(np.abs(vector), DIM - COUNT)[DIM - COUNT :]

    for name, vector in (("normal", dense), ("many ties", ties), ("95 % zeros", sparse)):
        ours, theirs = math.inf, math.inf
        for _ in range(repeats):  # interleaved, so that other work disturbs both alike
            ours = min(ours, best_seconds(lambda v=vector: top_k(v, COUNT), 1))  # type: ignore[misc]
            theirs = min(theirs, best_seconds(lambda v=vector: plain(v), 1))  # type: ignore[misc]
        show(
            Figure(
                "wire",
                f"d = 1e6, {kind}, {name}",
                "top-k / argpartition",
                ours / theirs,
                1.2,
                at_least=False,
            )
        )


def _summing(show: Show, rng: np.random.Generator, repeats: int) -> None:
    data = [
        encode(rng.standard_normal(COUNT).astype("f4"), rand_k(i, DIM, COUNT), DIM)
        for i in range(MESSAGES)
    ]
    vectors = [decode(one, max_dim=DIM) for one in data]

    def bare() -> NDArray[Any]:
        total = np.zeros(DIM)
        for vector in vectors:
            total[vector.indices] += vector.values
        return total

    def ours() -> NDArray[Any]:
        total = SparseSum(DIM, np.float32)
        for vector in vectors:
            total.add(vector)
        return total.mean()

    best, reference = math.inf, math.inf
    for _ in range(repeats):
        best = min(best, best_seconds(ours, 1))
        reference = min(reference, best_seconds(bare, 1))
    case = "100 messages of 1e5 of 1e6"
    show(Figure("wire", case, "bare loop acc[idx] += val, ms", reference * 1e3))
    show(
        Figure("wire", case, "element-wise mean / bare loop", best / reference, 1.5, at_least=False)
    )
