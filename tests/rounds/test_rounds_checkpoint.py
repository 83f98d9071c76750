"""Checkpoints: stop and go on bit-identically, and never lose the previous one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord

from privet.agents.state import read_state
from privet.client_apps import agent_name
from privet.core import ConfigError, RunError
from privet.core.errors import HopelessError
from privet.core.files import read_npz, write_npz
from privet.problems import BinaryLogistic
from privet.rounds import RunOptions, Session
from privet.rounds.calibration import calibrated
from privet.rounds.keep.checkpoint import NOT_RECORDED, Checkpoint, load, read_manifest, save
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.strategies import Failure, FailureCode, FedPLT, Fraction
from support.federations import app_of, logistic_agents, model, train, zeros


def test_run_folder_can_be_given_instead_of_the_file(tmp_path: Path) -> None:
    problems = logistic_agents(2)
    train(problems, 2, start={"checkpoint": tmp_path / "checkpoint.npz"})
    result, _, _ = train(problems, 3, start={"resume": tmp_path})
    assert [done.round for done in result.history] == [1, 2, 3]


def test_agents_that_do_not_come_back_stay_absent(tmp_path: Path) -> None:
    problems = logistic_agents(3)
    file = tmp_path / "checkpoint.npz"
    train(problems, 3, start={"checkpoint": file})
    grid = InlineGrid(app_of(problems), 2)
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=2)
    result = strategy.start(grid, zeros(4), num_rounds=4, resume=file)
    assert result.history[-1].participants == ("0", "1")
    assert result.history[-1].failures == {"2": Failure(FailureCode.NOT_CONNECTED, "not connected")}
    assert strategy.session is not None
    assert strategy.session.state.z.shape == (3, 4)


def test_newcomers_join_a_resumed_run(tmp_path: Path) -> None:
    problems = logistic_agents(4)
    file = tmp_path / "checkpoint.npz"
    train(problems[:3], 3, start={"checkpoint": file}, local_epochs=10)
    result, _, _ = train(problems, 60, start={"resume": file}, local_epochs=10)
    assert result.history[3].participants == ("0", "1", "2", "3")
    fresh, _, _ = train(problems, 60, local_epochs=10)
    assert np.allclose(model(result), model(fresh), atol=1e-8)


def test_resume_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    problems = logistic_agents(2)
    file = tmp_path / "checkpoint.npz"
    train(problems, 1, start={"checkpoint": file})
    with pytest.raises(RunError, match="of another run: seed 0 -> 1;"):
        train(problems, 2, start={"resume": file}, seed=1)


def test_resume_with_a_model_of_another_size(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.npz"
    train(logistic_agents(2), 1, start={"checkpoint": file})
    with pytest.raises(RunError, match="has 4 parameters in float64, this run's 6 in"):
        train(logistic_agents(2, dim=6), 2, start={"resume": file})


def test_missing_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint at"):
        load(tmp_path)
    half = tmp_path / "checkpoint.npz"
    save(half, Checkpoint({"round": 1}, {"x": np.zeros(1000)}))
    half.write_bytes(half.read_bytes()[:500])
    with pytest.raises(RunError, match="is damaged"):
        load(tmp_path)
    np.savez(half, manifest=np.frombuffer(b'{"format": 99}', np.uint8))
    with pytest.raises(RunError, match="format 99"):
        load(half)


def test_full_disk_keeps_the_previous_checkpoint_and_the_run(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    problems = logistic_agents(2)
    file = tmp_path / "checkpoint.npz"
    train(problems, 2, start={"checkpoint": file})
    before = file.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("privet.core.files.npy.write_array_header_1_0", full)
    result, _, _ = train(problems, 4, start={"resume": file, "checkpoint": file})
    assert [done.round for done in result.history] == [1, 2, 3, 4]
    assert file.read_bytes() == before
    assert "No space left on device" in caplog.text
    monkeypatch.undo()
    again, _, _ = train(problems, 4, start={"resume": file})
    assert np.array_equal(model(again), model(result))


@pytest.mark.parametrize("kind", [InlineGrid, CohortGrid])
def test_a_checkpoint_has_as_many_arrays_for_many_agents_as_for_few(
    tmp_path: Path, kind: type[InlineGrid]
) -> None:
    """What an array costs in a file is more than the round of a small agent."""
    names = []
    for count in (6, 18):
        problems, file = logistic_agents(count), tmp_path / str(count) / "checkpoint.npz"
        file.parent.mkdir()
        grid = kind(app_of(problems), count)
        train(problems, 3, grid=grid, start={"checkpoint": file}, participation=Fraction(0.5))
        members = read_npz(file)
        names.append(sorted(members))
        seen = {name for done in load(file).history for name in done.participants}
        held = [name for table in load(file).node_states for name in table.names]
        assert sorted(held) == sorted(seen)  # the others are not in it
        found = [row for table in grid.node_states() for row in table.rows()]
        assert dict(found) == {
            agent_name(context): read_state(context)
            for context in grid.contexts.values()
            if agent_name(context) in seen
        }
    assert names[0] == names[1]


def test_run_stops_early_at_tolerance() -> None:
    result, _, _ = train(logistic_agents(3), 500, local_epochs=10, start={"tolerance": 1e-10})
    assert result.stopped == "tolerance"
    assert result.history[-1].residual <= 1e-10 < result.history[-2].residual
    assert len(result.history) < 100


def test_tolerance_is_compared_with_what_the_monitor_measured() -> None:
    """Between evaluations there is no stationarity; the residual is another number."""
    calls: list[int] = []

    def monitor(round_: int, models: Any) -> dict[str, float]:
        calls.append(round_)
        return {"stationarity": 1.0 if round_ < 30 else 0.0}

    problems = logistic_agents(3)
    start: dict[str, Any] = {"tolerance": 1e-6, "evaluate_every": 10}
    result, _, _ = train(problems, 100, local_epochs=10, monitor=monitor, start=start)
    assert result.history[20].residual < 1e-6
    assert (result.stopped, calls) == ("tolerance", [0, 10, 20, 30])


def test_stop_by_tolerance_is_evaluated() -> None:
    def evaluate(number: int, arrays: Any) -> MetricRecord:
        return MetricRecord({"number": number})

    start = {"tolerance": 1e-10, "evaluate_every": 1000, "evaluate_fn": evaluate}
    result, _, _ = train(logistic_agents(3), 500, local_epochs=10, start=start)
    assert list(result.evaluate_metrics_serverapp) == [0, result.history[-1].round]


def test_resume_calibrates_for_agents_that_are_absent_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = logistic_agents(3)
    file = tmp_path / "checkpoint.npz"
    train(problems, 1, start={"checkpoint": file})
    seen: list[list[str]] = []

    def calibrate(half: Any, session: Session, options: RunOptions) -> Any:
        seen.append(session.roster.names)
        return calibrated(half, session, options)

    monkeypatch.setattr("privet.rounds.keep.resume.calibrated", calibrate)
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=2)
    strategy.start(InlineGrid(app_of(problems), 2), zeros(4), num_rounds=2, resume=file)
    assert seen == [["0", "1", "2"]]


def test_a_resume_that_asks_for_something_else_is_refused(tmp_path: Path) -> None:
    problems = logistic_agents(2)
    file = tmp_path / "checkpoint.npz"
    train(problems, 1, start={"checkpoint": file})
    with pytest.raises(RunError, match=r"of another run: rho 1.0 -> 4.0; ask for what it was"):
        train(problems, 2, rho=4.0, start={"resume": file})
    with pytest.raises(
        RunError, match=r"another run: participation All\(\) -> Fraction\(fraction=0"
    ):
        train(problems, 2, participation=Fraction(0.5), start={"resume": file})
    narrow = [
        BinaryLogistic(p.features.astype("f4"), p.labels, regularizer=p.regularizer)
        for p in problems
    ]
    grid = InlineGrid(app_of(narrow), 2)
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=2)
    with pytest.raises(RunError, match="in float64, this run's 4 in float32"):
        strategy.start(grid, zeros(4, "float32"), num_rounds=2, resume=file)


# ------------------------------------------------------------------ good zips, wrong contents


def saved(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a checkpoint of two rounds, and its members."""
    file = folder / "checkpoint.npz"
    train(logistic_agents(3), 2, start={"checkpoint": file})
    file.with_name("checkpoint.previous.npz").unlink()  # which would do in place of a damaged one
    return file, read_npz(file)


def rewritten(file: Path, members: dict[str, Any], **manifest: Any) -> None:
    changed = {**json.loads(members["manifest"].tobytes()), **manifest}
    for gone in [key for key, value in changed.items() if value is None]:
        del changed[gone]
    data = np.frombuffer(json.dumps(changed).encode(), np.uint8)
    write_npz(file, {**members, "manifest": data})


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (
            {"round": 1_000_000, "format": 6, "history": None},
            "does not hold rounds 1 to 1000000 in order",
        ),
        ({"round": -1}, "its round is -1"),
        ({"round": None}, "its round is None"),
        ({"agents": None}, "KeyError"),
        ({"agents": {"name": ["0"]}}, "KeyError"),
        ({"agents": 3}, "TypeError"),
        ({"settings": None}, "KeyError"),
        ({"format": None}, "is damaged"),
        (
            {"format": 1},
            "has checkpoint format 1, this version reads 6 and 7: .* keep its model, model.npz",
        ),
    ],
)
def test_a_manifest_with_wrong_contents_is_one_line(
    tmp_path: Path, manifest: dict[str, Any], reason: str
) -> None:
    file, members = saved(tmp_path)
    rewritten(file, members, **manifest)
    with pytest.raises(RunError, match=reason) as caught:
        train(logistic_agents(3), 4, start={"resume": file})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.pop("state/residual"), "the checkpoint's state has"),
        (lambda m: m.update({"state/z": m["state/z"][:2]}), r"table z has shape \(2, 4\)"),
        (
            lambda m: m.update({"state/gaps/x": m["state/gaps/x"][:2]}),
            r"table gaps/x is of \(2,\) float64",
        ),
    ],
)
def test_a_state_with_wrong_contents_is_one_line(tmp_path: Path, change: Any, reason: str) -> None:
    file, members = saved(tmp_path)
    change(members)
    rewritten(file, members)
    with pytest.raises(RunError, match=reason):
        train(logistic_agents(3), 4, start={"resume": file})


@pytest.mark.parametrize(
    "history",
    [
        lambda lines: lines[:1],
        lambda lines: [lines[0], lines[1][:40]],
        lambda lines: [lines[1], lines[0]],
        lambda lines: [b"[]", b"[]"],
        lambda lines: [lines[0].replace(b"1", b"2"), lines[1]],
        None,
    ],
)
def test_a_checkpoint_outlives_its_history_and_one_of_format_6_does_not(
    tmp_path: Path, history: Any, caplog: Any
) -> None:
    """The rounds of a lost history have a note alone; the file that was there is kept aside."""
    file, members = saved(tmp_path)
    beside = tmp_path / "history.jsonl"
    lines = beside.read_bytes().splitlines()
    beside.unlink()
    if history is not None:
        beside.write_bytes(b"\n".join(history(lines)) + b"\n")
    result, _, _ = train(logistic_agents(3), 4, start={"resume": file, "checkpoint": file})
    assert f"{beside}: " in caplog.text
    assert np.array_equal(model(result), model(train(logistic_agents(3), 4)[0]))
    assert [done.notes for done in result.history] == [(NOT_RECORDED,)] * 2 + [()] * 2
    assert [done.round for done in load(file).history] == [1, 2, 3, 4]
    assert (tmp_path / "history.aside.jsonl").exists() == (history is not None)
    assert NOT_RECORDED in beside.read_text()
    beside.write_bytes(b"nothing\n")
    rewritten(file, members, format=6, history=None)
    with pytest.raises(HopelessError, match=str(beside)):
        load(file)


def test_a_checkpoint_of_format_6_goes_on(tmp_path: Path) -> None:
    """It lacks the marks of the journal and the history, the run's epsilon and heads of ledgers."""
    file, members = saved(tmp_path)
    manifest = json.loads(members["manifest"].tobytes())
    for key in ("journal", "history", "epsilon"):
        del manifest[key]
    del manifest["agents"]["head"]
    text = json.dumps({**manifest, "format": 6}).encode()
    write_npz(file, {**members, "manifest": np.frombuffer(text, np.uint8)})
    result, _, _ = train(logistic_agents(3), 4, start={"resume": file, "checkpoint": file})
    assert np.array_equal(model(result), model(train(logistic_agents(3), 4)[0]))
    assert read_manifest(file)["format"] == 7


def test_what_a_lost_process_added_to_the_history_is_not_looked_at(tmp_path: Path) -> None:
    file, _ = saved(tmp_path)
    with (tmp_path / "history.jsonl").open("ab") as beside:
        beside.write(b'{"round": 3, "parti')
    result, _, _ = train(logistic_agents(3), 4, start={"resume": file, "checkpoint": file})
    straight, _, _ = train(logistic_agents(3), 4)
    assert np.array_equal(model(result), model(straight))
    assert [done.round for done in load(file).history] == [1, 2, 3, 4]
