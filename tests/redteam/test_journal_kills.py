"""A private run that is killed at any place near its end goes on, or ends in order, by itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from privet.client_apps import client_app
from privet.core.errors import FruitlessError
from privet.core.exits import Exit
from privet.data import problem_from_context
from privet.rounds import observers
from privet.rounds.keep.checkpoint import HistoryFile
from privet.rounds.keep.journal import Journal
from privet.rounds.roster import Roster
from privet.server_apps import execute, read_config
from privet.server_apps.run_folder import RunFolder
from privet.sim.engine import InlineGrid
from redteam.harness import spent

AGENTS, ROUNDS, TARGET = 4, 3, 2.0
KEYS: dict[str, Any] = {
    "algorithm": "dp-fedsgd",
    "clip": 1.0,
    "target-epsilon": TARGET,
    "num-agents": AGENTS,
    "num-server-rounds": ROUNDS,
    "partition": "iid",
    "resume": "auto",
}
PLACES = (
    (Journal, "add"),
    (Journal, "saved"),
    (HistoryFile, "append"),
    (observers, "save"),
    (RunFolder, "write_model"),
    (RunFolder, "write_json"),
)


class Kills:
    """Kills this process at the n-th of the places of a run that are counted, with SIGKILL."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def __call__(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            self()
            done = work(*given, **options)
            self()
            return done

        return counted

    def install(self) -> None:
        for owner, name in PLACES:
            setattr(owner, name, self.around(getattr(owner, name)))
        Grid.pull_messages = self.around(Grid.pull_messages)  # type: ignore[method-assign]


class Grid(InlineGrid):
    """A grid in which the run may be killed once the agents have worked."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return list(super().pull_messages(message_ids))


def ledgers_in(folder: Path) -> list[Path]:
    return [folder / f"ledger-{i}" for i in range(AGENTS)]


def play(folder: Path, **keys: Any) -> Any:
    raw = {**KEYS, "output-dir": str(folder / "runs"), **keys}
    nodes = [
        {
            "partition-id": i,
            "num-partitions": AGENTS,
            "max-epsilon": 8.0,
            "delta": 1e-5,
            "ledger-path": str(path),
            "num-examples": 150,
        }
        for i, path in enumerate(ledgers_in(folder))
    ]
    return execute(
        Grid(client_app(None, problem_from_context), nodes, raw), read_config(raw), "run"
    )


def killed(folder: Path, at: int, **keys: Any) -> bool:
    """Play in a process of its own that is killed at a place; whether there was such a place."""
    child = os.fork()
    if not child:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
            os.dup2(nothing.fileno(), 1)
        try:
            Kills(at).install()
            play(folder, **keys)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.fixture(autouse=True)
def no_ledger_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes' ledgers are the truth that the run's own account is compared with."""

    def forget(roster: Roster, delta: float) -> set[str]:
        for agent in roster.agents.values():
            agent.stated = ""
        return set()

    monkeypatch.setattr(Roster, "join_stated", forget)


def require_order(folder: Path, finished: Any) -> dict[str, Any]:
    """Require a model, a summary of a good end, and an account that is the nodes' own."""
    run = finished.folder
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    assert (summary["exit-code"], summary["status"]) == (Exit.DONE, "completed")
    assert (run / "model.npz").exists()
    assert summary["rounds"] >= 1
    account = json.loads((run / "privacy.json").read_text())
    assert account["private"]
    for name, ledger in enumerate(ledgers_in(folder)):
        if ledger.exists():
            said = account["agents"][str(name)]["epsilon"]
            assert spent(ledger) <= said * (1 + 1e-9)
            assert said <= TARGET * (1 + 1e-9)
    assert (run / "statement.html").exists()
    return summary


def places_of(folder: Path, **keys: Any) -> int:
    """Return how many places there are in a run that is not killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            kills = Kills(-1)
            kills.install()
            play(folder, **keys)
            os.write(writer, str(kills.seen).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as said:
        return int(said.read())


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("keys", "ways"),
    [
        pytest.param({}, {"rounds", "budget"}, id="all"),
        pytest.param(
            {"checkpoint-every": 2}, {"rounds", "budget"}, id="two rounds lost", marks=SLOW
        ),
        pytest.param(
            {"participation": "fraction", "fraction": 0.5}, {"rounds"}, id="half", marks=SLOW
        ),
    ],
)
def test_killed_anywhere_in_the_last_two_rounds(
    tmp_path: Path, keys: dict[str, Any], ways: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends with its outputs at the next start, and nobody has to change anything."""
    count = places_of(tmp_path / "whole", **keys)
    ends = set()
    for at in range(2 * (count - 8) // 5, count + 1):
        folder = tmp_path / str(at)
        assert killed(folder, at, **keys)
        caplog.clear()
        summary = require_order(folder, play(folder, **keys))
        ends.add(summary["stopped"])
        spent_lines = [line for line in caplog.messages if "is spent after round" in line]
        assert len(spent_lines) == (summary["stopped"] == "budget")
        assert all(f"after round {summary['rounds']} of {ROUNDS}" in line for line in spent_lines)
    assert ends == ways


@SLOW
@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    """No restart is refused, and no number of them is charged less than the nodes were."""
    random = np.random.default_rng(seed)
    keys: dict[str, Any] = {"checkpoint-every": int(random.integers(1, 4))}
    if seed % 2:
        keys |= {"participation": "fraction", "fraction": 0.5, "min-agents": 2}
    if seed % 4 == 2:
        keys |= {"num-server-rounds": 8}
    for _ in range(int(random.integers(2, 6))):
        killed(tmp_path, int(random.integers(8, 40)), **keys)
    finished = play(tmp_path, **keys)
    require_order(tmp_path, finished)
    again = play(tmp_path, **keys)
    assert require_order(tmp_path, again)["stopped"] == finished.summary["stopped"]
    assert (again.folder, again.summary["rounds"]) == (finished.folder, finished.summary["rounds"])


def test_a_run_that_spent_its_target_before_its_first_round_is_of_no_use(tmp_path: Path) -> None:
    keys = {"num-server-rounds": 1}
    assert killed(tmp_path, 6, **keys)  # after enrolment, a checkpoint and the request
    with pytest.raises(FruitlessError, match="no upload was folded in 0 rounds"):
        play(tmp_path, **keys)
    summary = json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())
    assert (summary["exit-code"], summary["rounds"]) == (Exit.FRUITLESS, 0)
    assert not (tmp_path / "runs" / "run" / "statement.html").exists()
