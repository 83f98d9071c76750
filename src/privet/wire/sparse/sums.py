"""Element-wise sums over index sets, one message at a time: memory O(d) however many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .codec import SparseVector
from .index_coding import SparseError


class SparseSum:
    """Sums sparse vectors and counts, for every coordinate, how many sent it.

    Sum and count are the real and the imaginary part of one array: a scattered access costs the
    same for both as for one. What is added must come from ``decode`` or hold indices that all
    differ; only then is a buffered ``sum[indices] += values`` the sum.

    Parameters
    ----------
    dim : int
    dtype : float32 or float64
        Of the sums.
    """

    def __init__(self, dim: int, dtype: DTypeLike = np.float64) -> None:
        self.dim = dim
        self.dtype = np.dtype(dtype)
        self.added = 0
        self._whole = 0
        self._dense: NDArray[Any] | None = None
        kind = np.complex64 if self.dtype == np.float32 else np.complex128
        self._sparse: NDArray[Any] | None = None
        self._term: NDArray[Any] = np.zeros(0, kind)

    def add(self, vector: SparseVector) -> None:
        """Add one vector (raises ``SparseError`` if its length is another)."""
        if vector.dim != self.dim:
            raise SparseError(f"vector of length {vector.dim}, expected {self.dim}")
        self.added += 1
        if vector.positions is None:
            if self._dense is None:
                self._dense = np.zeros(self.dim, self.dtype)
            self._dense += vector.values
            self._whole += 1
            return
        if self._sparse is None:
            self._sparse = np.zeros(self.dim, self._term.dtype)
        if len(self._term) != len(vector.values):
            self._term = np.full(len(vector.values), 1j, self._term.dtype)
        self._term.real = vector.values
        self._sparse[vector.positions] += self._term

    @property
    def sums(self) -> NDArray[Any]:
        """The sums, shape (d,), as a new array."""
        total: NDArray[Any] = np.zeros(self.dim, self.dtype)
        if self._dense is not None:
            total += self._dense
        if self._sparse is not None:
            total += np.real(self._sparse)
        return total

    @property
    def counts(self) -> NDArray[Any]:
        """Number of vectors that held each coordinate, shape (d,), in the dtype of the sums."""
        total: NDArray[Any] = np.full(self.dim, self._whole, self.dtype)
        if self._sparse is not None:
            total += self._sparse.imag
        return total

    def mean(self) -> NDArray[Any]:
        """Return sum / count, 0 where nobody sent the coordinate; BSDP-FedPDM eq. (23)."""
        total = self.sums
        total /= np.maximum(self.counts, 1)
        return total
