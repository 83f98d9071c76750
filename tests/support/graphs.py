"""Combination matrices of graphs in which edges fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def without_edges(weights: NDArray[Any], failed: Iterable[tuple[int, int]]) -> NDArray[Any]:
    """Return the weights that are used while edges fail: both ends add theirs to their own."""
    kept = weights.copy()
    for p, m in failed:
        kept[p, m] = kept[m, p] = 0.0
    np.fill_diagonal(kept, 0.0)
    return kept + np.diag(1.0 - kept.sum(axis=1))
