"""No two secure sums differ by one agent, whatever was killed, enrolled again or did not sign.

An agent's upload, or an analysis' sums of one site, would be their difference.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from privet.agents.masking import MaskState, new_keys, require_fresh
from privet.client_apps import Half
from privet.core import PrivetError, algorithm
from privet.core.key import values_of
from privet.kernel import Binding, BudgetRefused, MaskError, Told, key_pair
from privet.kernel.analysis_rules import AnalysisRules, is_chain
from privet.server_apps import read_config
from privet.server_apps.analysis import execute_analysis
from privet.server_apps.execute import execute
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from privet.sim.logs import quiet
from privet.sim.trusting import trusting_nodes
from privet.wire import ENROL, ring
from privet.wire.contract import (
    CONTRACT_VERSION,
    agent_record,
    encode_settings,
    read_update,
    shared_record,
)
from privet.wire.rosters import with_roster

SITES = list("abcdef")
KILLED = 9


def nodes_of(folder: Path, pinned: bool = False) -> list[dict[str, Any]]:
    """Return six sites with tables of their own, made where they are not there."""
    schema, nodes = folder / "schema.toml", []
    schema.write_text("[columns]\nage = [0, 120]\ndied = [0, 1]\n")
    rng = np.random.default_rng(0)
    peers = trusting_nodes(folder, SITES, 0) if pinned else [{}] * len(SITES)
    for place, (name, own) in enumerate(zip(SITES, peers, strict=True)):
        path = folder / f"{name}.csv"
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("age", "died"))
            ages = rng.integers(20, 80, 60)
            rows.writerows((age, int(rng.random() < age / 100)) for age in ages)
        node: dict[str, Any] = {
            "agent": name, "partition-id": place, "num-partitions": len(SITES), "dataset": "csv",
            "data-path": str(path), "schema": str(schema), "label-column": "died",
            "partition": "none", "state-path": str(folder / f"{name}.state"),
        }  # fmt: skip
        if pinned:
            node |= {"least-trusted": 2, "trust-key": own["trust-key"]}
            node |= {"trust-peers": own["trust-peers"]}
        nodes.append(node)
    return nodes


class Asked(InlineGrid):
    """Writes down the roster of each upload that left, and dies after some of them."""

    def __init__(self, file: Path, dies_after: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.file, self.left = file, dies_after

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if not message.metadata.message_type.startswith("train"):
            return reply
        if reply is not None and reply.has_content():
            asked: Any = message.content["privet"]
            line = [asked["round"], json.loads(asked["names"])]
            with self.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
        self.left -= 1
        if not self.left:
            os._exit(KILLED)
        return reply


def config(what: str, folder: Path) -> dict[str, Any]:
    """Return the config of a run by its kind."""
    common: dict[str, Any] = {
        "num-agents": len(SITES), "secure-sum": True, "output-dir": str(folder / "runs"),
        "patience": 0.0, "wait-timeout": 1.0, "round-timeout": 6.0,
    }  # fmt: skip
    if what == "glm":
        own = {"formula": "died ~ age", "schema": str(folder / "schema.toml")}
        return {"algorithm": "glm", **own, **common}
    name, _, rare = what.partition(" ")
    training = {"algorithm": name, "num-server-rounds": 4, "min-agents": 1}
    often = {"checkpoint-every": 10} if rare else {}
    return {**training, "dataset": "breast-cancer", **often, **common}


def play(part: str, folder: Path, what: str, dies_after: int) -> None:
    """Play the run, or go on with it while a site is away."""
    quiet()
    nodes, raw = nodes_of(folder), config(what, folder)
    if what != "glm":  # of one table that is dealt to them
        kept = ("agent", "partition-id", "num-partitions", "state-path")
        nodes = [{key: node[key] for key in kept} for node in nodes]
    if part == "second":
        raw["resume"], nodes = "auto", nodes[:-1]
    settled = read_config(raw)
    grid = Asked(folder / "asked", dies_after, configured_app(), nodes, settled)
    try:
        (execute_analysis if what == "glm" else execute)(grid, settled, f"run-{part}")
    except PrivetError as error:
        print(error)


@pytest.mark.parametrize(
    ("what", "dies_after"),
    [("glm", 6), ("glm", 13), ("fed-plt", 12), ("dp-fedsgd", 6), ("dp-fedsgd rare", 12)],
)
def test_a_resume_sums_over_those_of_the_last_sum_or_two_fewer(
    what: str, dies_after: int, tmp_path: Path
) -> None:
    """Killed between a sum and its checkpoint, the last or a rare one, and a site is away then."""
    for part, code in (("first", KILLED), ("second", 0)):
        command = [sys.executable, __file__, part, str(tmp_path), what]
        count = dies_after if part == "first" else 10_000
        done = subprocess.run([*command, str(count)], check=False, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    rosters = {(round_, tuple(names)) for round_, names in lines}
    assert len({names for _, names in rosters}) > 1  # it went on without the site
    for round_, names in rosters:
        for other, others in rosters:
            if what == "glm" or round_ == other:
                assert len(set(names) ^ set(others)) != 1


@pytest.mark.parametrize(("how", "patience"), [("error", 8.0), ("silent", 0.0)])
def test_a_site_that_signs_no_roster_leaves_with_another_one(
    how: str, patience: float, tmp_path: Path
) -> None:
    """Of pinned keys: from round 2 on, or once; the others have their table."""
    nodes, refused = nodes_of(tmp_path, pinned=True), []

    class Unsigned(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            record: Any = message.content["privet"]
            node = list(self.node_configs).index(message.metadata.dst_node_id)
            if SITES[node] == "f" and record.get("kind") == "roster" and record["round"] >= 2:
                failed = Message(Error(101, "agent f: its task failed"), reply_to=message)
                return None if how == "silent" else failed
            reply = super().deliver(message)
            if reply is not None and reply.has_error():
                refused.append(reply.error.reason)
            return reply

    settled = read_config({**config("glm", tmp_path), "patience": patience})
    found = execute_analysis(Unsigned(configured_app(), nodes, settled), settled, "run").result
    assert found.table["sites"] == 4
    assert not refused


def binding(round_: int, attempt: int, names: str, key: bytes) -> Binding:
    return Binding("e", round_, attempt, tuple((name, key) for name in names), b"")


@pytest.mark.parametrize("detours", [0, 1, 20])
@pytest.mark.parametrize("repeats", [True, False])
def test_new_keys_do_not_make_a_node_forget_the_last_sum(repeats: bool, detours: int) -> None:
    """Also after questions of other runs, in between, which ask for no sum."""
    context = Context(1, 1, {}, RecordDict(), {})
    new_keys(context, "e")
    record: Any = context.state["privet.masks"]
    state = MaskState.from_record(record)
    used = MaskState("e", state.keys, 3, 1, tuple("abcd"), tuple("abcd") if repeats else ())
    context.state["privet.masks"] = used.to_record()
    for detour in range(detours):
        new_keys(context, f"f{detour}")
    key = new_keys(context, "e")
    record = context.state["privet.masks"]
    state = MaskState.from_record(record)
    assert state.keys.public == key != used.keys.public
    for names, round_ in (("abc", 3), ("abcd" if repeats else "abc", 4)):
        if round_ == 3:
            with pytest.raises(MaskError, match="as the difference of two sums"):
                require_fresh(state, binding(round_, 2, names, key), repeats=repeats)
        else:
            require_fresh(state, binding(round_, 1, names, key), repeats=repeats)
    if repeats:
        with pytest.raises(MaskError, match="as the difference of two sums"):
            require_fresh(state, binding(4, 1, "abc", key), repeats=True)


def _asked(
    grid: InlineGrid, half: Half, arrays: dict[str, Any], round_: int, names: str
) -> tuple[set[str], dict[str, Any]]:
    """Enrol some nodes and ask for a sum over them; return what is told, and the sum if any."""
    nodes = dict(zip(SITES, grid.node_configs, strict=False))
    settings = encode_settings({**values_of(half), "secure-sum": True, "seed": 0})
    question = {"contract": CONTRACT_VERSION, "protocol": half.name, "version": half.version}
    question |= {"experiment": "e", "quiet": False, "secure-sum": True, "settings": settings}

    def send(content: RecordDict, kind: str) -> list[Message]:
        return list(grid.send_and_receive([Message(content, nodes[name], kind) for name in names]))

    answers = send(RecordDict({"privet": ConfigRecord(question)}), ENROL)
    said: list[Any] = [one.content["privet"] for one in answers]
    keys = {str(one["agent"]): bytes(one["public-key"]) for one in said}
    shared = shared_record(half.name, half.version, "e", round_, settings, arrays)
    content = {"privet": with_roster(shared, 1, keys), "privet.agent": agent_record(0)}
    replies = send(RecordDict({**content}), "train")
    if told := {one.error.reason.partition(": ")[2] for one in replies if one.has_error()}:
        return told, {}
    words = [
        ring.from_bytes(read_update(one.content, half.name, half.version, round_).payload)
        for one in replies
    ]
    for one in words[1:]:
        ring.add(words[0], one)
    return set(), ring.decode(words[0])


def test_a_training_in_between_does_not_make_a_node_forget_an_analysis(tmp_path: Path) -> None:
    """Of one run: an analysis over all, a training, and the analysis over all but one."""
    schema = tmp_path / "schema.toml"
    schema.write_text('[columns]\nage = [0, 120]\ndied = ["no", "yes"]\ndays = [0, 400]\n')
    nodes = []
    for place, name in enumerate(SITES[:5]):
        file = tmp_path / f"{name}.csv"
        lines = [f"{40 + row},{9 * row + place},{('no', 'yes')[row % 2]}" for row in range(20)]
        file.write_text("\n".join(["age,days,died", *lines]) + "\n")
        nodes.append({"agent": name, "partition-id": place, "num-partitions": 5})
        nodes[-1] |= {"dataset": "csv", "data-path": str(file), "schema": str(schema)}
        nodes[-1] |= {"label-column": "died", "partition": "none"}
    grid = InlineGrid(configured_app(), nodes, {})
    times = {"time-column": "days", "event-column": "died", "horizon": 256.0, "time-unit": 256.0}
    curves = algorithm("kaplan-meier").load_agent().from_settings(times)
    training = algorithm("dp-fedsgd").load_agent().from_settings({"step-size-base": 0.1})
    point = {"unit": np.ones(()), "cells": np.ones(())}
    model = {"x": np.zeros(3)}
    told, pooled = _asked(grid, curves, point, 1, "abcde")
    assert (told, pooled["members"]) == (set(), 5.0)
    assert _asked(grid, training, model, 2, "abcd")[1]["members"] == 4.0
    assert _asked(grid, curves, point, 3, "abcd") == ({Told.DIFFERENCE}, {})
    assert _asked(grid, training, model, 4, "abcde")[1]["members"] == 5.0
    assert _asked(grid, curves, point, 5, "abcd") == ({Told.DIFFERENCE}, {})
    assert _asked(grid, curves, point, 6, "abc")[1]["members"] == 3.0  # two sites fewer
    assert _asked(grid, curves, point, 7, "abcde")[0] == {Told.DIFFERENCE}


def test_a_run_of_flower_asks_for_sums_of_few_experiments() -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    for number in range(9):
        new_keys(context, f"e{number}")
        record: Any = context.state["privet.masks"]
        made = MaskState.from_record(record)
        summed = MaskState(made.experiment, made.keys, 1, 1, tuple("abc"))
        context.state["privet.masks"] = summed.to_record()
    with pytest.raises(MaskError, match="of more than 8 experiments"):
        new_keys(context, "e9")


def test_sums_do_not_branch() -> None:
    """Of any sums that follow each other at their own agents, no sum and difference is one's own.

    Brute force: all pairs of further rosters of seven agents that a node in both would let pass.
    """
    every = "abcdefg"
    allowed = [
        frozenset(names)
        for count in range(1, 7)
        for names in combinations(every, count)
        if is_chain(every, names)
    ]
    assert {len(one) for one in allowed} == {4, 5}
    for one, other in combinations(allowed, 2):
        both = one & other
        assert both  # whoever is in both lets the second pass as part of the first alone
        if is_chain(one, other) or is_chain(other, one):
            assert len(one ^ other) != 1
    assert not is_chain(every, "abc")


def test_made_up_agents_do_not_hide_that_one_of_the_others_left() -> None:
    """Brute force: whoever was made up, sums over the others neither lack one nor branch."""
    pinned, every = set("abcde"), "abcdexyz"
    allowed = [
        frozenset(names) & pinned
        for count in range(1, len(every))
        for names in combinations(every, count)
        if is_chain(every, names, pinned)
    ]
    assert {len(one) for one in allowed} == {3, 5}
    for one, other in combinations(allowed, 2):
        assert one & other
    for names in ("abcdyz", "abcd", "abxyz", "abcdew"):
        assert not is_chain(every, names, pinned)
    assert is_chain("abcdxy", "abcd", "abcd")  # two that were made up are gone
    assert not is_chain("abcdx", "abcd", "abcd")  # who is not known may be honest all the same


def test_a_node_compares_the_pinned_agents_of_its_sums(tmp_path: Path) -> None:
    """The coordinator's own agent x was there with d, and both are gone: the rest is d's part."""
    state = MaskState("e", key_pair(), 1, 1, tuple("abcdx"), tuple("abcdx"))
    now = binding(2, 1, "abc", state.keys.public)
    require_fresh(state, now, repeats=True)  # nothing is pinned: it may be anybody
    with pytest.raises(MaskError, match="as the difference of two sums"):
        require_fresh(state, now, repeats=True, known=frozenset("abcd"))
    rules = AnalysisRules.from_node_config({"analyses-path": str(tmp_path / "log")})
    known = frozenset("abcd")
    rules.note("e", "glm", "{}", summed=list("abcdx"), known_agents=known)
    with pytest.raises(BudgetRefused, match=Told.DIFFERENCE):
        rules.note("e", "glm", "{}", summed=list("abc"), known_agents=known)


def test_a_lost_site_leaves_with_one_that_signs_too(tmp_path: Path) -> None:
    """Site a has pinned no keys and signs nothing: to the others it may be made up."""
    nodes, said = nodes_of(tmp_path, pinned=True), []
    for key in ("least-trusted", "trust-key", "trust-peers"):
        del nodes[0][key]
    (peers,) = {Path(node["trust-peers"]) for node in nodes[1:]}
    lines = peers.read_text().splitlines(keepends=True)
    peers.write_text("".join(line for line in lines if not line.startswith('"a"')))

    class Losing(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            record: Any = message.content["privet"]
            node = list(self.node_configs).index(message.metadata.dst_node_id)
            asked = message.metadata.message_type.startswith("train") and record["round"] >= 2
            if SITES[node] == "f" and asked:
                return Message(Error(101, "agent f: its task failed"), reply_to=message)
            reply = super().deliver(message)
            if reply is not None and reply.has_error():
                said.append(reply.error.reason)
            return reply

    for seed in (8, 13):  # whose draw from all would leave a out
        folder = {"output-dir": str(tmp_path / f"runs{seed}"), "seed": seed}
        settled = read_config({**config("glm", tmp_path), **folder})
        found = execute_analysis(Losing(configured_app(), nodes, settled), settled, "run").result
        assert found.table["sites"] == 4
        assert "a" in found.table["site_names"]
    assert not said


def test_another_run_of_the_same_analysis_is_no_way_round_the_rule(tmp_path: Path) -> None:
    """Of the same name and settings, which counts as no further analysis."""
    path = {"analyses-path": str(tmp_path / "log"), "max-analyses": 1, "data-path": "/own.csv"}
    rules = AnalysisRules.from_node_config(path)
    rules.note("e", "glm", "{}", summed=list("abcde"))
    rules.note("e", "glm", "{}", summed=list("abcde"))
    for names in ("abcd", "abcdef", "abcx"):
        with pytest.raises(BudgetRefused, match=Told.DIFFERENCE):
            AnalysisRules.from_node_config(path).note("e", "glm", "{}", summed=list(names))
    AnalysisRules.from_node_config(path).note("e", "glm", "{}", summed=list("abc"))
    with pytest.raises(BudgetRefused, match=Told.DIFFERENCE):
        rules.note("e", "glm", "{}", summed=list("abcde"))
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line.get("sum") for line in lines] == [list("abcde"), None, None]
    assert [line.get("left") for line in lines] == [None, None, list("de")]


if __name__ == "__main__":
    play(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
