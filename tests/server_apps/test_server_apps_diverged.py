"""A private run that diverged: whatever ends it, it is of no use and nothing is stated of it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from privet.core.errors import FruitlessError
from privet.core.exits import Exit
from privet.server_apps.report import plots
from privet.server_apps.report.files import STATEMENT
from privet.sim.inline import run_inline
from support.cli import privet

ROUNDS = 4
DIVERGING = {"algorithm": "dp-fedsgd", "dataset": "synthetic", "loss": "ridge", "num-agents": 3,
             "examples-per-agent": 50, "features": 3, "num-server-rounds": ROUNDS, "clip": 1.0,
             "target-epsilon": 3.0, "step-size-base": 1e8, "step-size-rule": "constant",
             "baseline-seconds": 0.0}  # fmt: skip


class Killed(BaseException):
    """A process that ends at once."""


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "have_matplotlib", lambda: False)


def ending(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """End the run after this round's line is in the history."""
    from privet.rounds.observers import HistoryFile

    append = HistoryFile.append

    def watch(self: HistoryFile, done: Any) -> None:
        append(self, done)
        if done.round == number:
            raise error

    monkeypatch.setattr(HistoryFile, "append", watch)


def killed(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, **more: Any) -> Path:
    """Return the folder of a run whose process was killed after a round."""
    with monkeypatch.context() as patch:
        ending(patch, number, Killed())
        execute = import_module("privet.server_apps.execute")
        patch.setattr(execute, "finish_failed", lambda *_, **__: None)
        with pytest.raises(Killed):
            run_inline({**DIVERGING, "output-dir": str(folder), **more}, "run")
    return folder / "run"


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def charged(folder: Path) -> int:
    """Return the messages that the account of the first agent counts."""
    account = json.loads((folder / "privacy.json").read_text())
    return sum(one.get("times", 1) for one in account["agents"]["0"]["releases"])


def require_nothing_stated(folder: Path) -> None:
    assert not (folder / STATEMENT).exists()
    code, _, said = privet("statement", folder)
    assert code == 2
    assert "no model to state this of: it diverged" in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(0), Exit.FRUITLESS),  # as `flwr stop` ends a ServerApp
        (RuntimeError("a disk"), Exit.FRUITLESS),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)
def test_whatever_ends_it_nothing_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: Exit
) -> None:
    ending(monkeypatch, 3, error)
    with pytest.raises(type(error)):
        run_inline({**DIVERGING, "output-dir": str(tmp_path)}, "run")
    summary = summary_of(tmp_path / "run")
    assert summary["exit-code"] == code
    assert "round 1" in summary["diverged"]
    require_nothing_stated(tmp_path / "run")


@pytest.mark.parametrize("resume", ["auto", "run"])
def test_a_kill_before_its_summary_makes_it_no_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    folder = killed(tmp_path, monkeypatch, ROUNDS)
    again = {**DIVERGING, "output-dir": str(tmp_path)}
    summary = run_inline({**again, "resume": resume if resume == "auto" else str(folder)}, "run")
    assert summary.summary["status"] == "diverged"
    assert summary_of(folder)["exit-code"] == Exit.FRUITLESS
    assert charged(folder) == ROUNDS
    require_nothing_stated(folder)


@pytest.mark.parametrize("removed", ["summary.json", "report.html"])
def test_neither_does_a_file_that_is_gone(tmp_path: Path, removed: str) -> None:
    config = {**DIVERGING, "output-dir": str(tmp_path)}
    folder = run_inline(config, "run").folder
    assert summary_of(folder)["exit-code"] == Exit.FRUITLESS
    (folder / removed).unlink()
    run_inline({**config, "resume": str(folder)}, "run")
    assert summary_of(folder)["exit-code"] == Exit.FRUITLESS
    require_nothing_stated(folder)


def test_nobody_is_asked_once_diverging_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"on-divergence": "stop"}
    folder = killed(tmp_path, monkeypatch, 1, **ends)
    with pytest.raises(FruitlessError, match=r"diverged, .* in round 1"):
        run_inline({**DIVERGING, "output-dir": str(tmp_path), **ends, "resume": "auto"}, "run")
    assert summary_of(folder)["exit-code"] == Exit.FRUITLESS
    assert charged(folder) == 1


def without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda summary: summary.pop(key)


@pytest.mark.parametrize(
    "changes",
    [
        [lambda said: said.update({"exit-code": 0})],
        [lambda said: said.update({"exit-code": 0, "status": "completed"}), without("diverged")],
    ],
    ids=["exit code", "all of the summary"],
)
def test_no_edit_of_the_summary_makes_a_statement(
    tmp_path: Path, changes: list[Callable[[dict[str, Any]], Any]]
) -> None:
    folder = run_inline({**DIVERGING, "output-dir": str(tmp_path)}, "run").folder
    summary = summary_of(folder)
    for change in changes:
        change(summary)
    (folder / "summary.json").write_text(json.dumps(summary))
    require_nothing_stated(folder)


def test_no_edit_of_notes_summary_and_digest_together_makes_a_statement(tmp_path: Path) -> None:
    """The numbers of the history say it as well."""
    folder = run_inline({**DIVERGING, "output-dir": str(tmp_path)}, "run").folder
    history = folder / "history.jsonl"
    rounds = [{**json.loads(line), "notes": []} for line in history.read_text().splitlines()]
    history.write_text("".join(json.dumps(done) + "\n" for done in rounds))
    summary = summary_of(folder)
    summary |= {"exit-code": 0, "status": "completed"}
    del summary["diverged"]
    summary["sha-256"]["history.jsonl"] = hashlib.sha256(history.read_bytes()).hexdigest()
    (folder / "summary.json").write_text(json.dumps(summary))
    require_nothing_stated(folder)
    code, _, said = privet("statement", folder, "--verify")
    assert (code, "it diverged, " in said) == (2, True)


def test_the_round_says_so_in_the_history_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = run_inline({**DIVERGING, "output-dir": str(tmp_path)}, "run").folder
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    noted = {done["round"]: done.get("notes", []) for done in lines if done.get("notes")}
    (note,) = noted.pop(1)
    assert not noted
    assert note.startswith("this run diverges, ")
    assert sum("this run diverges" in line for line in caplog.messages) == 1
