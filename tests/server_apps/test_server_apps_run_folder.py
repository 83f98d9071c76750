"""A run folder whose files are lost, damaged, old or another run's: a resume forgets nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privet.client_apps import client_app
from privet.core import ConfigError, RunError, mapped
from privet.core.errors import HopelessError
from privet.core.files import read_npz
from privet.data import problem_from_context
from privet.kernel import ledger
from privet.rounds.keep import chain
from privet.rounds.keep.checkpoint import NOT_RECORDED, read_history
from privet.rounds.keep.journal import Journal, Request, attempts, read_journal
from privet.rounds.run import Run
from privet.server_apps import execute, read_config
from privet.server_apps.execute import Finished
from privet.server_apps.keep_best import KeepBest
from privet.server_apps.run_folder import RunFolder
from privet.sim.engine import InlineGrid
from support.run_files import Killed

AGENTS = 4
ROUNDS = 7


class Dies(InlineGrid):
    """Counts the messages that leave for an agent; dies when a try's have been answered."""

    dies_in = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        for one in sent:
            if one.metadata.message_type == "train":
                node = self.node_configs[one.metadata.dst_node_id]
                self.asked[str(node["partition-id"])] += 1
        return list(super().push_messages(sent))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = list(super().pull_messages(message_ids))
        if any(reply.metadata.message_type == "train" for reply in found):
            self.dies_in -= 1
            if not self.dies_in:
                raise Killed
        return found


def play(
    base: Path,
    asked: Counter[str],
    *,
    private: bool,
    dies_in: int = 0,
    everybody: bool = False,
    **keys: Any,
) -> Finished:
    raw: dict[str, Any] = {
        "num-agents": AGENTS,
        "num-server-rounds": ROUNDS,
        "dataset": "synthetic",
        "examples-per-agent": 20,
        "features": 3,
        "output-dir": str(base),
        "resume": "auto",
        **({} if everybody else {"participation": "fraction", "fraction": 0.25}),
        "baseline-seconds": 0.0,
        **({"algorithm": "dp-fedsgd", "clip": 1.0, "noise-scale": 2.0} if private else {}),
    }
    name = str(keys.pop("name", "run"))
    raw |= {key.replace("_", "-"): value for key, value in keys.items()}
    nodes = [{"partition-id": place, "num-partitions": AGENTS} for place in range(AGENTS)]
    grid = Dies(client_app(None, problem_from_context), nodes, raw)
    grid.asked, grid.dies_in = asked, dies_in  # type: ignore[attr-defined]
    return execute(grid, read_config(raw), name)


def dies(base: Path, asked: Counter[str], dies_in: int, **keys: Any) -> None:
    with pytest.raises(Killed):
        play(base, asked, dies_in=dies_in, **keys)


def charged(finished: Finished) -> Counter[str]:
    """Return the number of releases in each agent's account of a run."""
    agents = json.loads((finished.folder / "privacy.json").read_text())["agents"]
    return Counter(
        {name: sum(one["times"] for one in agent["releases"]) for name, agent in agents.items()}
    )


def bits(finished: Finished) -> Any:
    return read_npz(finished.folder / "model.npz")["x"]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "SMALL", 0)
    monkeypatch.setattr(chain, "LONGEST", 1000)
    monkeypatch.setattr(mapped, "SPARSE", 1)


def flipped(data: bytes) -> bytes:
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "cut": lambda data: data[:-10],
    "zeroed": lambda data: bytes(len(data)),
    "flipped": flipped,
}
FILES = ["checkpoint.npz", "checkpoint.previous.npz", "asked.jsonl", "history.jsonl", "parts"]


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "chain"])
@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
@pytest.mark.parametrize("file", [*FILES, "both"])
def test_a_resume_charges_every_request_or_ends_with_a_line(
    tmp_path: Path, file: str, private: bool, whole: bool, request: pytest.FixtureRequest
) -> None:
    """Each file absent, empty, cut, zeroed, with a flipped bit, from a backup, of another run."""
    if not whole:
        request.getfixturevalue("in_parts")
    straight = bits(play(tmp_path / "straight", Counter(), private=private))
    base, other = tmp_path / "base", tmp_path / "another"
    asked: Counter[str] = Counter()
    dies(base, asked, 3, private=private)
    shutil.copytree(base / "run", tmp_path / "old")
    dies(base, asked, 3, private=private)
    dies(other, Counter(), 5, private=private, seed=1)
    names = {
        "parts": ["checkpoint.parts"],
        "both": ["checkpoint.npz", "checkpoint.previous.npz"],
    }.get(file, [file])
    went_on = set()
    for damage in ["absent", *DAMAGES, "older", "other"]:
        case = tmp_path / damage
        shutil.copytree(base, case)
        source = {"older": tmp_path / "old", "other": other / "run"}.get(damage)
        for path in [one for name in names for one in [case / "run" / name] if one.exists()]:
            for each in sorted(path.iterdir()) if path.is_dir() else [path]:
                if source is not None:
                    found = source / each.relative_to(case / "run")
                    each.unlink()
                    if found.exists():
                        shutil.copy(found, each)
                elif damage == "absent":
                    each.unlink()
                else:
                    each.write_bytes(DAMAGES[damage](each.read_bytes()))
        sent = Counter(asked)
        try:
            finished = play(case, sent, private=private, name="again")
        except HopelessError as error:
            line = str(error)
        else:
            line = ""
        if line:
            named = str(case / "run") in line or "is of another run: seed 1 -> 0" in line
            assert named, damage
            assert "\n" not in line, damage
            assert sent == asked, damage  # nobody was asked
            assert not (case / "again").exists(), damage
            continue
        went_on.add(damage)
        assert finished.folder == case / "run", damage
        assert finished.summary["rounds"] == ROUNDS, damage
        if private:
            assert not sent - charged(finished), damage
        else:
            assert np.array_equal(bits(finished), straight), damage
    every = {"absent", *DAMAGES, "older", "other"}
    lost = {"older", "other"} if private else {"other"}
    expected = {
        "checkpoint.npz": every - lost,
        "checkpoint.previous.npz": every,
        "history.jsonl": every,
        "asked.jsonl": set() if private else every,
        "both": set() if private else {"older"},
        "parts": every,
    }[file]
    if whole or file in ("checkpoint.previous.npz", "history.jsonl", "asked.jsonl"):
        assert went_on - {"flipped"} == expected - {"flipped"}  # one that changes nothing may do
    elif file != "parts":  # parts serve in place of both
        assert went_on >= expected


@pytest.mark.parametrize("every", [1, 10])
def test_kills_before_the_first_checkpoint_are_all_charged(tmp_path: Path, every: int) -> None:
    asked: Counter[str] = Counter()
    for _ in range(3):
        dies(tmp_path, asked, 1, private=True, checkpoint_every=every, everybody=True)
    finished = play(tmp_path, asked, private=True, everybody=True)
    assert finished.folder == tmp_path / "run"
    assert asked == {str(place): ROUNDS + 3 for place in range(AGENTS)}
    assert charged(finished) == asked


@pytest.mark.parametrize("left", ["asked.jsonl", "privacy.json", "history.jsonl"])
def test_any_file_of_a_run_alone_refuses_a_new_one(
    tmp_path: Path, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = play(tmp_path, Counter(), private=True).folder
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != left:
            path.unlink()
    with pytest.raises(HopelessError, match="set resume = new"):
        play(tmp_path, Counter(), private=True, name="again")
    finished = play(tmp_path, Counter(), private=True, name="again", resume="new")
    assert finished.folder == tmp_path / "again"
    line = [text for text in caplog.messages if "does not hold what was spent" in text]
    assert len(line) == (left != "history.jsonl")
    if left == "privacy.json":
        assert "run: epsilon " in line[0]


def test_a_private_folder_that_was_moved_is_asked_for(tmp_path: Path) -> None:
    play(tmp_path / "runs", Counter(), private=True)
    (tmp_path / "runs" / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(HopelessError, match="runs/run is not there"):
        play(tmp_path / "runs", Counter(), private=True, name="again")
    (tmp_path / "elsewhere").rename(tmp_path / "runs" / "run")
    assert play(tmp_path / "runs", Counter(), private=True).summary["rounds"] == ROUNDS


def test_a_run_that_asked_nobody_refuses_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    Journal(tmp_path / "run" / "asked.jsonl").begin()
    (tmp_path / "run" / "history.jsonl").touch()
    (tmp_path / "run" / "privacy.json").write_text('{"private": false}')
    finished = play(tmp_path, Counter(), private=True, name="again")
    assert finished.folder == tmp_path / "again"


def test_a_journal_writes_the_whole_line_and_makes_its_name_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short write, as on a disk that is nearly full, is continued."""
    write, synced = os.write, []

    def short(descriptor: int, data: Any) -> int:
        return write(descriptor, bytes(data)[:5])

    monkeypatch.setattr(ledger.os, "write", short)
    monkeypatch.setattr("privet.rounds.keep.journal.sync_directory", synced.append)
    journal = Journal(tmp_path / "asked.jsonl")
    journal.begin()
    journal.add(1, Request(1, ("a", "b")))
    assert read_journal(journal.path, 0) == [Request(1, ("a", "b"))]
    assert synced == [tmp_path]


@pytest.mark.parametrize("lost", ["", "checkpoint.npz"])
def test_a_refused_resume_leaves_what_a_finished_run_wrote(tmp_path: Path, lost: str) -> None:
    finished = play(tmp_path, Counter(), private=True)
    if lost:
        (finished.folder / lost).unlink()
    files = ("privacy.json", "summary.json", "report.html", "statement.html")
    before = {name: (finished.folder / name).read_bytes() for name in files}
    more: dict[str, Any] = {"num-server-rounds": ROUNDS + 2}
    with pytest.raises(HopelessError, match="is of another run: clip"):
        play(tmp_path, Counter(), private=True, clip=2.0, **more)
    assert {name: (finished.folder / name).read_bytes() for name in files} == before


def test_a_private_run_goes_on_in_one_other_folder_alone(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()
    dies(tmp_path, asked, 3, private=True)
    source = str(tmp_path / "run")
    first = play(tmp_path / "one", asked, private=True, resume=source, name="one")
    assert not asked - charged(first)
    sent = Counter(asked)
    there = f"went on in {first.folder.absolute()}"
    with pytest.raises(HopelessError, match=there):
        play(tmp_path / "two", asked, private=True, resume=source, name="two")
    with pytest.raises(HopelessError, match=there):
        play(tmp_path, asked, private=True)
    assert asked == sent


def test_the_newest_private_run_is_the_one_that_was_noted(tmp_path: Path) -> None:
    """Neither an emptied folder nor a copy with newer times is passed over for another."""
    asked: Counter[str] = Counter()
    dies(tmp_path, asked, 3, private=True)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    dies(tmp_path, asked, 3, private=True)
    for file in (tmp_path / "copy").iterdir():
        file.touch()
    finished = play(tmp_path, asked, private=True)
    assert finished.folder == tmp_path / "run"
    assert not asked - charged(finished)
    for file in (tmp_path / "run").iterdir():
        file.unlink()
    with pytest.raises(HopelessError, match="is not there, or holds no run"):
        play(tmp_path, asked, private=True)


@pytest.mark.parametrize("note", [b"", b"\xff\xfe", b"a/b\n", b"two\nlines\n", b"\x00"])
def test_a_note_of_the_newest_private_run_that_names_none_says_what_to_do(
    tmp_path: Path, note: bytes
) -> None:
    asked: Counter[str] = Counter()
    dies(tmp_path, asked, 3, private=True)
    file = tmp_path / ".newest-private-run"
    assert file.read_text() == "run\n"
    file.write_bytes(note)
    with pytest.raises(HopelessError, match="write the name of the newest private run's folder"):
        play(tmp_path, asked, private=True)
    finished = play(tmp_path, asked, private=True, resume=str(tmp_path / "run"))
    assert not asked - charged(finished)
    assert file.read_text() == "run\n"


def test_what_killed_processes_were_writing_is_removed(tmp_path: Path) -> None:
    dies(tmp_path, Counter(), 3, private=True)
    left = [tmp_path / "run" / f".{name}.{'0' * 16}.tmp" for name in ("model.npz", "asked.jsonl")]
    others = [tmp_path / "run" / name for name in (".my.tmp", "notes.tmp")]
    for file in (*left, *others):
        file.touch()
    play(tmp_path, Counter(), private=True)
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in others)


def test_a_run_that_was_killed_before_it_asked_anybody_is_to_be_begun_anew(tmp_path: Path) -> None:
    where = tmp_path / "run"
    where.mkdir()
    Journal(where / "asked.jsonl").begin()
    (where / "history.jsonl").touch()
    with pytest.raises(ConfigError, match="before it asked an agent: begin it anew") as refused:
        play(tmp_path, Counter(), private=True, resume=str(where))
    assert "\n" not in str(refused.value)
    Journal(where / "asked.jsonl").add(1, Request(1, ("0",)))
    with pytest.raises(ConfigError, match=r"no checkpoint at .*checkpoint.npz$"):
        play(tmp_path, Counter(), private=True, resume=str(where))


def test_a_lock_that_is_a_link_is_neither_followed_nor_emptied(tmp_path: Path) -> None:
    folder, other = RunFolder.create(str(tmp_path), "r"), tmp_path / "other"
    with folder.held():
        pass
    (folder.path / ".lock").unlink()
    other.write_text("kept")
    (folder.path / ".lock").symlink_to(other)
    with pytest.raises(RunError, match=r"run folder .*: \.lock: "), folder.held():
        pass
    assert other.read_text() == "kept"


AT_THE_END = ("model.npz", "privacy.json", "summary.json", "statement.html", "report.html")
"""What a private run writes after its last round, in this order."""


@pytest.mark.parametrize("written", range(len(AT_THE_END)))
@pytest.mark.parametrize("again", ["same", "other"])
def test_a_run_killed_after_its_last_checkpoint_is_finished_by_name(
    tmp_path: Path, written: int, again: str
) -> None:
    asked: Counter[str] = Counter()
    first = play(tmp_path, asked, private=True)
    sent, model = Counter(asked), bits(first)
    for name in AT_THE_END[written:]:
        (first.folder / name).unlink()
    name = "run" if again == "same" else "finished"
    finished = play(tmp_path, asked, private=True, resume=str(first.folder), name=name)
    assert asked == sent
    assert charged(finished) == sent
    assert np.array_equal(bits(finished), model)
    assert finished.summary["rounds"] == ROUNDS
    assert finished.summary["exit-code"] == 0
    assert all((finished.folder / name).exists() for name in AT_THE_END)


def test_outputs_of_fewer_rounds_are_not_those_of_the_last(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()
    first = play(tmp_path, asked, private=True, num_server_rounds=4)
    old = {name: (first.folder / name).read_bytes() for name in AT_THE_END}
    more: dict[str, Any] = {"private": True, "resume": str(first.folder)}
    play(tmp_path, asked, **more)
    for name in AT_THE_END:  # as if it had been killed before it wrote any of them
        (first.folder / name).write_bytes(old[name])
    finished = play(tmp_path, asked, **more)
    assert finished.summary["rounds"] == ROUNDS
    assert charged(finished) == asked
    with pytest.raises(ConfigError, match=f"has played round {ROUNDS}: ask for more rounds"):
        play(tmp_path, asked, **more)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("lost", ["", "privacy.json", "asked.jsonl"])
def test_no_run_begins_in_the_folder_of_a_private_one(
    tmp_path: Path, lost: str, private: bool
) -> None:
    """Its account, and what its agents have spent since, would be lost without a line."""
    asked: Counter[str] = Counter()
    play(tmp_path, asked, private=True, num_server_rounds=2)
    play(tmp_path, asked, private=private, num_server_rounds=2, name="other", resume="new")
    (tmp_path / "run" / (lost or "report.html")).unlink()
    there = {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.*")}
    for resume in ("new", "", str(tmp_path / "other")):
        before = Counter(asked)
        with pytest.raises(ConfigError, match="holds a private run") as refused:
            play(tmp_path, asked, private=private, resume=resume)
        assert "\n" not in str(refused.value)
        assert asked == before
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.*")} == there


@pytest.mark.parametrize("lost", ["asked.jsonl", "checkpoint.npz", "history.jsonl"])
def test_no_private_run_begins_where_a_run_has_begun(tmp_path: Path, lost: str) -> None:
    """One that was killed has no account, and what it asked for may be lost with its journal."""
    asked: Counter[str] = Counter()
    dies(tmp_path, asked, 3, private=True)
    for name in {"asked.jsonl", "privacy.json", lost}:
        (tmp_path / "run" / name).unlink()
    before = Counter(asked)
    with pytest.raises(ConfigError, match="holds a run: set resume"):
        play(tmp_path, asked, private=True, resume="new")
    assert asked == before


def test_a_live_private_run_is_not_resumed_elsewhere(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()
    dies(tmp_path, asked, 3, private=True)
    sent, source = Counter(asked), RunFolder(tmp_path / "run")
    with source.held(), pytest.raises(RunError, match="run is in use by another process"):
        play(tmp_path / "two", asked, private=True, resume=str(source.path), name="two")
    assert asked == sent
    charged(play(tmp_path / "two", asked, private=True, resume=str(source.path), name="two"))


@pytest.mark.parametrize("name", ["run", "another"])
def test_nobody_plays_a_run_between_its_loading_and_its_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """While ``resume = auto`` reads data another process asks for the same run by its folder."""
    asked: Counter[str] = Counter()
    dies(tmp_path, asked, 3, private=True)
    module = sys.modules["privet.server_apps.execute"]
    whole, others = module.build_evaluation, list[str]()

    def meanwhile(config: Any) -> Any:
        if config["num-server-rounds"] == ROUNDS:
            more: dict[str, Any] = {"resume": str(tmp_path / "run"), "num_server_rounds": 5}
            try:
                play(tmp_path, asked, private=True, name=name, **more)
            except RunError as error:
                others.append(str(error))
        return whole(config)

    monkeypatch.setattr(module, "build_evaluation", meanwhile)
    finished = play(tmp_path, asked, private=True)
    assert not asked - charged(finished)
    assert others == [f"run folder {tmp_path / 'run'} is in use by another process"]


def test_of_two_first_starts_at_once_one_is_refused(tmp_path: Path) -> None:
    """Each would find no run, and the account of one would be forgotten."""
    asked: Counter[str] = Counter()

    class Meanwhile(KeepBest):
        def on_begin(self, run: Run) -> None:
            with pytest.raises(RunError, match=f"output-dir {tmp_path} is in use"):
                play(tmp_path, asked, private=True, name="other")
            super().on_begin(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["privet.server_apps.execute"], "KeepBest", Meanwhile)
        finished = play(tmp_path, asked, private=True, keep_best="loss")
    assert charged(finished) == asked
    assert not (tmp_path / "other").exists()


def test_another_private_run_that_did_not_end_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: Counter[str] = Counter()
    for name in ("one", "two"):
        dies(tmp_path, asked, 3, private=True, resume="", name=name)
    (tmp_path / "one" / "summary.json").unlink(missing_ok=True)  # as a process that is lost
    play(tmp_path, asked, private=True)
    line = "two goes on, and its account does not hold what was spent in runs that have not ended"
    assert any(f"{line} either: one" in message for message in caplog.messages)
    caplog.clear()
    play(tmp_path, asked, private=True, num_server_rounds=ROUNDS + 1, resume=str(tmp_path / "one"))
    assert "have not ended either" not in caplog.text


def test_an_output_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output-dir = .*file'?: File exists"):
        play(tmp_path / "file", Counter(), private=True)


def test_a_run_that_goes_on_states_nothing_of_its_earlier_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = play(tmp_path, Counter(), private=True)
    files = ("privacy.json", "summary.json", "report.html", "statement.html")
    assert all((finished.folder / name).exists() for name in files)
    left: list[str] = []

    class Looks(Dies):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            sent = list(messages)
            if any(one.metadata.message_type == "train" for one in sent):
                left.extend(name for name in files if (finished.folder / name).exists())
            return super().push_messages(sent)

    monkeypatch.setitem(globals(), "Dies", Looks)
    play(tmp_path, Counter(), private=True, num_server_rounds=ROUNDS + 2)
    assert not left
    assert all((finished.folder / name).exists() for name in files)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_report_that_fails_leaves_no_older_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    if resumed:
        play(tmp_path, Counter(), private=True)
    module = sys.modules["privet.server_apps.execute"]
    monkeypatch.setattr(module, "write_report", full_disk)
    finished = play(tmp_path, Counter(), private=True, num_server_rounds=ROUNDS + 2)
    assert not (finished.folder / "statement.html").exists()
    assert not (finished.folder / "report.html").exists()


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("resumed", [False, True])
def test_a_summary_says_done_only_beside_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    """A supervisor goes by its exit code, and would not come back for the account."""
    if resumed:
        play(tmp_path, Counter(), private=True)
    whole = RunFolder.write_json

    def write(self: RunFolder, name: str, content: Any) -> None:
        if name == "privacy.json":
            full_disk()
        whole(self, name, content)

    more: dict[str, Any] = {"num-server-rounds": ROUNDS + 2}
    with monkeypatch.context() as full:
        full.setattr(RunFolder, "write_json", write)
        with pytest.raises(RunError, match="resume=auto writes what is missing"):
            play(tmp_path, Counter(), private=True, **more)
    assert not (tmp_path / "run" / "summary.json").exists()
    asked: Counter[str] = Counter()
    finished = play(tmp_path, asked, private=True, **more)
    assert not asked
    assert (finished.folder / "statement.html").exists()


def test_a_private_run_without_a_first_checkpoint_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    with monkeypatch.context() as full:
        full.setattr("privet.rounds.observers.save", full_disk)
        with pytest.raises(RunError, match=r"checkpoint\.npz cannot be written"):
            play(tmp_path, asked, private=True)
        assert not asked
        play(tmp_path / "plain", asked, private=False)
    assert asked
    play(tmp_path, Counter(), private=True, resume="new")


def test_a_best_model_that_cannot_be_written_ends_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, failures = KeepBest._write, [1, 1]

    def write(self: KeepBest, run: Any, number: int) -> None:
        if failures:
            failures.pop()
            full_disk()
        whole(self, run, number)

    monkeypatch.setattr(KeepBest, "_write", write)
    finished = play(tmp_path, Counter(), private=False, **{"keep-best": "loss"})
    assert finished.summary["rounds"] == ROUNDS
    assert "keep-best: the model of round 1, the best so far, is not kept" in caplog.text
    assert (finished.folder / "model-best.npz").exists() == ("best" in finished.summary)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("cut", ["collect", "close_round"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("masked", [False, True])
def test_a_run_that_ends_within_a_round_counts_its_requests(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    cut: str,
    kind: type[BaseException],
    masked: bool,
) -> None:
    """As ``flwr stop`` ends a ServerApp: its account may be the last that is ever written."""
    whole, calls = getattr(Run, cut), [0]

    def ends(self: Run, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == number and cut == "close_round":
            raise kind
        found = whole(self, *arguments)
        if calls[0] == number:
            raise kind
        return found

    asked: Counter[str] = Counter()
    keys: dict[str, Any] = {"private": True, "everybody": True, "secure-sum": masked}
    with monkeypatch.context() as cutting:
        cutting.setattr(Run, cut, ends)
        with pytest.raises(kind):
            play(tmp_path, asked, **keys)
    account = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert {
        name: sum(one["times"] for one in agent["releases"])
        for name, agent in account["agents"].items()
    } == dict(asked)
    assert charged(play(tmp_path, asked, **keys)) == asked


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "not UTF-8": lambda file: file.write_bytes(b"\xff\xfe/srv/x"),
    "zeroed": lambda file: file.write_bytes(bytes(8)),
    "link to nowhere": lambda file: file.symlink_to("nowhere"),
    "link to itself": lambda file: file.symlink_to(file),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "too large": lambda file: file.write_bytes(b"/" + b"x" * (1 << 20)),
    "nested": lambda file: file.write_bytes(b"[" * (1 << 19)),
}
"""Ways in which a small file of a run folder is there and says nothing."""


@pytest.mark.parametrize("how", UNREADABLE)
@pytest.mark.parametrize("file", ["continued", ".newest-private-run", "summary.json"])
def test_a_note_that_cannot_be_read_is_not_taken_for_none(
    tmp_path: Path, file: str, how: str
) -> None:
    """Only a file that is not there says that nothing was noted."""
    asked: Counter[str] = Counter()
    source = play(tmp_path, asked, private=True, num_server_rounds=1).folder
    given, rounds = str(source), 1 if file == "summary.json" else 2
    if file == "continued":
        play(tmp_path, asked, private=True, name="N", resume=given, num_server_rounds=2)
    if file == ".newest-private-run":
        given = "auto"
    note = (tmp_path if given == "auto" else source) / file
    note.unlink()
    UNREADABLE[how](note)
    before = Counter(asked)
    with pytest.raises(HopelessError, match=f"resume: {note} ") as refused:
        play(tmp_path, asked, private=True, name="T", resume=given, num_server_rounds=rounds)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert asked == before


def test_a_copy_of_a_folder_whose_run_went_on_elsewhere_is_closed_as_well(tmp_path: Path) -> None:
    """As ``cp A/* C`` makes one: no note is a hidden file, which that leaves out."""
    asked: Counter[str] = Counter()
    source = play(tmp_path, asked, private=True, num_server_rounds=1).folder
    play(tmp_path, asked, private=True, name="N", resume=str(source), num_server_rounds=2)
    copy = tmp_path / "C"
    copy.mkdir()
    for file in source.glob("[!.]*"):
        shutil.copy(file, copy)
    before = Counter(asked)
    with pytest.raises(HopelessError, match="C went on in "):
        play(tmp_path, asked, private=True, name="C", resume=str(copy), num_server_rounds=2)
    assert asked == before


@pytest.mark.parametrize("how", [how for how in UNREADABLE if how != "empty"])
@pytest.mark.parametrize("file", ["privacy.json", "asked.jsonl", "history.jsonl", "checkpoint.npz"])
def test_a_file_that_cannot_be_read_makes_a_folder_a_run_s(
    tmp_path: Path, file: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A new run by itself would forget what that file states, or stated."""
    (tmp_path / "run").mkdir()
    UNREADABLE[how](tmp_path / "run" / file)
    with pytest.raises(HopelessError, match="set resume = new") as refused:
        play(tmp_path, Counter(), private=True, name="again")
    assert "\n" not in str(refused.value)
    play(tmp_path, Counter(), private=True, name="again", resume="new")
    if file == "privacy.json":
        assert "run: account cannot be read" in caplog.text


@pytest.mark.parametrize("how", [how for how in UNREADABLE if how != "empty"])
@pytest.mark.parametrize("file", ["asked.jsonl", "history.jsonl", "control.toml", "trackers.json"])
def test_a_resume_beside_a_file_that_cannot_be_read_ends_or_charges_all(
    tmp_path: Path, file: str, how: str
) -> None:
    """None of them is waited for, read without an end, or a traceback."""
    asked: Counter[str] = Counter()
    dies(tmp_path, asked, 3, private=True)
    where = tmp_path / "run" / file
    where.unlink(missing_ok=True)
    UNREADABLE[how](where)
    said = ""
    try:
        finished = play(tmp_path, asked, private=True)
    except RunError as error:
        said = str(error)
    if said:
        assert str(where) in said
        assert "\n" not in said
        assert file in ("asked.jsonl", "history.jsonl")
    else:
        assert file != "asked.jsonl"
        assert not asked - charged(finished)


@pytest.mark.parametrize(
    "line",
    [
        '{"request":1,"round":Infinity,"names":["0"],"agents":1,"settings":"{}"}',
        '{"request":1e400,"round":1,"names":["0"],"agents":1,"settings":"{}"}',
        '{"saved":Infinity,"mark":"a"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '"\\ud800"',
    ],
)
def test_a_line_of_a_journal_or_history_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    """Numbers without an integer near them, and nested texts, are damage as any other."""
    file = tmp_path / "asked.jsonl"
    file.write_text(f'{line}\n"end"\n')
    with pytest.raises(HopelessError, match="line 1 is damaged"):
        read_journal(file, 0)
    assert attempts(file, 2) == 0
    history = tmp_path / "history.jsonl"
    history.write_text(f"{line}\n")
    assert read_history(history, 1, "0", 1.0)[0].notes == (NOT_RECORDED,)
    with pytest.raises(HopelessError):
        read_history(history, 1, None, 1.0)


class Writes:
    """Counts the file operations below a folder that change it; from the n-th on, all fail."""

    EVENTS = frozenset({"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate"})

    def __init__(self) -> None:
        self.below, self.count, self.dies_at = "", 0, 0
        sys.addaudithook(self._see)  # there for good, and idle without a folder

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.below or (event not in self.EVENTS and event != "open"):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        if isinstance(arguments[0], int) or not os.fsdecode(arguments[0]).startswith(self.below):
            return
        self.count += 1
        if self.count >= self.dies_at > 0:
            raise Killed

    @contextmanager
    def killed_at(self, below: Path, number: int) -> Iterator[None]:
        """Fail from the operation of this number on, as those of a process that is gone."""
        self.below, self.count, self.dies_at = str(below), 0, number
        try:
            yield
        finally:
            self.below = ""


WRITES = Writes()


@pytest.mark.slow
@pytest.mark.parametrize("order", [("auto", "S", "N"), ("S", "N", "auto"), ("N", "auto", "S")])
@pytest.mark.parametrize("where", ["another folder", "the same folder", "a new run"])
def test_a_kill_at_any_file_operation_lets_one_folder_go_on(
    tmp_path: Path, where: str, order: tuple[str, ...]
) -> None:
    """Whatever goes on afterwards, its account holds every message that was ever sent."""
    number, died = 0, True
    while died:
        number += 1
        base, sent = tmp_path / str(number), Counter[str]()
        keys: dict[str, Any] = {"private": True, "everybody": True, "num_agents": AGENTS}
        if where != "a new run":
            play(base, sent, name="S", num_server_rounds=1, **keys)
        source = "" if where == "a new run" else str(base / "S")
        name = "N" if where == "another folder" else "S"
        died = False
        with WRITES.killed_at(base, number):
            try:
                play(base, sent, name=name, resume=source, num_server_rounds=2, **keys)
            except Killed:
                died = True
        went_on = 0
        for rounds, resume in enumerate(order, 3):
            given = resume if resume == "auto" else str(base / resume)
            before = Counter(sent)
            more = {"num_server_rounds": rounds, "resume": given, "name": f"after-{resume}"}
            try:
                finished = play(base, sent, **more, **keys)
            except (RunError, ConfigError):
                assert sent == before, number
            else:
                went_on += 1
                assert not sent - charged(finished), f"killed at {number}, resume = {resume}"
        if not went_on:  # killed at its start: the line says what to do
            with pytest.raises((RunError, ConfigError), match=r"begin it anew|known to have asked"):
                play(base, sent, name="after", resume=str(base / "S"), **keys)
    assert number > 20
