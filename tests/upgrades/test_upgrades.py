"""What versions before left on disks: read, gone on with, or refused by name in one line."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.client_apps import client_app
from privet.core import RunError
from privet.core.library import library_version
from privet.data import problem_from_context
from privet.server_apps import execute, load_model, read_config
from privet.server_apps.report import plots
from privet.sim import InlineGrid
from support.cli import privet

HERE = Path(__file__).parent
BEFORE = sorted(path.name for path in HERE.iterdir() if (path / "run").is_dir())
REFUSED = {"ce7ccaeb": "written before there was acceleration, "}
"""Versions whose checkpoints are no longer gone on with, and what the line says."""
MADE = runpy.run_path(str(HERE / "make.py"))


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "have_matplotlib", lambda: False)


@pytest.fixture(params=BEFORE)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of what a version left, in a folder of its name."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / request.param))


def play(name: str, folder: Path, nodes: list[dict[str, Any]], **more: Any) -> Any:
    given = {**MADE[name], "output-dir": str(folder), **more}
    grid = InlineGrid(client_app(None, problem_from_context), nodes, given)
    return execute(grid, read_config(given), "next")


def test_there_is_one_of_this_version() -> None:
    """`make.py` writes it, before a release."""
    assert library_version() in BEFORE
    assert sum(path.stat().st_size for path in HERE.rglob("*.*")) < 200_000


def test_the_model_is_read_and_its_page_written(left: Path) -> None:
    model = load_model(left / "run")
    with np.load(left / "run" / "model.npz") as arrays:
        assert np.array_equal(model.arrays["x"], arrays["x"])
    code, _, err = privet("report", left / "run")
    assert (code, err) == (0, "")
    summary = json.loads((left / "run" / "summary.json").read_text())
    assert f"{summary['loss']:.4f}" in (left / "run" / "report.html").read_text()


def test_the_run_is_gone_on_with_or_refused_by_name(left: Path, tmp_path: Path) -> None:
    """Gone on with, it ends with the bits of a run without an end in between.

    Its first rounds were played on another processor, whose last bits may be others: where they
    are, the two agree up to these.
    """
    again = {"num-server-rounds": 4, "resume": str(left / "run")}
    if says := REFUSED.get(left.name):
        with pytest.raises(RunError, match=f"^resume: .*{says}.*model.npz") as refused:
            play("RUN", tmp_path / "more", MADE["plain"](), **again)
        assert "\n" not in str(refused.value)
        return
    resumed = play("RUN", tmp_path / "more", MADE["plain"](), **again)
    whole = play("RUN", tmp_path / "whole", MADE["plain"](), **{"num-server-rounds": 4})
    begun = play("RUN", tmp_path / "begun", MADE["plain"]())
    own, other, here = (load_model(one.folder).arrays["x"] for one in (resumed, whole, begun))
    if load_model(left / "run").arrays["x"].tobytes() == here.tobytes():
        assert resumed.summary["loss"] == whole.summary["loss"]
        assert own.tobytes() == other.tobytes()
    np.testing.assert_allclose(own, other, rtol=1e-12)


def test_a_node_goes_on_with_its_ledger(left: Path, tmp_path: Path) -> None:
    """It holds what the run's account holds; a new run is charged behind it."""
    spent = json.loads((left / "private" / "privacy.json").read_text())["accounts"][0]["epsilon"]
    ledger = left / "ledger-0"
    before = ledger.read_bytes()
    code, said, _ = privet("ledger", ledger, "--json")
    assert code == 0
    total = json.loads(said.splitlines()[-1])
    assert total["epsilon"] == pytest.approx(spent, rel=1e-6)
    play("PRIVATE", tmp_path / "more", MADE["nodes"](left))
    after = ledger.read_bytes()
    assert after.startswith(before)
    assert len(after) > len(before)
    code, said, _ = privet("ledger", ledger, "--json")
    assert json.loads(said.splitlines()[-1])["epsilon"] > total["epsilon"] + 0.5
