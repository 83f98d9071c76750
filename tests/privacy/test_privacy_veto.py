"""The veto, rule by rule."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privet.privacy import (
    BudgetRefused,
    LedgerFile,
    Release,
    Spent,
    Veto,
    epsilon_rdp,
    unnoised_release,
)

DELTA = 1e-5
RELEASE = Release(mechanism="gaussian", scale=10.0)
GOOD: dict[str, Any] = {
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


def veto(tmp_path: Path, **more: Any) -> Veto:
    built = Veto.from_node_config(node(tmp_path, **more))
    assert built is not None
    return built


def test_no_keys_no_veto() -> None:
    assert Veto.from_node_config({}) is None
    assert Veto.from_node_config({"partition-id": 0, "num-partitions": 3}) is None


def test_good_replies_pass_until_the_budget_is_reached_exactly(tmp_path: Path) -> None:
    five = epsilon_rdp([RELEASE] * 5, DELTA)
    guard = veto(tmp_path, max_epsilon=five)
    for count in range(1, 6):
        after = guard.authorise(RELEASE, **GOOD)
        assert after == Spent(epsilon_rdp([RELEASE] * count, DELTA), DELTA, count, 0)
    with pytest.raises(BudgetRefused, match="max-epsilon") as caught:
        guard.authorise(RELEASE, **GOOD)
    assert caught.value.reason == str(caught.value)
    assert "\n" not in caught.value.reason
    # Another run, another object, the same file: the budget is for life.
    with pytest.raises(BudgetRefused, match="max-epsilon"):
        veto(tmp_path, max_epsilon=five).authorise(RELEASE, **GOOD)
    assert LedgerFile(tmp_path / "ledger.jsonl").spent(DELTA).messages == 5


def test_one_charge_above_the_budget_is_refused_outright(tmp_path: Path) -> None:
    guard = veto(tmp_path)
    with pytest.raises(BudgetRefused, match="max-epsilon"):
        guard.authorise(replace(RELEASE, scale=0.1), **GOOD)
    # Refusing costs nothing: a gentler request still goes through.
    assert guard.authorise(RELEASE, **GOOD).messages == 1


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
        ({"clip": 1.0000001}, "max-clip"),
    ],
)
def test_rules_refuse_and_charge_nothing(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    guard = veto(tmp_path, max_clip=1.0)
    with pytest.raises(BudgetRefused, match=reason):
        guard.authorise(RELEASE, **{**GOOD, **change})
    assert not (tmp_path / "ledger.jsonl").exists()
    assert guard.authorise(RELEASE, **GOOD).messages == 1


def test_unaccounted_and_unnoised_replies_are_refused(tmp_path: Path) -> None:
    guard = veto(tmp_path)
    with pytest.raises(BudgetRefused, match="not accounted"):
        guard.authorise(None, **GOOD)
    for bare in (unnoised_release("evaluation"), replace(RELEASE, scale=0.0)):
        with pytest.raises(BudgetRefused, match="without noise"):
            guard.authorise(bare, **GOOD)
    with pytest.raises(BudgetRefused, match="ledger cannot take"):
        guard.authorise(replace(RELEASE, sampling="poisson"), **GOOD)


def test_min_noise_is_a_multiplier(tmp_path: Path) -> None:
    guard = veto(tmp_path, min_noise=10.0)
    assert guard.authorise(RELEASE, **GOOD).messages == 1
    assert guard.authorise(replace(RELEASE, scale=0.01, sensitivity=0.001), **GOOD).messages == 2
    with pytest.raises(BudgetRefused, match="min-noise"):
        guard.authorise(replace(RELEASE, scale=9.999), **GOOD)
    with pytest.raises(BudgetRefused, match="min-noise"):
        guard.authorise(replace(RELEASE, sensitivity=1.001), **GOOD)


def test_rules_without_a_budget_keep_no_ledger() -> None:
    guard = Veto.from_node_config({"min-noise": 5, "max-clip": 2})
    assert guard is not None
    assert guard.authorise(RELEASE, **GOOD) == Spent(None, DELTA, 0, 0)
    with pytest.raises(BudgetRefused, match="max-clip"):
        guard.authorise(RELEASE, **{**GOOD, "clip": 2.5})
    with pytest.raises(BudgetRefused, match="noise-seed"):
        guard.authorise(RELEASE, **{**GOOD, "noise_seeded": True})


def test_broken_ledger_refuses_without_telling_the_coordinator_why(tmp_path: Path) -> None:
    guard = veto(tmp_path)
    (tmp_path / "ledger.jsonl").write_text("edited\n{}\n")
    guard.authorise(RELEASE, **GOOD)
    (tmp_path / "ledger.jsonl").write_text("edited\n" + (tmp_path / "ledger.jsonl").read_text())
    with pytest.raises(BudgetRefused, match="ledger cannot take the charge") as caught:
        guard.authorise(RELEASE, **GOOD)
    assert str(tmp_path) not in caught.value.reason
    assert "damaged" in str(caught.value.__cause__)


@pytest.mark.parametrize("key", ["max-epsilon", "delta", "ledger-path"])
def test_budget_keys_come_together(tmp_path: Path, key: str) -> None:
    config = node(tmp_path)
    del config[key]
    with pytest.raises(ValueError, match=f"{key} is missing"):
        Veto.from_node_config(config)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("max-epsilon", [0, -1.0, math.nan, math.inf, "3", True, None]),
        ("delta", [0.0, 1.0, 2, -1e-5, math.nan, "1e-5", False]),
        ("min-noise", [0, -1, math.nan, "1", None]),
        ("max-clip", [0.0, -1, math.inf, "1", True]),
        ("ledger-path", ["ledger.jsonl", "", "~/ledger", 3, None, True]),
    ],
)
def test_bad_values_name_their_key(tmp_path: Path, key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"node-config: {key} = ") as caught:
            Veto.from_node_config({**node(tmp_path), key: value})
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, BudgetRefused)


@pytest.mark.parametrize("key", ["max_epsilon", "Max-Epsilon", "ledger_path", "min_noise "])
def test_misspelt_keys_do_not_silently_disarm(key: str) -> None:
    with pytest.raises(ValueError, match="did you mean"):
        Veto.from_node_config({key: 1.0})
