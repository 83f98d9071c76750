"""Different values, how many there are of each, and which each is: those of ``np.unique``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privet.core import mapped, ordered

_DRAWN = np.random.default_rng(0)
_ARRAYS: dict[str, Any] = {
    "none": np.empty(0),
    "one": np.array([2.5]),
    "equal": np.full(50, -1.0),
    "different": _DRAWN.standard_normal(1000),
    "tied": _DRAWN.integers(0, 9, 1000).astype(float),
    "missing": np.where(_DRAWN.random(1000) < 0.3, np.nan, _DRAWN.integers(0, 9, 1000)),
    "missing alone": np.full(7, np.nan),
    "infinite": np.array([np.inf, 1.0, -np.inf, np.inf, np.nan]),
    "digests": _DRAWN.integers(0, 2**64, 1000, np.uint64) >> np.uint64(56),
    "signs of zero": np.array([0.0, -0.0, 1.0, -0.0]),
}


@pytest.mark.parametrize("name", _ARRAYS)
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_they_are_those_of_unique(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "BLOCK", 16 * block)
    values = _ARRAYS[name]
    each, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    found, own = ordered.counted(values)
    np.testing.assert_array_equal(found, each)
    np.testing.assert_array_equal(own, counts)
    np.testing.assert_array_equal(ordered.places(values), inverse)


@pytest.mark.parametrize("several", [1, 7, 5000])
@pytest.mark.parametrize("rows", [0, 1, 2000])
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_pairs_are_numbered_as_unique_does(
    several: int, rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "BLOCK", 16 * block)
    first = _DRAWN.integers(0, 5, rows).astype(np.int32)
    second = _DRAWN.integers(0, several, rows).astype(np.int32)
    _, inverse = np.unique(first * several + second, return_inverse=True)
    found = ordered.paired(first, second, several)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, inverse)
