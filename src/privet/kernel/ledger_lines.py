"""Privacy-critical: the lines of a ledger file: contents, chaining and reading.

They are JSON lines (version 2) that carry, beside a release, everything a charge needs of the past:
running totals, a sequence number, the line's own byte offset and that of the line before, and

    chain = SHA-256(bytes from the line before to this one, then this line up to its chain).

The end of a file is therefore enough to charge: the last line is held against its predecessor,
and its offset against all bytes before. Whoever edits, deletes, inserts or joins lines changes an
offset, or else a hash that `read_all` finds. The hashes need no key: they show accidents and
careless edits, not an operator who rewrites the whole file. A chain leaves the node with a reply:
the salt of each line, 16 random bytes, keeps it from saying anything of what the operator's notes
hold, such as how many rows a query gave, to who tries all of these.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .accountant import Totals
from .events import Release

_FIRST_BLOCK = 4096
_CHAIN = b',"chain":"%s"}'
_CHAIN_LENGTH = len(_CHAIN % (b"0" * 64))
_JOINED = b'}{"version":'


class DamagedError(ValueError):
    """A line differs from what was written; the text names the line and the evidence."""


@dataclass(frozen=True, slots=True)
class Running:
    """The charges up to some line.

    Attributes
    ----------
    totals
        For the account.
    messages
        Number of messages, torn lines included.
    torn
        Number of messages that are charges for torn lines.
    dearest
        The costliest release so far, as which a torn line is charged.
    """

    totals: Totals = field(default_factory=Totals)
    messages: int = 0
    torn: int = 0
    dearest: Release | None = None

    def charged(self, release: Release, torn: int = 0) -> Running:
        """Return the state after a line: one message, or `torn` torn lines.

        Raises
        ------
        UnsupportedAccountError
            If the release is under another neighbouring relation than those before.
        """
        times = max(1, torn)
        return Running(
            self.totals.add(release, times),
            self.messages + times,
            self.torn + torn,
            dearer(self.dearest, release),
        )


def dearer(known: Release | None, release: Release) -> Release:
    """Return a release that costs no less than either, Laplace uses taken as Gaussian ones.

    The one of larger weight, as if every record took part where two differ and one is sampled.
    """
    if release.place:  # as if it began a cycle
        release = replace(release, place=0)
    if known is None or known == release:
        return release
    more = release if _weight(release) > _weight(known) else known
    return more if known.sampling == release.sampling == 1 else replace(more, sampling=1.0)


def _weight(release: Release) -> float:
    loss = min(release.loss, 1e100)
    return release.uses * loss * loss * (math.pi / 2.0 if release.mechanism == "laplace" else 1.0)


@dataclass(frozen=True, slots=True)
class Entry:
    """One readable line.

    Attributes
    ----------
    release, torn
        The release charged; `torn` is the number of torn lines it stands for, 0 for a message.
    time, run, note
        Time (UTC, ISO 8601) and purpose.
    link
        The numbers that bind the line to its place.
    experiment
        The run and all that resume it; empty where none was given.
    chain
        The line's hash, which covers the line before it; empty for a line that is yet to be
        written.
    """

    release: Release
    torn: int
    time: str
    run: str
    note: str
    link: Link
    experiment: str = ""
    chain: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """The numbers that bind a line to its place; `running` includes the line itself."""

    sequence: int
    at: int
    after: int
    running: Running


@dataclass(frozen=True, slots=True)
class End:
    """The end of a ledger file, which the next line has to continue.

    Attributes
    ----------
    running, sequence
        After the last readable line.
    start
        Offset of the last readable line; 0 before the first.
    tail
        The bytes from `start` to the end of the file.
    unreadable
        Number of torn lines at the end, which no line has charged yet.
    """

    running: Running = field(default_factory=Running)
    sequence: int = 0
    start: int = 0
    tail: bytes = b""
    unreadable: int = 0

    def sealed(self, candidate: Release | None) -> Running | None:
        """Return the state with the torn lines charged, None if their cost is unknown.

        Each costs as much as the costliest release in the file, or the candidate where that is
        dearer: the reply that it belonged to cannot have left.
        """
        worst = self.worst(candidate)
        if not self.unreadable:
            return self.running
        return None if worst is None else self.running.charged(worst, self.unreadable)

    def worst(self, candidate: Release | None) -> Release | None:
        """Return the release that a torn line at the end is charged as."""
        return (
            self.running.dearest if candidate is None else dearer(self.running.dearest, candidate)
        )

    def extended(
        self, release: Release, run: str, note: str, experiment: str = ""
    ) -> tuple[bytes, Running]:
        """Return the bytes that charge a release, those that seal torn lines first, and the state.

        Raises
        ------
        UnsupportedAccountError
            If the release is under another neighbouring relation than those before.
        """
        charges = [(release, 0, run, note, experiment)]
        if self.unreadable:
            worst = self.worst(release) or release
            charges.insert(0, (worst, self.unreadable, "", "charge for a torn line", ""))
        data = b"\n" if self.tail and not self.tail.endswith(b"\n") else b""
        before, after = self.tail + data, self.start
        running = self.running
        for number, (charged, torn, of, text, all_of) in enumerate(charges, self.sequence + 1):
            running = running.charged(charged, torn)
            at = after + len(before)
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            link = Link(number, at, after, running)
            line = encode(Entry(charged, torn, now, of, text, link, all_of), before)
            data += line
            before, after = line, at
        return data, running


def encode(entry: Entry, before: bytes) -> bytes:
    """Return a line with its newline; `before` is all from the line before it."""
    link = entry.link
    mapping: dict[str, Any] = {
        "version": 2,
        "sequence": link.sequence,
        "at": link.at,
        "after": link.after,
        "time": entry.time,
        **({"run": entry.run} if entry.run else {}),
        **({"experiment": entry.experiment} if entry.experiment else {}),
        "note": entry.note,
        "salt": secrets.token_hex(16),
        "torn": entry.torn,
        "release": entry.release.to_dict(),
        "messages": link.running.messages,
        "torn-lines": link.running.torn,
        "totals": link.running.totals.to_dict(),
    }
    if link.running.dearest not in (entry.release, None):
        mapping["dearest"] = link.running.dearest.to_dict()
    body = json.dumps(mapping, separators=(",", ":"))[:-1].encode()
    return body + _CHAIN % _hash(before, body) + b"\n"


def _hash(before: bytes, body: bytes) -> bytes:
    return hashlib.sha256(before + body).hexdigest().encode()


def head(lines: bytes) -> str:
    """Return the chain of the last of these whole lines: the head of a ledger that ends so."""
    return lines.removesuffix(b"\n")[-_CHAIN_LENGTH:].split(b'"')[3].decode()


def decode(raw: bytes) -> Entry | None:
    """Return the entry of a line, or None if the line is torn.

    Raises
    ------
    DamagedError
        For a line that no interrupted write leaves: whole JSON that is no entry, or two lines
        without a newline between.
    """
    try:
        mapping = json.loads(raw)
    except (ValueError, RecursionError):
        if _JOINED in raw:
            raise DamagedError("holds two lines in one") from None
        return None
    try:
        if (version := mapping["version"]) != 2:
            raise ValueError(f"version {version!r:.20}, expected 2")
        torn = _count(mapping["torn"])
        release = Release.from_dict(mapping["release"])
        texts = str(mapping.get("time", "")), str(mapping.get("run", "")), str(mapping["note"])
        experiment = str(mapping.get("experiment", ""))
        chain = str(mapping.get("chain", ""))
        return Entry(release, torn, *texts, _link(mapping, release), experiment, chain)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"is not a ledger entry ({error!s:.100})") from None


def _link(mapping: Mapping[str, Any], release: Release) -> Link:
    dearest = Release.from_dict(mapping["dearest"]) if "dearest" in mapping else release
    running = Running(
        Totals.from_dict(mapping["totals"]),
        _count(mapping["messages"]),
        _count(mapping["torn-lines"]),
        dearest,
    )
    sequence, at, after = (_count(mapping[name]) for name in ("sequence", "at", "after"))
    return Link(sequence, at, after, running)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.20} is not a count")
    return value


def _check_link(
    raw: bytes, entry: Entry, link: Link, before: bytes, previous: Link | None, running: Running
) -> None:
    """Raise DamagedError unless a line follows the bytes and the state before it."""
    after, sequence = (previous.at, previous.sequence) if previous else (0, 0)
    if link.after != after or link.sequence != sequence + 1:
        raise DamagedError("does not follow the line before it")
    body, chain = raw[:-_CHAIN_LENGTH], raw[-_CHAIN_LENGTH:]
    if chain != _CHAIN % _hash(before, body):
        raise DamagedError("was edited, or a line before it was")
    if not _same(running.charged(entry.release, entry.torn), link.running):
        raise DamagedError("does not add up with the line before it")


def _same(computed: Running, written: Running) -> bool:
    """Compare two states; a loss may differ by the last bits of another machine's exp and log."""
    mine, theirs = computed.totals.gaussian[0], written.totals.gaussian[0]
    if not math.isclose(mine, theirs, rel_tol=1e-12, abs_tol=0.0):
        return False
    agreed = replace(computed.totals, gaussian=written.totals.gaussian)
    return replace(computed, totals=agreed) == written


def read_all(data: bytes, keep: Callable[[Entry], None] = lambda entry: None) -> End:
    """Read a whole file, checking every line, and hand each entry to `keep`.

    Raises
    ------
    DamagedError
        Naming the first bad line by its number.
    """
    running = Running()
    previous: Link | None = None
    unreadable = offset = 0
    for number, raw in enumerate(_lines(data), 1):
        try:
            entry = decode(raw)
            if entry is None:
                unreadable += 1
            else:
                link = entry.link
                if link.at != offset:
                    raise DamagedError("is not where it was written: bytes before it changed")
                if entry.torn != unreadable:
                    raise DamagedError(
                        f"cannot be read, or line {number} was edited"
                        if unreadable
                        else "refers to torn lines that are missing"
                    )
                start = previous.at if previous else 0
                _check_link(raw, entry, link, data[start:offset], previous, running)
                previous, running = link, link.running
                unreadable = 0
                keep(entry)
        except ValueError as error:
            raise DamagedError(f"line {number - unreadable} {error}") from None
        offset += len(raw) + 1
    if running.messages == 0 and data[:1] not in (b"", b"{", b"\0"):
        raise DamagedError("line 1 is not a ledger entry")
    start, sequence = (previous.at, previous.sequence) if previous else (0, 0)
    return End(running, sequence, start, data[start:], unreadable)


def read_end(read: Callable[[int, int], bytes], size: int) -> End:
    """Read the end of a file, which is all that a charge needs, as far back as necessary.

    Parameters
    ----------
    read
        (offset, length) -> the bytes there.
    size
        Of the file.

    Raises
    ------
    DamagedError
    """
    length = _FIRST_BLOCK
    while length < size:
        begin = size - length
        block = read(begin, length)
        # What is before the first newline may be the rest of a line.
        skipped = block.find(b"\n") + 1
        unreadable, place = 0, size
        for raw in reversed(_lines(block[skipped:]) if skipped else []):
            place -= len(raw) + (block[place - begin - 1 : place - begin] == b"\n")
            entry = _decoded_at_end(raw)
            if entry is None:
                unreadable += 1
                continue
            if entry.link.at != place:
                raise DamagedError("last line is not where it was written: bytes before it changed")
            if entry.link.sequence == 1:  # before it are torn lines alone
                return read_all(read(0, size))
            if entry.link.after >= place:
                raise DamagedError("last line does not follow the line before it")
            if entry.link.after < begin:
                break
            _check_last(block[entry.link.after - begin : place - begin], raw, entry, entry.link)
            tail = block[place - begin :]
            return End(entry.link.running, entry.link.sequence, place, tail, unreadable)
        length *= 2
    return read_all(read(0, size))


def _decoded_at_end(raw: bytes) -> Entry | None:
    try:
        return decode(raw)
    except DamagedError as error:
        raise DamagedError(f"last line {error}") from None


def _check_last(before: bytes, raw: bytes, entry: Entry, link: Link) -> None:
    """Raise DamagedError unless the last line follows the one whose bytes begin `before`."""
    first, *torn = _lines(before)
    previous = _decoded_at_end(first)
    if previous is None or previous.link.at != link.after:
        raise DamagedError("last line does not follow the line before it")
    if entry.torn != len(torn):
        raise DamagedError("last line does not follow the line before it")
    try:
        _check_link(raw, entry, link, before, previous.link, previous.link.running)
    except ValueError as error:
        raise DamagedError(f"last line {error}") from None


def _lines(data: bytes) -> list[bytes]:
    """Split at newlines; what follows the last one is a line if there is anything."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]
