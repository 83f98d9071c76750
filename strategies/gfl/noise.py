"""Privacy-critical: where the noise of the messages between servers comes from.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning", Section III-C: every server
draws its own. How the draws enter the messages is in ``mixing.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from privet.core import ConfigError
from privet.kernel import NoiseSource, stream

Vector = NDArray[Any]

PURPOSE = "gfl noise"
"""Purpose of the seeded streams: one generator per (noise seed, unit, round)."""


class LinkNoise(Protocol):
    """Where the noise of the messages between servers comes from."""

    def shared(self, unit: int, round_: int, dim: int) -> Vector:
        """Return g_p of eq. (47), shape (dim,): the same for all of a unit's links."""
        ...

    def independent(
        self, unit: int, round_: int, receivers: Sequence[int], dim: int
    ) -> dict[int, Vector]:
        """Return the noise (dim,) on a unit's message to each receiver."""
        ...


@dataclass(frozen=True)
class SampledNoise:
    """Noise of a given variance: repeatable where seeded, else from a source of system noise.

    Parameters
    ----------
    variance : float
        sigma_g^2 of one coordinate, > 0.
    mechanism : {"gaussian", "laplace"}
        Its distribution; the paper's is Laplace(0, sigma_g / sqrt 2).
    seed : int
        >= 0: numpy's draws from the stream of (seed, unit, round), the same whichever process hosts
        the unit; such noise protects nobody. -1: ``source``.
    source : NoiseSource, optional
        Needed where there is no seed.

    Raises
    ------
    ConfigError
        For a variance that is not positive, or neither seed nor source.
    """

    variance: float
    mechanism: str = "gaussian"
    seed: int = -1
    source: NoiseSource | None = None

    def __post_init__(self) -> None:
        if not 0 < self.variance < math.inf:
            raise ConfigError(f"noise-variance = {self.variance!r}: perturbed messages need > 0")
        if self.seed < 0 and self.source is None:
            raise ConfigError(
                "perturbed messages need noise: give a source (privet.kernel.SystemNoise) or, "
                "for a run that protects nobody, noise-seed"
            )

    @property
    def private(self) -> bool:
        """Whether nobody can predict the draws."""
        return self.seed < 0 and self.source is not None and self.source.private

    def shared(self, unit: int, round_: int, dim: int) -> Vector:
        """Return g_p, shape (dim,)."""
        return self._draw(unit, round_, (dim,))

    def independent(
        self, unit: int, round_: int, receivers: Sequence[int], dim: int
    ) -> dict[int, Vector]:
        """Return g_rp for every receiver r, drawn in their order."""
        draws = self._draw(unit, round_, (len(receivers), dim))
        return dict(zip(receivers, draws, strict=True))

    def _draw(self, unit: int, round_: int, size: tuple[int, ...]) -> Vector:
        laplace = self.mechanism == "laplace"
        scale = math.sqrt(self.variance / 2.0 if laplace else self.variance)
        if self.seed >= 0:
            rng = stream(self.seed, PURPOSE, str(unit), round_)
            return rng.laplace(0.0, scale, size) if laplace else rng.normal(0.0, scale, size)
        assert self.source is not None
        draw = self.source.laplace if laplace else self.source.gaussian
        return draw(size, scale)
