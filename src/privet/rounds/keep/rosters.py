"""The rosters of the last secure sums that uploads were asked for, on disk before they are.

A coordinator that dies after a sum, and before its checkpoint, would ask the round again with those
who are there then: without exactly one agent the two sums would give its upload. So a run of masked
uploads writes down whom it asks, also where it adds no noise, and a resume starts from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from privet.core import RunError
from privet.core.errors import HopelessError
from privet.core.files import read_whole, write_whole

from .checkpoint import FILE_NAME


class LastSums(NamedTuple):
    """The round whose uploads were asked for last, and by group the roster of its sum."""

    round: int = 0
    rosters: Mapping[str, tuple[str, ...]] = {}


def rosters_beside(checkpoint: Path) -> Path:
    """Return where the rosters of a run are: ``rosters.json`` in a run folder."""
    if checkpoint.name == FILE_NAME:
        return checkpoint.with_name("rosters.json")
    return checkpoint.with_suffix(".rosters.json")


def write_rosters(checkpoint: Path, last: LastSums) -> None:
    """Write the rosters (raises ``RunError``)."""
    path = rosters_beside(checkpoint)
    try:
        write_whole(path, json.dumps([last.round, last.rosters]).encode())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def read_rosters(checkpoint: Path) -> LastSums:
    """Return the rosters of a run that goes on; none of one that has asked for no sum.

    Raises
    ------
    HopelessError
        If the file is damaged: whom an upload was asked of is not known then.
    """
    path = rosters_beside(checkpoint)
    try:
        number, rosters = json.loads(read_whole(path))
        return LastSums(
            int(number), {str(group): tuple(map(str, names)) for group, names in rosters.items()}
        )
    except FileNotFoundError:
        return LastSums()
    except (OSError, ValueError, TypeError, AttributeError):
        raise HopelessError(
            f"resume: {path} cannot be read: whom the last secure sum was asked of is not known; "
            "begin another run"
        ) from None
