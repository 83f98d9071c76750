"""Messages between two servers of a graph: one framed body per request, no pickle.

Layout, little endian::

    u32 length of the head | head (JSON) | packed vector (``privet.wire.dense``), may be empty

A head names who speaks to whom, in which run, under which agreement, about which round, and holds
the SHA-256 of the packed vector. ``attempt`` tells the vectors of a server that was started again
from those of its predecessor; ``outcomes`` reports what the sender did with this edge in its last
rounds, which is how a disagreement comes to light.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import WireError
from privet.wire import finite, pack, unpack

HEAD_LIMIT = 8192
"""Bytes of a head at most."""
OVERHEAD = 64
"""Bytes that packing one vector adds to its data, at most."""
LAST_ROUND = 2**48
REPORTED = 8
"""Rounds whose outcome is remembered and reported."""
VECTOR = "v"


class EdgeOutcome(StrEnum):
    """The action of one end on an edge in a round."""

    USED = "used"
    DROPPED = "dropped"
    DOUBT = "doubt"
    """This end asked that the edge count and never heard whether the other end counted it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A packed vector with its checksum and the attempt of the server that made it."""

    data: bytes
    checksum: str
    attempt: int

    @staticmethod
    def of(vector: NDArray[Any], attempt: int) -> Parcel:
        """Return the parcel of a vector (d,)."""
        data = pack({VECTOR: np.ascontiguousarray(vector)})
        return Parcel(data, sha256(data).hexdigest(), attempt)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request; ``checksum`` is of the sender's vector, ``yours`` of the receiver's.

    ``yours`` is empty but where the sender asks that the edge count.
    """

    unit: str
    to: str
    run: str
    agreement: str
    round: int
    attempt: int
    checksum: str
    yours: str = ""
    outcomes: Mapping[int, EdgeOutcome] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which server this is, of which run, and what it must have in common with its neighbours."""

    unit: str
    run: str
    agreement: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Length and dtype of the vectors of a run."""

    dim: int
    dtype: str

    @property
    def limit(self) -> int:
        """Bytes of a whole body at most."""
        return 4 + HEAD_LIMIT + OVERHEAD + self.dim * np.dtype(self.dtype).itemsize

    def read(self, data: bytes) -> NDArray[Any]:
        """Return the vector (d,) of a parcel's bytes as a read-only view.

        Raises
        ------
        WireError
            If the bytes are not one finite vector of this length and dtype.
        """
        arrays = unpack(data)
        vector = arrays.get(VECTOR)
        if vector is None or len(arrays) != 1:
            raise WireError(f"parcel holds {sorted(arrays)}, expected one vector")
        if vector.shape != (self.dim,) or vector.dtype != np.dtype(self.dtype):
            raise WireError(
                f"vector of shape {vector.shape} {vector.dtype}, expected ({self.dim},) "
                f"{self.dtype}"
            )
        if not finite(vector):
            raise WireError("vector holds numbers that are not finite")
        return vector


def encode(head: Head, data: bytes = b"") -> bytes:
    """Return the body of a request."""
    text = json.dumps(asdict(head), separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text + data


def decode(body: bytes) -> tuple[Head, bytes]:
    """Return head and packed vector of a body.

    Raises
    ------
    WireError
        If the body is malformed, or the vector's checksum is not the one the head names.
    """
    if len(body) < 4:
        raise WireError("body is truncated")
    (length,) = struct.unpack_from("<I", body)
    if length > HEAD_LIMIT or 4 + length > len(body):
        raise WireError(f"head of {length} bytes does not fit")
    head = _head(body[4 : 4 + length])
    data = body[4 + length :]
    if data and sha256(data).hexdigest() != head.checksum:
        raise WireError(f"checksum of the vector of round {head.round} does not match")
    return head, data


def _head(text: bytes) -> Head:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("head is not JSON") from None
    if not isinstance(fields, dict):
        raise WireError("head is not a JSON object")
    texts = {name: fields.get(name) for name in ("unit", "to", "run", "agreement", "checksum")}
    texts["yours"] = fields.get("yours", "")
    numbers = {name: fields.get(name) for name in ("round", "attempt")}
    for name, value in texts.items():
        if type(value) is not str:
            raise WireError(f"head field {name!r} is not a text")
    for name, number in numbers.items():
        if type(number) is not int or number < 0:
            raise WireError(f"head field {name!r} is not a whole number >= 0")
    if not 1 <= fields["round"] <= LAST_ROUND:
        raise WireError(f"head field 'round' is {fields['round']}")
    return Head(**texts, **numbers, outcomes=_outcomes(fields.get("outcomes", {})))  # type: ignore[arg-type]


def _outcomes(entries: Any) -> dict[int, EdgeOutcome]:
    if not isinstance(entries, dict) or len(entries) > REPORTED:
        raise WireError("head field 'outcomes' is not a short object")
    try:
        return {int(number): EdgeOutcome(value) for number, value in entries.items()}
    except (ValueError, TypeError):
        raise WireError("head field 'outcomes' is malformed") from None
