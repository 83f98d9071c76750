"""Whom the secure sums of a run were over is known to every resume, or there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.core.errors import HopelessError
from privet.rounds.keep.rosters import Summed, begin, rosters_beside, take_over, write_roster
from privet.sim.inline import grid_of
from privet.strategies import DPFedSGD
from privet.testing import logistic_federation

NAMES = tuple("abcdef")
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda file: file.unlink(), "is not there"),
    "a link to nowhere": (
        lambda file: (file.unlink(), file.symlink_to(file.parent / "nowhere")),
        "is not there",
    ),
    "empty": (lambda file: file.write_bytes(b""), "its end is cut"),
    "cut by a line": (
        lambda file: file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:-2])),
        "its end is cut",
    ),
    "cut in its end": (lambda file: file.write_bytes(file.read_bytes()[:-1]), "its end is cut"),
    "zeroed": (lambda file: file.write_bytes(bytes(file.stat().st_size)), "its end is cut"),
    "of another time": (
        lambda file: file.write_bytes(b"".join(file.read_bytes().splitlines(True)[1:])),
        "has 1 sums of 2, as one from a backup",
    ),
    "changed": (
        lambda file: file.write_bytes(file.read_bytes().replace(b"[1,", b"[{,")),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_file_of_rosters_ends_a_resume(
    damage: str, private: bool, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"clip": 1.0, "noise_scale": 1.0} if private else {}
    problems, start = logistic_federation(4), ArrayRecord({"x": Array(np.zeros(4))})

    def play(rounds: int, **more: Any) -> Any:
        made = DPFedSGD(num_agents=4, step_size_base=0.1, secure_sum=True, patience=0.0, **keys)
        grid, file = grid_of("dp-fedsgd", problems), tmp_path / "checkpoint.npz"
        return made.start(grid, start, num_rounds=rounds, checkpoint=file, **more)

    play(2)
    spoil, why = DAMAGE[damage]
    file = tmp_path / "rosters.jsonl"
    whole = file.read_bytes()
    spoil(file)
    with pytest.raises(HopelessError, match=f"rosters.jsonl: {why}: whom the secure sums"):
        play(3, resume=tmp_path)
    file.unlink(missing_ok=True)
    file.write_bytes(whole)
    assert len(play(3, resume=tmp_path).history) == 3
    assert len(file.read_text().splitlines()) == 4


def test_a_round_that_was_asked_for_has_its_sum(tmp_path: Path) -> None:
    """Of a copy that is as old as the checkpoint: the journal knows of the round since."""
    checkpoint = tmp_path / "checkpoint.npz"
    begin(checkpoint)
    assert take_over(checkpoint, None, 0) == []
    sums = [Summed(number, "", NAMES[: 7 - number]) for number in (1, 2)]
    for one in sums:
        write_roster(checkpoint, one)
    assert take_over(checkpoint, None, 1, {2}) == sums
    with pytest.raises(HopelessError, match="has no sum of round 3, which was asked for"):
        take_over(checkpoint, None, 1, {2, 3})
    other = tmp_path / "other" / "checkpoint.npz"
    other.parent.mkdir()
    assert take_over(checkpoint, other, 2) == sums
    assert rosters_beside(other).read_bytes() == rosters_beside(checkpoint).read_bytes()


def test_a_checkpoint_of_before_may_have_no_file(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.npz"
    assert take_over(checkpoint, None, None, {2}) == []
    rosters_beside(checkpoint).write_text('[1, "", ["a", "b"]]\n[2, "", ["a"')
    assert take_over(checkpoint, None, None, {2}) == [Summed(1, "", ("a", "b"))]


def test_a_copy_of_after_the_same_checkpoint_is_noticed(tmp_path: Path) -> None:
    """It has a sum of the round under way, and lacks the one that a resume asked for."""
    checkpoint = tmp_path / "checkpoint.npz"
    begin(checkpoint)
    file, sums = rosters_beside(checkpoint), [Summed(1, "", tuple("abcdef")[:n]) for n in (6, 4)]
    write_roster(checkpoint, sums[0])
    copy = file.read_bytes()
    assert take_over(checkpoint, checkpoint, 0, {1}) == sums[:1]  # as a resume does
    write_roster(checkpoint, sums[1])
    whole = file.read_bytes()
    file.write_bytes(copy)
    with pytest.raises(HopelessError, match=r"lacks the sum that rosters\.end names"):
        take_over(checkpoint, None, 0, {1})
    file.write_bytes(whole)
    assert take_over(checkpoint, None, 0, {1}) == sums
    begin(checkpoint)
    assert take_over(checkpoint, None, 0) == []
