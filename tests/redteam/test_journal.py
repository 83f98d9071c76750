"""A coordinator that dies in a round forgets no upload that has left: run and ledgers agree."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Message

from privet.agents.guard import Guard
from privet.client_apps import client_app
from privet.core import RunError, mapped
from privet.core.errors import HopelessError
from privet.core.files import read_npz, write_npz, write_whole
from privet.data import problem_from_context
from privet.kernel import AgentLedger, Facts, Release
from privet.rounds.account import expected_release
from privet.rounds.keep import chain
from privet.rounds.keep.checkpoint import load, parts_beside, read_manifest, save
from privet.rounds.keep.journal import Journal, Request, end_beside, last_check, read_journal
from privet.rounds.participation import Schedule
from privet.rounds.roster import EnrolledAgent, Question, Roster, columns, from_columns
from privet.server_apps import execute, read_config
from privet.server_apps.account import privacy_account
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.sim.grid import FIRST_NODE
from privet.strategies import DPFedSGD, FedPLT
from redteam.harness import spent
from support.federations import app_of, logistic_agents, zeros
from support.run_files import Killed

AGENTS = 4
KEYS: dict[str, Any] = {
    "algorithm": "dp-fedsgd",
    "clip": 1.0,
    "target-epsilon": 2.0,
    "num-agents": AGENTS,
    "num-server-rounds": 8,
    "partition": "iid",
}


class Dies(InlineGrid):
    """A grid whose coordinator dies once the agents have worked in a round."""

    dies_in = 0
    tries = 0

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = list(super().pull_messages(message_ids))
        if any(reply.metadata.message_type == "train" for reply in found):
            self.tries += 1
            if self.tries == self.dies_in:
                raise Killed
        return found


def ledgers_in(folder: Path) -> list[Path]:
    return [folder / f"ledger-{i}" for i in range(AGENTS)]


def play(
    folder: Path,
    *,
    dies_in: int = 0,
    state: bool = False,
    ledger: bool = True,
    moved: bool = False,
    **keys: Any,
) -> Any:
    """Play a run; with ``moved`` agent 0 is on another node than before."""
    raw = {**KEYS, "output-dir": str(folder / "runs"), "resume": "auto", **keys}
    nodes = [
        {
            "partition-id": i,
            "num-partitions": AGENTS,
            **({"max-epsilon": 8.0, "delta": 1e-5, "ledger-path": str(path)} if ledger else {}),
            "num-examples": 150,
            "relation": raw.get("relation", "replace-one"),
            **({"state-path": str(folder / f"state-{i}.npz")} if state else {}),
        }
        for i, path in enumerate(ledgers_in(folder))
    ]
    grid = Dies(client_app(None, problem_from_context), nodes, raw)
    grid.dies_in = dies_in
    if moved:
        context = grid.contexts.pop(FIRST_NODE)
        grid.contexts[FIRST_NODE + AGENTS] = replace(context, node_id=FIRST_NODE + AGENTS)
        grid.online.remove(FIRST_NODE)
        grid.online.add(FIRST_NODE + AGENTS)
    return execute(grid, read_config(raw), "run")


def forget_states(folder: Path) -> None:
    """Take the nodes' states out of the checkpoint: on real nodes nothing is put back."""
    for path in folder.glob("runs/*/checkpoint.npz"):
        saved = load(path)
        saved.node_states.clear()
        save(path, saved)


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("every", "dies_in"), [(1, 4), (3, 5)])
def test_uploads_since_the_checkpoint_count_after_a_resume(
    tmp_path: Path, every: int, dies_in: int, state: bool
) -> None:
    keys = {"checkpoint-every": every}
    with pytest.raises(Killed):
        play(tmp_path, dies_in=dies_in, state=state, **keys)
    finished = play(tmp_path, state=state, **keys)
    said = json.loads((finished.folder / "privacy.json").read_text())
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert math.isclose(said["agents"][str(name)]["epsilon"], spent(ledger), rel_tol=1e-9)
        assert spent(ledger) <= 2.0
    assert finished.summary["rounds"] == 8


@pytest.mark.parametrize("damage", [b"", b"PK", None], ids=["empty", "cut", "of the state"])
@pytest.mark.parametrize(("every", "dies_in"), [(1, 5), (2, 6)])
def test_a_damaged_newest_checkpoint_is_made_good_by_the_one_before(
    tmp_path: Path, every: int, dies_in: int, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """All uploads since that one count, twice where its rounds are played again."""
    keys = {"checkpoint-every": every}
    with pytest.raises(Killed):
        play(tmp_path, dies_in=dies_in, **keys)
    (newest,) = tmp_path.glob("runs/*/checkpoint.npz")
    whole = newest.read_bytes()
    middle = whole.index(b"state/") + 200
    broken = whole[:middle] + b"\xff" * 20 + whole[middle + 20 :]
    newest.write_bytes(broken if damage is None else damage)
    with pytest.raises(Killed):
        play(tmp_path, dies_in=1, **keys)  # before a checkpoint of its own
    caplog.clear()
    finished = play(tmp_path, **keys)
    (line,) = [each for each in caplog.messages if "goes on from the one before" in each]
    assert str(newest) in line
    said = said_by_run(finished)
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert math.isclose(said[str(name)], spent(ledger), rel_tol=1e-9)
        assert 0.9 * 2.0 < spent(ledger) <= 2.0
    assert finished.summary["rounds"] == 8


def test_a_mark_that_cannot_be_written_ends_no_run_and_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full once the checkpoint is on it."""

    def full(journal: Journal, round_: int, name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "saved", full)
        with pytest.raises(Killed):
            play(tmp_path, dies_in=4)
    assert "asked.jsonl: No space left on device" in caplog.text
    said = said_by_run(play(tmp_path))
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert math.isclose(said[str(name)], spent(ledger), rel_tol=1e-9)


def test_a_node_that_lost_its_state_after_the_death_is_sent_the_whole_account(
    tmp_path: Path,
) -> None:
    with pytest.raises(Killed):
        play(tmp_path, dies_in=4, state=True)
    forget_states(tmp_path)
    (tmp_path / "state-0.npz").unlink()
    finished = play(tmp_path, state=True)
    said = json.loads((finished.folder / "privacy.json").read_text())
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert math.isclose(said["agents"][str(name)]["epsilon"], spent(ledger), rel_tol=1e-9)


def said_by_run(finished: Any) -> dict[str, float]:
    account = json.loads((finished.folder / "privacy.json").read_text())
    return {name: agent["epsilon"] for name, agent in account["agents"].items()}


def test_uploads_that_neither_checkpoint_nor_journal_nor_state_hold_are_in_the_ledgers(
    tmp_path: Path,
) -> None:
    """The coordinator dies with uploads in hand and its folder's end is lost, and one node's state.

    The others' nodes still say what they sent with their next upload, if they are asked again.
    """
    with pytest.raises(Killed):
        play(tmp_path, dies_in=5, state=True, **{"checkpoint-every": 3})
    (journal,) = tmp_path.glob("runs/*/asked.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    marked = [number for number, line in enumerate(lines) if line.startswith(b'{"saved"')]
    # The file as it was after the checkpoint, from a backup.
    journal.write_bytes(b"".join([*lines[: marked[-1] + 1], lines[-1]]))
    end_beside(journal).unlink()
    (journal.parent / "history.jsonl").unlink()
    forget_states(tmp_path)
    (tmp_path / "state-0.npz").unlink()
    finished = play(tmp_path, state=True)
    said = said_by_run(finished)
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert math.isclose(said[str(name)], spent(ledger), rel_tol=1e-9)
        assert spent(ledger) <= 2.0  # known before the noise of the rounds left was set
    assert finished.summary["rounds"] == 8
    assert set(finished.result.history[-1].participants) == {"0", "1", "2", "3"}


@pytest.mark.parametrize("state", [False, True])
def test_a_run_folder_from_a_backup_forgets_no_upload(tmp_path: Path, state: bool) -> None:
    """In this process the states of the checkpoint are put back over those of the nodes."""
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, state=state)
    folder = tmp_path / "runs" / "run"
    shutil.copytree(folder, tmp_path / "backup")
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, state=state)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    said = said_by_run(play(tmp_path, state=state))
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert spent(ledger) <= said[str(name)] * (1 + 1e-9) <= 2.0 * (1 + 2e-9)


def test_a_node_whose_state_is_from_a_backup_goes_on_from_the_longer_account(
    tmp_path: Path,
) -> None:
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, state=True)
    shutil.copy(tmp_path / "state-0.npz", tmp_path / "old.npz")
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, state=True)
    forget_states(tmp_path)
    (tmp_path / "old.npz").replace(tmp_path / "state-0.npz")
    said = said_by_run(play(tmp_path, state=True))
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert spent(ledger) <= said[str(name)] * (1 + 1e-9)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Release]]:
    """What each agent was charged for, whether or not anything remembers it."""
    every: dict[str, list[Release]] = {}
    charge = Guard.charge

    def charged(self: Guard, half: Any, facts: Facts, *others: Any) -> Any:
        found = charge(self, half, facts, *others)
        every.setdefault(self.agent, []).append(half.release(facts, self.round))
        return found

    monkeypatch.setattr(Guard, "charge", charged)
    return every


@pytest.mark.parametrize("recovery", ["yes", "no"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_node_without_a_ledger_whose_state_is_old_or_gone_is_charged_all_the_same(
    tmp_path: Path, moved: bool, recovery: str, released: dict[str, list[Release]]
) -> None:
    """By the run's record; where it is moved, under its name if the run recovers by it."""
    keys: dict[str, Any] = {"state": True, "ledger": False, "recover-by-name": recovery}
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, **keys)
    shutil.copy(tmp_path / "state-0.npz", tmp_path / "old.npz")
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, **keys)
    forget_states(tmp_path)
    (tmp_path / "old.npz").replace(tmp_path / "state-0.npz")
    said = said_by_run(play(tmp_path, moved=moved, **keys))
    for name, releases in released.items():
        whole = AgentLedger.of((one, 1) for one in releases).spent(1e-5)
        assert whole <= said[name] * (1 + 1e-9)


@pytest.mark.parametrize("recovery", ["yes", "no"])
def test_a_moved_node_and_a_run_folder_from_a_backup_forget_no_upload(
    tmp_path: Path, recovery: str, released: dict[str, list[Release]]
) -> None:
    """The node's own ledger has what the older folder lacks."""
    keys: dict[str, Any] = {"recover-by-name": recovery}
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, **keys)
    folder = tmp_path / "runs" / "run"
    shutil.copytree(folder, tmp_path / "backup")
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, **keys)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    forget_states(tmp_path)
    said = said_by_run(play(tmp_path, moved=True, **keys))
    for name, releases in released.items():
        whole = AgentLedger.of((one, 1) for one in releases).spent(1e-5)
        assert whole <= said[name] * (1 + 1e-9)


@pytest.mark.parametrize("older", [True, False], ids=["older", "gone"])
def test_a_ledger_from_a_backup_is_named(
    tmp_path: Path, older: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The run's account has what the file lacks."""
    with pytest.raises(Killed):
        play(tmp_path, dies_in=2, state=True)
    first = ledgers_in(tmp_path)[0]
    shutil.copy(first, tmp_path / "old")
    with pytest.raises(Killed):
        play(tmp_path, dies_in=5, state=True)
    whole = spent(first)
    assert "older copy" not in caplog.text
    first.unlink()
    if older:
        shutil.copy(tmp_path / "old", first)
    finished = play(tmp_path, state=True)
    assert any("older copy" in text and text.endswith(": 0") for text in caplog.messages)
    assert any("older copy" in note for done in finished.result.history for note in done.notes)
    assert whole < said_by_run(finished)["0"] <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("away", [True, False], ids=["listed as away", "back before"])
def test_a_ledger_from_a_backup_is_named_when_its_node_comes_back(
    tmp_path: Path, away: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has the id that it had, as one with a key, and the run goes on meanwhile."""
    ledger, old = ledgers_in(tmp_path)[0], tmp_path / "old"
    deliver = Dies.dispatch

    def dispatch(self: Dies, messages: list[Message]) -> None:
        node, kept = FIRST_NODE, messages
        if messages[0].metadata.message_type == "train":
            self.online.add(node)
            if self.tries == 2:
                shutil.copy(ledger, old)
            if self.tries == 5:
                old.replace(ledger)
                kept = [one for one in messages if one.metadata.dst_node_id != node]
                for message in messages:
                    if message not in kept:
                        self.arrived(message, self.not_connected(message))
                if away:
                    self.online.remove(node)
        deliver(self, kept)

    monkeypatch.setattr(Dies, "dispatch", dispatch)
    finished = play(tmp_path, state=True)
    notes = [note for done in finished.result.history for note in done.notes]
    assert any("older copy" in note and note.endswith(": 0") for note in notes)
    assert any("older copy" in text for text in caplog.messages)
    assert spent(ledger) < said_by_run(finished)["0"] <= 2.0 * (1 + 1e-9)


def test_what_a_node_states_makes_its_own_account_longer_or_changes_nothing() -> None:
    release = Release("gaussian", scale=10.0)
    known = AgentLedger.of([(release, 4)]).to_json()
    stated = {times: AgentLedger.of([(release, times)]).to_json() for times in (3, 4, 5)}
    roster = Roster({name: EnrolledAgent(1, ledger=known) for name in "abcd"})
    roster.agents["c"].former, roster.agents["c"].ledger = (known,), ""
    for name, times in (("a", 3), ("b", 4), ("c", 5)):
        roster.agents[name].stated = stated[times]
        roster.stating.add(name)
    assert roster.join_stated(1e-5) == {"c"}
    held = {name: AgentLedger.joined(agent.accounts) for name, agent in roster.agents.items()}
    assert {name: ledger.messages for name, ledger in held.items()} == {
        "a": 4,
        "b": 4,
        "c": 5,
        "d": 4,
    }
    assert roster.join_stated(1e-5) == set()


@pytest.mark.parametrize("own_file", [True, False])
def test_a_ledger_file_of_its_own_lacks_what_former_nodes_released(own_file: bool) -> None:
    """Node 1 released 4, node 2 took its name; the run knows 1 of node 2's, whose file has more."""
    release = Release("gaussian", scale=10.0)
    question = Question("dp-fedsgd", 1, "", lambda _: "", lambda _: None, fixed=True)

    def account(times: int) -> str:
        return AgentLedger.of([(release, times)]).to_json()

    def place(node: int, stated: str) -> None:
        roster._place("a", EnrolledAgent(node, 60, stated=stated), question)

    def released() -> int:
        return AgentLedger.joined(roster.agents["a"].accounts).messages

    roster = Roster({"a": EnrolledAgent(1, 60, tag=4, ledger=account(4))})
    before = 0 if own_file else 4  # a file of both nodes has all of the first one's
    place(2, account(before) if before else "")
    assert roster.join_stated(1e-5) == set()
    assert released() == 4
    roster.note_ledger("a", account(1), stated=True)
    assert released() == 5
    place(2, account(before + 3))
    assert roster.join_stated(1e-5) == {"a"}
    assert released() == 7
    saved = from_columns(json.loads(json.dumps(columns(roster.agents))))
    assert saved["a"].apart is own_file
    place(2, account(before + 3))
    assert roster.join_stated(1e-5) == set()
    assert released() == 7


@pytest.mark.parametrize(
    ("run", "deaths"),
    [
        ({}, (3, 1, 1)),
        ({}, (2, 1, 3)),
        ({"batch": "poisson", "relation": "add-remove"}, (3, 1, 1)),
        ({"algorithm": "fed-pdm", "dual": "public", "row-norm": 5.6}, (3, 1, 1)),
        ({"budget-schedule": "geometric", "budget-ratio": 0.8}, (3, 2, 1)),
    ],
    ids=["after each other", "rounds between", "sampled", "releases that differ", "a schedule"],
)
def test_lost_requests_are_charged_as_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: dict[str, Any], deaths: tuple[int, ...]
) -> None:
    """Each process asks for more noise than the one before; the nodes' ledgers tell no account."""

    def forget(roster: Roster, delta: float) -> set[str]:
        for agent in roster.agents.values():
            agent.stated = ""
        return set()

    monkeypatch.setattr(Roster, "join_stated", forget)
    for dies_in in deaths:
        with pytest.raises(Killed):
            play(tmp_path, dies_in=dies_in, **run)
    finished = play(tmp_path, **run)
    said = said_by_run(finished)
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert math.isclose(said[str(name)], spent(ledger), rel_tol=1e-9)
        assert 0.98 * 2.0 < spent(ledger) <= 2.0


def test_settings_of_after_the_checkpoint_before_count_where_the_newest_is_damaged(
    tmp_path: Path,
) -> None:
    """An agent takes more steps once it is back, in a round in which it is not asked."""
    names = tuple(map(str, range(AGENTS)))
    some = names[:-1]

    def noised() -> FedPLT:
        taking_part = Schedule((names, some, some, names))
        kept: dict[str, Any] = {"num_agents": AGENTS, "min_agents": 1, "wait_timeout": 0.1}
        steps: dict[str, Any] = {"local_solver": "noisy-gd", "local_epochs": 2, "row_norm": 9.0}
        return FedPLT(clip=1.0, noise_variance=0.1, participation=taking_part, **kept, **steps)

    grid, later = (Dies(app_of(logistic_agents(AGENTS)), AGENTS) for _ in range(2))
    grid.dies_in, last = 4, FIRST_NODE + AGENTS - 1

    def change(done: Any, _: Any) -> None:
        if done.round == 1:
            grid.online.discard(last)
        if done.round == 2:
            grid.contexts[last].node_config["local-epochs"] = 20
            grid.online.add(last)

    where: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint.npz", "log_rounds": False}
    with pytest.raises(Killed):
        noised().start(grid, zeros(4), num_rounds=4, observers=[change], **where)
    where["checkpoint"].write_bytes(b"")
    later.online.discard(last)
    strategy = noised()
    strategy.start(later, zeros(4), num_rounds=4, resume=tmp_path, **where)
    released = privacy_account(strategy, {})["agents"][names[-1]]["releases"]
    assert sorted(release["steps"] for release in released) == [2, 20]


def test_an_agent_that_released_more_than_it_was_asked_for_is_taken_to_do_so_again() -> None:
    """What was asked for with less noise before is no reason."""
    half = DPFedSGD(clip=1.0, noise_scale=4.0).half
    facts = Facts(num_examples=100, divisor=100.0, dim=3)
    then = half.with_settings({"noise-scale": 2.0})
    asked, before = half.agent.release(facts, 1), then.agent.release(facts, 1)
    more = replace(asked, sensitivity=1.2 * asked.sensitivity)
    assert asked.loss < more.loss < before.loss

    def expected(*noises: float, account: list[Release]) -> Release | None:
        text = AgentLedger.of((one, 1) for one in account).to_json()
        agent = EnrolledAgent(1, 100, facts=facts.to_json(), ledger=text)
        return expected_release(half, agent, 5, 1, noises)

    assert expected(account=[asked]) == asked
    assert expected(account=[before, asked]) == before
    assert expected(2.0, account=[before, asked]) == asked
    assert expected(2.0, account=[before, more, asked]) == more
    assert expected(3.0, account=[before, more]) == before


def test_an_upload_asked_for_with_less_noise_counts_with_less_noise(tmp_path: Path) -> None:
    for dies_in, rounds in ((3, 8), (1, 3)):  # a resume for fewer rounds has less noise in each
        with pytest.raises(Killed):
            play(tmp_path, dies_in=dies_in, **{"num-server-rounds": rounds})
    finished = play(tmp_path)
    said = json.loads((finished.folder / "privacy.json").read_text())
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert spent(ledger) <= said["agents"][str(name)]["epsilon"] <= 2.0


def test_a_run_without_noise_keeps_no_journal(tmp_path: Path) -> None:
    raw = {"num-agents": 4, "num-server-rounds": 2, "output-dir": str(tmp_path)}
    nodes = [{"partition-id": i, "num-partitions": 4} for i in range(4)]
    folder = execute(
        InlineGrid(client_app(None, problem_from_context), nodes, raw), read_config(raw), "r"
    ).folder
    assert not (folder / "asked.jsonl").exists()


@pytest.mark.parametrize("by", ["a process that begins", "a saved round", "an older copy"])
def test_of_two_processes_in_one_journal_the_first_ends(tmp_path: Path, by: str) -> None:
    """Whatever became of the lock: neither would count what the other asks for."""
    path = tmp_path / "asked.jsonl"
    first, second = Journal(path), Journal(path)
    first.begin()
    older = path.read_bytes()
    first.add(1, Request(1, ("0",)))
    if by == "an older copy":
        path.write_bytes(older)
    else:
        second.begin()
    if by == "a saved round":
        second.saved(1, "a checkpoint")
    with pytest.raises(RunError, match="changed by another process"):
        first.add(2, Request(2, ("0",)))
    with pytest.raises(RunError, match="changed by another process"):
        first.saved(2, "another checkpoint")
    if by != "an older copy":
        second.add(1, Request(2, ("0",)))  # it goes on alone


def test_nobody_begins_in_a_journal_while_a_saved_round_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line would be in the file that is replaced, and neither process would notice."""
    first, second = Journal(tmp_path / "asked.jsonl"), Journal(tmp_path / "asked.jsonl")
    first.begin()
    first.add(1, Request(1, ("0",)))
    end, ends = last_check(first.path), list[str]()

    def begins() -> None:
        try:
            with second.locked():
                second.begin(end)
        except RunError as error:
            ends.append(str(error))

    other = Thread(target=begins)

    def slow(path: Path, data: bytes) -> None:
        other.start()
        other.join(0.3)
        write_whole(path, data)

    monkeypatch.setattr("privet.rounds.keep.journal.write_whole", slow)
    first.saved(1, "a checkpoint")
    other.join()
    assert ["changed by another process" in line for line in ends] == [True]
    first.add(2, Request(2, ("0",)))  # it goes on alone


def test_the_journal_is_its_owners_alone_and_goes_back_to_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "asked.jsonl")
    journal.begin()
    journal.add(1, Request(3, ("a", "b"), 1))
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert read_journal(journal.path, 2) == [Request(3, ("a", "b"), 1)]
    assert read_journal(journal.path, 3) == []  # the checkpoint has their cost
    journal.saved(3, "3-x.npz")
    journal.add(2, Request(4, ("a",), 1))
    assert read_journal(journal.path, 3) == [Request(4, ("a",), 1)]
    journal.saved(4, "4-x.npz")
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert read_journal(journal.path, 4) == []
    assert read_journal(journal.path, 3) == [Request(4, ("a",), 1)]  # the checkpoint before
    size = journal.path.stat().st_size
    for number in range(5, 9):
        journal.add(number, Request(number, ("a",), 1))
        journal.saved(number, f"{number}-x.npz")
    assert journal.path.stat().st_size == size
    assert read_journal(journal.path, 7) == [Request(8, ("a",), 1)]


def test_a_journal_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    journal = Journal(tmp_path / "asked.jsonl")
    journal.begin()
    journal.path.unlink(missing_ok=True)
    journal.path.symlink_to(tmp_path / "other")
    with pytest.raises(RunError, match="cannot be written"):
        journal.add(1, Request(3, ("a", "b"), 1))
    assert (tmp_path / "other").read_text() == "kept"


def test_requests_of_several_processes_all_count_and_a_cut_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    for _ in range(2):
        journal = Journal(path)
        journal.begin()
        journal.add(1, Request(4, ("a", "b"), 1))
        journal.add(1, Request(4, ("a",), 1))  # it was asked for fewer
    assert read_journal(path, 3) == [Request(4, ("a",), 1)] * 2
    with path.open("ab") as file:
        file.write(b'{"request":2,"round":4,"na')
    with pytest.raises(HopelessError, match="its end is cut"):
        read_journal(path, 3)


def test_a_journal_cut_between_two_lines_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "asked.jsonl")
    journal.begin()
    for number in range(1, 4):
        journal.add(number, Request(4, ("a",), number))
    whole = journal.path.read_bytes()
    assert len(read_journal(journal.path, 3, mark=journal.mark)) == 3
    places = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for place in places[:-1]:
        journal.path.write_bytes(whole[:place])
        with pytest.raises(HopelessError, match="its end is cut"):
            read_journal(journal.path, 3, mark=journal.mark)


def test_a_line_removed_from_a_journal_is_noticed(tmp_path: Path) -> None:
    """Lines of several processes, before and after the marks of checkpoints."""
    path = tmp_path / "asked.jsonl"
    for process in range(3):
        journal = Journal(path)
        journal.begin()
        for number in range(1, 4):
            journal.add(number, Request(3 * process + number, ("a",)))
            if number == 2:
                journal.saved(3 * process + number, f"{process}-x.npz")
    whole = path.read_bytes().splitlines(keepends=True)
    assert [one.round for one in read_journal(path, 5, mark="1-x.npz")] == [6, 7, 8, 9]
    for place in range(len(whole) - 2):
        path.write_bytes(b"".join(whole[:place] + whole[place + 1 :]))
        with pytest.raises(HopelessError, match=f"line {place + 1} is missing|lacks the mark"):
            read_journal(path, 5, mark="1-x.npz")
        moved = [*whole[:place], whole[place + 1], whole[place], *whole[place + 2 :]]
        path.write_bytes(b"".join(moved))
        with pytest.raises(HopelessError, match=r"is missing|lacks the mark|its end is cut"):
            read_journal(path, 5, mark="1-x.npz")


@pytest.mark.parametrize("saves", [False, True])
def test_another_process_is_noticed_where_inode_and_size_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    """An inode is used again once the file that had it is replaced."""
    monkeypatch.setattr("privet.rounds.keep.journal._identity", lambda found: (0, 0))
    first, second = (Journal(tmp_path / "asked.jsonl") for _ in range(2))
    for one in (first, second):
        one.begin()
        one.add(1, Request(4, ("a",)))
    goes_on = partial(first.saved, 4, "4-x.npz") if saves else partial(first.add, 2, Request(5, ()))
    with pytest.raises(RunError, match="changed by another process"):
        goes_on()
    second.add(2, Request(5, ("a",)))
    second.saved(5, "5-x.npz")


@pytest.mark.parametrize("note", ["whole", "gone", "cut", "a folder"])
def test_a_journal_without_its_last_lines_is_noticed(tmp_path: Path, note: str) -> None:
    """As a copy of after the same checkpoint; a note that is none, as of before, proves nothing."""
    path, copies = tmp_path / "asked.jsonl", list[bytes]()
    journal = Journal(path)
    journal.begin()
    journal.saved(3, "3-x.npz")
    for number in (1, 2):
        journal.add(number, Request(4, ("a",), number))
        copies.append(path.read_bytes())
    Journal(path).begin()
    assert len(read_journal(path, 3, mark="3-x.npz")) == 2
    end = end_beside(path)
    if note == "cut":
        end.write_bytes(end.read_bytes()[:4])
    elif note != "whole":
        end.unlink()
    if note == "a folder":
        end.mkdir()
    for number, copy in enumerate(copies, 1):
        path.write_bytes(copy)
        if note == "whole":
            with pytest.raises(HopelessError, match=r"lacks the line that asked\.end names"):
                read_journal(path, 3, mark="3-x.npz")
        else:
            assert len(read_journal(path, 3, mark="3-x.npz")) == number


def test_a_note_that_is_older_than_its_journal_is_enough(tmp_path: Path) -> None:
    """After a power failure it may be that of the checkpoint before, and no older one."""
    path, notes = tmp_path / "asked.jsonl", list[bytes]()
    journal = Journal(path)
    journal.begin()
    for number in range(1, 4):
        journal.saved(number, f"{number}-x.npz")
        notes.append(end_beside(path).read_bytes())
        journal.add(number, Request(number + 1, ("a",)))
    journal.saved(4, "4-x.npz")
    end_beside(path).write_bytes(notes[-1])
    assert [one.round for one in read_journal(path, 3, mark="3-x.npz")] == [4]
    end_beside(path).write_bytes(notes[0])
    with pytest.raises(HopelessError, match=r"lacks the line that asked\.end names"):
        read_journal(path, 3, mark="3-x.npz")


def test_a_copy_of_the_journal_of_the_round_under_way_ends_the_resume(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        play(tmp_path, dies_in=3, ledger=False)
    (journal,) = tmp_path.glob("runs/*/asked.jsonl")
    copy = journal.read_bytes()
    with pytest.raises(Killed):
        play(tmp_path, dies_in=1, ledger=False)
    journal.write_bytes(copy)
    with pytest.raises(HopelessError, match=r"asked\.jsonl: lacks the line") as refused:
        play(tmp_path, ledger=False)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_checkpoint_of_format_6_needs_its_journal(tmp_path: Path, lost: str) -> None:
    """What was asked for after it would be spent again."""
    with pytest.raises(Killed):
        play(tmp_path, dies_in=5)
    (file,) = tmp_path.glob("runs/*/checkpoint.npz")
    members = read_npz(file)
    manifest = {**json.loads(members["manifest"].tobytes()), "format": 6}
    journal = file.with_name("asked.jsonl")
    for key in ("journal", "history"):
        del manifest[key]
    members["manifest"] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    write_npz(file, members)
    assert [one.round for one in load(file).requests] == [5]
    whole = journal.read_bytes()
    journal.unlink()
    if lost == "empty":
        journal.touch()
    with pytest.raises(HopelessError, match=r"asked.jsonl: is (not there|empty): what the agents"):
        play(tmp_path)
    journal.write_bytes(whole)
    said = said_by_run(play(tmp_path))
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        assert math.isclose(said[str(name)], spent(ledger), rel_tol=1e-9)


def test_a_full_disk_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "asked.jsonl")
    journal.begin()
    journal.add(1, Request(4, ("a",), 1))
    whole, write = journal.path.read_bytes(), os.write

    def full(descriptor: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:-10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(RunError, match="cannot be written"):
            journal.add(2, Request(4, ("b",), 2))
    assert journal.path.read_bytes() == whole
    journal.add(2, Request(4, ("b",), 2))
    assert len(read_journal(journal.path, 3, mark=journal.mark)) == 2


def test_a_damaged_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_bytes(b'{"begun":true}\nnonsense\n{"begun":true}\n')
    with pytest.raises(RunError, match="line 2 is damaged"):
        read_journal(path, 0)
    with pytest.raises(RunError, match="asks no agent"):
        Journal(tmp_path / "nowhere" / "asked.jsonl").begin()


def test_a_checkpoint_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    """What left between it and the first request that was kept would be spent again."""
    journal = Journal(tmp_path / "asked.jsonl")
    journal.begin()
    for number in (1, 2, 3):
        journal.add(number, Request(number, ("0",)))
        journal.saved(number, f"{number}-x.npz")
    assert [request.round for request in read_journal(journal.path, 2)] == [3]
    assert read_journal(journal.path, 3) == []
    with pytest.raises(RunError, match="begins after round 2: what the agents have spent since"):
        read_journal(journal.path, 1)


# ------------------------------------------------------------------ checkpoints of what changed


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Have checkpoints hold what changed; return the keys of rounds of one agent of four."""
    monkeypatch.setattr(chain, "SMALL", 0)
    monkeypatch.setattr(chain, "LONGEST", 1000)
    monkeypatch.setattr(mapped, "SPARSE", 1)
    return {"participation": "fraction", "fraction": 0.25}


@pytest.mark.parametrize("state", [False, True])
def test_deaths_between_parts_forget_no_upload(
    tmp_path: Path, in_parts: dict[str, Any], state: bool
) -> None:
    for dies_in in (4, 1, 3):
        with pytest.raises(Killed):
            play(tmp_path, dies_in=dies_in, state=state, **in_parts)
    (file,) = tmp_path.glob("runs/*/checkpoint.npz")
    assert read_manifest(file)["parts"]
    finished = play(tmp_path, state=state, **in_parts)
    said = said_by_run(finished)
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        if ledger.exists():
            assert spent(ledger) <= said[str(name)] * (1 + 1e-9) <= 2.0 * (1 + 2e-9)
    assert finished.summary["rounds"] == 8


def test_a_private_run_goes_back_by_one_part_and_no_further(
    tmp_path: Path, in_parts: dict[str, Any]
) -> None:
    """What was asked for since an older one is not in the journal any more."""
    with pytest.raises(Killed):
        play(tmp_path, dies_in=7, **in_parts)
    (file,) = tmp_path.glob("runs/*/checkpoint.npz")
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    file.write_bytes(file.read_bytes()[:300])
    said = said_by_run(play(tmp_path, **in_parts))
    for name, ledger in enumerate(ledgers_in(tmp_path)):
        if ledger.exists():
            assert spent(ledger) <= said[str(name)] * (1 + 1e-9) <= 2.0 * (1 + 2e-9)
    (file,) = tmp_path.with_name("copy").glob("runs/*/checkpoint.npz")
    part = parts_beside(file) / read_manifest(file)["parts"][2]
    part.write_bytes(part.read_bytes()[:300])
    with pytest.raises(RunError, match="a run does not begin anew") as ended:
        play(tmp_path.with_name("copy"), **in_parts)
    assert str(part) in str(ended.value)


class DiesTogether(CohortGrid):
    """A cohort engine that counts whom it had work, and dies after one such call.

    Agents of a round that start from states of their own are another call.
    """

    dies_in = 0
    worked: ClassVar[Counter[str]] = Counter()

    def train_together(self, shared: Any, nodes: Any, *given: Any) -> Any:
        done = super().train_together(shared, nodes, *given)
        names = [str(self.node_configs[node]["partition-id"]) for node in nodes]
        self.worked.update(names)
        self.dies_in -= 1
        if not self.dies_in:
            raise Killed
        return done


def test_accounts_of_a_cohort_that_resumes_from_parts_are_those_from_whole_checkpoints(
    tmp_path: Path, in_parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they hold every release, those of rounds that were lost too."""

    def accounts(folder: Path) -> tuple[dict[str, int], bool]:
        keys = {**KEYS, **in_parts, "num-agents": 12, "noise-scale": 2.0}
        del keys["target-epsilon"]
        raw = {**keys, "output-dir": str(folder), "resume": "auto"}
        DiesTogether.worked.clear()
        for dies_in in (5, 1, 0):
            grid = DiesTogether(client_app(None, problem_from_context), 12, raw)
            grid.dies_in = dies_in
            with suppress(Killed):
                execute(grid, read_config(raw), "run")
        saved = load(folder / "run")
        assert saved.manifest["round"] == 8
        agents = from_columns(saved.manifest["agents"])
        counted = {
            name: sum(count for _, count in AgentLedger.from_json(agent.ledger).entries)
            for name, agent in agents.items()
            if agent.ledger
        }
        assert counted.keys() >= DiesTogether.worked.keys()
        assert all(counted[name] >= times for name, times in DiesTogether.worked.items())
        return counted, bool(saved.manifest["parts"])

    ours, in_chain = accounts(tmp_path / "parts")
    monkeypatch.setattr(chain, "SMALL", 1 << 40)
    theirs, whole_in_chain = accounts(tmp_path / "whole")
    assert ours == theirs
    assert (in_chain, whole_in_chain) == (True, False)
