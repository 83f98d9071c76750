"""What a node keeps of its data on its disk: the same records, its owner's alone, never stale."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from privet.data import loaders, prepared, problem, problem_from_context
from privet.data.dataset import DataError
from privet.data.prepared import MOST
from privet.problems import LinearModel

ROWS = 40


def table(path: Path, seed: int = 0, rows: int = ROWS) -> Path:
    """Write a table that was changed a minute ago."""
    rng = np.random.default_rng(seed)
    lines = [f"{a:.6f},{b:.6f},{k % 2}" for k, (a, b) in enumerate(rng.normal(size=(rows, 2)))]
    path.write_text("\n".join(["age,weight,outcome", *lines]) + "\n")
    past = time.time() - 60
    os.utime(path, (past, past))
    return path


def built(config: dict[str, Any], run_config: dict[str, Any] | None = None) -> LinearModel[Any]:
    """Return the problem of a node in a process that has read nothing yet."""
    problem._agents.cache_clear()
    loaders._load.cache_clear()
    context = Context(
        run_id=1,
        node_id=1,
        node_config={"partition-id": 1, "num-partitions": 3, **config},
        state=RecordDict(),
        run_config=run_config or {},
    )
    return problem_from_context(context)


def of_table(path: Path, state: Path | None = None, **more: Any) -> dict[str, Any]:
    kept = {} if state is None else {"state-path": str(state)}
    return {"dataset": "csv", "data-path": str(path), "partition": "iid", **kept, **more}


def same(one: LinearModel[Any], other: LinearModel[Any]) -> bool:
    return (
        one.features.tobytes() == other.features.tobytes()
        and one.labels.tobytes() == other.labels.tobytes()
        and one.divisor == other.divisor
        and one.data_dependent == other.data_dependent
        and type(one) is type(other)
    )


def files(state: Path) -> list[Path]:
    return sorted(state.with_name(f"{state.name}.data").glob("*"))


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise AssertionError("the data were read")

    monkeypatch.setattr(problem, "load", refuse)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"partition": "none"},
        {"partition": "label"},
        {"dtype": "float32", "row-norm": 1.0},
        {"divisor": "federation", "intercept": "no"},
    ],
    ids=str,
)
def test_a_kept_share_gives_the_bits_of_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    reference = built(of_table(path, **keys))
    first = built(of_table(path, state, **keys))
    unread(monkeypatch)
    kept = built(of_table(path, state, **keys))
    assert same(first, reference)
    assert same(kept, reference)
    assert not kept.features.flags.writeable


def test_public_data_are_kept_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    config = {"state-path": str(state)}
    first = built(config, {"dataset": "synthetic", "num-agents": 3})
    unread(monkeypatch)
    assert same(first, built(config, {"dataset": "synthetic", "num-agents": 3}))


def test_nothing_is_kept_without_a_state_path_or_where_it_is_off(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    built(of_table(path))
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]
    built(of_table(path, state))
    assert len(files(state)) == 1
    built(of_table(path, state, **{"keep-data": False}))
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_folder_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    mask = os.umask(0)
    try:
        built(of_table(table(tmp_path / "t.csv"), state))
    finally:
        os.umask(mask)
    (file,) = files(state)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spoil", ["open", "link"])
def test_a_folder_that_others_may_enter_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: str
) -> None:
    state, folder = tmp_path / "state", tmp_path / "state.data"
    if spoil == "open":
        folder.mkdir()
        folder.chmod(0o750)
    else:
        (tmp_path / "other").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "other")
    with caplog.at_level(logging.WARNING):
        built(of_table(table(tmp_path / "t.csv"), state))
    assert not list(folder.iterdir())
    assert "of this user's alone" in caplog.text


def test_a_changed_table_is_read_anew_and_its_old_records_are_gone(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    built(of_table(path, state))
    (old,) = files(state)
    before = old.read_bytes()
    # The same size and time of change: only the time of its status tells.
    times = path.stat()
    table(path, seed=1)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert same(built(of_table(path, state)), built(of_table(path)))
    assert [file.read_bytes() for file in files(state)] != [before]
    assert len(files(state)) == 1


def test_shares_of_other_settings_of_a_changed_table_are_removed(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    built(of_table(path, state))
    built(of_table(path, state, partition="none"))
    assert len(files(state)) == 2
    table(path, seed=1)
    built(of_table(path, state))
    assert len(files(state)) == 1


def test_a_table_that_is_gone_is_an_error_and_its_records_are_gone(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    built(of_table(path, state))
    path.unlink()
    with pytest.raises(DataError, match="no such file"):
        built(of_table(path, state))
    assert not files(state)


def test_a_table_that_was_just_changed_is_not_kept_yet(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    os.utime(path)
    built(of_table(path, state))
    assert not files(state)


def test_old_records_are_gone_also_where_the_new_ones_are_not_kept_yet(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    for seed in (1, 2):
        built(of_table(path, state, **{"data-seed": seed}))
    assert len(files(state)) == 2
    os.utime(table(path, seed=1))
    built(of_table(path, state))
    assert files(state) == []


def test_turning_it_off_deletes_nothing_behind_a_link(tmp_path: Path) -> None:
    path, state, other = table(tmp_path / "t.csv"), tmp_path / "state", tmp_path / "other"
    built(of_table(path, other))
    kept = files(other)
    (tmp_path / "state.data").symlink_to(tmp_path / "other.data")
    built(of_table(path, state, **{"keep-data": False}))
    assert kept == files(other)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", None], ids=str)
def test_a_damaged_file_is_written_anew_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    reference = built(of_table(path, state))
    (file,) = files(state)
    whole = file.read_bytes()
    at = whole.index(reference.features.tobytes()[:64]) + 3
    file.write_bytes(
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] if damage is None else damage
    )
    with caplog.at_level(logging.WARNING):
        assert same(built(of_table(path, state)), reference)
        assert same(built(of_table(path, state)), reference)
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == [f"{file} is damaged and is written anew (ValueError)"]


@pytest.mark.parametrize(
    "keys",
    [
        {"partition": "label"},
        {"partition": "none"},
        {"partition-seed": 1},
        {"data-seed": 1},
        {"intercept": "no"},
        {"dtype": "float32"},
        {"drop-columns": "weight"},
        {"partition-id": 2},
        {"num-partitions": 4},
        {"partition": "dirichlet", "dirichlet-alpha": 5.0},
        {"partition": "dirichlet", "dirichlet-alpha": 0.5},
    ],
    ids=str,
)
def test_what_changes_a_share_asks_for_another_file(tmp_path: Path, keys: dict[str, Any]) -> None:
    path, state = table(tmp_path / "t.csv", rows=200), tmp_path / "state"
    built(of_table(path, state))
    assert same(built(of_table(path, state, **keys)), built(of_table(path, **keys)))
    assert len(files(state)) == 2


def test_the_loss_is_no_part_of_a_share(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    built(of_table(path, state))
    built(of_table(path, state, **{"regularizer-weight": 0.2, "row-norm": 1.0, "loss": "ridge"}))
    assert len(files(state)) == 1


def test_no_more_shares_are_kept_than_a_few(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    for seed in range(MOST + 2):
        built(of_table(path, state, **{"data-seed": seed}))
    assert len(files(state)) == MOST


def test_a_large_share_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    size = built(of_table(path)).features.nbytes
    monkeypatch.setattr(prepared, "LARGEST", size - 1)
    built(of_table(path, state))
    assert not files(state)
    monkeypatch.setattr(prepared, "LARGEST", size)
    built(of_table(path, state))
    assert len(files(state)) == 1


def test_a_file_that_was_never_finished_is_removed_in_time(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    built(of_table(path, state))
    (file,) = files(state)
    left = file.with_name(f".{file.name}.1.tmp")
    left.write_bytes(b"records")
    table(path, seed=1)
    built(of_table(path, state))
    assert left.exists()  # its process may still write it
    os.utime(left, (0, 0))
    table(path, seed=2)
    built(of_table(path, state))
    assert len(files(state)) == 1


def _write_repeatedly(path: Path, state: Path, seed: int) -> None:
    for _ in range(10):
        for file in files(state):
            if seed % 2:
                file.unlink(missing_ok=True)
        built(of_table(path, state))


def test_processes_may_write_at_once(tmp_path: Path) -> None:
    path, state = table(tmp_path / "t.csv"), tmp_path / "state"
    reference = built(of_table(path))
    fork = multiprocessing.get_context("fork")
    writers = [
        fork.Process(target=_write_repeatedly, args=(path, state, seed)) for seed in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert same(built(of_table(path, state)), reference)
    assert len(files(state)) == 1
