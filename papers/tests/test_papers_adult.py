"""UCI Adult: checked against scikit-learn's encoder and known counts."""

from __future__ import annotations

import csv
import gzip
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from privet.data import DataError, load
from studies.datasets.adult import NUMERIC as ADULT_NUMERIC
from studies.datasets.adult import SCALING
from support.paths import data_file

NUMERIC = [0, 2, 4, 10, 11, 12]
CATEGORICAL = [1, 5, 6, 7, 8, 9, 13]
ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K"
)


def raw_adult(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt", newline="") as file:
        return [[cell.strip() for cell in row] for row in csv.reader(file) if row]


class TestAdult:
    @pytest.fixture
    def folder(self) -> Path:
        data_file("adult-test.csv.gz")
        return data_file("adult-train.csv.gz").parent

    def test_columns_agree_with_an_independent_encoder(self, folder: Path) -> None:
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        data = load("adult", data_path=folder)
        train = raw_adult(folder / "adult-train.csv.gz")
        test = raw_adult(folder / "adult-test.csv.gz")

        def pick(rows: list[list[str]], fields: list[int]) -> np.ndarray:
            return np.array([[row[field] for field in fields] for row in rows], dtype=object)

        categories = [sorted({row[field] for row in train} - {"?"}) for field in CATEGORICAL]
        encoder = OneHotEncoder(
            categories=categories, drop="first", handle_unknown="ignore", sparse_output=False
        ).fit([[values[0] for values in categories]])
        scaler = StandardScaler().fit(pick(train, NUMERIC).astype(float))
        for rows, features, labels in (
            (train, data.train_features, data.train_labels),
            (test, data.test_features, data.test_labels),
        ):
            with warnings.catch_warnings():
                # The encoder warns that an unknown category becomes a zero row, as wanted.
                warnings.simplefilter("ignore", UserWarning)
                one_hot = encoder.transform(pick(rows, CATEGORICAL))
            assert features.shape == (len(rows), 83)
            numeric = scaler.transform(pick(rows, NUMERIC).astype(float))
            np.testing.assert_allclose(features[:, :6], numeric, atol=1e-10)
            assert np.array_equal(features[:, 6:82], one_hot)
            assert np.all(features[:, 82] == 1)
            assert np.array_equal(labels == 1, [row[14].startswith(">") for row in rows])
        assert "82 columns" in data.description
        assert (len(data.train_labels), np.sum(data.train_labels == 1)) == (32_561, 7_841)
        assert (len(data.test_labels), np.sum(data.test_labels == 1)) == (16_281, 3_846)

    def write(self, folder: Path, *rows: str) -> Path:
        for name in ("adult-train.csv.gz", "adult-test.csv.gz"):
            with gzip.open(folder / name, "wt") as file:
                file.write("\n".join([ADULT_ROW, ADULT_ROW.replace("39", "50"), *rows]) + "\n\n")
        return folder

    def test_a_missing_value_is_a_zero_row(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path, ADULT_ROW.replace("United-States", "?"))
        features = load("adult", data_path=folder).train_features
        assert features.shape == (3, 83)
        # 5 of the 7 attributes of the row are not the first category; native-country is last.
        assert features[:, 6:82].sum(axis=1).tolist() == [6.0, 6.0, 5.0]
        assert features[:, 42:82].sum(axis=1).tolist() == [1.0, 1.0, 0.0]

    def test_constants_are_the_published_training_files(self, folder: Path) -> None:
        rows = raw_adult(folder / "adult-train.csv.gz")
        assert list(SCALING) == list(ADULT_NUMERIC.values())
        for field, name in ADULT_NUMERIC.items():
            column = [Fraction(row[field]) for row in rows]
            mean = sum(column) / len(column)
            variance = sum(value * value for value in column) / len(column) - mean**2
            # They are numpy's, whose sums of n terms are exact to n 2^-53 = 4e-12.
            assert SCALING[name] == pytest.approx((float(mean), float(variance) ** 0.5), rel=4e-12)

    def test_a_row_depends_on_its_own_record_alone(self, tmp_path: Path) -> None:
        found = []
        for number, last in enumerate((ADULT_ROW, ADULT_ROW.replace("77516", "1484705"))):
            (tmp_path / str(number)).mkdir()
            data = load("adult", data_path=self.write(tmp_path / str(number), last))
            assert data.data_dependent == ""
            found.append((data.train_features, data.test_features))
        for left, right in zip(*found, strict=True):
            assert np.array_equal(left[:-1], right[:-1])
            assert left[-1, 1] != right[-1, 1]
        mean, deviation = SCALING["age"]
        assert found[0][0][:2, 0] == pytest.approx(
            [(39 - mean) / deviation, (50 - mean) / deviation]
        )

    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ("1, 2, 3", "adult-train.csv.gz, row 3: expected a gzip CSV of 15 columns"),
            (ADULT_ROW.replace("White", "Green"), "row 3: race is 'Green', not a category"),
            (ADULT_ROW.replace("77516", "many"), "row 3: fnlwgt must be a finite .* got 'many'"),
            (ADULT_ROW.replace("77516", "nan"), "row 3: fnlwgt must be a finite .* got 'nan'"),
            (ADULT_ROW.replace("<=50K", "rich."), "row 3: income is 'rich'"),
        ],
    )
    def test_a_wrong_row_is_named(self, tmp_path: Path, row: str, expected: str) -> None:
        with pytest.raises(DataError, match=expected) as caught:
            load("adult", data_path=self.write(tmp_path, row))
        assert "\n" not in str(caught.value)

    def test_a_damaged_or_missing_file_is_named(self, tmp_path: Path) -> None:
        file = self.write(tmp_path) / "adult-test.csv.gz"
        content = file.read_bytes()
        for damaged in (
            content[:-9],
            content[:30] + b"\xff" * 8 + content[38:],
            b"plain text",
            gzip.compress(b""),
            gzip.compress(b"\xff\n"),
        ):
            file.write_bytes(damaged)
            with pytest.raises(DataError, match=r"adult-test\.csv\.gz: expected a gzip CSV"):
                load("adult", data_path=tmp_path)
        file.unlink()
        with pytest.raises(DataError, match=r"adult-test\.csv\.gz: no such file; expected"):
            load("adult", data_path=tmp_path)
        with pytest.raises(DataError, match="expected a folder with"):
            load("adult", data_path=tmp_path / "nowhere")


def test_without_a_path_what_it_is_of_is_said() -> None:
    with pytest.raises(DataError, match="data-path is needed for dataset adult: a folder"):
        load("adult")
