"""Privacy-critical: a node's prepared records on its own disk, so that they are read once.

Flower starts a process for every message. A node that keeps its state in a file (``state-path``)
keeps beside it, in a folder of its owner's alone, the examples that its problem is made of. Each
file says what it was made from: the run-config keys in its name; the times and sizes of the data's
files, and of this library's, inside. What was made from anything else is made anew, and removed.

Privacy: the files hold personal data of the node. Nothing of them leaves; what was said of the
records (`Share.data_dependent`) is kept with them, so a private run is refused as without a file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NamedTuple

import numpy as np

from privet.core.files import read_npz, write_npz
from privet.core.library import library_version

from .dataset import FloatArray, LabelArray, Task, frozen
from .meaning import Meaning
from .stamps import stamps

log = logging.getLogger("flwr.privet")

MOST = 4
"""Shares that are kept: several runs at a time may ask for others."""
LARGEST = 1 << 29
"""Bytes of the examples of a share above which it is not kept."""
MOST_FILES = 10_000
"""Files of a data set whose times are looked at; one of more is read for every message."""
SETTLED = 2.0
"""Seconds after which a further change of a file shows in its time."""
ABANDONED = 3600.0
"""Seconds after which a file that is being written is taken to be left by a process that died."""
_SUFFIX = ".share.npz"
_ABOUT = "about"
_READERS = ("numpy", "sklearn", "pyarrow")


class Share(NamedTuple):
    """The examples of one agent, and what else of the data its problem depends on.

    Attributes
    ----------
    features : float array (n, d)
    labels : array (n,)
    dealt : int
        The examples that are dealt to all agents together.
    task, classes, data_dependent, meaning
        As in `Dataset`.
    person_rows : int
        The rows of the person who has most of them, where the data say whose they are.
    doubts : tuple of str
        Lines for the node's own log on what is doubtful about its file.
    """

    features: FloatArray
    labels: LabelArray
    dealt: int
    task: Task
    classes: int
    data_dependent: str
    meaning: Meaning | None = None
    person_rows: int = 1
    doubts: tuple[str, ...] = ()


Stamps = list[list[Any]]
"""Of each file its path, size, inode, and times of the last change of contents and of status."""


def prepared(
    folder: Path, asked: Mapping[str, Any], sources: Iterable[str], make: Callable[[], Share]
) -> Share:
    """Return an agent's share from the folder, where it is there and fresh, else made and kept.

    Parameters
    ----------
    folder : Path
        Made with mode 0700; one that others may enter is not used. Files have mode 0600.
    asked : mapping
        What the share depends on other than files, as JSON has it.
    sources : iterable of str
        Paths of the files and folders that it is read from.
    make : callable
        Reads and deals the data; its errors pass through, and nothing is kept then.
    """
    sources = list(sources)
    found = _stamps(sources)
    if not _is_own(folder):
        return make()
    if found is None:
        _sweep(folder)
        return make()
    text = json.dumps({**asked, "library": library_version()}, sort_keys=True)
    file = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{_SUFFIX}"
    share = _read(file, found)
    if share is not None:
        return share
    share = make()
    settled = time.time() - SETTLED
    newest = max((each[3] for each in found), default=0) / 1e9
    small = share.features.nbytes <= LARGEST
    if small and newest < settled and _stamps(sources) == found:
        _write(file, share, sources, found)
    else:
        _sweep(folder)
    return share


def forget(folder: Path) -> None:
    """Delete all that is kept in a folder; behind a link to one nothing is."""
    if folder.is_symlink():
        return
    for file in _kept(folder):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _stamps(sources: Iterable[str]) -> Stamps | None:
    """Return the stamps of all files that a share is made from, this library's included, as JSON
    has them.

    None where a source is missing, or has too many files.
    """
    packages = [spec.origin for name in _READERS if (spec := find_spec(name)) and spec.origin]
    own = [*sorted(Path(__file__).parent.rglob("*.py")), *map(Path, packages)]
    found = stamps([*own, *sources], MOST_FILES + len(own))
    return None if found is None else list(map(list, found))


def _is_own(folder: Path) -> bool:
    """Whether there is a folder, made if need be, that nobody but this user may enter."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        log.warning("%s: prepared data are not kept (%s)", folder, error.strerror)
        return False
    if S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return True
    log.warning("%s: prepared data are not kept; expected a folder of this user's alone", folder)
    return False


def _read(file: Path, found: Stamps) -> Share | None:
    """Return what a file holds, None where it is not there, or was made from other files."""
    try:
        if not S_ISREG(file.lstat().st_mode):
            raise ValueError("no plain file")
        members = read_npz(file)
        about = json.loads(members[_ABOUT].tobytes())
        if about["stamps"] != found:
            return None
        features, labels = frozen(members["features"]), frozen(members["labels"])
        if features.ndim != 2 or labels.shape != features.shape[:1]:
            raise ValueError("arrays of other shapes")
        return Share(
            features,
            labels,
            int(about["dealt"]),
            about["task"],
            int(about["classes"]),
            str(about["data-dependent"]),
            replace(Meaning.from_text(about["meaning"]), public=bool(about["public"]))
            if about["meaning"]
            else None,
            int(about["person-rows"]),
            tuple(map(str, about["doubts"])),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is damaged and is written anew (%s)", file, type(error).__name__)
        return None


def _write(file: Path, share: Share, sources: list[str], found: Stamps) -> None:
    """Keep a share, and remove others that are out of date or too many."""
    about = {
        "sources": sources,
        "stamps": found,
        "dealt": share.dealt,
        "task": share.task,
        "classes": share.classes,
        "data-dependent": share.data_dependent,
        "meaning": share.meaning.text if share.meaning else "",
        "public": share.meaning is None or share.meaning.public,
        "person-rows": share.person_rows,
        "doubts": share.doubts,
    }
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    try:
        write_npz(file, {_ABOUT: text, "features": share.features, "labels": share.labels})
    except OSError as error:
        log.warning("%s: prepared data are not kept (%s)", file, error.strerror)
        return
    log.info(
        "%d prepared examples are kept in %s; keep-data = false in the node config keeps none",
        len(share.labels),
        file.parent,
    )
    _sweep(file.parent, written=file)


def _kept(folder: Path) -> list[Path]:
    """Return the shares of a folder, those included that were never written to their end."""
    return [*folder.glob(f"*{_SUFFIX}"), *folder.glob(f".*{_SUFFIX}.*.tmp")]


def _sweep(folder: Path, written: Path | None = None) -> None:
    """Remove shares whose sources have changed, and the oldest of too many."""
    times: dict[Path, float] = {}
    for file in _kept(folder):
        with suppress(OSError):
            changed = file.lstat().st_mtime
            if file.suffix == ".tmp":
                current = time.time() - changed < ABANDONED
            else:
                current = file == written or _is_current(file)
                times[file] = changed
            if not current:
                times.pop(file, None)
                file.unlink(missing_ok=True)
    for file in sorted(times, key=times.__getitem__)[:-MOST]:
        if file != written:
            file.unlink(missing_ok=True)


def _is_current(file: Path) -> bool:
    try:
        about = json.loads(read_npz(file, only=_ABOUT)[_ABOUT].tobytes())
        return bool(about["stamps"] == _stamps(about["sources"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False
