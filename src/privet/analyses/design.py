"""The design matrix of a formula: the same columns at every site, whatever its rows hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped
from privet.core.ordered import paired

from .coding import CodedBlock, Factored, blocks
from .formula import Formula, Piece
from .frame import AnalysisError, Codes, FloatArray, Frame, Levels


@dataclass(frozen=True)
class Design:
    """The columns of a formula's linear predictor, by the formula and the agreed levels alone."""

    formula: Formula
    levels: Levels
    blocks: tuple[CodedBlock, ...]

    @classmethod
    def of(cls, formula: Formula, levels: Levels) -> Design:
        """Return the design of a formula (raises ``AnalysisError`` as `coding.blocks` does)."""
        return cls(formula, levels, blocks(formula, levels))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, as patsy has them."""
        return tuple(name for block in self.blocks for name in block.names)

    @property
    def terms(self) -> dict[str, tuple[int, ...]]:
        """By term, the places of its columns."""
        found: dict[str, tuple[int, ...]] = {}
        start = 0
        for block in self.blocks:
            places = tuple(range(start, start + len(block.names)))
            found[block.term] = found.get(block.term, ()) + places
            start += len(places)
        return found

    @property
    def ones(self) -> FloatArray:
        """The vector a (p,) of 0 and 1 for which X a is 1 in every row; 0 if there is none."""
        found = np.zeros(len(self.names))
        start = 0
        for block in self.blocks:
            width = len(block.names)
            if block.of_one:
                found[start : start + width] = 1.0
                break
            start += width
        return found

    def matrix(self, frame: Frame) -> FloatArray:
        """Return the matrix (n, p), float64, of rows without missing values.

        Raises
        ------
        AnalysisError
            For a column that is not there, or values that a transformation is not defined at.
        """
        matrix = mapped.scratch((frame.rows, len(self.names)), np.float64)
        start = 0
        for part in frame.blocks(len(self.names)) if frame.rows else [frame]:
            self._fill(matrix[start : start + part.rows], part)
            start += part.rows
        return matrix

    def _fill(self, matrix: FloatArray, frame: Frame) -> None:
        place = 0
        for block in self.blocks:
            parts = [self._columns(factor, frame) for factor in block.factors]
            for pick in block.picks:
                column = np.ones(frame.rows)
                with np.errstate(over="ignore", invalid="ignore"):
                    for part, one in zip(parts, pick, strict=True):
                        column *= part[one]
                if not np.isfinite(column).all():
                    raise AnalysisError(f"{self.names[place]} is too large{_of(frame)}")
                matrix[:, place] = column
                place += 1

    def cells(self, frame: Frame) -> list[tuple[str, Codes]]:
        """Return for each product of categories in a term which of them every row has (n,).

        Codes are from 0 on, of those that occur; the reference is one (raises ``AnalysisError`` as
        `matrix`).
        """
        found: dict[frozenset[str], tuple[str, Codes]] = {}
        width = len(self.names)
        for block in self.blocks:
            names = [one.piece.column for one in block.factors if one.piece.kind == "C"]
            if not names or frozenset(names) in found:
                continue
            joint = np.zeros(frame.rows, np.int32)
            for name in names:
                codes = codes_of(frame, name, self.levels)
                joint = paired(joint, codes, len(self.levels[name]))
            found[frozenset(names)] = (":".join(names), mapped.kept(joint, 8 * frame.rows * width))
        return list(found.values())

    def _columns(self, factor: Factored, frame: Frame) -> Sequence[FloatArray]:
        if factor.piece.kind != "C":
            return numbers_of(factor.piece, frame)
        codes = codes_of(frame, factor.piece.column, self.levels)
        return [(codes == code).astype(np.float64) for code in factor.codes]


def complete_cases(
    frame: Frame, columns: Sequence[str]
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return which rows have a value in all columns, and how many lack one, by column.

    The key "" counts the rows that lack any.

    Raises
    ------
    AnalysisError
        For a column that is not there.
    """
    complete = np.ones(frame.rows, bool)
    counts: dict[str, int] = {}
    for name in columns:
        if name in frame.numbers:
            missing = np.isnan(frame.numbers[name])
        elif name in frame.factors:
            missing = frame.factors[name].codes < 0
        else:
            raise AnalysisError(f"column {name!r} is not in the table{_of(frame)}")
        counts[name] = int(missing.sum())
        complete &= ~missing
        mapped.release()
    return complete, {"": int((~complete).sum()), **counts}


def codes_of(frame: Frame, column: str, levels: Levels) -> NDArray[np.int32]:
    """Return a column's positions (n,) in the agreed levels (raises ``AnalysisError``)."""
    try:
        return frame.factor(column).among(levels[column])
    except AnalysisError as error:
        raise AnalysisError(f"column {column!r}{_of(frame)}: {error}") from None


def numbers_of(piece: Piece, frame: Frame) -> list[FloatArray]:
    """Return the columns (n,) of a piece that is numbers (raises ``AnalysisError``).

    ``rcs`` gives x and, for knots t_1 < ... < t_k, the k - 2 columns
    ((x - t_j)_+^3 - (x - t_{k-1})_+^3 (t_k - t_j) / (t_k - t_{k-1})
    + (x - t_k)_+^3 (t_{k-1} - t_j) / (t_k - t_{k-1})) / (t_k - t_1)^2:
    Harrell, Regression Modeling Strategies, 2nd edition, section 2.4.5.
    """
    if piece.kind in _LOWEST:
        _within(piece, frame)
    return _numbers(piece, frame)


def _numbers(piece: Piece, frame: Frame) -> list[FloatArray]:
    """As `numbers_of`; not finite where a piece is not defined, or too large."""
    values = column_of(frame, piece.column)
    with np.errstate(all="ignore"):
        if piece.kind == "rcs":
            return _spline(values, piece.numbers)
        if piece.kind == "I":
            return [values ** int(piece.numbers[0])]
        return [values] if piece.kind == "column" else [_FUNCTIONS[piece.kind](values)]


def column_of(frame: Frame, column: str) -> FloatArray:
    """Return a column of finite numbers (n,) (raises ``AnalysisError``)."""
    if column in frame.factors:
        raise AnalysisError(
            f"column {column!r} holds texts{_of(frame)}; agree on its categories, or leave it out"
        )
    if column not in frame.numbers:
        raise AnalysisError(f"column {column!r} is not in the table{_of(frame)}")
    values = frame.numbers[column]
    if np.isinf(values).any():
        raise AnalysisError(f"column {column!r} holds infinite values{_of(frame)}")
    return values


_FUNCTIONS = {"log": np.log, "log1p": np.log1p, "sqrt": np.sqrt}
_LOWEST: Mapping[str, tuple[float, str]] = {
    "log": (0.0, "above 0"),
    "log1p": (-1.0, "above -1"),
    "sqrt": (0.0, "0 or above"),
}


def unusable(piece: Piece, frame: Frame) -> NDArray[np.bool_]:
    """Return the rows (n,) at whose values a piece is not defined (raises ``AnalysisError``)."""
    if piece.kind not in _LOWEST:
        return np.zeros(frame.rows, bool)
    values, lowest = column_of(frame, piece.column), _LOWEST[piece.kind][0]
    bad: NDArray[np.bool_] = values < lowest if piece.kind == "sqrt" else values <= lowest
    return bad


def too_large(pieces: Sequence[Piece], frame: Frame) -> NDArray[np.bool_]:
    """Return the rows (n,) whose product of numbers may overflow (raises ``AnalysisError``).

    Taken is the product of the largest number of each piece, or of 1: no part of it is larger.
    """
    bad = [np.zeros(0, bool)]
    for part in frame.blocks(sum(1 + len(piece.numbers) for piece in pieces)):
        bound = np.ones(part.rows)
        with np.errstate(all="ignore"):
            for piece in pieces:
                sizes = [np.ones(part.rows), *map(np.abs, _numbers(piece, part))]
                bound *= np.max(sizes, axis=0)  # NaN where one is
        bad.append(~np.isfinite(bound))
    return np.concatenate(bad)


def undefined(formula: Formula, frame: Frame) -> list[tuple[str, NDArray[np.bool_], str]]:
    """Return for each piece of the terms a column, the rows (n,) at which it is not defined, and
    what to say where these are many; then so for each term, the rows at which it is too large.

    Raises
    ------
    AnalysisError
        For a column that is not there, or holds texts.
    """
    found = _not_defined(formula, frame)
    for term in formula.terms:
        pieces = [one for one in term if one.kind != "C" and one.column not in frame.factors]
        if len(pieces) > 1 or any(one.kind in ("I", "rcs") for one in pieces):
            name = ":".join(one.name for one in term)
            found.append((pieces[0].column, too_large(pieces, frame), f"{name} is too large"))
    return found


def _not_defined(formula: Formula, frame: Frame) -> list[tuple[str, NDArray[np.bool_], str]]:
    return [
        (
            piece.column,
            unusable(piece, frame),
            f"{piece.name} takes values {_LOWEST[piece.kind][1]}, and column {piece.column!r} has "
            "others",
        )
        for piece in dict.fromkeys(piece for term in formula.terms for piece in term)
        if piece.kind in _LOWEST
    ]


def _within(piece: Piece, frame: Frame) -> None:
    if unusable(piece, frame).any():
        words = _LOWEST[piece.kind][1]
        raise AnalysisError(
            f"{piece.name} takes values {words}, and column {piece.column!r} has others{_of(frame)}"
        )


def _spline(values: FloatArray, knots: Sequence[float]) -> list[FloatArray]:
    last, before = knots[-1], knots[-2]

    def cubed(knot: float) -> FloatArray:
        return np.maximum(values - knot, 0.0) ** 3

    columns = [values]
    for knot in knots[:-2]:
        bent = cubed(knot) - cubed(before) * ((last - knot) / (last - before))
        bent += cubed(last) * ((before - knot) / (last - before))
        columns.append(bent / (last - knots[0]) ** 2)
    return columns


def _of(frame: Frame) -> str:
    return f" ({frame.source})" if frame.source else ""
