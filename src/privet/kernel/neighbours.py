"""Privacy-critical: whom an agent of a large sum shares masks with, and who holds its shares.

Of more than `MOST_COMPLETE` agents each draws `NEIGHBOURS` others by itself for every sum (Bell,
Bonawitz, Gascon, Lepoint, Raykova, CCS 2020): its *holders*, who are given its shares. It shares
masks with them, and with those who drew it. The coordinator takes no part in the draw.

For n agents of whom c help the coordinator, t shares that find a secret, and k neighbours, a set A
of honest agents is *closed* where each of them has t or more holders among A and the c. The holders
are a uniform choice, independent from agent to agent, so

    P(some closed set has at most (n - c) / 2 agents)
        <= sum over a = 1 .. (n - c) / 2 of  C(n - c, a) P(X_a >= t)^a,
    X_a hypergeometric: of k drawn from n - 1, those among the a - 1 + c others of A and the c

    P(some honest agent has 2 t - k or more holders among the c)  <=  (n - c) P(X >= 2 t - k),
    X hypergeometric: of k drawn from n - 1, those among the c

`least_threshold` is the least t with which both together are at most 2^-40 a sum: then what is
opened of a sum is one sum over more than half of the honest agents, and of no agent are own mask
and key both found (docs/privacy-proofs.md).
"""

from __future__ import annotations

import math
import random
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 64
"""k, the holders that an agent draws."""
MOST_COMPLETE = 100
"""Agents of a sum of whom each shares masks with, and gives shares to, all others, at most."""
MOST_CHOOSERS = 4 * NEIGHBOURS
"""Agents that have drawn one agent, at most; on average `NEIGHBOURS`, with a deviation of 8."""
FAILURE_BITS = 40
LEAST_HONEST = 3


def draw(count: int, place: int) -> tuple[int, ...]:
    """Return the places of the holders of the agent at ``place`` of a roster, in order.

    Uniform, from the operating system's entropy.
    """
    others = sorted(random.SystemRandom().sample(range(count - 1), NEIGHBOURS))
    return tuple(other + (other >= place) for other in others)


@lru_cache(maxsize=256)
def least_threshold(count: int, colluders: int) -> int:
    """Return the least t of a sum of so many agents, ``NEIGHBOURS + 1`` if there is none."""
    low, high = NEIGHBOURS // 2 + 1, NEIGHBOURS + 1
    while low < high:  # what may go wrong is less with each further share
        middle = (low + high) // 2
        if log2_failure(count, colluders, middle) <= -FAILURE_BITS:
            high = middle
        else:
            low = middle + 1
    return low


def log2_failure(count: int, colluders: int, threshold: int) -> float:
    """Return the logarithm to base 2 of the bound of this module's page, for one sum."""
    honest = count - colluders
    if honest < LEAST_HONEST:
        return 0.0
    factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
    sizes = np.arange(1, honest // 2 + 1)
    closed = _log_tails(factorial, sizes - 1 + colluders, threshold)
    sets = factorial[honest] - factorial[sizes] - factorial[honest - sizes]
    both = math.log(honest) + _log_tails(
        factorial, np.array([colluders]), 2 * threshold - NEIGHBOURS
    )
    total = np.logaddexp.reduce(np.concatenate((sets + sizes * closed, both)))
    return float(total) / math.log(2)


def _log_tails(
    factorial: NDArray[np.float64], marked: NDArray[np.intp], least: int
) -> NDArray[np.float64]:
    """Return log P(X >= least): X of `NEIGHBOURS` drawn from all others are marked, by how many."""
    population = len(factorial) - 2
    hits = np.arange(least, NEIGHBOURS + 1)[:, None]
    rest = population - marked
    possible = (hits <= marked) & (NEIGHBOURS - hits <= rest)
    hit, missed = np.where(possible, hits, 0), np.where(possible, NEIGHBOURS - hits, 0)
    logs = factorial[marked] - factorial[hit] - factorial[marked - hit]
    logs = logs + factorial[rest] - factorial[missed] - factorial[rest - missed]
    all_ = factorial[population] - factorial[NEIGHBOURS] - factorial[population - NEIGHBOURS]
    tails: NDArray[np.float64] = np.logaddexp.reduce(
        np.where(possible, logs - all_, -np.inf), axis=0, initial=-np.inf
    )
    return tails
