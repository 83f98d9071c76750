"""Runs that are stopped, resumed by themselves, or meet a full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.client_apps import client_app
from privet.core import RunError
from privet.core.errors import HopelessError
from privet.core.files import read_npz, write_npz
from privet.data import problem_from_context
from privet.rounds.keep.checkpoint import HistoryFile
from privet.server_apps import execute, read_config
from privet.server_apps.control import stopped_by_sigterm
from privet.server_apps.evaluation import Evaluation
from privet.server_apps.execute import headline
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from support.run_files import Killed, settings, summary


def rounds_in(folder: Path) -> list[int]:
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["round"] for line in lines]


def model(folder: Path) -> Any:
    return read_npz(folder / "model.npz")["x"]


def killed_after(monkeypatch: Any, rounds: int) -> None:
    """Let the process end when this round has been written."""
    append = HistoryFile.append

    def once(self: HistoryFile, done: Any) -> None:
        append(self, done)
        if done.round == rounds + 1:
            raise Killed

    monkeypatch.setattr(HistoryFile, "append", once)


@pytest.mark.parametrize("private", [False, True])
def test_files_of_a_run_and_states_of_nodes_are_their_owners_alone(
    tmp_path: Path, private: bool
) -> None:
    """Under the usual umask, also where a file of the name was there before."""
    noise = {"algorithm": "dp-fedsgd", "clip": 1.0, "noise_scale": 1.0}
    keys = settings(tmp_path, num_server_rounds=2, **(noise if private else {}))
    states = [tmp_path / f"state-{place}.npz" for place in range(4)]
    nodes = [
        {"partition-id": place, "num-partitions": 4, "state-path": str(path)}
        for place, path in enumerate(states)
    ]
    before = os.umask(0o022)
    try:
        for rounds in (2, 4):
            raw = {**keys, "num-server-rounds": rounds, "resume": "auto"}
            grid = InlineGrid(client_app(None, problem_from_context), nodes, raw)
            folder = execute(grid, read_config(raw), "run").folder
            for path in (folder / "checkpoint.npz", *states):
                assert path.stat().st_mode & 0o777 == 0o600, path.name
                path.chmod(0o644)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    held = ["model.npz", "history.jsonl", "summary.json", "privacy.json"]
    for name in held + ["asked.jsonl"] * private:
        assert (folder / name).stat().st_mode & 0o777 == 0o600, name


# ------------------------------------------------------------------ resume = "auto"


def test_auto_goes_on_in_the_same_folder_with_one_history(tmp_path: Path, monkeypatch: Any) -> None:
    killed_after(monkeypatch, 2)
    with pytest.raises(Killed):
        run_inline(settings(tmp_path, resume="auto"), "first")
    monkeypatch.undo()
    assert rounds_in(tmp_path / "first") == [1, 2, 3]  # the third has no checkpoint
    finished = run_inline(settings(tmp_path, resume="auto"), "second")
    assert finished.folder == tmp_path / "first"
    assert not (tmp_path / "second").exists()
    assert rounds_in(finished.folder) == [1, 2, 3, 4]
    run_inline(settings(tmp_path / "other"), "run")
    assert np.array_equal(model(finished.folder), model(tmp_path / "other" / "run"))
    again = run_inline(settings(tmp_path, resume="auto"), "third")  # nothing left to play
    assert again.summary["rounds"] == 4


def test_auto_passes_over_no_run_and_new_is_the_word_for_it(tmp_path: Path) -> None:
    run_inline(settings(tmp_path, num_server_rounds=2), "good")
    run_inline(settings(tmp_path, num_server_rounds=3), "bad")
    for path in (tmp_path / "bad").glob("checkpoint*.npz"):
        path.write_bytes(b"no zip")
    with pytest.raises(HopelessError, match=r"bad/checkpoint.npz is damaged.*resume = new") as e:
        run_inline(settings(tmp_path, resume="auto"), "run")
    assert "\n" not in str(e.value)
    finished = run_inline(settings(tmp_path, resume="new"), "run")
    assert finished.folder == tmp_path / "run"
    assert run_inline(settings(tmp_path, resume="auto"), "next").folder == tmp_path / "run"


@pytest.mark.parametrize("damage", [b"no zip", None])
def test_auto_ends_a_private_run_whose_newest_checkpoint_cannot_be_read(
    tmp_path: Path, damage: bytes | None
) -> None:
    private = {"algorithm": "dp-fedsgd", "clip": 1.0, "target-epsilon": 8.0}
    keys = {**settings(tmp_path, num_server_rounds=2, resume="auto"), **private}
    run_inline({**keys, "resume": ""}, "good")
    run_inline({**keys, "resume": "", "num-server-rounds": 3}, "bad")
    checkpoint = tmp_path / "bad" / "checkpoint.npz"
    checkpoint.with_name("checkpoint.previous.npz").write_bytes(b"no zip")
    if damage is None:  # as an earlier version wrote it
        members = read_npz(checkpoint)
        manifest = {**json.loads(members["manifest"].tobytes()), "format": 1}
        text = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
        write_npz(checkpoint, {**members, "manifest": text})
    else:
        checkpoint.write_bytes(damage)
    for _ in range(3):  # as a supervisor would
        with pytest.raises(RunError, match="a run does not begin anew") as ended:
            run_inline(keys, "again")
        assert "\n" not in str(ended.value)
        assert str(checkpoint) in str(ended.value)
    assert not (tmp_path / "again").exists()
    finished = run_inline({**keys, "resume": ""}, "again")  # on purpose
    assert finished.summary["rounds"] == 2


def test_auto_begins_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert run_inline(settings(tmp_path, resume="auto"), "run").folder == tmp_path / "run"


# ------------------------------------------------------------------ resume compares


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"h": "l1", "h-weight": 0.1}, "h Zero() -> ElasticNet"),
    ({"regularizer-weight": 0.2}, "regularizer-weight -1.0 -> 0.2"),
    ({"partition-seed": 3}, "partition-seed 0 -> 3"),
    ({"data-seed": 3}, "data-seed 42 -> 3"),
    ({"dataset": "regression"}, "dataset synthetic -> regression"),
    ({"examples-per-agent": 30}, "examples-per-agent 20 -> 30"),
    ({"participation": "fraction", "fraction": 0.5}, "participation All() -> Fraction"),
    ({"num-agents": 5}, "num-agents 4 -> 5"),
    ({"seed": 1}, "seed 0 -> 1"),
    ({"rho": 3.0}, "rho 1.0 -> 3.0"),
    ({"returned-model": "mean"}, "returned-model y -> mean"),
]


@pytest.mark.parametrize(("change", "line"), CHANGES)
def test_a_change_of_what_is_computed_is_refused_and_named(
    tmp_path: Path, change: dict[str, Any], line: str
) -> None:
    run_inline(settings(tmp_path, num_server_rounds=1, rho=1.0), "first")
    before = sorted((tmp_path / "first").iterdir())
    resumed = settings(tmp_path, rho=1.0, num_server_rounds=2, resume="auto")
    with pytest.raises(RunError, match="the checkpoint is of another run") as refused:
        run_inline({**resumed, **change}, "second")
    assert line in str(refused.value)
    assert sorted((tmp_path / "first").iterdir()) == before
    assert rounds_in(tmp_path / "first") == [1]
    run_inline(resumed, "third")
    assert rounds_in(tmp_path / "first") == [1, 2]


def test_all_changes_are_named_in_one_line(tmp_path: Path) -> None:
    run_inline(settings(tmp_path, num_server_rounds=1, rho=1.0), "first")
    resumed = settings(tmp_path, rho=2.0, data_seed=3, resume=str(tmp_path / "first"))
    with pytest.raises(RunError) as refused:
        run_inline(resumed, "second")
    assert str(refused.value) == (
        "resume: the checkpoint is of another run: data-seed 42 -> 3, rho 1.0 -> 2.0; ask for "
        "what it was, or begin a new run"
    )
    assert not (tmp_path / "second").exists()
    assert rounds_in(tmp_path / "first") == [1]


def test_what_only_says_how_a_run_is_operated_is_no_change(tmp_path: Path, caplog: Any) -> None:
    run_inline(settings(tmp_path, num_server_rounds=1), "first")
    operated = {"patience": 1.0, "round_timeout": 9.0, "evaluate_every": 2, "checkpoint_every": 3}
    run_inline(settings(tmp_path, resume=str(tmp_path / "first"), **operated), "second")
    assert "resume:" not in caplog.text


def test_another_version_of_the_library_is_named(
    tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("privet.rounds.keep.snapshot.library_version", lambda: "0.0.1")
    run_inline(settings(tmp_path, num_server_rounds=1), "first")
    monkeypatch.undo()
    finished = run_inline(settings(tmp_path, resume=str(tmp_path / "first")), "second")
    assert f"library-version 0.0.1 -> {finished.summary['library-version']}" in caplog.text


# ------------------------------------------------------------------ full disks


class Full:
    """Lets writes to chosen files fail as on a full disk while ``files`` names them."""

    def __init__(self, monkeypatch: Any, *files: str) -> None:
        self.files = set(files)
        opened, created = Path.open, os.open

        def create(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_CREAT and any(name in Path(path).name for name in self.files):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return created(path, flags, *args, **kwargs)

        def open_(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = set(mode) & set("wa+")
            if writes and any(name in path.name for name in self.files):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return opened(path, mode, *args, **kwargs)

        monkeypatch.setattr(Path, "open", open_)
        monkeypatch.setattr(os, "open", create)


def test_failed_checkpoints_are_in_history_summary_and_exit_message(
    tmp_path: Path, monkeypatch: Any
) -> None:
    full = Full(monkeypatch)

    def watch(self: HistoryFile, done: Any) -> None:
        append(self, done)
        if done.round == 2:
            full.files.add("checkpoint")

    append = HistoryFile.append
    monkeypatch.setattr(HistoryFile, "append", watch)
    finished = run_inline(settings(tmp_path), "run")
    said = summary(tmp_path / "run")
    assert (said["status"], said["rounds"]) == ("completed", 4)
    assert (said["checkpoint-round"], said["checkpoint-failures"]) == (1, 3)
    assert "No space left" in said["checkpoint-error"]
    assert headline(said)["checkpoint"].startswith("of round 1; 3 could not be written")
    (note,) = json.loads((finished.folder / "history.jsonl").read_text().splitlines()[2])["notes"]
    assert note.startswith("checkpoint of round 2 not written")


def test_a_history_that_cannot_be_written_for_a_while_is_whole_in_the_end(
    tmp_path: Path, monkeypatch: Any
) -> None:
    full = Full(monkeypatch)
    append = HistoryFile.append

    def watch(self: HistoryFile, done: Any) -> None:
        if done.round == 2:
            full.files.add("history")
        if done.round == 4:
            full.files.clear()
        append(self, done)

    monkeypatch.setattr(HistoryFile, "append", watch)
    run_inline(settings(tmp_path), "run")
    assert rounds_in(tmp_path / "run") == [1, 2, 3, 4]
    monkeypatch.undo()
    finished = run_inline(settings(tmp_path, num_server_rounds=5, resume="auto"), "run")
    assert rounds_in(finished.folder) == [1, 2, 3, 4, 5]


def test_a_line_that_a_full_disk_cut_is_written_anew(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history.jsonl")
    file.begin([])
    with file.path.open("ab") as cut:
        cut.write(b'{"round": 1, "particip')
    file._waiting = b"whole\n"
    file.flush()
    assert file.path.read_bytes() == b"whole\n"


def test_a_full_disk_at_the_end_is_one_line_and_a_folder_to_resume(
    tmp_path: Path, monkeypatch: Any
) -> None:
    full = Full(monkeypatch, "model", "summary", "privacy", "report")
    with pytest.raises(RunError, match="No space left on device; the run is over") as caught:
        run_inline(settings(tmp_path), "run")
    assert "\n" not in str(caught.value)
    full.files.clear()
    assert not (tmp_path / "run" / "summary.json").exists()  # nothing half written
    finished = run_inline(settings(tmp_path, resume="auto"), "again")
    assert summary(finished.folder)["status"] == "completed"
    assert (finished.folder / "report.html").exists()


def test_a_folder_that_cannot_be_written_at_the_start_is_one_line(
    tmp_path: Path, monkeypatch: Any
) -> None:
    Full(monkeypatch, "history")
    with pytest.raises(RunError, match=r"history.jsonl cannot be written: No space left"):
        run_inline(settings(tmp_path), "run")


def test_what_a_checkpoint_costs_does_not_grow_with_the_rounds(tmp_path: Path) -> None:
    run_inline(settings(tmp_path, num_server_rounds=5), "short")
    run_inline(settings(tmp_path, num_server_rounds=200), "long")
    sizes = [(tmp_path / name / "checkpoint.npz").stat().st_size for name in ("short", "long")]
    assert abs(sizes[1] - sizes[0]) < 100


# ------------------------------------------------------------------ stopping


def test_sigterm_ends_a_run_after_its_round(tmp_path: Path) -> None:
    keys = settings(tmp_path, num_server_rounds=1_000_000, evaluate_every=1000, tolerance=0)
    arguments = [f"{key}={value}" for key, value in keys.items()]
    command = [sys.executable, "-m", "privet.cli", "run", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not list(tmp_path.glob("*/checkpoint.npz")) and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        text, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, text
    (folder,) = tmp_path.iterdir()
    said = summary(folder)
    assert (said["status"], said["stopped"]) == ("stopped", "request")
    assert f"rounds: {said['rounds']} (stopped by request)" in text
    assert said["rounds"] == said["checkpoint-round"] == rounds_in(folder)[-1]
    assert (folder / "report.html").exists()
    more = said["rounds"] + 2
    again = run_inline({**keys, "num-server-rounds": more, "resume": "auto"}, "again")
    assert again.summary["rounds"] == more


def test_an_interrupt_that_python_drops_ends_the_run_after_its_round(monkeypatch: Any) -> None:
    """It drops every exception that is raised while it frees an object."""
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: dropped.append(what.exc_type))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    stopping = threading.Event()

    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    try:
        with stopped_by_sigterm(stopping):
            freed = Freed()
            del freed
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert dropped == [KeyboardInterrupt]
    assert stopping.is_set()


def test_a_server_app_that_flower_stops_says_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    """``flwr stop`` raises SystemExit wherever the ServerApp is."""
    append = HistoryFile.append

    def stop(self: HistoryFile, done: Any) -> None:
        append(self, done)
        if done.round == 3:
            raise SystemExit(0)

    monkeypatch.setattr(HistoryFile, "append", stop)
    with pytest.raises(SystemExit):
        run_inline(settings(tmp_path), "run")
    said = summary(tmp_path / "run")
    assert (said["status"], said["stopped"], said["rounds"]) == ("stopped", "request", 3)
    assert "cause" not in said
    assert (tmp_path / "run" / "report.html").exists()


# ------------------------------------------------------------------ the centralised optimum


@pytest.mark.parametrize("error", [MemoryError("7.28 TiB"), ZeroDivisionError("x")])
def test_no_optimum_fails_a_run(tmp_path: Path, monkeypatch: Any, error: Exception) -> None:
    def broken(self: Evaluation) -> Any:
        raise error

    monkeypatch.setattr(Evaluation, "_by_scikit_learn", broken)
    finished = run_inline(settings(tmp_path), "run")
    assert finished.summary["status"] == "completed"
    assert finished.summary["distance-to-optimum"] is None


def test_the_optimum_of_a_large_model_is_not_sought(tmp_path: Path, monkeypatch: Any) -> None:
    """scikit-learn would ask for a Hessian of 800 MB here, and of 7.28 TiB at d = 1e6."""
    monkeypatch.setattr(
        "privet.server_apps.evaluation._scikit_learn_optimum",
        lambda *_: pytest.fail("a Hessian of 10,000 x 10,000"),
    )
    keys = settings(tmp_path, num_server_rounds=1, features=10_000)
    assert run_inline(keys, "run").summary["distance-to-optimum"] is None
