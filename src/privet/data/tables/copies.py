"""Rows that repeat others in every column, in one table, in the files of a folder, or in several
tables, by a digest of each row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import mapped
from privet.core.ordered import counted, places

from ..dataset import Fault, LabelArray, some
from ..source_column import ColumnFacts, Digests, RowDigests, SourceColumn
from .values import as_numbers, codes_of

MANY = 20
"""Different values, or rows, from which two equal ones, or columns, are rarely so by chance."""
_LEAST, _PART = 5, 0.02
"""Rows, and part of the rows, from which those that repeat others are doubted."""
_AT_ONCE = 1 << 17
"""Rows whose digests are computed at a time."""
_NONE = 0.1
"""Pairs of equal rows by chance, in expectation, up to which a few rows are enough."""
_IN_ORDER, _DIFFERENT = 16, 8
"""Rows in a row that stand again elsewhere in the same order, so many of them different, are a copy
even of columns whose rows are often equal."""
_MORE, _DEPENDENT = 10.0, 2 / 3
"""Pairs of equal rows are doubted from so many times those of columns of which the chance of equal
values is taken to this power, which allows for columns that depend on each other."""


def digests_of(
    columns: Sequence[SourceColumn],
    values: Mapping[str, Any],
    facts: Mapping[str, ColumnFacts],
    doubted: Collection[str],
) -> RowDigests:
    """Return the digests of rows; ``doubted`` are columns that are to be left out."""
    total: Digests = np.zeros(len(values[columns[0].name]), dtype=np.uint64)
    alike, apart, varied = dict[str, float](), dict[str, Digests](), set[str]()
    for column in columns:
        name, known = column.name, facts[column.name]
        counts = _counts(column, values[name])
        different, rows = len(counts), len(values[name])
        counts = counts[counts > 1]
        alike[name] = float((counts * (counts - 1.0)).sum()) / max(1, rows * (rows - 1))
        del counts
        if different > MANY:
            varied.add(name)
        digests = _digests(column, values[name])
        if known.whole and (different == rows or name in doubted):
            apart[name] = digests
        total += digests
    return RowDigests(total, alike, apart, frozenset(apart.keys() & doubted), frozenset(varied))


def _counts(column: SourceColumn, values: Any) -> NDArray[np.int64]:
    """Return how many rows have each value of a column, a missing one among them."""
    if column.categories:
        return np.asarray(values.value_counts().field(1))
    # By their order: a table of as many different numbers as rows would take more memory.
    return counted(as_numbers(values))[1]


def _digests(column: SourceColumn, values: Any) -> Digests:
    """Return a digest of each row's value in a column, the same in every table."""
    found = np.empty(len(values), np.uint64)
    for at in range(0, len(found), _AT_ONCE):
        found[at : at + _AT_ONCE] = _digests_of_some(column, values.slice(at, _AT_ONCE))
    mapped.release()
    return found


def _digests_of_some(column: SourceColumn, values: Any) -> Digests:
    if column.categories:
        each = [_digest(text) for text in column.categories]
        bits = np.asarray([*each, 0], dtype=np.uint64)[codes_of(values, column)]
    else:
        numbers = as_numbers(values) + 0.0  # of -0.0 and 0.0 the bits differ
        bits = np.where(np.isnan(numbers), np.uint64(0), numbers.view(np.uint64))
    mixed = bits ^ np.uint64(_digest(column.name))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        # The steps of splitmix64, after which any bit of a value moves all of the digest.
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    result: Digests = mixed ^ (mixed >> np.uint64(31))
    return result


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def of_copies(table: Any, files: LabelArray) -> list[Fault]:
    """Return the doubt that a file of a folder is a copy of another: rows are used twice, and
    trained on and held out."""
    if (files[:1] == files).all():
        return []
    names, firsts, counts = np.unique(files, return_index=True, return_counts=True)
    known: dict[str, list[tuple[str, Any]]] = {}
    for name, first, count in zip(names, firsts, counts, strict=True):
        rows = table.slice(first, count)
        ends = str([count, rows.slice(0, 1).to_pylist(), rows.slice(count - 1).to_pylist()])
        for other, before in known.setdefault(ends, []):
            if rows.equals(before):
                text = (
                    f"{other} and {name} have the same rows, which are used twice, trained on and "
                    "held out: if one is a copy, take it out of the folder"
                )
                return [Fault(text, stops=False, weight=2)]
        known[ends].append((str(name), rows))
    return []


def of_repeats(rows: RowDigests, sites: LabelArray) -> list[Fault]:
    """Return the doubt that rows repeat more often than rows of independent columns would.

    The pairs of equal rows that chance makes are n (n - 1) / 2 times the product of the columns'
    shares of equal pairs; the power 2/3 of the product allows for columns that depend. Rows that
    repeat in the same order are one, too, however often single ones are equal.
    """
    count = len(sites)
    for ids in dict.fromkeys((frozenset[str](), rows.ids)):
        digests = rows.without(ids)
        if count < 2 or digests is None:
            continue
        several = _repeated(digests)
        pairs = float((several * (several - 1) / 2).sum())
        expected = _chance(rows, ids) ** _DEPENDENT * count**2 / 2
        more = int((several - 1).sum())
        if not (rows.varied - ids and _are_many(more, pairs, expected, count)):
            again = _in_order(digests) if more >= _IN_ORDER else np.zeros(count, dtype=bool)
            more, in_order = int(again.sum()) // 2, " in the same order"
            if not more:
                continue
            numbers = places(digests)
        else:
            numbers, in_order = places(digests), ""
            again = (np.bincount(numbers) > 1)[numbers]
        where = sorted(map(str, np.unique(sites[again])))
        kinds = {*zip(numbers[again].tolist(), sites[again].tolist(), strict=True)}
        across = len(kinds) > len(np.unique(numbers[again]))
        of = f" of {some(where)}{', and of different sites,' * across}"
        text = (
            f"{more} rows{of if len(set(sites)) > 1 else ''} repeat others in every column"
            f"{f' but {some(sorted(ids))}' * bool(ids)}{in_order}, more than by chance: they may "
            "be trained on and held out; leave copies out, or name whose they are with "
            "person-column"
        )
        return [Fault(text, stops=False, weight=2)]
    return []


def _repeated(digests: Digests) -> NDArray[np.intp]:
    """Return how many rows have each digest that several have."""
    counts = counted(digests)[1]
    return counts[counts > 1]


def _are_many(more: int, pairs: float, expected: float, count: int) -> bool:
    """Return whether so many rows that repeat others, of so many, are a doubt."""
    least = _LEAST if expected <= _NONE else max(_LEAST, _PART * count)
    return more >= least and pairs >= _MORE * expected


def _in_order(digests: Digests) -> NDArray[np.bool_]:
    """Return which rows are in stretches of 16 that stand twice in the same order; those that do
    so again and again are of a design."""
    window, length = digests, 1
    while length < _IN_ORDER and len(window) > length:
        # The odd factor makes the order of both halves count.
        window = window[:-length] * np.uint64(0x9E3779B97F4A7C15 + 2 * length) + window[length:]
        length *= 2
    again = np.zeros(len(digests), dtype=bool)
    if length < _IN_ORDER:
        return again
    numbers = places(window)
    del window
    for at in np.flatnonzero((np.bincount(numbers) == 2)[numbers]):
        stretch = digests[at : at + _IN_ORDER]
        if len(np.unique(stretch)) >= _DIFFERENT:
            again[at : at + _IN_ORDER] = True
    return again


def between_rows(tables: Mapping[str, RowDigests]) -> list[Fault]:
    """Return the doubt that rows of one table stand in another, too, by more than chance, as in
    `of_repeats`: of two tables, the chance that values are equal is at most the root of the product
    of both shares."""
    ids = frozenset[str]().union(*(one.ids for one in tables.values()))
    for left_out in dict.fromkeys((frozenset[str](), ids)):
        if found := _between_rows(tables, left_out):
            return found
    return []


def _between_rows(tables: Mapping[str, RowDigests], ids: frozenset[str]) -> list[Fault]:
    known = {name: left for name, one in tables.items() if (left := one.without(ids)) is not None}
    same = {frozenset(tables[name].alike) for name in known}
    if len(known) < 2 or len(same) > 1:
        return []
    if not any(one.varied - ids for one in tables.values()):
        return []
    names, digests = list(known), np.concatenate(list(known.values()))
    sizes = np.asarray([len(one) for one in known.values()])
    # Equal rows of one table are one, so that what is left of a digest are its tables.
    of, at = np.repeat(np.arange(len(names)), sizes), np.argsort(digests, kind="stable")
    ordered, of = digests[at], of[at]
    first = np.r_[True, (ordered[1:] != ordered[:-1]) | (of[1:] != of[:-1])]
    ordered, of = ordered[first], of[first]
    _, numbers, counts = np.unique(ordered, return_inverse=True, return_counts=True)
    again = (counts > 1)[numbers]
    more, pairs = int((counts - 1).sum()), float((counts * (counts - 1) / 2).sum())
    where = [names[one] for one in np.unique(of[again])]
    each = sizes * np.sqrt([_chance(tables[name], ids) ** _DEPENDENT for name in names])
    expected = float(each.sum() ** 2 - (each**2).sum()) / 2
    least = min((len(known[name]) for name in where), default=0)
    if not where or not _are_many(more, pairs, expected, least):
        return []
    text = (
        f"{more} rows stand in more than one of {some(where)}, alike in every column"
        f"{f' but {some(sorted(ids))}' * bool(ids)}, more than by chance: they are trained on more "
        "than once; leave copies out"
    )
    return [Fault(text, stops=False, weight=2)]


def _chance(rows: RowDigests, ids: Collection[str]) -> float:
    """Return the chance that two rows are equal in all columns but ``ids``, as of independent
    ones."""
    return math.prod(part for name, part in rows.alike.items() if name not in ids)
