"""Random tables against scikit-learn's encoders: constants, gaps, equal rows, few rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from privet.data import DataError, Dataset, load

NUMBERS = ["0.1", "-3.25", "7", "1e3"]
TEXTS = ["ICU", "ward", "a b"]


@dataclass(frozen=True)
class Column:
    """Cells of one column, None where a value is missing."""

    cells: list[str | None]
    numeric: bool

    @property
    def gaps(self) -> Any:
        return np.array([cell is None for cell in self.cells])

    @property
    def empty(self) -> bool:
        return bool(self.gaps.all())

    def rows(self, kept: Any) -> Column:
        return Column(
            [cell for cell, keep in zip(self.cells, kept, strict=True) if keep], self.numeric
        )


@st.composite
def tables(draw: st.DrawFn) -> list[Column]:
    """Return up to four columns, of one to three different values each, and a few of none."""
    count = draw(st.sampled_from([4, 1, 2, 7, 12]))
    columns = []
    for numeric in draw(st.lists(st.booleans(), min_size=1, max_size=4)):
        pool = st.sampled_from((NUMBERS if numeric else TEXTS)[: draw(st.integers(1, 4))])
        cells: list[str | None] = draw(st.lists(pool, min_size=count, max_size=count))
        gaps = st.sampled_from([(), (), (0,), (1, 2), (count - 1,), range(count)])
        for row in draw(gaps):
            if row < count:
                cells[row] = None
        columns.append(Column(cells, numeric))
    return columns


def oracle(column: Column, missing: str) -> Any:
    """Return what scikit-learn makes of a column, of shape (rows, width)."""
    if column.numeric:
        values = np.array([np.nan if cell is None else float(cell) for cell in column.cells])[
            :, None
        ]
        scaled = StandardScaler().fit_transform(values)
        filled = SimpleImputer(strategy="mean").fit_transform(scaled)
        if missing == "category" and column.gaps.any():
            return np.hstack([filled, MissingIndicator().fit_transform(values)])
        return filled
    texts = np.array(column.cells, dtype=object)[:, None]
    encoder = OneHotEncoder(drop="first", sparse_output=False)
    if missing == "category":
        encoded = encoder.fit_transform(texts)  # None is the last category
        encoded[column.gaps, :-1] = 0
        return encoded
    encoded = np.full((len(texts), len(set(column.cells) - {None}) - 1), np.nan)
    encoded[~column.gaps] = encoder.fit_transform(texts[~column.gaps])
    return SimpleImputer(strategy="mean").fit_transform(encoded) if encoded.size else encoded


def read(columns: list[Column], missing: str, folder: str, **keys: Any) -> Dataset:
    """Return the table of these columns, with labels, all rows of which are trained on."""
    count = len(columns[0].cells)
    names = [*(f"c{number}" for number in range(len(columns))), "y"]
    cells = [*(column.cells for column in columns), ["no", "yes"] * count]
    rows = [",".join(cell or "" for cell in row) for row in zip(*cells, strict=False)]
    for name in ("all.csv", "test.csv"):
        (Path(folder) / name).write_text("\n".join([",".join(names), *rows]) + "\n")
    return load("csv", data_path=folder, intercept=False, missing=missing, **keys)


def refusal(columns: list[Column], missing: str) -> str:
    """Return what is wrong with a table, as its error must name it, or nothing."""
    gaps = np.array([column.gaps for column in columns])
    known = gaps[[not column.empty for column in columns]]
    kept = ~known.any(axis=0) if missing == "drop" else ~gaps[:, :0].any(axis=1)
    if missing == "drop" and not kept.any():
        return "every row of all has missing values, none is left"
    for number, column in enumerate(columns):
        if column.empty:
            return f"column c{number}: every value is missing"
    labels = np.arange(gaps.shape[1])[kept if missing == "drop" else slice(None)] % 2
    if len(set(labels)) < 2:
        return "column y: every row has the same label"
    for number, column in enumerate(columns):
        if missing == "refuse" and column.gaps.any():
            return f"missing values, in .*c{number} of {2 * column.gaps.sum()} rows"
        if missing == "zero" and column.gaps.any() and not column.numeric:
            return f"column c{number}: {2 * column.gaps.sum()} texts are missing"
    used = [column.rows(kept) if missing == "drop" else column for column in columns]
    if not any(oracle(column, missing).shape[1] for column in used):
        return "expected a column beside y that is not the same text in every row"
    return ""


@pytest.mark.parametrize("missing", ["refuse", "category", "mean", "drop", "zero"])
@settings(max_examples=60)
@given(columns=tables())
def test_any_table_becomes_what_scikit_learn_makes_of_it(
    columns: list[Column], missing: str
) -> None:
    why = refusal(columns, missing)
    event("refused" if why else "read")
    with TemporaryDirectory() as folder:
        if why:
            with pytest.raises(DataError, match=why) as caught:
                read(columns, missing, folder)
            assert "cannot be used" not in str(caught.value)
            return
        data = read(columns, missing, folder)
    if missing == "drop":
        kept = ~np.any([column.gaps for column in columns], axis=0)
        columns = [column.rows(kept) for column in columns]
    expected = [oracle(column, missing) for column in columns]
    assert [column.width for column in data.source_columns[:-1]] == [
        one.shape[1] for one in expected
    ]
    np.testing.assert_allclose(data.train_features, np.hstack(expected), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(data.train_features, data.test_features)
