"""A node's rules for analyses: how many runs it answers, and what it says of the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privet.kernel import BudgetRefused, Told
from privet.kernel.analysis_rules import AnalysisRules


def test_the_analysis_after_the_last_is_refused_by_the_rule_that_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "analyses.jsonl"
    rules = AnalysisRules.from_node_config({"max-analyses": 2, "analyses-path": str(path)})
    for run in ("a", "b", "a"):  # every round of a run asks
        rules.note(run, "glm", "{}")
    with pytest.raises(BudgetRefused) as refused:
        rules.note("c", "glm", "{}")
    assert Told.MOST_ANALYSES in refused.value.args
    assert [json.loads(line)["run"] for line in path.read_text().splitlines()] == ["a", "b"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "analyses.jsonl"
    path.write_text("no JSON\n")
    rules = AnalysisRules.from_node_config({"max-analyses": 2, "analyses-path": str(path)})
    with pytest.raises(BudgetRefused) as refused:
        rules.note("a", "glm", "{}")
    assert Told.ANALYSES_FILE in refused.value.args
