"""The whole example of CONTRIBUTING.md is an algorithm that keeps every promise."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from privet.core import Algorithm, algorithm, registered
from privet.sim import grid_of
from privet.sim.inline import run_inline
from privet.testing import checks
from support.paths import ROOT

NAME = "my-average"


@pytest.fixture(scope="module", autouse=True)
def example() -> Iterator[None]:
    """Run the blocks of the example, in order, and register what they make."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("### A whole one") : text.index("### The contract")]
    module = ModuleType("my_average")
    sys.modules[module.__name__] = module
    for block in re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M):
        exec(compile(block, "CONTRIBUTING.md", "exec"), module.__dict__)
    assert module.ALGORITHM.name == NAME
    with registered(Algorithm(NAME, module.MyAverage, module.Agent)):
        yield
    del sys.modules[module.__name__]


def test_it_keeps_every_promise() -> None:
    for check in checks(NAME):
        check()


def test_a_round_in_which_nobody_is_drawn_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    config = {"algorithm": NAME, "num-agents": 4, "baseline-seconds": 0.0}
    seldom = {"participation": "probability", "probability": 0.05, "num-server-rounds": 12}
    done = run_inline({**config, **seldom, "output-dir": str(tmp_path)}, "run").result.history
    counts = [len(one.participants) for one in done]
    assert counts[0] == 0 < max(counts)
    assert all(math.isfinite(one.loss) for one in done)
    empty = [number for number, count in enumerate(counts) if not count and number]
    assert all(done[number].loss == done[number - 1].loss for number in empty)


def test_an_algorithm_is_registered_in_its_block_alone() -> None:
    assert algorithm(NAME).load_agent().name == NAME
    with registered(Algorithm("other", "a:B", "a:C")):
        assert algorithm("other").strategy == "a:B"
    with pytest.raises(Exception, match="unknown algorithm 'other'"):
        algorithm("other")


def test_the_example_of_an_analysis_is_the_mean_of_all_sites() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("## Add an analysis") : text.index("## Add a loss")]
    module = ModuleType("my_mean")
    sys.modules[module.__name__] = module
    homes = ("privet.analyses", "privet.client_apps.analyses", "privet.strategies.analyses")
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M)
    for home, block in zip(homes, blocks, strict=True):
        module.__dict__["__package__"] = home  # each file stands in a folder of its own
        exec(compile(block, "CONTRIBUTING.md", "exec"), module.__dict__)
    tables = [{"age": [1.0, 2.0, 3.0, math.nan]}, {"age": [5.0]}, {"age": [7.0]}]
    with registered(Algorithm("my-mean", module.MyMean, module.Agent)):
        for secure in (False, True):
            strategy = module.MyMean(mean_column="age", secure_sum=secure, table={"age": []})
            table = strategy.start(grid_of("my-mean", tables)).table
            assert (table["n"], table["mean"], table["sites"]) == (5, 3.6, 3)
    del sys.modules[module.__name__]
