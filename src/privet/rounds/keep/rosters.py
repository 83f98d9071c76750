"""Whom secure sums are over, on disk before an upload, or a share, is asked for.

A coordinator that dies after a sum, and before its checkpoint, would play the round again with
those who are there then: without exactly one agent the two sums would give its upload. So a run of
masked uploads writes down each roster that it asks, and each list of agents that it opens, also
where it adds no noise; a resume keeps its sums apart from these.

The file is there before a checkpoint is, and ends with a line that the next one overwrites; a
checkpoint states how many sums are in it. So a file that was deleted, emptied, cut or taken from a
backup is told from that of a run which asked for none. A file beside it names its newest line, as
one beside a journal does, so that a copy of after the same checkpoint is told from it, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from privet.core import RunError
from privet.core.errors import HopelessError
from privet.core.files import open_own, write_whole
from privet.kernel.ledger import sync_directory

from .checkpoint import FILE_NAME
from .journal import END, add_line, checksum, end_beside, note_end, noted_end


class Summed(NamedTuple):
    """The agents of a sum that was asked for in a round, of one group."""

    round: int
    group: str
    names: tuple[str, ...]


def rosters_beside(checkpoint: Path) -> Path:
    """Return where the rosters of a run are: ``rosters.jsonl`` in a run folder."""
    if checkpoint.name == FILE_NAME:
        return checkpoint.with_name("rosters.jsonl")
    return checkpoint.with_suffix(".rosters.jsonl")


def write_roster(checkpoint: Path, summed: Summed) -> None:
    """Write one more line, durably (raises ``RunError``)."""
    path, line = rosters_beside(checkpoint), json.dumps(summed).encode() + b"\n"
    try:
        file = open_own(path)
        try:
            first = not add_line(file, line)
        finally:
            os.close(file)
        if first:
            sync_directory(path.parent)
        note_end(path, checksum(line))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def begin(checkpoint: Path) -> None:
    """Begin the file of a run that has asked for no sum (raises ``RunError``)."""
    _write(checkpoint, ())


def take_over(
    resumed: Path, checkpoint: Path | None, stated: int | None, asked: Collection[int] = ()
) -> list[Summed]:
    """Return the sums of the run of a checkpoint, and write them beside the one that goes on.

    Parameters
    ----------
    stated : int or None
        How many sums there were when the checkpoint was written; None where an earlier version
        wrote it, whose file may be absent, and has no end.
    asked : collection of int
        The rounds since in which agents were asked for uploads.

    Raises
    ------
    HopelessError
        If the file is damaged, or lacks a sum: whom sums were over is not known then.
    RunError
        If it cannot be written.
    """
    path = rosters_beside(resumed)
    try:
        data = path.read_bytes()
        if stated is None:
            data = data[: data.rfind(b"\n") + 1]
        elif not data.endswith(END):
            raise _unknown(path, "its end is cut")
        found = list(_lines(data))
        checks = set(map(checksum, data.splitlines(keepends=True)))
    except FileNotFoundError:
        if stated is not None:
            raise _unknown(path, "is not there") from None
        found, checks = [], set[str]()
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, HopelessError):
            raise
        raise _unknown(path, "cannot be read") from None
    if stated is not None:
        if len(found) < stated:
            raise _unknown(path, f"has {len(found)} sums of {stated}, as one from a backup")
        if lacking := set(asked).difference(one.round for one in found):
            raise _unknown(path, f"has no sum of round {min(lacking)}, which was asked for")
        if (end := noted_end(path)) and end not in checks:
            beside = end_beside(path).name
            raise _unknown(path, f"lacks the sum that {beside} names, as one from a backup")
    if checkpoint is not None:
        _write(checkpoint, found)
    return found


def _unknown(path: Path, why: str) -> HopelessError:
    return HopelessError(
        f"resume: {path}: {why}: whom the secure sums were over is not known; begin another run"
    )


def _write(checkpoint: Path, every: Collection[Summed]) -> None:
    path = rosters_beside(checkpoint)
    lines = [json.dumps(one).encode() + b"\n" for one in every]
    try:
        write_whole(path, b"".join([*lines, END]))
        note_end(path, checksum(lines[-1]) if lines else "")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def _lines(data: bytes) -> Iterator[Summed]:
    for line in data.removesuffix(END).splitlines():
        number, group, names = json.loads(line)
        if type(number) is not int or type(group) is not str or type(names) is not list:
            raise ValueError("not a line of this file")
        yield Summed(number, group, tuple(map(str, names)))
