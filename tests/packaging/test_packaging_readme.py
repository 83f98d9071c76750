"""The README's Python blocks run as they stand, and its shell commands exist."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from privet.problems import minimize
from privet.sim.engine import InlineGrid
from privet.wire.keys import defaults
from support.paths import ROOT

TEXT = (ROOT / "README.md").read_text()


def test_python_blocks_train_a_model(capsys: Any) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    grid = InlineGrid(names["app"], 4)
    context = next(iter(grid.contexts.values()))
    names["server"](grid, context)
    printed = capsys.readouterr().out
    found = np.array([float(text) for text in re.findall(r"-?\d+\.\d+", printed)])
    problems = [names["problem"](context) for context in grid.contexts.values()]
    assert np.allclose(found, minimize(problems).x, atol=0.05)


SHELL = re.sub(r"```python\n.*?```", "", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("key", sorted(set(re.findall(r"([a-z][a-z-]+)=[\w.\"]+", SHELL))))
def test_keys_in_the_commands_exist(key: str) -> None:
    of_flower = {"num-supernodes", "client-resources-num-cpus", "partition-id", "num-partitions"}
    of_nodes = {"max-epsilon", "delta", "max-clip", "ledger-path"}
    assert key in {*defaults(), *of_flower, *of_nodes}, key
