"""Privacy-critical: draws whose rounding to a grid has the law of the real-valued draw.

A draw is `(m + 1/2) c` for the cell `m = floor(G / c)` of a real number G of the ideal law, c the
power of two `2^(e - 38)` (Gaussian) or `2^(e - 40)` (Laplace) where `2^e <= scale < 2^(e + 1)`. No
such number lies on a half-way point of a grid with a spacing D = 2^j >= 2c, and none lies on the
other side of one than G, so `rint(draw / D)` *is* `rint(G / D)`: the grid need not be known here,
and nothing is rounded twice.

How G is drawn
--------------
Ziggurat (Marsaglia and Tsang, 2000): the region under `f(x) = exp(-h(x))`, x >= 0, `h = x^2/2` or
`x`, is covered by layers of equal area v; layer i >= 1 is the rectangle of width x_i between the
heights `y_i` and `y_i + v / x_i`, layer 0 is `[0, r] x [0, f(r)]` and the tail beyond r. Then
`G = scale x_i U` with U uniform on [-1, 1). What is usual in a ziggurat, and what is not:

- The widths are binary fractions rounded *up*, the heights their exact consequence (kept in
  Decimal), so each layer has exactly the area v whatever the rounding, and a point that is
  accepted is uniform under the curve. A point is accepted without a look at the curve only if it
  is about 2^-28 away from it or more.
- U is a real number: 53 bits decide almost every draw; where the product comes near the border of
  a cell, another 52 bits and whole numbers decide.
- The tail is made of blocks that halve: `x = r + (J + U) w`, J geometric (counted bits),
  `w = log 2 / h'(r)`, kept with probability `exp(-h(x) + h(r)) 2^J`. No logarithm is taken of a
  random number anywhere, so the position of a draw depends on IEEE products alone and the
  same words give the same draws on every machine. (A function of the mathematics library decides
  only whether a point close to the curve is kept.)

How close the law is
--------------------
For one draw, rounded to a grid of spacing D, the total variation from the ideal law is below
`2^-56 + 2^-51 c / D`:

- Rounding at the curve. At most .65 % of the draws are compared with it; the threshold is right to
  2^-49 (`expm1` taken to be right to four units in the last place, and eight more roundings), the
  uniform is a middle of 2^52 parts: together below .0065 (2^-49 + 2^-53) < 2^-56.1. The shares of
  layer 0 and of its tail (2^-62), the tail's own thresholds (2^-62) and its end after 53 blocks
  (2^-64) fit into the rest.
- Position. Whole numbers give the cell of the middle of what 105 bits of U leave open; it is less
  than 2^-53 cells away from G (in fact 2^-60), and G is as near as that to a half-way point with
  probability `2 (2^-53 c) / D`, times 2 for a D near the scale.
- Truncation of the tails and bits of the uniforms: none beyond those named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .ziggurat_points import Layer, exact_cell, point, threshold, uniform

Mechanism: TypeAlias = Literal["gaussian", "laplace"]
Words: TypeAlias = Callable[[int], NDArray[np.int64]]
"""Returns the next independent 64-bit words of a stream."""
Vector: TypeAlias = NDArray[np.float64]

LAYERS = 1024
CELL_BITS: dict[Mechanism, int] = {"gaussian": 38, "laplace": 40}
"""A cell is 2^-bits of the largest power of two that is at most the scale."""
CURVE_ERROR = 2.0**-56
POSITION_ERROR = 2.0**-51

_TAIL: dict[Mechanism, float] = {"gaussian": 264690 / 65536, "laplace": 606611 / 65536}
"""Where the tail begins: as far out as the top layer still reaches over f(0) = 1."""
AT_ONCE = 1 << 13
"""Draws whose first words are taken from the stream together."""
_FEW = 24
"""Second looks that are done one by one in less time than by arrays."""
_BITS = 2.0**-52
# Arrays of no dimension: numpy takes them as operands in half the time it takes for a number.
_LAYER, _SHIFT = np.array(LAYERS - 1), np.array(11)
_SHIFTS = {bits: np.array(bits, np.uint64) for bits in (11, 12)}
_HALF, _UNIT = np.array(0.5), np.array(_BITS)


def cell(mechanism: Mechanism, scale: float) -> float:
    """Return the width c of the cells of draws of this scale, a power of two; scale > 0."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - CELL_BITS[mechanism])


def total_variation(mechanism: Mechanism, dim: int, spacing: float, scale: float) -> float:
    """Return how far `dim` draws on a grid are from the ideal law, in total variation.

    The bound is `dim (2^-56 + 2^-51 c / D)`, derived above; it holds for `rint(g / D)` and whatever
    is computed from it, and for a byte stream that is indistinguishable from random bits.

    Parameters
    ----------
    mechanism : {"gaussian", "laplace"}
        The bound is the same for both.
    dim : int
        Draws of a message, >= 0.
    spacing : float
        D, a power of two, at least two cells: 2^-37 (Gaussian) or 2^-39 (Laplace) of the largest
        power of two that is at most the scale.
    scale : float
        sigma or b, finite and > 0.

    Returns
    -------
    float
        At most 1. A message that claims (eps, delta) for ideal noise has
        `delta + (1 + e^eps)` times this.

    Raises
    ------
    ValueError
        Naming the argument that is out of range.
    """
    if mechanism not in _TAIL:
        raise ValueError(f"mechanism is {mechanism!r}, expected one of {', '.join(_TAIL)}")
    if dim < 0:
        raise ValueError(f"dim is {dim!r}, expected >= 0")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale!r}, expected a finite number > 0")
    if not (math.isfinite(spacing) and spacing > 0 and math.frexp(spacing)[0] == 0.5):
        raise ValueError(f"spacing is {spacing!r}, expected a power of two")
    width = cell(mechanism, scale)
    if spacing < 2 * width:
        raise ValueError(
            f"spacing is {spacing!r}, finer than the {2 * width!r} that noise of scale {scale!r} "
            "can be rounded to"
        )
    return min(1.0, dim * (CURVE_ERROR + POSITION_ERROR * width / spacing))


@lru_cache(maxsize=2)
def ziggurat(mechanism: Mechanism) -> Ziggurat:
    """Return the sampler, built when it is first needed (30 ms)."""
    return Ziggurat(mechanism)


class Ziggurat:
    """Draws of the law exp(-h(|x|)), h = x^2/2 (Gaussian) or x (Laplace).

    Attributes
    ----------
    widths, inner, gains, floors : (LAYERS,) float64
        x_i; the share of a layer that is under the curve for certain, in units of 2^-52; and the
        threshold `(f(x) - y_i) x_i / v = gains_i expm1(h(x_i) - h(x)) + floors_i`.
    start, block : float
        r and the length w of the first block of the tail.
    top : float
        Height of the last layer's upper edge, >= f(0) = 1.
    """

    __slots__ = (
        "_layers",
        "_limits",
        "block",
        "floors",
        "gains",
        "gaussian",
        "inner",
        "mechanism",
        "start",
        "top",
        "widths",
    )

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism: Mechanism = mechanism
        self.gaussian = mechanism == "gaussian"
        self.start = start = _TAIL[mechanism]
        self.block = math.ceil(math.log(2) / (start if self.gaussian else 1) * 2**30) * 2.0**-30
        self._build()
        # Half a unit of U and two roundings of the product, each at most 2^-53 of x_i ratio.
        self._limits = 0.5 - 3.01 * 2.0**-53 * self.widths * 2.0 ** (CELL_BITS[mechanism] + 1)
        columns = (self.widths, self.inner, self.gains, self.floors, self._limits)
        self._layers = [Layer(*row) for row in np.stack(columns, axis=1).tolist()]

    def _build(self) -> None:
        """Stack the layers; the sums that cancel are in Decimal."""
        start = self.start
        widths, gains, floors = [], [0.0], [2.0]
        with localcontext() as context:
            context.prec = 30
            height = self._density(start)
            width = start + self._tail_length()
            area = Decimal(width) * height
            widths.append(width)
            width = start
            while len(widths) < LAYERS:
                here, density = Decimal(width), self._density(width)
                widths.append(width)
                gains.append(float(density * here / area))
                floors.append(float((density - height) * here / area))
                height += area / here
                width = self._reach(min(1.0, float(height)))
            self.top = float(height)
        if self.top < 1:
            raise ArithmeticError(f"the layers end at {self.top}, below the curve")
        self.widths = np.array(widths)
        self.gains, self.floors = np.array(gains), np.array(floors)
        inside = np.append(self.widths[1:], 0.0) - 2.0**-28
        inside[0] = start
        self.inner = inside / self.widths * 2.0**52

    def _density(self, x: float) -> Decimal:
        exact = Decimal(x)
        return (-exact * exact / 2 if self.gaussian else -exact).exp()

    def _tail_length(self) -> float:
        """Return the area of the tail over f(r)."""
        r = self.start
        if not self.gaussian:
            return 1.0
        return math.sqrt(math.pi / 2) * math.erfc(r / math.sqrt(2)) * math.exp(r * r / 2)

    def _reach(self, height: float) -> float:
        """Return where the curve has this height, rounded up by 2^-30 to 2^-29."""
        drop = -math.log(height)
        return math.ceil((math.sqrt(2 * drop) if self.gaussian else drop) * 2**30 + 1) * 2.0**-30

    def draw(self, words: Words, size: int, scale: float) -> Vector:
        """Return `size` independent draws; takes `size` words and then those of second looks.

        Parameters
        ----------
        words : callable
            Stream of independent 64-bit words.
        size : int
            Number of draws.
        scale : float
            sigma or b, finite and > 0.
        """
        width = cell(self.mechanism, scale)
        ratio = scale / width
        steps = self.widths * (ratio * _BITS)
        unit = np.array(width)
        out = np.empty(size)
        doubts = []
        for begin in range(0, size, AT_ONCE):
            end = min(begin + AT_ONCE, size)
            some = words(end - begin)
            layer, position = some & _LAYER, _positions(some)
            cells, doubt = self._cells(layer, position, steps)
            np.multiply(cells, unit, out=out[begin:end])
            np.abs(position, out=position)
            doubt |= position >= self.inner.take(layer)
            index = doubt.nonzero()[0]
            if index.size:
                doubts.append((index + begin, some[index]))
        if doubts:
            index, some = doubts[0]
            if len(doubts) > 1:
                index, some = (np.concatenate(parts) for parts in zip(*doubts, strict=True))
            look = self._look_at_few if index.size <= _FEW else self._look_at_many
            out[index] = look(words, some, ratio) * unit
        return out

    def draw_each(self, streams: Sequence[Words], size: int, scales: Vector) -> Vector:
        """Return `size` draws from each of several streams, (N, size): what `draw` takes from it.

        Parameters
        ----------
        streams : sequence of callables
        size : int
            Draws of a stream, at most `AT_ONCE`.
        scales : (N, 1) array
            The scale of each, > 0.
        """
        units = np.array([[cell(self.mechanism, scale)] for scale in scales[:, 0].tolist()])
        ratios = scales / units
        some = np.stack([words(size) for words in streams])
        layer, position = some & _LAYER, _positions(some)
        cells, doubt = self._cells(layer, position, self.widths, ratios * _BITS)
        np.abs(position, out=position)
        doubt |= position >= self.inner.take(layer)
        for row in np.flatnonzero(doubt.any(axis=1)).tolist():
            index = doubt[row].nonzero()[0]
            look = self._look_at_few if index.size <= _FEW else self._look_at_many
            cells[row, index] = look(streams[row], some[row, index], float(ratios[row, 0]))
        cells *= units
        return cells

    def _cells(
        self, layer: NDArray[np.int64], position: Vector, steps: Vector, unit: Vector | None = None
    ) -> tuple[Vector, NDArray[np.bool_]]:
        """Return the middle of each cell, and whether it may be another one."""
        product = steps.take(layer)
        if unit is not None:
            product *= unit
        product *= position
        cells = np.floor(product)
        cells += _HALF
        product -= cells
        np.abs(product, out=product)
        return cells, product > self._limits.take(layer)

    def _look_at_many(self, words: Words, some: NDArray[np.int64], ratio: float) -> Vector:
        """Decide which points are under the curve, and redraw those that are not."""
        tails: list[int] = []
        layer, position = some & _LAYER, _positions(some)
        open_ = (np.abs(position) >= self.inner.take(layer)).nonzero()[0]
        while open_.size:
            layers = layer.take(open_)
            if not layers.all():
                tails += open_[layers == 0].tolist()
            bits, new = words(2 * open_.size).reshape(2, -1)
            share = np.abs(position.take(open_)) * _UNIT
            above = _uniforms(bits) >= self._threshold(layers, share)
            open_, new = open_[above], new[above]
            layers, place = new & _LAYER, _positions(new)
            layer[open_], position[open_] = layers, place
            open_ = open_[np.abs(place) >= self.inner.take(layers)]
        cells, unsure = self._cells(layer, position, self.widths * (ratio * _BITS))
        unsure[tails] = True
        index = unsure.nonzero()[0]
        if index.size:
            points = zip(layer[index].tolist(), position[index].tolist(), strict=True)
            unsettled = dict(zip(index.tolist(), points, strict=True))
            cells[index] = self._exact_cells(words, some.size, unsettled, tails, ratio)
        return cells

    def _look_at_few(self, words: Words, some: NDArray[np.int64], ratio: float) -> Vector:
        """Do the same, point by point, with the same words."""
        layers, gaussian, unit = self._layers, self.gaussian, ratio * _BITS
        tails: list[int] = []
        points = [point(word, LAYERS) for word in some.tolist()]
        open_ = [i for i, (layer, place) in enumerate(points) if abs(place) >= layers[layer][1]]
        while open_:
            drawn = words(2 * len(open_)).tolist()
            again = []
            for i, bits, word in zip(open_, drawn, drawn[len(open_) :], strict=False):
                layer, place = points[i]
                width, _, gain, floor, _ = layers[layer]
                if layer == 0:
                    tails.append(i)
                share = abs(place) * _BITS
                if uniform(bits) >= threshold(width, gain, floor, share, gaussian, math.expm1):
                    layer, place = points[i] = point(word, LAYERS)
                    if abs(place) >= layers[layer][1]:
                        again.append(i)
            open_ = again
        cells, unsettled = [], {}
        for i, (layer, place) in enumerate(points):
            width, _, _, _, limit = layers[layer]
            product = width * unit * place
            cell_ = math.floor(product) + 0.5
            cells.append(cell_)
            if abs(product - cell_) > limit:
                unsettled[i] = points[i]
        for i in tails:
            unsettled[i] = points[i]
        if unsettled:
            exact = self._exact_cells(words, len(points), unsettled, tails, ratio)
            for i, cell_ in zip(unsettled, exact, strict=True):
                cells[i] = cell_
        return np.array(cells)

    def _exact_cells(
        self,
        words: Words,
        count: int,
        unsettled: dict[int, tuple[int, float]],
        tails: list[int],
        ratio: float,
    ) -> list[float]:
        """Return the cells of those of `count` points that need more bits, the tails among them."""
        beyond = {}
        if tails:
            beyond = dict(zip(tails, zip(*self._tail(words, len(tails)), strict=True), strict=True))
        bits = words(count).tolist()
        cells = []
        for i, (layer, position) in unsettled.items():
            width, place, offset = self._layers[layer].width, position, 0.0
            if i in beyond:
                block, within = beyond[i]
                width, place = self.block, math.copysign(within, position)
                offset = math.copysign(self.start + block * width, position)
            cells.append(exact_cell(place, bits[i], width, offset, ratio))
        return cells

    def _threshold(self, layer: NDArray[np.int64], share: Vector) -> Vector:
        numbers = (self.widths.take(layer), self.gains.take(layer), self.floors.take(layer))
        return threshold(*numbers, share, self.gaussian, np.expm1)

    def _tail(self, words: Words, count: int) -> tuple[Vector, Vector]:
        """Return the block J and the place in it, in units of 2^-52, of draws beyond r."""
        blocks, within = np.empty(count), np.empty(count)
        todo = np.arange(count)
        while todo.size:
            first, second, third = words(3 * todo.size).reshape(3, -1)
            # The number of zero bits before the first one.
            block = (53 - np.frexp(_whole(first, 11))[1]).astype(np.float64)
            place = _whole(second, 12) + _HALF
            share = place * _UNIT
            length = (block + share) * self.block
            drop = math.log(2) * share
            if self.gaussian:
                drop += _HALF * length * length
            kept = _uniforms(third) < np.exp(-drop)
            blocks[todo[kept]], within[todo[kept]] = block[kept], place[kept]
            todo = todo[~kept]
        return blocks, within


def _positions(words: NDArray[np.int64]) -> Vector:
    """Return the upper 53 bits, signed, as m + 1/2: the middle of what they leave open."""
    position: Vector = (words >> _SHIFT).astype(np.float64)
    position += _HALF
    return position


def _whole(words: NDArray[np.int64], shift: int) -> Vector:
    """Return the upper 64 - shift bits as a whole number >= 0."""
    return (words.view(np.uint64) >> _SHIFTS[shift]).astype(np.float64)


def _uniforms(words: NDArray[np.int64]) -> Vector:
    """Return uniforms in (0, 1): middles of 2^52 equal parts."""
    uniform = _whole(words, 12)
    uniform += _HALF
    uniform *= _UNIT
    return uniform
