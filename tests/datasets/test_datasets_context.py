"""Which problem a node gets: the run config proposes, the node's own data keys decide."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privet.datasets import DataError, problem_from_config, problem_from_context


def context(node: dict[str, Any], run: dict[str, Any]) -> Any:
    return SimpleNamespace(node_config=node, run_config=run)


def test_run_config_deals_the_data_of_a_node_without_data_keys() -> None:
    run = {"num-agents": 5, "dataset": "digits", "rho": 1.0}
    found = problem_from_context(context({"partition-id": 3, "num-partitions": 9}, run))
    assert found is problem_from_config(run, 3, 5)


def test_a_node_with_data_keys_of_its_own_takes_none_from_the_coordinator() -> None:
    node = {"partition-id": 1, "num-partitions": 4, "partition": "iid", "max-clip": 1.0}
    run = {"num-agents": 2, "dataset": "digits", "partition": "label", "loss": "ridge"}
    found = problem_from_context(context(node, run))
    assert found is problem_from_config({"partition": "iid"}, 1, 4)


def test_the_agents_number_is_the_nodes_own() -> None:
    with pytest.raises(DataError, match="no partition-id"):
        problem_from_context(context({}, {"partition-id": 0, "num-agents": 2}))


def test_a_node_with_a_file_of_its_own_trains_on_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_text("1 2:0.5\n0 1:1\n1 3:2\n")
    (tmp_path / "test.svm").write_text("0 1:1\n")
    node = {
        "partition-id": 5,
        "num-partitions": 8,
        "dataset": "click",
        "data-path": str(tmp_path),
        "columns": 4,
        "partition": "none",
    }
    found = problem_from_context(context(node, {"dataset": "digits", "num-agents": 3}))
    assert found.features.tolist() == [[0, 0.5, 0, 0, 1], [1, 0, 0, 0, 1], [0, 0, 2, 0, 1]]
