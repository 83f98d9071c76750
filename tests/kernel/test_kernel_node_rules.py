"""The rules of a node's operator, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privet.kernel import BudgetRefused, LedgerFile, NodeRules, Release, epsilon_of

DELTA = 1e-5
RELEASE = Release(mechanism="gaussian", scale=10.0)
GOOD: dict[str, Any] = {
    "private": True,
    "relation": "replace-one",
    "noise_seeded": False,
    "explicit_noise": False,
    "data_dependent_sensitivity": False,
    "clip": 1.0,
}


def node(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "partition-id": 3,
        "max-epsilon": 2.0,
        "delta": DELTA,
        "ledger-path": str(tmp_path / "ledger.jsonl"),
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


def rules(tmp_path: Path, **more: Any) -> NodeRules:
    return NodeRules.from_node_config(node(tmp_path, **more))


def messages(tmp_path: Path) -> int:
    return LedgerFile(tmp_path / "ledger.jsonl").spent(DELTA).messages


@pytest.mark.parametrize("config", [{}, {"partition-id": 0, "num-partitions": 3}])
def test_no_keys_no_limits(config: dict[str, Any]) -> None:
    free = NodeRules.from_node_config(config)
    assert not free.limited
    free.screen(**{**GOOD, "private": False, "noise_seeded": True, "clip": None})
    free.charge(Release("none"))


def test_keys_that_limit_nothing_do_not_make_a_limited_node() -> None:
    free = NodeRules.from_node_config(
        {"relation": "add-remove", "num-examples": 30, "allow-run-data": True}
    )
    assert not free.limited
    assert (free.relation, free.num_examples, free.allow_run_data) == ("add-remove", 30, True)


def test_good_replies_pass_until_the_budget_is_reached_exactly(tmp_path: Path) -> None:
    five = epsilon_of([(RELEASE, 5)], DELTA)
    own = rules(tmp_path, max_epsilon=five)
    for count in range(1, 6):
        own.charge(RELEASE)
        spent = LedgerFile(tmp_path / "ledger.jsonl").spent(DELTA)
        assert spent.messages == count
        assert spent.epsilon == pytest.approx(epsilon_of([(RELEASE, count)], DELTA), rel=1e-12)
    with pytest.raises(BudgetRefused, match="max-epsilon") as caught:
        own.charge(RELEASE)
    assert "\n" not in str(caught.value)
    # Another run, another object, the same file: the budget is for life.
    with pytest.raises(BudgetRefused, match="max-epsilon"):
        rules(tmp_path, max_epsilon=five).charge(RELEASE)
    assert messages(tmp_path) == 5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"noise_seeded": True}, "noise-seed"),
        ({"explicit_noise": True}, "from outside"),
        ({"data_dependent_sensitivity": True}, "computed from the data"),
        ({"clip": None}, "without clipping"),
        ({"clip": math.inf}, "without clipping"),
        ({"clip": math.nan}, "without clipping"),
        ({"clip": 0.0}, "without clipping"),
        ({"clip": -1.0}, "without clipping"),
        ({"clip": 1.0000001}, "max-clip"),
        ({"private": False}, "without noise"),
        ({"relation": "add-remove"}, "relation"),
    ],
)
def test_rules_refuse_before_anything_is_written(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    own = rules(tmp_path, max_clip=1.0)
    with pytest.raises(BudgetRefused, match=reason) as caught:
        own.screen(**{**GOOD, **change})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ledger.jsonl").exists()
    own.screen(**GOOD)


def test_another_relation_is_refused_even_without_limits() -> None:
    """It would halve the charge, and stands in the node's config alone."""
    free = NodeRules.from_node_config({"partition-id": 0})
    with pytest.raises(BudgetRefused, match="add-remove"):
        free.screen(**{**GOOD, "relation": "add-remove"})
    free.screen(**{**GOOD, "relation": "add-remove", "private": False})
    own = NodeRules.from_node_config({"relation": "add-remove", "num-examples": 9})
    own.screen(**{**GOOD, "relation": "add-remove"})
    with pytest.raises(BudgetRefused, match="replace-one"):
        own.screen(**GOOD)


def test_unnoised_replies_are_refused(tmp_path: Path) -> None:
    own = rules(tmp_path)
    with pytest.raises(BudgetRefused, match=r"without noise \(evaluation\)"):
        own.charge(Release("none", what="evaluation"))
    assert not (tmp_path / "ledger.jsonl").exists()


def test_min_noise_is_a_multiplier(tmp_path: Path) -> None:
    own = rules(tmp_path, min_noise=9.9)
    own.charge(RELEASE)
    own.charge(replace(RELEASE, scale=0.01, sensitivity=0.001))
    assert messages(tmp_path) == 2
    with pytest.raises(BudgetRefused, match="min-noise"):
        own.charge(replace(RELEASE, scale=9.89))
    with pytest.raises(BudgetRefused, match="min-noise"):
        own.charge(replace(RELEASE, sensitivity=1.02))


def test_limits_without_a_budget_keep_no_ledger() -> None:
    own = NodeRules.from_node_config({"min-noise": 5, "max-clip": 2})
    assert own.limited
    own.screen(**GOOD)
    own.charge(RELEASE)
    with pytest.raises(BudgetRefused, match="max-clip"):
        own.screen(**{**GOOD, "clip": 2.5})
    with pytest.raises(BudgetRefused, match="noise-seed"):
        own.screen(**{**GOOD, "noise_seeded": True})
    with pytest.raises(BudgetRefused, match="without noise"):
        own.charge(Release("none"))


def test_broken_ledger_refuses_without_telling_the_coordinator_why(tmp_path: Path) -> None:
    own = rules(tmp_path)
    path = tmp_path / "ledger.jsonl"
    own.charge(RELEASE)
    path.write_text("edited\n" + path.read_text())
    with pytest.raises(BudgetRefused, match="ledger cannot take the charge") as caught:
        own.charge(RELEASE)
    assert str(tmp_path) not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_releases_of_two_relations_do_not_share_a_ledger(tmp_path: Path) -> None:
    own = rules(tmp_path)
    own.charge(RELEASE)
    other = rules(tmp_path, relation="add-remove", num_examples=9)
    with pytest.raises(BudgetRefused, match="ledger cannot take the charge"):
        other.charge(replace(RELEASE, relation="add-remove"))
    assert messages(tmp_path) == 1


@pytest.mark.parametrize("key", ["max-epsilon", "delta", "ledger-path"])
def test_budget_keys_come_together(tmp_path: Path, key: str) -> None:
    config = node(tmp_path)
    del config[key]
    with pytest.raises(ValueError, match=f"{key} is missing"):
        NodeRules.from_node_config(config)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("max-epsilon", [0, -1.0, math.nan, math.inf, "3", True, None]),
        ("delta", [0.0, 1.0, 2, -1e-5, math.nan, "1e-5", False]),
        ("min-noise", [0, -1, math.nan, "1", None]),
        ("max-clip", [0.0, -1, math.inf, "1", True]),
        ("ledger-path", ["ledger.jsonl", "", "~/ledger", 3, None, True]),
        ("num-examples", [0, -1, 2.0, "9", True, None]),
        ("relation", ["zero-out", "", None, 1]),
        ("allow-run-data", [1, "true", None]),
        ("keep-data", [0, "false", None]),
    ],
)
def test_bad_values_name_their_key(tmp_path: Path, key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"node-config: {key} = ") as caught:
            NodeRules.from_node_config({**node(tmp_path), key: value})
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, BudgetRefused)


def test_add_remove_needs_a_number_that_does_not_follow_the_file() -> None:
    with pytest.raises(ValueError, match="needs num-examples"):
        NodeRules.from_node_config({"relation": "add-remove"})


@pytest.mark.parametrize(
    "key",
    ["max_epsilon", "Max-Epsilon", "ledger_path", "min_noise ", "max-cllip", "maxclip", "relaton",
     "num-exampels", "allow-run-date"],
)  # fmt: skip
def test_misspelt_keys_do_not_silently_disarm(key: str) -> None:
    with pytest.raises(ValueError, match="did you mean"):
        NodeRules.from_node_config({key: 1.0})


def test_keys_of_others_are_left_alone() -> None:
    config = {"hospital": "north", "num-partitions": 3, "unit": "a"}
    assert NodeRules.from_node_config(config) == NodeRules()


def test_a_node_with_a_table_of_its_own_hides_small_cells_of_analyses() -> None:
    rules = NodeRules.from_node_config({"data-path": "/x"})
    assert (rules.analyses.min_records, rules.analyses.min_cell) == (10, 5)
    assert replace(rules, analyses=NodeRules().analyses) == NodeRules()


def test_a_release_is_of_the_relation_that_the_node_means(tmp_path: Path) -> None:
    """Whatever an algorithm says of itself: half the sensitivity would be charged."""
    with pytest.raises(BudgetRefused, match="a release of relation = 'add-remove'"):
        rules(tmp_path).charge(replace(RELEASE, relation="add-remove"))
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("relation", ["replace-one", "add-remove", "replace-agent"])
def test_delta_counts_the_examples_that_are_declared(relation: str) -> None:
    config = {"max-epsilon": 1.0, "delta": 0.01, "ledger-path": "/l", "relation": relation}
    rules = NodeRules.from_node_config({**config, "num-examples": 100})
    rules.require_delta(99)
    rules.require_delta(1)
    if relation == "replace-agent":  # whole agents are the unit
        rules.require_delta(100)
    else:
        with pytest.raises(BudgetRefused, match=r"this node has 100 examples.* at most 0\.001"):
            rules.require_delta(100)
    NodeRules.from_node_config({"max-clip": 1.0}).require_delta(10**9)
