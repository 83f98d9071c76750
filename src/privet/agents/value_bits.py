"""Quantised uploads, a few bits for each number (`privet.wire.value_coding`).

An upload is coded as its difference to a reference that both sides hold. The difference goes to
zero where the method converges, and the step with it, so the limit stays exact. Both sides go on
with the decoded numbers.

Privacy: only numbers that would have been sent anyway, noise included, are coded, with a dither and
a step that come from them and from public numbers: post-processing, which costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from privet.core.key import setting
from privet.kernel.streams import Streams
from privet.wire.value_coding import dither_seed, encode_values

from .inputs import Vector

NONE, NOISE = "0", "noise"
WIDTHS = (NONE, "4", "8", "16", "32")
NOISE_STEPS = 2
"""Steps in the standard deviation of a noise: the dither adds 1/48 of its variance."""


@dataclass(frozen=True)
class ValueBits:
    """Whether an upload is coded, for agent halves that give `Half.sends` or use `Half.coder`."""

    topic: ClassVar[str] = "Size of messages"

    value_bits: str = setting(
        NONE,
        "bits of a number in an upload, coded as its difference to what both sides hold; noise: "
        "the step is half the charged noise, about 3.7 bits where the noise is as large as the "
        "signal",
        choices=(*WIDTHS, NOISE),
        words={"none": NONE},
        needs={"secure_sum": False},
    )


class Coder(NamedTuple):
    """The coder of the arrays of one agent's upload in one round.

    Attributes
    ----------
    streams : Streams
        The seed, agent and round that the dither is drawn for.
    bits : int
        Bits of a number, where the step is not given; with neither nothing is coded.
    step : float
        Step of the quantiser, if above 0.
    """

    streams: Streams
    bits: int = 0
    step: float = 0.0

    def __call__(
        self, values: Vector, reference: Vector | None = None, name: str = ""
    ) -> tuple[Vector, bytes]:
        """Return the values to go on with, and their code: empty where they are sent uncoded."""
        streams = self.streams
        seed = dither_seed(streams.seed, streams.agent, streams.round, name)
        coded = None
        if self.bits or self.step:
            coded = encode_values(values, seed, reference, bits=self.bits, step=self.step)
        return (values, b"") if coded is None else (coded.values, coded.data)

    def upload(self, values: Vector, reference: Vector | None, name: str) -> tuple[Vector, Vector]:
        """Return the values to go on with, and the array that is sent: of bytes where coded."""
        kept, data = self(values, reference, name)
        return kept, np.frombuffer(data, np.uint8) if data else values
