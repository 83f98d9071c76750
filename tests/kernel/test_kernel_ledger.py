"""The lifetime ledger on disk: durability, concurrency, kill -9, torn and damaged lines."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel import (
    BudgetRefused,
    LedgerError,
    LedgerFile,
    Release,
    Totals,
    UnsupportedAccountError,
    epsilon_of,
)
from privet.kernel.ledger_lines import Entry, decode, encode

DELTA = 1e-5
CHEAP = Release(mechanism="gaussian", scale=50.0, what="cheap")
DEAR = Release(mechanism="gaussian", scale=5.0, what="dear")
WEAK = Release(mechanism="laplace", scale=40.0, norm="l1", count=3)

CHARGE = """
import sys
from privet.kernel import LedgerFile, Release
ledger = LedgerFile(sys.argv[1])
for number in range(int(sys.argv[2])):
    ledger.charge(Release(mechanism="gaussian", scale=50.0, what="cheap"), 1e-5)
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def spent(releases: list[Release], delta: float = DELTA) -> float:
    return epsilon_of([(release, 1) for release in releases], delta)


@pytest.mark.parametrize("experiment", ["note", "release", "run 5 round 1 agent me", 'a"b'])
def test_lines_of_other_experiments_are_not_decoded_for_one(
    experiment: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever words of a line it is called by, or quotes: a whole ledger takes seconds."""
    ledger, quoted = LedgerFile(path), f'"experiment":{json.dumps(experiment)}'
    for note in ("run 5 round 1 agent me", f"run 5 round 2 agent {quoted}"):
        ledger.charge(CHEAP, 1e-5, note=note, run=quoted, experiment="e")
    ledger.charge(DEAR, 1e-5, note="run 5 round 3 agent me", experiment=experiment)
    decoded: list[bytes] = []
    monkeypatch.setattr(
        "privet.kernel.ledger.decode", lambda line: decoded.append(line) or decode(line)
    )
    assert dict(ledger.released(experiment, "me").entries) == {DEAR: 1}
    assert len(decoded) == 1


def test_what_the_longest_names_released_is_found(path: Path) -> None:
    agent, cohort = "a" * 128, "c" * 64
    note = (
        f"run {2**64 - 1} round {2**53} agent {agent} cohort {cohort} query {'0' * 64} rows {2**40}"
    )
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA, note=note, experiment="e")
    assert dict(ledger.released("e", agent).entries) == {CHEAP: 1}
    assert list(ledger.verify().heads.values()) == [("e", agent)]


def test_what_an_agent_released_in_an_experiment_is_found_over_all_its_runs(path: Path) -> None:
    ledger = LedgerFile(path)
    assert ledger.released("e", "0").entries == ()
    assert not path.exists()
    ledger.charge(CHEAP, DELTA)  # said no experiment
    for run, agent, experiment in ((1, "0", "e"), (1, "1", "e"), (2, "0", "e"), (3, "0", "other")):
        note = f"run {run} round 1 agent {agent}"
        ledger.charge(CHEAP if run == 1 else DEAR, DELTA, note=note, experiment=experiment)
    assert dict(ledger.released("e", "0").entries) == {CHEAP: 1, DEAR: 1}
    assert dict(ledger.released("other", "0").entries) == {DEAR: 1}
    assert ledger.released("", "0").entries == ()
    with path.open("ab") as file:
        file.write(b'{"version":2,"experiment":"e","no')  # torn: its reply never left
    assert dict(ledger.released("e", "0").entries) == {CHEAP: 1, DEAR: 1}
    ledger.charge(CHEAP, DELTA, note="run 4 round 2 agent 0", experiment="e")
    assert dict(ledger.released("e", "0").entries) == {CHEAP: 2, DEAR: 1}
    assert ledger.verify().running.messages == 7


def test_others_charge_while_an_account_is_read_line_by_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA, note="run 1 round 1 agent 0", experiment="e")
    first = path.read_bytes()
    path.write_bytes(first + 20_000 * first.replace(b'"e"', b'"other"') + first)
    with path.open("ab") as file:
        file.write(b'{"version":2,"experiment":"e","no')  # torn

    def charging(line: bytes) -> Entry | None:
        with path.open("ab") as file:  # as `charge`, but that it would wait
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(b"\n" + first)
        return decode(line)

    monkeypatch.setattr("privet.kernel.ledger.decode", charging)
    tracemalloc.start()
    assert dict(ledger.released("e", "0").entries) == {CHEAP: 2}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 10


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
    assert again.epsilon == pytest.approx(spent([CHEAP] * 3 + [DEAR], 1e-3))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["note"] for line in lines] == ["round 1", "round 2", "round 3", ""]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_charge_returns_the_head_which_a_cut_or_rewritten_file_lacks(path: Path) -> None:
    ledger = LedgerFile(path)
    assert ledger.spent(DELTA).head == ""
    heads = [ledger.charge(CHEAP, DELTA, note=f"run 1 round {t} agent 0").head for t in (1, 2, 3)]
    lines = path.read_bytes().splitlines(keepends=True)
    for number, (head, line) in enumerate(zip(heads, lines, strict=True)):
        body, before = line[: -len(b',"chain":""}\n') - 64], lines[number - 1] if number else b""
        assert head == hashlib.sha256(before + body).hexdigest()
    assert ledger.verify().heads == dict.fromkeys(heads, ("", "0"))
    path.write_bytes(lines[0] + lines[1])  # cut by a whole line: the rest is a ledger
    assert heads[2] not in ledger.verify().heads
    path.write_bytes(lines[0] + lines[1] + b"x" + lines[2][1:])
    audit = ledger.verify()
    assert (audit.open_torn, heads[2] in audit.heads) == (1, False)
    sealed = ledger.charge(CHEAP, DELTA, note="run 1 round 4 agent 0").head
    assert list(ledger.verify().heads.values()) == [("", "0")] * 2 + [("", "")] + [("", "0")]
    assert list(ledger.verify().heads)[-1] == sealed
    assert heads[2] not in ledger.verify().heads


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
    assert [process.wait(timeout=600) for process in processes] == [0, 0, 0]
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
        assert waiting[0].result(timeout=600).messages == 2
        assert waiting[1].result(timeout=600).messages in (1, 2)


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
        assert process.wait(timeout=600) == -signal.SIGKILL
        reported += 1 + rest.count(b"\n")
        total = LedgerFile(path).spent(DELTA)
        assert total.messages >= reported
        assert total.epsilon is not None
        assert total.epsilon >= spent([CHEAP] * reported) * (1 - 1e-12)
    # The lock died with its holder: the next charge goes through.
    assert LedgerFile(path).charge(CHEAP, DELTA).messages >= reported + 1


@pytest.mark.parametrize("cut", [1, 2, 40, 200, -2])
def test_torn_last_line_is_charged_and_reported(path: Path, cut: int) -> None:
    """However the last line was cut, the total is that of all lines or more."""
    ledger = LedgerFile(path)
    for release in (CHEAP, DEAR, CHEAP):
        ledger.charge(release, DELTA)
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    torn = whole[: start + cut] if cut > 0 else whole[:cut]
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
        stream.write(b'{"version":2,"ti')
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
        lambda lines: [lines[0].replace('"version":2', '"version":3'), *lines[1:]],
        lambda lines: [lines[0].replace('"torn":0', '"torn":1'), *lines[1:]],
        lambda lines: [lines[0].replace('"scale":50.0', '"scale":90.0'), *lines[1:]],
        lambda lines: [*lines[:2], lines[2].replace('"scale":50.0', '"scale":90.0')],
        lambda lines: [*lines[:2], lines[2].replace('"note":""', '"note":"n"')],
        lambda lines: [*lines[:2], lines[2].replace('"messages":3', '"messages":4')],
        lambda lines: ["[" * 20_000, *lines],
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[1], lines[0], lines[2]],
        lambda lines: [*lines, lines[2]],
        lambda lines: [lines[0] + lines[1], lines[2]],
        lambda lines: [lines[0], lines[1] + lines[2]],
        lambda lines: ["".join(lines)],
        lambda lines: [*lines, "{}"],
        lambda lines: [*lines[:2], lines[2].replace('"version":2', '"version":1')],
    ],
)
def test_edited_files_are_refused_until_inspected(path: Path, edit) -> None:
    ledger = LedgerFile(path)
    for _ in range(3):
        ledger.charge(CHEAP, DELTA)
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    before = path.read_bytes()
    for call in (lambda: ledger.spent(DELTA), lambda: ledger.charge(CHEAP, DELTA), ledger.verify):
        with pytest.raises(LedgerError, match=r"line .*inspected") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


LONG = 60


def _joined(lines: list[bytes]) -> list[bytes]:
    return [*lines[:9], lines[9][:-1] + lines[10], *lines[11:]]


@pytest.mark.parametrize(
    ("edit", "bad"),
    [
        (lambda lines: [*lines[:9], *lines[10:]], 10),
        (lambda lines: [*lines[:9], *lines[14:]], 10),
        (_joined, 10),
        (lambda lines: [*lines[:9], lines[9].replace(b"50.0", b"500.0"), *lines[10:]], 10),
        (lambda lines: [*lines[:9], b"\n", *lines[9:]], 10),
        (lambda lines: [*lines[:9], lines[9], *lines[9:]], 11),
        (lambda lines: [*lines[:-2], lines[-1]], LONG - 1),
        (lambda lines: [*lines[:-2], lines[-2][:-1] + lines[-1]], LONG - 1),
    ],
)
def test_edits_that_change_lengths_are_noticed_by_the_next_charge(path, edit, bad) -> None:
    """In a file whose beginning no charge reads."""
    ledger = LedgerFile(path)
    for _ in range(LONG):
        ledger.charge(CHEAP, DELTA)
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
    for call in (lambda: ledger.spent(DELTA), lambda: ledger.charge(CHEAP, DELTA)):
        with pytest.raises(LedgerError, match="inspected"):
            call()
    with pytest.raises(LedgerError, match=rf"line {bad} "):
        ledger.verify()


def test_any_flipped_bit_is_found(path: Path) -> None:
    """Whatever is changed in place, no length changed: verification finds it, or counts it torn."""
    ledger = LedgerFile(path)
    for number in range(12):
        ledger.charge(CHEAP, DELTA, note=f"run 1 round {number} agent 0")
    whole = path.read_bytes()
    for place in range(0, len(whole), 41):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            found = ledger.verify()
        except LedgerError:
            continue
        # The last line alone may look torn: then it is charged in full.
        assert found.open_torn >= 1 or data[-1:] != b"\n"
        assert found.spent(DELTA).messages >= 12


def test_totals_that_leave_a_release_out_are_found_under_the_right_hash(path: Path) -> None:
    """As from a program that adds up wrongly: the chain holds, the sums do not."""
    LedgerFile(path).charge(CHEAP, DELTA)
    first = path.read_bytes()
    entry = decode(first.rstrip())
    assert entry is not None
    link = replace(entry.link, sequence=2, at=len(first), after=0)  # running as before the line
    path.write_bytes(first + encode(replace(entry, link=link), first))
    with pytest.raises(LedgerError, match="does not add up"):
        LedgerFile(path).charge(CHEAP, DELTA)
    with pytest.raises(LedgerError, match="does not add up"):
        LedgerFile(path).verify()


def test_same_length_edit_far_back_is_found_by_verification(path: Path) -> None:
    ledger = LedgerFile(path)
    for _ in range(LONG):
        ledger.charge(CHEAP, DELTA)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b'"scale":50.0', b'"scale":90.0')
    path.write_bytes(b"".join(lines))
    after = ledger.charge(CHEAP, DELTA)
    assert after.messages == LONG + 1
    assert after.epsilon == pytest.approx(spent([CHEAP] * (LONG + 1)))
    with pytest.raises(LedgerError, match="line 5 was edited"):
        ledger.verify()


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the length of all that is read of a ledger is added."""
    lengths: list[int] = []
    real = os.pread

    def pread(descriptor: int, length: int, at: int) -> bytes:
        data = real(descriptor, length, at)
        lengths.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", pread)
    return lengths


@pytest.mark.parametrize(("release", "lines"), [(CHEAP, 10_000), (WEAK, 2_000)])
def test_a_charge_reads_the_end_of_the_file_only(
    path: Path,
    release: Release,
    lines: int,
    bytes_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = LedgerFile(path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for _ in range(100):
        ledger.charge(release, DELTA)
    _prolong(path, path.read_bytes().splitlines()[-1], lines - 100)
    bytes_read.clear()
    assert ledger.charge(release, DELTA).messages == lines + 1
    assert sum(bytes_read) == 4096


def _prolong(path: Path, like: bytes, times: int) -> None:
    """Append lines as many charges would, without opening the file for each."""
    from privet.kernel.ledger_lines import Link, decode, encode, read_all

    entry = decode(like)
    assert entry is not None
    end = read_all(path.read_bytes())
    running, before, after, sequence = end.running, end.tail, end.start, end.sequence
    with path.open("ab") as stream:
        at = stream.tell()
        for _ in range(times):
            running, sequence = running.charged(entry.release), sequence + 1
            line = encode(replace(entry, link=Link(sequence, at, after, running)), before)
            stream.write(line)
            before, after, at = line, at, at + len(line)


@given(
    st.lists(st.tuples(st.sampled_from([CHEAP, DEAR]), st.integers(0, 400)), max_size=30),
    st.lists(st.sampled_from([CHEAP, DEAR]), min_size=1, max_size=5),
)
@settings(max_examples=20)
def test_totals_are_those_of_all_releases_whatever_was_torn(
    tmp_path_factory, charges: list[tuple[Release, int]], last: list[Release]
) -> None:
    """Charges, some followed by a cut of the file's last bytes: never less than all of them."""
    path = tmp_path_factory.mktemp("torn") / "ledger.jsonl"
    ledger, exact, upper = LedgerFile(path), Totals(), Totals()
    for release, cut in [(DEAR, 0), *charges]:
        ledger.charge(release, DELTA)
        # A charge after a cut writes two lines; what cuts a whole one cannot be noticed.
        if 0 < cut < len(path.read_bytes().splitlines(keepends=True)[-1]):
            os.truncate(path, path.stat().st_size - cut)
        exact, upper = exact.add(release), upper.add(DEAR)
    for release in last:
        after = ledger.charge(release, DELTA)
        exact, upper = exact.add(release), upper.add(DEAR)
    assert after.epsilon is not None
    assert exact.epsilon(DELTA) <= after.epsilon <= upper.epsilon(DELTA)
    assert after.messages == 1 + len(charges) + len(last)
    assert ledger.verify().spent(DELTA) == ledger.spent(DELTA) == after


@pytest.mark.parametrize("version", [1, 3])
def test_a_file_of_another_version_is_refused_in_one_line(path: Path, version: int) -> None:
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA)
    path.write_text(path.read_text().replace('"version":2', f'"version":{version}'))
    kept = path.read_bytes()
    for call in (lambda: ledger.spent(DELTA), lambda: ledger.charge(CHEAP, DELTA), ledger.verify):
        with pytest.raises(LedgerError, match=rf"version {version}, expected 2") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == kept


def test_relations_are_not_mixed_in_a_file(path: Path) -> None:
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA)
    before = path.read_bytes()
    with pytest.raises(UnsupportedAccountError, match=r"'replace-one' and 'add-remove'"):
        ledger.charge(replace(CHEAP, relation="add-remove"), DELTA)
    assert path.read_bytes() == before
    assert ledger.charge(CHEAP, DELTA).messages == 2


def test_half_a_line_on_a_full_disk_is_charged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = LedgerFile(path)
    ledger.charge(DEAR, DELTA)
    real = os.write
    written: list[int] = []

    def full(descriptor: int, data: bytes) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(real(descriptor, bytes(data[:50])))
        return written[0]

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(LedgerError, match="No space left"):
        ledger.charge(CHEAP, DELTA)
    monkeypatch.undo()
    seen = ledger.spent(DELTA)
    assert (seen.messages, seen.torn) == (2, 1)
    assert seen.epsilon == spent([DEAR, DEAR])


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\0" * 9000, b"\n", b"\r\n", b"{", b"\xff\xfe"])
def test_what_a_power_cut_leaves_is_charged(path: Path, tail: bytes) -> None:
    ledger = LedgerFile(path)
    for _ in range(20):
        ledger.charge(CHEAP, DELTA)
    with path.open("ab") as stream:
        stream.write(tail)
    assert ledger.spent(DELTA).messages == 21
    after = ledger.charge(CHEAP, DELTA)
    assert (after.messages, after.torn) == (22, 1)
    assert ledger.verify().spent(DELTA) == after


def test_one_ledger_by_any_of_its_names(path: Path) -> None:
    """A symbolic link, also one that points nowhere yet, and a hard link are the same file."""
    link = path.with_name("link.jsonl")
    link.symlink_to(path)
    assert LedgerFile(link).spent(DELTA).messages == 0
    assert LedgerFile(link).charge(CHEAP, DELTA).messages == 1
    hard = path.with_name("hard.jsonl")
    os.link(path, hard)
    assert LedgerFile(hard).charge(CHEAP, DELTA).messages == 2
    assert LedgerFile(path).charge(CHEAP, DELTA).messages == 3


def _is_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda path: Path("/dev/null"),
        lambda path: path.parent,
        _is_fifo,
    ],
)
def test_only_regular_files_are_ledgers(path: Path, make: Callable[[Path], Path]) -> None:
    """No device is read, and a FIFO without a partner does not hold the reply up."""
    ledger = LedgerFile(make(path))
    for call in (lambda: ledger.charge(CHEAP, DELTA), lambda: ledger.spent(DELTA), ledger.verify):
        with pytest.raises(LedgerError, match=r"not a regular file|[Dd]irectory"):
            call()


def test_files_of_others_are_left_alone(path: Path) -> None:
    path.write_text("root:x:0:0\nmail:x:1:1\n")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="line 1 "):
        LedgerFile(path).charge(CHEAP, DELTA)
    assert path.read_bytes() == before


def test_unusable_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absolute"):
        LedgerFile("ledger.jsonl")
    with pytest.raises(LedgerError, match="No such file"):
        LedgerFile(tmp_path / "missing" / "ledger.jsonl").charge(CHEAP, DELTA)
    with pytest.raises(LedgerError, match="No such file"):
        LedgerFile(tmp_path / "missing.jsonl").verify()
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="Not a directory"):
        LedgerFile(tmp_path / "file" / "ledger.jsonl").spent(DELTA)


def test_reading_waits_for_no_reader_and_changes_nothing(path: Path) -> None:
    ledger = LedgerFile(path)
    ledger.charge(CHEAP, DELTA, note="run 7 round 2 agent a b")
    ledger.charge(DEAR, DELTA, note="anything", run="8")
    os.chmod(path, 0o400)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    holder = os.open(path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_SH)
    audit = ledger.verify()
    assert ledger.spent(DELTA) == audit.spent(DELTA)
    os.close(holder)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    first, second = audit.runs
    assert (first.run, first.agents, first.rounds) == ("7", ["a b"], (2, 2))
    assert (second.run, second.rounds, second.messages) == ("8", None, 1)
    assert first.totals.epsilon(DELTA) == spent([CHEAP])
