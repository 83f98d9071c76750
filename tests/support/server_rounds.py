"""A round of a server half on arrays: uploads are accepted one by one and folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from privet.rounds.half import Arrays, ServerHalf, Turn
from privet.rounds.uploads import Block, Uploads


def accept(
    half: ServerHalf[Any], state: Any, position: int, upload: Arrays, sent: Arrays
) -> tuple[Block, int]:
    """Return the block of one agent's accepted upload, and its digest."""
    rows = {name: array[None] for name, array in upload.items()}
    block, digests = half.accept(state, Block(np.array([position]), rows, sent))
    return block, int(digests[0])


def fold(
    half: ServerHalf[Any],
    state: Any,
    uploads: Mapping[int, Arrays],
    sent: Arrays,
    turn: Turn | None = None,
) -> Any:
    """Return the state after a round with these agents' uploads, each accepted before."""
    blocks = [accept(half, state, place, one, sent)[0] for place, one in sorted(uploads.items())]
    return half.fold(state, Uploads.of(*blocks), turn or Turn(1))
