"""Whom secure sums are over, on disk before an upload, or a share, is asked for.

A coordinator that dies after a sum, and before its checkpoint, would play the round again with
those who are there then: without exactly one agent the two sums would give its upload. So a run of
masked uploads writes down each roster that it asks, and each list of agents that it opens, also
where it adds no noise; a resume keeps its sums apart from these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from privet.core import RunError
from privet.core.errors import HopelessError
from privet.core.files import open_own, write_whole
from privet.kernel.ledger import append, sync_directory

from .checkpoint import FILE_NAME


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
    path = rosters_beside(checkpoint)
    try:
        file = open_own(path)
        try:
            first = not os.lseek(file, 0, os.SEEK_END)
            append(file, json.dumps(summed).encode() + b"\n")
        finally:
            os.close(file)
        if first:
            sync_directory(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def begin(checkpoint: Path) -> None:
    """Remove what another run left there (raises ``RunError``)."""
    path = rosters_beside(checkpoint)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be removed: {error.strerror}") from None


def take_over(resumed: Path, checkpoint: Path | None) -> list[Summed]:
    """Return the sums of the run of a checkpoint, and write them beside the one that goes on.

    A last line that was cut off is of a sum that nobody was asked for.

    Raises
    ------
    HopelessError
        If the file is damaged: whom sums were over is not known then.
    RunError
        If it cannot be written.
    """
    path = rosters_beside(resumed)
    try:
        data = path.read_bytes()
        data = data[: data.rfind(b"\n") + 1]
        found = list(_lines(data))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise HopelessError(
            f"resume: {path} cannot be read: whom the secure sums were over is not known; begin "
            "another run"
        ) from None
    if checkpoint is not None:
        try:
            write_whole(rosters_beside(checkpoint), data)
        except OSError as error:
            raise RunError(f"{rosters_beside(checkpoint)}: {error.strerror}") from None
    return found


def _lines(data: bytes) -> Iterator[Summed]:
    for line in data.splitlines():
        number, group, names = json.loads(line)
        if type(number) is not int or type(group) is not str or type(names) is not list:
            raise ValueError("not a line of this file")
        yield Summed(number, group, tuple(map(str, names)))
