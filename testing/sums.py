"""Check of secure sums: the model of the run in clear, or a refusal with its reason."""

from __future__ import annotations

import numpy as np

from .failure import require
from .subject import Subject, first_failure

ROUNDS = 3
ROUNDING = 2.0**-40
"""Masked numbers are multiples of this."""
GROWTH = 256
"""What a few rounds make of that rounding at most, on problems of the size used here."""
FEW = 16
"""Roundings of the arithmetic itself, where that is coarser (float32)."""


def secure_sum_is_the_sum_in_clear(subject: Subject) -> None:
    """Masked uploads give the model of the run in clear, up to the rounding of what is masked."""
    masked = subject.play_if_allowed({"secure-sum": True}, rounds=ROUNDS)
    if masked is None:
        return
    require(
        all(exchange.instruction.attempt > 0 for exchange in masked.grid.exchanges),
        "secure-sum = true is ignored: agents are asked for uploads in the clear",
    )
    require(not any(masked.failures), f"a secure sum has failures: {first_failure(masked)}")
    clear = subject.play(rounds=ROUNDS).model
    gap = float(np.abs(masked.model - clear).max())
    allowed = max(GROWTH * ROUNDING, FEW * float(np.finfo(clear.dtype).eps))
    require(
        gap <= allowed * max(1.0, float(np.abs(clear).max())),
        f"the model of the secure sum is {gap:.3g} away from that in clear",
    )


CHECKS = (secure_sum_is_the_sum_in_clear,)
