"""Doubts about the spelling of a column's categories, over all rows of a table."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import combinations

from ..dataset import Fault, some
from ..source_column import ColumnFacts, SourceColumn
from .doubts import FEW
from .values import is_number

_SPELLINGS = (
    {"y", "yes", "j", "ja", "t", "true", "1", "+", "pos", "positive", "positiv"},
    {"n", "no", "nein", "f", "false", "0", "-", "neg", "negative", "negativ"},
    {"m", "male", "man", "männlich", "mann"},
    {"f", "w", "female", "woman", "weiblich", "frau"},
)
"""Spellings of one answer."""
_SEXES = {"f", "m", "w"}
"""No answer has two of these as spellings, unless all three are there."""
_MISSING = {
    *("#n/a", "#na", "#null!", "#value!", "#ref!", "#div/0!", "#name?", "#num!", "<na>", "<null>"),
    *(
        "na",
        "n/a",
        "nan",
        "n.a.",
        "n. a.",
        "n.a",
        "k.a.",
        "k. a.",
        "keine angabe",
        "null",
        "(null)",
    ),
    *("missing", "(missing)", "fehlend", "fehlt", "blank", "(blank)", "not available", "n.d."),
    *(".", "..", "...", "-", "--", "---", "\u2013", "\u2014", "_", "*"),
}
"""Texts, in small letters, that mostly say that a value is missing; unknown may be an answer."""
_DASH = "-"
_BETWEEN = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
"""Between words: a dash, a space and an underscore are one."""
_LETTERS = str.maketrans("авекмнорстухіјѕԁԛԝαενορτυχκι", "abekmhopctyxijsdqwaevoptuxki")
"""Small letters of Cyrillic and Greek, and the Latin ones that they look like."""
_LEAST_LETTERS = 6
"""Letters of a word from which another of one letter more is rather another spelling."""
_OFTEN = 20
"""Rows of a category from which one of very few rows is rather a mistyped one."""
_WITH_UNIT = re.compile(r"[-+]?\d+(?:[.,]\d+)?\s*([^\W\d_][\w/³²]*|[%‰°µ][\w/³²]*)")
_FLAGGED = re.compile(r"[-+]?(?:\d+[.,]\d+\s*|\d+\s+)[A-Za-z*!]{1,2}")

_ALIKE = "if they mean the same, write them alike"


def of_spelt(column: SourceColumn, facts: ColumnFacts, *, classes: bool) -> list[Fault]:
    """Return the doubt about categories that may be spellings of one, such as y and yes, about
    quantities that are written as texts, and about ``classes`` of very few rows."""
    if column.public or not column.categories:
        return []
    if text := _alike(column.categories, facts.counts) or (
        not classes and _quantity(column.categories)
    ):
        return [_doubt(column, text)]
    rare = [one for one, count in facts.counts.items() if count < FEW]
    if not (classes and rare and len(column.categories) > 2):
        return []
    if not all(map(is_number, column.categories)):
        count = sum(facts.counts[one] for one in rare)
        what = f"the class{'es' * (len(rare) > 1)} {some(rare)}"
        text = f"{what} in {count} of {facts.rows} rows: if another spelling, write it as the other"
        return [_doubt(column, f"{text} rows do")]
    low, high = (f"{end(map(float, column.categories)):g}" for end in (min, max))
    text = (
        f"{len(column.categories)} classes in {facts.rows} rows, one of {facts.counts[rare[0]]}: "
        f'if it is a quantity, a schema with a range for it, such as "{column.name}" = '
        f"[{low}, {high}], makes it one; if a number says that a label is missing, leave it empty"
    )
    return [_doubt(column, text)]


def of_missing_texts(column: SourceColumn, facts: ColumnFacts) -> list[Fault]:
    """Return the doubt about categories that may stand for missing values."""
    if column.public or len(column.categories) < 2:
        return []
    odd = [one for one in column.categories if one.casefold() in _MISSING]
    if len({one.casefold() for one in column.categories} & {"+", *_SPELLINGS[1]}) > 1:
        odd = [one for one in odd if one != _DASH]  # a result, or named as a spelling
    numbers = [one for one in column.categories if is_number(one)]
    if len(numbers) == 1 and len(column.categories) > 2 and re.fullmatch("-9+|99+", numbers[0]):
        odd += numbers
    if not odd:
        return []
    count = sum(facts.counts[one] for one in odd)
    stands = "it stands" if len(odd) == 1 else "they stand"
    way = "leave these cells empty"
    text = f"{some(odd)} in {count} row{'s' * (count > 1)}: if {stands} for missing values, {way}"
    return [_doubt(column, text)]


def of_lone_text(column: SourceColumn, facts: ColumnFacts) -> list[Fault]:
    """Return the doubt about one text that makes three or more different numbers categories."""
    texts = [one for one in column.categories if not is_number(one)]
    if column.public or len(column.categories) < 4 or len(texts) != 1 or re.search(r"\d", texts[0]):
        return []
    count = facts.counts[texts[0]]
    text = (
        f"{some(texts)} in {count} row{'s' * (count > 1)} makes {len(column.categories) - 1} "
        "different numbers categories: if it stands for missing values, leave these cells empty, "
        "and if the numbers are codes, write all as texts"
    )
    return [_doubt(column, text)]


def _doubt(column: SourceColumn, text: str) -> Fault:
    return Fault(f"column {column.name}: {text}", stops=False)


def _alike(categories: Sequence[str], counts: Mapping[str, int]) -> str:
    """Return which categories, each in so many rows, may be one; empty where none may."""
    folded = {one.casefold() for one in categories}
    for spellings in _SPELLINGS:
        same = [one for one in categories if one.casefold() in spellings]
        if len(same) > 1 and (any(len(one) > 1 for one in same) or folded >= _SEXES):
            dash = f"; if {_DASH!r} stands for missing values, leave these cells empty"
            return f"{some(same)}: {_ALIKE}{dash * (_DASH in same)}"
    alike: dict[str, list[str]] = {}
    for one in categories:
        alike.setdefault(_looks(one), []).append(one)
    if same := next((texts for texts in alike.values() if len(texts) > 1), []):
        each = ", ".join(_shown(one) for one in same[:4])
        return f"{each} look alike: {_ALIKE}"
    words = {one: _BETWEEN.sub(" ", one).split() for one in categories}
    by_length: dict[int, list[str]] = {}
    for one, parts in words.items():
        by_length.setdefault(len(parts), []).append(one)
    for texts in by_length.values():
        for one, other in combinations(texts, 2):
            few, many = sorted((counts[one], counts[other]))
            rare = few < FEW and many >= _OFTEN
            if _one_letter_apart(words[one], words[other], rare=rare):
                return f"{some([one, other])} differ by a letter: {_ALIKE}"
    return ""


def _looks(text: str) -> str:
    """Return a text as it looks: without letters that do not show and accents, with one kind of
    dash and of each letter."""
    plain = "".join(
        _DASH if unicodedata.category(one) == "Pd" or one == "\u2212" else one
        for one in unicodedata.normalize("NFKD", text.casefold())
        if unicodedata.category(one) not in ("Cf", "Cc", "Mn")
    )
    return _BETWEEN.sub(" ", plain.translate(_LETTERS)).strip()


def _shown(text: str) -> str:
    """Return a text quoted, in which what is no ASCII can be told apart."""
    return ascii(text[:40])


def _one_letter_apart(one: Sequence[str], other: Sequence[str], *, rare: bool) -> bool:
    """Whether one text becomes the other by leaving out one letter of one word.

    The first letter of a word does not count (symptomatic, asymptomatic), nor does a capital letter
    (grade A, AB) or a final i, v or x (Roman numbers). Where one of the texts is ``rare``, they may
    also differ by two neighbouring letters in exchanged order, or by another letter than the last
    (type a, b).
    """
    odd = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    if len(odd) != 1:
        return False
    short, long = sorted(odd[0], key=len)
    if not long.isalpha() or len(short) < _LEAST_LETTERS - rare:
        return False
    at = next((at for at, pair in enumerate(zip(short, long, strict=False)) if len({*pair}) > 1), 0)
    at = at or (len(short) if long.startswith(short) else 0)
    end = at == len(short)
    if at == 0 or long[at].isupper() or (end and long[at] in "ivx"):
        return False
    if len(long) > len(short):
        return long[:at] + long[at + 1 :] == short
    exchanged = long[at : at + 2] == short[at : at + 2][::-1] and long[at + 2 :] == short[at + 2 :]
    return rare and (exchanged or long[at + 1 :] == short[at + 1 :] != "")


def _quantity(categories: Sequence[str]) -> str:
    """Return that categories are numbers with a unit or a flag; empty where they are not."""
    if len(categories) < 3:
        return ""
    units = [_WITH_UNIT.fullmatch(one) for one in categories]
    if all(units) and len(kinds := {one[1] for one in units if one}) == 1 and kinds != {"th"}:
        return _written(categories[0], "a unit")
    flagged = [one for one in categories if _FLAGGED.fullmatch(one)]
    if flagged and all(
        is_number(one.replace(",", ".")) for one in categories if one not in flagged
    ):
        return _written(flagged[0], "a flag")
    return ""


def _written(text: str, what: str) -> str:
    return (
        f"numbers with {what}, such as {text!r}, are read as categories: if they are quantities, "
        "write the numbers alone"
    )
