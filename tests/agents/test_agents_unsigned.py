"""A node with limits says what it means that its SuperNode runs unsigned apps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privet.agents import unsigned
from privet.agents.unsigned import UNSIGNED, supernode_command
from privet.client_apps import client_app
from privet.problems import RidgeRegression
from privet.sim.engine import InlineGrid
from privet.wire import ENROL
from privet.wire.contract import CONTRACT_VERSION
from support.told import own_log


def tree(folder: Path, *commands: list[str]) -> int:
    """Write processes as ``/proc`` shows them, each the parent of the one before."""
    for place, words in enumerate(commands):
        (at := folder / str(100 + place)).mkdir()
        (at / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
        (at / "stat").write_text(f"{100 + place} (a (b) c) S {101 + place} 1 1 0\n")
    return 100


CLIENT = ["/venv/bin/python", "/venv/bin/flwr-clientapp", "--token", "t"]
SUPEREXEC = ["/venv/bin/python", "/venv/bin/flower-superexec"]
NODE = ["/venv/bin/python", "/venv/bin/flower-supernode", "--superlink", "a:9092"]


def test_the_supernode_above_a_process_is_found(tmp_path: Path) -> None:
    pid = tree(tmp_path, CLIENT, SUPEREXEC, NODE)
    words = supernode_command(tmp_path, pid)
    assert words is not None
    assert words[:4] == NODE
    assert supernode_command(tmp_path, pid + 50) is None
    (other := tmp_path / "other").mkdir()
    assert supernode_command(other, tree(other, CLIENT, SUPEREXEC)) is None
    assert supernode_command() is None  # this is a test


@pytest.mark.parametrize(
    ("options", "rules", "warned"),
    [
        ([], {"max-clip": 1.0}, True),
        (["--trusted-entities", "trusted.yaml"], {"max-clip": 1.0}, False),
        (["--trusted-entities=trusted.yaml"], {"max-clip": 1.0}, False),
        ([], {}, False),  # without limits there are none to keep
        (None, {"max-clip": 1.0}, False),  # it cannot be seen
    ],
)
def test_a_node_with_limits_says_so_once_a_run(
    options: list[str] | None,
    rules: dict[str, Any],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = None if options is None else [*NODE, *options]
    monkeypatch.setattr(unsigned, "supernode_command", lambda: words)
    problem = RidgeRegression([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
    grid = InlineGrid(client_app(None, lambda context: problem), [{"agent": "me", **rules}])
    asked = {"contract": CONTRACT_VERSION, "protocol": "fed-plt", "version": 1}
    asked |= {"experiment": "e", "quiet": True, "secure-sum": False}
    with own_log() as said:
        for _ in range(3):
            content = RecordDict({"privet": ConfigRecord(asked)})
            (reply,) = grid.send_and_receive([Message(content, 1000, ENROL)])
            assert reply.has_content()
    assert said.lines.count(UNSIGNED) == warned
