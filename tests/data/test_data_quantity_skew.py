"""Sizes that fall as a power of the agent's number."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.core import ConfigError
from privet.data import DataError, federation_from_config, partition, problem_from_config
from privet.server_apps.config import read_config
from privet.sim.inline import run_inline

SKEW: dict[str, Any] = {"partition": "quantity-skew", "quantity-power": 2.0}


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_sizes_are_proportional_to_the_power_of_the_rank(power: float) -> None:
    count, agents = 10_000, 8
    parts = partition(np.zeros(count), agents, "quantity-skew", quantity_power=power)
    shares = np.array([1.0 / rank**power for rank in range(1, agents + 1)])
    # Both ends of a share are rounded to a whole number.
    assert np.abs([len(part) for part in parts] - count * shares / shares.sum()).max() <= 1.0


@given(st.integers(1, 300), st.integers(1, 30), st.floats(0, 100), st.integers(0, 2**40))
def test_everybody_has_an_example_and_every_example_one_agent(
    count: int, agents: int, power: float, seed: int
) -> None:
    if count < agents:
        with pytest.raises(DataError, match=f"cannot give each of {agents} agents one"):
            partition(np.zeros(count), agents, "quantity-skew")
        return
    parts = partition(np.zeros(count), agents, "quantity-skew", seed=seed, quantity_power=power)
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1
    # Sizes fall, but for the rounding.
    assert all(after <= before + 1 for before, after in pairwise(sizes))


def test_labels_have_no_part_in_it() -> None:
    one = partition(np.zeros(50), 4, "quantity-skew", seed=3)
    other = partition(np.arange(50), 4, "quantity-skew", seed=3)
    assert all(map(np.array_equal, one, other))


def test_a_run_deals_by_it(tmp_path: Path) -> None:
    config = {**SKEW, "num-agents": 4, "num-server-rounds": 3, "output-dir": str(tmp_path)}
    problems = federation_from_config(config, 4).problems
    shares = np.array([1, 1 / 4, 1 / 9, 1 / 16])
    counts = np.array([problem.num_examples for problem in problems])
    assert np.abs(counts - counts.sum() * shares / shares.sum()).max() <= 1.0
    assert len(run_inline(config, "skew").result.history) == 3


@pytest.mark.parametrize("scheme", ["label", "iid", "none"])
def test_its_key_is_refused_with_other_partitions(scheme: str) -> None:
    with pytest.raises(
        ConfigError,
        match=f"quantity-power = 2.0: not used with partition = {scheme}, only with quantity-skew",
    ):
        read_config({"partition": scheme, "quantity-power": 2.0})
    with pytest.raises(ConfigError, match=r"quantity-power = -1\.0: must be >= 0"):
        read_config({"partition": "quantity-skew", "quantity-power": -1})


def test_a_nodes_own_records_may_be_dealt_by_it(tmp_path: Path) -> None:
    """A record that changes moves no other; a split by labels is marked."""
    file = tmp_path / "clicks.svm"
    file.write_text("".join(f"{i % 2} 1:{i} 3:1\n" for i in range(40)))
    own = {"dataset": "click", "data-path": str(file), "columns": 3, "loss": "ridge"}
    assert problem_from_config({**own, **SKEW}, 1, 3, own=True).data_dependent == ""
    marked = problem_from_config({**own, "partition": "label"}, 1, 3, own=True)
    assert "partition = label deals a node's own records" in marked.data_dependent
