"""Tables of one's own: what a column becomes, what its labels mean, and named mistakes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from privet.core import ConfigError
from privet.data import DataError, Dataset, federation_from_config, load, problem_from_config
from privet.data.tables.table import TableError
from privet.sim.inline import run_inline

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


def central(path: Path, **keys: Any) -> Dataset:
    """Return a table that is dealt to all agents, with the same rows as a test set."""
    folder = path.parent / "dealt"
    for name in ("all.csv", "test.csv"):
        write(folder / name, *path.read_text().splitlines())
    return load("csv", data_path=folder, intercept=False, **keys)


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

    @pytest.mark.parametrize(
        ("record", "missing"),
        [
            ("100,f,0,ill", "zero"),
            ("0,m,9999,well", "refuse"),
            (",f,,ill", "zero"),
            (",,,ill", "category"),
        ],
    )
    def test_a_record_shapes_no_row_but_its_own(
        self, tmp_path: Path, record: str, missing: str
    ) -> None:
        gaps = SCHEMA.replace("100]", '100, ""]').replace('"x"]', '"x", ""]')
        text = gaps if missing == "category" else SCHEMA
        keys = {"schema": schema_file(tmp_path, text), "missing": missing}
        before = whole(write(tmp_path / "a.csv", *ROWS), **keys)
        after = whole(write(tmp_path / "b.csv", *ROWS[:-1], record), **keys)
        np.testing.assert_array_equal(before.train_features[:-1], after.train_features[:-1])
        np.testing.assert_array_equal(before.train_labels[:-1], after.train_labels[:-1])
        assert before.data_dependent == after.data_dependent == ""

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
            (SCHEMA.replace("100", "50"), r"column age: row 2: values outside of \[0, 50\]"),
            (SCHEMA.replace('"m", ', ""), r"column sex: row 2: 'm' is not a category"),
            (SCHEMA.replace('"ill"', '"sick"'), r"column outcome: row 2: 'ill' is not a category"),
            (SCHEMA.replace("outcome", "bmi"), "expected outcome, the column of the labels"),
            (SCHEMA.replace("age", "agee"), "names 'agee', not a column; did you mean 'age'"),
            (SCHEMA + "bmi = 3\n", r"bmi = 3: expected \[low, high\], or a list"),
            (SCHEMA + "bmi = [3, 1]\n", r"bmi = \[3, 1\]: expected"),
            (SCHEMA + "bmi = ['a', 'a']\n", "bmi = .*: expected"),
            (SCHEMA.replace('["f", "m", "x"]', "[0, 1]"), "column sex: row 1: 'f' is a text, but"),
            ("age = [0, 100]\n", r"expected one table \[columns\]"),
            ("columns = \n", "expected TOML"),
            ("columns = " + "[" * 99_999, "expected TOML"),
            (f"from-records = 1\n{SCHEMA}", "from-records = 1: expected true or false"),
            (f"from_records = true\n{SCHEMA}", "expected one table"),
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
        marked = str(write(tmp_path / "marked.toml", "from-records = true", SCHEMA))
        line = "the schema holds from-records = true.*then take out the line from-records"
        with pytest.raises(ConfigError, match=line):
            run_inline({**keys, "schema": marked}, "marked")
        summary = run_inline({**keys, "schema": schema_file(tmp_path)}, "with").summary
        assert summary["private"] is True


class TestMissing:
    ROWS = ("age,sex,label", "40,f,1", "NA,?,0", "60,m,1", "50, ,0")

    def test_is_refused_with_the_columns(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="missing values, in age of 1 row, sex of 2 rows"):
            whole(write(tmp_path / "a.csv", *self.ROWS))

    def test_of_numbers_may_be_zero(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a.csv", *self.ROWS)
        data = whole(file, missing="zero", drop_columns="sex")
        unit = np.std([40, 50, 60])
        np.testing.assert_allclose(data.train_features, np.array([[-10, 0, 10, 0]]).T / unit)
        schema = schema_file(tmp_path, "[columns]\nage = [30, 60]\nlabel = ['0', '1']\n")
        data = whole(file, missing="zero", schema=schema)
        np.testing.assert_allclose(data.train_features[:, 0], [-1 / 3, 0, 1, 1 / 3])

    def test_of_texts_is_not_made_the_first_one(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a.csv", *self.ROWS)
        expected = "column sex: 2 texts are missing, which missing = zero would make 'f'"
        with pytest.raises(DataError, match=expected):
            whole(file, missing="zero")

    def test_of_a_label_or_an_id_is_never_allowed(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a.csv", *self.ROWS)
        for keys in ({"label_column": "sex"}, {"id_column": "sex"}):
            for missing in ("refuse", "zero", "mean", "category"):
                with pytest.raises(
                    DataError, match=r"4 rows have no .*: set .*missing-labels=drop"
                ):
                    central(file, missing=missing, **keys)
        assert central(file, missing="drop", label_column="sex").train_labels.tolist() == [-1, 1]

    def test_a_category_of_gaps_is_the_last_and_the_schema_lists_it(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a.csv", *self.ROWS)
        text = "[columns]\nage = [40, 60, '']\nsex = ['m', '', 'f']\nlabel = ['0', '1']\n"
        data = whole(file, missing="category", schema=schema_file(tmp_path, text))
        expected = [[-1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1]]
        assert data.train_features.tolist() == expected
        assert [column.width for column in data.source_columns[:-1]] == [2, 2]
        complete = write(tmp_path / "b.csv", self.ROWS[0], self.ROWS[1], self.ROWS[3])
        data = whole(complete, missing="category", schema=schema_file(tmp_path, text))
        assert data.columns == 4, "the schema says how many, whatever the records lack"

    @pytest.mark.parametrize(
        ("text", "missing", "expected"),
        [
            (
                "age = [0, 99]",
                "category",
                "age: 1 values are missing, and the schema does not list",
            ),
            ("age = [0, 99, '']", "mean", "age: the schema lists '', a missing value, which needs"),
            ("age = [0, 99, '', '']", "category", r"expected \[low, high\], or a list"),
            ("age = ['']", "category", r"expected \[low, high\], or a list"),
        ],
    )
    def test_a_schema_that_does_not_fit_gaps_is_named(
        self, tmp_path: Path, text: str, missing: str, expected: str
    ) -> None:
        schema = schema_file(tmp_path, f"[columns]\n{text}\nlabel = ['0', '1']\n")
        with pytest.raises(DataError, match=expected):
            whole(write(tmp_path / "a.csv", *self.ROWS), missing=missing, schema=schema)

    def test_without_a_schema_a_node_alone_cannot_know_where_others_have_gaps(
        self, tmp_path: Path
    ) -> None:
        file = write(tmp_path / "a.csv", *self.ROWS)
        with pytest.raises(DataError, match="missing = category needs schema"):
            whole(file, missing="category")
        assert central(file, missing="category").columns == 4

    @pytest.mark.parametrize("missing", ["mean", "drop"])
    def test_what_other_records_decide_is_refused_in_private_runs(
        self, tmp_path: Path, missing: str
    ) -> None:
        file, schema = write(tmp_path / "a.csv", *ROWS), schema_file(tmp_path)
        data = whole(file, missing=missing, schema=schema)
        assert f"missing = {missing}" in data.data_dependent
        for known in ("refuse", "zero", "category"):
            assert whole(file, missing=known, schema=schema).data_dependent == ""

    def test_rows_without_any_value_are_no_rows(self, tmp_path: Path) -> None:
        data = whole(write(tmp_path / "a.csv", "a;b;y", "1;x;0", ";;", "3;z;1", " ;NA;"))
        assert data.train_features.tolist() == [[-1, 0], [1, 1]]
        assert [fault.text for fault in data.doubts] == ["2 empty rows, which are left out"]
        text = "[columns]\na = [1, 2]\ny = ['0', '1']\n"
        with pytest.raises(DataError, match="column a: row 3: values outside"):
            whole(tmp_path / "a.csv", schema=schema_file(tmp_path, text))
        text = "[columns]\nb = ['x', 'y']\ny = ['0', '1']\n"
        with pytest.raises(DataError, match="column b: row 3: 'z' is not a category"):
            whole(tmp_path / "a.csv", schema=schema_file(tmp_path, text))


class TestConstants:
    """A text that every row has; the old code doubled the other column, or could not go on."""

    ROWS = ("age,unit,year,y", "40,ICU,2024,0", "60,ICU,2024,1", "50,ICU,2024,0")

    def test_a_text_is_left_out_of_a_table_that_all_agents_share(self, tmp_path: Path) -> None:
        data = central(write(tmp_path / "a.csv", *self.ROWS))
        unit = np.std([40, 50, 60])
        np.testing.assert_allclose(
            data.train_features, np.array([[-10, 10, 0], [0, 0, 0]]).T / unit, atol=1e-15
        )
        assert "left out, as every row has the same text: unit" in data.description
        assert [column.width for column in data.source_columns[:3]] == [1, 0, 1]

    def test_a_text_is_zeros_where_a_node_alone_reads_its_own(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As wide as at a node with two texts; no warning, as sites agree on the texts of all."""
        file = write(tmp_path / "a.csv", *self.ROWS)
        data = whole(file)
        two = whole(
            write(tmp_path / "b.csv", *(row.replace("60,ICU", "60,ward") for row in self.ROWS))
        )
        assert data.columns == two.columns == 3
        assert data.train_features[:, 1].tolist() == [0, 0, 0]
        assert two.train_features[:, 1].tolist() == [0, 1, 0]
        assert "zeros, as every row has the same text: unit" in data.description
        assert not caplog.messages
        assert whole(file, drop_columns="unit").columns == 2

    def test_a_gap_in_such_a_column_is_what_missing_says(self, tmp_path: Path) -> None:
        rows = [row.replace("60,ICU", "60,") for row in self.ROWS]
        file = write(tmp_path / "a.csv", *rows)
        with pytest.raises(DataError, match="missing values, in unit of 1 row"):
            whole(file)
        assert whole(file, missing="mean").train_features[:, 1].tolist() == [0, 0, 0]

    def test_nodes_with_one_schema_have_the_same_columns(self, tmp_path: Path) -> None:
        text = "[columns]\nage = [0, 100]\nunit = ['ICU', 'ward']\nyear = [2024, 2024]\n"
        schema = schema_file(tmp_path, f"{text}y = ['0', '1']\n")
        ours = whole(write(tmp_path / "a.csv", *self.ROWS), schema=schema)
        ward = [row.replace("ICU", "ward") for row in self.ROWS]
        theirs = whole(write(tmp_path / "b.csv", *ward), schema=schema)
        assert ours.train_features[:, 1:].tolist() == [[0, 0]] * 3
        assert theirs.train_features[:, 1:].tolist() == [[1, 0]] * 3

    def test_a_text_is_left_out_where_the_schema_lists_no_other(self, tmp_path: Path) -> None:
        text = "[columns]\nage = [0, 100]\nunit = ['ICU']\ny = ['0', '1']\n"
        schema = schema_file(tmp_path, text)
        data = whole(write(tmp_path / "a.csv", *self.ROWS), schema=schema)
        assert data.train_features.tolist() == [[-0.2], [0.2], [0]]
        ward = [row.replace("60,ICU", "60,ward") for row in self.ROWS]
        with pytest.raises(DataError, match="column unit: row 2: 'ward' is not a category"):
            whole(write(tmp_path / "b.csv", *ward), schema=schema)

    def test_a_number_is_zero_though_its_mean_is_rounded(self, tmp_path: Path) -> None:
        rows = [f"0.1,{number},{number % 2}" for number in range(3)]
        data = whole(write(tmp_path / "a.csv", "a,b,y", *rows))
        assert np.std([0.1] * 3) > 0
        assert data.train_features[:, 0].tolist() == [0, 0, 0]

    def test_nothing_but_texts_that_every_row_has_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="expected a column beside y that is not the same"):
            central(write(tmp_path / "a.csv", "unit,y", "ICU,0", "ICU,1"))


class TestNumbersThatAreNone:
    """What a column of numbers may be besides."""

    def test_codes_that_a_schema_lists_stay_as_they_are_written(self, tmp_path: Path) -> None:
        schema = schema_file(tmp_path, "[columns]\nunit = ['01', '1']\ny = ['0', '1']\n")
        file = write(tmp_path / "a.csv", "unit,y", "01,0", "1,1", "01,1")
        assert whole(file, schema=schema).train_features.tolist() == [[0], [1], [0]]

    def test_the_labels_of_a_schema_may_be_numbers_with_a_point(self, tmp_path: Path) -> None:
        schema = schema_file(tmp_path, "[columns]\nx = [0, 9]\ny = ['0', '1']\n")
        file = write(tmp_path / "a.csv", "x,y", "3,0.0", "4,1.0")
        assert whole(file, schema=schema).train_labels.tolist() == [-1, 1]

    def test_whole_numbers_that_no_float_tells_apart_are_texts(self, tmp_path: Path) -> None:
        rows = ["1000000000000000001,0", "1000000000000000002,1"] * 2
        data = central(write(tmp_path / "a.csv", "number,y", *rows))
        assert data.source_columns[0].categories == ("1000000000000000001", "1000000000000000002")

    def test_points_beside_decimal_commas_may_be_of_thousands(self, tmp_path: Path) -> None:
        rows = [f"1.{number}50;{number},5;{number % 2}" for number in range(2, 8)]
        with pytest.raises(DataError, match=r"column cost: (all: )?'1\.250' may have separators"):
            central(write(tmp_path / "a.csv", "cost;size;y", *rows))
        alone = [f"1.{number}50;{number};{number % 2}" for number in range(2, 8)]
        data = central(write(tmp_path / "b.csv", "cost;size;y", *alone))
        assert (data.source_columns[0].low, data.source_columns[0].high) == (1.25, 1.75)


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

    def test_a_column_may_say_whose_a_row_is(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
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
        assert not caplog.text
        federation_from_config({**config, "partition": "iid"}, 2)
        assert "id-column = site: partition = iid does not deal by it" in caplog.text

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


def test_all_that_is_wrong_is_said_at_once_with_the_keys_that_mend_it(tmp_path: Path) -> None:
    rows = [
        f"{n};{note};0{n % 9 + 1}.03.2020;{n};{'a' if n % 2 else ''};{'fm'[n % 2] if n else ''}"
        for n, note in ((n, f"note {n}{'ab'[n % 2]}") for n in range(101))
    ]
    file = write(tmp_path / "a.csv", "BMI;Notiz;Aufnahme;BMI;ward;y", *rows)
    with pytest.raises(TableError) as caught:
        whole(file, drop_columns="ward")
    stopping = [fault.text for fault in caught.value.faults if fault.stops]
    assert [text.partition(",")[0] for text in stopping] == [
        "several columns are called 'BMI'",
        "column Notiz: 101 different texts in 101 rows",
        "column Aufnahme: dates or times",
        "1 row has no label in column y: take it out of the file",
    ]
    keys = {"drop-columns": "ward,BMI.1,Notiz,Aufnahme", "missing-labels": "drop"}
    assert {key: caught.value.keys[key] for key in keys} == keys
    lists_all = f"to list all faults: privet data {file} drop-columns=ward"
    assert str(caught.value).endswith(f" missing-labels=drop; {lists_all}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["BMI", "BMI, PID"])
def test_columns_of_one_name_are_left_out_together(tmp_path: Path, name: str) -> None:
    from pyarrow import csv, parquet

    rows = [f"{n},{n * n},{n},{n},{n % 2}" for n in range(4)]
    file = write(tmp_path / "a.csv", "BMI,age,PID,BMI,y", *rows)
    names = [column.name for column in whole(file, drop_columns=name).source_columns]
    assert names == (["age", "y"] if "PID" in name else ["age", "PID", "y"])
    with pytest.raises(DataError, match="label-column names 'BMI', and several columns are"):
        whole(file, label_column="BMI")
    parquet.write_table(csv.read_csv(file), tmp_path / "a.parquet")
    again = whole(tmp_path / "a.parquet", drop_columns=name).source_columns
    assert [column.name for column in again] == names


@pytest.mark.parametrize(
    "value",
    ["2020-01-05", "5.1.2020", "05/01/20", "2020-01-05T08:30", "2020-01-05 08:30:12.5+02:00"],
)
def test_dates_are_named_and_may_be_categories_of_a_schema(tmp_path: Path, value: str) -> None:
    file = write(tmp_path / "a.csv", "a,day,y", f"1,{value},0", f"2,{value},1")
    with pytest.raises(DataError, match="column day: dates or times, such as"):
        central(file)
    schema = schema_file(tmp_path, f"[columns]\nday = ['{value}', 'x']\ny = ['0', '1']\n")
    assert whole(file, schema=schema).columns == 1


def test_a_stray_delimiter_makes_no_column(tmp_path: Path) -> None:
    data = whole(write(tmp_path / "a.csv", "a;;y;", "1;;0;", "2;;1;"))
    assert [column.name for column in data.source_columns] == ["a", "y"]


def test_a_few_numbered_texts_are_categories(tmp_path: Path) -> None:
    rows = [f"grade {n % 4},{'AB1'[n % 3]},{n % 2}" for n in range(12)]
    data = whole(write(tmp_path / "a.csv", "a,b,y", *rows))
    assert [column.width for column in data.source_columns[:2]] == [3, 2]


def test_long_identifiers_are_ids_as_they_are_written(tmp_path: Path) -> None:
    ids = ["12345678901234567890", "12345678901234567891", "007"]
    rows = [f"{n},{one},{n % 2}" for n, one in enumerate(ids)]
    data = whole(write(tmp_path / "a.csv", "a,id,y", *rows), id_column="id")
    assert data.train_ids.tolist() == ids
    rows = [f"{n},{n}e300,{n % 2}" for n in range(1, 4)]
    schema = schema_file(tmp_path, "[columns]\nb = ['1e+300', '2e+300', '3e+300']\ny=['0', '1']\n")
    assert whole(write(tmp_path / "b.csv", "a,b,y", *rows), schema=schema).columns == 2


@pytest.mark.parametrize(
    ("rows", "keys", "expected"),
    [
        (["5.1,3.5,0", "4.9,3.0,1"], {}, "expected names of columns in the first row, found 5.1"),
        (["a,,y", "1,2,0"], {}, "column 2 has no name: give it one"),
        (
            ["a,y", "1e101,0", "1,1"],
            {},
            r"column a: row 1: 1 number, such as 1e\+101, beyond 1e\+100",
        ),
        (
            ["a,y", "<1,0", *(f"{n % 30}.5,{n % 2}" for n in range(80))],
            {},
            "column a: 1 bound such as '<1' among numbers .censored = bound takes",
        ),
        (
            ["a,y", "-,0", *(f"{n % 30}.5,{n % 2}" for n in range(80))],
            {},
            "column a: row 1: numbers, but for '-': write it as one, or nothing",
        ),
        (["a,y", "no,0", "No,1"], {}, "column a: 'No' and 'no' differ by case alone: write them"),
        (["a,y", "1,no", "2,No"], {}, "column y: 'No' and 'no' differ by case alone: write them"),
        (
            ["a,y", *(f"note {n % 30}{'abc'[n % 3]},{n % 2}" for n in range(59))],
            {},
            "column a: 30 different texts in 59 rows, such as 'note 0a', are too many",
        ),
        (
            ["a,y", *(f"{n % 30} kg,{n % 2}" for n in range(80))],
            {},
            "texts that differ in a number, such as '0 kg': leave them out if they are ids",
        ),
        (["a,b,a,y", "1,2,3,0"], {}, "several columns are called 'a'.*: set drop-columns=a"),
        (["a,y"], {}, "expected rows below the header, found none"),
        (["a,y", "1,0", "1,2,3"], {}, "the first row names 2 columns, and this row has 3: '1,2,3'"),
        (["a,b", "1,2"], {}, "which column has the labels. Give label-column, one of a, b"),
        (["label,y,a", "1,2,3"], {}, "which column has the labels"),
        (["a,y", "1,0"], {"label_column": "z"}, "label-column names 'z', not a column; there are"),
        (["a,y", "1,0"], {"drop_columns": "b"}, "drop-columns names 'b', not a column"),
        (["a,y", "1,0"], {"drop_columns": "y"}, "y is the column of the labels already"),
        (["a,y", "1,0"], {"id_column": "A"}, "id-column names 'A', not a column"),
        (["y", "1", "0"], {}, "expected a column beside y"),
        (["a,y", "1,1", "2,1"], {}, "column y: every row has the same label"),
        (["a,y", "1,0.5", "2,0.5"], {}, "column y: every row has the same label"),
        (["a,y", "inf,0", "1,1"], {}, "column a: row 1: 1 number, such as inf, beyond 1e.100"),
        (["a,b,y", ",1,0", ",2,1"], {}, "column a: every value is missing: set drop-columns=a"),
        (
            ["a,y", *(f"name {n}{'ab'[n % 2]},{n % 2}" for n in range(101))],
            {},
            "column a: 101 different texts in 101 rows, such as 'name 0a', are too many cat",
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
    with pytest.raises(DataError, match="a has 'x', b 'z': call columns alike"):
        whole(tmp_path / "two")
    write(tmp_path / "two" / "b.csv.gz", "z,y", "1,0")
    with pytest.raises(DataError, match="two files are called b"):
        whole(tmp_path / "two")
