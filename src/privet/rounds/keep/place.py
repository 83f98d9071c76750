"""Privacy-critical: a private run goes on in one place, whose account holds all that was spent.

Two runs that go on from one checkpoint would each forget what the other asks for, and a run that
begins over a private one's files replaces its account. So a private run takes its place before its
first message: a line in the journal that it goes on from ends whoever else has read that journal,
and a note beside it says where the run is now.
"""

from __future__ import annotations

import os
from pathlib import Path

from privet.core import ConfigError, RunError
from privet.core.errors import HopelessError, said_of
from privet.core.files import read_text, write_whole

from .checkpoint import (
    FILE_NAME,
    Checkpoint,
    has_checkpoint,
    history_beside,
    journal_beside,
    parts_beside,
    previous_beside,
)
from .journal import Journal, has_requests, last_check

CONTINUED = "continued"
"""The note in the folder of a private run that went on in another folder, which it names."""
_LONGEST_NOTE = 1 << 14
"""Bytes of a note, which is a path."""


def take_place(
    saved: Checkpoint | None, checkpoint: Path | None, *, private: bool
) -> Journal | None:
    """Return the journal of a private run, begun, once nobody else goes on with the run.

    Parameters
    ----------
    saved : Checkpoint, optional
        What the run goes on from, as it was read a moment ago; none where it begins.
    checkpoint : Path, optional
        Its checkpoint's file. Without one there is no journal.
    private : bool
        Whether this run is.

    Raises
    ------
    ConfigError
        If a private run is to go on without a ``checkpoint``, or from what was not read from a
        file; if the files there are those of another run, whose account it would replace.
    HopelessError
        If it went on elsewhere.
    RunError
        If another process goes on with it, or a file cannot be written.
    """
    if checkpoint is None:
        if saved is not None and private:
            raise ConfigError(
                "resume: a private run that goes on needs checkpoint, such as the file that it "
                "goes on from: beside it is written, before a message leaves, who is asked"
            )
        return None
    source = saved.where if saved is not None else None
    if saved is not None and source is None and private:
        raise ConfigError("resume: a private run goes on from a folder, or from what load returns")
    journal = Journal(journal_beside(checkpoint))
    try:
        if saved is not None and source is not None and source.resolve() == checkpoint.resolve():
            if not private:
                return None
            _begin(journal, saved.journal_end, source)
            return journal
        end = last_check(journal.path)  # before the files are looked at
        require_unspent(checkpoint, private=private)
        if not private:
            return None
        if saved is not None and source is not None:
            left = Journal(journal_beside(source))
            _begin(left, saved.journal_end, source, goes_on=_run_of(checkpoint))
        _begin(journal, end)
    except OSError as error:
        raise RunError(f"{journal.path} cannot be written: {error.strerror}") from None
    return journal


def _begin(
    journal: Journal, end: str, source: Path | None = None, goes_on: Path | None = None
) -> None:
    """Begin in a journal that still has this end, and note where its run goes on, if elsewhere.

    Who does so at once has another end before it, or finds the note (raises ``OSError``, too).
    """
    with journal.locked():
        if source is not None:
            require_end(source)
        journal.begin(end)
        if source is not None and goes_on is not None:
            write_note(_continued_beside(source), str(goes_on.absolute()))


def require_unspent(checkpoint: Path, *, private: bool, stated: bool = False) -> None:
    """Refuse to write another run's files where those of a private run are.

    A ``private`` run begins where there is none: what that one has spent may be lost. ``stated``
    says that an account states something.

    Raises
    ------
    ConfigError
        If one has asked agents: its account would be replaced.
    """
    run = _run_of(checkpoint)
    what, other = ("run folder ", "name or output-dir") if run.is_dir() else ("", "file")
    on = f"set resume = {run} to go on with it, or choose another {other}"
    if stated or has_requests(journal_beside(checkpoint)):
        raise ConfigError(f"{what}{run} holds a private run, whose account would be lost: {on}")
    if private and begun_files(checkpoint):
        raise ConfigError(f"{what}{run} holds a run: {on}")


def begun_files(checkpoint: Path) -> list[Path]:
    """Return the files of a run that has begun which a resume goes on from, or needs.

    A link to nowhere is a file that was written, and is not to be had.
    """
    history, journal = history_beside(checkpoint), journal_beside(checkpoint)
    files = [
        *(checkpoint, previous_beside(checkpoint), *parts_beside(checkpoint).glob("*.npz")),
        *([] if _is_empty(history) else [history]),
        *([journal] if has_requests(journal) else []),
    ]
    return [file for file in files if os.path.lexists(file)]


def _is_empty(file: Path) -> bool:
    """Whether there is nothing in a file, or no file; not one that cannot be read."""
    return not os.path.lexists(file) or (file.is_file() and not file.stat().st_size)


def require_end(checkpoint: Path) -> None:
    """Refuse a private run that went on elsewhere (raises ``HopelessError``)."""
    note, run = _continued_beside(checkpoint), _run_of(checkpoint)
    there, fault = read_note(note)
    if fault or (there and not Path(there).is_absolute()):
        raise HopelessError(
            f"resume: {note} {fault or 'names no folder by its whole path'}: {run} went "
            "on in another folder, whose account holds all that was spent: set resume to that "
            "folder"
        )
    if not there:
        return
    what = f"resume: {run} went on in {there}"
    if not has_checkpoint(Path(there)):
        raise HopelessError(
            f"{what}, which holds no checkpoint: put it back, and set resume = {there}; only "
            "if the run is known to have asked no agent there, as a process that died at its "
            f"start, remove {note}"
        )
    raise HopelessError(
        f"{what}, and only that run's account holds all that was spent: set resume = {there}"
    )


def write_note(file: Path, text: str) -> None:
    """Write a note (raises ``RunError``)."""
    try:
        write_whole(file, f"{text}\n".encode())
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror}") from None


def read_note(file: Path) -> tuple[str, str]:
    """Return the text of a note and what is wrong with it; both are empty where there is none.

    Only a file that is not there is none: a link to nowhere, a folder or a pipe is a fault.
    """
    if not os.path.lexists(file):
        return "", ""
    try:
        text = read_text(file, _LONGEST_NOTE).strip()
    except (OSError, ValueError) as error:
        return "", f"cannot be read ({said_of(error)})"
    return text, "" if text and text.isprintable() else "names no folder"


def _continued_beside(checkpoint: Path) -> Path:
    """Return where the note is that a run went on elsewhere: ``continued`` in a run folder."""
    if checkpoint.name == FILE_NAME:
        return checkpoint.with_name(CONTINUED)
    return checkpoint.with_suffix(f".{CONTINUED}")


def _run_of(checkpoint: Path) -> Path:
    """Return the folder of a run by its checkpoint, or the file where it has another name."""
    return checkpoint.parent if checkpoint.name == FILE_NAME else checkpoint
