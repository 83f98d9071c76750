"""What is held out: nothing of a node's own data, and never more than there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privet.data import (
    DataError,
    federation_from_config,
    load,
    problem_from_config,
    problem_from_context,
)


def click(folder: Path, rows: int) -> Path:
    file = folder / "click.svm"
    file.write_text("".join(f"{row % 2} {1 + row % 3}:{row + 1}\n" for row in range(rows)))
    return file


def own(**keys: Any) -> dict[str, Any]:
    return {"partition": "none", **{key.replace("_", "-"): value for key, value in keys.items()}}


def test_a_node_has_every_row_of_its_file(tmp_path: Path) -> None:
    config = own(dataset="click", data_path=str(click(tmp_path, 60)), columns=3, intercept="no")
    problem = problem_from_config(config, 0, 1)
    assert problem.num_examples == 60
    assert problem.features.sum(axis=1).tolist() == list(range(1, 61))
    node = {"partition-id": 4, "num-partitions": 9, **config}

    class Context:
        node_config = node
        run_config = {"num-agents": 2, "partition": "iid"}  # noqa: RUF012

    assert problem_from_context(Context()).num_examples == 60


@pytest.mark.parametrize(
    ("name", "rows"), [("breast-cancer", 569), ("digits", 1797), ("diabetes", 442)]
)
def test_a_built_in_set_is_whole_too(name: str, rows: int) -> None:
    assert problem_from_config(own(dataset=name), 0, 1).num_examples == rows
    data = load(name, whole=True)
    assert (len(data.train_labels), len(data.test_labels)) == (rows, 0)
    assert len(load(name).test_labels) == round(rows / 5)


def test_a_test_set_of_its_own_stays_out(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "test.svm").write_text("1 1:1\n")
    config = own(dataset="click", data_path=str(tmp_path))
    assert problem_from_config(config, 0, 1).num_examples == 2
    federation = federation_from_config(config, 1)
    assert federation.problems[0] is problem_from_config(config, 0, 1)
    assert len(federation.dataset.test_labels) == 1


def test_a_coordinator_still_evaluates_on_a_fifth(tmp_path: Path) -> None:
    config = {"dataset": "click", "data-path": str(click(tmp_path, 60)), "partition": "iid"}
    federation = federation_from_config(config, 2)
    assert [problem.num_examples for problem in federation.problems] == [24, 24]
    assert federation.held_out.num_examples == 12


def test_where_nothing_is_held_out_nothing_is_evaluated(tmp_path: Path) -> None:
    file = click(tmp_path, 60)
    with pytest.raises(DataError, match=r"click\.svm: partition none holds nothing out; expected"):
        federation_from_config(own(dataset="click", data_path=str(file)), 1)


def test_too_few_examples_for_a_held_out_fifth_are_named(tmp_path: Path) -> None:
    file = click(tmp_path, 2)
    config = {"dataset": "click", "data-path": str(file), "partition": "iid"}
    with pytest.raises(DataError, match=r"2 examples are too few .* at least 3") as caught:
        federation_from_config(config, 1)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_value_that_no_problem_takes_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "click.svm"
    file.write_text("1 1:1\n0 1:1e300\n")
    config = own(dataset="click", data_path=str(file), dtype="float32")
    with pytest.raises(DataError, match=r"click\.svm: features must be finite, found inf in row 1"):
        problem_from_config(config, 0, 1)


def test_what_cannot_be_dealt_names_key_and_file(tmp_path: Path) -> None:
    file = click(tmp_path, 4)
    config = {"dataset": "click", "data-path": str(file), "partition": "iid"}
    with pytest.raises(DataError) as caught:
        problem_from_config(config, 0, 4)
    expected = f"{file}: num-agents: 3 examples cannot give each of 4 agents one"
    assert str(caught.value) == expected


def test_a_table_is_whole_too(saved: Callable[..., str]) -> None:
    path = saved(train={"click": [0, 1] * 3, "site": ["a"] * 6})
    config = own(dataset="click", data_path=path, columns=8)
    assert problem_from_config(config, 0, 1).num_examples == 6
    assert len(load("click", data_path=path, columns=8).test_labels) == 1
