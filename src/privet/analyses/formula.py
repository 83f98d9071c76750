"""A regression formula in a closed grammar, which is read and never evaluated as code.

    outcome ~ term + term - term        1 or 0 stand for the intercept
    term    = piece | piece:piece | piece*piece        a*b is a + b + a:b
    piece   = x | C(x) | C(x, ref="level") | log(x) | log1p(x) | sqrt(x) | I(x ** 2)
            | rcs(x, knot, knot, knot)

x is a column: a plain name, or Q("any text") for one that is no plain name. Both kinds of quotes
are read. Parentheses group nothing. Terms mean what they mean in Wilkinson and Rogers' notation
(Applied Statistics 22, 1973, 392-399).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from .frame import AnalysisError

LONGEST = 10_000
"""Characters of a formula."""

_MOST_TERMS = 500
_MOST_FACTORS = 6
_HIGHEST_POWER = 9
_MOST_KNOTS = 20
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"[^"\\\n]*"|'[^'\\\n]*')
    |(?P<number>\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?|\.\d{1,30})
    |(?P<name>[^\W\d]\w*)
    |(?P<sign>\*\*|[-~+:*(),=]))""",
    re.VERBOSE,
)
_OF_NUMBERS = ("log", "log1p", "sqrt")


@dataclass(frozen=True)
class Piece:
    """A column as a formula uses it.

    Attributes
    ----------
    column : str
    kind : str
        ``column`` (numbers or categories, as the column is), ``C``, ``log``, ``log1p``, ``sqrt``,
        ``I`` (a power) or ``rcs``.
    numbers : tuple of float
        The power, or the knots.
    reference : str or None
        The category that others are compared with; None is the first of those agreed on.
    """

    column: str
    kind: str = "column"
    numbers: tuple[float, ...] = ()
    reference: str | None = None

    @property
    def name(self) -> str:
        """As it is written in the names of terms: a category is named by its column alone."""
        column = quoted(self.column)
        if self.kind in ("column", "C"):
            return column
        if self.kind == "I":
            return f"I({column} ** {self.numbers[0]:g})"
        return f"{self.kind}({', '.join([column, *(f'{knot:.15g}' for knot in self.numbers)])})"


Term = tuple[Piece, ...]


@dataclass(frozen=True)
class Formula:
    """An outcome, and the terms of its linear predictor in the order in which they are written."""

    outcome: Piece
    terms: tuple[Term, ...]
    intercept: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, the outcome first, each once."""
        pieces = [self.outcome, *(piece for term in self.terms for piece in term)]
        return tuple(dict.fromkeys(piece.column for piece in pieces))

    @property
    def categories(self) -> tuple[str, ...]:
        """The columns that it says are categories, by C(...)."""
        pieces = [piece for term in self.terms for piece in term]
        return tuple(dict.fromkeys(piece.column for piece in pieces if piece.kind == "C"))


def quoted(column: str) -> str:
    """Return a column's name as a formula writes it."""
    return column if re.fullmatch(r"[^\W\d]\w*", column) else f'Q("{column}")'


def read_formula(text: str) -> Formula:
    """Return the formula of a text.

    Raises
    ------
    AnalysisError
        For anything that is not in the grammar; the line names the piece.
    """
    if len(text) > LONGEST:
        raise AnalysisError(f"formula: {len(text)} characters, at most {LONGEST} are read")
    if not text.strip():
        raise AnalysisError("formula: it is empty; give outcome and terms: 'died ~ age + sex'")
    reader = _Reader(list(_tokens(text)))
    outcome = reader.piece()
    if outcome.kind in ("C", "rcs"):
        raise AnalysisError(f"formula: {outcome.kind}(...) is no outcome; name a column")
    reader.expect("~", "after the outcome, as in 'died ~ age + sex'")
    terms, intercept = reader.sum()
    return _checked(Formula(outcome, terms, intercept))


def _checked(formula: Formula) -> Formula:
    references: dict[str, str] = {}
    for piece in (piece for term in formula.terms for piece in term):
        chosen = piece.reference
        if chosen is not None and references.setdefault(piece.column, chosen) != chosen:
            raise AnalysisError(f"formula: two references for {piece.name}; give it one")
        if piece.column == formula.outcome.column:
            raise AnalysisError(f"formula: {piece.name} is the outcome and a term; leave one out")
    if not formula.terms and not formula.intercept:
        raise AnalysisError("formula: no terms are left; '~ 1' is the intercept alone")
    return formula


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def _tokens(text: str) -> Iterator[_Token]:
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            rest = text[place:].strip()
            raise AnalysisError(f"formula: cannot read {_shown(rest)}; {_GRAMMAR}")
        kind = str(found.lastgroup)
        yield _Token(kind, found.group(kind))
        place = found.end()


_GRAMMAR = (
    "terms are columns, C(x), log(x), log1p(x), sqrt(x), I(x ** 2), rcs(x, knots), Q('x y'), "
    "joined by + - : *"
)


def _shown(text: str) -> str:
    short = text if len(text) <= 30 else text[:30] + "..."
    return ascii(short)


class _Reader:
    """The tokens of a formula and the place in them; it looks one token ahead."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self.tokens = tokens
        self.place = 0

    def next_is(self, sign: str) -> bool:
        token = self.look()
        return token.kind == "sign" and token.text == sign

    def look(self) -> _Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else _Token("end", "")

    def take(self, kind: str, expected: str) -> str:
        token = self.look()
        if token.kind != kind:
            found = _shown(token.text) if token.kind != "end" else "the end"
            raise AnalysisError(f"formula: {found} where {expected} is expected; {_GRAMMAR}")
        self.place += 1
        return token.text

    def accept(self, sign: str) -> bool:
        found = self.next_is(sign)
        self.place += found
        return found

    def expect(self, sign: str, where: str) -> None:
        if not self.accept(sign):
            self.take(f"'{sign}'", f"'{sign}' {where}")

    def sum(self) -> tuple[tuple[Term, ...], bool]:
        """Read terms joined by + and -, to the end."""
        terms: dict[frozenset[Piece], Term] = {}
        intercept = True
        added = not self.accept("-")
        if added:
            self.accept("+")
        while True:
            if self.look().kind == "number":
                intercept = self.intercept() == added
            else:
                for term in self.product():
                    if added:
                        terms.setdefault(frozenset(term), term)
                    else:
                        terms.pop(frozenset(term), None)
                if len(terms) > _MOST_TERMS:
                    raise AnalysisError(f"formula: more than {_MOST_TERMS} terms")
            if self.look().kind == "end":
                return tuple(terms.values()), intercept
            added = self.accept("+")
            if not added:
                self.expect("-", "or '+' between terms")

    def intercept(self) -> bool:
        text = self.take("number", "0 or 1")
        if text not in ("0", "1"):
            raise AnalysisError(f"formula: {_shown(text)} is no term; 1 or 0 is the intercept")
        return text == "1"

    def product(self) -> list[Term]:
        """Read interactions joined by *: all that are products of some of them."""
        terms = [self.interaction()]
        factors = len(terms[0])
        while self.accept("*"):
            other = self.interaction()
            factors += len(other)
            self.bound(factors)
            terms += [other, *(_united(term, other) for term in terms)]
        return terms

    def interaction(self) -> Term:
        term: Term = (self.piece(),)
        while self.accept(":"):
            term = _united(term, (self.piece(),))
            self.bound(len(term))
        return term

    def bound(self, factors: int) -> None:
        if factors > _MOST_FACTORS:
            raise AnalysisError(f"formula: more than {_MOST_FACTORS} columns in one product")

    def piece(self) -> Piece:
        name = self.take("name", "a column")
        if not self.next_is("("):
            return Piece(name)
        if name == "Q":
            self.place -= 1
            return Piece(self.column())
        readers = {"C": self.category, "I": self.power, "rcs": self.spline}
        if name not in readers and name not in _OF_NUMBERS:
            raise AnalysisError(f"formula: there is no function {_shown(name)}; {_GRAMMAR}")
        self.expect("(", "")
        column = self.column()
        piece = readers[name](column) if name in readers else Piece(column, name)
        self.expect(")", f"at the end of {name}({_shown(column)[1:-1]}")
        return piece

    def column(self) -> str:
        name = self.take("name", "a column")
        if name != "Q" or not self.accept("("):
            return name
        column = self.take("text", "the column's name in quotes")[1:-1]
        self.expect(")", "at the end of Q(...)")
        if not column or '"' in column or not column.isprintable():
            raise AnalysisError(f"formula: Q({_shown(column)}) is no column that can be named")
        return column

    def category(self, column: str) -> Piece:
        if not self.accept(","):
            return Piece(column, "C")
        if self.take("name", "ref") != "ref":
            raise AnalysisError(f"formula: C({quoted(column)}, ...) takes ref='level' alone")
        self.expect("=", "after ref")
        kind = self.look().kind
        if kind == "number":
            return Piece(column, "C", reference=self.take("number", "a level"))
        return Piece(column, "C", reference=self.take("text", "a level in quotes")[1:-1])

    def power(self, column: str) -> Piece:
        self.expect("**", f"after I({_shown(column)[1:-1]}: I(x ** 2) is a power")
        power = self.take("number", "a power")
        if not power.isascii() or not power.isdigit() or not 2 <= int(power) <= _HIGHEST_POWER:
            raise AnalysisError(
                f"formula: power {_shown(power)}; whole numbers from 2 to {_HIGHEST_POWER}"
            )
        return Piece(column, "I", (float(power),))

    def spline(self, column: str) -> Piece:
        knots: list[float] = []
        while self.accept(","):
            sign = -1.0 if self.accept("-") else 1.0
            knots.append(sign * float(self.take("number", "a knot")))
        rising = all(low < high for low, high in pairwise(knots))
        finite = all(map(isfinite, knots))
        if not 3 <= len(knots) <= _MOST_KNOTS or not rising or not finite:
            raise AnalysisError(
                f"formula: rcs({quoted(column)}, ...) takes 3 to {_MOST_KNOTS} rising knots"
            )
        return Piece(column, "rcs", tuple(knots))


def _united(one: Term, other: Term) -> Term:
    return tuple(dict.fromkeys((*one, *other)))
