"""What the numbers of a site's rows mean, in one form that sites compare before a run.

Two sites may have as many columns and yet not the same ones. A `Meaning` says which they are: the
encoded columns in their order with type, range or scaling, categories and reference; the classes,
of which the second of two is +1; and what else makes numbers of rows, such as intercept, loss, row
bound, hashing and dtype. It travels as text or, of a private node, as the digests of that text,
which hold public statements alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from statistics import median_low
from typing import Any, NamedTuple

from privet.analyses.description_groups import MOST_NUMBERS, numbers_of
from privet.wire.enrolment import LONGEST_LAYOUT, MOST_EXAMPLES

from .source_column import HIDDEN, SourceColumn

ENCODING_RECORD = "privet.encoding"
"""In a node's context: the encoding that the run's agents have agreed on, where it is not its own:
``text`` and ``mark``, the digest by which the coordinator names it."""
SORTED = "sorted"
"""In place of the digest of an order: columns by name, and categories after their reference."""
OPEN = "open"
"""A setting of encodings whose columns may differ from site to site."""
GROUPED = "by"
"""A setting of these: the column within whose categories all others are described as well."""
OWN = "own"
"""In its place where a problem is none of this library's data, but its author's own."""
LONGEST = LONGEST_LAYOUT
"""Characters of a text at most; of a longer one the digests are stated."""

MOST_COLUMNS = 1 << 15
"""Columns at most: each of a site takes some 30 characters of a text, so that no more fit."""

FEW_FACTS, MANY_TIMES = 200, 10
"""Columns and categories that any site may state, and how many times as many as most sites: all
others describe each of them, with some 3 kB a column."""

_STRONGEST = 1e7
"""A trend at most: that of 2^40 rows which all agree is 4e6."""
_MOST_CODES = 40
"""Numbers of a column's codes at most: each with how many rows have it."""
_LISTS = ("categories", "classes", "range")
"""Facts that are lists; all others are texts and numbers, so that a long text means as much."""
_BOUNDS = (120, 120, 260)
"""Powers of ten that the numbers of a scaling stay below, so that no square overflows."""
_SHOWN = 120
"""Characters of what one side has that a line shows."""
_FEW_TEXTS, _LONGEST_TEXT = 3, 20
"""Categories that it shows of many, and characters of each."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""The escape of one in JSON."""
_DIGESTS = re.compile(rf"[0-9a-f]{{32}}:([0-9a-f]{{32}}|{SORTED}|{OWN})")

BOOLEANS = ("false", "true")
"""Categories of booleans, as every table has them; 0 and 1 are the same where both are."""
_UNCOMPARED = ("stated", "width")
"""Facts in which sites with the same content may differ: they are in no digest."""

_FIRST = ("dataset", "intercept", "loss")
"""Settings that are compared first: others follow from them."""

Facts = Mapping[str, Any]


class Difference(NamedTuple):
    """The first thing in which one encoding differs from another, in words for either side."""

    ours: str
    theirs: str

    def between(self, us: str, them: str) -> str:
        """Return the line that names both sides."""
        ours, theirs = (
            _visible(one if len(one) <= _SHOWN else f"{one[:_SHOWN]} ...")
            for one in (self.ours, self.theirs)
        )
        return f"{us} {ours}, {them} {theirs}"


def _visible(text: str) -> str:
    """Return a text with letters that do not show, such as a space without width, as escapes."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


_UNREADABLE = (
    *(TypeError, AttributeError, KeyError, RecursionError, OverflowError),
    UnicodeEncodeError,
)
"""What a text that is no encoding may raise, beside ``ValueError``."""


@dataclass(frozen=True, eq=False)
class Meaning:
    """What the numbers of a site's rows mean.

    Attributes
    ----------
    columns : mapping
        By name, in the order of the features, the facts of each column: ``range`` (public),
        ``unit``, ``categories`` (the first is the reference), ``stated`` (they are a schema's),
        ``gap`` (missing values have a column), ``dates`` (they are days since 1970, however a site
        writes them), ``width`` (columns that a single category becomes), ``flag`` (all numbers are
        0 or 1, which are booleans where other sites have such), ``means`` (of categories, and of a
        range: missing values become what the sites' rows have on average).
    label : mapping
        ``name``, and ``classes`` in their order or ``range``.
    settings : mapping
        What else makes numbers of rows, by run-config key.
    says : str
        The author's own statement, of a problem that is not this library's.
    scale : mapping
        By column, the mean and deviation that numbers are scaled by where no schema gives a range;
        the mean that missing values become where one does; of categories the shares that they
        become.
    rows : mapping
        Of a site that scales by its own rows, by column: number, mean and sum of squared deviations
        of numbers; of categories the number of rows of each, where missing values become shares.
    codes : mapping
        Of such a site, by column of few whole numbers: each of them, and how many rows have it.
    trends : mapping
        Of such a site, by column of numbers, how it goes with the label: a correlation of ranks as
        a multiple of its standard error (`privet.data.trends.trend_of`).
    public : bool
        Whether nothing of it was read from records. It is the site's own knowledge, and in no text.
    """

    columns: Mapping[str, Facts] = field(default_factory=dict)
    label: Facts = field(default_factory=dict)
    settings: Facts = field(default_factory=dict)
    says: str = ""
    scale: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rows: Mapping[str, Sequence[float]] = field(default_factory=dict)
    codes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    trends: Mapping[str, float] = field(default_factory=dict)
    public: bool = True

    @classmethod
    def from_text(cls, text: str) -> Meaning:
        """Return the meaning of a text.

        Raises
        ------
        ValueError
            If it is none.
        """
        try:
            document = json.loads(text)
            listed, label = document.get("columns", ()), document.get("label", {})
            if len(listed) > MOST_COLUMNS:
                raise TypeError(f"{len(listed)} columns")
            columns = dict(listed)
            scale, rows, codes = (document.get(key, {}) for key in ("scale", "rows", "codes"))
            known = {*columns, ""}  # the label has no name here
            trends = document.get("trends", {})
            of_rows = codes.keys() | trends.keys()
            if not (scale.keys() | rows.keys() <= known and of_rows <= rows.keys()):
                raise TypeError("numbers of no column")
            made = cls(
                columns,
                label,
                dict(document.get("settings", {})),
                str(document.get("says", "")),
                _numbers(scale),
                _numbers(rows),
                _numbers(codes),
                {str(name): float(trend) for name, trend in trends.items()},
            )
            _require_facts(made)
            _require_letters(text, made)
        except _UNREADABLE as error:
            raise ValueError(f"no encoding of columns: {type(error).__name__}") from None
        return made

    @cached_property
    def text(self) -> str:
        """The canonical form, as JSON."""
        parts = {
            "columns": [[name, _ordered(facts)] for name, facts in self.columns.items()],
            "label": _ordered(self.label),
            "settings": _ordered(self.settings),
            "says": self.says,
            "scale": {name: list(self.scale[name]) for name in sorted(self.scale)},
            "rows": {name: list(self.rows[name]) for name in sorted(self.rows)},
            "codes": {name: list(self.codes[name]) for name in sorted(self.codes)},
            "trends": _ordered(self.trends),
        }
        given = {name: part for name, part in parts.items() if part}
        return json.dumps(given, ensure_ascii=False, separators=(",", ":"))

    @cached_property
    def content(self) -> str:
        """The digest of what is stated or visible, in whatever order, without numbers of rows."""
        columns = {name: _unordered(facts) for name, facts in self.columns.items()}
        parts: list[Any] = [columns, dict(self.label), dict(self.settings), self.says]
        if self.scale:  # a site that enrols states none
            parts.append(_ordered(self.scale))
        return digest(json.dumps(parts, ensure_ascii=False, sort_keys=True))

    @cached_property
    def order(self) -> str:
        """`SORTED`, or the digest of the order of columns and categories; `OWN` without data."""
        if not self.columns and "dtype" not in self.settings:
            return OWN
        each = (facts["categories"] for facts in self.columns.values() if "categories" in facts)
        if _is_sorted(list(self.columns)) and all(_is_sorted(texts[1:]) for texts in each):
            return SORTED
        return digest(json.dumps(_order(self.columns), ensure_ascii=False))

    @property
    def digests(self) -> str:
        """Both digests, as a private node states them."""
        return f"{self.content}:{self.order}"

    @property
    def form(self) -> str:
        """The text of what the columns alone become, which rows are read by: no settings."""
        return replace(self, settings={}, says="").text

    @property
    def is_long(self) -> bool:
        """Whether the text is too long to travel, or has too many columns to be read."""
        return len(self.columns) > MOST_COLUMNS or len(self.text) > LONGEST

    def statement(self, *, private: bool) -> str:
        """Return what a site says of its encoding: the text, or the digests."""
        return self.digests if private or self.is_long else self.text

    def within(self, row_norm: float) -> Meaning:
        """Return the meaning where an algorithm itself scales rows down to a norm; 0 for none."""
        own = self.settings.get("row-norm", 0.0)
        if not row_norm or "row-norm" not in self.settings or 0 < own <= row_norm:
            return self
        return replace(self, settings={**self.settings, "row-norm": row_norm})

    def in_order(self) -> Meaning:
        """Return the meaning with its columns by name, and categories after their reference."""
        columns = {}
        for name in sorted(self.columns):
            facts = dict(self.columns[name])
            if "categories" in facts:
                first, *others = facts["categories"]
                facts["categories"] = [first, *sorted(others)]
            columns[name] = facts
        return replace(self, columns=columns)

    def difference(self, other: Meaning) -> Difference | None:
        """Return in what this encoding cannot be put into the form of another, None where it can.

        Orders of columns differ, and so do categories that no schema states, and what is read from
        rows: these are no difference. A column without stated categories takes those of the other
        where its own are among them, and booleans where all its numbers are 0 or 1.
        """
        if self.open and other.open:
            return self._more_than(other)
        if found := _of_names(self.columns, other.columns):
            return found
        for name, facts in other.columns.items():
            if found := _of_column(name, self.columns[name], facts):
                return found
        stated = any(facts.get("stated") for facts in self.columns.values())
        if found := _of_label(self.label, other.label, stated=stated):
            return found
        known = self.settings.keys() | other.settings.keys()
        for key in sorted(known, key=lambda one: (one not in _FIRST, one)):
            ours, theirs = self.settings.get(key), other.settings.get(key)
            if ours != theirs:
                return Difference(*(f"{key} = {json.dumps(one)}" for one in (ours, theirs)))
        if self.says != other.says:
            return Difference(*(f"the meaning {one!r}" for one in (self.says, other.says)))
        return None

    @property
    def open(self) -> bool:
        """Whether sites may differ in their columns, as where these are described."""
        return OPEN in self.settings

    def _more_than(self, other: Meaning) -> Difference | None:
        """Return in what this open encoding states far more than that of all sites."""
        if self.settings != other.settings:
            return Difference(*(f"settings {json.dumps(one.settings)}" for one in (self, other)))
        if self.num_facts > most_facts([other.num_facts]):
            return Difference(*(f"{one.num_facts} columns and categories" for one in (self, other)))
        own = self._of_kinds({name: "categories" in facts for name, facts in other.columns.items()})
        if Meaning.united([other, own]).num_described <= MOST_NUMBERS:
            return None
        return Difference(*(one._described for one in (self, other)))

    @property
    def _levels(self) -> Mapping[str, Sequence[str]]:
        return {name: facts.get("categories", ()) for name, facts in self.columns.items()}

    @property
    def num_described(self) -> int:
        """The numbers that a site sends in a round where these columns are described."""
        return numbers_of(self._levels, self.settings.get(GROUPED, ""))

    @property
    def _described(self) -> str:
        by = self.settings.get(GROUPED, "")
        groups = f" in {len(self._levels.get(by, ()))} groups of {by}" if by else ""
        return f"{len(self.columns)} columns{groups} to describe"

    @staticmethod
    def united(sites: Iterable[Meaning]) -> Meaning:
        """Return the open encoding with the columns, and categories, of all sites.

        A column is of categories where most sites that have it say so, else of numbers: one site's
        word does not take the others' numbers out of the table, and its own rows are of another
        kind there. Categories are sorted where not all sites have the same.
        """
        every = _of_usual_kinds(list(sites))
        columns: dict[str, Facts] = {}
        for name in sorted({name for one in every for name in one.columns}):
            known = [one.columns[name] for one in every if name in one.columns]
            texts = [facts["categories"] for facts in known if "categories" in facts]
            same = all(one == texts[0] for one in texts)
            columns[name] = known[0] if not texts else next(x for x in known if "categories" in x)
            if not same:
                columns[name] = {"categories": sorted({text for one in texts for text in one})}
        return replace(every[0], columns=columns)

    @staticmethod
    def described(sites: Sequence[Meaning]) -> Meaning:
        """Return the open encoding that sites describe together, without those that ask too much.

        Left out are sites with far more columns and categories than most, those of other settings
        than most, and from the largest on those with which a site would have more numbers to send
        than a description may have: what one site states costs all others.
        """
        usual = Counter(json.dumps(one.settings) for one in sites).most_common(1)[0][0]
        alike = [one for one in sites if json.dumps(one.settings) == usual]
        most = most_facts([one.num_facts for one in alike])
        fit = _of_usual_kinds([one for one in alike if one.num_facts <= most])
        every = Meaning.united(fit)
        if every.num_described <= MOST_NUMBERS:
            return every
        kept: list[Meaning] = []
        so_far = replace(every, columns={})
        for one in sorted(fit, key=lambda one: (one.num_described, one.text)):
            wider = Meaning.united([so_far, one])
            if wider.num_described <= MOST_NUMBERS:
                kept, so_far = [*kept, one], wider
        return Meaning.united([one for one in fit if one in kept] or fit)

    def _of_kinds(self, categories: Mapping[str, bool]) -> Meaning:
        """Return the encoding without the columns of another kind than is said of them."""
        columns = {
            name: facts
            for name, facts in self.columns.items()
            if categories.get(name) in (None, "categories" in facts)
        }
        return self if len(columns) == len(self.columns) else replace(self, columns=columns)

    @property
    def num_facts(self) -> int:
        """The number of columns and of their categories."""
        return len(self.columns) + self.num_categories

    @property
    def num_categories(self) -> int:
        """The number of categories of all columns."""
        return sum(len(facts.get("categories", ())) for facts in self.columns.values())

    @property
    def num_vectors(self) -> int:
        """The number of weights that a model has for a column: one for each of several classes."""
        classes = len(self.label.get("classes", ()))
        return classes if classes > 2 else 1

    def widened(self, other: Meaning) -> Meaning | None:
        """Return this encoding with another's categories in each column whose own are among these.

        None where the other cannot be put into that form.
        """
        if self.columns.keys() != other.columns.keys():
            return None
        columns = {}
        for name, ours in self.columns.items():
            theirs = other.columns[name]
            if _of_column(name, theirs, ours) is None:
                columns[name] = ours
            elif both := _both_booleans(ours, theirs):
                columns[name] = both
            elif _takes(ours, theirs):
                columns[name] = theirs
            else:
                return None
        made = replace(self, columns=columns)
        return made if other.difference(made) is None else None

    def with_booleans(self, other: Meaning) -> Meaning:
        """Return this encoding, with booleans in columns of 0 and 1 where another that is alike
        but for these has booleans."""
        columns = {
            name: _both_booleans(facts, other.columns.get(name, {})) or facts
            for name, facts in self.columns.items()
        }
        made = replace(self, columns=columns)
        return made if columns != self.columns and other.difference(made) is None else self

    def like(self, other: Meaning) -> Meaning:
        """Return this encoding in the form of another, which it does not differ from."""
        return replace(
            self,
            columns=other.columns,
            label=other.label,
            scale=other.scale,
            rows=other.rows,
            codes=other.codes,
            trends=other.trends,
        )

    def without_rows(self) -> Meaning:
        """Return the encoding without the numbers of a site's rows, which no other site is sent."""
        return replace(self, rows={}, codes={}, trends={})


def _of_usual_kinds(sites: Sequence[Meaning]) -> list[Meaning]:
    """Return encodings without the columns that most sites have as another kind.

    Where as many have categories as numbers, it is numbers.
    """
    votes: Counter[str] = Counter()
    for one in sites:
        votes.update({name: 1 if "categories" in x else -1 for name, x in one.columns.items()})
    categories = {name: vote > 0 for name, vote in votes.items()}
    return [one._of_kinds(categories) for one in sites]


def most_facts(counts: Sequence[int]) -> int:
    """Return how many columns and categories an open encoding may have, of what sites state."""
    return max(FEW_FACTS, MANY_TIMES * median_low(counts))


def usual(base: Meaning, forms: Sequence[tuple[Meaning, int]]) -> Meaning:
    """Return an encoding with what no digest holds as most sites state it, column by column.

    ``forms`` are what sites state that do not differ from it, and how many do; those count that
    have the column as it has.
    """
    columns = dict(base.columns)
    for name, facts in base.columns.items():
        if all(one.columns[name] == facts for one, _ in forms):
            continue
        votes, same = Counter[tuple[Any, ...]](), _unordered(facts)
        for one, count in forms:
            theirs = one.columns[name]
            if _unordered(theirs) == same:
                votes[tuple(map(theirs.get, _UNCOMPARED))] += count
        for most, _ in votes.most_common(1):
            kept = {key: value for key, value in facts.items() if key not in _UNCOMPARED}
            stated = zip(_UNCOMPARED, most, strict=True)
            columns[name] = kept | {key: value for key, value in stated if value is not None}
    return replace(base, columns=columns)


def digest(text: str) -> str:
    """Return a digest of a text, of 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def named(mark: str, row_norm: float) -> str:
    """Return what messages name an agreed encoding by."""
    return f"{mark}:{row_norm!r}" if row_norm else mark


def is_digests(statement: str) -> bool:
    """Whether a site's statement is digests alone."""
    return not statement.startswith("{")


def in_digests(statement: str) -> str:
    """Return a site's readable statement as a private node states it."""
    meaning = read(statement)
    return statement if meaning is None else meaning.digests


def read(statement: str) -> Meaning | None:
    """Return the meaning of a site's statement, None of digests.

    Raises
    ------
    ValueError
        If it is neither: it comes from the other side of a network.
    """
    return (_read if len(statement) <= _SHORT else _read_long)(statement)


def _read_uncached(statement: str) -> Meaning | None:
    if not is_digests(statement):
        return Meaning.from_text(statement)
    if not _DIGESTS.fullmatch(statement):
        raise ValueError("no encoding of columns: neither a text nor digests")
    return None


# What a long text was read into takes some twenty times its memory.
_SHORT = 1 << 16
_read, _read_long = (lru_cache(maxsize=most)(_read_uncached) for most in (16, 1))


def is_own(statement: str) -> bool:
    """Whether it is of a problem that is none of this library's data, but its author's own."""
    meaning = read(statement)
    return (statement.partition(":")[2] if meaning is None else meaning.order) == OWN


def is_statement(statement: str) -> bool:
    """Whether a text is a site's statement of its encoding."""
    try:
        return bool(statement) and (read(statement) is not None or is_digests(statement))
    except ValueError:
        return False


def has_numbers(statement: str) -> bool:
    """Whether a site's readable statement scales its columns by numbers of rows."""
    meaning = read(statement) if statement else None
    return meaning is not None and bool(meaning.rows or meaning.scale)


# ------------------------------------------------------------------ of a table


def of_columns(
    inputs: Collection[SourceColumn],
    label: SourceColumn,
    censored: str,
    flags: Set[str],
    *,
    means: bool,
) -> tuple[dict[str, Facts], Facts]:
    """Return the facts of a table's columns, and of its label.

    ``censored`` is empty where it refuses. Of a range that a schema states it is a fact whether or
    not any record is written so: what follows from the records is in no digest of a private node.
    ``flags`` are the names of columns that have no numbers but 0 and 1. ``means`` says whether
    missing values become means: of numbers without a range these are 0, as ``missing = zero`` has
    it, so that they are no fact of these.
    """
    columns = {column.name: _facts(column, censored, means=means) for column in inputs}
    for name in flags & columns.keys():
        columns[name] = {**columns[name], "flag": True}
    facts: dict[str, Any] = {"name": label.name}
    if label.categories:
        facts["classes"] = list(label.categories)
    elif label.public:
        facts["range"] = [float(label.low), float(label.high)]
        facts |= {"unit": label.unit} if label.unit else {}
    return columns, facts


def _facts(column: SourceColumn, censored: str, *, means: bool) -> Facts:
    facts: dict[str, Any] = {}
    if column.categories:
        facts["categories"] = list(column.categories)
        if len(column.categories) == 1:
            facts["width"] = column.width
    elif column.public:
        facts["range"] = [float(column.low), float(column.high)]
    if column.public:
        facts["stated"] = True
    if column.unit:
        facts["unit"] = column.unit
    if column.gap:
        facts["gap"] = True
    if means and (column.categories or column.public):
        facts["means"] = True
    if column.dates and not column.public:
        facts["dates"] = True
    how = censored if column.public else column.censored
    if how and not column.categories:
        facts["censored"] = how
    return facts


# ------------------------------------------------------------------ facts


def _of_names(ours: Facts, theirs: Facts) -> Difference | None:
    extra = [name for name in ours if name not in theirs]
    lacking = [name for name in theirs if name not in ours]
    if extra and lacking:
        return Difference(extra[0], lacking[0])
    if extra:
        return Difference(extra[0], "do not")
    return Difference(f"no {lacking[0]}", "have it") if lacking else None


def _kind(facts: Facts) -> str:
    if "categories" in facts:
        return "categories"
    return "dates" if facts.get("dates") else "numbers"


def _of_column(name: str, ours: Facts, theirs: Facts) -> Difference | None:
    if ours == theirs:
        return None
    kinds = Difference(f"{_kind(ours)} in {name}", _kind(theirs))
    if ours.get("flag") and _takes(ours, theirs):
        return _of_gap(name, ours, theirs)
    if ("categories" in ours) != ("categories" in theirs):
        return kinds
    if "categories" in ours:
        if found := _of_categories(name, ours, theirs):
            return found
    elif ours.get("range") != theirs.get("range"):
        texts = (
            f"the range {_range(one['range'])} of {name}"
            if "range" in one
            else f"no range of {name}"
            for one in (ours, theirs)
        )
        return Difference(*texts)
    if ours.get("unit") != theirs.get("unit"):
        return _of_unit(name, ours, theirs)
    if found := _of_gap(name, ours, theirs):
        return found
    if bool(ours.get("dates")) != bool(theirs.get("dates")):
        return kinds
    if ours.get("censored") != theirs.get("censored"):
        how = (one.get("censored", "refused") for one in (ours, theirs))
        return Difference(*(f"bounds such as <5 {one} in {name}" for one in how))
    return None


def _of_gap(name: str, ours: Facts, theirs: Facts) -> Difference | None:
    for key, what in (("gap", "a column"), ("means", "means")):
        has, have = (bool(one.get(key)) for one in (ours, theirs))
        if has != have and not (key == "means" and "flag" in ours):
            texts = (f"{what} for missing values of {name}", f"none for those of {name}")
            return Difference(*(texts if has else texts[::-1]))
    return None


def _of_unit(name: str, ours: Facts, theirs: Facts) -> Difference:
    units = (f"the unit {one['unit']}" if "unit" in one else "no unit" for one in (ours, theirs))
    return Difference(*(f"{one} of {name}" for one in units))


def _of_categories(name: str, ours: Facts, theirs: Facts) -> Difference | None:
    known, expected = ours["categories"], theirs["categories"]
    if _takes(ours, theirs):
        return None
    if set(known) != set(expected):
        return Difference(*_texts_apart(name, known, expected))
    if ours.get("stated") and known[0] != expected[0]:
        return Difference(*(f"the reference {one[0]} of {name}" for one in (known, expected)))
    return None


def _takes(ours: Facts, theirs: Facts) -> bool:
    """Return whether a column of categories can be read with those of another.

    Categories that no schema states say which texts a site's rows happen to have. A single text
    that is left out as a column is no feature. Numbers 0 and 1 can be read as both booleans.
    """
    if ours.get("flag"):
        return set(theirs.get("categories", ())) == {*BOOLEANS}
    if ours.get("stated") or "categories" not in ours or "categories" not in theirs:
        return False
    known, expected = ours["categories"], theirs["categories"]
    if len(known) == 1 and known != expected and not ours.get("width"):
        return False
    return set(known) <= set(expected)


def _both_booleans(ours: Facts, theirs: Facts) -> Facts | None:
    """Return a column as both booleans, where of two sites one has no numbers but 0 and 1 in it,
    and the other booleans; else None."""
    for flags, others in ((ours, theirs), (theirs, ours)):
        texts = others.get("categories", ("",))
        if flags.get("flag") and not others.get("stated") and set(texts) <= {*BOOLEANS}:
            kept = {key: value for key, value in others.items() if key not in _UNCOMPARED}
            return {**kept, "categories": list(BOOLEANS)}
    return None


def _texts_apart(name: str, ours: Sequence[str], theirs: Sequence[str]) -> Iterable[str]:
    """Yield the categories of either side; where they are too many for a line, those that the other
    lacks, and how many both have."""
    lines = [f"{name} = {', '.join(one)}" for one in (ours, theirs)]
    if max(map(len, lines)) <= _SHOWN:
        yield from lines
        return
    both = set(ours) & set(theirs)
    for one in (ours, theirs):
        own = [text[:_LONGEST_TEXT] for text in one if text not in both]
        rest = [f"{len(own) - _FEW_TEXTS} more"] if len(own) > _FEW_TEXTS else []
        rest += [f"{len(both)} that both have"] if both else []
        known = ", ".join(own[:_FEW_TEXTS])
        yield f"{name} = {' and '.join(filter(None, [known, *rest]))}"


def _range(given: Sequence[float]) -> str:
    return "[{:g}, {:g}]".format(*given)


def _of_label(ours: Facts, theirs: Facts, *, stated: bool) -> Difference | None:
    if ours.get("name") != theirs.get("name"):
        return Difference(*(f"the label {one.get('name', '')}" for one in (ours, theirs)))
    of = f" of {theirs['name']}" if "name" in theirs else ""
    both = [tuple(one.get("classes", ())) for one in (ours, theirs)]
    if both[0] != both[1] and (stated or {*both} != {("0", "1"), BOOLEANS}):
        known = (", ".join(one["classes"]) if "classes" in one else "" for one in (ours, theirs))
        return Difference(
            *(f"the classes {one}{of}" if one else f"no classes{of}" for one in known)
        )
    if ours.get("range") != theirs.get("range"):
        known = (_range(one["range"]) if "range" in one else "" for one in (ours, theirs))
        return Difference(*(f"the range {one}{of}" if one else f"no range{of}" for one in known))
    if ours.get("unit") != theirs.get("unit"):
        return _of_unit(str(theirs.get("name", "the label")), ours, theirs)
    return None


def _ordered(facts: Facts) -> dict[str, Any]:
    return {key: facts[key] for key in sorted(facts)}


def _unordered(facts: Facts) -> dict[str, Any]:
    """Return the facts of a column whatever the order of its categories and whoever stated them."""
    result = {key: value for key, value in facts.items() if key not in _UNCOMPARED}
    if "categories" in result:
        first, *others = result["categories"]
        result["categories"] = [first, *sorted(others)]
    return result


def _order(columns: Mapping[str, Facts]) -> list[Any]:
    return [[name, facts.get("categories", [])] for name, facts in columns.items()]


def _is_sorted(texts: Sequence[str]) -> bool:
    return all(map(operator.le, texts, texts[1:]))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _numbers(given: Mapping[str, Any]) -> dict[str, list[float]]:
    return {str(name): [float(one) for one in numbers] for name, numbers in given.items()}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_true(value: Any) -> bool:
    return value is True


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_FACTS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("categories", "range"), _is_list),
    **dict.fromkeys(("unit", "censored"), _is_text),
    **dict.fromkeys(("stated", "gap", "dates", "flag", "means"), _is_true),
    "width": lambda value: type(value) is int and 0 <= value <= 2,
}
"""The facts of a column, with what of each a site may state; `_require_facts` asks for more."""


def _require_letters(text: str, made: Meaning) -> None:
    """Refuse half of a pair of surrogates: no text that holds one can be sent, or have a digest.

    Only an escape, or the text itself, gives one; the canonical form of a long text takes as long
    as all else.
    """
    (made.text if _SURROGATE.search(text) else text).encode()


def _require_facts(made: Meaning) -> None:
    """Refuse what no site of this library states: texts come from the other side of a network."""
    if not all(isinstance(name, str) for name in made.columns):
        raise TypeError("names of columns are no texts")
    if any(map(HIDDEN.search, made.columns)):
        raise TypeError("a letter in the name of a column that controls what shows a text")
    of_label = set(made.label) - {"name", "classes", "range", "unit"}
    if of_label or any(facts.keys() - _FACTS.keys() for facts in made.columns.values()):
        raise TypeError("a fact of a column that is not known")
    stated = list(filter(None, made.columns.values()))
    for facts in stated:
        if not all(_FACTS[key](value) for key, value in facts.items()):
            raise TypeError("a fact of a column that no column has")
        if "flag" in facts and facts.keys() & {"categories", "range", "dates"}:
            raise TypeError("a flag that is no column of numbers")
        if "width" in facts and len(facts.get("categories", ())) != 1:
            raise TypeError("a width of other columns than of one category")
    for facts in (*stated, made.label, made.settings):
        others = [value for key, value in facts.items() if key not in _LISTS]
        if not all(isinstance(one, str | int | float) for one in others):
            raise TypeError("a fact that is neither a text nor a number")
        lists = [facts.get(key, []) for key in ("categories", "classes")]
        if not all(isinstance(one, list) and all(isinstance(x, str) for x in one) for one in lists):
            raise TypeError("categories are no lists of texts")
        shown = [*chain(*lists), *(str(facts.get(key, "")) for key in ("unit", "name"))]
        if facts is not made.settings and any(map(HIDDEN.search, shown)):
            raise TypeError("a letter that controls what shows a text")
        if any(len(set(one)) < len(one) for one in lists):
            raise TypeError("a category that is listed twice")
        if "categories" in facts and not facts["categories"]:
            raise TypeError("a column without categories")
        if "range" in facts and not (
            len(facts["range"]) == 2 and all(map(_is_number, facts["range"]))
        ):
            raise TypeError("a range that is not two numbers")
    for numbers in (made.scale, made.rows):
        for name, given in numbers.items():
            count = len(made.columns.get(name, {}).get("categories", ()))
            most = count or (3 if numbers is made.rows else 2)
            sound = all(abs(one) <= 10.0**bound for one, bound in zip(given, _BOUNDS, strict=False))
            if numbers is made.rows:
                sound = sound and len(given) == most and min(given[0], given[-1]) >= 0
            elif not count and len(given) == 2:
                sound = sound and given[1] > 0
            if not sound or len(given) > most or any(map(math.isnan, given)):
                raise TypeError(f"numbers of {name!r} that are none of a scaling")
    if not all(abs(trend) <= _STRONGEST for trend in made.trends.values()):
        raise TypeError("a trend that is none")
    for name, given in made.codes.items():
        counts = given[1::2]
        if len(given) % 2 or len(given) > _MOST_CODES or not all(map(math.isfinite, given)):
            raise TypeError(f"numbers of {name!r} that are no codes with their rows")
        whole = all(one.is_integer() for one in counts)
        if not whole or min(counts, default=0.0) < 1 or max(counts) > MOST_EXAMPLES:
            raise TypeError(f"codes of {name!r} in numbers of rows that are none")
