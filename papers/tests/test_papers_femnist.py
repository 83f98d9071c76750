"""LEAF's FEMNIST: every example arrives under its writer, and a wrong file is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.data import DataError, federation_from_config, load

Writers = dict[str, int]


def leaf(writers: Writers, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "users": list(writers),
        "num_samples": list(writers.values()),
        "user_data": {
            writer: {
                "x": np.round(draw.random((count, 784)), 4).tolist(),
                "y": draw.integers(0, 62, count).tolist(),
            }
            for writer, count in writers.items()
        },
    }


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def split_folder(folder: Path) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    """Write a folder as LEAF leaves it: train and test of the same writers, two files each."""
    train = [leaf({"f2": 4, "f10": 6}, 1), leaf({"f0": 5}, 2)]
    test = [leaf({"f2": 1, "f10": 2}, 3), leaf({"f0": 1}, 4)]
    for part, contents in (("train", train), ("test", test)):
        for number, content in enumerate(contents):
            write(folder / part / f"all_data_{number}_niid_1_keep_0_{part}_9.json", content)
    return folder, train, test


def test_every_example_of_the_files_is_there_once(tmp_path: Path) -> None:
    folder, train, test = split_folder(tmp_path / "femnist")
    data = load("femnist", data_path=folder, dtype="float32")
    assert (data.classes, data.task, data.columns) == (62, "multinomial", 784)
    for contents, features, labels in (
        (train, data.train_features, data.train_labels),
        (test, data.test_features, data.test_labels),
    ):
        expected = [
            (*np.array(x, dtype=np.float32).tolist(), y)
            for content in contents
            for entry in content["user_data"].values()
            for x, y in zip(entry["x"], entry["y"], strict=True)
        ]
        found = [(*x.tolist(), y) for x, y in zip(features, labels, strict=True)]
        assert sorted(found) == sorted(expected)


def test_an_agent_is_a_writer(tmp_path: Path) -> None:
    folder, train, _ = split_folder(tmp_path / "femnist")
    config = {"dataset": "femnist", "data-path": str(folder), "partition": "natural-id"}
    federation = federation_from_config(config, 3)
    data = {writer: entry for content in train for writer, entry in content["user_data"].items()}
    # Sorted as text, so f10 comes before f2.
    for problem, writer in zip(federation.problems, ("f0", "f10", "f2"), strict=True):
        np.testing.assert_allclose(problem.features, data[writer]["x"], atol=1e-7)
        assert problem.labels.tolist() == data[writer]["y"]
    assert federation.dim == 784 * 62
    with pytest.raises(DataError, match="3 ids for 4 agents: num-agents=3 gives"):
        federation_from_config(config, 4)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_without_a_test_folder_a_fifth_of_each_writer_is_held_out(
    tmp_path: Path, kind: str
) -> None:
    writers = {"a": 1, "b": 2, "c": 5, "d": 12}
    path = write(tmp_path / "all" / "all_data_0.json", leaf(writers))
    data = load("femnist", data_path=path if kind == "file" else path.parent, seed=7)
    assert data.train_ids is not None
    names, counts = np.unique(data.train_ids, return_counts=True)
    assert dict(zip(names, counts, strict=True)) == {"a": 1, "b": 2, "c": 4, "d": 10}
    assert len(data.test_labels) == 3
    other = load("femnist", data_path=path, seed=8)
    assert not np.array_equal(data.test_features, other.test_features)


def changed(**changes: Any) -> dict[str, Any]:
    return leaf({"a": 2, "b": 1}) | changes


def with_entry(entry: Any) -> dict[str, Any]:
    content = leaf({"a": 2, "b": 1})
    content["user_data"]["a"] = entry
    return content


PIXELS = [[0.5] * 784] * 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1], r"expected LEAF's FEMNIST as JSON: users, num_samples, user_data"),
        (changed(users=["a"]), r"an entry for each of users"),
        (changed(num_samples=[2]), r"an entry for each of users"),
        (changed(num_samples=[3, 1]), r"writer 'a': expected 3 examples .*, got 2 x and 2 y"),
        (with_entry({"x": PIXELS}), r"writer 'a': expected x and y"),
        (with_entry({"x": PIXELS, "y": [1]}), r"got 2 x and 1 y"),
        (with_entry({"x": [[0.5] * 784, [0.5]], "y": [1, 2]}), r"expected 784 numbers"),
        (with_entry({"x": [[0.5] * 10] * 2, "y": [1, 2]}), r"expected 784 pixels in 0 \.\.\. 1"),
        (with_entry({"x": PIXELS, "y": "12"}), r"writer 'a': expected lists x and y"),
        (with_entry({"x": [[10**400] * 784] * 2, "y": [1, 2]}), r"expected 784 numbers"),
        (with_entry({"x": [[1e300] * 784] * 2, "y": [1, 2]}), r"expected 784 pixels in 0"),
        (with_entry({"x": PIXELS, "y": [1, 62]}), r"a character's number in 0 \.\.\. 61"),
        (with_entry({"x": PIXELS, "y": [1, 2.5]}), r"a character's number in 0 \.\.\. 61"),
        (leaf({}), r"expected at least one example"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(
    tmp_path: Path, content: Any, expected: str
) -> None:
    file = write(tmp_path / "all_data_7.json", content)
    with pytest.raises(DataError, match=rf"all_data_7\.json.*{expected}") as caught:
        load("femnist", data_path=file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_json_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "all_data_7.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"all_data_7\.json: expected LEAF's FEMNIST"):
        load("femnist", data_path=file)


def test_missing_files_and_repeated_writers_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file; expected LEAF's"):
        load("femnist", data_path=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no \*\.json file and no folders train and test"):
        load("femnist", data_path=tmp_path)
    for number in range(2):
        write(tmp_path / f"all_data_{number}.json", leaf({"a": 1}, number))
    with pytest.raises(DataError, match=r"all_data_1\.json: writer 'a' is in all_data_0\.json"):
        load("femnist", data_path=tmp_path)
