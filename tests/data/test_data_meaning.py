"""What columns mean: no pair that differs is accepted, and no pair that means the same refused."""

from __future__ import annotations

import csv
import gc
import json
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.data import DataError, problem_from_config
from privet.data.agreement import Agreement, agreement
from privet.data.frames import table_from_config
from privet.data.meaning import OPEN, Difference, Meaning, is_statement, read
from privet.data.scaling import pooled
from privet.data.source_column import HIDDEN, SourceColumn
from privet.data.tables.schema import read_schema, write_schema

NAMES = ("age", "bmi", "sex", "ward", "Weight [kg]", "größe")
TEXTS = ("a", "b", "c", "d", "ja", "nein")
BOOLEANS = ("false", "true")
KINDS = ("numbers", "dates", "flags", "words", "texts")
"""Of a column. Flags are 0 and 1, words false and true: both are booleans where either is."""
RANGES = ((0, 30_000), (-10, 30_000))
LABELS = ("died", "ill")
CLASSES = (("0", "1"), ("nein", "ja"), ("no", "yes"), ())
"""Of the labels; where there are none they are a quantity."""
KEYS: Mapping[str, tuple[Any, ...]] = {
    "intercept": ("yes", "no"),
    "dtype": ("float64", "float32"),
    "row-norm": (0.0, 2.0),
    "loss": ("auto", "huber"),
    "missing": ("refuse", "zero", "mean"),
    "censored": ("refuse", "half", "bound"),
}
"""Run-config keys, each with its default first."""
CHANGES = (
    *("permute", "reorder", "rename", "recode", "lack", "drop", "range", "unit", "gap", "kind"),
    *("reverse", "label", "classes", "label range", "state", "key", "missing"),
)
COUNT = 12


@dataclass(frozen=True)
class Column:
    """A column of a site: a range of numbers, or categories of which the first is the reference.

    Range, unit, ``gap`` and reference are what a schema states.
    """

    name: str
    kind: str
    range: tuple[int, int] = RANGES[0]
    categories: tuple[str, ...] = ()
    unit: str = ""
    gap: bool = False


@dataclass(frozen=True)
class Site:
    """A site's table, whether it has a schema, and run-config keys other than the defaults."""

    columns: tuple[Column, ...]
    label: str
    classes: tuple[str, ...]
    schema: bool
    range: tuple[int, int] = RANGES[0]
    keys: tuple[tuple[str, Any], ...] = ()

    def key(self, name: str) -> Any:
        return dict(self.keys).get(name, KEYS[name][0])

    @property
    def missing(self) -> str:
        return "category" if self.gaps else str(self.key("missing"))

    @property
    def gaps(self) -> bool:
        return self.schema and any(column.gap for column in self.columns)

    @property
    def of_label(self) -> Any:
        """What is stated or visible of the label."""
        if not self.classes:
            return self.label, self.range if self.schema else ()
        return self.label, self.classes if self.schema else tuple(sorted(self.classes))

    def facts(self, column: Column) -> Any:
        """What is stated of a column by a schema, whatever the order of its categories."""
        if not column.categories:
            return (
                column.range,
                column.unit,
                column.gap,
                self.key("censored"),
                self.missing == "mean",
            )
        first, *others = column.categories
        return first, frozenset(others), column.gap, self.missing == "mean"


def alike(first: Site, one: Column, second: Site, other: Column) -> bool:
    """Whether a column of two sites means the same: one without a schema takes the reference of
    the other's, and categories among which its own are; numbers 0 and 1 are booleans beside such.
    """
    if first.schema and second.schema:
        return bool(first.facts(one) == second.facts(other))
    if second.schema:
        first, one, second, other = second, other, first, one
    texts = [set(each.categories) for each in (one, other)]
    means = [site.missing == "mean" for site in (first, second)]
    if first.schema:
        if not one.categories or one.gap or texts[1] - texts[0]:
            return False
        return bool(other.categories) and (other.kind == "flags" or means[0] == means[1])
    numbers = [each.kind in ("numbers", "flags") for each in (one, other)]
    if all(numbers):
        return bool(first.key("censored") == second.key("censored"))
    if "dates" in (one.kind, other.kind):
        return one.kind == other.kind
    if any(numbers):
        return {one.kind, other.kind} == {"flags", "words"}
    return (texts[0] <= texts[1] or texts[1] <= texts[0]) and means[0] == means[1]


def same(first: Site, second: Site) -> bool:
    """Whether two sites mean the same; written here for the tests alone."""
    ours, theirs = ({column.name: column for column in one.columns} for one in (first, second))
    settings_of = [
        [one.key(name) for name in ("intercept", "dtype", "row-norm", "loss")]
        for one in (first, second)
    ]
    if (
        ours.keys() != theirs.keys()
        or first.of_label != second.of_label
        or settings_of[0] != settings_of[1]
    ):
        return False
    return all(alike(first, ours[name], second, theirs[name]) for name in ours)


@st.composite
def column_of(draw: Any, name: str, kind: str = "") -> Column:
    kind = kind or draw(st.sampled_from(KINDS))
    if kind == "texts":
        texts = st.lists(st.sampled_from(TEXTS), min_size=2, max_size=4, unique=True)
        return Column(name, kind, categories=tuple(draw(texts)))
    if kind in ("flags", "words"):
        return Column(name, kind, categories=tuple(draw(st.permutations(BOOLEANS))))
    return Column(name, kind)


@st.composite
def sites(draw: Any) -> Site:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    columns = tuple(draw(column_of(name)) for name in names)
    label, classes = draw(st.sampled_from(LABELS)), draw(st.sampled_from(CLASSES))
    missing = draw(st.sampled_from(KEYS["missing"]))
    return Site(columns, label, classes, draw(st.booleans()), keys=(("missing", missing),))


NEEDS: dict[str, dict[str, Any]] = {
    "reorder": {"column": "texts", "schema": True},
    "recode": {"column": "texts"},
    "lack": {"column": "texts"},
    "range": {"column": "numbers", "schema": True},
    "unit": {"column": "numbers", "schema": True},
    "gap": {"schema": True},
    "reverse": {"classes": CLASSES[1], "schema": True},
    "label range": {"classes": (), "schema": True},
}
"""What a site mostly has, so that a change of a kind changes something."""


def change(draw: Any, site: Site, kind: str, at: int) -> Site:
    """Return a site after a change, which may change nothing of what it means."""
    columns = list(site.columns)
    one = columns[at]
    free = [name for name in NAMES if name not in {each.name for each in columns}]
    unused = [text for text in TEXTS if text not in one.categories]
    if kind == "permute":
        columns = draw(st.permutations(columns))
    elif kind == "reorder" and one.categories:
        columns[at] = replace(one, categories=tuple(draw(st.permutations(one.categories))))
    elif kind == "rename":
        columns[at] = replace(one, name=draw(st.sampled_from(free)))
    elif kind == "recode" and one.kind == "texts":
        new = draw(st.sampled_from(unused))
        columns[at] = replace(one, categories=(*one.categories[:-1], new))
    elif kind == "lack" and len(one.categories) > 2:
        columns[at] = replace(one, categories=one.categories[1:])
    elif kind == "drop" and len(columns) > 1:
        del columns[at]
    elif kind == "range" and not one.categories:
        columns[at] = replace(one, range=draw(st.sampled_from(RANGES)))
    elif kind == "unit" and not one.categories:
        columns[at] = replace(one, unit=draw(st.sampled_from(["", "mmol/l", "mg/dl"])))
    elif kind == "gap":
        columns[at] = replace(one, gap=not one.gap)
    elif kind == "kind":
        columns[at] = draw(column_of(one.name))
    site = replace(site, columns=tuple(columns))
    if kind == "state":
        return replace(site, schema=not site.schema)
    if kind == "reverse":
        return replace(site, classes=site.classes[::-1])
    if kind == "label":
        return replace(site, label=draw(st.sampled_from(LABELS)))
    if kind == "classes":
        return replace(site, classes=draw(st.sampled_from(CLASSES)))
    if kind == "label range":
        return replace(site, range=draw(st.sampled_from(RANGES)))
    if kind in ("key", "missing"):
        name = kind if kind in KEYS else draw(st.sampled_from(list(KEYS)))
        value = draw(st.sampled_from(KEYS[name]))
        return replace(site, keys=tuple({**dict(site.keys), name: value}.items()))
    return site


@st.composite
def pairs(draw: Any, kind: str, *, stated: bool = False) -> tuple[Site, Site]:
    """Return a site, and it after a change of a kind, and perhaps another one.

    ``stated`` says that both have a schema, and no means for missing values.
    """
    first, needs = draw(sites()), NEEDS.get(kind, {})
    if needs and draw(st.integers(0, 4)):
        first = replace(
            first,
            schema=needs.get("schema", first.schema),
            classes=needs.get("classes", first.classes),
        )
        if "column" in needs:
            one = draw(column_of(first.columns[0].name, needs["column"]))
            first = replace(first, columns=(one, *first.columns[1:]))
    second = change(draw, first, kind, 0)
    if not draw(st.integers(0, 2)):
        at = draw(st.integers(0, len(second.columns) - 1))
        second = change(draw, second, draw(st.sampled_from(CHANGES)), at)
    if stated:
        first, second = (
            replace(site, schema=True, keys=tuple(one for one in site.keys if one[1] != "mean"))
            for site in (first, second)
        )
    return first, second


def records_of(site: Site, seed: int) -> dict[str, list[Any]]:
    """Return a site's records by column, the label's last: numbers, category names, or None.

    A column is drawn by its name alone, so that sites with the same columns have the same records.
    """
    records: dict[str, list[Any]] = {}
    for column in site.columns:
        draws = np.random.default_rng([seed, NAMES.index(column.name)])
        if column.categories:
            known = sorted(column.categories)
            own: list[Any] = [known[one % len(known)] for one in draws.permutation(COUNT)]
        else:
            own = [int(one) for one in draws.integers(2, 20_000, COUNT)]
        gap = column.gap if site.gaps else site.missing != "refuse"
        filled_as_false = site.missing == "zero" and column.categories
        if gap and not filled_as_false:
            own[int(draws.integers(COUNT))] = None
        records[column.name] = own
    known = sorted(site.classes)
    records[site.label] = [
        known[at % 2] if known else float(7 * at % 11 + 0.5) for at in range(COUNT)
    ]
    return records


WRITTEN = {"flags": {"false": "0", "true": "1"}, "words": {"false": "FALSE", "true": "True"}}


def written(column: Column, cell: Any) -> str:
    """Return a record's cell as the table has it."""
    if cell is None:
        return ""
    if column.kind == "dates":
        return (date(1970, 1, 1) + timedelta(days=cell)).isoformat()
    return WRITTEN.get(column.kind, {}).get(cell, str(cell))


def built(folder: Path, site: Site, seed: int) -> Callable[[str], Any]:
    """Write a site's files, and return what makes its problem with an agreed encoding."""
    records = records_of(site, seed)
    cells = {c.name: [written(c, one) for one in records[c.name]] for c in site.columns}
    cells[site.label] = [str(one) for one in records[site.label]]
    lines = [",".join(cells), *(",".join(row) for row in zip(*cells.values(), strict=True))]
    file = folder / "table.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = {
        "dataset": "csv",
        "data-path": str(file),
        "label-column": site.label,
        "partition": "none",
        "dates": "day-first",
        **dict(site.keys),
        "missing": site.missing,
    }
    if site.schema:
        values = {
            c.name: [*(c.categories or c.range), *([""] if c.gap else [])] for c in site.columns
        }
        values[site.label] = list(site.classes or site.range)
        schema = folder / "schema.toml"
        entries = [f"{json.dumps(name)} = {json.dumps(each)}" for name, each in values.items()]
        units = [f'"{c.name}" = "{c.unit}"' for c in site.columns if c.unit]
        text = "\n".join(["[columns]", *entries, "[units]", *units])
        schema.write_text(text + "\n", encoding="utf-8")
        config["schema"] = str(schema)
    return lambda agreed: problem_from_config(config, 0, 1, own=True, agreed=agreed)


def expected_of(pair: tuple[Site, Site], agreed: str) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return the features and labels of an accepted pair, from its records alone: numbers by means
    and deviations of both sites' rows, and missing values by their means.

    Of the agreed encoding only the order is taken, of columns and of categories.
    """
    both = [records_of(site, seed) for seed, site in enumerate(pair)]
    columns = [{column.name: column for column in site.columns} for site in pair]
    stated = next((site for site in pair if site.schema), pair[0])
    document = json.loads(agreed)
    parts: list[list[NDArray[Any]]] = [[], []]
    for name, facts in document["columns"]:
        kinds = {known[name].kind for known in columns}
        cells = [own[name] for own in both]
        known = [one for own in cells for one in own if one is not None]
        texts = kinds <= {"texts", "words", "flags"} and (stated.schema or kinds != {"flags"})
        if texts:
            categories = facts["categories"]
            assert set(categories) == {x for one in columns for x in one[name].categories}
            for part, own, site in zip(parts, cells, pair, strict=True):
                for category in categories[1:]:
                    share = known.count(category) / len(known) if site.missing == "mean" else 0.0
                    part.append(
                        np.array([share if x is None else float(x == category) for x in own])
                    )
        else:
            numbers = [
                np.array(
                    [np.nan if x is None else float({"false": 0, "true": 1}.get(x, x)) for x in own]
                )
                for own in cells
            ]
            whole = np.concatenate(numbers)
            mean, deviation = np.nanmean(whole), np.nanstd(whole)
            low, high = columns[0][name].range
            for part, own, site in zip(parts, numbers, pair, strict=True):
                if site.schema:
                    filled = np.where(
                        np.isnan(own), mean if site.missing == "mean" else (low + high) / 2, own
                    )
                    part.append((filled - (low + high) / 2) / ((high - low) / 2))
                else:
                    part.append(np.nan_to_num((own - mean) / deviation))
        if stated.schema and columns[0][name].gap:
            for part, own in zip(parts, cells, strict=True):
                part.append(np.array([float(x is None) for x in own]))
    found = []
    labels = [np.array(own[pair[0].label]) for own in both]
    for site, part, own in zip(pair, parts, labels, strict=True):
        if site.key("intercept") == "yes":
            part.append(np.ones(COUNT))
        rows = np.column_stack(part)
        if norm := site.key("row-norm"):
            size = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows * np.minimum(1.0, norm / np.maximum(size, 1e-30))
        if site.classes:
            plus = document["label"]["classes"][1]
            targets = np.where(own == plus, 1.0, -1.0)
        elif site.schema:
            low, high = site.range
            targets = (own - (low + high) / 2) / ((high - low) / 2)
        else:
            whole = np.concatenate(labels)
            targets = (own - whole.mean()) / whole.std()
        found.append((rows, targets))
    return found


@pytest.mark.parametrize("kind", CHANGES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_pair_is_accepted_exactly_where_it_means_the_same(kind: str, data: Any) -> None:
    """And an accepted one has the numbers of the pooled table, record by record."""
    pair = data.draw(pairs(kind))
    event(f"same: {same(*pair)}, schemas: {pair[0].schema + pair[1].schema}")
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        made = [
            built(Path(at), site, seed)
            for seed, (at, site) in enumerate(zip((one, other), pair, strict=True))
        ]
        meanings = [make("").meaning for make in made]
        for names in ("ab", "ba"):  # whoever comes first
            agreed = agreement(
                dict(sorted(zip(names, [each.text for each in meanings], strict=True)))
            )
            unfit = [agreed.unfit(each.text, "the others") for each in meanings]
            assert (unfit == ["", ""]) == same(*pair), unfit
            taken = [agreed.taken_by(each) for each in meanings]
            assert all(
                isinstance(each, Difference) == bool(why)
                for each, why in zip(taken, unfit, strict=True)
            )
            for each in taken:
                if isinstance(each, Difference):
                    assert each.ours != each.theirs
            if any(unfit):
                continue
            problems = [make(agreed.text) for make in made]
            for problem, (rows, targets) in zip(
                problems, expected_of(pair, agreed.text), strict=True
            ):
                close = {"rtol": 0, "atol": 1e-6 if pair[0].key("dtype") == "float32" else 1e-12}
                np.testing.assert_allclose(problem.features, rows, **close)
                found = problem.targets if hasattr(problem, "targets") else problem.labels
                np.testing.assert_allclose(found, targets, **close)
            assert {each.meaning.text for each in problems} == {agreed.text}


@pytest.mark.parametrize("kind", CHANGES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_digests_of_schemas_say_the_same_as_their_texts(kind: str, data: Any) -> None:
    first, second = data.draw(pairs(kind, stated=True))
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        ours, theirs = built(Path(one), first, 1), built(Path(other), second, 1)
        meanings = [make("").meaning for make in (ours, theirs)]
        agreed = agreement({"a": meanings[0].digests, "b": meanings[1].digests})
        taken = [agreed.taken_by(each) for each in meanings]
        accepted = not agreed.unfit(meanings[1].digests, "the others")
        assert accepted == same(first, second)
        assert accepted == isinstance(taken[1], Meaning)
        if not isinstance(taken[0], Meaning) or not isinstance(taken[1], Meaning):
            return
        features = [
            make(each.text).features for make, each in zip((ours, theirs), taken, strict=True)
        ]
    if records_of(first, 1) == records_of(second, 1):
        assert features[0].tobytes() == features[1].tobytes()
    assert [agreed.has(each.digests) for each in taken if isinstance(each, Meaning)] == [True, True]


@given(data=st.data())
def test_a_text_is_canonical(data: Any) -> None:
    site = data.draw(sites())
    with TemporaryDirectory() as folder:
        meaning = built(Path(folder), site, 1)("").meaning
    again = Meaning.from_text(meaning.text)
    assert (again.text, again.digests) == (meaning.text, meaning.digests)
    assert is_statement(meaning.text)
    assert is_statement(meaning.digests)


@given(
    parts=st.lists(
        st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=9), min_size=1, max_size=6
    ),
    offset=st.sampled_from([0, 10**9, -(10**12)]),
)
def test_means_and_deviations_are_those_of_all_rows(parts: list[list[int]], offset: int) -> None:
    """Against exact fractions, also where a sum of squares would have no digit left."""
    sites_of = []
    for part in parts:
        values = np.array(part, float) + offset
        squares = float(((values - values.mean()) ** 2).sum())
        rows = {"x": [float(len(part)), float(values.mean()), squares]}
        sites_of.append(Meaning({"x": {}}, {"name": "y"}, rows=rows))
    mean, deviation = pooled(sites_of[0], sites_of)["x"]
    whole = [Fraction(one + offset) for part in parts for one in part]
    exact = sum(whole) / len(whole)
    variance = sum((one - exact) ** 2 for one in whole) / len(whole)
    assert mean == pytest.approx(float(exact), rel=1e-14, abs=1e-9)
    if variance:
        assert deviation == pytest.approx(float(variance) ** 0.5, rel=1e-9)
    else:
        assert deviation == 1.0


def test_missing_values_become_means_and_shares_of_all_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,w,y\n1,a,0\n,b,1\n3,,0\n5,b,1\n")
    (tmp_path / "b.csv").write_text("w,x,y\na,7,0\n,,1\na,11,0\n")

    def problem(name: str, agreed: str = "") -> Any:
        path = str(tmp_path / name)
        keys = {"dataset": "csv", "data-path": path, "partition": "none", "missing": "mean"}
        return problem_from_config(keys, 0, 1, own=True, agreed=agreed)

    stated = {name: problem(name).meaning.text for name in ("a.csv", "b.csv")}
    agreed = agreement(stated).text
    rows = np.vstack([problem(name, agreed).features for name in stated])
    known = np.array([1.0, 3, 5, 7, 11])
    x = (np.array([1, np.nan, 3, 5, 7, np.nan, 11]) - known.mean()) / known.std()
    w = [0, 1, 2 / 5, 1, 0, 2 / 5, 0]
    assert rows == pytest.approx(np.column_stack([np.nan_to_num(x), w, np.ones(7)]))


@settings(max_examples=300)
@given(
    junk=st.one_of(
        st.text(),
        st.text().map("{}".format),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
            lambda inner: st.one_of(
                st.lists(inner),
                st.dictionaries(
                    st.sampled_from(
                        ["columns", "label", "settings", "rows", "scale", "codes", "trends", "x"]
                    ),
                    inner,
                ),
            ),
        ).map(json.dumps),
    )
)
def test_a_statement_from_elsewhere_is_read_or_refused(junk: str) -> None:
    """Whatever is taken for one can be compared and agreed on with another."""
    if not is_statement(junk):
        return
    good = Meaning({"x": {"categories": ["a", "b"]}}, {"name": "y", "classes": ["0", "1"]})
    for stated in ({"a": junk, "b": good.text}, {"a": junk, "b": junk}):
        agreed = agreement(stated)
        assert isinstance(agreed.unfit(junk, "the others"), str)
        assert isinstance(agreed.unfit(good.text, "the others"), str)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "{",
        '{"columns": [["x", {"categories": []}]]}',
        '{"columns": [["x", {"categories": "ab"}]]}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 2]}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 2, -1]}}',
        '{"columns": [["x", {}]], "codes": {"x": [1, 1]}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 1, 0]}, "codes": {"x": [1]}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 1, 0]}, "codes": {"x": [1, 0]}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 1, 0]}, "codes": {"x": [1e999, 1]}}',
        '{"columns": [["x", {}]], "trends": {"x": 1}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 1, 0]}, "trends": {"x": 1e9}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 1, 0]}, "trends": {"x": NaN}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 1, 0]}, "trends": {"x": [1]}}',
        '{"columns": [["x", {}]], "rows": {"x": [1, 1e200, 1]}}',
        '{"columns": [["x", {}]], "scale": {"x": [0, 0]}}',
        '{"columns": [["x", {}]], "scale": {"x": [NaN, 1]}}',
        '{"columns": [["x", {"range": [1]}]]}',
        '{"columns": [["x", {"stated": 2}]]}',
        '{"columns": [["x", {"gap": false}]]}',
        '{"columns": [["x", {"width": 1}]]}',
        '{"columns": [["x", {"categories": ["a"], "width": "1"}]]}',
        '{"columns": [["x", {"categories": ["a"], "width": true}]]}',
        '{"columns": [["x", {"categories": ["a"], "width": 5}]]}',
        '{"columns": [["x", {"unit": 3}]]}',
        '{"columns": [["x", {"of-its-own": 1}]]}',
        '{"columns": [["x", {}]], "label": {"stated": true}}',
        '{"columns": [[1, {}], ["x", {}]]}',
        '{"columns": [["x", {"a": [[], []]}]]}',
        '{"label": {"a": {"": 0}}}',
        '{"settings": {"a": [1]}}',
    ],
)
def test_what_no_site_states_is_no_statement(text: str) -> None:
    assert not is_statement(text)


def test_of_long_statements_one_is_kept() -> None:
    def long(count: int) -> str:
        return Meaning({"x": {"categories": [f"{i:06}" for i in range(count)]}}).text

    short = Meaning({"x": {}}).text
    texts = [long(20_000 + i) for i in range(3)]
    read_ones = list(map(weakref.ref, map(read, [short, *texts])))
    gc.collect()
    assert [each() is not None for each in read_ones] == [True, False, False, True]
    assert read(texts[2]) is read_ones[3]()


def test_most_sites_decide_whoever_comes_first() -> None:
    odd = Meaning({"a": {}}, {"name": "y"})
    most = Meaning({"b": {}, "c": {}}, {"name": "y"})
    turned = Meaning({"c": {}, "b": {}}, {"name": "y"})
    stated = {"1": odd.text, "2": turned.text, "3": most.text, "4": most.text}
    assert agreement(stated) == Agreement(most.text)
    assert agreement(stated, leader=odd.text) == Agreement(odd.text)
    assert agreement({}) == Agreement("")
    assert agreement({"1": odd.text, "2": most.text}) == Agreement(odd.text)


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("odd", [{"width": 0}, {"width": 2}, {"width": 1, "stated": True}, {}])
def test_what_no_digest_holds_is_as_most_sites_state_it(odd: dict[str, Any], scales: bool) -> None:
    """Each site has a scale of its own, so that no two of their digests are equal."""

    def site(place: int, flag: dict[str, Any]) -> str:
        columns = {"age": {}, "flag": {"categories": ["yes"], **flag}}
        scale = {"scale": {"age": [place, 1.0]}} if scales else {}
        rows = {"age": [3.0, float(place), 2.0]}
        return Meaning(columns, {"classes": ["0", "1"]}, rows=rows, **scale).text

    sites = {str(place): site(place, {"width": 1} if place else odd) for place in range(4)}
    for order in (sites, dict(reversed(sites.items()))):
        agreed = agreement(order).meaning
        assert agreed is not None
        assert agreed.columns["flag"] == {"categories": ["yes"], "width": 1}
        assert agreed.scale["age"][0] == 1.5


def lacking(*columns: tuple[str, ...], names: tuple[str, ...] = ("c", "d")) -> Meaning:
    """Return what a site without a schema states whose columns have these categories."""
    facts = {n: {"categories": list(one)} for n, one in zip(names, columns, strict=True)}
    return Meaning(facts, {"name": "y", "classes": ["0", "1"]})


def test_sites_that_lack_categories_of_different_columns_are_agreed() -> None:
    """Whoever comes first: none of them has all categories of both columns."""
    sites = {
        "a": lacking(("1", "2"), ("x", "y", "z")),
        "b": lacking(("1", "2", "3"), ("x", "z")),
        "c": lacking(("2", "3"), ("x", "y")),
    }
    for order in (sites, dict(reversed(sites.items()))):
        agreed = agreement({name: one.text for name, one in order.items()})
        assert agreed.meaning is not None
        known = {name: facts["categories"] for name, facts in agreed.meaning.columns.items()}
        assert known == {"c": ["1", "2", "3"], "d": ["x", "y", "z"]}
        assert [agreed.unfit(one.text, "the others") for one in sites.values()] == [""] * 3
        assert all(isinstance(agreed.taken_by(one), Meaning) for one in sites.values())


def test_a_site_of_other_texts_is_turned_away_by_the_most_whatever_its_name() -> None:
    few, most = lacking(("1", "2"), ("x", "y")), lacking(("1", "2", "3"), ("x", "y"))
    for odd in (
        lacking(("1", "2", "4"), ("x", "y")),
        lacking(("1", "2"), ("x", "y"), names=("c", "e")),
    ):
        sites = {"a": odd, "b": few, "c": most, "d": most}
        agreed = agreement({name: one.text for name, one in sites.items()})
        assert agreed == Agreement(most.text)
        unfit = [bool(agreed.unfit(one.text, "the others")) for one in sites.values()]
        assert unfit == [True, False, False, False]


def test_a_coordinators_categories_are_not_widened() -> None:
    leader, more = lacking(("1", "2"), ("x", "y")), lacking(("1", "2", "3"), ("x", "y"))
    agreed = agreement({"a": more.text}, leader=leader.text)
    assert agreed == Agreement(leader.text)
    line = "has c = 1, 2, 3, the coordinator's data c = 1, 2"
    assert agreed.unfit(more.text, "the coordinator's data") == line


def test_numbers_0_and_1_are_booleans_beside_booleans_alone() -> None:
    def one(**facts: Any) -> Meaning:
        return Meaning({"c": facts}, {"name": "y", "classes": ["0", "1"]})

    flag, numbers, both = one(flag=True), one(), one(categories=["false", "true"])
    single = one(categories=["false"], width=1)
    others = one(categories=["no", "yes"])
    for sites in ([flag, both], [flag, single], [flag, flag, single], [single, flag, both]):
        for order in (sites, sites[::-1]):
            agreed = agreement({f"s{at}": each.text for at, each in enumerate(order)})
            assert agreed.text == both.text
    assert agreement({"a": single.text}, leader=flag.text).text == both.text
    for odd in (numbers, others, one(flag=True, gap=True)):
        agreed = agreement({"a": both.text, "b": both.text, "c": odd.text})
        assert agreed.text == both.text
        assert agreed.unfit(odd.text, "the others")
    assert agreement({"a": flag.text, "b": numbers.text}).meaning is not None
    assert not flag.difference(numbers)
    assert not numbers.difference(flag)
    words = replace(both, label={"name": "y", "classes": ["false", "true"]})
    assert not words.difference(both)
    assert words.like(both).text == both.text
    stated = replace(words, columns={"c": {"categories": ["false", "true"], "stated": True}})
    assert stated.difference(both)


MISSING = ["refuse", "zero", "drop", "mean"]


@pytest.mark.parametrize("schema", ["", '[columns]\nx = [0, 10]\nw = ["a", "b"]\ny = ["0", "1"]\n'])
@pytest.mark.parametrize("ours", MISSING)
@pytest.mark.parametrize("theirs", MISSING)
def test_means_for_missing_values_are_those_of_all_sites_or_of_none(
    tmp_path: Path, ours: str, theirs: str, schema: str
) -> None:
    """A site that does not say how many rows it has of each category would be in no mean."""

    def site(name: str, missing: str) -> Any:
        path = tmp_path / f"{name}.csv"
        path.write_text("x,w,y\n" + "".join(f"{n},{'ab'[n % 2]},{n // 2 % 2}\n" for n in range(8)))
        keys = {"dataset": "csv", "data-path": str(path), "missing": missing, "partition": "none"}
        if schema:
            (tmp_path / "s.toml").write_text(schema)
            keys["schema"] = str(tmp_path / "s.toml")
        return problem_from_config(keys, 0, 1, own=True).meaning

    first, second = site("a", ours), site("b", theirs)
    agreed = agreement({"a": first.text, "b": second.text})
    said = [agreed.unfit(one.text, "the others") for one in (first, second)]
    alike = (ours == "mean") == (theirs == "mean")
    assert (said == ["", ""]) == alike
    column = "x" if schema else "w"
    line = f"for missing values of {column}, the others"
    assert any(line in one or f"the others means {line[:-12]}" in one for one in said) != alike
    assert (first.digests == second.digests) == alike


def test_a_flag_with_gaps_that_become_the_mean_is_no_boolean(tmp_path: Path) -> None:
    """As one it would read them as false; a mean is that of all sites' rows."""

    def site(name: str, flags: list[str], **keys: str) -> Any:
        path = tmp_path / f"{name}.csv"
        rows = "".join(f"{flag},{n},{n // 2 % 2}\n" for n, flag in enumerate(flags))
        path.write_text(f"flag,x,y\n{rows}")
        keys |= {"dataset": "csv", "data-path": str(path), "partition": "none"}
        return lambda agreed: problem_from_config(keys, 0, 1, own=True, agreed=agreed)

    words = site("a", ["true", "false"] * 4, missing="mean")
    gaps = ["1", "", "1", "0", "1", "1", "1", "0"]
    for missing, accepted in (("zero", False), ("mean", True)):
        numbers = site("b", gaps, missing=missing)
        stated = {"a": words("").meaning.text, "b": numbers("").meaning.text}
        agreed = agreement(stated)
        said = agreed.unfit(stated["b"], "the others")
        assert said == ("" if accepted else "has numbers in flag, the others categories")
        if accepted:
            assert numbers(agreed.text).features[1, 0] == pytest.approx((4 + 5) / (8 + 7))
    whole = site("c", [one or "1" for one in gaps], missing="zero")("").meaning.text
    assert not agreement({"a": stated["a"], "c": whole}).unfit(whole, "the others")


def test_shares_of_missing_texts_are_agreed_on_whoever_has_more_categories() -> None:
    def one(*texts: str) -> Meaning:
        width = {"width": 1} if len(texts) == 1 else {}
        rows = {"c": [float(at + 5) for at in range(len(texts))]}
        return Meaning({"c": {"categories": list(texts), **width}}, {"name": "y"}, rows=rows)

    sites = {"a": one("u"), "b": one("u", "v"), "c": one("u", "v", "w")}
    for order in (sites, dict(reversed(sites.items()))):
        agreed = agreement({name: site.text for name, site in order.items()}).meaning
        assert agreed is not None
        assert agreed.columns["c"]["categories"] == ["u", "v", "w"]
        assert agreed.scale["c"] == [15 / 34, 12 / 34, 7 / 34]


def test_of_many_categories_those_are_named_that_differ() -> None:
    texts = tuple(f"category {at:02d}" for at in range(30))
    ours, theirs = lacking(texts[1:], ("x",)), lacking((*texts[:-2], "other"), ("x",))
    found = ours.difference(theirs)
    assert found is not None
    assert found.between("has", "the others") == (
        "has c = category 28, category 29 and 27 that both have, the others c = category 00, other "
        "and 27 that both have"
    )
    stated = Meaning({"c": {"categories": list(texts[1:]), "stated": True}}, ours.label)
    found = stated.difference(Meaning({"c": {"categories": list(texts)}}, ours.label))
    assert found == ("c = 29 that both have", "c = category 00 and 29 that both have")


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"hashing": True}, "has hashing = true, the others hashing = false"),
        ({"columns": 9}, "has columns = 10, the others columns = 9"),
        ({"dtype": "float32"}, 'has dtype = "float32", the others dtype = "float64"'),
        ({"intercept": "no"}, "has intercept = false, the others intercept = true"),
        (
            {"loss": "huber"},
            'has loss = "huber", the others loss = "binary-logistic"',
        ),
        ({"dataset": "synthetic"}, 'has dataset = "synthetic", the others dataset = "click"'),
        ({}, ""),
    ],
)
def test_data_without_names_are_compared_by_what_makes_their_rows(
    tmp_path: Path, keys: dict[str, Any], line: str
) -> None:
    path = tmp_path / "clicks"
    path.write_text("".join(f"{n % 2} 1:{n + 1} 3:1\n" for n in range(10)))
    config = {"dataset": "click", "data-path": str(path), "columns": 8, "partition": "none"}
    usual, odd = (
        problem_from_config(each, 0, 1, own=True).meaning for each in (config, config | keys)
    )
    agreed = agreement({"a": usual.text, "b": usual.text, "c": odd.text})
    assert agreed.unfit(odd.text, "the others") == line
    digests = Agreement(usual.digests)
    assert bool(digests.unfit(odd.digests, "the others")) == bool(line)


def test_a_file_that_changes_after_enrolment_is_not_read_by_what_was_agreed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    config = {"dataset": "csv", "data-path": str(path), "partition": "none"}
    path.write_text("x,z,y\n" + "".join(f"{n},{n % 3},{n % 2}\n" for n in range(8)))
    agreed = problem_from_config(config, 0, 1, own=True).meaning.text
    path.write_text("x,v,y\n" + "".join(f"{n},{n % 3},{n % 2}\n" for n in range(8)))
    with pytest.raises(DataError, match="this table has v, the others z: it is not the table that"):
        problem_from_config(config, 0, 1, own=True, agreed=agreed)


class TestCaches:
    """What was read from a file counts until the file, or the schema, changes."""

    @staticmethod
    def features(config: dict[str, Any]) -> Any:
        return problem_from_config({"partition": "iid", **config}, 0, 1).features

    def test_a_table_of_the_same_size_and_time_in_another_file(self, tmp_path: Path) -> None:
        path, moved = tmp_path / "t.csv", tmp_path / "new.csv"
        path.write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(10, 20)))
        before = self.features({"dataset": "csv", "data-path": str(path)})
        found = path.stat()
        moved.write_text("x,y\n" + "".join(f"{n},{n // 2 % 2}\n" for n in range(20, 30)))
        os.utime(moved, ns=(found.st_atime_ns, found.st_mtime_ns))
        moved.replace(path)
        assert path.stat().st_size == found.st_size
        again = problem_from_config({"dataset": "csv", "data-path": str(path)}, 0, 1)
        assert again.labels.tolist() != before.tolist()
        assert again.num_examples

    def test_the_schema(self, tmp_path: Path) -> None:
        path, schema = tmp_path / "t.csv", tmp_path / "s.toml"
        path.write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(10)))
        config = {"dataset": "csv", "data-path": str(path), "schema": str(schema)}
        schema.write_text('[columns]\nx = [0, 10]\ny = ["0", "1"]\n')
        wide = self.features(config)
        schema.write_text('[columns]\nx = [0, 20]\ny = ["0", "1"]\n')
        assert self.features(config)[:, 0].max() < wide[:, 0].max()

    def test_a_file_of_a_folder(self, tmp_path: Path) -> None:
        for name in ("bern", "graz"):
            rows = "".join(f"{n},{n % 2}\n" for n in range(10))
            (tmp_path / f"{name}.csv").write_text(f"x,y\n{rows}")
        config = {"dataset": "csv", "data-path": str(tmp_path)}
        before = self.features(config)
        (tmp_path / "graz.csv").write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(12)))
        assert len(self.features(config)) > len(before)

    def test_click_data(self, tmp_path: Path) -> None:
        path = tmp_path / "clicks"
        path.write_text("".join(f"{n % 2} 1:{n + 1}\n" for n in range(10)))
        config = {"dataset": "click", "data-path": str(path), "columns": 1}
        before = self.features(config)
        path.write_text("".join(f"{n % 2} 1:{n + 2}\n" for n in range(10)))
        assert self.features(config)[:, 0].sum() > before[:, 0].sum()

    def test_images(self, tmp_path: Path) -> None:
        path = tmp_path / "mnist.npz"

        def written(value: int) -> None:
            images, labels = np.full((12, 784), value, np.uint8), np.arange(12) % 10
            np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)

        config = {"dataset": "mnist", "data-path": str(path)}
        written(51)
        assert self.features(config).max() == pytest.approx(0.2)
        written(102)
        assert self.features(config).max() == pytest.approx(0.4)

    def test_what_has_not_changed_is_not_read_again(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(10)))
        config = {"dataset": "csv", "data-path": str(path), "partition": "iid"}
        assert problem_from_config(config, 0, 1) is problem_from_config(config, 0, 1)


class TestUnits:
    """Of a schema: what one site has in mmol/l is not what another has in mg/dl."""

    @staticmethod
    def meaning(folder: Path, name: str, units: str) -> Meaning:
        path, schema = folder / f"{name}.csv", folder / f"{name}.toml"
        path.write_text("sodium,y\n" + "".join(f"{n},{n % 2}\n" for n in range(8)))
        schema.write_text(f'[columns]\nsodium = [0, 10]\ny = ["0", "1"]\n{units}')
        keys = {
            "dataset": "csv",
            "data-path": str(path),
            "partition": "none",
            "schema": str(schema),
        }
        found: Meaning = problem_from_config(keys, 0, 1, own=True).meaning
        return found

    def test_sites_compare_them(self, tmp_path: Path) -> None:
        bern = self.meaning(tmp_path, "bern", '[units]\nsodium = "mmol/l"\n')
        graz = self.meaning(tmp_path, "graz", '[units]\nsodium = "mg/dl"\n')
        none = self.meaning(tmp_path, "none", "")
        line = "has the unit mg/dl of sodium, the others the unit mmol/l of sodium"
        assert Agreement(bern.text).unfit(graz.text, "the others") == line
        line = "has no unit of sodium, the others the unit mmol/l of sodium"
        assert Agreement(bern.text).unfit(none.text, "the others") == line
        assert len({bern.content, graz.content, none.content}) == 3

    @pytest.mark.parametrize(
        ("units", "line"),
        [
            (
                '[units]\npotassium = "mmol/l"\n',
                "a unit of potassium, which is no column of numbers",
            ),
            ('[units]\ny = "mmol/l"\n', "a unit of y, which is no column of numbers"),
            ("[units]\nsodium = 1\n", r"expected texts in \[units\]"),
        ],
    )
    def test_what_is_no_unit_is_refused(self, tmp_path: Path, units: str, line: str) -> None:
        with pytest.raises(DataError, match=line):
            self.meaning(tmp_path, "odd", units)


@pytest.mark.parametrize("schemas", [False, True])
def test_targets_of_a_regression_are_scaled_by_all_rows(tmp_path: Path, schemas: bool) -> None:
    """With a schema by its range, and not by what another site says of its rows."""
    tables = {"a.csv": [(1, 10), (2, 30)], "b.csv": [(5, 70), (8, 41), (9, 12)]}
    schema = tmp_path / "s.toml"
    schema.write_text("[columns]\nx = [0, 10]\ny = [0, 100]\n")

    def problem(name: str, agreed: str = "") -> Any:
        rows = "".join(f"{x}.5,{y}.5\n" for x, y in tables[name])
        (tmp_path / name).write_text(f"x,y\n{rows}")
        keys = {"dataset": "csv", "data-path": str(tmp_path / name), "partition": "none"}
        keys |= {"schema": str(schema)} if schemas else {}
        return problem_from_config(keys, 0, 1, own=True, agreed=agreed)

    agreed = agreement({name: problem(name).meaning.text for name in tables}).text
    found = np.concatenate([problem(name, agreed).targets for name in tables])
    y = np.array([y + 0.5 for rows in tables.values() for _, y in rows])
    expected = (y - 50) / 50 if schemas else (y - y.mean()) / y.std()
    assert found == pytest.approx(expected, rel=1e-12)
    document = json.loads(agreed)
    forged = json.dumps({**document, "scale": {"x": [3.0, 1e-9], "": [3.0, 1e-9]}})
    moved = problem("a.csv", forged)
    if schemas:
        assert moved.targets.tolist() == found[:2].tolist()
        assert moved.features.tolist() == problem("a.csv").features.tolist()


@pytest.mark.parametrize(
    "facts",
    [
        {"categories": ["a", "b", "a"]},
        {"categories": ["a", "\ud800"]},
        {"range": [0, 1], "unit": "\udfff"},
    ],
)
def test_a_text_that_no_site_states_is_refused(facts: dict[str, Any]) -> None:
    """Of categories that are listed twice, a node would make columns that it does not have."""
    with pytest.raises(ValueError, match="no encoding of columns"):
        Meaning.from_text(json.dumps({"columns": [["ward", facts]]}))


def test_the_numbers_of_a_sites_rows_are_sent_to_no_other_site() -> None:
    stated = {"rows": {"age": [40.0, 57.0, 4000.0]}, "trends": {"age": 5.5}}
    text = Meaning.from_text(json.dumps({"columns": [["age", {}]], **stated})).text
    assert all(one in text for one in stated)
    for sites in ({"bern": text}, {"bern": text, "graz": text}):
        agreed = Meaning.from_text(agreement(sites).text)
        assert agreed.text == agreed.without_rows().text
        assert agreed.scale["age"][0] == 57.0


def test_how_one_record_is_spelt_moves_no_other(tmp_path: Path) -> None:
    """Categories may be one number: each cell is read by the schema alone."""
    schema = tmp_path / "schema.toml"
    schema.write_text('[columns]\nward = ["1", "01", "2"]\ndied = ["no", "yes"]\n')
    wards = ["1", "01", "2", "01", "1"]
    found = []
    for first in ("1", "1.0"):
        file = tmp_path / f"{first}.csv"
        cells = [first, *wards[1:]]
        lines = [f"{ward},{died}" for ward, died in zip(cells, ["no", "yes"] * 3, strict=False)]
        file.write_text("ward,died\n" + "\n".join(lines) + "\n")
        keys = {"dataset": "csv", "data-path": str(file), "label-column": "died"}
        keys |= {"schema": str(schema), "partition": "none", "intercept": "no"}
        found.append(problem_from_config(keys, 0, 1).features)
    assert np.array_equal(found[0], found[1])
    assert found[0][:, 0].sum() == 2


def test_a_site_cannot_make_the_others_models_longer_than_the_starting_one() -> None:
    """Its categories are taken where most sites' models leave room for them, and there alone."""
    few, more = lacking(("1", "2"), ("x", "y")), lacking(("1", "2", "3"), ("x", "y"))
    sites = {"a": few.text, "b": few.text, "c": more.text}
    assert agreement(sites) == Agreement(more.text)
    assert agreement(sites, "", {"a": 0, "b": 0, "c": 0}) == Agreement(few.text)
    assert agreement(sites, "", {"a": 1, "b": 1, "c": 0}) == Agreement(more.text)
    most = lacking(tuple(map(str, range(1, 5000))), ("x", "y"))
    for order in (sites | {"d": most.text}, {"0": most.text} | sites):
        spare = {"a": 1, "b": 1, "c": 0, "d": 0, "0": 0}
        assert agreement(order, "", spare) == Agreement(more.text)
    several = [replace(one, label={"classes": ["0", "1", "2"], "name": "y"}) for one in (few, more)]
    sites = dict(zip("abc", (several[0].text, several[0].text, several[1].text), strict=True))
    assert agreement(sites, "", {"a": 3, "b": 3, "c": 0}) == Agreement(several[1].text)
    assert agreement(sites, "", {"a": 0, "b": 0, "c": 0}) == Agreement(several[0].text)


def test_one_site_cannot_have_all_others_describe_thousands_of_columns() -> None:
    def described(count: int) -> Meaning:
        return Meaning({f"c{i:05}": {} for i in range(count)}, settings={OPEN: "yes"})

    sites = {"a": described(5), "b": described(7), "c": described(8_000), "d": described(200)}
    agreed = agreement({name: one.text for name, one in sites.items()})
    assert agreed.meaning is not None
    assert len(agreed.meaning.columns) == 200
    assert agreed.unfit(sites["c"].text, "the others") == (
        "has 8000 columns and categories, the others 200 columns and categories"
    )
    assert not any(agreed.unfit(sites[name].text, "the others") for name in "abd")
    wide = {name: described(8_000 + place).text for place, name in enumerate("abc")}
    assert len(agreement(wide).meaning.columns) == 8_002  # type: ignore[union-attr]


def grouped(columns: int, *groups: str, by: str = "sex") -> Meaning:
    facts = {f"c{i:03}": {} for i in range(columns)}
    facts |= {"sex": {"categories": ["F", "M", *groups]}}
    return Meaning(facts, settings={"analysis": "describe", "by": by, OPEN: "yes"})


def test_one_sites_groups_do_not_multiply_all_others_columns() -> None:
    """Each category of ``by`` is every column once more; hundreds of one site leave that out."""
    sites = {name: grouped(60) for name in "abc"}
    west = grouped(60, *(f"z{i}" for i in range(450)))
    stated = {name: one.text for name, one in {**sites, "west": west}.items()}
    for order in (list(stated), list(stated)[::-1]):
        agreed = agreement({name: stated[name] for name in order})
        assert agreed.text == sites["a"].text
        assert agreed.unfit(west.text, "the others") == (
            "has 61 columns in 452 groups of sex to describe, "
            "the others 61 columns in 2 groups of sex to describe"
        )
        assert not agreed.unfit(sites["b"].text, "the others")


def test_groups_of_all_sites_are_described_as_far_as_a_description_goes() -> None:
    """Wards of many sites that have each a few of their own are groups of one description."""
    sites = {f"s{i}": grouped(20, *(f"w{i}-{k}" for k in range(6))) for i in range(20)}
    agreed = agreement({name: one.text for name, one in sites.items()})
    assert agreed.meaning is not None
    assert len(agreed.meaning.columns["sex"]["categories"]) == 2 + 20 * 6
    many = {f"s{i:02}": grouped(40, *(f"w{i}-{k}" for k in range(30))) for i in range(20)}
    agreed = agreement({name: one.text for name, one in many.items()})
    assert agreed.meaning is not None
    assert agreed.meaning.num_described <= 2**20
    left = [name for name, one in many.items() if agreed.unfit(one.text, "the others")]
    assert 0 < len(left) < 20, "those that are described together complete theirs"


def test_a_site_that_states_other_groups_than_it_is_asked_for_is_turned_away() -> None:
    """By another column it would pass the bound, which is of the run's own."""
    west = grouped(60, *(f"z{i}" for i in range(450)), by="")
    stated = {"west": west.text, **{name: grouped(60).text for name in "abc"}}
    agreed = agreement(stated)
    assert agreed.text == grouped(60).text
    assert '"by": "sex"' in agreed.unfit(west.text, "the others")


def test_categories_count_as_columns_do() -> None:
    long = Meaning({"c": {"categories": [f"t{i}" for i in range(900)]}}, settings={OPEN: "yes"})
    short = Meaning({"c": {"categories": ["a", "b"]}}, settings={OPEN: "yes"})
    agreed = agreement({"a": short.text, "b": short.text, "c": long.text})
    assert agreed.meaning == short or agreed.text == short.text
    assert "901 columns and categories" in agreed.unfit(long.text, "the others")


def of_kinds(**kinds: Any) -> Meaning:
    facts = {name: {"categories": given} if given else {} for name, given in kinds.items()}
    return Meaning(facts, settings={OPEN: "yes"})


@pytest.mark.parametrize("order", [1, -1])
def test_the_kind_of_a_column_is_that_of_most_sites_that_have_it(order: int) -> None:
    """One of four sites takes nobody's numbers, or categories, out of the table."""
    usual = of_kinds(age=[], sex=["F", "M"], ward=["a"])
    odd = of_kinds(age=["old", "young"], sex=[], died=["no", "yes"])
    sites = dict(list(zip("abcd", [usual, usual, usual, odd], strict=True))[::order])
    agreed = agreement({name: one.text for name, one in sites.items()}).meaning
    assert agreed is not None
    assert agreed.columns == {
        "age": {},
        "died": {"categories": ["no", "yes"]},
        "sex": {"categories": ["F", "M"]},
        "ward": {"categories": ["a"]},
    }
    for one in sites.values():
        assert not agreement({"": agreed.text, "x": one.text}).unfit(one.text, "the others")
    even = agreement({"a": of_kinds(age=[]).text, "b": of_kinds(age=["old"]).text}).meaning
    assert even is not None
    assert even.columns == {"age": {}}


def test_columns_of_another_kind_do_not_count_as_columns_to_describe() -> None:
    usual = of_kinds(**{f"c{i:04}": ["a", "b"] for i in range(3400)})
    odd = of_kinds(**{f"c{i:04}": [] for i in range(3400)})
    agreed = agreement({"a": usual.text, "b": usual.text, "c": odd.text})
    assert agreed.text == usual.text
    assert not agreed.unfit(odd.text, "the others")


HIDING = ["\x00", "\n", "\x1b[31m", "\x7f", "\x9b", "\u2028", "\u202e", "\u2066", "\u061c"]


@pytest.mark.parametrize("letter", HIDING)
def test_a_statement_has_no_letter_that_controls_what_shows_it(letter: str) -> None:
    """Names of another site's columns and categories reach screens, pages and tables."""
    sound = {"c": {"categories": ["a", "b"]}, "d": {"unit": "mg"}}
    assert is_statement(Meaning(sound, label={"name": "y", "classes": ["0", "1"]}).text)
    for bad in (
        Meaning({f"c{letter}": {}}),
        Meaning({"c": {"categories": ["a", f"b{letter}"]}}),
        Meaning({"c": {"unit": f"m{letter}g"}}),
        Meaning(sound, label={"name": f"y{letter}"}),
        Meaning(sound, label={"classes": ["0", f"{letter}1"]}),
    ):
        assert not is_statement(bad.text)


@pytest.mark.parametrize("letter", HIDING[1:])
def test_a_files_own_names_have_such_letters_as_escapes(tmp_path: Path, letter: str) -> None:
    """Its schema too, which is TOML that everybody can read."""
    file, schema = tmp_path / "own.csv", tmp_path / "schema.toml"
    head = "" if letter == "\n" else letter  # a header is one line
    with file.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow([f"c{head}c", f"=x{head}", "age"])
        lines.writerows([f"a{letter}b" if row % 2 else "a", "u", row] for row in range(40))
    table = table_from_config({"dataset": "csv", "data-path": str(file)})
    names = [*table.frame.names, *table.frame.factor(table.frame.names[0]).levels]
    names += [level for one in table.frame.factors.values() for level in one.levels]
    assert not any(map(HIDDEN.search, names))
    assert any("\\" in one for one in names)
    columns = [SourceColumn(name, 0, one.levels) for name, one in table.frame.factors.items()]
    schema.write_text(write_schema((*columns, SourceColumn(f"z{letter}", 0, (f"{letter}",)))))
    stated = read_schema(str(schema)).columns
    assert {*table.frame.factors} <= {*stated}
    assert not any(map(HIDDEN.search, stated))
