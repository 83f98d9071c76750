"""Sparsified uploads of a vector: the choice of coordinates, their noise and their bytes.

Charged noise is on all of the vector before anything is chosen; with it, only choices that cost
nothing are certified (`privet.kernel.check_sparsifier`):

* rand-k: k random coordinates by a public seed of (run, agent, round); the seed travels alone;
* public-top-k: the largest coordinates of the public broadcast, and a quarter drawn by public seed,
  without which a coordinate that once was zero would never be sent;
* noisy-top-k: noise on all d coordinates, then the k largest: post-processing.

Plain top-k sends an index set that is an un-noised function of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError
from privet.kernel import Records
from privet.kernel.streams import Streams
from privet.wire.ring import rounded
from privet.wire.sparse import SparseVector, encode
from privet.wire.sparse.selection import budget, index_seed, rand_k, top_k

from .inputs import Arrays, Vector
from .value_bits import Coder

VALUES, PLACES = "values", "places"
"""Names of the arrays of a sparse vector: its numbers and their coordinates."""


def sparse_arrays(vector: SparseVector) -> dict[str, Vector]:
    """Return a sparse vector as arrays by name; without places where it has all coordinates."""
    places = {} if vector.positions is None else {PLACES: vector.positions}
    return {VALUES: vector.values, **places}


def sparse_vector(arrays: Arrays, dim: int) -> SparseVector:
    """Return the sparse vector of `sparse_arrays`, of length ``dim``."""
    return SparseVector(dim, arrays[VALUES], arrays.get(PLACES))


@dataclass(frozen=True, slots=True)
class Choice:
    """A sparsifier, its budget as a number or (0) as a share, and the noise on the values."""

    sparsifier: str
    count: int
    share: float
    noise_scale: float

    def keeps_all(self, dim: int) -> bool:
        """Whether every coordinate is sent."""
        return self.sparsifier == "none" or budget(self.count, self.share, dim) == dim


def choose(
    choice: Choice,
    y: Vector,
    center: Vector,
    streams: Streams | None,
    records: Records | None,
    coder: Coder | None = None,
    reference: Vector | None = None,
) -> tuple[bytes, SparseVector]:
    """Return the bytes of what is sent of y, and the same as a vector.

    Parameters
    ----------
    y : array (d,)
        With its noise, where a mechanism was charged.
    records : Records, optional
        None where the agent adds none.
    center : array (d,)
        What the server broadcast: public.
    coder : Coder, optional
        Codes the values as differences to ``reference`` (d,); the vector is as it is decoded.

    Privacy: with the charged noise on all of y, what is chosen by public numbers, or from y
    itself, is post-processing. Un-accounted noise is added here to the values that are sent.
    """
    values, places, seed = _chosen(choice, y, center, streams, records)
    code = b""
    if coder is not None:
        near = reference if reference is None or places is None else reference[places]
        values, code = coder(values, near)
    sparse = SparseVector(y.size, values, places)
    if places is None:
        return encode(values, code=code), sparse
    if seed is not None:
        return encode(values, dim=y.size, seed=seed, code=code), sparse
    return encode(values, places, y.size, code=code), sparse


def _chosen(
    choice: Choice, y: Vector, center: Vector, streams: Streams | None, records: Records | None
) -> tuple[Vector, NDArray[np.intp] | None, int | None]:
    """Return what is sent of y, where (None: all of it), and the seed that stands for that."""
    dim = y.size
    k = budget(choice.count, choice.share, dim)
    if choice.sparsifier == "noisy-top-k":
        y = _noised(choice, y, records)
        places = top_k(y, k)
        return y[places], None if k == dim else places, None
    if choice.sparsifier == "top-k":
        places = top_k(y, k)
        values = y[places]
        if choice.noise_scale > 0 and records is not None and not records.charged:
            # The draws belong to the entries in descending order of magnitude.
            order = np.argsort(-np.abs(values), kind="stable")
            values[order] = _noised(choice, values[order], records)
        return values, None if k == dim else places, None
    if choice.keeps_all(dim):
        return _noised(choice, y, records), None, None
    if streams is None:
        raise ConfigError(f"{choice.sparsifier} draws, and has no stream to draw from")
    seed = index_seed(streams.seed, streams.agent, streams.round)
    if choice.sparsifier == "rand-k":
        places = rand_k(seed, dim, k)
        return _noised(choice, y[places], records), places, seed
    places = _public_places(center, k, seed)
    return _noised(choice, y[places], records), None if len(places) == dim else places, None


def choose_shared(
    choice: Choice, y: Vector, seed: int | None, records: Records | None
) -> SparseVector:
    """Return what is sent of y with a secure sum: all, or k coordinates by the round's own seed.

    Rounded to multiples of 2^-40 after the noise: what is added up is exactly what is returned.
    """
    if choice.keeps_all(y.size):
        return SparseVector(y.size, rounded(_noised(choice, y, records)))
    if choice.sparsifier != "rand-k" or seed is None:
        raise ConfigError("a secure sum needs all coordinates, or rand-k with a seed for all")
    places = rand_k(seed, y.size, budget(choice.count, choice.share, y.size))
    return SparseVector(y.size, rounded(_noised(choice, y[places], records)), places)


def _noised(choice: Choice, values: Vector, records: Records | None) -> Vector:
    """Return values with noise that no account covers; as they are where a mechanism has it."""
    if records is None or records.charged or choice.noise_scale <= 0:
        return values
    return records.un_noised.perturb(values, choice.noise_scale).astype(values.dtype, copy=False)


def _public_places(center: Vector, k: int, seed: int) -> NDArray[np.intp]:
    """Return 3k/4 largest coordinates of the broadcast and the rest at random among the others."""
    chosen = np.zeros(center.size, np.bool_)
    largest = top_k(center, k - k // 4)
    chosen[largest[center[largest] != 0]] = True
    others = np.flatnonzero(~chosen)
    missing = k - int(np.count_nonzero(chosen))
    chosen[others[rand_k(seed, len(others), missing)]] = True
    return np.flatnonzero(chosen)
