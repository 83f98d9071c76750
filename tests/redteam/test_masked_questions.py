"""What a secure sum of an analysis says is a function of the pooled rows, whatever is asked.

A coordinator that chooses units of its own, one after the other, would find each site's own sums:
where an upload is refused as too large, where a site's sums stay at a bound, or by how each site's
are rounded. The same rows are therefore spread over three sites in two ways, and all that the
coordinator gets is compared.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privet.analyses.description_state import QUANTILES
from privet.analyses.glm import Glm
from privet.analyses.glm_state import EVALUATE, LARGEST
from privet.core import algorithm
from privet.core.key import values_of
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app, run_inline
from privet.strategies.analyses.glm import Server
from privet.wire import ENROL, ring
from privet.wire.contract import (
    CONTRACT_VERSION,
    agent_record,
    encode_settings,
    read_update,
    shared_record,
)
from privet.wire.rosters import with_roster
from support.analysis_sites import TABLES

SCHEMA = "[columns]\nage = [0, 120]\ndied = [0, 1]\ndays = [0, 1000]\n"
ROWS = 180
SITES = ("a", "b", "c")
DRAWN = np.random.default_rng(1)
POOLED = np.column_stack(
    [DRAWN.integers(20, 70, ROWS), DRAWN.integers(0, 2, ROWS), DRAWN.integers(1, 200, ROWS)]
)
ORDER = np.lexsort((POOLED[:, 0], POOLED[:, 1]))
WAYS = {"in turn": np.arange(ROWS), "by outcome and age": ORDER}
"""The places of rows that the sites have a third of each: in the second way one has no deaths."""

Point = dict[str, Any]


class Sites:
    """Three nodes with tables of their own, and a coordinator that asks what it likes."""

    def __init__(self, folder: Path, places: Any, name: str, **settings: Any) -> None:
        folder.mkdir()
        (folder / "schema.toml").write_text(SCHEMA)
        nodes = []
        for at, site in enumerate(SITES):
            with (folder / f"{site}.csv").open("w", newline="") as file:
                lines = csv.writer(file)
                lines.writerow(("age", "died", "days"))
                lines.writerows(POOLED[np.array_split(places, len(SITES))[at]].tolist())
            nodes.append(
                {
                    "agent": site,
                    "partition-id": at,
                    "num-partitions": 3,
                    "dataset": "csv",
                    "data-path": str(folder / f"{site}.csv"),
                    "schema": str(folder / "schema.toml"),
                }
            )
        self.name, self.grid = name, InlineGrid(configured_app(), nodes, {})
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        half = algorithm(name).load_agent().from_settings({**given, "secure-sum": True})
        self.settings = encode_settings(values_of(half))
        question = {"contract": CONTRACT_VERSION, "protocol": name, "version": 1}
        question |= {"experiment": "e", "quiet": False, "secure-sum": True}
        asked = RecordDict({"privet": ConfigRecord({**question, "settings": self.settings})})
        answers: list[Any] = [one.content["privet"] for one in self._sent(asked, ENROL)]
        self.keys = {str(one["agent"]): bytes(one["public-key"]) for one in answers}

    def _sent(self, content: RecordDict, kind: str) -> list[Message]:
        every = [Message(content, node, kind) for node in self.grid.node_configs]
        return list(self.grid.send_and_receive(every))

    def told(self, point: Mapping[str, Any], round_: int) -> Any:
        """All that the coordinator gets of a question: errors, or the sum of what was sent."""
        sent = {name: np.asarray(value, float) for name, value in point.items()}
        shared = shared_record(self.name, 1, "e", round_, self.settings, sent)
        content = {"privet": with_roster(shared, 1, self.keys)}
        replies = self._sent(
            RecordDict({**content, "privet.agent": agent_record(0, None)}), "train"
        )
        if any(one.has_error() for one in replies):
            return sorted(one.error.reason.partition(": ")[2] for one in replies if one.has_error())
        words = [
            ring.from_bytes(read_update(one.content, self.name, 1, round_).payload)
            for one in replies
        ]
        for one in words[1:]:
            ring.add(words[0], one)
        return {name: array.tolist() for name, array in words[0].arrays().items()}


UNITS = [*(2.0**power for power in (0, 1, 5, 20, 39, 40)), 3.0, 0.5, 2.0**41, 2.0**-40, 1e-300]


def curves() -> Iterator[Point]:
    for unit in (*UNITS, *np.linspace(3e-5, 4e-5, 4)):
        yield {"unit": unit, "cells": 1.0}


def first_sums() -> Iterator[Point]:
    for unit in UNITS:
        yield {"unit": unit}


def descriptions() -> Iterator[Point]:
    ends = {name: np.zeros(len(QUANTILES)) for name in ("left", "right")}
    fixed = {"unit": 1.0, "low": np.zeros(1), "high": np.zeros(1), **ends}
    for phase in (1.0, 3.0):
        for unit in (2.0**-40, 2.0**-10, 2.0**-9, 1.0, 2.0**6, 7e-5, 1e300):
            for size in (1.0, 2.0**-60, 0.3):
                one = {"phase": np.array([phase]), "units": np.array([unit])}
                yield {**fixed, **one, "centre": np.zeros(1), "sizes": np.array([size])}


QUESTIONS = {
    "kaplan-meier": (
        {"time_column": "days", "event_column": "died", "horizon": 256.0, "time_unit": 256.0},
        curves,
    ),
    "kaplan-meier, grid": ({"time_column": "days", "event_column": "died"}, first_sums),
    "describe": ({"only": "age"}, descriptions),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_what_is_told_is_the_same_however_the_rows_are_spread(tmp_path: Path, case: str) -> None:
    settings, points = QUESTIONS[case]
    name = case.partition(",")[0]
    told = []
    for way, places in WAYS.items():
        sites = Sites(tmp_path / way, places, name, **settings)
        told.append([sites.told(point, round_) for round_, point in enumerate(points(), 1)])
    assert sum(isinstance(one, dict) for one in told[0]) >= 4, "no sum was answered"
    assert sum(isinstance(one, list) for one in told[0]) >= 4, "other units were answered"
    assert told[0] == told[1]


def test_numbers_that_wrap_add_to_what_the_pooled_number_wraps_to() -> None:
    """Beyond 2^53 as well, and whatever one agent's part of it is."""
    rng = np.random.default_rng(2)
    for power in (0, 10, 22, 23, 24, 40, 70):
        parts = rng.integers(-(2**12), 2**12, (3, 50)).astype(float) * 2.0**power
        words = [ring.encode({"x": part}, 3, "wrap") for part in parts]
        for one in words[1:]:
            ring.add(words[0], one)
        whole = [int(total) for total in parts.sum(axis=0) * 2.0**ring.FRACTION_BITS]
        assert words[0].words.tolist() == [total % 2**64 for total in whole]


def test_numbers_that_are_bounded_can_be_added() -> None:
    extreme = np.array([np.inf, -np.inf, np.nan, 1e300, 2.0**19, 1.0])
    for count in (2, 3, 16, 100, 999):
        found = ring.decode(ring.encode({"x": extreme}, count, "clip"))["x"]
        most = ring.largest(count)
        expected = [most, -most, -most, most, min(most, 2.0**19), 1.0]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert (np.abs(found) * count < 2.0**23).all()


class Totals:
    """Masked sums of twenty sites, of which all are 0 but one at the bound of a site's."""

    positions = tuple(range(20))

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], at: str) -> None:
        self.shapes, self.at = shapes, at

    def total(self, name: str) -> Any:
        return np.full(self.shapes[name], -ring.largest(20) if name == self.at else 0.0)


def test_a_sum_at_the_bound_of_many_sites_is_known_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is below the bound that the analysis itself has, of 16 sites at most."""
    agent = algorithm("glm").load_agent().from_settings({"formula": "died ~ age"})
    half = Server(agent, levels={}, names=("died", "age"))
    state = half.initialise(np.zeros(1), 20)
    state.progress = replace(state.progress, phase=EVALUATE)
    seen: dict[str, Any] = {}

    def step(self: Any, before: Any, totals: Mapping[str, Any]) -> Any:
        seen.update(totals)
        return before

    monkeypatch.setattr(Glm, "step", step)
    sums: Any = Totals(half.summands(state), "loglik")
    turn: Any = None
    half.fold_sums(state, sums, turn)
    assert ring.largest(20) < LARGEST
    assert float(seen["loglik"]) == -LARGEST
    assert not seen["score"].any()


def test_twenty_sites_sums_give_the_table_that_is_read_in_the_clear(tmp_path: Path) -> None:
    keys = {"algorithm": "glm", "formula": "died ~ age + sex", "num-agents": 20}
    keys |= {"data-path": str(TABLES / "glm-binomial-1.csv"), "partition": "iid"}
    keys |= {"output-dir": str(tmp_path)}
    clear, masked = (
        run_inline({**keys, "secure-sum": secure}, f"run-{secure}").result.table
        for secure in (False, True)
    )
    np.testing.assert_allclose(masked["coef"], clear["coef"], rtol=1e-6)
    np.testing.assert_allclose(masked["loglik"], clear["loglik"], rtol=1e-9)
