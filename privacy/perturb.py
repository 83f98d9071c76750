"""Privacy-critical: the one place where noise meets data.

An agent half can reach noise only through a `Perturber`, which is bound to the release that was
charged: it adds exactly the charged noise, to a value that moves by no more than was charged, and
counts. A reply leaves only after `settle`.

Noise is added on a grid. With s the sensitivity, sigma the scale, d the length and D a power of two
with D sqrt(d) <= min(s, sigma) / 8192 (D d for Laplace noise, in l1), what is released is

    D (rint(u / D) + rint(g / D)) = D rint((D rint(u / D) + g) / D),

a function of the snapped value plus real-valued noise: the ideal mechanism, on a value that moves
by at most s + D sqrt(d). Integers stay below 2^53, so the sum is exact and no low bit carries
anything else. `Release.loss` charges twice that rounding, s + min(s, sigma) / 4096 whatever d is:
the other half covers the arithmetic with which a whole iterate is computed where its noised steps
are not released one by one; such values are held to 2^46 D (no two values are further apart
afterwards), where eight operations of float64 err by less than D / 16 in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.privacy.errors import NoiseError
from privet.privacy.events import Release
from privet.privacy.facts import Facts
from privet.privacy.noise import NoiseSource, SystemNoise, gaussian_each
from privet.privacy.ziggurat import cell
from privet.problems import Clipped

Vector = NDArray[np.float64]

FINENESS = 8192.0
"""min(s, sigma) over D sqrt(d), at least."""
FARTHEST = 2.0**46
"""Magnitude of a perturbed value at most, in units of D."""
_AT_ONCE = 1 << 20
_SLACK = 1.0 + 1e-12
"""What the order of a few products may make of the same sensitivity."""


def spacing(release: Release, dim: int) -> float:
    """Return D, the grid's spacing for values of length ``dim``: a power of two."""
    size = float(dim) if release.norm == "l1" else math.sqrt(dim)
    _, exponent = math.frexp(min(release.scale, release.sensitivity) / (FINENESS * size))
    return math.ldexp(1.0, exponent - 1)


def checked_spacing(release: Release, dim: int) -> float:
    """Return D, where the sampler's own digits are fine enough for it.

    Raises
    ------
    NoiseError
        If the noise is so much larger than what it hides that the grid would be finer than the
        sampler's cells: by a factor of about 1.6e7 / sqrt(d) for Gaussian noise.
    """
    found = spacing(release, dim)
    if found < 2.0 * cell(release.mechanism, release.scale):  # type: ignore[arg-type]
        raise NoiseError(
            f"noise of scale {release.scale:.3g} is too large for a sensitivity of "
            f"{release.sensitivity:.3g} in {dim} dimensions: the grid would be finer than the "
            "noise's own digits"
        )
    return found


class Perturber:
    """The noise of one charged release: the only source of it that an agent half can reach.

    Parameters
    ----------
    release : Release
        What is charged for this reply.
    source : NoiseSource
        Where the draws come from.
    facts : Facts
        What the charge rests on.
    given : bool
        Whether the draws were handed in from outside, as when worked instances are replayed: they
        are added as they are, off the grid, and the reply is not private.

    Raises
    ------
    NoiseError
        As `checked_spacing`, unless the draws are given.
    """

    def __init__(
        self, release: Release, source: NoiseSource, facts: Facts, *, given: bool = False
    ) -> None:
        self.release = release
        self.facts = facts
        self.charged = release.mechanism != "none"
        """Whether a mechanism was charged, so that `perturb` is the way to add noise."""
        self.taken = 0
        """Draws so far, each of the length of the model."""
        self._source = source
        self._given = given
        self._spacing = self._farthest = 0.0
        self._rows: Iterator[Vector] = iter(())
        if self.charged and not given:
            self._spacing = checked_spacing(release, facts.dim)
            self._farthest = FARTHEST * self._spacing
            # Arrays of no dimension: numpy takes them as operands in half the time of numbers.
            self._unit, self._inverse = np.array(self._spacing), np.array(1.0 / self._spacing)

    def perturb(self, clipped: Clipped) -> Vector:
        """Return a value with the charged noise on it, shape (d,), float64.

        Privacy: one of the ``release.draws`` that were paid for.

        Raises
        ------
        NoiseError
            If nothing was charged, the value may move further than was charged, or all draws that
            were charged are taken.
        """
        release = self.release
        if not self.charged:
            raise NoiseError("noise was requested that was not charged")
        if clipped.norm != release.norm or not clipped.sensitivity <= release.sensitivity * _SLACK:
            raise NoiseError(
                f"a value moves by {clipped.sensitivity:.6g} in {clipped.norm}, more than the "
                f"{release.sensitivity:.6g} in {release.norm} that were charged"
            )
        if self.taken >= release.draws:
            raise NoiseError(f"more than the {release.draws} draws that were charged")
        value = np.asarray(clipped.value, np.float64)
        if value.shape != (self.facts.dim,):
            raise NoiseError(f"a value has shape {value.shape}, expected ({self.facts.dim},)")
        draw = self._next()
        if self._given:
            return value + draw
        if not _within(value, self._farthest):
            value = _held(value, self._farthest)
        snapped: Vector = value * self._inverse  # exact, as D is a power of two
        np.rint(snapped, out=snapped)
        snapped += draw
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
            raise NoiseError("noise was requested in addition to the noise that was charged")
        draw = self._source.laplace if mechanism == "laplace" else self._source.gaussian
        noised: Vector = value + draw(value.shape, scale)
        return noised

    def require_magnitude(self, *public: NDArray[Any], steps: int = 1) -> None:
        """Refuse public numbers beside which float64 would round more than the account covers.

        Give it only what the server knows or what has been noised before, so that the refusal
        reveals nothing.

        Parameters
        ----------
        public : arrays
            In the units of what is perturbed.
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
            raise NoiseError(f"{self.taken} draws were taken, {self.release.draws} charged")

    def _next(self) -> Vector:
        """Return the next draw, on the grid in units of D; small draws are made all at once."""
        draw = next(self._rows, None)
        if draw is None:
            count = min(self.release.draws - self.taken, max(1, _AT_ONCE // self.facts.dim))
            laplace = self.release.mechanism == "laplace"
            source = self._source.laplace if laplace else self._source.gaussian
            drawn = source((count, self.facts.dim), self.release.scale)
            if not self._given:
                drawn *= self._inverse
                np.rint(drawn, out=drawn)
            self._rows = iter(drawn)
            draw = next(self._rows)
        self.taken += 1
        return draw


class Perturbers(Perturber):
    """Those of several agents of whom nothing is charged, as one: values are rows (N, d).

    Parameters
    ----------
    release : Release
        Of every agent; raises ``NoiseError`` for one that is charged, whose noise each agent takes
        from its own `Perturber`.
    sources : callable
        Returns every agent's source; called when noise is first asked for.
    facts : Facts
    """

    def __init__(
        self, release: Release, sources: Callable[[], Sequence[NoiseSource]], facts: Facts
    ) -> None:
        if release.mechanism != "none":
            raise NoiseError("charged noise is drawn for one agent at a time")
        super().__init__(release, SystemNoise(), facts)
        self._sources = sources
        self._opened: Sequence[NoiseSource] = ()

    @property
    def repeatable(self) -> bool:
        """Whether the noise so far, if there was any, can be drawn again."""
        return not any(source.private for source in self._opened)

    def unaccounted(self, value: NDArray[Any], scale: Any, mechanism: str = "gaussian") -> Vector:
        """Return the values with noise of one scale, or of (N, 1): every agent's from its source.

        Raises
        ------
        NoiseError
            For another than Gaussian noise.
        """
        if mechanism != "gaussian":
            raise NoiseError(f"{mechanism} noise is drawn for one agent at a time")
        self._opened = self._opened or self._sources()
        scales = np.broadcast_to(np.asarray(scale, np.float64), (len(value), 1))
        noised: Vector = value + gaussian_each(self._opened, value.shape[1], scales)
        return noised


def _within(array: NDArray[Any], most: float) -> bool:
    """Whether all numbers are finite and of this magnitude at most."""
    # Twice the Euclidean norm, which takes one pass and no copy, settles it for almost all arrays;
    # where squares of float32 lose their digits they are below what is added.
    if 2.0 * math.sqrt(np.vdot(array, array)) + 1e-18 <= most:
        return True
    return float(np.max(np.abs(array), initial=0.0)) <= most


def _held(value: Vector, farthest: float) -> Vector:
    """Return a value held to 2^46 units; one that is not finite anywhere counts as zero."""
    if not np.isfinite(value).all():
        return np.zeros_like(value)
    return np.clip(value, -farthest, farthest)
