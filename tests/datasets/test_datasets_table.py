"""Tables of one's own: what a column becomes, what its labels mean, and named mistakes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from privet.datasets import DataError, Dataset, federation_from_config, load, problem_from_config
from privet.sim.inline import run_inline
from privet.wire import ConfigError

ROWS = (
    "age,sex,bmi,outcome",
    "40,f,20.5,well",
    "60,m,25,ill",
    "50,m,30.5,ill",
    "30,f,22,well",
    "20,x,24,ill",
)
SCHEMA = """[columns]
age = [0, 100]
sex = ["f", "m", "x"]
outcome = ["well", "ill"]
"""


def write(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ("\n".join(rows) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def whole(path: Path, **keys: Any) -> Dataset:
    return load("csv", data_path=path, whole=True, intercept=False, **keys)


def schema_file(folder: Path, text: str = SCHEMA) -> str:
    path = folder / "schema.toml"
    path.write_text(text)
    return str(path)


def test_columns_become_what_scikit_learn_makes_of_them(tmp_path: Path) -> None:
    data = whole(write(tmp_path / "a.csv", *ROWS))
    numbers = np.array([[40, 20.5], [60, 25], [50, 30.5], [30, 22], [20, 24]])
    texts = np.array([["f"], ["m"], ["m"], ["f"], ["x"]])
    scaled = StandardScaler().fit_transform(numbers)
    one_hot = OneHotEncoder(drop="first", sparse_output=False).fit_transform(texts)
    expected = np.hstack([scaled[:, :1], one_hot, scaled[:, 1:]])
    np.testing.assert_allclose(data.train_features, expected, rtol=1e-14, atol=1e-15)
    # The classes are in the order of the alphabet: ill, well.
    assert data.train_labels.tolist() == [1, -1, -1, 1, -1]
    assert (data.task, data.classes, data.columns) == ("binary", 2, 4)
    assert [column.name for column in data.source_columns] == ["age", "sex", "bmi", "outcome"]


@pytest.mark.parametrize(
    ("name", "delimiter", "start"),
    [
        ("a.csv", ",", ""),
        ("a.csv.gz", ",", ""),
        ("a.tsv", "\t", ""),
        ("a.csv", ";", ""),
        ("a.csv", "|", "\ufeff"),
        ("a.csv", " , ", ""),
    ],
)
def test_a_file_is_read_whatever_its_packing(
    tmp_path: Path, name: str, delimiter: str, start: str
) -> None:
    rows = [start + ROWS[0], *ROWS[1:]]
    ours = whole(write(tmp_path / name, *(row.replace(",", delimiter) for row in rows)))
    plain = whole(write(tmp_path / "plain" / "a.csv", *ROWS))
    np.testing.assert_array_equal(ours.train_features, plain.train_features)
    np.testing.assert_array_equal(ours.train_labels, plain.train_labels)


def test_parquet_and_a_saved_table_are_read_as_csv_is(
    tmp_path: Path, saved: Callable[..., str]
) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    file = write(tmp_path / "a.csv", *ROWS)
    table = csv.read_csv(file)
    kinds = table.schema.set(1, pa.field("sex", pa.dictionary(pa.int32(), pa.string())))
    parquet.write_table(table.cast(kinds), tmp_path / "a.parquet")
    expected = whole(file)
    for path in (tmp_path / "a.parquet", saved(train=table.to_pydict())):
        data = whole(path)
        np.testing.assert_array_equal(data.train_features, expected.train_features)
        np.testing.assert_array_equal(data.train_labels, expected.train_labels)


@pytest.mark.parametrize(
    ("labels", "task", "expected"),
    [
        ("0 1 1 0", "binary", [-1, 1, 1, -1]),
        ("-1 1 1 -1", "binary", [-1, 1, 1, -1]),
        ("1.0 2.0 2.0 1.0", "binary", [-1, 1, 1, -1]),
        ("10 9 9 2", "multinomial", [2, 1, 1, 0]),
        ("c a b a", "multinomial", [2, 0, 1, 0]),
        ("0.5 2 2 0.5", "regression", [-1, 1, 1, -1]),
    ],
)
def test_classes_or_a_quantity_is_found_out(
    tmp_path: Path, labels: str, task: str, expected: list[float]
) -> None:
    rows = [f"{number},{label}" for number, label in enumerate(labels.split())]
    data = whole(write(tmp_path / "a.csv", "x,label", *rows))
    assert data.task == task
    assert data.train_labels.tolist() == expected


def test_many_whole_numbers_are_a_quantity(tmp_path: Path) -> None:
    rows = [f"{number},{number}" for number in range(25)]
    data = whole(write(tmp_path / "a.csv", "x,target", *rows))
    assert data.task == "regression"
    np.testing.assert_allclose(data.train_labels, data.train_features[:, 0])


def test_the_scales_are_those_of_the_training_rows(tmp_path: Path) -> None:
    rows = [f"{number * number},{number % 2}" for number in range(50)]
    data = load("csv", data_path=write(tmp_path / "a.csv", "x,y", *rows), intercept=False)
    assert (len(data.train_labels), len(data.test_labels)) == (40, 10)
    assert data.train_features.mean() == pytest.approx(0, abs=1e-15)
    assert data.train_features.std() == pytest.approx(1)
    both = np.sort(np.concatenate([data.train_features, data.test_features])[:, 0])
    squares = np.arange(50.0) ** 2
    np.testing.assert_allclose(np.diff(both) / np.diff(both)[0], np.diff(squares), rtol=1e-9)


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_decimal_commas_are_decimal_points(tmp_path: Path, delimiter: str) -> None:
    quote = '"' if delimiter == "," else ""
    values = [("-1,5", 0.25), ("2", 1), ("1,250", 3), ("+0,5e1", -4.5), ("12,75", 0)]

    def table(name: str, comma: bool) -> Any:
        point = [(text.replace(",", "."), str(target)) for text, target in values]
        rows = [tuple(n.replace(".", ",") for n in row) if comma else row for row in point]
        cells = [delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in rows]
        return whole(write(tmp_path / name, delimiter.join("xy"), *cells))

    comma, point = table("comma.csv", True), table("point.csv", False)
    assert comma.task == point.task == "regression"
    np.testing.assert_array_equal(comma.train_features, point.train_features)
    np.testing.assert_array_equal(comma.train_labels, point.train_labels)
    assert comma.source_columns[0].low == -1.5


def test_texts_with_commas_stay_texts_where_they_are_no_numbers_or_a_schema_says_so(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "a.csv", "x;z;y", "1,5;1,5;0", "2,5;a,b;1", "1,5;3;1")
    assert whole(file).source_columns[1].categories == ("1,5", "3", "a,b")
    schema = schema_file(tmp_path, "[columns]\nx = ['1,5', '2,5']\ny = ['0', '1']\n")
    assert whole(file, schema=schema).train_features[:, 0].tolist() == [0, 1, 0]
    plain = write(tmp_path / "b.csv", "x;id;y", "1;1,250;0", "2;2,250;1", "3;1,250;1")
    assert whole(plain, id_column="id").train_ids.tolist() == ["1,250", "2,250", "1,250"]


@pytest.mark.parametrize(
    "values", [("1,250", "900", "12,500"), ("1,250.75", "3"), ("1.234.567,5", "2"), ("1'234", "5")]
)
def test_separators_of_thousands_are_refused(tmp_path: Path, values: tuple[str, ...]) -> None:
    rows = [f"{value};{number % 2}" for number, value in enumerate(values)]
    with pytest.raises(DataError, match=f"column x: .{values[0]}. may have separators of thou"):
        whole(write(tmp_path / "a.csv", "x;y", *rows))


class TestSchema:
    def test_scales_to_its_ranges_and_uses_the_columns_it_names(self, tmp_path: Path) -> None:
        data = whole(write(tmp_path / "a.csv", *ROWS), schema=schema_file(tmp_path))
        assert data.train_features[:, 0].tolist() == [-0.2, 0.2, 0.0, -0.4, -0.6]
        assert data.columns == 3, "bmi is not of the schema"
        assert data.train_labels.tolist() == [-1, 1, 1, -1, 1]
        assert data.data_dependent == ""

    @pytest.mark.parametrize("record", ["100,f,0,ill", "0,m,9999,well", ",,,ill"])
    def test_a_record_shapes_no_row_but_its_own(self, tmp_path: Path, record: str) -> None:
        keys = {"schema": schema_file(tmp_path), "missing": "zero"}
        before = whole(write(tmp_path / "a.csv", *ROWS), **keys)
        after = whole(write(tmp_path / "b.csv", *ROWS[:-1], record), **keys)
        np.testing.assert_array_equal(before.train_features[:-1], after.train_features[:-1])
        np.testing.assert_array_equal(before.train_labels[:-1], after.train_labels[:-1])

    def test_a_quantity_has_a_range(self, tmp_path: Path) -> None:
        text = "[columns]\nage = [0, 100]\nbmi = [10, 50]\n"
        data = whole(
            write(tmp_path / "a.csv", *ROWS),
            schema=schema_file(tmp_path, text),
            label_column="bmi",
        )
        assert data.task == "regression"
        np.testing.assert_allclose(data.train_labels, [-0.475, -0.25, 0.025, -0.4, -0.3])

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (SCHEMA.replace("100", "50"), r"column age: values outside of \[0, 50\]"),
            (SCHEMA.replace('"m", ', ""), r"row 2: sex is 'm', which is not a category"),
            (SCHEMA.replace('"ill"', '"sick"'), r"row 2: outcome is 'ill', which is not"),
            (SCHEMA.replace("outcome", "bmi"), "expected outcome, the column of the labels"),
            (SCHEMA.replace("age", "agee"), "names 'agee', not a column; did you mean 'age'"),
            (SCHEMA + "bmi = 3\n", r"bmi = 3: expected \[low, high\], or a list"),
            (SCHEMA + "bmi = [3, 1]\n", r"bmi = \[3, 1\]: expected"),
            (SCHEMA + "bmi = ['a', 'a']\n", "bmi = .*: expected"),
            (SCHEMA.replace('["f", "m", "x"]', "[0, 1]"), "column sex: holds texts, but"),
            ("age = [0, 100]\n", r"expected one table \[columns\]"),
            ("columns = \n", "expected TOML"),
        ],
    )
    def test_a_wrong_one_is_named(self, tmp_path: Path, text: str, expected: str) -> None:
        file = write(tmp_path / "a.csv", *ROWS)
        with pytest.raises(DataError, match=expected):
            whole(file, schema=schema_file(tmp_path, text))

    def test_private_runs_need_one(self, tmp_path: Path) -> None:
        rows = [
            f"{10 + n},{'fmx'[n % 3]},{20 + n % 7},{'well' if n % 2 else 'ill'}" for n in range(60)
        ]
        keys = {
            "dataset": "csv",
            "data-path": str(write(tmp_path / "a.csv", ROWS[0], *rows)),
            "partition": "iid",
            "num-agents": 3,
            "num-server-rounds": 2,
            "output-dir": str(tmp_path),
            "local-solver": "noisy-gd",
            "clip": 1.0,
            "row-norm": 2.0,
            "target-epsilon": 8.0,
        }
        with pytest.raises(ConfigError, match=r"data-dependent preprocessing: .*give schema"):
            run_inline(keys, "without")
        summary = run_inline({**keys, "schema": schema_file(tmp_path)}, "with").summary
        assert summary["private"] is True


class TestMissing:
    ROWS = ("age,sex,label", "40,f,1", "NA,?,0", "60,m,1", "50, ,0")

    def test_is_refused_with_the_columns(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="missing values, in age of 1 rows, sex of 2 rows"):
            whole(write(tmp_path / "a.csv", *self.ROWS))

    def test_may_be_zero_in_what_it_becomes(self, tmp_path: Path) -> None:
        data = whole(write(tmp_path / "a.csv", *self.ROWS), missing="zero")
        unit = np.std([40, 50, 60])
        expected = [[-10 / unit, 0], [0, 0], [10 / unit, 1], [0, 0]]
        np.testing.assert_allclose(data.train_features, expected)

    def test_of_a_label_or_an_id_is_never_allowed(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a.csv", *self.ROWS)
        for keys in ({"label_column": "sex"}, {"id_column": "sex"}):
            with pytest.raises(DataError, match="2 rows have no"):
                whole(file, missing="zero", **keys)


class TestDealing:
    def test_a_folder_gives_each_agent_its_file(self, tmp_path: Path) -> None:
        for number, name in enumerate(("bern", "graz")):
            rows = [f"{number}.{row},{row % 2}" for row in range(10 + number)]
            write(tmp_path / "d" / f"{name}.csv", "x,label", *rows)
        write(tmp_path / "d" / "test.csv", "label,x", "1,3", "0,4", "1,5")
        config = {"dataset": "csv", "data-path": str(tmp_path / "d"), "partition": "natural-id"}
        federation = federation_from_config(config, 2)
        assert [len(part) for part in federation.parts] == [10, 11]
        assert len(federation.dataset.test_labels) == 3
        assert federation.dataset.test_labels.tolist() == [1, -1, 1]

    def test_a_column_may_say_whose_a_row_is(self, tmp_path: Path) -> None:
        rows = [f"{n},{n % 2},{'abc'[n % 3]}" for n in range(30)]
        config = {
            "dataset": "csv",
            "data-path": str(write(tmp_path / "a.csv", "x,label,site", *rows)),
            "partition": "natural-id",
            "id-column": "site",
        }
        federation = federation_from_config(config, 3)
        assert [len(part) for part in federation.parts] == [8, 8, 8]
        assert federation.dataset.columns == 2, "x and the intercept, not the site"

    def test_a_node_has_every_row_of_its_file(self, tmp_path: Path) -> None:
        config = {
            "dataset": "csv",
            "data-path": str(write(tmp_path / "a.csv", *ROWS)),
            "partition": "none",
        }
        assert problem_from_config(config, 0, 1).num_examples == 5

    def test_columns_are_left_out(self, tmp_path: Path) -> None:
        data = whole(write(tmp_path / "a.csv", *ROWS), drop_columns="age, sex")
        assert [column.name for column in data.source_columns] == ["bmi", "outcome"]


@pytest.mark.parametrize(
    ("rows", "keys", "expected"),
    [
        (["5.1,3.5,0", "4.9,3.0,1"], {}, "expected names of columns in the first row, found 5.1"),
        (["a,,y", "1,2,0"], {}, "column 2 has no name"),
        (["a,b,a,y", "1,2,3,0"], {}, "two columns are called 'a'"),
        (["a,y"], {}, "expected rows below the header, found none"),
        (["a,y", "1,0", "1,2,3"], {}, r"cannot be read \(CSV parse error: Expected 2 columns"),
        (["a,b", "1,2"], {}, "which column has the labels. Give label-column, one of a, b"),
        (["label,y,a", "1,2,3"], {}, "which column has the labels"),
        (["a,y", "1,0"], {"label_column": "z"}, "label-column names 'z', not a column; there are"),
        (["a,y", "1,0"], {"drop_columns": "b"}, "drop-columns names 'b', not a column"),
        (["a,y", "1,0"], {"drop_columns": "y"}, "y is the column of the labels already"),
        (["a,y", "1,0"], {"id_column": "A"}, "id-column names 'A', not a column"),
        (["y", "1", "0"], {}, "expected a column beside y"),
        (["a,y", "1,1", "2,1"], {}, "column y: every row has the same label"),
        (["a,y", "1,0.5", "2,0.5"], {}, "column y: every row has the same label"),
        (["a,y", "inf,0", "1,1"], {}, "column a: expected finite numbers"),
        (["a,b,y", ",1,0", ",2,1"], {}, "column a is empty: leave it out with drop-columns"),
        (
            ["a,y", *(f"name {n},{n % 2}" for n in range(101))],
            {},
            "column a: 101 different texts, such as 'name 0', are too many categories",
        ),
    ],
)
def test_a_wrong_table_is_one_line(
    tmp_path: Path, rows: list[str], keys: dict[str, str], expected: str
) -> None:
    with pytest.raises(DataError, match=rf"a\.csv.*{expected}") as caught:
        whole(write(tmp_path / "a.csv", *rows), **keys)
    assert "\n" not in str(caught.value)


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("größe,y\n1,0\n".encode("latin-1"))
    (tmp_path / "below.csv").write_bytes("a,y\nKöln,0\n".encode("latin-1"))
    (tmp_path / "empty.csv").touch()
    (tmp_path / "false.parquet").write_text("a,y\n1,0\n")
    (tmp_path / "false.csv.gz").write_text("a,y\n1,0\n")
    (tmp_path / "book.xlsx").touch()
    (tmp_path / "folder").mkdir()
    for name, expected in (
        ("latin.csv", "expected text in UTF-8: save it with that encoding"),
        ("below.csv", "expected text in UTF-8: save it with that encoding"),
        ("empty.csv", "expected a header and rows, found nothing"),
        ("false.parquet", "cannot be read"),
        ("false.csv.gz", "cannot be read"),
        ("book.xlsx", "is of another kind; expected a .csv, .csv.gz"),
        ("folder", "found no file .csv"),
        ("nowhere.csv", "no such file; expected a .csv"),
    ):
        with pytest.raises(DataError, match=rf"{name}.*{expected}"):
            whole(tmp_path / name)
    write(tmp_path / "two" / "a.csv", "x,y", "1,0")
    write(tmp_path / "two" / "b.csv", "z,y", "1,0")
    with pytest.raises(DataError, match="a and b do not both have x, z"):
        whole(tmp_path / "two")
    write(tmp_path / "two" / "b.csv.gz", "z,y", "1,0")
    with pytest.raises(DataError, match="two files are called b"):
        whole(tmp_path / "two")
