"""Write what a version of the library leaves on disks: run folders, and the ledgers of two nodes.

``python tests/upgrades/make.py tests/upgrades/VERSION``, once for each release, by that version. A
node's state lives in the memory of its process: of a node the ledger alone outlives an upgrade.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from privet.client_apps import client_app
from privet.data import problem_from_context
from privet.server_apps import execute, read_config
from privet.server_apps.report import plots
from privet.sim.engine import InlineGrid

RUN = {"num-agents": 2, "num-server-rounds": 2, "local-epochs": 3, "regularizer-weight": 0.05,
       "partition": "iid", "dataset": "synthetic", "features": 4, "examples-per-agent": 20,
       "baseline-seconds": 0.0}  # fmt: skip
PRIVATE = {key: value for key, value in RUN.items() if key != "local-epochs"}
PRIVATE |= {"algorithm": "dp-fedsgd", "clip": 1.0, "target-epsilon": 4.0}


def nodes(folder: Path) -> list[dict[str, object]]:
    """Return the configs of two nodes with a ledger each in a folder."""
    rules = {"max-epsilon": 100.0, "delta": 1e-5}
    return [
        {**one, **rules, "ledger-path": str(folder / f"ledger-{place}")}
        for place, one in enumerate(plain())
    ]


def plain() -> list[dict[str, object]]:
    """Return the configs of two nodes without rules."""
    return [{"partition-id": place, "num-partitions": 2} for place in range(2)]


def main(target: Path) -> None:
    """Write the folder."""
    plots.have_matplotlib = lambda: False  # pages are written anew by who reads them
    target.mkdir()
    runs = (("run", RUN, plain()), ("private", PRIVATE, nodes(target.resolve())))
    for name, keys, configs in runs:
        given = {**keys, "output-dir": str(target.resolve() / "all")}
        grid = InlineGrid(client_app(None, problem_from_context), configs, given)
        shutil.move(execute(grid, read_config(given), name).folder, target / name)
        for left in ("report.html", "checkpoint.previous.npz", ".lock", "statement.html"):
            (target / name / left).unlink(missing_ok=True)
    shutil.rmtree(target / "all")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
