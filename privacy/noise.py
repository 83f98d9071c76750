"""Noise for private releases: a cryptographic stream turned into Gaussian and Laplace variates.

The byte stream is AES-256 in counter mode. `SystemNoise` keys it from the operating system at
every call, so a forked or copied process never repeats a draw; `SeededNoise` keys it from a hash
of a seed and of the context, for simulations that must be repeatable. Both share one
transformation: 53-bit uniforms, Box-Muller for the Gaussian (the angle through the tangent of its
half, which numpy vectorises several times better than sine and cosine), and the logarithm with an
independent random sign for Laplace.

Floating-point attacks. The accounts of this library are proved for real-valued noise; a computer
adds doubles. The low bits of ``value + noise`` can betray the value, because only some doubles are
reachable (Mironov, "On significance of the least significant bits for differential privacy",
2012). Nothing here closes that channel: an observer who sees all 64 (or 32) bits of a release and
knows the generator can in principle do better than the claimed epsilon. Two finite-precision
effects are negligible beside it: Gaussian draws stop at 8.6 standard deviations and Laplace draws
at 36.7 scales (total missing mass below 2e-16 a coordinate).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

Size: TypeAlias = int | tuple[int, ...]
ByteStream: TypeAlias = Callable[[int], bytes]

# Arrays of no dimension: numpy takes them as operands in half the time it takes for a float.
_UNIT = np.array(2.0**-53)
_PI_UNITS = np.array(math.pi * 2.0**-53)
_QUARTER_TURN = np.array(math.pi / 2)
_ONE, _HALF, _MINUS_TWO = np.array(1.0), np.array(0.5), np.array(-2.0)
_CHUNK = 1 << 16


@runtime_checkable
class NoiseSource(Protocol):
    """What an agent needs to perturb a release.

    Attributes
    ----------
    private
        False when the draws can be predicted by someone who knows the seed; whatever was
        perturbed with them is then not private.
    """

    @property
    def private(self) -> bool: ...

    def gaussian(
        self, size: Size, scale: float, dtype: DTypeLike = np.float64
    ) -> NDArray[np.floating[Any]]:
        """Return independent N(0, scale^2) draws of shape `size`."""
        ...

    def laplace(
        self, size: Size, scale: float, dtype: DTypeLike = np.float64
    ) -> NDArray[np.floating[Any]]:
        """Return independent draws of density exp(-|x|/scale) / (2 scale), shape `size`."""
        ...


class SystemNoise:
    """Noise nobody can predict: AES-256-CTR, a fresh key of operating-system entropy each call.

    Draws are computed in float64 and rounded to `dtype` (float32 or float64). See the module's
    page for the floating-point attacks that are not closed.
    """

    __slots__ = ()

    @property
    def private(self) -> bool:
        return True

    def gaussian(
        self, size: Size, scale: float, dtype: DTypeLike = np.float64
    ) -> NDArray[np.floating[Any]]:
        """Return N(0, scale^2) draws; ValueError unless 0 <= scale < inf."""
        return _gaussian(_fresh_stream(), size, scale, dtype)

    def laplace(
        self, size: Size, scale: float, dtype: DTypeLike = np.float64
    ) -> NDArray[np.floating[Any]]:
        """Return Laplace draws of the given scale b; ValueError unless 0 <= scale < inf."""
        return _laplace(_fresh_stream(), size, scale, dtype)


class SeededNoise:
    """Repeatable noise for simulation only: whatever it perturbs is **not private**.

    Parameters
    ----------
    seed
        The run's noise seed.
    context
        Strings or integers that tell streams apart (agent, round, purpose). Two sources with the
        same seed and context give the same draws on every engine of one machine; any difference
        in either gives an independent stream.
    """

    __slots__ = ("_stream",)

    def __init__(self, seed: int, *context: str | int) -> None:
        label = json.dumps(["privet-noise", int(seed), *context], ensure_ascii=True)
        digest = hashlib.sha512(label.encode()).digest()
        self._stream = _aes_stream(digest[:32], digest[32:48])

    @property
    def private(self) -> bool:
        return False

    def gaussian(
        self, size: Size, scale: float, dtype: DTypeLike = np.float64
    ) -> NDArray[np.floating[Any]]:
        """Return the stream's next N(0, scale^2) draws; ValueError unless 0 <= scale < inf."""
        return _gaussian(self._stream, size, scale, dtype)

    def laplace(
        self, size: Size, scale: float, dtype: DTypeLike = np.float64
    ) -> NDArray[np.floating[Any]]:
        """Return the stream's next Laplace draws; ValueError unless 0 <= scale < inf."""
        return _laplace(self._stream, size, scale, dtype)


def _fresh_stream() -> ByteStream:
    entropy = os.urandom(48)
    return _aes_stream(entropy[:32], entropy[32:])


def _aes_stream(key: bytes, initial_counter: bytes) -> ByteStream:
    cipher, aes, counter = _cryptography()
    encrypt = cipher(aes(key), counter(initial_counter)).encryptor()
    return lambda count: encrypt.update(_zeros(count))


@lru_cache(maxsize=1)
def _cryptography() -> tuple[Any, Any, Any]:
    """Import the cipher when it is first needed, and not look it up for every draw."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher, algorithms.AES256, modes.CTR


@lru_cache(maxsize=8)
def _zeros(count: int) -> bytes:
    """Return zero bytes, the same ones for every draw of a size."""
    return bytes(count)


def _words(stream: ByteStream, count: int) -> NDArray[np.uint64]:
    return np.frombuffer(stream(8 * count), dtype="<u8")


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the upper 53 bits as whole numbers; by way of int64, which converts faster."""
    return (words >> np.uint64(11)).view(np.int64).astype(np.float64)


def _prepare(size: Size, scale: float, dtype: DTypeLike) -> NDArray[np.floating[Any]]:
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"noise scale is {scale!r}, expected a finite number >= 0")
    kind = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"noise dtype is {kind}, expected float32 or float64")
    return np.empty(size, dtype=kind)


def _gaussian(
    stream: ByteStream, size: Size, scale: float, dtype: DTypeLike
) -> NDArray[np.floating[Any]]:
    """Box-Muller: z = sqrt(-2 log u) (cos a, sin a), u in (0, 1], a uniform on the circle."""
    out = _prepare(size, scale, dtype)
    flat = out.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        pairs = (part.size + 1) // 2
        uniform = _uniform(_words(stream, 2 * pairs))
        radius, tangent = uniform[:pairs], uniform[pairs:]
        radius += _ONE
        radius *= _UNIT
        np.log(radius, out=radius)
        radius *= _MINUS_TWO
        np.sqrt(radius, out=radius)
        tangent += _HALF
        tangent *= _PI_UNITS
        tangent -= _QUARTER_TURN
        np.tan(tangent, out=tangent)
        square = tangent * tangent
        radius *= scale / (_ONE + square)
        part[:pairs] = radius * (_ONE - square)
        tangent += tangent
        tangent *= radius
        part[pairs:] = tangent[: part.size - pairs]
    return out


def _laplace(
    stream: ByteStream, size: Size, scale: float, dtype: DTypeLike
) -> NDArray[np.floating[Any]]:
    """Return -scale log(u) with u in (0, 1] and a sign taken from a bit that u does not use."""
    out = _prepare(size, scale, dtype)
    flat = out.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        words = _words(stream, part.size)
        magnitude = _uniform(words)
        magnitude += _ONE
        magnitude *= _UNIT
        np.log(magnitude, out=magnitude)
        magnitude *= scale
        sign = (words & np.uint64(1)).astype(np.float64)
        sign *= _MINUS_TWO
        sign += _ONE
        part[...] = magnitude * sign
    return out
