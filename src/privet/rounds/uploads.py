"""The accepted uploads of a round, as a server folds them: in blocks of rows, and their sums.

An upload that came in a message is a block of one row; the results of agents that worked together
are a block of many. Blocks are in folding order, and results computed from a block have the same
bits as those computed one row after the other. Large uploads are kept on disk and loaded one at a
time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privet.agents.half import Arrays, Half
from privet.agents.inputs import Vector, parts, starting_rows
from privet.agents.method import agreed_on
from privet.agents.sparsifiers import PLACES, VALUES, sparse_arrays, sparse_vector
from privet.core import NotFiniteError, UploadError, WireError
from privet.core.mapped import release
from privet.wire import finite
from privet.wire.dense import Digest, digest, digests, joined_digest
from privet.wire.payload import ENCODED
from privet.wire.ring import Shapes
from privet.wire.sparse import SparseVector, decode
from privet.wire.value_coding import decode_values

from .gaps import UNKNOWN, Gaps, mean_in_order

LARGE = 1 << 20
"""Bytes of a model above which the state after an upload is recomputed instead of kept."""


STEP = "step of the model"
"""The name of the model's steps among the agents' gaps."""

SPARSE: Shapes = {ENCODED: ()}
"""The value of `ServerHalf.summands` for uploads of one sparse vector."""


class Block(NamedTuple):
    """Uploads of some agents, a row each.

    Attributes
    ----------
    positions : array (k,) of int
        The agents' positions, increasing.
    upload : mapping of str to array (k, ...)
    sent : mapping of str to array
        The arrays that were broadcast: to all, or a row (k, ...) for each of these agents.
    state : mapping of str to array (k, d)
        The agents' states from now on; None if they are computed when they are written.
    """

    positions: NDArray[np.intp]
    upload: Arrays
    sent: Arrays
    state: Arrays | None = None

    @property
    def where(self) -> NDArray[np.intp] | slice:
        """The index of these agents' rows in a table; a slice (so a view) for a single row."""
        first = int(self.positions[0])
        return slice(first, first + 1) if len(self.positions) == 1 else self.positions

    def rows_of(self, arrays: Arrays, dim: int) -> Arrays:
        """Return arrays with a row for each agent in place of a vector (d,) that they share."""
        if len(self.positions) == 1:
            return {n: a[None] if a.shape == (dim,) else a for n, a in arrays.items()}
        shape = (len(self.positions), dim)
        return {
            name: np.broadcast_to(array, shape) if array.shape == (dim,) else array
            for name, array in arrays.items()
        }

    def one(self, row: int) -> dict[str, Vector]:
        """Return the upload of one agent."""
        return {name: array[row] for name, array in self.upload.items()}

    def sent_to(self, row: int) -> dict[str, Vector]:
        """Return the arrays that were broadcast to one agent."""
        return starting_rows(self.sent, row)

    def sparse(self, row: int, like: Vector) -> SparseVector:
        """Return the sparse upload of one agent, of the length and dtype of ``like``."""
        upload = self.one(row)
        coded = VALUES in upload
        return sparse_vector(upload, like.size) if coded else checked_sparse(upload, like)

    def vectors(self, like: Vector) -> dict[str, Vector]:
        """Return the arrays (k, d) of the uploads; none where agents send a share of a vector.

        ``like`` (d,) has the length and dtype of the model.
        """
        if ENCODED not in self.upload:
            return {
                name: rows
                for name, rows in self.upload.items()
                if rows.ndim == 2 and rows.shape[1] == like.size
            }
        each = [self.sparse(row, like) for row in range(len(self.positions))]
        if any(vector.positions is not None for vector in each):
            return {}
        return {VALUES: np.array([vector.values for vector in each])}

    def rows(self) -> Iterator[Block]:
        """Yield a block of one row for each agent."""
        count, state = len(self.positions), self.state
        for row in range(count):
            one = slice(row, row + 1)
            yield Block(
                self.positions[one],
                {name: array[one] for name, array in self.upload.items()},
                {n: a[one] if len(np.shape(a)) > 1 else a for n, a in self.sent.items()},
                None if state is None else {name: array[one] for name, array in state.items()},
            )


class Uploads:
    """Accepted uploads, block by block in folding order.

    Parameters
    ----------
    positions : sequence of int
        The agents' positions, increasing.
    makers : sequence of callable
        Each loads a block when called.
    ages : sequence of int, optional
        By agent, how many versions of the model came after the one that it was sent; 0 for all in
        a run that waits for its agents.

    Attributes
    ----------
    gaps : Gaps, optional
        The last gaps of all enrolled agents. Without them these agents are taken to be all.
    look : callable
        Called with every block that is loaded; a fold may load one several times.
    held : bool
        Whether all blocks are in memory anyway; otherwise one at a time is.
    """

    def __init__(
        self,
        positions: Sequence[int],
        makers: Sequence[Callable[[], Block]],
        ages: Sequence[int] = (),
        *,
        held: bool = False,
    ) -> None:
        self.positions = tuple(positions)
        self.ages = tuple(ages) or (0,) * len(self.positions)
        self._makers = makers
        self.held = held
        self.gaps: Gaps | None = None
        self.look: Callable[[Block], object] = bool

    @classmethod
    def of(cls, *blocks: Block, ages: Sequence[int] = ()) -> Uploads:
        """Return some blocks as the uploads of a round."""
        positions = [position for block in blocks for position in block.positions.tolist()]
        makers: Any = [lambda block=block: block for block in blocks]
        return cls(positions, makers, ages, held=True)

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Block]:
        for make in self._makers:
            release()
            block = make()
            self.look(block)
            yield block

    def some(self, positions: Sequence[int]) -> Uploads:
        """Return the uploads of some of the agents, in order."""
        wanted = set(positions)

        def blocks() -> Iterator[Block]:
            for block in self:
                keep = np.isin(block.positions, list(wanted))
                yield Block(
                    block.positions[keep],
                    {name: array[keep] for name, array in block.upload.items()},
                    block.sent,
                )

        return Uploads.of(*(block for block in blocks() if len(block.positions)))

    def sparse(self, like: Vector) -> Iterator[tuple[int, SparseVector]]:
        """Yield every agent's position and sparse upload, of the length and dtype of ``like``."""
        for block in self:
            for row, position in enumerate(block.positions.tolist()):
                yield position, block.sparse(row, like)

    def total(self, name: str, like: Vector) -> Vector:
        """Return the sum of one array over the uploads, in order."""
        tables = (block.upload[name] for block in self)
        return sum_in_order(list(tables) if self.held else tables, like)

    def moved(
        self, name: str, center: str | Vector, weight: Callable[[int], float], like: Vector
    ) -> Vector:
        """Return the mean of weight(age) (x - c) over the uploads' arrays x, added in order.

        ``center`` is c (d,), or the name of a broadcast array.
        """
        weights = {place: weight(age) for place, age in zip(self.positions, self.ages, strict=True)}

        def tables() -> Iterator[Vector]:
            for block in self:
                near = block.sent[center] if isinstance(center, str) else center
                rows = block.upload[name] - near
                each = np.array([weights[place] for place in block.positions.tolist()], rows.dtype)
                rows *= each[:, None]
                yield rows

        total = sum_in_order(tables(), like)
        total /= total.dtype.type(len(self))
        return total

    def gap(self, name: str, center: str | Vector) -> float:
        """Return the mean over all enrolled agents of ||x_i - c||^2, each when folded last.

        It is NaN while an agent was never folded. ``center`` is c (d,) of the agents folded now, or
        the name of a broadcast array. A half asks once a round for the gap of an array x.
        """
        squares, at = np.empty(len(self)), 0
        gap: Vector | None = None
        for block in self:
            near = block.sent[center] if isinstance(center, str) else center
            rows = block.upload[name]
            if len(rows) == 1:
                gap = np.empty_like(rows[0]) if gap is None else gap
                squares[at] = squared_gap(rows[0], near.reshape(rows[0].shape), gap)
            else:
                gaps = rows - near
                squares[at : at + len(rows)] = np.matmul(gaps[:, None], gaps[:, :, None])[:, 0, 0]
            at += len(rows)
        squares[np.isnan(squares)] = math.inf
        if self.gaps is None:
            return mean_in_order(squares)
        return self.gaps.noted(name, self.positions, squares)

    def step(self, new: Vector, old: Vector, out: Vector | None = None) -> float:
        """Return the mean over all enrolled agents of ||x_new - x_old||^2, when folded last.

        It is the squared step of the model x (d,) if all agents are in the round, and NaN while an
        agent was never folded. ``out`` (d,) is overwritten, if it is given.
        """
        square = squared_gap(new, old, out)
        if self.gaps is None:
            return square
        mean = self.gaps.noted(STEP, self.positions, square)
        return square if len(self) == self.gaps.count else mean  # the mean of equal ones is rounded


def sum_in_order(tables: Iterable[Vector], like: Vector) -> Vector:
    """Return the sum of the rows of tables (k, ...), as if they were added one at a time.

    Long rows that are all in memory, in a list of tables, are added part by part.
    """
    total: Vector = np.zeros_like(like)
    if isinstance(tables, list) and like.ndim == 1 and like.nbytes > LARGE:
        for part in parts(like.size):
            some = total[part]
            for row in (row for rows in tables for row in rows):
                some += row[part]
        return total
    for number, rows in enumerate(tables):
        if not number and len(rows) > 1 and like.size > 1:  # numpy adds single numbers in pairs
            total = np.add.reduce(rows, axis=0, initial=0)
            continue
        for row in rows:
            total += row
    return total


class Sums(ABC):
    """The sums of a round's uploads, of a run in clear or of masked ones.

    Attributes
    ----------
    positions : tuple of int
        The positions of the agents whose uploads are in the sums.
    groups : mapping of str to Sums
        The sums by unit, if the algorithm divides its agents into units (`GroupedHalf`).
    """

    positions: tuple[int, ...]
    groups: Mapping[str, Sums]

    @abstractmethod
    def mean(self, name: str, like: Vector) -> Vector:
        """Return the mean of one array over the uploads, of the shape and dtype of ``like``."""

    @abstractmethod
    def total(self, name: str) -> Vector:
        """Return the sum of one array over the uploads; float64 if they are masked."""

    @abstractmethod
    def sent(self, name: str) -> Vector:
        """Return the sum over these agents of the broadcast array of this name, in float64."""

    @abstractmethod
    def gap(self, name: str, center: str | Vector) -> float:
        """Return the mean of ||x_i - c||^2 over all enrolled agents, see `Uploads.gap`.

        Of masked uploads it is the square of the mean ||x_i - c||, each at most 64, and NaN unless
        all enrolled agents are in the sum.
        """

    @abstractmethod
    def step(self, new: Vector, old: Vector) -> float:
        """Return the mean of ||x_new - x_old||^2 over all enrolled agents, see `Uploads.step`.

        Of masked uploads it is that of this round, and NaN unless all enrolled agents are in it.
        """


class ClearSums(Sums):
    """Sums of uploads in clear, each computed when it is read."""

    def __init__(self, uploads: Uploads, group: Callable[[int], str] | None = None) -> None:
        self.positions, self._uploads, self._group = uploads.positions, uploads, group

    @cached_property
    def groups(self) -> Mapping[str, Sums]:  # type: ignore[override]
        members: dict[str, list[int]] = {}
        for position in self.positions:
            if self._group is not None:
                members.setdefault(self._group(position), []).append(position)
        return {name: ClearSums(self._uploads.some(some)) for name, some in members.items()}

    def mean(self, name: str, like: Vector) -> Vector:
        total = self._uploads.total(name, like)
        total /= total.dtype.type(len(self.positions))
        return total

    def total(self, name: str) -> Vector:
        first = next(iter(self._uploads))
        return self._uploads.total(name, first.upload[name][0])

    def sent(self, name: str) -> Vector:
        total: Any = 0.0
        for block in self._uploads:
            array = block.sent[name]
            rows = array.sum(axis=0, dtype=np.float64) if array.ndim > 1 else array
            total = total + rows * (1 if array.ndim > 1 else len(block.positions))
        return np.asarray(total, np.float64)

    def gap(self, name: str, center: str | Vector) -> float:
        return self._uploads.gap(name, center)

    def step(self, new: Vector, old: Vector) -> float:
        return self._uploads.step(new, old)


class MaskedTotals(Sums):
    """Sums of masked uploads: the server has the sums and no single upload.

    Parameters
    ----------
    arrays : mapping of str to float64 array
        Exact sums of numbers that the agents rounded to multiples of 2^-40, as they were sent;
        ``distance``, if there is one, is the sum of ||x - c||.
    positions : sequence of int
        The positions of the agents whose uploads were added.
    sent : mapping of str to array
        The arrays that were broadcast to all of them.
    groups : mapping of str to Sums, optional
    enrolled : int
        The number of enrolled agents; 0: these are all.
    """

    def __init__(
        self,
        arrays: Mapping[str, Vector],
        positions: Sequence[int],
        sent: Arrays,
        groups: Mapping[str, Sums] | None = None,
        enrolled: int = 0,
    ) -> None:
        self.arrays, self.positions = arrays, tuple(positions)
        self._sent, self.groups = sent, groups or {}
        self._of_all = enrolled in (0, len(self.positions))

    @classmethod
    def joined(
        cls, groups: Mapping[str, MaskedTotals], sent: Arrays, enrolled: int = 0
    ) -> MaskedTotals:
        """Return the sums over all groups."""
        names = {name for one in groups.values() for name in one.arrays}
        arrays = {
            name: np.add.reduce([one.arrays[name] for one in groups.values()]) for name in names
        }
        positions = sorted(place for one in groups.values() for place in one.positions)
        return cls(arrays, positions, sent, groups, enrolled)

    def mean(self, name: str, like: Vector) -> Vector:
        mean = self.arrays[name] / len(self.positions)
        return mean.astype(like.dtype, copy=False)

    def total(self, name: str) -> Vector:
        return self.arrays[name]

    def sent(self, name: str) -> Vector:
        return np.multiply(self._sent[name], len(self.positions), dtype=np.float64)

    def gap(self, name: str, center: str | Vector) -> float:
        mean = float(self.arrays["distance"]) / len(self.positions)
        return mean * mean if self._of_all else UNKNOWN

    def step(self, new: Vector, old: Vector) -> float:
        return squared_gap(new, old) if self._of_all else UNKNOWN


# ---------------------------------------------------------------------- the check of an upload


def checked(upload: Arrays, name: str, shape: tuple[int, ...], like: Vector) -> Vector:
    """Return one array of uploads, rows of a shape and of the dtype of ``like``, and finite.

    Raises
    ------
    UploadError
        With a named reason (shape, dtype, numbers that are not finite).
    """
    array = upload.get(name)
    if array is None or array.shape[1:] != shape or array.dtype != like.dtype:
        actual = f"{name} of shape {array.shape[1:]} {array.dtype}" if array is not None else ""
        raise UploadError(f"upload has {actual or f'no {name}'}, expected {shape} {like.dtype}")
    return array


def checked_sparse(upload: Arrays, like: Vector, reference: Vector | None = None) -> SparseVector:
    """Return the sparse vector of one agent's upload, of the length and dtype of ``like`` (d,).

    Its numbers may be coded, as differences to ``reference`` (d,); it may be a view on the message.

    Raises
    ------
    UploadError, WireError
        If it is not one; `require_finite` checks that its numbers are finite.
    """
    if ENCODED not in upload:
        raise UploadError(
            f"upload holds {', '.join(upload) or 'nothing'}, expected a sparse vector"
        )
    vector = decode(upload[ENCODED], max_dim=like.size, reference=reference)
    if vector.dim != like.size or vector.values.dtype != like.dtype:
        raise UploadError(
            f"upload is of length {vector.dim} in {vector.values.dtype}, expected "
            f"{like.size} in {like.dtype}"
        )
    return vector


def require_finite(array: Vector) -> None:
    """Raise `NotFiniteError` for numbers that are not finite, or too large to compute with."""
    if not finite(array):
        raise NotFiniteError("upload holds numbers that are not finite, or too large")


def require_all_finite(agreed: tuple[Vector, ...], upload: Arrays) -> None:
    """As `require_finite`, of what follows of an upload and of what was uploaded."""
    for array in {id(one): one for one in (*agreed, *upload.values())}.values():
        require_finite(array)


def decoded(upload: Arrays, reference: Arrays, like: Vector, most: int) -> Arrays:
    """Return one agent's upload with its coded arrays decoded, before it is accepted.

    ``reference`` are the arrays that both sides hold to code against (`Half.reference`). An array
    that came uncoded is returned as it is.

    Raises
    ------
    WireError
        If a code is not one of as many numbers as the model (d,) ``like`` has, or there are more
        than ``most``: a few bytes may stand for a whole model.
    """
    coded = {
        name: array for name, array in upload.items() if array.dtype == np.uint8 and name != ENCODED
    }
    if len(coded) > most:
        raise WireError(f"upload has {len(coded)} coded arrays")
    return {
        **upload,
        **{
            name: decode_values(array, like.size, like.dtype, reference.get(name))
            for name, array in coded.items()
        },
    }


# ---------------------------------------------------------------------- the states after uploads


def followed(
    half: Half, held: Arrays, block: Block, shapes: Shapes, like: Vector
) -> tuple[Block, NDArray[np.uint64]]:
    """Check uploads; return them with the agents' states from now on, and the states' digests.

    Parameters
    ----------
    held : mapping of str to array (k, d)
        The agents' states before; an array that they share may be (d,).
    shapes : mapping of str to shape
        The shapes of an upload's arrays; `SPARSE` for one sparse vector of ``like``'s length.
    like : array (d,)
        An array of the model's size and dtype.

    Raises
    ------
    UploadError
        With a named reason (shape, dtype, numbers that are not finite).
    """
    if ENCODED in shapes:
        return _followed_sparse(half, held, block, like)
    upload = {name: checked(block.upload, name, shape, like) for name, shape in shapes.items()}
    block = block._replace(upload=upload)
    if like.nbytes > LARGE and len(block.positions) == 1:
        return block, _followed_in_parts(half, held, block, like.size)
    before, sent = (block.rows_of(arrays, like.size) for arrays in (held, block.sent))
    new = half.follow(before, sent, upload)
    agreed = agreed_on(new, upload, coded=half.codes)
    require_all_finite(agreed, upload)
    return block._replace(state=new), joined_digest(map(digests, agreed))


def _followed_sparse(
    half: Half, held: Arrays, block: Block, like: Vector
) -> tuple[Block, NDArray[np.uint64]]:
    """As `followed`, for sparse vectors, agent by agent; the uploads are kept as they came.

    That is as a view on the message, whatever d and k are; vectors that are coded or whole are kept
    decoded.
    """
    digests_of = []
    for row in range(len(block.positions)):
        before, sent = starting_rows(held, row), block.sent_to(row)
        near = half.reference(before, sent).get(VALUES) if half.codes else None
        upload = sparse_arrays(checked_sparse(block.one(row), like, near))
        new = half.follow(before, sent, upload)
        agreed = agreed_on(new, {VALUES: upload[VALUES]}, coded=half.codes)
        require_all_finite(agreed, {VALUES: upload[VALUES]})
        digests_of.append(joined_digest(map(digest, agreed)))
        # One in a message of its own; places that are decoded take more memory than their code.
        if half.codes or (PLACES not in upload and len(block.positions) == 1):
            block = block._replace(upload={name: array[None] for name, array in upload.items()})
    return block, np.array(digests_of, np.uint64)


def _followed_in_parts(half: Half, held: Arrays, block: Block, dim: int) -> NDArray[np.uint64]:
    """Return the digest of the state after a large upload, computed part by part."""
    made: list[Digest] = []
    for part in parts(dim):
        upload = in_part(block.upload, part, dim)
        new = half.follow(in_part(held, part, dim), in_part(block.sent, part, dim), upload)
        agreed = agreed_on(new, upload, coded=half.codes)
        require_all_finite(agreed, upload)
        made = made or [Digest() for _ in agreed]
        for one, array in zip(made, agreed, strict=True):
            one.add(array)
    return np.array([joined_digest(one.value for one in made)], np.uint64)


def in_part(arrays: Arrays, part: slice, dim: int) -> Arrays:
    """Return a part of every array whose rows are as long as the model; others as they are."""
    return {
        name: array[..., part] if array.ndim and array.shape[-1] == dim else array
        for name, array in arrays.items()
    }


def squared_gap(x: Vector, y: Vector, out: Vector | None = None) -> float:
    """Return ||x - y||^2, computed in ``out`` if that is given; infinity if it is not a number."""
    gap = np.subtract(x, y, out=out)
    square = float(gap.dot(gap))
    return math.inf if math.isnan(square) else square
