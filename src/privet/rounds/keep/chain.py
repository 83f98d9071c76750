"""A run's checkpoints on the disk: whole ones, and after each a chain of what changed since.

``checkpoint.npz`` is the newest. It is whole, or holds what changed since the one before it and
names, in order, the parts that it needs: files in ``checkpoint.parts`` beside it, from a whole
checkpoint to the one before it. A part is the file that was ``checkpoint.npz`` until the next one
took its place, a second link to it, with the round and a random identity as its name; it states its
identity, and the parts before it, itself. The checksums are those of the archives' members. So each
part, with those before it, is a checkpoint of its own to which a run can go back.

A new whole one is written once the rows that later parts have replaced take up half of the chain,
so that writing it costs no more in the mean than the parts did, and the folder holds what three
whole ones take at most: the old chain, until a second checkpoint has followed, and the new whole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from privet.core.files import sync_folder

from ..roster import Roster
from ..table_rows import ROWS
from .checkpoint import PART, Checkpoint, parts_beside, save

log = logging.getLogger("flwr.privet")

SMALL = 1 << 20
"""Bytes of a whole checkpoint up to which all are whole."""
LONGEST = 2
"""A new chain begins when the old one takes this many times the bytes of a whole checkpoint."""
MOST_PARTS = 200
"""Parts of a chain at most."""


class Chain:
    """Writes the checkpoints of one process, of which the first is whole.

    Parameters
    ----------
    path : Path
        Where the newest is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: list[str] = []
        self._name = ""
        # Of the chain: its bytes, those that a whole one would have about, and who is in it.
        self._bytes, self._whole = 0, 0.0
        self._there: set[str] = set()
        self._first: Mapping[str, list[Any]] = {}

    def changed(self, roster: Roster) -> set[str] | None:
        """Return the agents of which the next checkpoint holds what they have; None if it is whole.

        The newest is a part by then, durably.
        """
        changes = roster.changes
        if changes.everything or not self._name or self._whole <= SMALL:
            return None
        if len(self._parts) + 1 >= MOST_PARTS or self._bytes >= LONGEST * self._whole:
            return None
        if 2 * len(changes.names) >= len(roster.agents):
            return None
        folder = parts_beside(self.path)
        if folder.is_symlink():  # to a folder that may be another run's
            return None
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileExistsError):  # of a checkpoint that could not be written
                os.link(self.path, folder / self._name)
            sync_folder(folder)
        except OSError as error:  # such as a file system without links
            log.debug("%s: %s", self.path, error)
            return None
        return set(changes.names)

    def write(self, checkpoint: Checkpoint, changed: Collection[str] | None) -> None:
        """Write the newest checkpoint, of ``changed`` or whole (raises ``OSError``).

        The one that was there is kept beside it, with the parts that it needs.
        """
        parts = [] if changed is None else [*self._parts, self._name]
        name = save(self.path, checkpoint, parts)
        if self._name:  # what an earlier process wrote is needed until there are two
            self._remove_all_but({*self._parts, *parts})
        self._parts, self._name = parts, name
        self._count(checkpoint, changed)

    @property
    def name(self) -> str:
        """The name of the checkpoint that was written last, as a part of later ones."""
        return self._name

    def _remove_all_but(self, needed: Collection[str]) -> None:
        """Remove the parts that neither the newest checkpoint nor the one before it needs.

        Other files stay, and so do those of a folder to which a link leads.
        """
        folder = parts_beside(self.path)
        if folder.is_symlink() or not folder.exists():
            return
        try:
            for part in folder.iterdir():
                if PART.fullmatch(part.name) and part.name not in needed:
                    part.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
        except OSError as error:  # they are tried again with the next one
            log.warning("%s: parts of old checkpoints stay (%s)", folder, error.strerror)

    def _count(self, checkpoint: Checkpoint, changed: Collection[str] | None) -> None:
        """Estimate what a whole checkpoint would take: the rows of newcomers replace nothing."""
        size = self.path.stat().st_size
        if changed is None:
            self._bytes, self._whole = size, float(size)
            self._there, self._first = set(), checkpoint.manifest["agents"]
            return
        if self._first:  # not before it is needed: small runs write whole ones alone
            names, tags = self._first["name"], self._first["tag"]
            each = tags * len(names) if len(tags) == 1 else tags
            self._there = {name for name, tag in zip(names, each, strict=True) if tag}
            self._first = {}
        rows = [array for name, array in checkpoint.arrays.items() if name.endswith(ROWS)]
        for table in checkpoint.node_states:
            rows += [array for each in table.states for array in each.values()]
        new = len(set(changed) - self._there) / max(1, len(changed))
        self._bytes += size
        self._whole += new * sum(array.nbytes for array in rows)
        self._there.update(changed)
