"""A schema's columns: each record is read by itself, and a site's digest is the schema's alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyarrow import parquet

from privet.data import DataError, Dataset, load
from privet.data.encoding import encoded_rows

SCHEMA = """
[columns]
dose = [0, 500]
day = [0, 30000]
unit = ["1", "2.5", "no"]
smokes = ["true", "false"]
label = ["0", "1"]
"""
CELLS = {
    "dose": [
        "1",
        "1.0",
        "1.250",
        "1,5",
        "1,250",
        "3,250",
        "<5",
        "> 7,5",
        "<1,250",
        "1e2",
        "inf",
        "",
    ],
    "day": ["7", "5.1.2020", "2020-05-01", "1 Jan 2021", "12:30", "7,5", "13.13.2020", "x", ""],
    "unit": ["1", "01", "1.0", "2.50", "2,5", "no", "No", "true", "9007199254740993", ""],
    "smokes": ["true", "TRUE", "1", "0", "False", "01", "1.0", "yes", ""],
    "label": ["0", "1", "1.0", "01", "false", "True", "2", ""],
}
"""Spellings that a table could have; some cannot be read under any option."""

PLAIN = ("1", "7", "no", "true", "0")
"""A record that every option reads."""

Record = tuple[str, ...]
records = st.tuples(
    *(
        st.just(plain) | st.sampled_from(cells)
        for plain, cells in zip(PLAIN, CELLS.values(), strict=True)
    )
)


@dataclass(frozen=True)
class Site:
    """A node with a schema, and its options."""

    folder: Path
    options: dict[str, str]

    def read(self, rows: list[Record], cut: int = 0) -> Dataset | None:
        """Return the data set of rows, of two files where they are cut; None where refused."""
        path = self.folder / "table"
        for old in path.glob("*"):
            old.unlink()
        path.mkdir(exist_ok=True)
        for number, part in enumerate([rows[:cut], rows[cut:]] if cut else [rows]):
            texts = [",".join(f'"{cell}"' for cell in row) for row in part]
            (path / f"{number}.csv").write_text("\n".join([",".join(CELLS), *texts]) + "\n")
        schema = self.folder / "schema.toml"
        schema.write_text(SCHEMA)
        source = {"data_path": str(path), "schema": str(schema), "alone": True, "whole": True}
        try:
            return load("csv", **source, **self.options)
        except DataError:
            return None


def digests(data: Dataset) -> str:
    assert data.meaning is not None
    return data.meaning.digests


def rows_of(data: Dataset) -> NDArray[np.float64]:
    return np.column_stack([data.train_features, data.train_labels])


OPTIONS = [
    {},
    {"dates": "day-first", "missing": "zero", "infinite": "missing"},
    {"dates": "month-first", "censored": "half"},
    {"censored": "bound", "infinite": "missing", "missing": "zero"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(rows=st.lists(records, min_size=1, max_size=6), cut=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_records_are_read_as_each_is_read_alone(
    rows: list[Record], cut: int, options: dict[str, str]
) -> None:
    with TemporaryDirectory() as folder:
        site = Site(Path(folder), options)
        alone = [(row, one) for row in rows if (one := site.read([row])) is not None]
        known, readable = [row for row, _ in alone], [one for _, one in alone]
        if len(known) < len(rows):
            assert site.read(rows, cut if cut < len(rows) else 0) is None
        if not known:
            return
        together = site.read(known, cut if cut < len(known) else 0)
        assert together is not None
        np.testing.assert_array_equal(rows_of(together), np.vstack([*map(rows_of, readable)]))
        assert {digests(one) for one in (together, *readable)} == {digests(readable[0])}
        assert not together.data_dependent


def fitting(options: dict[str, str]) -> list[Record]:
    """Return records that can be read, each but one cell that of a plain one."""
    with TemporaryDirectory() as folder:
        site, found = Site(Path(folder), options), []
        for at, cells in enumerate(CELLS.values()):
            for cell in cells:
                row = (*PLAIN[:at], cell, *PLAIN[at + 1 :])
                if site.read([row]) is not None:
                    found.append(row)
        return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_digest_for_every_table_that_fits_the_schema(options: dict[str, str]) -> None:
    known = fitting(options)
    assert len({row[0] for row in known}) > 4, "the table of cells has several spellings"
    with TemporaryDirectory() as folder:
        site = Site(Path(folder), options)
        found = [site.read(rows) for rows in ([PLAIN], *([row, PLAIN] for row in known), known)]
        assert {digests(one) for one in found if one is not None} == {digests(found[0])}  # type: ignore[arg-type]
        assert None not in found


def test_the_digest_says_how_bounds_are_read_and_not_how_dates_are(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    for how in ("refuse", "half", "bound"):
        for dates in ("refuse", "day-first", "month-first"):
            data = Site(tmp_path, {"censored": how, "dates": dates}).read([PLAIN])
            assert data is not None
            found.setdefault(how, set()).add(digests(data))
    assert [len(one) for one in found.values()] == [1, 1, 1]
    assert len(set.union(*found.values())) == 3


def test_cells_have_the_numbers_that_are_written(tmp_path: Path) -> None:
    site = Site(tmp_path, {"dates": "day-first", "censored": "half"})
    written = {"1,5": 1.5, "3.250": 3.25, "<5": 2.5, "> 7,5": 7.5, "1e2": 100.0, "250": 250.0}
    data = site.read([(text, *PLAIN[1:]) for text in written])
    assert data is not None
    np.testing.assert_allclose(data.train_features[:, 0] * 250 + 250, list(written.values()))
    days = site.read([(PLAIN[0], text, *PLAIN[2:]) for text in ("5.1.2020", "18266", "1 Jan 1970")])
    assert days is not None  # the fifth of January 2020 is day 18266
    np.testing.assert_allclose(days.train_features[:, 1] * 15000 + 15000, [18266, 18266, 0])


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (500, None),
        (5000, "'1,250' may be 1.25 or 1250, and the schema's range has both"),
    ],
)
def test_a_comma_that_the_range_leaves_open_is_refused_with_its_row(
    tmp_path: Path, high: int, expected: str | None
) -> None:
    path, schema = tmp_path / "t.csv", tmp_path / "s.toml"
    path.write_text('x,y\n"3,5",0\n"1,250",1\n')
    schema.write_text(f'[columns]\nx = [0, {high}]\ny = ["0", "1"]\n')

    def read() -> Dataset:
        return load("csv", data_path=path, schema=str(schema), whole=True)

    if expected is None:
        half = high / 2
        assert (read().train_features[:, 0] * half + half).tolist() == pytest.approx([3.5, 1.25])
    else:
        with pytest.raises(DataError, match=f"column x: row 2: {expected}"):
            read()


def test_a_point_beside_decimal_commas_is_a_doubt(tmp_path: Path) -> None:
    path, schema = tmp_path / "t.csv", tmp_path / "s.toml"
    path.write_text('x,z,y\n"3,5",1.250,0\n"2,5",2.500,1\n')
    schema.write_text('[columns]\nx = [0, 9]\nz = [0, 5000]\ny = ["0", "1"]\n')
    data = load("csv", data_path=path, schema=str(schema), whole=True)
    (doubt,) = data.doubts
    assert doubt.text.startswith("column z: '1.250' is read as 1.25, beside decimal commas")


@pytest.mark.parametrize(
    ("cells", "doubt"),
    [
        (("540", "1.053"), "'1.053' beside '540' may have a separator of thousands"),
        (("540", "<1.053"), "'<1.053' beside '540' may have a separator of thousands"),
        (("540.0", "1.053"), ""),
        (("1.053", "1.250"), ""),
    ],
)
@pytest.mark.parametrize("other", ['"3,5"', "4"])
def test_a_point_beside_whole_numbers_is_one_doubt(
    tmp_path: Path, cells: tuple[str, str], doubt: str, other: str
) -> None:
    """With a schema it is read all the same: what one record spells refuses no other."""
    path, schema = tmp_path / "t.csv", tmp_path / "s.toml"
    path.write_text(f"x,z,y\n{cells[0]},{other},0\n{cells[1]},{other},1\n")
    schema.write_text('[columns]\nx = [0, 1000]\nz = [0, 9]\ny = ["0", "1"]\n')
    data = load("csv", data_path=path, schema=str(schema), whole=True, censored="bound")
    expected = [float(one.lstrip("<")) for one in cells]
    np.testing.assert_allclose(data.train_features[:, 0] * 500 + 500, expected, rtol=1e-12)
    found = [one.text for one in data.doubts if one.text.startswith("column x")]
    if doubt:
        (line,) = found
        assert line.startswith(f"column x: {doubt}")
        assert line.endswith("; it is read as a decimal one")
    elif other == "4":
        assert not found


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u2019"])
def test_separators_of_thousands_are_refused_with_their_row(tmp_path: Path, space: str) -> None:
    path, schema = tmp_path / "t.csv", tmp_path / "s.toml"
    path.write_text(f"x,y\n540,0\n1{space}053,1\n")
    schema.write_text('[columns]\nx = [0, 5000]\ny = ["0", "1"]\n')
    with pytest.raises(DataError, match=r"column x: row 2: .* may have separators of thousands"):
        load("csv", data_path=path, schema=str(schema), whole=True)


def test_a_repeated_header_is_a_record_that_the_schema_does_not_fit(tmp_path: Path) -> None:
    """Left out, as without a schema, it would change the number of examples."""
    site = Site(tmp_path, {"missing": "zero"})
    assert site.read([PLAIN, tuple(CELLS), PLAIN]) is None
    path, schema = tmp_path / "t.csv", tmp_path / "s.toml"
    path.write_text("x,y\n540,0\nx,y\n3,1\n")
    schema.write_text('[columns]\nx = [0, 5000]\ny = ["0", "1"]\n')
    with pytest.raises(DataError, match="column x: row 2: 'x' is a text, but the schema gives a"):
        load("csv", data_path=path, schema=str(schema), whole=True)


@pytest.mark.parametrize("values", [[[1.0], [2.0]], [b"1", b"2"]], ids=str)
def test_a_parquet_column_of_no_numbers_is_refused_by_its_type(
    tmp_path: Path, values: list[object]
) -> None:
    path, schema = tmp_path / "t.parquet", tmp_path / "s.toml"
    parquet.write_table(pa.table({"x": values, "y": [0, 1]}), path)
    schema.write_text('[columns]\nx = [0, 5000]\ny = ["0", "1"]\n')
    line = "column x: of type .*, but the schema gives a range of numbers"
    with pytest.raises(DataError, match=line):
        load("csv", data_path=path, schema=str(schema), whole=True)
    parquet.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), path)
    encoding = load("csv", data_path=path, schema=str(schema), whole=True).encoding
    assert encoding is not None
    with pytest.raises(DataError, match=line):
        encoded_rows(pa.table({"x": values}), encoding)


def test_a_row_without_any_value_is_a_record_that_the_schema_does_not_fit(tmp_path: Path) -> None:
    """Left out, it would make the number of examples say that a record lost all its values."""
    site = Site(tmp_path, {"missing": "zero"})
    empty = ("", "", "", "", "")
    assert site.read([PLAIN, PLAIN]) is not None
    assert site.read([PLAIN, empty]) is None


def test_files_of_a_folder_with_other_types_are_read_cell_by_cell(tmp_path: Path) -> None:
    folder, schema = tmp_path / "table", tmp_path / "s.toml"
    folder.mkdir()
    schema.write_text('[columns]\nx = [0, 8]\nunit = ["1", "2.5"]\ny = ["0", "1"]\n')
    (folder / "a.csv").write_text('x,unit,y\n"3,5",01,0\n1.250,2.50,1\n')
    parquet.write_table(
        pa.table({"x": [4.0, 0.1], "unit": [1.0, 2.5], "y": [False, True]}), folder / "b.parquet"
    )
    data = load("csv", data_path=folder, schema=str(schema), whole=True)
    expected = [[3.5, 0], [1.25, 1], [4.0, 0], [0.1, 1]]
    got = data.train_features[:, :2] * [4, 1] + [4, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-15)
    assert data.train_labels.tolist() == [-1, 1, -1, 1]
