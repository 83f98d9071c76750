"""Privacy-critical: the cost of releases, one figure (epsilon at a delta) for every caller.

Gaussian releases compose to one Gaussian, adaptively and with differing scales: mu is the root of
the sum of mu_i^2 and epsilon(delta) is known in closed form (`gaussian_epsilon`). Where Laplace
noise takes part, or records are sampled, the law of the privacy loss is composed on a grid,
pessimistically (`laplace`, `sampled`). Where both do, upper bounds of either kind are added.

A vector Laplace release of L1 sensitivity s is dominated by the scalar one of sensitivity s
(hybrid argument: the trade-off function of the shifted product is at least the group composition
of its factors, which for Laplace is the scalar one), and a vector Gaussian release of L2
sensitivity s by the scalar Gaussian. The sensitivity of a `Release` already belongs to its
neighbouring relation, so nothing here doubles it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .bounded import RELATIONS, Relation
from .errors import UnsupportedAccountError
from .events import Release
from .gaussian import gaussian_epsilon
from .laplace import mixed_epsilon
from .sampled import LARGEST_LOSS, SMALLEST_LOSS, Sampled, sampled_epsilon

_NEGLIGIBLE, _HOPELESS = 1e-100, 1e100
_DISTINCT = 64
_HUGE = 700.0
"""e^x of no larger x is a number."""
_DISTINCT_BESIDE_LAPLACE, _COARSER_BESIDE_LAPLACE = 16, 32
"""Kinds of sampled uses that are told apart where Laplace uses take part, and by how much the work
on their law is less there than alone: it is composed for each of two bounds, beside that of the
Laplace uses."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals that an account needs of its releases: additive, and short however many there are.

    Attributes
    ----------
    relation
        That of all releases, None before the first.
    gaussian
        The sum of uses mu^2 over Gaussian releases as (rounded, remainder): exact to about 2^-104
        of it, so that neither the order of releases nor how equal ones are grouped moves a bit of
        the epsilon that is compared with a budget.
    laplace
        (pure loss, count) of Laplace releases by increasing loss. Beyond 64 different ones those
        two are joined, as uses of the larger loss, that add least, which never gains.
    sampled
        (mu, q, count) of Gaussian releases of sampled records, in increasing order; beyond 64
        different ones they are joined alike, as uses of the larger mu and the larger q.
    unnoised
        Whether anything left without noise, or with as good as none (loss above 1e100).
    colluders
        Number of other agents that the figure allows to help the observer, where it rests on noise
        that agents share; None where it holds for any number.
    """

    relation: Relation | None = None
    gaussian: tuple[float, float] = (0.0, 0.0)
    laplace: tuple[tuple[float, int], ...] = ()
    sampled: Sampled = ()
    unnoised: bool = False
    colluders: int | None = None

    def add(self, release: Release, times: int = 1) -> Totals:
        """Return the totals with `times` more messages of one release (see `with_all`)."""
        return self.with_all(((release, times),))

    def with_all(self, messages: Iterable[tuple[Release, int]]) -> Totals:
        """Return the totals with more (release, times), as if each were added after the other.

        Raises
        ------
        UnsupportedAccountError
            If a release is under another neighbouring relation than those before, or allows
            another number of colluders.
        """
        relation, colluders, unnoised = self.relation, self.colluders, self.unnoised
        gaussian = self.gaussian
        laplace = _Kinds(((loss,), uses) for loss, uses in self.laplace)
        sampled = _Kinds(((loss, q), uses) for loss, q, uses in self.sampled)
        for release, times in messages:
            if release.agents > 1:
                if colluders not in (None, release.colluders):
                    raise UnsupportedAccountError(
                        f"releases against {colluders} and {release.colluders} colluders cannot "
                        "be composed"
                    )
                colluders = release.colluders
            if relation is not None and release.relation != relation:
                raise UnsupportedAccountError(
                    f"releases under {relation!r} and {release.relation!r} cannot be composed"
                )
            relation = release.relation
            count, loss = release.uses * times, max(release.loss, _NEGLIGIBLE)
            if loss > _HOPELESS:
                unnoised = True
            elif release.sampling < 1 and SMALLEST_LOSS <= loss <= LARGEST_LOSS:
                sampled.add((loss, release.sampling), count)
            elif release.mechanism == "gaussian":  # sampling that is not counted on costs more
                parts = (*gaussian, *_exact_square(loss, count))
                rounded = math.fsum(parts)
                gaussian = rounded, math.fsum((*parts, -rounded))
            else:
                laplace.add((loss,), count)
        return Totals(
            relation,
            gaussian,
            tuple((loss, uses) for (loss,), uses in laplace.in_order()),
            tuple((loss, q, uses) for (loss, q), uses in sampled.in_order()),
            unnoised,
            colluders,
        )

    @property
    def mu(self) -> float:
        """Gaussian-DP parameter together of the Gaussian releases that are not sampled."""
        return math.sqrt(self.gaussian[0])

    @property
    def method(self) -> str:
        """Method of computing epsilon: "gaussian" (exact), "pld" (an upper bound) or "none"."""
        if self.unnoised or self.relation is None:
            return "none"
        return "pld" if self.laplace or self.sampled else "gaussian"

    def epsilon(self, delta: float) -> float:
        """Return epsilon at delta in (0, 1): inf without noise, 0 of nothing."""
        if not 0 < delta < 1:
            raise ValueError(f"delta is {delta!r}, expected a number in (0, 1)")
        if self.unnoised:
            return math.inf
        if self.sampled and self.laplace:
            return self._beside_laplace(delta)
        if self.laplace:
            return mixed_epsilon(self.gaussian[0], self.laplace, delta)
        if self.sampled:
            return sampled_epsilon(self.gaussian[0], self.sampled, delta)
        return gaussian_epsilon(self.mu, delta)

    def _beside_laplace(self, delta: float) -> float:
        """Return epsilon where sampled and Laplace releases take part: the least of three bounds.

        * The loss of a Laplace use is never above its pure loss: these add to the epsilon of all
          others.
        * (e_1, d_1) and (e_2, d_2) add up: half of delta is for the sampled uses, half for the
          others.
        * Every record counts as part of every use, which no sampling costs more than, and the law
          of Gaussian and Laplace losses together is composed.

        The first two keep sampling from being worth nothing beside a single use of the other kind.
        Each composes the law of the sampled uses once more, so that no more than a few kinds of
        them are told apart here, and one that the others show to be larger is left out.
        """
        up = 1.0 + 2.0**-50
        square = self.gaussian[0]
        pure = math.fsum(count * loss for loss, count in self.laplace)
        kinds = _Kinds((((mu, q), uses) for mu, q, uses in self.sampled), _DISTINCT_BESIDE_LAPLACE)
        sampled = tuple((mu, q, uses) for (mu, q), uses in kinds.in_order())
        every = square + math.fsum(count * mu * mu for mu, _, count in self.sampled)
        found = mixed_epsilon(every * up, self.laplace, delta)
        rest = mixed_epsilon(square, self.laplace, delta / 2.0)
        if rest < found:
            alone = sampled_epsilon(0.0, sampled, delta / 2.0, _COARSER_BESIDE_LAPLACE)
            found = min(found, (alone + rest) * up)
        if pure < found:
            alone = sampled_epsilon(square, sampled, delta, _COARSER_BESIDE_LAPLACE)
            found = min(found, (alone + pure) * up)
        return found

    def of_group(self, rows: int) -> Totals:
        """Return the totals of a change of up to ``rows`` records at once.

        Given all that was released before, a use's value then moves by ``rows`` times as much at
        most (one record after the other). So a Gaussian or Laplace loss becomes ``rows`` times as
        large, and each use is dominated as before: the composition stays exact, where the usual
        conversion, e^(k epsilon) and sums of delta, loses. Of sampled records some take part with
        probability 1 - (1 - q)^rows at most, and then move the value by at most ``rows`` losses:
        a mixture of pairs that the pair of that probability and loss dominates, as a shift that is
        smaller is an image of it (`privet.kernel.sampled`).

        Parameters
        ----------
        rows
            Records of one person, >= 1, all of which differ, or are there or not, together.

        Raises
        ------
        ValueError
            For fewer than one.
        """
        if rows < 1:
            raise ValueError(f"rows is {rows!r}, expected a whole number >= 1")
        if rows == 1 or self.relation == "replace-agent":
            return self
        up = 1.0 + 2.0**-50
        square = self.gaussian[0] * float(rows) ** 2 * up
        unnoised, sampled = self.unnoised, Counter[tuple[float, float]]()
        for mu, q, count in self.sampled:
            loss = rows * mu
            rate = -math.expm1(rows * math.log1p(-q)) * up
            if loss <= LARGEST_LOSS and rate < 1:
                sampled[loss, rate] += count
            else:
                square += count * loss * loss * up
        laplace = tuple((rows * loss, count) for loss, count in self.laplace)
        unnoised |= any(loss > _HOPELESS for loss, _ in laplace)
        return Totals(
            self.relation,
            (square, 0.0),
            laplace,
            tuple((mu, q, count) for (mu, q), count in sorted(sampled.items())),
            unnoised,
            self.colluders,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as a mapping for JSON; what is empty is left out."""
        mapping: dict[str, Any] = {}
        if self.relation is not None:
            mapping["relation"] = self.relation
        if self.gaussian[0]:
            mapping["gaussian"] = list(self.gaussian)
        if self.laplace:
            mapping["laplace"] = [list(pair) for pair in self.laplace]
        if self.sampled:
            mapping["sampled"] = [list(each) for each in self.sampled]
        if self.unnoised:
            mapping["unnoised"] = True
        if self.colluders is not None:
            mapping["colluders"] = self.colluders
        return mapping

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Totals:
        """Rebuild totals from `to_dict`'s output; ValueError for anything else."""
        try:
            high, low = mapping.get("gaussian", (0.0, 0.0))
            pairs = tuple((loss, count) for loss, count in mapping.get("laplace", ()))
            totals = cls(
                mapping.get("relation"),
                (high, low),
                pairs,
                tuple((loss, q, count) for loss, q, count in mapping.get("sampled", ())),
                mapping.get("unnoised", False),
                mapping.get("colluders"),
            )
            sound = (
                totals.to_dict() == dict(mapping)
                and totals.relation in (*RELATIONS, None)
                and all(type(number) is float and math.isfinite(number) for number in (high, low))
                and high >= 0
                and all(
                    type(loss) is float and type(count) is int for loss, count in totals.laplace
                )
                and all(_NEGLIGIBLE <= loss <= _HOPELESS and count > 0 for loss, count in pairs)
                and list(pairs) == sorted(dict(pairs).items())
                and all(
                    type(loss) is type(q) is float and type(count) is int
                    for loss, q, count in totals.sampled
                )
                and all(
                    SMALLEST_LOSS <= loss <= LARGEST_LOSS and 0 < q < 1 and count > 0
                    for loss, q, count in totals.sampled
                )
                and list(totals.sampled)
                == sorted({each[:2]: each for each in totals.sampled}.values())
                and type(totals.unnoised) is bool
                and (totals.colluders is None or type(totals.colluders) is int)
                and (totals.colluders or 0) >= 0
            )
        except (AttributeError, TypeError, ValueError):
            sound = False
        if not sound:
            raise ValueError("totals of releases are not what to_dict writes")
        return totals


def epsilon_of(messages: Iterable[tuple[Release, int]], delta: float) -> float:
    """Return the epsilon at delta of messages that were each sent some number of times.

    Composition is adaptive and sequential over everything given; select the releases of one agent
    towards one audience before the call.

    Parameters
    ----------
    messages
        (release, times) of one agent, all under one neighbouring relation.
    delta
        In (0, 1).

    Raises
    ------
    UnsupportedAccountError
        For mixed neighbouring relations.
    ValueError
        For a delta outside (0, 1).
    """
    return Totals().with_all(messages).epsilon(delta)


def _exact_square(loss: float, count: int) -> tuple[float, float]:
    """Return count loss^2 as a float and what it lacks, by integer arithmetic."""
    top, bottom = loss.as_integer_ratio()
    top, bottom = count * top * top, bottom * bottom
    rounded = top / bottom
    numerator, denominator = rounded.as_integer_ratio()
    return rounded, (top * denominator - numerator * bottom) / (bottom * denominator)


class _Kinds:
    """Uses by their losses, of a bounded number of kinds: where there are more, two become one.

    Those are joined, of neighbours in order, that raise the sum of weights least, to a kind with
    the larger of each loss. So uses that cost next to nothing are joined with one another, however
    many there are, and leave those that cost something as they are. Uses that are added at once
    give the same kinds as those that are added one after the other, in the same order.

    Neither loss of a sampled use, (loss, q), can be gained by: the pair of a smaller q is that
    of the larger one, replaced by a fresh draw without the record with probability 1 - q / larger q
    on both sides, and the pair of a smaller loss is that of the larger one scaled down, with noise
    added.

    Parameters
    ----------
    counts : iterable of (tuple of float, int)
        Losses, with the number of uses of each.
    most : int
        Number of kinds.
    """

    def __init__(
        self, counts: Iterable[tuple[tuple[float, ...], int]], most: int = _DISTINCT
    ) -> None:
        in_order = sorted(counts)
        self._keys = [key for key, _ in in_order]
        self._uses = [uses for _, uses in in_order]
        self._raised: list[float] | None = None
        """By how much joining each kind with the next raises the sum, once there are too many."""
        self._most = most
        self._join()

    def in_order(self) -> list[tuple[Any, int]]:
        """Return (key, uses) in increasing order."""
        return list(zip(self._keys, self._uses, strict=True))

    def add(self, key: tuple[float, ...], count: int) -> None:
        """Count a key."""
        self._insert(key, count)
        self._join()

    def _join(self) -> None:
        keys, uses = self._keys, self._uses
        while len(keys) > self._most:
            if self._raised is None:
                self._raised = [self._cost(at) for at in range(len(keys) - 1)]
            at = self._raised.index(min(self._raised))
            joined, count = _larger(keys[at], keys[at + 1]), uses[at] + uses[at + 1]
            del keys[at : at + 2], uses[at : at + 2]
            beside = [self._cost(at - 1)] if 0 < at < len(keys) else []
            self._raised[max(at - 1, 0) : at + 2] = beside
            self._insert(joined, count)

    def _insert(self, key: tuple[float, ...], count: int) -> None:
        keys, uses, raised = self._keys, self._uses, self._raised
        at = bisect_left(keys, key)
        known = at < len(keys) and keys[at] == key
        if known:
            uses[at] += count
        else:
            keys.insert(at, key)
            uses.insert(at, count)
        if raised is not None:
            changed = [self._cost(each) for each in (at - 1, at) if 0 <= each < len(keys) - 1]
            raised[max(at - 1, 0) : at + known] = changed

    def _cost(self, at: int) -> float:
        one, other = self._keys[at : at + 2]
        joined, (few, more) = _larger(one, other), self._uses[at : at + 2]
        weight = _weight(*joined)
        return few * (weight - _weight(*one)) + more * (weight - _weight(*other))


def _larger(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(max, one, other))


def _weight(loss: float, q: float = 1.0) -> float:
    """Return a use's part in how its kinds are chosen; it bounds no cost.

    Of a sampled Gaussian use it is the Renyi divergence of order 2, log(1 + q^2 (e^(loss^2) - 1)),
    and loss^2 of others.
    """
    square = loss * loss
    if q >= 1.0 or square > _HUGE:
        return square
    return math.log1p(q * q * math.expm1(square))
