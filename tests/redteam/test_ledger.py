"""A ledger that cannot be kept refuses the reply, and says why to its own node alone.

What is noticed when its lines are touched is in tests/kernel/test_kernel_ledger.py.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from redteam.harness import PRIVATE, Node, problem

MEMORY = 2 << 30
"""Address space of the process that is given a ledger without end."""


ONE_MESSAGE = """
import sys
from pathlib import Path
from redteam.harness import Node, problem
answer = Node(Path("/"), problem(), ledger_path=sys.argv[1]).train("dp-fedsgd")
print("sent" if answer.refusal is None else answer.refusal)
"""


def test_a_device_without_end_is_refused() -> None:
    """In a process of its own, which may take 2 GiB and ten minutes: neither is needed."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_MESSAGE, "/dev/zero"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
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
