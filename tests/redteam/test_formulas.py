"""A formula is read and never run, at the node as at the coordinator."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from privet.core import ConfigError, RunError
from privet.server_apps import read_config
from privet.server_apps.analysis import execute_analysis
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app, run_inline
from privet.wire import ENROL
from support.analysis_sites import TABLES, own_tables

HOSTILE = [
    "died ~ __import__('os').system('touch RAN')",
    "died ~ I(__import__('os').system('touch RAN'))",
    "died ~ C(age, ref=__import__('os').system('touch RAN'))",
    "died ~ C(age, Treatment(open('RAN', 'w')))",
    "died ~ log(open('RAN', 'w'))",
    "died ~ exec('import os; os.system(\"touch RAN\")')",
    'died ~ eval(\'open("RAN", "w")\')',
    "died ~ (lambda: open('RAN', 'w'))()",
    "died ~ [open('RAN', 'w') for _ in (1,)]",
    "died ~ age if open('RAN', 'w') else bmi",
    "died ~ (x := open('RAN', 'w'))",
    'died ~ f\'{open("RAN", "w")}\'',
    "died ~ age.__class__.__mro__[1].__subclasses__()",
    "died ~ Q(open('RAN', 'w'))",
    "died ~ Q('age').__init__.__globals__['__builtins__']",
    "died ~ rcs(age, open('RAN', 'w'), 50, 70)",
    "died ~ I(age ** open('RAN', 'w'))",
    "died ~ np.fromfile('RAN')",
    "died ~ age; import os; os.system('touch RAN')",
    "open('RAN', 'w') ~ age",
    "died ~ {open('RAN', 'w'): 1}",
    "died ~ @age\nimport os\nos.system('touch RAN')",
]
READ = "died ~ age + sex"
CASES = pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))


class Hostile(InlineGrid):
    """A coordinator whose messages carry a formula that it has not read itself."""

    def __init__(
        self, text: str, late: bool, nodes: list[dict[str, Any]], config: Mapping[str, Any]
    ) -> None:
        super().__init__(configured_app(), nodes, config)
        self.text, self.late = text, late
        self.said: list[str] = []

    def deliver(self, message: Message) -> Message | None:
        asks = message.metadata.message_type == ENROL
        for record in message.content.values():
            if isinstance(record, ConfigRecord) and "settings" in record and asks != self.late:
                settings = json.loads(str(record["settings"]))
                record["settings"] = json.dumps({**settings, "formula": self.text})
        reply = super().deliver(message)
        if reply is not None and reply.has_error():
            self.said.append(reply.error.reason)
        return reply


def played(folder: Path, text: str, sent: str, late: bool = False) -> tuple[Hostile, str]:
    """Return the grid of a run of three rounds, which are too few, and how it ended."""
    nodes = own_tables(folder)
    keys = {"num-agents": len(nodes), "schema": str(folder / "schema.toml")}
    keys |= {"output-dir": str(folder / "runs"), "num-server-rounds": 3}
    config = read_config({"algorithm": "glm", "formula": text, **keys})
    grid = Hostile(sent, late, nodes, config)
    with pytest.raises(RunError) as caught:
        execute_analysis(grid, config, "run")
    return grid, str(caught.value)


def require_nothing_ran(folder: Path) -> None:
    assert not (folder / "RAN").exists()
    assert not Path("RAN").exists()


@pytest.mark.parametrize("late", [False, True], ids=["enrolment", "task"])
@CASES
def test_a_node_refuses_to_run_a_formula(
    text: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "system", lambda line: pytest.fail(f"the node ran {line}"))
    grid, _ = played(tmp_path, READ, text, late)
    assert len(grid.said) >= 4
    assert all(re.match(r"agent \w+: formula: ", line) for line in grid.said), grid.said
    require_nothing_ran(tmp_path)


@CASES
def test_the_coordinator_refuses_it_before_any_message(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {"algorithm": "glm", "formula": text, "data-path": str(TABLES / "glm-binomial-1.csv")}
    with pytest.raises(ConfigError, match=r"^formula: "):
        run_inline({**keys, "id-column": "site", "output-dir": str(tmp_path / "runs")}, "run")
    require_nothing_ran(tmp_path)


@pytest.mark.parametrize("late", [False, True])
def test_a_formula_in_the_grammar_passes_by_the_same_messages(tmp_path: Path, late: bool) -> None:
    grid, end = played(tmp_path, READ, "died ~ sex + age", late)
    assert grid.said == []
    assert "set num-server-rounds to more" in end
