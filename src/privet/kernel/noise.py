"""Privacy-critical: a cryptographic stream turned into Gaussian and Laplace variates.

The random words are AES-256 in counter mode. `SystemNoise` keys it from the operating system at
every call, so a forked or copied process never repeats a draw (a few hundred draws take the
operating system's own words, which cost less than a key); `SeededNoise` keys it from a hash of a
seed and of the context, for simulations that must be repeatable. Both share one sampler,
`privet.kernel.ziggurat`.

Floating-point attacks. The accounts of this library are proved for real-valued noise. The sum
``value + noise`` of doubles reveals the value in its low bits, because only some doubles can be
reached (Mironov, "On significance of the least significant bits for differential privacy", 2012).
Releases are therefore made on a grid (`privet.kernel.perturb`). What is left is how far the law of
a draw rounded to the grid is from that of an ideal one, which `total_variation` bounds, and the
assumption that AES-256-CTR (keyed by the operating system) cannot be told from random bits. (That
the blocks of a cipher never repeat, where random ones might, is 2^-91 for a million draws.) A pure
epsilon (Laplace) has no delta to hide this in: what holds is ``(eps, delta')``, never
epsilon alone.

The coins by which records are sampled come from words of the same kind: one of 64 bits a record,
heads below the whole part of 2^64 q, so that their chance is never above q.

Whoever adds a draw to a value *off* the grid is as exposed as before; such a sum is not private in
all its bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .ziggurat import AT_ONCE, Mechanism, Words, ziggurat

Size: TypeAlias = int | tuple[int, ...]
Draws: TypeAlias = NDArray[np.float64]

_FEW = 512
"""Words that the operating system gives in less time than a cipher is set up."""


@runtime_checkable
class NoiseSource(Protocol):
    """A source of noise for releases.

    Attributes
    ----------
    private
        False when the draws can be predicted by someone who knows the seed; whatever was
        perturbed with them is then not private.
    """

    @property
    def private(self) -> bool: ...

    def gaussian(self, size: Size, scale: float) -> Draws:
        """Return independent N(0, scale^2) draws of shape `size`, float64."""
        ...

    def laplace(self, size: Size, scale: float) -> Draws:
        """Return independent draws of density exp(-|x|/scale) / (2 scale), float64."""
        ...


class SystemNoise:
    """Noise nobody can predict: operating-system entropy each call, stretched by AES-256-CTR.

    Private in all bits only on a grid: see the module's page. Its methods raise ValueError unless
    0 <= scale < inf.
    """

    __slots__ = ()

    private = True

    def gaussian(self, size: Size, scale: float) -> Draws:
        """Return N(0, scale^2) draws."""
        return _draw(None, "gaussian", size, scale)

    def laplace(self, size: Size, scale: float) -> Draws:
        """Return Laplace draws of the given scale b."""
        return _draw(None, "laplace", size, scale)

    def coins(self, count: int, rate: float) -> NDArray[np.bool_]:
        """Return independent coins, each true with probability ``rate``, in (0, 1)."""
        return _tossed(_fresh_words(count), count, rate)


class SeededNoise:
    """Repeatable noise for simulation only: whatever it perturbs is **not private**.

    Parameters
    ----------
    seed
        The run's noise seed.
    context
        Strings or integers that tell streams apart (agent, round, purpose). Two sources with the
        same seed and context give the same draws on every engine and machine; any difference in
        either gives an independent stream.
    """

    __slots__ = ("_coins", "_label", "_words")

    private = False

    def __init__(self, seed: int, *context: str | int) -> None:
        label = json.dumps(["privet-noise", int(seed), *context], ensure_ascii=True)
        self._label = label
        self._coins: Words | None = None
        self._words = self._stream(label)

    @staticmethod
    def _stream(label: str) -> Words:
        digest = hashlib.sha512(label.encode()).digest()
        return _aes_words(digest[:32], digest[32:48])

    def gaussian(self, size: Size, scale: float) -> Draws:
        """Return the stream's next N(0, scale^2) draws; ValueError unless 0 <= scale < inf."""
        return _draw(self._words, "gaussian", size, scale)

    def laplace(self, size: Size, scale: float) -> Draws:
        """Return the stream's next Laplace draws; ValueError unless 0 <= scale < inf."""
        return _draw(self._words, "laplace", size, scale)

    def coins(self, count: int, rate: float) -> NDArray[np.bool_]:
        """Return the next coins, of a stream of their own, as `SystemNoise.coins`."""
        self._coins = self._coins or self._stream(f"coins of {self._label}")
        return _tossed(self._coins, count, rate)


def draw_each(
    sources: Sequence[NoiseSource], mechanism: Mechanism, size: int, scales: Draws
) -> Draws:
    """Return `size` draws of each of several sources, (N, size), as they give them alone.

    Parameters
    ----------
    sources : sequence of NoiseSource
        At least one.
    mechanism : {"gaussian", "laplace"}
    scales : (N, 1) array
        One for each; ValueError unless 0 <= scale < inf.
    """
    if all(type(source) is SystemNoise for source in sources) and (scales == scales[0]).all():
        return _draw(None, mechanism, (len(sources), size), float(scales[0, 0]))
    streams = [source._words for source in sources if isinstance(source, SeededNoise)]
    usable = bool((scales > 0).all() and np.isfinite(scales).all())
    if usable and size <= AT_ONCE and len(streams) == len(sources):
        return ziggurat(mechanism).draw_each(streams, size, scales)
    each = zip(sources, scales[:, 0].tolist(), strict=True)
    return np.stack([getattr(source, mechanism)(size, scale) for source, scale in each])


def _draw(words: Words | None, mechanism: Mechanism, size: Size, scale: float) -> Draws:
    """Return draws from a stream of words, or from fresh ones."""
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"noise scale is {scale!r}, expected a finite number >= 0")
    if scale == 0:
        return np.zeros(size)
    count = math.prod(size) if isinstance(size, tuple) else int(size)
    return ziggurat(mechanism).draw(words or _fresh_words(count), count, scale).reshape(size)


def _tossed(words: Words, count: int, rate: float) -> NDArray[np.bool_]:
    if not 0 < rate < 1:
        raise ValueError(f"the chance of a coin is {rate!r}, expected a number in (0, 1)")
    least = np.uint64(int(math.ldexp(rate, 64)))
    tossed: NDArray[np.bool_] = words(count).view(np.uint64) < least
    return tossed


def _fresh_words(count: int) -> Words:
    """Return a source of words nobody can predict, for about `count` of them."""
    if count <= _FEW:
        return _system_words
    entropy = os.urandom(48)
    return _aes_words(entropy[:32], entropy[32:])


def _system_words(count: int) -> NDArray[np.int64]:
    return np.frombuffer(os.urandom(8 * count), dtype="<i8")


def _aes_words(key: bytes, initial_counter: bytes) -> Words:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encrypt = Cipher(algorithms.AES256(key), modes.CTR(initial_counter)).encryptor()
    return lambda count: np.frombuffer(encrypt.update(bytes(8 * count)), dtype="<i8")
