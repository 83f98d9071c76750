"""Privacy-critical: the lifetime ledger, a file that all processes and runs of an agent share.

The file is append-only JSON lines (`ledger_lines`). An entry is written and fsynced under an
exclusive lock before the reply it belongs to may leave, so a crash can lose a reply but never an
entry. Nothing is ever rolled back: lost and replayed rounds were paid for.

A last line that is torn (unreadable, after a power cut or on a full disk) belongs to a reply that
cannot have left. It is still charged, as the costliest release in the file or the one being
charged, whichever is worse: the next append first seals the torn bytes with such a charge. Any
other line that is not what was written means that somebody edited the file; then everything is
refused until a human looks (`privet ledger FILE`). Truncation to a whole line cannot be noticed in
the file itself. It is noticed by whoever knows the head, the hash in the last line: replies carry
it, and a run's record keeps it (`privet statement --verify --ledger`). A line is made of public
numbers, texts of messages and the time, and is written before the records are read, so that its
hash tells nothing of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .accountant import Totals
from .agent_ledger import AgentLedger
from .errors import BudgetRefused, LedgerError, MovedError, UnsupportedAccountError
from .events import Release
from .ledger_lines import (
    DamagedError,
    End,
    Entry,
    Running,
    decode,
    head,
    read_all,
    read_end,
)
from .programs.custom import custom_in
from .told import Told

_LONGEST_NOTE = 400
"""Characters of a note: room for the longest names in one, which is read again."""
_NOTE = re.compile(
    r"run (\S+) round (\d+) agent (.*?)(?: cohort \S+ query [0-9a-f]{64} rows \d+)?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Spent:
    """The state of a ledger after an entry.

    Attributes
    ----------
    epsilon
        Epsilon of everything in the ledger, the new entry included; None without a ledger.
    delta
        The delta it refers to.
    messages
        Number of messages charged.
    torn
        How many of them are charges for torn lines.
    head
        The hash in the line that a charge wrote, which covers all lines before it; empty where
        nothing was charged.
    """

    epsilon: float | None
    delta: float
    messages: int
    torn: int = 0
    head: str = field(default="", compare=False)


@dataclass(slots=True)
class RunSpent:
    """The cost of one run, by the notes of its entries.

    Attributes
    ----------
    run
        The run's name; empty for entries that name none, such as charges for torn lines.
    agents
        The names under which the node took part.
    rounds
        First and last round, None where no entry names one.
    first, last
        Times of the first and last entry (UTC, ISO 8601).
    messages, torn, totals
        Messages, the number of them that stand for torn lines, and their totals for an account.
    custom
        The custom programs that they rest on, as their releases name them.
    """

    run: str
    agents: list[str] = field(default_factory=list)
    rounds: tuple[int, int] | None = None
    first: str = ""
    last: str = ""
    messages: int = 0
    torn: int = 0
    totals: Totals = field(default_factory=Totals)
    custom: tuple[str, ...] = ()

    def add(self, entry: Entry) -> None:
        """Count an entry."""
        times = max(1, entry.torn)
        self.messages += times
        self.torn += entry.torn
        self.totals = self.totals.add(entry.release, times)
        self.first, self.last = self.first or entry.time, entry.time
        self.custom = custom_in((*self.custom, entry.release.what))
        if matched := _NOTE.fullmatch(entry.note):
            number, agent = int(matched[2]), matched[3]
            low, high = self.rounds or (number, number)
            self.rounds = min(low, number), max(high, number)
            if agent not in self.agents:
                self.agents.append(agent)


@dataclass(frozen=True, slots=True)
class Audit:
    """A ledger that has been read and checked from its first to its last line.

    Attributes
    ----------
    running
        The sum of the entries.
    open_torn
        Torn lines at the end that the next charge will seal.
    sealed
        The total that the ledger counts as spent, torn lines included; None if their cost is
        unknown.
    runs
        By run, in the order of their first entries.
    heads
        The experiment and agent of each line, by its hash: what the file's head was when that line
        was its last. Empty texts where a line names none.
    """

    running: Running
    open_torn: int
    sealed: Running | None
    runs: tuple[RunSpent, ...]
    heads: Mapping[str, tuple[str, str]]

    def spent(self, delta: float) -> Spent:
        """Return the total at delta."""
        return _spent(self.sealed, self.open_torn, delta)


class LedgerFile:
    """An append-only ledger on disk, shared by every process and run of one agent.

    Parameters
    ----------
    path
        Absolute path of a regular file or a link to one; it is created (mode 0600) with its entry
        in the directory made durable. The file system must honour `flock` and `fsync`: a local
        one does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_absolute():
            raise ValueError(f"ledger-path is {str(path)!r}, expected an absolute path")

    def spent(self, delta: float) -> Spent:
        """Return the total spent, with torn last lines charged as described above.

        Reads the end of the file only, and changes nothing.

        Raises
        ------
        LedgerError
            If the file cannot be opened, read or trusted.
        """
        try:
            os.stat(self.path)
        except FileNotFoundError:
            return Spent(0.0, delta, 0)
        except OSError as error:
            raise LedgerError(f"ledger {self.path}: {error.strerror}") from None
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as (descriptor, size):
            end = read_end(lambda at, length: _read(descriptor, at, length), size)
        return _spent(end.sealed(None), end.unreadable, delta)

    def charge(
        self,
        release: Release,
        delta: float,
        limit: float | None = None,
        note: str = "",
        run: str = "",
        experiment: str = "",
        after: str = "",
    ) -> Spent:
        """Append a release, durably, unless it would bring the total above `limit`.

        When this returns, the entry is on the disk and the reply may leave. However long the file
        is, its end alone is read.

        Parameters
        ----------
        release
            The release of the reply that is about to leave.
        delta, limit
            The budget (limit, delta) over everything in the file; reaching it is allowed, passing
            it is not. No limit when None.
        note, run
            Free text for the operator, such as run and round; the run by which `privet ledger`
            groups, where the note does not name it.
        experiment
            The name that `released` looks it up by: a run and all that resume it.
        after
            The head that the file must have, if any: what is released counts on the charge that
            wrote it, and on none in between.

        Raises
        ------
        BudgetRefused
            If the total would pass the limit; nothing is written then.
        MovedError
            If the file has another head than ``after``; nothing is written.
        UnsupportedAccountError
            If the file holds releases under another neighbouring relation; nothing is written.
        LedgerError
            If the file cannot be opened, read, trusted or written.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with self._locked(flags, fcntl.LOCK_EX) as (descriptor, size):
            end = read_end(lambda at, length: _read(descriptor, at, length), size)
            if after and (end.unreadable or not end.tail or head(end.tail) != after):
                raise MovedError("the node's ledger has another charge since")
            try:
                texts = (text[:_LONGEST_NOTE] for text in (run, note, experiment))
                data, running = end.extended(release, *texts)
            except UnsupportedAccountError as error:
                raise UnsupportedAccountError(f"ledger {self.path}: {error}") from None
            total = _spent(running, 0, delta)
            if limit is not None and total.epsilon is not None and total.epsilon > limit:
                raise BudgetRefused(
                    f"budget: this reply would bring the lifetime epsilon to {total.epsilon:.6g} "
                    f"at delta {delta:g}, above max-epsilon {limit:g}",
                    Told.BUDGET,
                )
            if size == 0:
                sync_directory(self.path.parent)
            append(descriptor, data)
        return replace(total, head=head(data))

    def released(self, experiment: str, agent: str) -> AgentLedger:
        """Return the releases charged to an agent in an experiment, over all runs that resumed it.

        The file is read line by line, and only lines of the experiment are decoded. A node without
        a file has released nothing. Others may charge meanwhile, which is not counted.

        Raises
        ------
        LedgerError
            If the file cannot be opened or read.
        """
        experiment = experiment[:_LONGEST_NOTE]
        # In other texts of a line quotes are escaped.
        wanted, counts = f'"experiment":{json.dumps(experiment)}'.encode(), Counter[Release]()
        if not (experiment and self.path.exists()):
            return AgentLedger()
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as (descriptor, size):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # what has been written stays as it is
            for line in _lines(descriptor, size):
                entry = decode(line) if wanted in line else None
                if entry is None or entry.experiment != experiment:
                    continue
                matched = _NOTE.fullmatch(entry.note)
                if matched and matched[3] == agent:
                    counts[entry.release] += 1
        return AgentLedger.of(counts.items())

    def verify(self) -> Audit:
        """Read and check the whole file, and return what was spent by run; changes nothing.

        Raises
        ------
        LedgerError
            Naming the first bad line, or if there is no such file.
        """
        runs: dict[str, RunSpent] = {}
        heads: dict[str, tuple[str, str]] = {}

        def keep(entry: Entry) -> None:
            matched = _NOTE.fullmatch(entry.note)
            run = entry.run or (matched[1] if matched else "")
            runs.setdefault(run, RunSpent(run)).add(entry)
            heads[entry.chain] = entry.experiment, matched[3] if matched else ""

        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as (descriptor, size):
            data = _read(descriptor, 0, size)
            end: End = read_all(data, keep)
        return Audit(end.running, end.unreadable, end.sealed(None), tuple(runs.values()), heads)

    @contextlib.contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[tuple[int, int]]:
        """Open and lock the file; yield its descriptor and size.

        Any fault of the file is raised as one LedgerError that names it.
        """
        # A FIFO without a reader or writer must not hold the reply up before it is refused.
        flags |= os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise LedgerError(f"ledger {self.path}: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise LedgerError(f"ledger {self.path}: not a regular file")
            fcntl.flock(descriptor, lock)
            status = os.fstat(descriptor)
            if not os.path.samestat(status, os.stat(self.path)):
                raise LedgerError(f"ledger {self.path}: replaced by another file while in use")
            yield descriptor, status.st_size
        except OSError as error:
            raise LedgerError(f"ledger {self.path}: {error.strerror}") from None
        except DamagedError as error:
            raise LedgerError(
                f"ledger {self.path}: {error}; nothing is released until it has been inspected"
            ) from None
        finally:
            os.close(descriptor)


def _spent(running: Running | None, torn: int, delta: float) -> Spent:
    if running is None:
        return Spent(math.inf, delta, torn, torn)
    return Spent(running.totals.epsilon(delta), delta, running.messages, running.torn)


def _read(descriptor: int, at: int, length: int) -> bytes:
    parts = []
    while length > 0 and (part := os.pread(descriptor, min(length, 1 << 20), at)):
        parts.append(part)
        at += len(part)
        length -= len(part)
    return b"".join(parts)


def _lines(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the lines that begin in the first ``size`` bytes of a file, one held at a time."""
    with open(descriptor, "rb", closefd=False) as file:
        while size > 0 and (line := file.readline()):
            size -= len(line)
            yield line.removesuffix(b"\n")


def append(descriptor: int, data: bytes) -> None:
    """Write all of the data to a file, where it is or at its end, and wait for the disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory, such as that of a new file, are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
