"""Tables saved by Hugging Face's library, and what is said where it or the hub is missing."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.data import DataError, federation_from_config, load, partition
from support.extras import extra
from support.paths import ROOT, data_file

extra("flwr_datasets")
Save = Callable[..., str]


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28)).astype(np.uint8)


class TestMnist:
    def table(self, library: Any, images: np.ndarray, labels: np.ndarray, **more: Any) -> Any:
        features = library.Features(
            {
                "image": library.Image(),
                "label": library.ClassLabel(num_classes=10),
                **{name: library.Value("string") for name in more},
            }
        )
        columns = {"image": list(images), "label": labels.tolist(), **more}
        return library.Dataset.from_dict(columns, features=features)

    def test_is_the_pixels_over_255(self, library: Any, saved: Save) -> None:
        images, labels = pictures(30), np.arange(30) % 10
        path = saved(
            train=self.table(library, images[:20], labels[:20]),
            test=self.table(library, images[20:], labels[20:]),
        )
        data = load("mnist", data_path=path)
        np.testing.assert_allclose(data.train_features * 255, images[:20].reshape(20, 784))
        np.testing.assert_allclose(data.test_features * 255, images[20:].reshape(10, 784))
        assert data.train_labels.tolist() == labels[:20].tolist()
        assert data.test_labels.tolist() == labels[20:].tolist()

    def test_without_a_test_split_a_fifth_is_held_out_and_ids_deal_it(
        self, library: Any, saved: Save
    ) -> None:
        images, labels = pictures(30), np.arange(30) % 10
        sites = [f"site-{number % 3}" for number in range(30)]
        config = {
            "dataset": "mnist",
            "data-path": saved(train=self.table(library, images, labels, site=sites)),
            "partition": "natural-id",
            "id-column": "site",
        }
        federation = federation_from_config(config, 3)
        assert [problem.num_examples for problem in federation.problems] == [8, 8, 8]
        known = {image.tobytes(): site for image, site in zip(images, sites, strict=True)}
        for number, problem in enumerate(federation.problems):
            pixels = np.rint(problem.features * 255).astype(np.uint8)
            assert {known[row.tobytes()] for row in pixels} == {f"site-{number}"}

    @pytest.mark.parametrize(
        ("columns", "expected"),
        [
            ({"img": [[[1]]], "label": [1]}, "expected a column image, got img, label"),
            ({"image": [[[1]]], "digit": [1]}, "expected a column label, got digit, image"),
            ({"image": [[[1]]] * 9, "label": [1] * 9}, r"of shape \(7, 784\) or \(7, 28, 28\)"),
            ({"image": [[[1]], [[1, 2]]], "label": [1, 2]}, "expected images of one size"),
            ({"image": [[[-1] * 28] * 28] * 9, "label": [1] * 9}, "got int64 of shape"),
        ],
    )
    def test_a_wrong_table_is_named(
        self, saved: Save, columns: dict[str, Any], expected: str
    ) -> None:
        with pytest.raises(DataError, match=rf"saved: (.*){expected}") as caught:
            load("mnist", data_path=saved(train=columns))
        assert "\n" not in str(caught.value)


def test_femnist_comes_by_writer(saved: Save) -> None:
    images = pictures(24)
    writers = ["b", "a", "c"] * 8
    columns = {"image": images.tolist(), "character": list(range(24)), "writer_id": writers}
    path = saved(train=columns)
    config = {"dataset": "femnist", "data-path": path, "partition": "natural-id"}
    federation = federation_from_config(config, 3)
    for number, problem in enumerate(federation.problems):
        # Rows are numbered by their character, and held by the writers in turn.
        assert {writers[label] for label in problem.labels} == {"abc"[number]}
        np.testing.assert_allclose(
            problem.features, images[problem.labels].reshape(-1, 784) / 255, atol=1e-7
        )
    assert len(federation.dataset.test_labels) == 6


ADULT = """age workclass fnlwgt education education.num marital.status occupation relationship race
sex capital.gain capital.loss hours.per.week native.country income"""


@pytest.mark.slow
def test_adult_is_what_its_files_are(saved: Save) -> None:
    folder = data_file("adult-train.csv.gz").parent
    splits = {}
    for part in ("train", "test"):
        with gzip.open(folder / f"adult-{part}.csv.gz", "rt", newline="") as file:
            rows = [row for row in csv.reader(file, skipinitialspace=True) if row]
        columns = dict(zip(ADULT.split(), zip(*rows, strict=True), strict=True))
        typed = {
            name: [int(value) for value in values] if values[0].isdigit() else list(values)
            for name, values in reversed(columns.items())
        }
        typed["workclass"] = [None if value == "?" else value for value in typed["workclass"]]
        splits[part] = typed
    table = load("adult", data_path=saved(**splits))
    files = load("adult", data_path=folder)
    for name in ("train_features", "train_labels", "test_features", "test_labels"):
        assert np.array_equal(getattr(table, name), getattr(files, name)), name


def test_a_table_that_is_not_adult_is_named(saved: Save) -> None:
    with pytest.raises(DataError, match=r"saved: .*columns of UCI Adult, there is no workclass"):
        load("adult", data_path=saved(train={"age": [1], "sex": ["Male"]}))


class TestClick:
    COLUMNS: dict[str, list[Any]] = {  # noqa: RUF012
        "click": [0, 1, 1, 0, 1, 0],
        "banner": [3, 3, 4, 3, None, 4],
        "site": ["a", "b", "a", "a", "b", "b"],
        "price": [0.5, 2.0, None, 1.0, 1.0, 0.0],
    }

    def save(self, saved: Save, **changes: list[Any]) -> str:
        # The split in the table itself, so that rows keep their order.
        columns = (self.COLUMNS | changes).items()
        return saved(
            train={name: values[:4] for name, values in columns},
            test={name: values[4:] for name, values in columns},
        )

    def test_categories_are_hashed_and_decimals_weigh(self, saved: Save) -> None:
        path = self.save(saved)
        data = load("click", data_path=path, columns=1_000, id_column="site", intercept=False)
        rows = np.vstack([data.train_features, data.test_features])
        assert [*data.train_labels, *data.test_labels] == [-1, 1, 1, -1, 1, -1]
        assert data.train_ids is not None
        assert data.train_ids.tolist() == ["a", "b", "a", "a"]
        # In 1,000 columns these three names do not collide: banner=3, banner=4 and price.
        assert [np.count_nonzero(row) for row in rows] == [2, 2, 1, 2, 1, 1]
        price = np.flatnonzero(rows[4])
        assert len(price) == 1
        assert np.abs(rows[:, price[0]]).tolist() == [0.5, 2.0, 0.0, 1.0, 1.0, 0.0]
        assert np.array_equal(rows[2], rows[5])

    def test_a_table_needs_columns_and_a_label(self, saved: Save) -> None:
        source = self.save(saved)
        with pytest.raises(DataError, match="saved: give columns"):
            load("click", data_path=source)
        with pytest.raises(DataError, match=r"saved: expected site to be 0 or 1.*label-column"):
            load("click", data_path=source, columns=8, label_column="site")
        with pytest.raises(DataError, match="saved: expected a column shop, got banner, click"):
            load("click", data_path=source, columns=8, id_column="shop")


PIXELS = [[0] * 28] * 28
WRITTEN = {"image": [PIXELS] * 3, "character": [1, 2, 3], "writer_id": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("femnist", {"writer_id": ["a", None, "b"]}, "row 2: expected an id in column writer_id"),
        ("femnist", {"writer_id": [["a"], [], ["b"]]}, "a text or a number in each row of column"),
        ("femnist", {"image": [[[1], [1, 2]]] * 3}, "row 1: expected an image"),
        ("femnist", {"image": ["a", "b", "c"]}, "expected grey images of 28 x 28"),
        ("femnist", {"image": [PIXELS, None, PIXELS]}, "expected images of one size"),
        ("femnist", {"character": ["1", "2", "3"]}, "expected each y a character's number"),
        ("femnist", {"character": [1, None, 3]}, "expected each y a character's number"),
        ("mnist", {"label": ["1", "2", "3"]}, "expected y_train a non-empty vector of integers"),
        ("mnist", {"label": [[1], [1, 2], [3]]}, "cannot be used"),
        ("click", {"click": [0, 1, 2]}, "expected labels 0 and 1, or -1 and .1, got 0, 1, 2"),
        ("click", {"click": ["yes", "no", "no"]}, "expected click to be 0 or 1"),
        ("click", {"click": [1, None, 0]}, "expected click to be 0 or 1"),
    ],
)
def test_a_wrong_cell_is_named(
    saved: Save, name: str, columns: dict[str, Any], expected: str
) -> None:
    with pytest.raises(DataError, match=rf"saved.*{expected}") as caught:
        load(name, data_path=saved(train=WRITTEN | columns), columns=4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_table_is_named(library: Any, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    # Some versions of the library read back what has no rows, others refuse it.
    table = library.Dataset.from_dict(WRITTEN)
    splits = {"train": table, "test": table} | {part: table.select([])}
    monkeypatch.setattr(library, "load_dataset", lambda name: splits)
    with pytest.raises(DataError, match=f"hf:empty: expected rows in split {part}"):
        load("mnist", data_path="hf:empty")


def test_an_image_that_cannot_be_decoded_is_named(library: Any, tmp_path: Path) -> None:
    features = library.Features({"image": library.Image(), "label": library.Value("int64")})
    broken = {"image": [{"bytes": b"no picture", "path": None}], "label": [1]}
    library.Dataset.from_dict(broken, features=features).save_to_disk(tmp_path / "broken")
    with pytest.raises(DataError, match=r"broken: column image cannot be read") as caught:
        load("mnist", data_path=f"hf:{tmp_path / 'broken'}")
    assert "\n" not in str(caught.value)


class TestSource:
    def test_a_folder_of_parquet_files_is_read_as_the_hub_would_be(
        self, library: Any, tmp_path: Path
    ) -> None:
        table = library.Dataset.from_dict(
            {"image": pictures(10).tolist(), "label": list(range(10))}
        )
        (tmp_path / "repo").mkdir()
        table.to_parquet(tmp_path / "repo" / "train.parquet")
        table.to_parquet(tmp_path / "repo" / "test.parquet")
        data = load("mnist", data_path=f"hf:{tmp_path / 'repo'}")
        assert data.train_labels.tolist() == list(range(10))
        assert np.array_equal(data.train_features, data.test_features)

    def test_a_file_that_is_replaced_with_its_times_is_read_anew(
        self, library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The library itself would take what it kept of the old one."""
        monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
        file, new = tmp_path / "repo" / "train.parquet", tmp_path / "new.parquet"
        file.parent.mkdir()
        largest = []
        for first in (10, 50):
            columns = {"x": list(range(first, first + 20)), "label": [0, 1] * 10}
            library.Dataset.from_dict(columns).to_parquet(new)
            os.utime(new, (1.7e9, 1.7e9))
            new.replace(file)
            data = load("csv", data_path=f"hf:{file.parent}")
            largest.append(data.source_columns[0].high)
        assert largest == [29, 69]

    def test_a_table_without_train_is_named(self, saved: Save) -> None:
        path = saved(valid={"image": pictures(2).tolist(), "label": [0, 1]})
        with pytest.raises(DataError, match="saved: expected a split train, got valid"):
            load("mnist", data_path=path)

    def test_an_empty_folder_is_named(self, library: Any, tmp_path: Path) -> None:
        assert library is not None
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match="empty: cannot be loaded") as caught:
            load("mnist", data_path=f"hf:{tmp_path / 'empty'}")
        assert "\n" not in str(caught.value)


def ask(code: str, **environment: str) -> str:
    """Run code in a process whose working directory is the checkout, as users' own often is."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return done.stdout.strip()


REFUSAL = """
from privet.data import DataError, load
try:
    load("mnist", data_path="hf:ylecun/mnist")
except DataError as error:
    print(error)
"""


def test_an_unreachable_hub_is_one_line(tmp_path: Path) -> None:
    said = ask(REFUSAL, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert said.startswith("hf:ylecun/mnist: the hub cannot be reached (")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("missing", "call"),
    [
        ("datasets", lambda: load("mnist", data_path="hf:ylecun/mnist")),
        ("flwr_datasets.partitioner", lambda: partition([0, 1], 2, "flwr-iid")),
    ],
)
def test_a_missing_library_names_the_extra(
    missing: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DataError) as caught:
        call()
    said = str(caught.value)
    assert said.startswith(f"{missing.partition('.')[0]} cannot be imported")
    assert said.endswith("pip install 'flwr-privet[datasets]'")
    assert "\n" not in said
