"""Loaders: checked against the raw sources, scikit-learn's encoder and known counts."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.data import NAMES, DataError, load, loaders
from support.paths import data_file


def same_rows(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two matrices have the same rows in any order, to rounding."""

    def order(rows: np.ndarray) -> np.ndarray:
        return rows[np.lexsort(np.round(rows, 6).T)]

    return left.shape == right.shape and np.allclose(order(left), order(right), atol=1e-9)


class TestBreastCancer:
    def test_has_every_example_once_and_is_standardised_by_the_training_set(self) -> None:
        from sklearn.datasets import load_breast_cancer

        raw, target = load_breast_cancer(return_X_y=True)
        data = load("breast-cancer")
        assert data.train_features.shape == (455, 31)
        assert data.test_features.shape == (114, 31)
        assert (data.classes, data.task) == (2, "binary")
        columns = data.train_features[:, :30]
        np.testing.assert_allclose(columns.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(columns.std(axis=0), 1, atol=1e-12)
        both = np.vstack([data.train_features, data.test_features])
        assert np.all(both[:, 30] == 1)
        # Standardising is affine, so the pooled columns must be the raw ones, scaled alike.
        z = (both[:, :30] - both[:, :30].mean(axis=0)) / both[:, :30].std(axis=0)
        assert same_rows(z, (raw - raw.mean(axis=0)) / raw.std(axis=0))
        labels = np.concatenate([data.train_labels, data.test_labels])
        assert set(labels) == {-1, 1}
        assert np.sum(labels == 1) == np.sum(target == 0) == 212

    def test_the_seed_fixes_the_split(self) -> None:
        assert load("breast-cancer", seed=3) is load("breast-cancer", seed=3)
        first, other = load("breast-cancer", seed=3), load("breast-cancer", seed=4)
        assert not np.array_equal(first.test_labels, other.test_labels)

    def test_intercept_can_be_left_out(self) -> None:
        plain = load("breast-cancer", intercept=False)
        assert np.array_equal(plain.train_features, load("breast-cancer").train_features[:, :30])
        assert "intercept" not in plain.description


def test_digits_are_the_raw_pixels_over_sixteen() -> None:
    from sklearn.datasets import load_digits

    raw, target = load_digits(return_X_y=True)
    data = load("digits")
    assert (data.classes, data.task, data.columns) == (10, "multinomial", 64)
    both = np.hstack(
        [
            np.vstack([data.train_features, data.test_features]) * 16,
            np.concatenate([data.train_labels, data.test_labels])[:, None],
        ]
    )
    assert same_rows(both, np.hstack([raw, target[:, None]]))


def test_diabetes_is_a_standardised_regression() -> None:
    data = load("diabetes")
    assert (data.classes, data.task, data.columns) == (0, "regression", 11)
    assert len(data.train_labels) + len(data.test_labels) == 442
    assert data.train_labels.mean() == pytest.approx(0, abs=1e-12)
    assert data.train_labels.std() == pytest.approx(1)


class TestSynthetic:
    def test_is_the_paper_problem_by_default(self) -> None:
        data = load("synthetic")
        assert data.train_features.shape == (25_000, 5)
        assert data.test_features.shape == (5_000, 5)
        assert set(data.train_labels) == {-1, 1}

    @pytest.mark.parametrize("size", [{"features": 1}, {"examples": 4}])
    def test_refuses_a_size_it_cannot_make(self, size: dict[str, Any]) -> None:
        with pytest.raises(DataError, match="features >= 2 and examples >= 5"):
            load("synthetic", **size)

    @pytest.mark.parametrize("name", ["synthetic", "regression"])
    @pytest.mark.parametrize("size", [{"examples": 10**12}, {"features": 10**9, "examples": 5}])
    def test_names_the_keys_of_a_size_that_does_not_fit(
        self, name: str, size: dict[str, Any]
    ) -> None:
        with pytest.raises(DataError, match=f"{name}: .* too many to hold.*examples-per-agent"):
            load(name, **size)

    def test_names_a_seed_that_scikit_learn_does_not_have(self) -> None:
        with pytest.raises(DataError, match=r"data-seed must be below 2\^32 .*, got 4294967296"):
            load("synthetic", examples=10, seed=2**32)
        assert load("synthetic", examples=10, seed=2**32 - 1).columns == 5


class TestMnist:
    @pytest.fixture
    def path(self) -> Path:
        return data_file("mnist_20k.npz")

    def test_is_the_file_over_255(self, path: Path) -> None:
        data = load("mnist", data_path=path, dtype="float32")
        with np.load(path) as raw:
            rows = [0, 1234, 9999]
            expected = np.vectorize(lambda pixel: np.float32(pixel / 255))(raw["x_train"][rows])
            assert np.array_equal(data.train_features[rows], expected)
            assert np.array_equal(data.test_labels, raw["y_test"])
        assert data.train_features.shape == data.test_features.shape == (10_000, 784)
        assert data.train_features.dtype == np.float32
        assert (data.classes, data.task) == (10, "multinomial")

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"x_test": None}, "x_test"),
            ({"x_train": np.zeros((3, 100), dtype=np.uint8)}, "got uint8 of shape"),
            ({"x_train": np.zeros((3, 784))}, "got float64"),
            ({"y_test": np.array([0, 1, 10])}, "in 0 ... 9, got 0 ... 10"),
            ({"y_test": np.array([0.0, 1.0, 2.0])}, "vector of integers"),
            ({"y_train": np.array(3)}, "y_train a non-empty vector of integers"),
            ({"y_train": np.array([{}, {}, {}], dtype=object)}, "uint8 arrays"),
        ],
    )
    def test_a_wrong_archive_is_named(
        self, tmp_path: Path, change: dict[str, Any], expected: str
    ) -> None:
        pixels, labels = np.zeros((3, 784), dtype=np.uint8), np.array([0, 1, 2])
        arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels, "y_test": labels}
        file = tmp_path / "wrong.npz"
        kept = {key: value for key, value in (arrays | change).items() if value is not None}
        np.savez(file, **kept)
        with pytest.raises(DataError, match=expected) as caught:
            load("mnist", data_path=file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)

    @staticmethod
    def damaged() -> dict[str, bytes | None]:
        """Contents of files that are no archive of four arrays."""
        pixels, labels = np.zeros((3, 784), dtype=np.uint8), np.array([0, 1, 2])
        single, texts, whole = io.BytesIO(), io.BytesIO(), io.BytesIO()
        np.save(single, np.zeros(3))
        with zipfile.ZipFile(texts, "w") as archive:
            for key in ("x_train", "y_train", "x_test", "y_test"):
                archive.writestr(key, b"no numpy array")
        np.savez_compressed(whole, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
        flipped = bytearray(whole.getvalue())
        flipped[60:90] = b"\xff" * 30
        return {
            "absent": None,
            "empty": b"",
            "cut off": b"PK\x03\x04 cut off",
            "a single array": single.getvalue(),
            "members that are no arrays": texts.getvalue(),
            "flipped bytes": bytes(flipped),
        }

    def test_a_file_that_is_no_archive_of_arrays_is_named(self, tmp_path: Path) -> None:
        for number, (what, content) in enumerate(self.damaged().items()):
            file = tmp_path / f"{number}.npz"
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(DataError, match=r"\.npz: .*expected an \.npz file") as caught:
                load("mnist", data_path=file)
            assert "\n" not in str(caught.value), what


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "diabetes", "synthetic"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_arrays_have_the_dtype_asked_for_and_are_read_only(name: str, dtype: str) -> None:
    data = load(name, dtype=dtype, examples=100)
    for features, labels in (
        (data.train_features, data.train_labels),
        (data.test_features, data.test_labels),
    ):
        assert features.dtype == dtype
        assert features.flags.c_contiguous
        assert labels.dtype == (dtype if data.task == "regression" else "int64")
        for array in (features, labels):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\nlines"), " as dataset mnist; expected an .npz file with x_train"),
        (MemoryError(), " (MemoryError)"),
        (OSError("two\nlines"), " (two lines)"),
        (zlib.error("-3"), " (-3)"),
    ],
)
def test_what_no_loader_has_thought_of_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    broken = replace(loaders._FROM_PATH["mnist"], read=fail)
    monkeypatch.setitem(loaders._FROM_PATH, "mnist", broken)
    with pytest.raises(DataError) as caught:
        load("mnist", data_path=tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: cannot be used{said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["{}", "hf:{}"])
def test_a_folder_that_was_not_meant_is_named_and_not_searched_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "back").symlink_to(tmp_path, target_is_directory=True)  # as /proc has some
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    monkeypatch.setattr(loaders, "MOST_BELOW", 50)
    with pytest.raises(DataError, match=f"{tmp_path}: more than 50 files are below this folder"):
        load("csv", data_path=path.format(tmp_path), label_column="y")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"name": "iris"}, "dataset 'iris' is unknown; expected one of " + ", ".join(NAMES)),
        ({"name": "digits", "dtype": "float16"}, "dtype 'float16' is unknown"),
        ({"name": "digits", "seed": -1}, "data-seed must be >= 0"),
        ({"name": "mnist"}, "data-path is needed for dataset mnist: an .npz file"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError) as caught:
        load(**arguments)
    assert expected in str(caught.value)
