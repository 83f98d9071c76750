"""Checkpoints of what changed: with the parts that they need they are what a whole one is."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core import RunError, mapped
from privet.core.files import read_npz, write_npz
from privet.rounds import observers
from privet.rounds.keep import chain
from privet.rounds.keep.checkpoint import Checkpoint, load, parts_beside, read_manifest
from privet.rounds.roster import from_columns
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.strategies import Fraction
from privet.testing.subject import Subject
from support.federations import app_of, logistic_agents, model, train
from support.run_files import Killed

AGENTS, FEW = 16, Fraction(0.25)


@pytest.fixture(autouse=True)
def parts_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write what changed even where all is little."""
    monkeypatch.setattr(chain, "SMALL", 0)
    monkeypatch.setattr(chain, "LONGEST", 1000)
    monkeypatch.setattr(mapped, "SPARSE", 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.npz"


def parts(file: Path) -> list[str]:
    """Return the parts that a checkpoint names, all of which are there."""
    named: list[str] = read_manifest(file)["parts"]
    there = [path.name for path in parts_beside(file).glob("*")]
    assert set(named) <= set(there)
    return named


def play(
    file: Path, rounds: int, kind: type[InlineGrid] = CohortGrid, dim: int = 4, **start: Any
) -> Any:
    problems = logistic_agents(AGENTS, dim=dim)
    grid = kind(app_of(problems), AGENTS)
    return train(problems, rounds, grid=grid, start=start, participation=FEW)


def require_same(one: Checkpoint, other: Checkpoint, half: Any) -> None:
    """Require that two checkpoints of a run hold the same."""
    agents = [from_columns(each.manifest["agents"]) for each in (one, other)]
    assert agents[0] == agents[1]
    for entry in ("round", "settings", "asked"):
        assert one.manifest[entry] == other.manifest[entry]
    states = [half.dump(half.load(own_arrays(half, each))) for each in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name], err_msg=name)
    own = [dict(row for t in each.node_states for row in t.rows()) for each in (one, other)]
    assert own[0] == own[1]
    assert one.tasks == other.tasks
    assert one.arrays.keys() >= other.arrays.keys() - states[0].keys()
    for name in other.arrays.keys() - own_arrays(half, other).keys():
        np.testing.assert_array_equal(one.arrays[name], other.arrays[name], err_msg=name)


def own_arrays(half: Any, saved: Checkpoint) -> dict[str, Any]:
    prefixes = ("gaps/", "optimizer/")
    return {name: a for name, a in saved.arrays.items() if not name.startswith(prefixes)}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compare every checkpoint with a whole one; return their numbers of parts."""
    counts: list[int] = []
    write = observers.Checkpoints._save

    def save(self: Any, run: Any) -> None:
        write(self, run)
        counts.append(len(parts(self.path)))
        require_same(load(self.path), run.snapshot(self.grid), run.half)

    monkeypatch.setattr(observers.Checkpoints, "_save", save)
    return counts


ALGORITHMS: dict[str, dict[str, Any]] = {
    "fed-plt": {},
    "fed-pdm": {},
    "dp-iadmm": {"rho": 2.0},
    "scaffold": {},
    "tamuna": {},
    "led": {},
    "fed-dyn": {},
    "five-gcs": {},
    "area": {},
    "dp-fedsgd": {"clip": 1.0, "noise-scale": 1.0, "noise-seed": 1, "row-norm": 4.0},
    "gfl": {},
    "fed-async": {"asynchronous": True, "speeds": "lognormal"},
    "fed-plt late": {"asynchronous": True, "buffer": 2, "speeds": "lognormal"},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_parts_hold_what_a_whole_checkpoint_holds(
    name: str, tmp_path: Path, compared: list[int]
) -> None:
    kind = {"participation": "fraction", "fraction": 0.25}
    keys = {**({} if "asynchronous" in ALGORITHMS[name] else kind), **ALGORITHMS[name]}
    subject = Subject(name.split(maxsplit=1)[0], keys, problems=logistic_agents(AGENTS))
    for engine in ("inline", "cohort"):
        (tmp_path / engine).mkdir()
        grid = grid_of(subject.name, subject.problems, engine=engine)
        file = tmp_path / engine / "checkpoint.npz"
        subject.strategy().start(grid, subject.start(), num_rounds=8, checkpoint=file)
    assert len(compared) == 16
    assert max(compared) > 0


@pytest.mark.parametrize("kind", [InlineGrid, CohortGrid])
def test_a_run_that_goes_on_from_parts_has_the_bits_of_one_that_never_stopped(
    file: Path, kind: type[InlineGrid], compared: list[int]
) -> None:
    straight, _, grid = play(file, 12, kind)
    for rounds in (5, 6, 9, 12):
        there = {"resume": file.parent} if file.exists() and rounds > 5 else {}
        ended, _, again = play(file, rounds, kind, checkpoint=file, **there)
    assert np.array_equal(model(ended), model(straight))
    first, last = (states(each) for each in (grid, again))
    assert first == last
    assert max(compared) > 1


def states(grid: InlineGrid) -> dict[str, Any]:
    """Return the agents' last states: those from before are not asked for any more."""
    rows = [row for table in grid.node_states() for row in table.rows()]
    return {name: (state.rounds[-1], state.states[-1], state.ledger) for name, state in rows}


def test_the_chain_begins_anew_once_half_of_it_is_replaced(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder never holds more than three whole checkpoints, and what nobody needs is gone."""
    counts, sizes, wholes = list[int](), list[int](), list[int]()
    write = observers.Checkpoints._save

    def save(self: Any, run: Any) -> None:
        write(self, run)
        counts.append(len(parts(file)))
        there = [file, *file.parent.glob("checkpoint.previous.npz"), *parts_beside(file).glob("*")]
        seen = {path.stat().st_ino: path.stat().st_size for path in there}
        sizes.append(sum(seen.values()))
        if not parts(file):
            wholes.append(file.stat().st_size)

    monkeypatch.setattr(observers.Checkpoints, "_save", save)
    monkeypatch.setattr(chain, "LONGEST", 2)
    play(file, 60, dim=100, checkpoint=file)
    assert counts[:3] == [0, 1, 2]
    assert 3 <= counts.count(0) < 30
    assert max(sizes) <= 3.5 * max(wholes)  # with the part of a quarter that ends the chain
    last = max(place for place, count in enumerate(counts) if not count)
    assert counts[last + 1 :] == list(range(1, len(counts) - last))
    named = set(parts(file))
    if len(named) > 1:  # the one before the newest needs no part of an older chain
        assert {path.name for path in parts_beside(file).glob("*")} == named


def test_a_run_with_whole_checkpoints_alone_leaves_no_parts(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    play(file, 4, checkpoint=file)
    assert not read_manifest(file)["parts"]
    assert not parts_beside(file).exists()


def test_everybody_in_a_round_makes_a_whole_checkpoint(file: Path) -> None:
    train(logistic_agents(4), 3, start={"checkpoint": file})
    assert not parts(file)


# ------------------------------------------------------------------ damage


def damage_of_bytes(path: Path) -> None:
    """Damage a part's rows, whose checksum then says so."""
    whole = bytearray(path.read_bytes())
    middle = whole.index(b"state/") + 250
    whole[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(whole)


def damage_of_identity(path: Path) -> None:
    """Put another checkpoint in a part's place."""
    write_npz(path, read_npz(sorted(path.parent.glob("*"))[0]))


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:400]),
    "bytes": damage_of_bytes,
    "another": damage_of_identity,
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_run_goes_on_from_before_a_broken_part(file: Path, how: str, caplog: Any) -> None:
    straight, _, _ = play(file, 9)
    play(file, 5, checkpoint=file)
    named = parts(file)
    assert len(named) > 2
    broken = parts_beside(file) / named[-2]
    DAMAGES[how](broken)
    caplog.clear()
    again, _, _ = play(file, 9, resume=file, checkpoint=file)
    assert np.array_equal(model(again), model(straight))
    (line,) = [each for each in caplog.messages if "goes on from the one before" in each]
    assert str(broken) in line
    assert f"of round {int(named[-2].partition('-')[0]) - 1}" in line
    assert "\n" not in line


def test_a_broken_newest_is_made_good_by_the_part_before(file: Path, caplog: Any) -> None:
    straight, _, _ = play(file, 9)
    play(file, 5, checkpoint=file)
    assert parts(file)
    damage_of_bytes(file)
    again, _, _ = play(file, 9, resume=file)
    assert "goes on from the one before, of round 4" in caplog.text
    assert np.array_equal(model(again), model(straight))


def test_without_its_first_part_nothing_is_left_and_one_line_says_so(file: Path) -> None:
    play(file, 5, checkpoint=file)
    first = parts_beside(file) / parts(file)[0]
    first.unlink()
    with pytest.raises(RunError, match=f"needs {first}, which is not there") as caught:
        play(file, 9, resume=file)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ a process that dies


@pytest.mark.parametrize("call", ["link", "replace", "unlink"])
@pytest.mark.parametrize("which", range(9))
def test_a_process_that_dies_while_it_writes_leaves_a_checkpoint(
    file: Path, call: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each link, rename and removal of the checkpoints from round 3 on."""
    straight, _, _ = play(file, 8)
    play(file, 2, checkpoint=file)
    where, name = (os, "link") if call == "link" else (Path, call)
    original, calls = getattr(where, name), iter(range(100))

    def dies(*given: Any, **more: Any) -> Any:
        if "checkpoint" in str(given[0]) and next(calls) == which:
            raise Killed
        return original(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, dies)
        patch.setattr(observers.Checkpoints, "on_abort", lambda *_: None)
        with suppress(Killed):
            play(file, 8, checkpoint=file, resume=file)
    done = len(load(file).history)
    assert done >= 2
    again, _, _ = play(file, 8, resume=file, checkpoint=file)
    assert np.array_equal(model(again), model(straight))


def test_where_a_part_cannot_be_linked_checkpoints_are_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    play(file, 4, checkpoint=file)
    assert not parts(file)
    assert load(file).manifest["round"] == 4


def test_only_parts_are_removed_and_none_through_a_link(file: Path, tmp_path: Path) -> None:
    """Parts of old checkpoints go; what else is in their folder, or in another, stays."""
    old = f"1-{'0' * 16}.npz"
    mine = ("notes.txt", "model.npz", f"{old}.bak")
    folder = parts_beside(file)
    folder.mkdir()
    for name in (old, *mine):
        (folder / name).touch()
    play(file, 4, checkpoint=file)
    there = {path.name for path in folder.iterdir()}
    assert there == {*parts(file), *mine}
    other = tmp_path / "other"
    other.mkdir()
    for name in (old, *mine):
        (other / name).touch()
    linked = tmp_path / "linked" / "checkpoint.npz"
    linked.parent.mkdir()
    parts_beside(linked).symlink_to(other)
    play(linked, 4, checkpoint=linked)
    assert {path.name for path in other.iterdir()} == {old, *mine}
    assert not read_manifest(linked)["parts"]


def test_a_full_disk_keeps_what_was_there_and_the_next_has_what_it_missed(
    file: Path, monkeypatch: pytest.MonkeyPatch, compared: list[int]
) -> None:
    write, calls = observers.Checkpoints._save, iter(range(1, 100))

    def full(self: Any, run: Any) -> None:
        if next(calls) in (3, 4):
            with monkeypatch.context() as patch:
                patch.setattr("privet.core.files.npy.write_array_header_1_0", fails)
                write(self, run)
        write(self, run)

    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(observers.Checkpoints, "_save", full)
    _, strategy, _ = play(file, 6, checkpoint=file)
    assert strategy.run.saved.failures == 2
    assert compared[-1] > 0
