"""A custom program is named wherever its cost is: the node's ledger, the account, the report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from privet.agents.base import _agent_half
from privet.client_apps import client_app
from privet.client_apps.rivals.dp_fedsgd import Agent
from privet.data import problem_from_context
from privet.kernel import Facts, Perturber, Release, clipped_term
from privet.kernel.programs import custom as module
from privet.kernel.programs.custom import register_program
from privet.server_apps import Finished, execute, read_config
from privet.sim.engine import InlineGrid
from support.cli import privet

NAME = "custom program half-a-gradient: our handbook [3], Lemma 2 <draft>"
RUN: dict[str, Any] = {
    "algorithm": "dp-fedsgd",
    "num-agents": 2,
    "num-server-rounds": 2,
    "clip": 1.0,
    "noise-scale": 0.05,
}


def half_a_gradient(problem: Any, noise: Perturber, streams: Any, *, x: Any, clip: float) -> Any:
    return 0.5 * noise.perturb(clipped_term(problem, x, clip)[0])


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let DP-FedSGD's gradients come from a program of its own."""
    monkeypatch.setattr(module, "_PROGRAMS", {})
    program = register_program(
        "half-a-gradient", proof="our handbook [3], Lemma 2 <draft>", run=half_a_gradient
    )

    def noised_release(self: Agent, facts: Facts, round_: int) -> Release:
        sensitivity = self.gradients.sensitivity(facts)
        return program.release("gaussian", scale=self.noise_scale, sensitivity=sensitivity)

    def local_update(self: Agent, state: Any, broadcast: Any, records: Any, streams: Any) -> Any:
        g = records.custom("half-a-gradient", streams, x=broadcast["x"], clip=self.clip)
        return self.conclude(state, broadcast, {"g": g}, records, streams)

    monkeypatch.setattr(Agent, "noised_release", noised_release)
    monkeypatch.setattr(Agent, "local_update", local_update)
    _agent_half.cache_clear()  # a half keeps its releases
    yield
    _agent_half.cache_clear()


def played(folder: Path) -> Finished:
    """Run on nodes with ledgers."""
    rules = {"num-partitions": 2, "max-epsilon": 1e6, "delta": 1e-5}
    nodes = [
        {**rules, "partition-id": place, "ledger-path": str(folder / f"ledger-{place}")}
        for place in range(2)
    ]
    config = {**RUN, "output-dir": str(folder)}
    grid = InlineGrid(client_app(None, problem_from_context), nodes, config)
    return execute(grid, read_config(config), "run")


@pytest.mark.usefixtures("program")
def test_ledger_account_and_report_name_it(tmp_path: Path) -> None:
    finished = played(tmp_path)
    for path in (tmp_path / "ledger-0", tmp_path / "ledger-1"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["release"]["what"] for line in lines] == [NAME] * 2
        assert f"rests on {NAME}\n" in privet("ledger", str(path)).out
        said = json.loads(privet("ledger", str(path), "--json").out)
        assert said["custom-programs"] == [NAME]
    account = json.loads((finished.folder / "privacy.json").read_text())
    assert account["private"] is True
    for agent in account["agents"].values():
        assert [release["what"] for release in agent["releases"]] == [NAME]
    for entry in account["accounts"]:
        assert [line for line in entry["assumptions"] if line.startswith(NAME)]
    page = (finished.folder / "report.html").read_text()
    (statement,) = re.findall(r'<p data-privacy="account">(.*?)</p>', page, re.DOTALL)
    assert f"It rests on {NAME}; its package vouches for this proof" in unescape(statement)
    assert "<draft>" not in page


@pytest.mark.usefixtures("program")
def test_it_is_named_before_the_run() -> None:
    code, out, err = privet("account", *(f"{key}={value}" for key, value in RUN.items()))
    assert not code, err
    assert f"- {NAME}; its package vouches for this proof" in out


def test_built_in_programs_are_not_named(tmp_path: Path) -> None:
    finished = played(tmp_path)
    assert "custom program" not in (finished.folder / "privacy.json").read_text()
    assert "It rests on" not in (finished.folder / "report.html").read_text()
    said = json.loads(privet("ledger", str(tmp_path / "ledger-0"), "--json").out)
    assert "custom-programs" not in said
