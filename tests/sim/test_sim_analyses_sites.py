"""Sites that leave, come later or refuse: no secure sums give one away, and the run ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privet.core import RunError
from privet.core.errors import HopelessError
from privet.kernel import Told
from privet.rounds.collect.masked import LATER
from privet.server_apps import read_config
from privet.server_apps.analysis import FinishedAnalysis, execute_analysis
from privet.sim import grid_of
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from privet.strategies.analyses import Describe
from privet.wire import ENROL
from privet.wire.rosters import with_roster
from support.analysis_runs import config
from support.analysis_sites import PATIENTS, TABLES, own_tables

ROWS = pd.read_csv(TABLES / "glm-binomial-1.csv")


class Changing(InlineGrid):
    """Nodes that leave or come after rounds; ``rosters`` were sent, in order, each once."""

    def __init__(
        self, nodes: list[dict[str, Any]], settled: Any, change: Callable[[int, set[int]], set[int]]
    ) -> None:
        super().__init__(configured_app(), nodes, settled)
        self.change, self.all = change, set(self.online)
        self.rosters: list[frozenset[str]] = []
        self.online = change(0, self.all)

    def deliver(self, message: Message) -> Message | None:
        if message.metadata.message_type != ENROL:
            record: Any = message.content["privet"]
            if "names" in record:
                names = frozenset(json.loads(record["names"]))
                self.rosters += [] if names in self.rosters else [names]
            reply = super().deliver(message)
            self.online = self.change(int(record["round"]), self.all)
            return reply
        return super().deliver(message)


def six_tables(folder: Path) -> list[dict[str, Any]]:
    """Node configs of six sites: halves of the larger two of the worked table."""
    nodes = own_tables(folder)
    for site in ("hill", "south"):
        file = folder / f"{site}.csv"
        rows = pd.read_csv(file)
        rows[::2].to_csv(file, index=False)
        rows[1::2].to_csv(folder / f"{site}-b.csv", index=False)
        first = next(node for node in nodes if node["agent"] == site)
        other = {"agent": f"{site}-b", "data-path": str(folder / f"{site}-b.csv")}
        nodes.append({**first, **other, "partition-id": len(nodes)})
    return nodes


def run(
    folder: Path,
    nodes: list[dict[str, Any]],
    change: Callable[[int, set[int]], set[int]],
    kind: str = "describe",
    name: str = "run",
    **more: Any,
) -> tuple[FinishedAnalysis, Changing]:
    keys = {"num_agents": len(nodes), "schema": str(folder / "schema.toml"), "patience": 0.0}
    raw = config(folder, kind, **{**keys, **more})
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = Changing(nodes, settled, change)
    return execute_analysis(grid, settled, name), grid


def leaves(place: int, round_: int) -> Callable[[int, set[int]], set[int]]:
    """The node of this place is gone once others were asked in the round."""

    def change(now: int, nodes: set[int]) -> set[int]:
        return nodes - {sorted(nodes)[place]} if now >= round_ else set(nodes)

    return change


def require_chain(rosters: list[frozenset[str]]) -> None:
    """No site's sums can be solved for, whichever of the rosters' sums came to be."""
    sites = sorted(frozenset().union(*rosters))
    sums = np.array([[site in one for site in sites] for one in rosters], float)
    for at in range(len(sites)):
        alone = np.eye(len(sites))[at]
        assert np.linalg.matrix_rank(np.vstack([sums, alone])) > np.linalg.matrix_rank(sums)


def rows_of(folder: Path, sites: list[str]) -> pd.DataFrame:
    return pd.concat([pd.read_csv(folder / f"{site}.csv") for site in sites])


@pytest.mark.parametrize("kind", ["describe", "glm"])
@pytest.mark.parametrize("round_", [1, 2])
def test_no_site_is_given_away_by_the_sums_before_and_after_it_left(
    tmp_path: Path, kind: str, round_: int
) -> None:
    """The analysis begins again at its first point, where the others' sums are the same."""
    finished, grid = run(tmp_path, six_tables(tmp_path), leaves(2, round_), kind, secure_sum=True)
    table = finished.result.table
    assert len(grid.rosters) == 2
    require_chain(grid.rosters)
    assert (table["complete"], len(table["site_names"])) == (False, 4)
    assert "south" in table["sites_away"]
    if kind == "describe":
        pooled = rows_of(tmp_path, table["site_names"])
        assert table["rows"] == len(pooled)
        assert table["columns"]["age"]["mean"] == pytest.approx(pooled["age"].mean(), rel=1e-9)


def test_two_that_leave_one_after_the_other_are_not_told_apart(tmp_path: Path) -> None:
    def change(now: int, nodes: set[int]) -> set[int]:
        return nodes - set(sorted(nodes)[2 : 2 + (now >= 1) + (now >= 3)])

    nodes = six_tables(tmp_path) + [
        {**node, "agent": f"{node['agent']}-c", "partition-id": 6 + at}
        for at, node in enumerate(own_tables(tmp_path)[:2])
    ]
    for node in nodes[6:]:
        node["data-path"] = nodes[1]["data-path"]
    _, grid = run(tmp_path, nodes, change, secure_sum=True)
    assert len(grid.rosters) >= 2
    require_chain(grid.rosters)


def test_a_site_that_comes_later_is_named_and_waits_for_another_run(tmp_path: Path) -> None:
    def change(now: int, nodes: set[int]) -> set[int]:
        return set(nodes) if now >= 1 else nodes - {sorted(nodes)[2]}

    nodes = six_tables(tmp_path)
    finished, grid = run(tmp_path, nodes, change, secure_sum=True, num_agents=5, wait_timeout=1.0)
    table = finished.result.table
    assert (table["complete"], len(table["site_names"]), len(grid.rosters)) == (False, 5, 1)
    assert table["sites_away"] == ["south"]
    assert f"south ({LATER})" in finished.headline()["away, and not in the table"]
    assert finished.summary["rounds"] <= 5
    again, _ = run(tmp_path, nodes, lambda now, nodes: set(nodes), secure_sum=True, name="again")
    assert again.result.table["complete"]


def test_a_resumed_run_sums_over_the_sites_of_before(tmp_path: Path) -> None:
    keys = {"secure_sum": True, "checkpoint_every": 1}
    nodes = six_tables(tmp_path)
    with pytest.raises(RunError, match="no result after 2 rounds"):
        run(tmp_path, nodes, leaves(2, 1), num_server_rounds=2, **keys)
    saved = str(tmp_path / "runs" / "run")
    everybody = lambda now, nodes: set(nodes)  # noqa: E731
    finished, grid = run(tmp_path, nodes, everybody, name="rest", resume=saved, **keys)
    assert [len(one) for one in grid.rosters] == [4]
    assert len(finished.result.table["site_names"]) == 4


def test_of_four_sites_three_are_summed_where_one_is_gone_before_the_first_sum(
    tmp_path: Path,
) -> None:
    nodes = own_tables(tmp_path)
    raw = config(tmp_path, "describe", num_agents=4, secure_sum=True, patience=0.0)
    raw |= {"schema": str(tmp_path / "schema.toml")}
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = Changing(nodes, settled, leaves(2, 10**6))
    finished = _gone_before_the_first_round(grid, settled)
    table = finished.result.table
    assert (table["site_names"], table["complete"]) == (["hill", "north", "west"], False)
    assert grid.rosters == [frozenset(("hill", "north", "west"))]
    assert table["rows"] == (ROWS["site"] != "south").sum()


def _gone_before_the_first_round(grid: Changing, settled: Any) -> FinishedAnalysis:
    send = grid.push_messages

    def push(messages: Any) -> Any:
        listed = list(messages)
        pushed = send(listed)
        if all(one.metadata.message_type == ENROL for one in listed):
            grid.online = leaves(2, 0)(0, grid.all)
            grid.change = leaves(2, 0)
        return pushed

    grid.push_messages = push  # type: ignore[method-assign]
    return execute_analysis(grid, settled, "run")


def test_of_four_sites_no_sum_of_three_is_asked_where_one_was_asked_and_is_silent(
    tmp_path: Path,
) -> None:
    """Its upload may be on its way: with it, the two sums would differ by it alone."""
    with pytest.raises(RunError, match=r"site south.*|agent south: .*not connected"):
        run(tmp_path, own_tables(tmp_path), leaves(2, 1), secure_sum=True)


# ------------------------------------------------------------------ agents' own rule


def instruct(grid: Any, strategy: Any, round_: int, attempt: int, roster: str) -> str:
    """What agent 0 says to a message of a coordinator who chooses rosters as it likes."""
    session = strategy.session
    shared = {**strategy.run.opened.broadcast.shared[""], "round": round_}
    keys = {name: session.roster.agents[name].public_key for name in roster}
    record = with_roster(ConfigRecord(shared), attempt, keys)
    own = ConfigRecord({"tag": session.roster.agents["0"].tag})
    content = RecordDict({"privet": record, "privet.agent": own})
    [reply] = grid.send_and_receive([Message(content, session.roster.agents["0"].node, "train")])
    return reply.error.reason if reply.has_error() else "uploads"


def test_an_agent_is_in_no_sums_of_a_run_that_tell_one_of_them_from_the_others() -> None:
    tables = [{"age": np.arange(20.0) + site} for site in range(7)]
    strategy = Describe(secure_sum=True, table=tables[0])
    grid = grid_of("describe", tables)
    assert strategy.start(grid).table["sites"] == 7
    for round_, roster, told in (
        (10, "0123456", "uploads"),
        (11, "012345", Told.DIFFERENCE),
        (12, "01234", "uploads"),
        (13, "0123456", Told.DIFFERENCE),
        (14, "012345", Told.DIFFERENCE),
        (15, "01256", Told.DIFFERENCE),
        (16, "0123", Told.DIFFERENCE),
        (17, "01234", "uploads"),
        (18, "012", "uploads"),
    ):
        assert told in instruct(grid, strategy, round_, 1, roster), (round_, roster)


# ------------------------------------------------------------------ refusals


def test_a_site_that_refuses_is_left_out_at_once_with_its_line(tmp_path: Path) -> None:
    """It would refuse again: the run does not ask until its rounds are over."""
    nodes = own_tables(tmp_path)
    nodes[1]["min-records"] = 10_000
    finished, _ = run(tmp_path, nodes, lambda now, every: set(every), patience=600.0)
    table = finished.result.table
    assert (table["complete"], table["sites_away"]) == (False, ["north"])
    assert table["rows"] == (ROWS["site"] != "north").sum()
    assert finished.summary["rounds"] == 4
    assert f"north (agent north: {Told.FEW_RECORDS})" in str(finished.headline())


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_that_answers_no_analysis_is_turned_away_before_the_first_sum(
    tmp_path: Path, secure: bool
) -> None:
    nodes = own_tables(tmp_path)
    nodes[1]["allow-analyses"] = False
    line = f"1 sites cannot be in the table: agent north: {Told.ANALYSES}"
    raw = config(tmp_path, "describe", num_agents=4, secure_sum=secure)
    raw |= {"schema": str(tmp_path / "schema.toml")}
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    grid = Changing(nodes, settled, lambda now, every: set(every))
    with pytest.raises(RunError, match=line):  # as in a simulation, where it is mended at once
        execute_analysis(grid, settled, "run")
    assert not grid.rosters, "nobody is asked while a site cannot be in the table"


class Killed(InlineGrid):
    """A run that is killed once its first question was delivered."""

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if message.metadata.message_type != ENROL:
            raise KeyboardInterrupt
        return reply


def test_a_noised_sum_that_was_asked_for_is_not_worth_a_resume(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path)
    for node in nodes:
        rows = Path(node["data-path"]).read_text().count("\n") - 1
        ledger = str(tmp_path / f"{node['agent']}.ledger")
        node |= {"max-epsilon": 5.0, "delta": 1e-6, "num-examples": rows, "ledger-path": ledger}
    keys = {"target_epsilon": 1.0, "delta": 1e-6, "num_agents": 4}
    raw = config(tmp_path, "describe", schema=str(tmp_path / "schema.toml"), **keys)
    del raw["data-path"], raw["id-column"], raw["by"]
    settled = read_config(raw)
    with pytest.raises(KeyboardInterrupt):
        execute_analysis(Killed(configured_app(), nodes, settled), settled, "run")
    spent = (tmp_path / "hill.ledger").read_text()
    again = read_config({**raw, "resume": "auto"})
    with pytest.raises(HopelessError, match="what it cost stays spent: begin another run"):
        execute_analysis(InlineGrid(configured_app(), nodes, again), again, "run")
    assert (tmp_path / "hill.ledger").read_text() == spent


LACKS = {
    "a column": PATIENTS.replace("bmi = [5, 100]\n", ""),
    "a category more": PATIENTS.replace('"never"]', '"never", "pipe"]'),
    "another kind": PATIENTS.replace("died = [0, 1]", 'died = ["0", "1"]'),
}


@pytest.mark.parametrize("lack", LACKS)
def test_sites_whose_schema_is_not_the_noised_sums_are_refused_before_a_charge(
    tmp_path: Path, lack: str
) -> None:
    """Of simulated sites no other is charged either: all are looked at before the first."""
    nodes = own_tables(tmp_path)
    (tmp_path / "other.toml").write_text(LACKS[lack])
    for node in nodes:
        rows = Path(node["data-path"]).read_text().count("\n") - 1
        ledger = str(tmp_path / f"{node['agent']}.ledger")
        node |= {"max-epsilon": 5.0, "delta": 1e-6, "num-examples": rows, "ledger-path": ledger}
    nodes[2]["schema"] = str(tmp_path / "other.toml")
    keys = {"target_epsilon": 1.0, "delta": 1e-6, "num_agents": 4}
    raw = config(tmp_path, "describe", schema=str(tmp_path / "schema.toml"), **keys)
    del raw["data-path"], raw["id-column"], raw["by"]
    settled = read_config(raw)
    with pytest.raises(HopelessError, match=f"agent south: {Told.SCHEMA}"):
        execute_analysis(InlineGrid(configured_app(), nodes, settled), settled, "run")
    assert not list(tmp_path.glob("*.ledger"))


class Ended(InlineGrid):
    """Its process ends at the second question, in the first round."""

    asked = 0

    def deliver(self, message: Message) -> Message | None:
        self.asked += message.metadata.message_type != ENROL
        if self.asked > 1:
            raise KeyboardInterrupt
        return super().deliver(message)


def test_a_plain_run_whose_checkpoint_is_gone_does_not_begin_anew_unasked(tmp_path: Path) -> None:
    """Killed in its first round, so that nothing else of it is left but its folder."""
    nodes = own_tables(tmp_path)
    raw = config(tmp_path, "describe", num_agents=4, schema=str(tmp_path / "schema.toml"))
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    with pytest.raises(KeyboardInterrupt):
        execute_analysis(Ended(configured_app(), nodes, settled), settled, "run")
    (tmp_path / "runs" / "run" / "checkpoint.npz").unlink()
    again = read_config({**raw, "resume": "auto"})
    for _ in range(2):
        with pytest.raises(HopelessError, match=r"no checkpoint at .*/run/.*set resume = new"):
            execute_analysis(InlineGrid(configured_app(), nodes, again), again, "again")
    anew = read_config({**raw, "resume": "new"})
    found = execute_analysis(InlineGrid(configured_app(), nodes, anew), anew, "again")
    assert (found.folder.name, found.result.complete) == ("again", True)


def test_a_run_that_ended_before_its_first_round_begins_anew(tmp_path: Path) -> None:
    nodes = own_tables(tmp_path)
    raw = config(tmp_path, "describe", num_agents=4, resume="auto")
    raw |= {"schema": str(tmp_path / "schema.toml")}
    del raw["data-path"], raw["id-column"]
    settled = read_config(raw)
    off = [{**node, "allow-analyses": False} for node in nodes]
    with pytest.raises(RunError):
        execute_analysis(InlineGrid(configured_app(), off, settled), settled, "run")
    grid = InlineGrid(configured_app(), nodes, settled)
    assert execute_analysis(grid, settled, "next").result.complete


def same_outcome(site: str, rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{**row, "died": "0"} for row in rows]


def separated(site: str, rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{**row, "died": str(int(float(row["age"]) > 60))} for row in rows]


HOPELESS = {
    "the outcome is the same in every row": (same_outcome, "died ~ age"),
    "the outcome is separated": (separated, "died ~ age"),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_sums_that_show_that_there_is_no_result_are_not_worth_a_retry(
    tmp_path: Path, case: str
) -> None:
    change, formula = HOPELESS[case]
    nodes = own_tables(tmp_path, change, min_cell=1)
    raw = config(tmp_path, "glm", num_agents=4, schema=str(tmp_path / "schema.toml"))
    del raw["data-path"], raw["id-column"]
    settled = read_config({**raw, "formula": formula})
    with pytest.raises(HopelessError, match=r"^glm: [^\n]*$") as caught:
        execute_analysis(InlineGrid(configured_app(), nodes, settled), settled, "run")
    assert caught.value.__class__ is HopelessError
