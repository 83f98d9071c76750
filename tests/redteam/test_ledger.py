"""The ledger on disk: what it may be, what is noticed when it is touched, and what it shows."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.problems import L2, BinaryLogistic
from redteam.harness import PRIVATE, Node, privet, privet_json, spent

MEMORY = 2 << 30
"""Address space of the process that is given a ledger without end."""


def problem() -> BinaryLogistic:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((20, 3))
    return BinaryLogistic(rows, np.where(rng.random(20) < 0.5, 1.0, -1.0), regularizer=L2(0.1))


# ------------------------------------------------------------------ regular files only


ONE_MESSAGE = """
import sys
from pathlib import Path
from redteam.harness import Node
from redteam.test_ledger import problem
answer = Node(Path("/"), problem(), ledger_path=sys.argv[1]).train("dp-fedsgd")
print("sent" if answer.refusal is None else answer.refusal)
"""


@pytest.mark.parametrize("kind", ["/dev/zero", "/dev/full", "/dev/null", "fifo", "folder", "pipe"])
def test_a_ledger_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    """In a process of its own, which may take 2 GiB and a minute: neither is needed."""
    path = kind
    if kind in ("fifo", "pipe"):
        path = str(tmp_path / kind)
        os.mkfifo(path)
    elif kind == "folder":
        path = str(tmp_path)
    # Somebody may hold the other end, so that opening it does not block.
    other = os.open(path, os.O_RDWR) if kind == "pipe" else None
    try:
        done = subprocess.run(
            [sys.executable, "-c", ONE_MESSAGE, path],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        )
    finally:
        if other is not None:
            os.close(other)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.startswith("agent me: ")
    assert "ledger" in done.stdout
    assert "MemoryError" not in done.stderr


def test_the_nodes_log_says_why_and_the_reply_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every round anew, with the same line."""
    node = Node(tmp_path, problem(), ledger_path=str(tmp_path))
    said = {node.train(name, round_=number).refusal for name in PRIVATE for number in (1, 2)}
    (refusal,) = said
    assert refusal == "agent me: budget: this node's ledger cannot take the charge"
    assert "Is a directory" in caplog.text
    assert str(tmp_path) in caplog.text


# ------------------------------------------------------------------ edits


def filled(folder: Path, messages: int = 6) -> Node:
    """Return a node whose ledger holds so many charges, not all alike."""
    folder.mkdir(exist_ok=True)
    node = Node(folder, problem(), max_epsilon=1e3)
    for number in range(messages):
        answer = node.train("dp-fedsgd", round_=number + 1, noise_scale=0.5 + 0.1 * number)
        assert answer.refusal is None
    return node


def dropped(line: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: lines[:line] + lines[line + 1 :]


def louder(line: int) -> Callable[[list[bytes]], list[bytes]]:
    def edit(lines: list[bytes]) -> list[bytes]:
        entry = json.loads(lines[line])
        entry["release"]["scale"] *= 10.0
        lines[line] = json.dumps(entry, separators=(",", ":")).encode()
        return lines

    return edit


def joined(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2] + lines[3] + lines[4], *lines[5:]]


def swapped(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def copied(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[-1]]


def renoted(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b"round 3", b"round 9") for line in lines]


EDITS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a line deleted in the middle": dropped(2),
    "the first line deleted": dropped(0),
    "a scale edited": louder(1),
    "the last scale edited": louder(5),
    "three lines joined": joined,
    "two lines swapped": swapped,
    "the last line written again": copied,
    "a note edited": renoted,
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits_are_noticed(edit: str, tmp_path: Path) -> None:
    node = filled(tmp_path / "node")
    code, said = privet("ledger", str(node.ledger), "--json")
    assert code == 0, said
    before = node.written
    lines = EDITS[edit](before.splitlines())
    node.ledger.write_bytes(b"\n".join(lines) + b"\n")
    assert node.written != before
    code, said = privet("ledger", str(node.ledger), "--json")
    assert code != 0
    assert "line" in said


@pytest.mark.parametrize("edit", ["the last scale edited", "three lines joined"])
def test_an_edited_ledger_does_not_stretch_the_budget(edit: str, tmp_path: Path) -> None:
    """Where the next charge does not see it, it counts what was spent all the same."""
    node = filled(tmp_path / "node")
    epsilon = spent(node.ledger)
    node.ledger.write_bytes(b"\n".join(EDITS[edit](node.written.splitlines())) + b"\n")
    edited = node.written
    answer = node.train("dp-fedsgd", round_=7, noise_scale=0.5)
    if answer.refusal is not None:
        assert node.written == edited
        return
    (entry,) = node.written[len(edited) :].splitlines()
    assert entry
    fresh = filled(tmp_path / "fresh")
    assert fresh.train("dp-fedsgd", round_=7, noise_scale=0.5).refusal is None
    assert spent(fresh.ledger) > epsilon
    limited = Node(tmp_path / "node", problem(), max_epsilon=spent(fresh.ledger))
    assert limited.train("dp-fedsgd", round_=8, noise_scale=0.5).refusal is not None


# ------------------------------------------------------------------ what it shows


def test_the_command_shows_what_was_spent_by_run(tmp_path: Path) -> None:
    node = filled(tmp_path / "node", 3)
    again = Node(tmp_path / "node", problem(), max_epsilon=1e3)  # another run of the same agent
    last = again.train("dp-fedsgd", noise_scale=0.7)
    shown = privet_json("ledger", str(node.ledger))
    assert shown["messages"] == 4
    assert len(shown["runs"]) == 2
    assert 0 < shown["epsilon"] < np.inf
    assert last.epsilon <= shown["epsilon"]
    code, text = privet("ledger", str(node.ledger))
    assert code == 0
    assert f"{shown['epsilon']:.4g}" in text


def test_the_ledger_the_upload_and_the_account_say_one_number(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", problem(), max_epsilon=1e3)
    told: list[Any] = [
        node.train("dp-fedsgd", round_=number, tag=number - 1, noise_scale=0.5).epsilon
        for number in range(1, 8)
    ]
    assert f"{told[-1]:.10g}" == f"{spent(node.ledger):.10g}"
    assert told == sorted(told)
