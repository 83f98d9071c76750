"""Texts as an array of numbers, for a state that goes into checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def packed(texts: Sequence[str]) -> Bytes:
    """Return texts as the bytes of their JSON."""
    return np.frombuffer(json.dumps(list(texts)).encode(), np.uint8).copy()


def unpacked(array: Bytes) -> list[str]:
    """Return the texts that `packed` has packed."""
    return [str(text) for text in json.loads(array.astype(np.uint8).tobytes())]
