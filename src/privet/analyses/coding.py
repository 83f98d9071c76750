"""Which columns each term of a formula has, so that none is a sum of others.

A factor of k categories is coded by the indicators of all but the reference where the terms before
it hold its margin, and of all k where they do not. Terms without numbers come first, then those of
each set of numeric columns, by the number of columns in a product: the rules and names of patsy
(https://patsy.readthedocs.io, "Redundancy and categorical factors"), with ``smoker[T.former]`` for
the indicator of a category however the reference was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from .formula import Formula, Piece, Term
from .frame import AnalysisError, Levels

MOST_COLUMNS = 2_000


@dataclass(frozen=True)
class Factored:
    """A piece in a product of columns.

    Attributes
    ----------
    piece : Piece
    codes : tuple of int
        Of a category, the positions in its levels that have an indicator each; empty for numbers.
    names : tuple of str
        One a column.
    full : bool
        Whether these are the indicators of all categories.
    """

    piece: Piece
    codes: tuple[int, ...]
    names: tuple[str, ...]
    full: bool


@dataclass(frozen=True)
class CodedBlock:
    """The columns of a part of a term: all products of one column of each factor.

    Attributes
    ----------
    term : str
        The term that it belongs to.
    factors : tuple of Factored
        Empty for the intercept.
    """

    term: str
    factors: tuple[Factored, ...]

    @property
    def picks(self) -> list[tuple[int, ...]]:
        """For each column, the column of each factor; the first factor's vary fastest."""
        counts = [range(len(factor.names)) for factor in reversed(self.factors)]
        return [pick[::-1] for pick in product(*counts)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        if not self.factors:
            return ("Intercept",)
        return tuple(
            ":".join(one.names[place] for one, place in zip(self.factors, pick, strict=True))
            for pick in self.picks
        )

    @property
    def of_one(self) -> bool:
        """Whether its columns add up to 1 in every row."""
        return all(factor.full for factor in self.factors)


def blocks(formula: Formula, levels: Levels) -> tuple[CodedBlock, ...]:
    """Return the blocks of columns of a formula, in order.

    Raises
    ------
    AnalysisError
        For categories that are not agreed on, a reference that is none of them, a transformation of
        categories, or more than ``MOST_COLUMNS`` columns.
    """
    terms = _typed(formula, levels)
    buckets: dict[frozenset[Piece], list[Term]] = {frozenset(): []}
    if formula.intercept:
        buckets[frozenset()].append(())
    for term in terms:
        numeric = frozenset(piece for piece in term if piece.kind != "C")
        buckets.setdefault(numeric, []).append(term)
    found: list[CodedBlock] = []
    for bucket in buckets.values():
        used: set[frozenset[Piece]] = set()
        for term in sorted(bucket, key=len):
            found += _of_term(term, levels, used)
    count = 0
    for block in found:
        width = 1
        for factor in block.factors:
            width *= len(factor.names)
        count += width
        if count > MOST_COLUMNS:
            raise AnalysisError(f"formula: more than {MOST_COLUMNS} columns up to {block.term}")
    return tuple(found)


def _typed(formula: Formula, levels: Levels) -> list[Term]:
    """Return the terms with every column of categories as C(...) and its reference.

    A column that the formula calls a category once is one wherever it stands by its plain name.
    """
    references = {
        piece.column: piece.reference
        for term in formula.terms
        for piece in term
        if piece.reference is not None
    }

    def typed(piece: Piece) -> Piece:
        column = piece.column
        if piece.kind not in ("C", "column"):
            if column in levels and column not in formula.categories:
                raise AnalysisError(f"formula: {piece.name} of a column of texts")
            return piece
        if column not in levels:
            if piece.kind == "C":
                raise AnalysisError(f"formula: the categories of {piece.name} are not agreed on")
            return piece
        reference = references.get(column, next(iter(levels[column]), ""))
        if reference not in levels[column]:
            raise AnalysisError(
                f"formula: {piece.name}: {reference!r} is none of its categories, "
                f"{', '.join(levels[column])}"
            )
        return Piece(column, "C", reference=reference)

    found: dict[frozenset[Piece], Term] = {}
    for term in formula.terms:
        made = tuple(dict.fromkeys(typed(piece) for piece in term))
        found.setdefault(frozenset(made), made)
    return list(found.values())


def _of_term(term: Term, levels: Levels, used: set[frozenset[Piece]]) -> list[CodedBlock]:
    categories = [piece for piece in term if piece.kind == "C"]
    label = ":".join(piece.name for piece in term) or "Intercept"
    return [
        CodedBlock(
            label,
            tuple(
                _factored(piece, levels, full.get(piece, False))
                for piece in term
                if piece.kind != "C" or piece in full
            ),
        )
        for full in _codings(categories, used)
    ]


def _factored(piece: Piece, levels: Levels, full: bool) -> Factored:
    if piece.kind == "rcs":
        names = tuple(f"{piece.name}[{place}]" for place in range(len(piece.numbers) - 1))
        return Factored(piece, (), names, False)
    if piece.kind != "C":
        return Factored(piece, (), (piece.name,), False)
    mark = "" if full else "T."
    kept = [
        (code, level)
        for code, level in enumerate(levels[piece.column])
        if full or level != piece.reference
    ]
    names = tuple(f"{piece.name}[{mark}{level}]" for _, level in kept)
    return Factored(piece, tuple(code for code, _ in kept), names, full)


def _codings(
    categories: Sequence[Piece], used: set[frozenset[Piece]]
) -> list[Mapping[Piece, bool]]:
    """Return the codings of a term: by factor, whether all of its indicators are taken.

    The space of a product of factors is the sum of the contrasts of every subset of them. Those
    that an earlier term has are left out, and the rest is joined again where one subset has one
    factor more than another: its contrasts and its margin are all of its indicators.
    """
    parts: list[dict[Piece, bool]] = []
    for size in range(len(categories) + 1):
        for subset in combinations(categories, size):
            if frozenset(subset) not in used:
                used.add(frozenset(subset))
                parts.append(dict.fromkeys(subset, False))
    while (joined := _joined(parts)) is not None:
        parts = joined
    return list(parts)


def _joined(parts: Sequence[dict[Piece, bool]]) -> list[dict[Piece, bool]] | None:
    for first, short in enumerate(parts):
        for second in range(first + 1, len(parts)):
            more = _one_more(short, parts[second])
            if more is not None:
                rest = [*parts[:second], {**short, more: True}, *parts[second + 1 :]]
                return rest[:first] + rest[first + 1 :]
    return None


def _one_more(short: Mapping[Piece, bool], long: Mapping[Piece, bool]) -> Piece | None:
    """Return the factor by whose contrasts alone ``long`` has more than ``short``, if any."""
    if len(long) != len(short) + 1 or not short.items() <= long.items():
        return None
    (piece,) = long.keys() - short.keys()
    return None if long[piece] else piece
