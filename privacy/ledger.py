"""The lifetime ledger: a file that every process and every run of an agent shares.

The file is append-only JSON lines. An entry is written and fsynced under an exclusive lock before
the reply it belongs to may leave, so a crash can lose a reply but never an entry. Nothing is ever
rolled back: lost and replayed rounds were paid for.

A last line that is torn (unreadable, after a power cut) belongs to a reply that cannot have left.
It is still charged, as the costliest release in the file or the one being asked for, whichever is
worse: the next append first seals the torn bytes with such a charge. Any other line that cannot
be read means that somebody edited the file; then everything is refused until a human looks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privet.privacy.accountant import epsilon_rdp
from privet.privacy.agent_ledger import AgentLedger
from privet.privacy.errors import BudgetRefused, LedgerError
from privet.privacy.events import Release

_VERSION = 1
_DELTA_TO_COMPARE = 1e-5
_LONGEST_NOTE = 200


@dataclass(frozen=True, slots=True)
class Spent:
    """What a ledger says after an entry.

    Attributes
    ----------
    epsilon
        RDP epsilon of everything in the ledger, the new entry included; None without a ledger.
    delta
        The delta it refers to.
    messages
        Number of messages charged.
    torn
        How many of them are charges for torn lines.
    """

    epsilon: float | None
    delta: float
    messages: int
    torn: int = 0


@dataclass(frozen=True, slots=True)
class _Contents:
    """A parsed ledger file: all charges, and the lines at its end that cannot be read.

    `dangling` says whether the last of them lacks its newline.
    """

    charges: AgentLedger
    torn_charges: int
    unreadable: int
    dangling: bool


class LedgerFile:
    """An append-only ledger on disk, shared by every process and run of one agent.

    Parameters
    ----------
    path
        Absolute path of the file; it is created (mode 0600) with its entry in the directory made
        durable. The file system must honour `flock` and `fsync`: a local one does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_absolute():
            raise ValueError(f"ledger-path is {str(path)!r}, expected an absolute path")

    def spent(self, delta: float) -> Spent:
        """Return what has been spent, a torn last line charged as described above.

        Raises
        ------
        LedgerError
            If the file cannot be opened, read or trusted.
        """
        if not self.path.exists():
            return Spent(0.0, delta, 0)
        with self._locked() as descriptor:
            contents = self._read(descriptor)
        if contents.unreadable and not contents.charges.entries:
            return Spent(math.inf, delta, contents.unreadable, contents.unreadable)
        return _spent(_seal(contents, None), delta)

    def charge(
        self, release: Release, delta: float, limit: float | None = None, note: str = ""
    ) -> Spent:
        """Append a release, durably, unless it would bring the total above `limit`.

        When this returns, the entry is on the disk and the reply may leave.

        Parameters
        ----------
        release
            What is about to leave.
        delta, limit
            The budget (limit, delta) over everything in the file, by RDP; reaching it is allowed,
            passing it is not. No limit when None.
        note
            Free text for the operator, such as run and round.

        Raises
        ------
        BudgetRefused
            If the total would pass the limit; nothing is written then.
        LedgerError
            If the file cannot be opened, read, trusted or written.
        """
        with self._locked() as descriptor:
            contents = self._read(descriptor)
            sealed = _seal(contents, release)
            after = replace(sealed, charges=sealed.charges.record(release))
            total = _spent(after, delta)
            if limit is not None and total.epsilon is not None and total.epsilon > limit:
                raise BudgetRefused(
                    f"budget: this reply would bring the lifetime epsilon to {total.epsilon:.6g} "
                    f"at delta {delta:g}, above max-epsilon {limit:g}"
                )
            self._append(descriptor, _lines(contents, release, note))
        return total

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise LedgerError(f"ledger {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            if not os.path.samestat(status, os.stat(self.path)):
                raise LedgerError(f"ledger {self.path}: replaced by another file while in use")
            if status.st_size == 0:
                _sync_directory(self.path.parent)
            yield descriptor
        except OSError as error:
            raise LedgerError(f"ledger {self.path}: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> _Contents:
        parts, offset = [], 0
        while part := os.pread(descriptor, 1 << 20, offset):
            parts.append(part)
            offset += len(part)
        return _parse(b"".join(parts), str(self.path))

    def _append(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(data: bytes, path: str) -> _Contents:
    """Read all lines; unreadable ones are tolerated only at the end or before their charge."""
    lines = data.split(b"\n")
    dangling = bool(lines[-1])
    charges, torn, unreadable = Counter[Release](), 0, 0
    known: dict[tuple[tuple[str, Any], ...], Release] = {}
    for number, line in enumerate(lines if dangling else lines[:-1], 1):
        entry = _entry(line, known)
        if entry is None:
            unreadable += 1
            continue
        release, sealed = entry
        if sealed != unreadable:
            raise LedgerError(
                f"ledger {path}: line {number - unreadable} is damaged; nothing is "
                "released until it has been inspected"
            )
        unreadable = 0
        charges[release] += max(1, sealed)
        torn += sealed
    return _Contents(AgentLedger(tuple(charges.items())), torn, unreadable, dangling)


def _entry(
    line: bytes, known: dict[tuple[tuple[str, Any], ...], Release]
) -> tuple[Release, int] | None:
    """Return (release, torn lines it stands for) of one line, or None if it cannot be read."""
    try:
        entry = json.loads(line)
        sealed = entry["torn"]
        if entry["version"] != _VERSION or type(sealed) is not int or sealed < 0:
            return None
        key = tuple(entry["release"].items())
        if key not in known:
            known[key] = Release.from_dict(entry["release"])
        return known[key], sealed
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _costliest(charges: AgentLedger, candidate: Release | None) -> Release | None:
    known = [release for release, _ in charges.entries]
    return max(
        [*known, candidate] if candidate is not None else known,
        key=lambda release: epsilon_rdp([release], _DELTA_TO_COMPARE),
        default=None,
    )


def _seal(contents: _Contents, candidate: Release | None) -> _Contents:
    """Charge the unfinished lines at the end as the costliest release that could be meant."""
    worst = _costliest(contents.charges, candidate)
    if not contents.unreadable or worst is None:
        return contents
    charges = AgentLedger((*contents.charges.entries, (worst, contents.unreadable)))
    return _Contents(charges, contents.torn_charges + contents.unreadable, 0, False)


def _spent(contents: _Contents, delta: float) -> Spent:
    return Spent(
        contents.charges.spent(delta), delta, contents.charges.messages, contents.torn_charges
    )


def _lines(contents: _Contents, release: Release, note: str) -> bytes:
    """Return the bytes to append: the seal of a torn line, if any, and the new entry."""
    lines = []
    if contents.unreadable:
        worst = _costliest(contents.charges, release) or release
        lines.append(_line(worst, contents.unreadable, "charge for a torn line"))
    lines.append(_line(release, 0, note))
    text = "".join(lines)
    return (("\n" if contents.dangling else "") + text).encode()


def _line(release: Release, sealed: int, note: str) -> str:
    entry = {
        "version": _VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "note": note[:_LONGEST_NOTE],
        "torn": sealed,
        "release": release.to_dict(),
    }
    return json.dumps(entry, separators=(",", ":")) + "\n"
