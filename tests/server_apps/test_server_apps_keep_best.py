"""The model of the best round: which one it is, after a resume as well, and what is said of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet import load_model
from privet.core import ConfigError
from privet.core.files import read_npz
from privet.server_apps.execute import headline
from privet.server_apps.keep_best import BEST_FILE, NOT_COVERED, KeepBest
from privet.sim.inline import run_inline
from support.reports import Page
from support.run_files import history

# Its accuracy rises, falls and rises again: the best round is neither the first nor the last.
UNSTEADY = {"algorithm": "dp-fedsgd", "step-size-base": 3.0, "evaluate-every": 1}
PRIVATE = {"target-epsilon": 4.0, "clip": 1.0, "row-norm": 1.0, "local-solver": "noisy-gd"}


def keys(folder: Path, rounds: int, **given: Any) -> dict[str, Any]:
    base = {"num-agents": 3, "num-server-rounds": rounds, "output-dir": str(folder)}
    return base | {key.replace("_", "-"): value for key, value in given.items()}


def model_of_round(folder: Path, number: int, given: dict[str, Any]) -> np.ndarray:
    """Return the last model of a run of so many rounds, which is the same up to there."""
    finished = run_inline(keys(folder, number, **given), f"until-{number}")
    return read_npz(finished.folder / "model.npz")["x"]


@pytest.mark.parametrize(("metric", "best"), [("accuracy", max), ("loss", min)])
def test_the_file_is_the_model_of_the_first_best_round(
    tmp_path: Path, metric: str, best: Any
) -> None:
    finished = run_inline(keys(tmp_path, 8, **UNSTEADY, keep_best=metric), "run")
    values = [line[metric] for line in history(finished.folder)]
    number = 1 + values.index(best(values))
    kept = finished.summary["best"]
    assert kept == {"file": BEST_FILE, "metric": metric, "value": best(values), "round": number}
    arrays = read_npz(finished.folder / BEST_FILE)
    assert np.array_equal(arrays["x"], model_of_round(tmp_path, number, UNSTEADY))
    assert f"of round {number}, the best {metric}" in headline(finished.summary)["best model"]
    assert f"of round {number}," in load_model(finished.folder / BEST_FILE).describe()
    page = Page((finished.folder / "report.html").read_text())
    assert f"{BEST_FILE} is of round {number}, the best {metric}" in page.html
    assert not list(finished.folder.glob(".best-*"))


@pytest.mark.parametrize(("every", "died_after"), [(1, 4), (3, 5)])
def test_a_run_that_is_resumed_has_the_best_round_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, died_after: int
) -> None:
    from privet.server_apps.control import Control

    given = {**UNSTEADY, "keep-best": "accuracy", "checkpoint-every": every}
    whole = run_inline(keys(tmp_path, 8, **given), "whole")

    class Killed(BaseException):
        """As a process that ends at once."""

    def dies(self: Control, run: Any, done: Any) -> None:
        if done.round == died_after:
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Control, "on_round", dies)
        with pytest.raises(Killed):
            run_inline(keys(tmp_path, 8, **given), "run")
    again = run_inline(keys(tmp_path, 8, **given, resume=str(tmp_path / "copy")), "again")
    assert again.summary["best"] == whole.summary["best"]
    models = [read_npz(folder / BEST_FILE)["x"] for folder in (whole.folder, again.folder)]
    assert np.array_equal(*models)


def test_a_best_round_whose_model_is_gone_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = run_inline(keys(tmp_path, 8, **UNSTEADY), "first")
    values = [line["accuracy"] for line in history(first.folder)]
    number = 1 + values.index(max(values))
    assert number < 8
    given = keys(tmp_path, 9, **UNSTEADY, keep_best="accuracy", resume=str(first.folder))
    finished = run_inline(given, "second")
    assert f"keep-best: the model of round {number}, the best so far, is not in" in caplog.text
    assert finished.summary["best"]["round"] == 9


def test_a_best_model_that_is_damaged_ends_no_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = run_inline(keys(tmp_path, 8, **UNSTEADY, keep_best="accuracy"), "first")
    number = first.summary["best"]["round"]
    assert number < 8
    (first.folder / BEST_FILE).unlink()
    (first.folder / f".best-{number}.npz").write_bytes(b"PK")
    given = keys(tmp_path, 9, **UNSTEADY, keep_best="accuracy", resume="auto")
    finished = run_inline(given, "second")
    assert f"keep-best: the model of round {number}, the best so far, is not in" in caplog.text
    assert finished.summary["best"]["round"] == 9

    def damage(self: KeepBest, _: Any) -> None:
        for file in self.folder.glob(".best-*.npz"):
            file.write_bytes(b"PK")

    monkeypatch.setattr(KeepBest, "_clean", damage)
    ended = run_inline(keys(tmp_path / "other", 2, **UNSTEADY, keep_best="accuracy"), "third")
    assert "best" not in ended.summary
    assert (ended.folder / "report.html").exists()
    assert "cannot be read, so only model.npz is kept" in caplog.text


def test_a_private_choice_is_named_or_refused(tmp_path: Path) -> None:
    given = keys(tmp_path, 2, **PRIVATE)
    named = run_inline({**given, "keep-best": "accuracy"}, "named")
    assert named.summary["private"] is True
    assert named.summary["best"]["privacy"] == NOT_COVERED
    assert load_model(named.folder / BEST_FILE).about["privacy"]["epsilon"] <= 4.0
    assert NOT_COVERED.split(";")[0][:20] in (named.folder / "report.html").read_text()
    covered = run_inline({**given, "keep-best": "residual"}, "covered")
    assert "privacy" not in covered.summary["best"]
    with pytest.raises(ConfigError, match=r"keep-best = stationarity: .* would not be private"):
        run_inline({**given, "keep-best": "stationarity"}, "refused")


def test_tags_and_notes_are_in_summary_report_and_comparison(tmp_path: Path) -> None:
    from privet.server_apps import write_report

    folders = []
    for name in ("one", "two"):
        given = keys(tmp_path, 1, tags=f"{name}, wine", notes=f"<b>{name}</b>")
        folders.append(run_inline(given, name).folder)
        summary = json.loads((folders[-1] / "summary.json").read_text())
        assert (summary["tags"], summary["notes"]) == ([name, "wine"], f"<b>{name}</b>")
        assert f"Tags: {name}, wine" in (folders[-1] / "report.html").read_text()
    text = write_report(folders, tmp_path / "both.html").read_text()
    for name in ("one", "two"):
        assert f"Tags: {name}, wine</p><p data-notes>&lt;b&gt;{name}&lt;/b&gt;" in text
    assert "notes=" not in text, "no setting that tells the runs apart, or repeats one"
