"""How a run ends: with its model and its cause, whatever fails afterwards."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from privet.core import RunError
from privet.core.files import read_npz
from privet.server_apps.evaluation import Evaluation
from privet.server_apps.execute import headline
from privet.server_apps.run_folder import RunFolder
from privet.sim.inline import run_inline
from support.reports import Page
from support.run_files import summary

MODULE = "privet.server_apps.execute"


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    keys = {"num-agents": 4, "num-server-rounds": 3, "output-dir": str(folder)}
    return keys | {key.replace("_", "-"): value for key, value in given.items()}


@pytest.mark.curves
def test_a_diverging_run_fails_with_its_cause_and_has_its_page(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"round 20: .* not finite, or too large") as caught:
        run_inline(settings(tmp_path, num_server_rounds=40, step_size=100.0), "run")
    assert caught.value.__context__ is None
    page = Page((tmp_path / "run" / "report.html").read_text())
    assert page.value(0, "rounds") == 19
    assert 'id="figure-loss"' in page.html
    assert "The run failed: round 20" in page.html


def test_a_run_without_an_optimum_is_complete(tmp_path: Path) -> None:
    finished = run_inline(settings(tmp_path, regularizer_weight=0.0), "run")
    assert finished.summary["status"] == "completed"
    assert finished.summary["distance-to-optimum"] is None
    assert "x" in read_npz(finished.folder / "model.npz")
    page = Page((finished.folder / "report.html").read_text())
    assert "run-0-distance" not in page.ids


def test_a_run_over_one_class_is_complete(tmp_path: Path) -> None:
    data = tmp_path / "one.svm"
    data.write_text("".join(f"1 1:{n % 7} 2:{n % 3}\n" for n in range(60)))
    keys = settings(tmp_path, dataset="click", data_path=str(data), columns=2)
    keys["regularizer-weight"] = 0.05  # else the intercept has no optimum
    finished = run_inline(keys, "run")
    assert finished.summary["status"] == "completed"
    assert finished.summary["distance-to-optimum"] > 0


def test_what_fails_after_the_rounds_leaves_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Evaluation, model: Any) -> float:
        raise ZeroDivisionError("distance")

    monkeypatch.setattr(Evaluation, "distance", broken)
    with pytest.raises(ZeroDivisionError):
        run_inline(settings(tmp_path), "run")
    assert "x" in read_npz(tmp_path / "run" / "model.npz")
    assert summary(tmp_path / "run")["cause"] == "ZeroDivisionError('distance')"


class TestReport:
    @pytest.fixture(autouse=True)
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OverflowError("two\nlines")

        monkeypatch.setattr(sys.modules[MODULE], "write_report", fail)

    def test_that_fails_is_a_line_of_the_log(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        finished = run_inline(settings(tmp_path), "run")
        assert finished.summary["status"] == "completed"
        (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        page = tmp_path / "run" / "report.html"
        why = "OverflowError('two\\nlines')"
        assert line.getMessage() == f"{page}: not written ({why}); privet report writes them"

    def test_does_not_hide_why_a_run_failed(self, tmp_path: Path) -> None:
        keys = settings(tmp_path, participation="schedule", schedule="0,1;1,99")
        with pytest.raises(Exception, match="agent '99'") as caught:
            run_inline(keys, "run")
        assert caught.value.__context__ is None
        assert "agent '99'" in summary(tmp_path / "run")["cause"]


def test_a_summary_that_fails_does_not_hide_why_a_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_json", full)
    keys = settings(tmp_path, participation="schedule", schedule="0,1;1,99")
    with pytest.raises(Exception, match="agent '99'"):
        run_inline(keys, "run")
    assert "No space left" in caplog.messages[-1]


def test_a_run_says_what_it_uses_of_its_settings(tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        run_inline(settings(tmp_path, num_server_rounds=1), "plain")
    assert "batch-size" not in caplog.text, "every step takes all examples"
    assert "delta" not in caplog.text, "there is no noise"
    caplog.clear()
    noised = {"local_solver": "noisy-gd", "clip": 1.0, "row_norm": 1.0, "noise_variance": 1.0}
    with caplog.at_level(logging.INFO):
        run_inline(settings(tmp_path, num_server_rounds=1, **noised), "noised")
    assert "delta: 1e-05" in caplog.text


@pytest.mark.parametrize(("size", "fewer"), [(113, 0), (114, 1), (999, 4)])
def test_a_batch_above_what_agents_have_is_said_once(
    tmp_path: Path, caplog: Any, size: int, fewer: int
) -> None:
    keys = settings(tmp_path, local_solver="sgd", batch_size=size, partition="iid")
    with caplog.at_level(logging.INFO):
        run_inline(keys, "run")
    lines = [line for line in caplog.messages if line.startswith("batch-size = ")]
    said = f"batch-size = {size}: {fewer} of 4 agents have fewer examples, 113 at least, and take"
    assert [line[: len(said)] for line in lines] == ([said] if fewer else [])


def test_a_run_that_waits_for_slow_agents_says_how_long_by_their_clock(
    tmp_path: Path, caplog: Any
) -> None:
    keys = settings(tmp_path, speeds="equal", task_latency=7.0, local_epochs=5)
    with caplog.at_level(logging.INFO, "flwr.privet"):
        finished = run_inline(keys, "run")
    assert (finished.summary["clock"], finished.summary["uploads"]) == (36.0, 12)
    assert "uploads: 12, 3 sweeps in 36 s" in str(finished)
    shown = [line.split(" | ")[-1] for line in caplog.messages if line.startswith("round ")]
    assert shown == ["clock 12 s", "clock 24 s", "clock 36 s"]


class TestNearness:
    """What a run says of its distance to the pooled optimum, without having that."""

    def test_a_run_ends_where_the_pooled_optimum_is_reached(self, tmp_path: Path) -> None:
        keys = {"num-server-rounds": 60, "output-dir": str(tmp_path), "num-agents": 4}
        ended = run_inline(keys, "auto").summary
        full = run_inline({**keys, "tolerance": 0.0}, "full").summary
        assert (ended["stopped"], full["stopped"], full["rounds"]) == ("tolerance", "rounds", 60)
        assert ended["rounds"] < 60
        assert ended["estimated-error"] <= 1e-6
        assert ended["pooled-optimum"].startswith("reached within ")
        # The centralised solver agrees.
        assert ended["distance-to-optimum"] <= 1e-6 * 10

    def test_a_run_that_does_not_reach_it_says_how_many_rounds_are_missing(
        self, tmp_path: Path
    ) -> None:
        """With the rounds it asks for the estimate is about what it foresees."""
        keys = {"output-dir": str(tmp_path), "num-agents": 4, "baseline-seconds": 0}
        short = run_inline({**keys, "num-server-rounds": 12}, "short")
        line = headline(short.summary)["pooled optimum"]
        assert line.startswith("not reached: at most about ")
        found = re.search(r"num-server-rounds = (\d+)", line)
        assert found is not None
        longer = run_inline({**keys, "num-server-rounds": int(found[1])}, "longer").summary
        assert 1e-5 < longer["estimated-error"] < 1e-2
        page = Page((short.folder / "report.html").read_text())
        marked = [one for _, one in page.tags if "data-pooled-optimum" in one]
        assert [one["class"] for one in marked] == ["warn"]

    @pytest.mark.parametrize(
        "given", [{"rho": 3.0}, {"algorithm": "fed-pdm"}, {"algorithm": "dp-iadmm"}]
    )
    def test_methods_without_an_estimate_say_nothing(self, given: Any, tmp_path: Path) -> None:
        keys = {"num-server-rounds": 2, "output-dir": str(tmp_path), "baseline-seconds": 0}
        finished = run_inline({**keys, **given}, "run")
        assert "pooled optimum" not in headline(finished.summary)
        assert "estimated-error" not in finished.summary
        assert "data-pooled-optimum" not in (finished.folder / "report.html").read_text()
