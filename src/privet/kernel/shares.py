"""Privacy-critical: Shamir's shares of 16 bytes, all that an agent gives of a secret at once.

The field, the points 1, 2, ... and the bytes are those of pycryptodome's ``Shamir``, by whose
``combine`` they are opened: a secret is the value at 0 of a polynomial over GF(2^128) of degree
t - 1 whose other coefficients are uniform, so that t shares find it and fewer tell nothing of it
(Shamir, CACM 1979). Its ``split`` multiplies bit by bit, some 9 microseconds a product, which at 64
shares of t = 36 is 20 ms, as long as a mask of 10 million numbers takes. Here the values at all
points are lanes of one integer, and a step of Horner's rule multiplies all of them, each by its
point, of a few bits, as a sum of shifts: .3 ms.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

SHARE_BITS = 128
MOST_POINTS = 127
"""Points of at most seven bits: a product of one and an element has 134."""

_LANE = 144
_ELEMENT = (1 << SHARE_BITS) - 1


class _Lanes(NamedTuple):
    """For the points 1 to n: 1 in each lane; by bit, all ones in lanes whose point has it."""

    ones: int
    with_bit: tuple[int, ...]


@lru_cache(maxsize=16)
def _lanes(count: int) -> _Lanes:
    places = [1 << (_LANE * lane) for lane in range(count)]
    bits = range(count.bit_length())
    with_bit = [
        sum(place for point, place in enumerate(places, 1) if point >> bit & 1) * _ELEMENT
        for bit in bits
    ]
    return _Lanes(sum(places), tuple(with_bit))


def split(threshold: int, count: int, secret: bytes) -> list[bytes]:
    """Return ``count`` shares (16 bytes each) of a secret of 16 bytes, at the points 1, 2, ....

    Privacy: ``threshold - 1`` of them are independent of the secret.

    Raises
    ------
    ValueError
        If no ``threshold`` of the shares are to be had, or more points than `MOST_POINTS`.
    """
    if not 1 <= threshold <= count <= MOST_POINTS or len(secret) != SHARE_BITS // 8:
        raise ValueError(f"a secret of {len(secret)} bytes, {threshold} of {count} shares")
    drawn = os.urandom((threshold - 1) * len(secret))
    coefficients = [drawn[at : at + 16] for at in range(0, len(drawn), 16)]
    ones, with_bit = _lanes(count)
    elements, above = ones * _ELEMENT, ones * ((1 << (_LANE - SHARE_BITS)) - 1)
    values = 0
    for coefficient in [*coefficients, secret]:
        product = 0
        for bit, lanes in enumerate(with_bit):
            product ^= (values & lanes) << bit
        # x^128 = x^7 + x^2 + x + 1, and what is above it has seven bits: once is enough.
        high = (product >> SHARE_BITS) & above
        values = (product & elements) ^ high ^ (high << 1) ^ (high << 2) ^ (high << 7)
        values ^= ones * int.from_bytes(coefficient)
    size = _LANE // 8
    lanes_ = values.to_bytes(size * count, "little")
    return [lanes_[at : at + 16][::-1] for at in range(0, size * count, size)]
