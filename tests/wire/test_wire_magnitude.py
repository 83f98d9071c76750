"""Bounds of an array's numbers: never too small, whatever the numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privet.wire import finite, magnitude_bound

ANY = st.sampled_from(["f4", "f8"]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=20),
        elements=hnp.from_dtype(np.dtype(dtype)),
    )
)


@given(ANY)
def test_bound_is_never_too_small(array: Any) -> None:
    """Infinities, numbers whose squares overflow or vanish, and no numbers at all included."""
    bound = magnitude_bound(array)
    assert not np.any(np.abs(array) > bound)
    assert np.isnan(bound) == np.isnan(array).any()
    assert finite(array) == bool(np.isfinite(array).all())


@given(st.sampled_from(["f4", "f8"]), st.integers(1, 2000), st.floats(1e-10, 1e10))
def test_bound_is_about_twice_the_norm(dtype: str, count: int, size: float) -> None:
    array = np.full(count, size, dtype)
    assert magnitude_bound(array) == pytest.approx(2.0 * size * np.sqrt(count), rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite(bad: float) -> None:
    assert finite(np.zeros(0))
    assert finite(np.full(100, 1e308))  # the sum overflows, the numbers are finite
    array = np.zeros(50)
    array[17] = bad
    assert not finite(array)
    assert not finite(np.array([np.inf, -np.inf]))
