"""Privacy-critical: the requests to agents since the last checkpoint of a private run.

A coordinator that dies in a round forgets the uploads that left since its checkpoint, and a resume
would spend them again. So a private run writes each request to disk before any message leaves. A
resume counts every request after its checkpoint as an upload that left and was lost. A checkpoint
that is safe on disk holds the accounts themselves, and a line of the journal records that;
requests since the checkpoint before it stay, as a resume may have to go back to that one.

A checkpoint states the journal's last mark, so that a journal that was deleted, emptied or taken
from a backup is told from one without requests. Every line has a checksum, which covers that of the
line before, and the file ends with a line that the next one overwrites: a journal that was cut, or
lacks a line, ends a resume, as requests may be missing. A file beside it has the checksum of its
newest line, so that a copy of after the same checkpoint is told from the journal itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from privet.core import RunError
from privet.core.errors import HopelessError
from privet.core.files import open_own, read_text, read_whole, write_whole
from privet.core.shapes import parsed
from privet.kernel.ledger import append, sync_directory


class Request(NamedTuple):
    """A request of a round: its recipients, the agents to be in a sum, and the settings sent.

    ``enrolled`` is the table (`roster.columns`) of the recipients whose numbers or settings one of
    the last two checkpoints lacks: a resume from it could not charge them.
    """

    round: int
    names: tuple[str, ...]
    agents: int = 1
    settings: str = "{}"
    enrolled: Mapping[str, Any] = {}


class Journal:
    """The requests of a private run since the last checkpoint but one, a JSON line each.

    Parameters
    ----------
    path : Path
        The file; it is made, for its owner alone, with the first line.

    Attributes
    ----------
    mark : str
        The last mark of this process; a checkpoint states it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = ""
        self._last = ""
        """The checksum of the last line."""
        self._left: tuple[int, int] | None = None
        """The file as this process left it: its inode and its size; None before its first line."""
        self._held = False
        """Whether this process has the file's lock."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have others that would write the file wait for the end of the block (raises ``OSError``).

        A line that they wrote while it is replaced would be lost, and nobody would notice.
        """
        if self._held:
            yield
            return
        file = _locked(self.path)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            os.close(file)

    def begin(self, end: str | None = None) -> None:
        """Mark the start of a process, which may try rounds again that are in the file.

        ``end`` is the checksum of the last line (`last_check`) that this process knows of.

        Raises
        ------
        RunError
            As ``add``; if the last line is another one.
        """
        mark = secrets.token_hex(8)
        with suppress(OSError):  # then it cannot be written either
            self._last = last_check(self.path)
        if end is not None and self._last != end:
            raise self._changed()
        self._add({"begun": True, "mark": mark})
        self.mark = mark

    def add(self, number: int, request: Request) -> None:
        """Write a process's request of this number before its messages leave.

        A further line of the same number replaces the one before.

        Raises
        ------
        RunError
            If it cannot be written: then no agent may be asked.
        """
        self._add({"request": number, **request._asdict()})

    def saved(self, round_: int, name: str) -> None:
        """Record that the checkpoint ``name`` of a round contains the cost of every request so far.

        Requests before the last such line are removed (raises ``OSError``, and ``RunError`` if
        another process goes on with the run).
        """
        there = self.path.exists()
        with self.locked():
            if there:
                self._require_unchanged(os.stat(self.path))
            lines = read_whole(self.path).splitlines(keepends=True)
            lines = [line for line in lines if line != END]
            marks = [place for place, line in enumerate(lines) if line.startswith(_SAVED)]
            kept = lines[marks[-1] :] if marks else lines
            line, check = _line({"saved": round_, "mark": name}, self._last)
            write_whole(self.path, b"".join([*kept, line, END]))
            note_end(self.path, check, durable=True)  # or lines that it names would be removed
            self.mark, self._last = name, check
            self._left = _identity(os.stat(self.path))

    def _add(self, entry: Mapping[str, object]) -> None:
        line, check = _line(entry, self._last)
        try:
            with self.locked():
                self._append(line)
                note_end(self.path, check)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}; a private run asks no agent "
                "whose cost it could forget"
            ) from None
        self._last = check

    def _append(self, line: bytes) -> None:
        file = open_own(self.path)
        try:
            self._require_unchanged(os.fstat(file))
            place = add_line(file, line)
            self._left = _identity(os.fstat(file))
        finally:
            os.close(file)
        if not place:
            sync_directory(self.path.parent)

    def _require_unchanged(self, found: os.stat_result) -> None:
        """Refuse to go on in a file that is not as this process left it.

        Raises
        ------
        RunError
            If another process has written into it, or it was replaced: what one of the two asks
            for the other would not count.
        """
        if self._left is None:
            return
        # A file of the same size may have the inode of one that was replaced before it.
        if self._left != _identity(found) or noted_end(self.path) not in ("", self._last):
            raise self._changed()

    def _changed(self) -> RunError:
        return RunError(
            f"{self.path} was changed by another process: one alone may go on with a run"
        )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_ino, found.st_size


def _locked(path: Path) -> int:
    """Return a descriptor with the lock of the file at a path, which may be replaced meanwhile."""
    while True:
        file = open_own(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.lexists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


_SAVED = b'{"saved":'
_CHECK = re.compile(r"[0-9a-f]{8}")
END = b'"end"\n'
"""The last line of a file that was not cut off."""


def add_line(file: int, line: bytes) -> int:
    """Write a line, and the end after it, in place of a file's end; return where it begins.

    Raises
    ------
    OSError
        If it cannot be written; the file is as it was then.
    """
    place = os.lseek(file, 0, os.SEEK_END)
    if place >= len(END) and os.pread(file, len(END), place - len(END)) == END:
        place = os.lseek(file, -len(END), os.SEEK_END)
    _write(file, place, line)
    return place


def _write(file: int, place: int, line: bytes) -> None:
    """Write a line and the end of the file at a place, or leave the file as it was."""
    try:
        append(file, line + END)
    except OSError:  # no message of it leaves, so what a full disk left of it is removed
        os.truncate(file, place)
        os.pwrite(file, END, place)
        raise


def _line(entry: Mapping[str, object], last: str) -> tuple[bytes, str]:
    """Return an entry's line after one with the checksum ``last``, and its own checksum."""
    entry = {**entry, "after": last}
    check = _check(entry)
    return _packed({**entry, "check": check}) + b"\n", check


def end_beside(path: Path) -> Path:
    """Return where the checksum of a journal's newest line is: ``asked.end`` in a run folder."""
    return path.with_suffix(".end")


def note_end(path: Path, check: str, *, durable: bool = False) -> None:
    """Note what a journal's newest line is, once that is on the disk.

    A line costs no further wait for the disk: what is there after a power failure is this note or
    an earlier one, of a line that the journal has as well.
    """
    try:
        file = open_own(end_beside(path))
        try:
            os.pwrite(file, f"{check}\n".encode(), 0)
            if durable:
                os.fsync(file)
        finally:
            os.close(file)
    except OSError:  # then there is none
        with suppress(OSError):
            end_beside(path).unlink()


def noted_end(path: Path) -> str:
    """Return the checksum that is noted beside a journal, empty where there is none."""
    with suppress(OSError, ValueError):
        text = read_text(end_beside(path), 16).strip()
        return text if _CHECK.fullmatch(text) else ""
    return ""


def last_check(path: Path) -> str:
    """Return the checksum of a journal's last line, empty where there is none.

    It covers the lines before, so that a journal of the same end was not written to in between
    (raises ``OSError``).
    """
    lines = read_whole(path).splitlines() if path.exists() else []
    last = [line for line in lines if line + b"\n" != END][-1:]
    with suppress(ValueError):  # a file that is refused when it is read
        return "".join(_parsed(line)[1] for line in last)
    return ""


def _check(entry: Mapping[str, object]) -> str:
    return checksum(_packed(entry))


def checksum(data: bytes) -> str:
    """Return what stands for a line: its CRC-32 as eight digits."""
    return f"{zlib.crc32(data):08x}"


def _packed(entry: Mapping[str, object]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode()


def _parsed(line: bytes) -> tuple[dict[str, Any], str]:
    """Return a line's entry and checksum (raises ``ValueError``); format 6 has no checksums."""
    entry = parsed(line)
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    check = entry.pop("check", "")
    if check and check != _check(entry):
        raise ValueError("not what was written")
    return entry, check


def has_requests(path: Path) -> bool:
    """Whether a journal names agents that may have been asked, or cannot be read."""
    try:
        return os.path.lexists(path) and bool(read_journal(path, 0))
    except RunError:
        return True


def attempts(path: Path, number: int) -> int:
    """Return how many processes asked agents for this round and ended before it was folded.

    A process that saves a checkpoint without a round in between forgets no attempt: only the line
    of a saved round removes requests from the file. 0 where it cannot be read.
    """
    found: set[int] = set()
    process = 0
    with suppress(OSError, ValueError, TypeError, ArithmeticError):
        for line in read_whole(path).splitlines():
            entry = _parsed(line)[0] if line + b"\n" != END else {}
            process += "begun" in entry
            if entry.get("round") == number:
                found.add(process)
    return len(found)


def read_journal(
    path: Path, after: int, name: str = "", mark: str | None = None, *, private: bool = False
) -> list[Request]:
    """Return the requests since the checkpoint of a round.

    Parameters
    ----------
    after : int
        The round of the checkpoint.
    name, mark : str
        The name of the checkpoint, and the journal's last mark when it was written. Where the
        journal has not recorded the name, as a process died before it could, the requests of later
        rounds after that mark are returned. A mark of None is that of a checkpoint of format 6,
        which is found by its round.
    private : bool
        Whether a checkpoint of format 6 is that of a private run, whose journal has a line at
        least.

    Raises
    ------
    HopelessError
        If a line cannot be read, or the journal does not reach back to the checkpoint: the
        privacy cost of the agents is then unknown.
    """
    marks = None if mark is None else {name, mark} - {""}
    needed = bool(mark)  # not by a checkpoint of a run without privacy, nor by one of format 6
    kept = needed or (private and mark is None)
    if not os.path.lexists(path):  # a link to nowhere cannot be read
        if not kept:
            return []
        raise _unknown(path, after, "is not there")
    try:
        lines = read_whole(path).split(b"\n")
    except OSError as error:
        raise RunError(f"resume: {path}: {error.strerror}") from None
    requests: dict[tuple[int, int], Request] = {}
    process, first, found, last, checks = 0, after, not needed, "", set[str]()
    if kept and not any(lines):
        raise _unknown(path, after, "is empty")
    if lines[-1] or (needed and lines[-2:-1] != [END[:-1]]):
        raise _unknown(path, after, "its end is cut")
    for number, line in enumerate((line for line in lines[:-1] if line + b"\n" != END), 1):
        try:
            entry, check = _parsed(line)
            starts = number == 1 and "saved" in entry  # what was before it is not needed any more
            if not starts and entry.get("after", last) != last:
                raise _unknown(path, after, f"a line before line {number} is missing")
            last = check
            checks.add(check)
            if "saved" in entry or "begun" in entry:
                process += "begun" in entry
                if starts:
                    first = int(entry["saved"])
                if marks is None:
                    covered = entry.get("saved") == after
                else:
                    covered = entry.get("mark") in marks
                if covered:
                    first, found = after, True
                    requests.clear()
            else:
                names, agents, settings = entry["names"], entry["agents"], entry["settings"]
                request = Request(
                    int(entry["round"]),
                    tuple(names),
                    int(agents),
                    str(settings),
                    dict(entry.get("enrolled", {})),
                )
                requests[process, int(entry["request"])] = request
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise _unknown(path, after, f"line {number} is damaged") from None
    if not found:
        raise _unknown(path, after, "lacks the mark of this checkpoint, as one from a backup")
    if first > after:
        raise _unknown(path, after, f"begins after round {first}")
    if (end := noted_end(path)) and end not in checks:
        beside = end_beside(path).name
        raise _unknown(path, after, f"lacks the line that {beside} names, as one from a backup")
    return [request for request in requests.values() if request.round > after]


def _unknown(path: Path, after: int, why: str) -> HopelessError:
    return HopelessError(
        f"resume: {path}: {why}: what the agents have spent since round {after} is not known"
    )
