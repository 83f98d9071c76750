"""Privacy-critical: what the drawing of noise adds to a delta that is proven for ideal noise.

Let M be releases with ideal noise, (epsilon, delta)-private, and M' the same with the noise that is
drawn, on any data set within a total variation of tau of M. Then for neighbours D, E and any event

    P[M'(D)] <= P[M(D)] + tau <= e^epsilon P[M(E)] + delta + tau
             <= e^epsilon (P[M'(E)] + tau) + delta + tau,

so that M' is (epsilon, delta + (1 + e^epsilon) tau)-private. Over adaptive releases tau is at most
the sum of that of each, given all before it (coupling, one after the other). For one message it is
that of its sampler (`privet.kernel.ziggurat.total_variation` for each of its draws) and that of
its stream: the blocks of a cipher under one key never repeat, where random ones might, with a
chance of at most m^2 2^-129 for m blocks of 128 bits. A draw takes a word of 64 bits, and further
ones in less than 1 of 100; m is taken for its draws, and 512 at least. That AES-256 is a good
cipher otherwise is an assumption, to which no number is given. In a sum of shared noise each
agent's draws count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .events import Release
from .perturb import spacing
from .ziggurat import total_variation

_LEAST_BLOCKS = 512
_BLOCKS = 2.0**-129


def drawn_delta(messages: Iterable[tuple[Release, int]], dim: int, epsilon: float) -> float:
    """Return what delta grows by, as noise is drawn by a computer: (1 + e^epsilon) tau.

    Parameters
    ----------
    messages
        (release, times) of one agent; those without noise add nothing, as nothing is claimed.
    dim
        Numbers of one draw: the length of the model.
    epsilon
        Of all the messages together, at the delta for ideal noise; > 0 or inf.

    Returns
    -------
    float
        At most 1, rounded up.
    """
    apart = math.fsum(
        times * _of_message(release, dim) for release, times in messages if release.draws
    )
    if apart == 0:
        return 0.0
    log = math.log(apart) + (epsilon if epsilon > 40 else math.log1p(math.exp(epsilon)))
    return math.exp(log) * (1.0 + 1e-12) if log < 0 else 1.0


def _of_message(release: Release, dim: int) -> float:
    numbers = release.draws * release.agents * dim
    unit = spacing(release, dim)
    sampled = total_variation(release.mechanism, numbers, unit, release.drawn)  # type: ignore[arg-type]
    return sampled + _BLOCKS * float(max(numbers, _LEAST_BLOCKS)) ** 2
