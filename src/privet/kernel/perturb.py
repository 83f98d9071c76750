"""Privacy-critical: the one place where noise meets data.

An agent half can reach noise only through a `Perturber`, which is bound to the release that was
charged: it adds exactly the charged noise, to a value that moves by no more than was charged, and
counts. A reply leaves only after `settle`. Where records are sampled, it tosses their coins, once
for every draw; where they come in batches, it says which is next.

Noise is added on a grid. With s the sensitivity, sigma the scale, d the length and D a power of two
with D sqrt(d) <= min(s, sigma) / 8192 (D d for Laplace noise, in l1), what is released is

    D (rint(u / D) + rint(g / D)) = D rint((D rint(u / D) + g) / D),

a function of the snapped value plus real-valued noise: the ideal mechanism, on a value that moves
by at most s + D sqrt(d). Integers stay below 2^53, so the sum is exact and no low bit carries
anything else. `Release.loss` charges twice that rounding, s + min(s, sigma) / 4096 whatever d is:
the other half covers the arithmetic with which a whole iterate is computed where its noised steps
are not released one by one; such values are held to 2^46 D (no two values are further apart
afterwards), where eight operations of float64 err by less than D / 16 in all.

Noise that agents share (Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism
for Federated Learning with Secure Aggregation", 2021, with rounded Gaussians for discrete ones).
Each of n agents uploads k_i = rint(u_i / D) + rint(g_i / D), with one D for all that follows from
sigma and d alone, masked in the integers modulo 2^64, so that an observer sees the sum (and its
remainder is a function of it). With a = sigma / D, rint(g / D) has at an integer the density of
g / D + U there, U uniform on an interval of length 1. Its characteristic function is the sum over
integers m of F(w + 2 pi m), F(w) = exp(-a^2 w^2 / 2) sinc(w / 2), and that of h of them its h-th
power, while the h-th powers summed over m belong to

    rint(G / D + V),    G ~ N(0, h sigma^2),  V a sum of h - 1 such U, independent of G.

The two differ by products of different m, at most about exp(-pi^2 a^2): nothing, as a >= 2^16. So
what the noise of h agents hides is a function of (D sum of rint(u_i / D) + G) and of numbers
that depend on no record: the ideal Gaussian mechanism of deviation sigma sqrt(h), on a value that
one record moves by at most s + D sqrt(d), with D sqrt(d) <= sigma / 2^17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from .bounded import Clipped, IntArray
from .cyclic import Cycle, banded, growth, width
from .errors import NoiseError
from .events import SHARED_GRID, Release
from .facts import Facts
from .noise import NoiseSource, Size, SystemNoise, draw_each
from .told import Told
from .ziggurat import cell

Vector = NDArray[np.float64]

FINENESS = 8192.0
"""Lower bound of min(s, sigma) over D sqrt(d)."""
FARTHEST = 2.0**46
"""Largest magnitude of a perturbed value, in units of D."""
FARTHEST_SHARED = 2.0**45
"""The same where the noise is shared: 1e5 agents' values, and as much beside each, fit the ring."""
_AT_ONCE = 1 << 20
_DEVIATIONS = 9.0
_LAPLACE_TAIL = 42.0
_SLACK = 1.0 + 1e-12
"""Margin for sensitivities whose products were computed in another order."""


def spacing(release: Release, dim: int) -> float:
    """Return D, the grid's spacing for values of length ``dim``: a power of two."""
    if release.agents > 1:
        return shared_spacing(release.scale, dim)
    size = float(dim) if release.norm == "l1" else math.sqrt(dim)
    _, exponent = math.frexp(min(release.scale, release.sensitivity) / (FINENESS * size))
    return math.ldexp(1.0, exponent - 1)


def shared_spacing(scale: float, dim: int) -> float:
    """Return D where agents share noise of this scale: the same for all agents and the server."""
    _, exponent = math.frexp(scale * SHARED_GRID / (2.0 * math.sqrt(dim)))
    return math.ldexp(1.0, exponent - 1)


def norm_bound(release: Release, dim: int, value: float = math.inf) -> float:
    """Return a bound on the l2 norm of a perturbed value, of one draw of noise.

    In 100,000 draws it is passed with a chance of less than 1e-12. The norm of a standard Gaussian
    vector of length d passes sqrt(d) + t with one of exp(-t^2 / 2) at most, as it is 1-Lipschitz
    and of mean sqrt(d) at most; t is 9. One of d Laplace draws of scale 1 passes log(d) + t with
    one of exp(-t) at most; t is 42. What stands beside the noise, the value and a term that is
    public, is of norm at most ``value``, and each is held to `FARTHEST` on its coordinates.
    """
    unit, size = spacing(release, dim), math.sqrt(dim)
    held = min(value, 2.0 * FARTHEST * unit * size)
    drawn = size + _DEVIATIONS
    if release.mechanism == "laplace":
        drawn = size * (math.log(dim) + _LAPLACE_TAIL)
    return held + release.scale * growth(release.bands) * drawn + 2.0 * unit * size


def checked_spacing(release: Release, dim: int) -> float:
    """Return D, where the sampler's own digits are fine enough for it.

    Raises
    ------
    NoiseError
        If the noise is so much larger than what it hides that the grid would be finer than the
        sampler's cells: by a factor of about 1.6e7 / sqrt(d) for Gaussian noise.
    """
    unit = spacing(release, dim)
    if unit < 2.0 * cell(release.mechanism, release.drawn):  # type: ignore[arg-type]
        raise NoiseError(
            f"noise of scale {release.scale:.3g} is too large for a sensitivity of "
            f"{release.sensitivity:.3g} in {dim} dimensions: the grid would be finer than the "
            "noise's own digits"
        )
    return unit


class Perturber:
    """The noise of one charged release: the only source of it that an agent half can reach.

    Parameters
    ----------
    release : Release
        The release that is charged for this reply.
    source : NoiseSource
        The source of the draws.
    facts : Facts
        The public numbers that the charge rests on.
    given : bool
        Whether the draws were handed in from outside, as when worked instances are replayed: they
        are added as they are, off the grid, and the reply is not private.
    cycle : Cycle, optional
        Where the agent stands, if its records come in batches; goes on with every draw.

    Raises
    ------
    NoiseError
        As `checked_spacing`, unless the draws are given; if the agent stands at another batch than
        was charged.
    """

    def __init__(
        self,
        release: Release,
        source: NoiseSource,
        facts: Facts,
        *,
        given: bool = False,
        cycle: Cycle | None = None,
    ) -> None:
        self.release = release
        self.facts = facts
        self.charged = release.mechanism != "none"
        """Whether a mechanism was charged, so that `perturb` is the way to add noise."""
        self.taken = 0
        """Draws so far, each of the length of the model."""
        self.cycle = cycle
        self._tossed = 0
        self._source = source
        self._given = given
        self._spacing = self._farthest = 0.0
        self._rows: Iterator[Vector] = iter(())
        self._shape: tuple[int, ...] = (facts.dim,)
        if self.charged and not given:
            self._spacing = checked_spacing(release, facts.dim)
            most = FARTHEST_SHARED if release.agents > 1 else FARTHEST
            self._farthest = most * self._spacing
            # Arrays of no dimension: numpy takes them as operands in half the time of numbers.
            self._unit, self._inverse = np.array(self._spacing), np.array(1.0 / self._spacing)
        if (release.batches > 1) != (cycle is not None) or (
            cycle is not None and cycle.step % release.batches != release.place
        ):
            raise NoiseError("another batch was charged than the agent's next", Told.DRAWS)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied: draws that were charged once could be taken again."""
        raise NoiseError(Told.COPIED)

    def perturb(self, clipped: Clipped) -> Vector:
        """Return a value with the charged noise on it, shape (d,), float64.

        Privacy: one of the ``release.draws`` that were paid for.

        Raises
        ------
        NoiseError
            If nothing was charged, the value may move further than was charged, or no charged draw
            is left.
        """
        release = self.release
        if not self.charged:
            raise NoiseError("noise was requested that was not charged", Told.DRAWS)
        if clipped.norm != release.norm or not clipped.sensitivity <= release.sensitivity * _SLACK:
            raise NoiseError(
                f"a value moves by {clipped.sensitivity:.6g} in {clipped.norm}, more than the "
                f"{release.sensitivity:.6g} in {release.norm} that were charged",
                Told.DRAWS,
            )
        if self.taken >= release.draws:
            raise NoiseError(f"more than the {release.draws} draws that were charged", Told.DRAWS)
        if release.sampling < 1 and self._tossed != self.taken + 1:
            raise NoiseError("sampled records were charged, and no coins were tossed for a value")
        if self.cycle and self._tossed != self.taken + 1:
            raise NoiseError("batches in turn were charged, and none was asked for", Told.DRAWS)
        value = np.asarray(clipped.value, np.float64)
        if value.shape != self._shape:
            raise NoiseError(f"a value has shape {value.shape}, expected {self._shape}")
        draw = self._next()
        if self.cycle:
            draw = self._in_bands(draw, self.cycle)
        if self._given:
            return value + draw
        if not _within(value, self._farthest):
            value = _held(value, self._farthest)
        snapped: Vector = value * self._inverse  # exact, as D is a power of two
        np.rint(snapped, out=snapped)
        snapped += draw
        snapped *= self._unit
        return snapped

    def _in_bands(self, draw: Vector, cycle: Cycle) -> Vector:
        """Return a step's noise, of its draw and the noises before it; the agent goes on by it."""
        bands = self.release.bands
        if not self._given:
            noise = banded(draw, cycle.past, bands)
            self.cycle = cycle.after(noise, bands)
            return noise
        unit = spacing(self.release, self.facts.dim)
        noise = banded(draw * (width(bands) / unit), cycle.past, bands, whole=False)
        self.cycle = cycle.after(noise, bands)
        return noise * unit

    def coins(self, count: int) -> NDArray[np.bool_]:
        """Return which of `count` records take part in the next value that is perturbed.

        Fresh coins of the release's probability, from the source of the noise; the system's where
        draws are given.

        Privacy: the charge rests on nobody's knowing them, nor how many are true.

        Raises
        ------
        NoiseError
            If no sampling was charged, more records are held than the agent states, or the last
            coins were not used.
        """
        release = self.release
        if not release.sampling < 1:
            raise NoiseError("coins were asked for, and no sampling was charged")
        if count > self.facts.num_examples:
            raise NoiseError("more records are held than the agent states")
        if self._tossed != self.taken:
            raise NoiseError("coins were tossed twice for one value")
        self._tossed += 1
        toss = getattr(self._source, "coins", SystemNoise().coins)
        coins: NDArray[np.bool_] = toss(count, release.sampling)
        return coins

    def batch(self, count: int) -> IntArray:
        """Return which of `count` records are those of the next value that is perturbed.

        Raises
        ------
        NoiseError
            If no batches in turn were charged, another number of records is held than the agent
            states, or the last batch was not used.
        """
        if self.cycle is None:
            raise NoiseError("a batch was asked for, and none in turn were charged", Told.DRAWS)
        if count != self.facts.num_examples:
            raise NoiseError(
                f"batch = 'cyclic': {count} examples are given, the agent states "
                f"{self.facts.num_examples}",
                Told.BATCH,
            )
        if self._tossed != self.taken:
            raise NoiseError("a batch was asked for twice for one value", Told.DRAWS)
        self._tossed += 1
        return self.cycle.rows(count, self.release.batches)

    @property
    def shared(self) -> bool:
        """Whether noised values stay on the grid until they are summed with other agents'."""
        return self.release.agents > 1

    def beside(self, public: NDArray[Any]) -> NDArray[Any]:
        """Return numbers that depend on no record, ready to be added to a noised value.

        They are rounded to the grid where the value is summed: the integers of the noise must not
        change.

        Raises
        ------
        NoiseError
            For numbers that the sum could not hold.
        """
        if not (self.shared and self._spacing):
            return public
        self.require_magnitude(public)
        snapped: Vector = np.rint(public * self._inverse, dtype=np.float64)
        snapped *= self._unit
        return snapped

    def unaccounted(self, value: NDArray[Any], scale: float, mechanism: str = "gaussian") -> Vector:
        """Return a value with noise that no account covers: the reply counts as un-noised.

        Raises
        ------
        NoiseError
            If a mechanism was charged: its noise comes from `perturb`.
        """
        if self.charged:
            raise NoiseError(
                "noise was requested in addition to the noise that was charged", Told.DRAWS
            )
        noised: Vector = value + self._of_source(mechanism, value.shape, scale)
        return noised

    def require_magnitude(self, *public: NDArray[Any], steps: int = 1) -> None:
        """Refuse public numbers next to which float64 would round more than the account covers.

        Pass only numbers that the server knows or that were noised before, so that the refusal
        reveals nothing.

        Parameters
        ----------
        public : arrays
            In the units of the perturbed value.
        steps : int
            Steps between them and the noise, whose rounding adds up: less than D / 16 each at
            2^46 D, of which 8 fill the D / 2 that a value may be off by; more need smaller numbers.

        Raises
        ------
        NoiseError
        """
        if not self._spacing:
            return
        most = self._farthest / max(1.0, steps / 8.0)
        for array in public:
            if not _within(array, most):
                raise NoiseError(
                    f"numbers above {most:.3g} are too large for noise of scale "
                    f"{self.release.scale:.3g}"
                )

    def settle(self) -> None:
        """Raise ``NoiseError`` unless exactly the charged draws were taken."""
        if self.charged and self.taken != self.release.draws:
            raise NoiseError(
                f"{self.taken} draws were taken, {self.release.draws} charged", Told.DRAWS
            )

    def _next(self) -> Vector:
        """Return the next draw, on the grid in units of D; small draws are made all at once."""
        draw = next(self._rows, None)
        if draw is None:
            count = min(self.release.draws - self.taken, max(1, _AT_ONCE // self.facts.dim))
            drawn = self._draws(count)
            if not self._given:
                drawn *= self._inverse
                np.rint(drawn, out=drawn)
            self._rows = iter(drawn)
            draw = next(self._rows)
        self.taken += 1
        return draw

    def _draws(self, count: int) -> Vector:
        """Return `count` draws of the release's noise, (count, ...)."""
        shape = count, self.facts.dim
        return self._of_source(self.release.mechanism, shape, self.release.drawn)

    def _of_source(self, mechanism: str, shape: tuple[int, ...], scale: Any) -> Vector:
        draw = self._source.laplace if mechanism == "laplace" else self._source.gaussian
        return draw(shape, scale)


class Perturbers(Perturber):
    """The noise of several agents with equal charges, as one: values are rows (N, d).

    Every agent's draws are those of its own source, in the order in which it takes them alone.

    Parameters
    ----------
    release : Release
        The release that is charged for each agent's reply.
    count : int
        N.
    sources : callable
        Returns every agent's source; called when noise is first needed.
    facts : Facts
        The public numbers that each charge rests on.
    """

    def __init__(
        self,
        release: Release,
        count: int,
        sources: Callable[[], Sequence[NoiseSource]],
        facts: Facts,
    ) -> None:
        super().__init__(release, SystemNoise(), facts)
        self._shape = (count, facts.dim)
        self._sources = sources
        self._opened: Sequence[NoiseSource] = ()
        self._of_first: list[Vector] = []

    def coins(self, count: int) -> NDArray[np.bool_]:
        """Refuse: every agent's records need coins of their own."""
        raise NoiseError("records of several agents at once are not sampled")

    def first(self) -> Perturber:
        """Return the first agent's `Perturber`, which repeats the draws that it has had here.

        Privacy: only for the same values, so that the result reveals nothing new about them.
        """
        return Perturber(self.release, _Again(self._of_first), self.facts)

    def _draws(self, count: int) -> Vector:
        agents, dim = self._shape
        shape = agents, count * dim
        drawn = self._of_source(self.release.mechanism, shape, self.release.scale)
        return drawn.reshape(agents, count, dim).swapaxes(0, 1)

    def _of_source(self, mechanism: Any, shape: tuple[int, ...], scale: Any) -> Vector:
        """Return draws of one scale, or of (N, 1), every agent's from its own source."""
        self._opened = self._opened or self._sources()
        scales = np.broadcast_to(np.asarray(scale, np.float64), (len(self._opened), 1))
        drawn = draw_each(self._opened, mechanism, shape[1], scales)
        self._of_first.append(drawn[0].copy())
        return drawn


def perturbers(
    release: Release, sources: Sequence[NoiseSource], facts: Sequence[Facts]
) -> list[Perturber]:
    """Return the `Perturber` of each of several agents, whose draws are made in one call.

    Each has the draws that its source gives it alone.

    Parameters
    ----------
    release : Release
        The release that is charged for each agent's reply.
    sources : sequence of NoiseSource
    facts : sequence of Facts
        Of one dimension.
    """
    size = release.draws * facts[0].dim
    if 0 < size <= _AT_ONCE and release.sampling == 1 and release.batches == 1:
        scales = np.full((len(sources), 1), release.scale)
        drawn = draw_each(sources, cast(Any, release.mechanism), size, scales)
        sources = [_Again([row]) for row in drawn]
    return [Perturber(release, *each) for each in zip(sources, facts, strict=True)]


class _Again:
    """Repeats draws that were made before, in their order."""

    private = False

    def __init__(self, draws: Sequence[Vector]) -> None:
        self._left = iter(draws)

    def gaussian(self, size: Size, scale: float) -> Vector:
        return next(self._left).reshape(size)

    laplace = gaussian


def _within(array: NDArray[Any], most: float) -> bool:
    """Whether all numbers are finite and of this magnitude at most."""
    # Twice the Euclidean norm, which takes one pass and no copy, settles it for almost all arrays;
    # where squares of float32 lose their digits they are below what is added.
    if 2.0 * math.sqrt(np.vdot(array, array)) + 1e-18 <= most:
        return True
    return float(np.max(np.abs(array), initial=0.0)) <= most


def _held(value: Vector, farthest: float) -> Vector:
    """Return a value, or rows, held to 2^46 units; one that is not finite counts as zero."""
    if value.ndim > 1:
        return np.stack([_held(row, farthest) for row in value])
    if not np.isfinite(value).all():
        return np.zeros_like(value)
    return np.clip(value, -farthest, farthest)
