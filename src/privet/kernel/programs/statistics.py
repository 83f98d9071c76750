"""Privacy-critical: sums over the records of a function at a public point.

    S = sum_j phi(record_j, theta)

Where nothing is charged the problem's own sums leave as they are: un-noised, and only where the
node's rules let them (`privet.kernel.analysis_rules`). Where Gaussian noise is charged, phi is a
vector of k numbers that are at least 0 and of l2 norm at most C: this module holds each record's
vector to that, adds them exactly, and noises the sum.

Proof of the sensitivity. Let a, b be the vectors of two records. As no entry is below 0, <a, b> is
not, and |a - b|^2 = |a|^2 + |b|^2 - 2 <a, b> <= 2 C^2. So replacing a record moves the sum by at
most sqrt(2) C, adding or removing one by C, and replacing all n by sqrt(2) n C (the sums of n such
vectors have no entry below 0 and norms of at most n C). A record adds to one cell of each histogram
of a description, so that this is what it moves.

Rounding. A norm is taken in float64, with a relative error below 2^-20 for k < 2^31, and vectors
are scaled to C (1 - 2^-20). Every entry is then rounded down to a multiple of C 2^-32, which brings
no norm up, and the multiples are added as integers: the sum is exact, whatever the order. As
float64 it is off by less than n C 2^-53, which the factor 1 + 2^-20 covers on both sides for
n <= 2^31.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..bounded import Clipped, Relation
from ..errors import NoiseError, RecordsError
from ..events import Release
from ..facts import Facts
from ..perturb import Perturber

Arrays = Mapping[str, NDArray[Any]]
Sum = NDArray[np.float64]

_SLACK = 2.0**-20
_UNITS = 2.0**32
"""Multiples into which a bound C is divided."""
_MOST_RECORDS = 1 << 31


@runtime_checkable
class Summable(Protocol):
    """A problem whose records are summed as they are."""

    def statistics(self, point: Arrays) -> dict[str, Sum]:
        """Return sums over the records at a public point, by name."""
        ...


@runtime_checkable
class BoundedSummable(Protocol):
    """A problem whose records can be summed with noise."""

    def contributions(self, point: Arrays) -> Iterable[Sum]:
        """Yield blocks (m, k) of rows, one a record: phi, a function of that record alone."""
        ...


@dataclass(frozen=True, slots=True)
class Statistics:
    """The public numbers of noised sums.

    Attributes
    ----------
    clip : float
        C, the l2 norm that a record's vector is held to; 0 for none, and then nothing can be
        charged.
    relation : {"replace-one", "add-remove", "replace-agent"}
    """

    clip: float = 0.0
    relation: Relation = "replace-one"

    def sensitivity(self, num_examples: int) -> float:
        """Return how far neighbours' sums are apart, in l2; see the proof above."""
        moved = {
            "replace-one": math.sqrt(2.0),
            "add-remove": 1.0,
            "replace-agent": math.sqrt(2.0) * num_examples,
        }[self.relation]
        return moved * self.clip * (1.0 + _SLACK)

    def release(self, facts: Facts, scale: float, what: str) -> Release:
        """Return the release of one sum with noise of this scale.

        Raises
        ------
        ValueError
            For a clip or a scale that no noise can be charged for, 0 among them.
        """
        return Release(
            "gaussian",
            scale=scale,
            sensitivity=self.sensitivity(facts.num_examples),
            relation=self.relation,
            what=what,
            program="statistics",
        )


def statistics(problem: Any, point: Arrays, noise: Perturber) -> dict[str, Sum]:
    """Return the problem's un-noised sums at a public point, by name.

    Raises
    ------
    NoiseError
        If noise was charged.
    RecordsError
        If the problem has no sums, or one is not of float64.
    """
    if noise.charged:
        raise NoiseError("sums without noise were asked for although noise was charged")
    if not isinstance(problem, Summable):
        raise RecordsError("this problem has no sums: an analysis needs a table")
    sums = {name: np.asarray(array) for name, array in problem.statistics(point).items()}
    for name, array in sums.items():
        if array.dtype != np.float64:
            raise RecordsError(f"the sum {name!r} is not of float64")
    return sums


def noised_statistics(program: Statistics, problem: Any, point: Arrays, noise: Perturber) -> Sum:
    """Return the noised sum (k,) of what the records add at a public point.

    Privacy: one draw.

    Raises
    ------
    NoiseError
        If no noise was charged, or there is no clip.
    RecordsError
        If the problem cannot be summed so.
    """
    if not (noise.charged and program.clip > 0):
        raise NoiseError("noised sums need a charged noise and a clip")
    if not isinstance(problem, BoundedSummable):
        raise RecordsError("this problem has no sums that can be noised")
    total = bounded_sum(program.clip, problem.contributions(point), noise.facts.dim)
    sensitivity = program.sensitivity(noise.facts.num_examples)
    noised: Sum = noise.perturb(Clipped(total, sensitivity, "l2")).astype(np.float64, copy=False)
    return noised


def bounded_sum(clip: float, blocks: Iterable[Sum], width: int) -> Sum:
    """Return the exact sum (k,) of rows (m, k), each held to the clip and to no entry below 0.

    A row that is not finite counts as zero.
    """
    total = np.zeros(width, np.int64)
    count, most = 0, clip * (1.0 - _SLACK)
    for block in blocks:
        if block.ndim != 2 or block.shape[1] != width:
            raise RecordsError("a record's part of a sum has another length than was charged")
        count += len(block)
        if count > _MOST_RECORDS:
            raise RecordsError("a noised sum is of 2^31 records at most")
        total += _units(np.asarray(block, np.float64), clip, most).sum(axis=0)
    return np.multiply(total, clip / _UNITS, dtype=np.float64)


def _units(block: Sum, clip: float, most: float) -> NDArray[np.int64]:
    """Return rows, held to the norm ``most``, as multiples of clip 2^-32, rounded down."""
    with np.errstate(all="ignore"):
        rows = np.maximum(block, 0.0)
        rows[~np.isfinite(rows).all(axis=1)] = 0.0
        largest = rows.max(axis=1, initial=0.0)
        shares = rows / np.where(largest > 0, largest, 1.0)[:, None]  # no square overflows
        norms = np.sqrt((shares * shares).sum(axis=1))  # from 1 to the root of k, or 0
        held = shares * (most / np.where(norms > 0, norms, 1.0))[:, None]
        rows = np.where((largest * norms > most)[:, None], held, rows)
        units: NDArray[np.int64] = np.floor(rows * (_UNITS / clip)).astype(np.int64)
    return units


__all__ = [
    "BoundedSummable",
    "Statistics",
    "Summable",
    "bounded_sum",
    "noised_statistics",
    "statistics",
]
