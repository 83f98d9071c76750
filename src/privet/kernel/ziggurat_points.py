"""Privacy-critical: points of a ziggurat decided one by one, without rounding where it matters.

The few points of a draw that are near the curve, or whose first 53 bits leave their cell open.
Python's floats give what arrays would give, bit for bit; its whole numbers have any length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", float, NDArray[np.float64])


class Layer(NamedTuple):
    """One layer's numbers: see the attributes of `privet.kernel.ziggurat.Ziggurat`."""

    width: float
    inner: float
    gain: float
    floor: float
    limit: float
    """Distance from the middle of a cell up to which 53 bits decide on the cell."""


def point(word: int, layers: int) -> tuple[int, float]:
    """Return the layer and the position of a signed 64-bit word: its upper 53 bits, plus 1/2."""
    return word & (layers - 1), (word >> 11) + 0.5


def uniform(word: int) -> float:
    """Return the middle of one of 2^52 equal parts of (0, 1): the word's upper bits."""
    return (_upper(word) + 0.5) * 2.0**-52


def threshold(
    width: Real, gain: Real, floor: Real, share: Real, gaussian: bool, expm1: Callable[[Real], Real]
) -> Real:
    """Return the height of the curve at `share` of a layer's width, 0 and 1 at its edges."""
    rest = 1.0 - share
    drop = width * rest
    if gaussian:
        drop = drop * width * (1.0 - 0.5 * rest)
    return gain * expm1(drop) + floor


def exact_cell(position: float, word: int, width: float, offset: float, ratio: float) -> float:
    """Return `floor((offset + width U) ratio) + 1/2`, computed in whole numbers.

    U is `2^-52 (position - 1/2 + u)` with u the `uniform` of the word; where `position` stands for
    the upper bits of a number, these are the middle of what 105 bits of it leave open.
    """
    (above, below), (start, start_below), (times, over) = (
        number.as_integer_ratio() for number in (width, offset, ratio)
    )
    units = (int(position - 0.5) << 53) + 2 * _upper(word) + 1  # U in units of 2^-105
    whole = (start * below << 105) + above * units * start_below
    return whole * times // (below * start_below * over << 105) + 0.5


def _upper(word: int) -> int:
    return (word & 0xFFFF_FFFF_FFFF_FFFF) >> 12
