"""The lifetime ledger on disk: durability, concurrency, kill -9, torn and damaged lines."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from privet.privacy import BudgetRefused, LedgerError, LedgerFile, Release, epsilon_rdp

DELTA = 1e-5
CHEAP = Release(mechanism="gaussian", scale=50.0, what="cheap")
DEAR = Release(mechanism="gaussian", scale=5.0, what="dear")

CHARGE = """
import sys
from privet.privacy import LedgerFile, Release
ledger = LedgerFile(sys.argv[1])
for number in range(int(sys.argv[2])):
    ledger.charge(Release(mechanism="gaussian", scale=50.0, what="cheap"), 1e-5)
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def spent(releases: list[Release]) -> float:
    return epsilon_rdp(releases, DELTA)


def test_entries_are_appended_and_add_up(path: Path) -> None:
    ledger = LedgerFile(path)
    assert ledger.spent(DELTA).epsilon == 0.0
    assert not path.exists()
    for number in range(1, 4):
        after = ledger.charge(CHEAP, DELTA, note=f"round {number}")
        assert after.messages == number
        assert after.epsilon == pytest.approx(spent([CHEAP] * number), rel=1e-12)
    assert ledger.charge(DEAR, DELTA).epsilon == pytest.approx(spent([CHEAP] * 3 + [DEAR]))
    # A second run, a second object, another delta: the file is the truth.
    again = LedgerFile(str(path)).spent(1e-3)
    assert again.epsilon == pytest.approx(epsilon_rdp([CHEAP] * 3 + [DEAR], 1e-3))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["note"] for line in lines] == ["round 1", "round 2", "round 3", ""]
    assert path.stat().st_mode & 0o777 == 0o600


def test_limit_may_be_reached_and_not_passed(path: Path) -> None:
    ledger = LedgerFile(path)
    two = spent([DEAR, DEAR])
    ledger.charge(DEAR, DELTA, two)
    assert ledger.charge(DEAR, DELTA, two).epsilon == two
    before = path.read_bytes()
    with pytest.raises(BudgetRefused, match="above max-epsilon"):
        ledger.charge(CHEAP, DELTA, two)
    assert path.read_bytes() == before
    assert ledger.charge(CHEAP, DELTA, math.nextafter(spent([DEAR, DEAR, CHEAP]), 9)).messages == 3


def test_entry_is_synced_before_the_call_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is fsynced after the write, and the directory when the file is new."""
    events: list[str] = []
    real_sync, real_write = os.fsync, os.write

    def sync(descriptor: int) -> None:
        directory = os.path.isdir(f"/proc/self/fd/{descriptor}")
        events.append("sync-directory" if directory else "sync-file")
        real_sync(descriptor)

    def write(descriptor: int, data: bytes) -> int:
        events.append("write")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "write", write)
    LedgerFile(path).charge(CHEAP, DELTA)
    LedgerFile(path).charge(CHEAP, DELTA)
    assert events == ["sync-directory", "write", "sync-file", "write", "sync-file"]


def test_failed_write_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="No space left"):
        ledger.charge(CHEAP, DELTA)
    monkeypatch.undo()
    # What had been written is counted although its reply never left.
    assert ledger.spent(DELTA).messages == 2


def test_partial_writes_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:7])))
    LedgerFile(path).charge(CHEAP, DELTA)
    monkeypatch.undo()
    assert LedgerFile(path).spent(DELTA).messages == 1


def test_threads_and_processes_share_the_budget(path: Path) -> None:
    """Three processes and four threads: every charge is there, and no limit is overrun."""
    processes = [
        subprocess.Popen([sys.executable, "-c", CHARGE, str(path), "20"], stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    limit = spent([CHEAP] * 90)

    def charge(_: int) -> bool:
        try:
            LedgerFile(path).charge(CHEAP, DELTA, limit)
        except BudgetRefused:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        granted = sum(threads.map(charge, range(100)))
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    total = LedgerFile(path).spent(DELTA)
    assert total.messages == granted + 60
    assert granted <= 90
    assert len(path.read_text().splitlines()) == total.messages


def test_charges_wait_for_the_lock(path: Path) -> None:
    """While another process holds the lock nobody reads or writes; then both go on."""
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA)
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(ledger.charge, CHEAP, DELTA),
            threads.submit(ledger.spent, DELTA),
        ]
        time.sleep(0.3)
        assert not any(task.done() for task in waiting)
        assert len(path.read_text().splitlines()) == 1
        os.close(holder)
        assert waiting[0].result(timeout=30).messages == 2
        assert waiting[1].result(timeout=30).messages in (1, 2)


def test_kill_minus_nine_never_undercounts(path: Path) -> None:
    """A process is killed while it charges; every charge it reported is in the file."""
    reported = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", CHARGE, str(path), "100000"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
        reported += 1 + rest.count(b"\n")
        total = LedgerFile(path).spent(DELTA)
        assert total.messages >= reported
        assert total.epsilon is not None
        assert total.epsilon >= spent([CHEAP] * reported) * (1 - 1e-12)
    # The lock died with its holder: the next charge goes through.
    assert LedgerFile(path).charge(CHEAP, DELTA).messages >= reported + 1


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_torn_last_line_is_charged_and_reported(path: Path, cut: int) -> None:
    """However the last line was cut, the total is that of all lines or more."""
    ledger = LedgerFile(path)
    for release in (CHEAP, DEAR, CHEAP):
        ledger.charge(release, DELTA)
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    torn = whole[: start + cut]
    path.write_bytes(torn)

    seen = ledger.spent(DELTA)
    assert (seen.messages, seen.torn) == (3, 1)
    # Charged as the dearest known release, not as the cheap one that it was.
    assert seen.epsilon == pytest.approx(spent([CHEAP, DEAR, DEAR]))
    after = ledger.charge(CHEAP, DELTA)
    assert (after.messages, after.torn) == (4, 1)
    assert after.epsilon == pytest.approx(spent([CHEAP, DEAR, DEAR, CHEAP]))
    # Sealed: nothing was removed, and later readings agree.
    assert path.read_bytes().startswith(torn)
    assert ledger.spent(DELTA) == after


def test_line_that_lacks_only_its_newline_is_known_and_kept(path: Path) -> None:
    ledger = LedgerFile(path)
    for release in (DEAR, CHEAP):
        ledger.charge(release, DELTA)
    path.write_bytes(path.read_bytes()[:-1])
    assert ledger.spent(DELTA).torn == 0
    assert ledger.spent(DELTA).epsilon == pytest.approx(spent([DEAR, CHEAP]))
    assert ledger.charge(CHEAP, DELTA).epsilon == pytest.approx(spent([DEAR, CHEAP, CHEAP]))
    assert ledger.spent(DELTA).messages == 3


def test_torn_line_counts_at_least_as_the_candidate(path: Path) -> None:
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA)
    with path.open("ab") as stream:
        stream.write(b'{"version":1,"ti')
    assert ledger.charge(DEAR, DELTA).epsilon == pytest.approx(spent([CHEAP, DEAR, DEAR]))
    limit = spent([CHEAP, DEAR, DEAR])
    with pytest.raises(BudgetRefused):
        ledger.charge(CHEAP, DELTA, limit)


def test_seal_that_is_torn_itself_is_sealed_again(path: Path) -> None:
    """Cutting the file anywhere after a torn line never loses a charge or locks the ledger."""
    ledger = LedgerFile(path)
    ledger.charge(DEAR, DELTA)
    with path.open("ab") as stream:
        stream.write(b"\0\0\0\0")
    torn = path.stat().st_size
    ledger.charge(CHEAP, DELTA)
    whole = path.read_bytes()
    for size in range(torn, len(whole), 13):
        path.write_bytes(whole[:size])
        seen = ledger.spent(DELTA)
        assert seen.epsilon is not None
        assert seen.epsilon >= spent([DEAR, DEAR]) * (1 - 1e-12)
        assert ledger.charge(CHEAP, DELTA).epsilon >= spent([DEAR, DEAR, CHEAP]) * (1 - 1e-12)
        assert ledger.spent(DELTA).torn >= 1


def test_only_a_torn_line_has_an_unknown_cost(path: Path) -> None:
    path.write_bytes(b'{"version":1')
    assert LedgerFile(path).spent(DELTA).epsilon == math.inf
    assert LedgerFile(path).charge(DEAR, DELTA).epsilon == pytest.approx(spent([DEAR, DEAR]))


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: [lines[0], "", *lines[1:]],
        lambda lines: [lines[0][:-5], *lines[1:]],
        lambda lines: ["nonsense", *lines],
        lambda lines: [lines[0].replace('"scale":50.0', '"scale":NaN'), *lines[1:]],
        lambda lines: [lines[0].replace('"scale":50.0', '"scale":-1'), *lines[1:]],
        lambda lines: [lines[0].replace('"version":1', '"version":2'), *lines[1:]],
        lambda lines: [lines[0].replace('"torn":0', '"torn":1'), *lines[1:]],
        lambda lines: ["[" * 20_000, *lines],
    ],
)
def test_edited_files_are_refused_until_inspected(path: Path, edit) -> None:
    ledger = LedgerFile(path)
    for _ in range(3):
        ledger.charge(CHEAP, DELTA)
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    before = path.read_bytes()
    for call in (lambda: ledger.spent(DELTA), lambda: ledger.charge(CHEAP, DELTA)):
        with pytest.raises(LedgerError, match=r"line \d+ is damaged"):
            call()
    assert path.read_bytes() == before


def test_unusable_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absolute"):
        LedgerFile("ledger.jsonl")
    with pytest.raises(LedgerError, match="No such file"):
        LedgerFile(tmp_path / "missing" / "ledger.jsonl").charge(CHEAP, DELTA)
    with pytest.raises(LedgerError, match="directory"):
        LedgerFile(tmp_path).charge(CHEAP, DELTA)


def test_hundreds_of_entries_are_read_quickly(path: Path) -> None:
    """Reading the whole file for every reply costs milliseconds for thousands of rounds."""
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA)
    path.write_bytes(path.read_bytes() * 5000)
    started = time.perf_counter()
    assert ledger.spent(DELTA).messages == 5000
    assert time.perf_counter() - started < 1.0
