"""Click data in LIBSVM's format: the numbers of the file, or their hashes, and named mistakes."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from privet.data import DataError, load
from privet.data import click as click_module

ROWS = (
    "1 2:0.5 7:1",
    "0 1:1 3:-2.5 # a remark",
    "0 7:0.25",
    "1",
    "+1 1:2e-1 2:3",
)
DENSE = {
    (0, 0.5, 0, 0, 0, 0, 1): 1,
    (1, 0, -2.5, 0, 0, 0, 0): -1,
    (0, 0, 0, 0, 0, 0, 0.25): -1,
    (0, 0, 0, 0, 0, 0, 0): 1,
    (0.2, 3, 0, 0, 0, 0, 0): 1,
}


def write(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ("\n".join(rows) + "\n").encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    elif path.suffix == ".bz2":
        path.write_bytes(bz2.compress(text))
    else:
        path.write_bytes(text)
    return path


@pytest.mark.parametrize("name", ["click.svm", "click.gz", "click.bz2", "click"])
def test_a_file_arrives_row_by_row(tmp_path: Path, name: str) -> None:
    data = load("click", data_path=write(tmp_path / name, *ROWS), intercept=False)
    assert (data.task, data.classes, data.columns) == ("binary", 2, 7)
    assert len(data.test_labels) == 1
    rows = np.vstack([data.train_features, data.test_features])
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert {tuple(row): y for row, y in zip(rows.tolist(), labels, strict=True)} == DENSE


def test_a_folder_has_its_own_test_file_and_one_width(tmp_path: Path) -> None:
    write(tmp_path / "train.svm", "-1 1:1", "+1 2:1")
    write(tmp_path / "test.svm.gz", "1 5:3")
    data = load("click", data_path=tmp_path)
    assert data.train_features.tolist() == [[1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1]]
    assert data.train_labels.tolist() == [-1, 1]
    assert data.test_features.tolist() == [[0, 0, 0, 0, 3, 1]]
    assert data.test_labels.tolist() == [1]


def test_the_width_can_be_given_so_that_agents_agree(tmp_path: Path) -> None:
    file = write(tmp_path / "click.svm", *ROWS)
    data = load("click", data_path=file, columns=10, intercept=False)
    assert data.columns == 10
    assert data.data_dependent == ""
    assert "give columns" in load("click", data_path=file).data_dependent
    assert not data.train_features[:, 7:].any()
    with pytest.raises(DataError, match=r"click\.svm: index 7 is above columns = 6"):
        load("click", data_path=file, columns=6)


class TestHashing:
    def hashed(self, file: Path, columns: int) -> np.ndarray:
        data = load("click", data_path=file, columns=columns, hashing=True, intercept=False)
        assert data.columns == columns
        return np.vstack([data.train_features, data.test_features])

    def test_each_index_has_one_column_and_one_sign(self, tmp_path: Path) -> None:
        indices = range(1, 401)
        file = write(tmp_path / "train", *(f"{i % 2} {i}:2" for i in indices))
        write(tmp_path / "test", "1 1:2", "0 1:2")
        rows = self.hashed(tmp_path, 64)
        assert file.exists()
        assert (np.count_nonzero(rows, axis=1) == 1).all()
        assert set(np.unique(rows)) == {-2.0, 0.0, 2.0}
        assert np.array_equal(rows[0], rows[-1])
        # 400 indices into 64 columns: all but none are hit, and the signs are about even.
        assert np.count_nonzero(rows.any(axis=0)) >= 60
        assert 150 <= np.count_nonzero(rows.sum(axis=1) > 0) <= 250

    def test_takes_memory_for_the_indices_there_are(self, tmp_path: Path) -> None:
        file = write(tmp_path / "click.svm", "1 1:1 3000000:1", "0 2:1", "1 3000000:1")
        self.hashed(write(tmp_path / "small.svm", *ROWS), 8)  # imports scikit-learn
        tracemalloc.start()
        try:
            rows = self.hashed(file, 64)
            assert tracemalloc.get_traced_memory()[1] < 20e6
        finally:
            tracemalloc.stop()
        assert np.count_nonzero(rows) == 4

    def test_needs_a_width(self, tmp_path: Path) -> None:
        file = write(tmp_path / "click.svm", *ROWS)
        with pytest.raises(DataError, match=r"click\.svm: give columns"):
            load("click", data_path=file, hashing=True)
        with pytest.raises(DataError, match="columns must be >= 0, got -1"):
            load("click", data_path=file, columns=-1)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("1 0:1", "line 3: expected LIBSVM rows"),
        ("1 2:1 x", "line 3: expected LIBSVM rows"),
        ("click 2:1", "line 3: expected LIBSVM rows"),
        ("1 3:1 2:1", "line 3: expected LIBSVM rows.* and rising"),
        ("1 3:1 3:1", "line 3: expected LIBSVM rows.* and rising"),
        ("1 3:one", "line 3: expected LIBSVM rows"),
        ("1,0,1", "line 3: expected LIBSVM rows"),
        ("1 2147483648:1", r"line 3: index 2147483648 is above 2\^31-1"),
        ("2 1:1", "expected labels 0 and 1, or -1 and .1, got 0, 1, 2"),
        ("-1 1:1", "expected labels 0 and 1, or -1 and .1, got -1, 0, 1"),
        ("1 1:nan", "expected finite values"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: str, expected: str) -> None:
    file = write(tmp_path / "wrong.svm", "1 1:1", "0 2:1", row)
    with pytest.raises(DataError, match=rf"wrong\.svm.*{expected}") as caught:
        load("click", data_path=file)
    assert "\n" not in str(caught.value)


def test_a_missing_damaged_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such file; expected LIBSVM rows"):
        load("click", data_path=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"expected one file train\*, got 0"):
        load("click", data_path=tmp_path)
    damaged = tmp_path / "click.gz"
    whole = gzip.compress(b"1 1:1\n" * 1000)
    # Cut off; and with a block type that deflate does not have.
    for content in (whole[:-9], whole[:10] + b"\xff" * 8 + whole[18:]):
        damaged.write_bytes(content)
        with pytest.raises(DataError, match=r"click\.gz: expected LIBSVM rows"):
            load("click", data_path=damaged)
    empty = write(tmp_path / "empty.svm", "# nothing")
    with pytest.raises(DataError, match=r"empty\.svm: expected LIBSVM rows.* got an empty file"):
        load("click", data_path=empty)


def test_too_wide_a_file_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "wide.svm", *("1 1000000:1" for _ in range(2_000)))
    with pytest.raises(DataError, match=r"wide\.svm: 2000 rows of 1000000 columns .*hashing"):
        load("click", data_path=file)
    monkeypatch.setattr(click_module, "DENSE_BYTES", 100)
    with pytest.raises(DataError, match="columns are too many"):
        load("click", data_path=file, columns=64, hashing=True)
