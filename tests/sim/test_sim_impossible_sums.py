"""A site whose sums are impossible, or that leaves again and again, is named, and no run ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from privet.core.errors import HopelessError
from privet.data.analysed import AnalysedTable
from privet.server_apps import read_config
from privet.server_apps.analysis import FinishedAnalysis, execute_analysis
from privet.sim import grid_of
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from privet.strategies.analyses import KaplanMeier
from privet.wire import FAILED
from support.analysis_runs import config
from support.analysis_sites import PATIENTS, own_tables

LIAR = "south"
SURVIVAL = PATIENTS + "days = [0, 10000]\n"
Damage = Callable[[np.ndarray, int], Any]


class Failing(InlineGrid):
    """One site fails in every so many rounds."""

    every, asked = 0, 0

    def deliver(self, message: Message) -> Message | None:
        place = list(self.node_configs).index(message.metadata.dst_node_id)
        is_liar = self.node_configs[message.metadata.dst_node_id]["agent"] == LIAR
        if is_liar and self.every and message.metadata.message_type.startswith("train"):
            self.asked += 1
            if self.asked % self.every == 0:
                return Message(Error(FAILED, f"a passing fault {place}"), reply_to=message)
        return super().deliver(message)


def nodes_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    if kind in ("describe", "glm"):
        return own_tables(folder)
    return own_tables(folder, schema=SURVIVAL, name="cox-1")


def run(
    folder: Path, nodes: list[dict[str, Any]], kind: str, every: int = 0, **more: Any
) -> FinishedAnalysis:
    keys = {"num_agents": len(nodes), "schema": str(folder / "schema.toml"), "patience": 0.0}
    if kind == "kaplan-meier":
        keys |= {"horizon": 1000.0}
    raw = config(folder, kind, **{**keys, **more})
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = Failing(configured_app(), nodes, settled)
    grid.every = every
    return execute_analysis(grid, settled, f"run-{len(nodes)}-{every}")


def damage(
    monkeypatch: pytest.MonkeyPatch, key: str, made: Damage, since: int = 1, of: str = LIAR
) -> None:
    """Let one site's sums of a name be others from a round on."""
    honest, calls = AnalysedTable.statistics, [0]

    def statistics(self: AnalysedTable, point: Any) -> dict[str, Any]:
        found = honest(self, point)
        if of in str(self.table.frame.source):
            calls[0] += 1
            if key in found and calls[0] >= since:
                shape = np.shape(found[key])
                found[key] = np.asarray(made(found[key], calls[0]), float).reshape(shape)
        return found

    monkeypatch.setattr(AnalysedTable, "statistics", statistics)


CASES: dict[str, tuple[str, str, Damage, int]] = {
    "glm-rows": ("glm", "rows", lambda v, i: v * 301 / 300, 2),
    "glm-rows-moving": ("glm", "rows", lambda v, i: v * (1 + i / 300), 2),
    "glm-left-out": ("glm", "left_out", lambda v, i: -v - 1e-3, 1),
    "glm-meat": ("glm", "meat", lambda v, i: -v, 1),
    "glm-information": ("glm", "information", lambda v, i: -5 * v, 1),
    "glm-score": ("glm", "score", lambda v, i: v + (-1) ** i * 0.01, 1),
    "glm-loglik": ("glm", "loglik", lambda v, i: v - i, 2),
    "cox-score": ("cox", "score", lambda v, i: v + (-1) ** i * 0.01, 1),
    "cox-rows": ("cox", "rows", lambda v, i: v * 301 / 300, 2),
    "curves-rows": ("kaplan-meier", "rows", lambda v, i: v * 0, 1),
    "curves-negative": ("kaplan-meier", "events", lambda v, i: -v, 1),
    "curves-parts": ("kaplan-meier", "events", lambda v, i: v * 0.37, 1),
    "describe-coarse": ("describe", "coarse", lambda v, i: -v, 1),
    "describe-none": ("describe", "coarse", lambda v, i: v * 0, 1),
    "describe-squares": ("describe", "squares", lambda v, i: v * 0 - 1, 1),
    "describe-counts": ("describe", "counts", lambda v, i: -v, 1),
    "describe-cells": ("describe", "cells", lambda v, i: -v, 1),
    "describe-huge": ("describe", "sums", lambda v, i: v * 0 + 1e308, 1),
    "describe-least": ("describe", "least", lambda v, i: v * 0 + 1e-2, 1),
}


def require_without(found: FinishedAnalysis, folder: Path, kind: str) -> None:
    """Check that the table is that of the other sites alone, and says who is missing."""
    table = found.result.table
    assert (found.summary["status"], found.summary["exit-code"]) == ("incomplete", 3)
    assert (table["complete"], table["sites_away"]) == (False, [LIAR])
    others = [node for node in nodes_of(folder, kind) if node["agent"] != LIAR]
    for place, node in enumerate(others):
        node |= {"partition-id": place, "num-partitions": len(others)}
    expected = run(folder, others, kind).result.table
    moving = {"rounds", "complete", "sites_away", "begun_distance", "turned_away"}
    assert {n: v for n, v in table.items() if n not in moving} == {
        n: v for n, v in expected.items() if n not in moving
    }


@pytest.mark.parametrize("case", CASES)
def test_a_site_with_impossible_sums_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    kind, key, made, since = CASES[case]
    with monkeypatch.context() as patched:
        damage(patched, key, made, since)
        found = run(tmp_path, nodes_of(tmp_path, kind), kind)
    why = found.missing["away, and not in the table"]
    assert LIAR in why
    assert "its sums are impossible" in why
    notes = [note for one in found.result.history for note in one.notes]
    assert len([note for note in notes if f"{LIAR} is asked no more" in note]) <= 1
    require_without(found, tmp_path, kind)


@pytest.mark.parametrize("every", [2, 3, 4])
@pytest.mark.parametrize("kind", ["glm", "cox", "describe"])
def test_a_site_that_leaves_again_and_again_stays_out(
    tmp_path: Path, kind: str, every: int
) -> None:
    found = run(tmp_path, nodes_of(tmp_path, kind), kind, every)
    assert "left 3 times" in found.missing["away, and not in the table"]
    require_without(found, tmp_path, kind)


@pytest.mark.parametrize(
    ("kind", "key", "made", "since"),
    [
        ("describe", "coarse", lambda v, i: v * 0, 1),
        ("glm", "rows", lambda v, i: v * 1.5, 2),
        ("glm", "information", lambda v, i: -50 * v, 1),
        ("cox", "rows", lambda v, i: v * 1.5, 2),
    ],
)
def test_impossible_totals_of_masked_sums_end_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    key: str,
    made: Damage,
    since: int,
) -> None:
    damage(monkeypatch, key, made, since)
    with pytest.raises(HopelessError, match="the sums of some site are impossible") as error:
        run(tmp_path, nodes_of(tmp_path, kind), kind, secure_sum=True)
    assert "\n" not in str(error.value)


def test_sites_that_all_take_a_larger_time_unit_say_so() -> None:
    """One alone is named and left out; of all it is the run's key, and no retry helps."""
    rng = np.random.default_rng(0)
    days = [rng.integers(1, 700, 50) * 2.0**40 for _ in range(3)]
    tables = [{"days": one, "died": rng.integers(0, 2, 50)} for one in days]
    made = KaplanMeier(time_column="days", event_column="died")
    with pytest.raises(HopelessError, match="it takes a larger time-unit"):
        made.start(grid_of(made.algorithm, tables, engine="inline"))


def test_sums_that_cannot_be_solved_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing at all is possible of a site, and no matrix of the sums has an inverse then."""
    damage(monkeypatch, "information", lambda v, i: v * 0, 1, of="")
    with pytest.raises(HopelessError, match="glm: ") as error:
        run(tmp_path, nodes_of(tmp_path, "glm"), "glm")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["glm", "cox", "describe", "kaplan-meier"])
def test_a_round_that_is_asked_twice_changes_nothing_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    nodes = nodes_of(tmp_path, kind)
    once = run(tmp_path, nodes, kind)
    monkeypatch.setattr("privet.strategies.analyses.base.ASKED_TWICE", range(2, 99, 2))
    twice = run(tmp_path / "again", nodes, kind, schema=str(tmp_path / "schema.toml"))
    assert (twice.summary["exit-code"], twice.result.complete) == (0, True)
    assert twice.summary["rounds"] > once.summary["rounds"]
    assert twice.result.table == once.result.table
