"""The diff of the documentation, from FedAvg to Privet, on an app of the quickstart's shape."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from support.paths import ROOT
from support.wheel import run

pytest.importorskip("torch", reason="needs the group torch")

APP = ROOT / "tests" / "foreign" / "quickstart_pytorch"
NODES = 5
DRIVER = f"""
import torch
torch.set_num_threads(1)
torch.manual_seed(1)
from flwr.app import Context, RecordDict
from privet.sim import InlineGrid
from pytorchexample import client_app, server_app
nodes = [{{"partition-id": i, "num-partitions": {NODES}}} for i in range({NODES})]
grid = InlineGrid(client_app.app, nodes)
server_app.app(grid, Context(1, 0, {{}}, RecordDict(), {{}}))
"""


def patched(folder: Path, diff: str) -> list[str]:
    """Apply a diff without line numbers to an app's folder, and return the lines it adds."""
    added = []
    for name, changes in re.findall(r"^\+\+\+ b/(\S+)\n(.*?)(?=^--- |\Z)", diff, re.S | re.M):
        text = (folder / name).read_text()
        for hunk in re.split(r"^@@.*\n", changes, flags=re.M)[1:]:
            lines = hunk.splitlines()
            old = "".join(f"{line[1:]}\n" for line in lines if line[0] == "-")
            new = [line[1:] for line in lines if line[0] == "+"]
            assert text.count(old) == 1, old
            text = text.replace(old, "".join(f"{line}\n" for line in new))
            added += new
        (folder / name).write_text(text)
    return added


def accuracies(folder: Path) -> list[float]:
    done = run(sys.executable, "-c", DRIVER, cwd=folder, timeout=300.0)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_the_diff_of_the_documentation_turns_fed_avg_into_privet(tmp_path: Path) -> None:
    shutil.copytree(APP, tmp_path / "app")
    before = accuracies(tmp_path / "app")
    page = (ROOT / "docs" / "how-to" / "flower-project.md").read_text()
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", page, re.S | re.M)
    added = patched(tmp_path / "app", diff)
    own = [line for line in added if "import" not in line and "train_fn(" not in line]
    assert len(own) == 5
    after = accuracies(tmp_path / "app")
    print("fed-avg", before, "privet", after)
    assert len(after) == len(before) == 8
    assert sum(after) > sum(before) + 0.2  # single rounds scatter: 350 images held out
    assert after[-1] > 0.7
