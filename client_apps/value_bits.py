"""The numbers of messages as a few bits each (`privet.wire.value_coding`).

What is coded is the difference to what both sides hold anyway, which goes to zero where the method
converges, and with it the step: the limit stays exact. Both sides go on with the decoded numbers.

Privacy: only what would have been sent as it is, noise included, is coded, with a dither and a step
that come from it and from public numbers: post-processing, which costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from privet.core import WireError
from privet.core.key import setting
from privet.kernel.streams import Streams
from privet.wire.sparse import codec
from privet.wire.value_coding import decode_values, dither_seed, encode_values

from .inputs import Vector

NONE, NOISE = "0", "noise"
HEARD = "heard:"
"""Before the name of an array of the last broadcast, in the state of an agent that keeps it."""
MOST_MISSED = 64
"""Broadcasts that an agent missed and is sent the codes of, at most: each takes some time."""
WIDTHS = (NONE, "4", "8", "16", "32")
NOISE_STEPS = 2
"""Steps in the standard deviation of a noise: the dither adds 1/48 of its variance."""


@dataclass(frozen=True)
class ValueBits:
    """Whether an upload is coded, for agent halves that give `Half.sends` or use `Half.coder`."""

    value_bits: str = setting(
        NONE,
        "bits of a number in an upload, coded as its difference to what both sides hold; noise: "
        "half the charged noise is the step, about 3.7 bits where it is as large as the signal",
        choices=(*WIDTHS, NOISE),
        needs={"secure_sum": False},
    )


@dataclass(frozen=True)
class BroadcastBits:
    """Whether broadcasts are coded, for agent halves that give `Half.hears`.

    An agent is sent the differences from the last broadcast that it heard to this one, where they
    are kept and shorter than that, else the same numbers in full.
    """

    broadcast_bits: str = setting(
        NONE,
        "bits of a number in a broadcast, coded as its difference to the last one; agents that "
        "were away are sent the differences that they missed, or the numbers in full",
        choices=WIDTHS,
        needs={"secure_sum": False},
    )


class Coder(NamedTuple):
    """How the arrays of one agent's upload in one round are coded.

    Attributes
    ----------
    streams : Streams
        Whose seed, agent and round the dither is drawn for.
    bits : int
        Of a number, where the step is not given; with neither nothing is coded.
    step : float
        Of the quantiser, if above 0.
    """

    streams: Streams
    bits: int = 0
    step: float = 0.0

    def __call__(
        self, values: Vector, reference: Vector | None = None, name: str = ""
    ) -> tuple[Vector, bytes]:
        """Return the values to go on with, and their code: empty where they travel as they are."""
        streams = self.streams
        seed = dither_seed(streams.seed, streams.agent, streams.round, name)
        coded = None
        if self.bits or self.step:
            coded = encode_values(values, seed, reference, bits=self.bits, step=self.step)
        return (values, b"") if coded is None else (coded.values, coded.data)

    def upload(self, values: Vector, reference: Vector | None, name: str) -> tuple[Vector, Vector]:
        """Return the values to go on with, and the array that travels: of bytes where coded."""
        kept, data = self(values, reference, name)
        return kept, np.frombuffer(data, np.uint8) if data else values

    def broadcast(
        self, vector: Vector, reference: Vector | None, name: str
    ) -> tuple[Vector, Vector, Vector]:
        """Return the vector (d,) to go on with, the array that is that in full, and its code.

        Zeros stay zeros and do not travel: where there are any, both arrays are sparse vectors.
        """
        places = np.flatnonzero(vector)
        if places.size == vector.size:
            kept, data = self(vector, reference, name)
            if not data:
                kept = vector.copy()  # the next is coded by it, and the server may change its own
            return kept, kept, np.frombuffer(data, np.uint8) if data else kept
        near = None if reference is None else reference[places]
        values, data = self(vector[places], near, name)
        kept = np.zeros_like(vector)
        kept[places] = values
        full, code = (
            np.frombuffer(codec.encode(values, places, vector.size, code=one), np.uint8)
            for one in (b"", data)
        )
        return kept, full, code if data else full


def missed_name(name: str, place: int) -> str:
    """Return the name under which the code of a broadcast that was missed travels, oldest first."""
    return f"{name}.{place}"


def is_difference(array: Vector) -> bool:
    """Whether an array of `Coder.broadcast` is of use only together with its reference."""
    return array.dtype == np.uint8 and not (array.ndim == 1 and codec.is_whole(array))


def heard(array: Vector, dim: int, dtype: np.dtype[Any], reference: Vector | None) -> Vector:
    """Return the vector (d,) that an array of bytes of `Coder.broadcast` stands for.

    Raises
    ------
    WireError
        If it is not one of this length and dtype.
    """
    if array.ndim != 1 or not codec.is_sparse(array):
        return decode_values(array, dim, dtype, reference)
    found = codec.decode(array, max_dim=dim, reference=reference)
    if found.dim != dim or found.values.dtype != dtype:
        raise WireError(
            f"broadcast is of length {found.dim} in {found.values.dtype}, expected {dim} in {dtype}"
        )
    return found.to_dense()
