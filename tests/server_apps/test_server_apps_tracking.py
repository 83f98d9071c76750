"""Trackers are given what the report shows; the real libraries are read back in slow tests."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from privet.core import ConfigError
from privet.server_apps import tracking
from privet.sim.inline import run_inline
from support.reports import Page

PRIVATE = {"target-epsilon": 4.0, "clip": 1.0, "row-norm": 1.0, "local-solver": "noisy-gd"}


def keys(folder: Path, **given: Any) -> dict[str, Any]:
    base = {"num-agents": 3, "num-server-rounds": 3, "output-dir": str(folder)}
    return base | {key.replace("_", "-"): value for key, value in given.items()}


class Kept(tracking.Tracker):
    """A tracker that keeps what it is given, and fails where it is told to."""

    library = "json"
    runs: list[Kept]
    fails_in = -1

    def __init__(self, run: tracking.Described, done: int) -> None:
        self.described, self.done = run, done
        self.identity = run.known or f"run-{len(self.runs)}"
        self.rounds: dict[int, Mapping[str, Any]] = {}
        self.files: list[str] = []
        self.summary: Mapping[str, Any] = {}
        self.runs.append(self)

    def log(self, round_: int, numbers: Mapping[str, Any]) -> None:
        if round_ == self.fails_in:
            raise TimeoutError("no route\nto host")
        self.rounds[round_] = numbers

    def end(self, summary: Mapping[str, Any], files: Iterable[Path]) -> None:
        self.summary, self.files = summary, [path.name for path in files]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> type[Kept]:
    monkeypatch.setattr(Kept, "runs", [], raising=False)
    monkeypatch.setitem(tracking.TRACKERS, "kept", Kept)
    return Kept


@pytest.mark.parametrize("private", [False, True])
def test_a_tracker_is_given_what_the_report_shows(
    tmp_path: Path, kept: type[Kept], private: bool
) -> None:
    given = keys(
        tmp_path, track="kept", tags="a, b,", notes="x < y", **(PRIVATE if private else {})
    )
    run_inline(given, "run")
    (run,) = kept.runs
    assert (run.described.tags, run.described.notes) == (("a", "b"), "x < y")
    assert run.summary["status"] == "completed"
    assert run.files == ["report.html", "model.npz", "summary.json"]
    assert sorted(run.rounds) == [0, 1, 2, 3]
    page = Page((tmp_path / "run" / "report.html").read_text())
    shown = {name for name in page.ids if name.startswith("run-0-")}
    for number in (1, 2, 3):
        assert {f"run-0-{name}" for name in run.rounds[number]} - {"run-0-epsilon"} <= shown
    assert ("epsilon" in run.rounds[3]) is private
    assert run.described.config == json.loads((tmp_path / "run/summary.json").read_text())["config"]


@pytest.mark.baselines
@pytest.mark.parametrize("private", [False, True])
def test_a_tracker_is_given_no_page_with_baselines_of_a_private_run(
    tmp_path: Path, kept: type[Kept], private: bool
) -> None:
    given = keys(tmp_path, track="kept", **(PRIVATE if private else {}))
    finished = run_inline({**given, "baseline-seconds": 1.5}, "run")
    assert "baselines" in finished.summary
    (run,) = kept.runs
    pages = [] if private else ["report.html", "summary.json"]
    assert sorted(run.files) == sorted(["model.npz", *pages])
    assert ("baselines" in run.summary) is not private
    assert (tmp_path / "run" / "report.html").exists()


def test_a_resumed_run_goes_on_in_its_tracker_and_another_folder_has_all_rounds(
    tmp_path: Path, kept: type[Kept]
) -> None:
    run_inline(keys(tmp_path, track="kept"), "first")
    run_inline(keys(tmp_path, track="kept", num_server_rounds=4, resume="auto"), "same")
    again = keys(tmp_path, track="kept", num_server_rounds=5, resume=str(tmp_path / "first"))
    run_inline(again, "other")
    first, same, other = kept.runs
    assert (same.identity, same.done, sorted(same.rounds)) == (first.identity, 3, [4])
    assert other.identity != first.identity
    assert sorted(other.rounds) == [0, 1, 2, 3, 4, 5]
    assert other.rounds[2] == first.rounds[2]


def test_a_tracker_that_fails_refuses_a_run_before_round_1_and_is_left_out_later(
    tmp_path: Path,
    kept: type[Kept],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kept, "fails_in", 0)
    with pytest.raises(ConfigError, match=r"track = kept: cannot begin \(TimeoutError: no route"):
        run_inline(keys(tmp_path, track="kept"), "refused")
    monkeypatch.setattr(kept, "fails_in", 2)
    finished = run_inline(keys(tmp_path, track="kept"), "run")
    assert finished.summary["status"] == "completed"
    (line,) = [line for line in caplog.messages if line.startswith("track:")]
    assert line == "track: the run goes on without kept (TimeoutError: no route to host)"


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_library_is_refused_in_one_line_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, tracking.TRACKERS[name].library, None)
    with pytest.raises(ConfigError, match=rf"pip install 'flwr-privet\[{name}\]'$"):
        run_inline(keys(tmp_path, track=name), "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"track = 'tensorbord': .*did you mean 'tensorboard'"):
        run_inline(keys(tmp_path, track="mlflow,tensorbord"), "run")


# ---------------------------------------------------------------- the real libraries, offline


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, which starts with 7 bytes of W&B's.

    A block is 32 KiB; a fragment begins with checksum (4), length (2), type (1): 1 is a whole
    record, 2 to 4 are the first, a middle and the last part of one.
    """
    at, block, whole = 7, 1 << 15, b""
    while at < len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole = data[at + 7 : at + 7 + size] if kind in (1, 2) else whole + data[at + 7 :][:size]
        at += 7 + size
        if kind in (1, 4):
            yield whole


TRACKED = {"tags": "a,b", "notes": "a try", "keep_best": "accuracy"}


@pytest.mark.slow
def test_event_files_of_a_resumed_run_are_read_back(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_inline(keys(tmp_path, track="tensorboard", **TRACKED), "run")
    given = keys(tmp_path, track="tensorboard", **TRACKED, num_server_rounds=5, resume="auto")
    run_inline(given, "again")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    history = lines_of(tmp_path / "run")
    read = {one.step: one.value for one in events.Scalars("loss")}
    assert sorted(read) == [0, 1, 2, 3, 4, 5]
    for line in history:
        assert read[line["round"]] == pytest.approx(line["loss"], rel=1e-6)
    texts = {tag: events.Tensors(tag)[-1] for tag in events.Tags()["tensors"]}
    said = {tag: event.tensor_proto.string_val[0].decode() for tag, event in texts.items()}
    assert "algorithm = fed-plt" in said["settings/text_summary"]
    assert said["notes/text_summary"] == "a try"
    assert "model-best.npz" in said["files/text_summary"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_has_settings_rounds_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("mlflow").MlflowClient
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)  # its files are in ./mlruns
    monkeypatch.chdir(tmp_path)  # where MLflow's own default puts files
    run_inline(keys(tmp_path, track="mlflow", **TRACKED), "run")
    given = keys(tmp_path, track="mlflow", **TRACKED, num_server_rounds=5, resume="auto")
    run_inline(given, "again")
    read = client()
    (run,) = read.search_runs([read.get_experiment_by_name("privet").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["algorithm"] == "fed-plt"
    assert run.data.tags["mlflow.note.content"] == "a try"
    assert run.data.tags["a"] == run.data.tags["b"] == "true"
    assert not {tag for tag in run.data.tags if tag.startswith(("mlflow.user", "mlflow.source"))}
    losses = read.get_metric_history(run.info.run_id, "loss")
    assert [one.step for one in losses] == [0, 1, 2, 3, 4, 5]
    files = {one.path for one in read.list_artifacts(run.info.run_id)}
    assert files == {"report.html", "model.npz", "model-best.npz", "summary.json"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_wandb_offline_has_the_rounds_and_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    run_inline(keys(tmp_path, track="wandb", **TRACKED), "run")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    records: list[Any] = []
    deadline = time.monotonic() + 120.0  # W&B's own process writes the file
    while not any(record.HasField("exit") for record in records):
        assert time.monotonic() < deadline
        data = file.read_bytes()
        records = [wandb_internal_pb2.Record.FromString(one) for one in log_records(data)]
        time.sleep(0.05)
    assert "track:" not in caplog.text
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.display_name, run.notes, list(run.tags)) == ("run", "a try", ["a", "b"])
    assert run.host == "unnamed"
    rows = [
        {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    losses = [line["loss"] for line in lines_of(tmp_path / "run")]
    assert [float(row["loss"]) for row in rows[1:]] == losses
    kinds = {record.WhichOneof("record_type") for record in records}
    assert "artifact" in kinds
    assert not kinds & {"stats", "output", "output_raw"}
