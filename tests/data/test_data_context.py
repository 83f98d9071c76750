"""Which problem a node gets: the run config proposes, the node's own data keys decide."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privet.data import DataError, problem_from_config, problem_from_context
from privet.data.context import table_from_context


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


@pytest.mark.parametrize(
    "own", [{"huber-threshold": 2.0}, {"quantity-power": 1.5}, {"dirichlet-alpha": 0.3}], ids=str
)
def test_a_key_of_one_loss_or_partition_is_a_data_key(own: dict[str, Any]) -> None:
    node = {"partition-id": 1, "num-partitions": 4, **own}
    found = problem_from_context(context(node, {"num-agents": 2, "dataset": "digits"}))
    assert found is problem_from_config(own, 1, 4)


def test_the_agents_number_is_the_nodes_own() -> None:
    with pytest.raises(DataError, match="no partition-id"):
        problem_from_context(context({}, {"partition-id": 0, "num-agents": 2}))


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    file = tmp_path / "clicks.svm"
    file.write_text("".join(f"{i % 2} 1:{i} 3:1\n" for i in range(20)))
    return file


NODE = {"partition-id": 0, "num-partitions": 2}


def test_a_path_of_the_run_config_needs_the_operators_word(clicks: Path) -> None:
    run = {"num-agents": 2, "dataset": "click", "data-path": str(clicks), "partition": "iid"}
    with pytest.raises(DataError, match="allow-run-data = true, in the node config") as caught:
        problem_from_context(context(NODE, run))
    assert caught.value.told == str(caught.value)
    with pytest.raises(DataError, match="allow-run-data = true"):
        problem_from_context(context(NODE | {"allow-run-data": False}, run))
    with pytest.raises(DataError, match="'allow_run_data'; did you mean allow-run-data"):
        problem_from_context(context(NODE | {"allow_run_data": True}, run))
    found = problem_from_context(context(NODE | {"allow-run-data": True}, run))
    assert found is problem_from_config(run, 0, 2)


@pytest.mark.parametrize(
    "run",
    [
        {"dataset": "mnist", "data-path": "hf:ylecun/mnist"},
        {"dataset": "digits", "data-path": "/etc/shadow"},
        {"dataset": "click", "data-path": Path("/etc/shadow"), "allow-run-data": True},
    ],
)
def test_no_name_of_a_run_config_gets_by(run: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="is not read on this node"):
        problem_from_context(context(NODE, {"num-agents": 2, **run}))


@pytest.mark.parametrize("key", ["dataset=click data-path='{}'", "data-path='{}' dataset=click"])
def test_what_stands_in_more_is_what_a_run_names(clicks: Path, key: str) -> None:
    run = {"num-agents": 2, "partition": "iid", "more": key.format(clicks)}
    with pytest.raises(DataError, match="is not read on this node"):
        problem_from_context(context(NODE, run))
    with pytest.raises(DataError, match="is not read on this node"):
        table_from_context(context(NODE, run))
    found = problem_from_context(context(NODE | {"allow-run-data": True}, run))
    plain = {"num-agents": 2, "dataset": "click", "data-path": str(clicks), "partition": "iid"}
    assert found is problem_from_config(plain, 0, 2)
    small = {"num-agents": 2, "more": "dataset=digits partition=iid"}
    found = problem_from_context(context(NODE, small))
    assert found is problem_from_config({"dataset": "digits", "partition": "iid"}, 0, 2)


def test_a_node_with_data_of_its_own_does_not_read_more() -> None:
    node = {"partition-id": 1, "num-partitions": 4, "partition": "iid"}
    found = problem_from_context(context(node, {"num-agents": 2, "more": "not a pair"}))
    assert found is problem_from_config({"partition": "iid"}, 1, 4)


def test_a_data_set_that_needs_a_path_does_not_get_one() -> None:
    with pytest.raises(DataError, match="data-path is needed for dataset mnist") as caught:
        problem_from_context(context(NODE, {"num-agents": 2, "dataset": "mnist"}))
    assert caught.value.told == ""


@pytest.mark.parametrize("value", ["true", 1, "yes"])
def test_the_operators_word_is_true_or_false(clicks: Path, value: Any) -> None:
    run = {"num-agents": 2, "dataset": "click", "data-path": str(clicks)}
    with pytest.raises(DataError, match=r"allow-run-data = .*, expected true or false"):
        problem_from_context(context(NODE | {"allow-run-data": value}, run))


class FakeRay:
    """What is asked of Ray."""

    def __init__(self, actor: str | None, up: bool = True) -> None:
        self.actor, self.is_initialized = actor, lambda: up

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_actor_id=lambda: self.actor)


@pytest.mark.parametrize(
    ("ray", "node", "free"),
    [
        (FakeRay("a1"), NODE, True),
        (FakeRay("a1"), NODE | {"max-clip": 1.0}, False),
        (FakeRay("a1"), {"partition-id": 0}, False),
        (FakeRay(None), NODE, False),
        (FakeRay("a1", up=False), NODE, False),
    ],
)
def test_a_node_of_flowers_simulation_is_known_by_its_process(
    clicks: Path, monkeypatch: pytest.MonkeyPatch, ray: Any, node: dict[str, Any], free: bool
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    run = {"num-agents": 2, "dataset": "click", "data-path": str(clicks)}
    if free:
        assert problem_from_context(context(node, run)).num_examples
    else:
        with pytest.raises(DataError, match="allow-run-data"):
            problem_from_context(context(node, run))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"partition": "none", "columns": 3}, ""),
        ({"partition": "iid", "columns": 3}, ""),
        ({"partition": "none"}, "columns = auto reads the dimension from the file: give columns"),
        (
            {"columns": 3},
            "partition = label deals a node's own records by their labels: set it to none",
        ),
        (
            {"partition": "dirichlet", "columns": 3},
            "partition = dirichlet deals a node's own records by their labels: set it to none",
        ),
        ({"partition": "label", "dataset": "digits", "data-path": ""}, ""),
    ],
)
def test_what_a_nodes_own_records_decide_is_said(
    clicks: Path, keys: dict[str, Any], line: str
) -> None:
    node = NODE | {"dataset": "click", "data-path": str(clicks)} | keys
    assert problem_from_context(context(node, {})).data_dependent == line


@pytest.mark.parametrize("partition", ["none", "iid"])
def test_a_constant_text_of_a_node_keeps_its_place(tmp_path: Path, partition: str) -> None:
    """A text that all rows of a node have may be one of two at the next: zeros hold its place."""
    table = tmp_path / "own.csv"
    table.write_text("age,unit,y\n" + "".join(f"{n},ICU,{n % 2}\n" for n in range(20)))
    keys = {"dataset": "csv", "data-path": str(table), "partition": partition}
    own = problem_from_context(context(NODE | keys, {}))
    assert own.features.shape[1] == 3, "age, unit and the intercept"
    assert not own.features[:, 1].any()
    assert own.data_dependent
    with pytest.raises(DataError, match="missing = category needs schema where a node reads"):
        problem_from_context(context(NODE | keys | {"missing": "category"}, {}))
    pool = context(NODE | {"allow-run-data": True}, {**keys, "partition": "iid", "num-agents": 2})
    assert problem_from_context(pool).features.shape[1] == 2, "age and the intercept"


def test_a_pool_that_is_dealt_to_agents_may_be_dealt_by_label(clicks: Path) -> None:
    run = {"num-agents": 2, "dataset": "click", "data-path": str(clicks), "columns": 3}
    node = NODE | {"allow-run-data": True}
    assert problem_from_context(context(node, run)).data_dependent == ""


def test_a_split_by_label_moves_more_of_a_share_than_the_record(clicks: Path) -> None:
    """Why such a split of a node's own records is not for private runs."""
    lines = clicks.read_text().splitlines()
    assert lines[2] == "0 1:2 3:1"
    other = clicks.with_name("neighbour.svm")
    other.write_text("\n".join([*lines[:2], "1 1:2 3:1", *lines[3:]]) + "\n")

    def share(file: Path, seed: int) -> set[tuple[float, ...]]:
        keys = {"columns": 3, "classes-per-agent": 5, "partition-seed": seed}
        node = NODE | {"dataset": "click", "data-path": str(file)} | keys
        return set(map(tuple, problem_from_context(context(node, {})).features.tolist()))

    assert max(len(share(clicks, seed) - share(other, seed)) for seed in range(8)) > 1
