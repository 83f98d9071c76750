"""Processes started here end with everything they started, and no others do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from support.keeper import Processes, free_ports, listens, wait_until_listening
from support.paths import ROOT

# A child that ignores SIGTERM, a grandchild in a session of its own, and an orphan.
FAMILY = "trap '' TERM; setsid sleep 301 & (sleep 302 &) ; sleep 303; true"


def until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def running(pid: int) -> bool:
    """Whether a process runs, by ps rather than by the code under test."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return state != "" and not state.startswith("Z")


def sleepers(owner: Processes) -> dict[str, int]:
    return {process.command: process.pid for process in owner.alive() if "sleep" in process.command}


def family(owner: Processes) -> list[int]:
    owner.start(["bash", "-c", FAMILY])
    wanted = {"sleep 301", "sleep 302", "sleep 303"}
    assert until(lambda: wanted <= set(sleepers(owner)))
    return [process.pid for process in owner.alive()]


def test_the_whole_family_ends_and_no_one_else() -> None:
    stranger = subprocess.Popen(["sleep", "304"])
    try:
        with Processes(os.environ) as other, Processes(os.environ) as owner:
            theirs = other.start(["sleep", "305"])
            pids = family(owner)
            assert len(pids) == 4
            assert not {os.getpid(), stranger.pid, theirs.pid} & set(pids)
            owner.end()
            assert not owner.alive()
            assert not any(running(pid) for pid in pids)
            assert running(stranger.pid)
            assert running(theirs.pid)
        assert not running(theirs.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_short_command_runs_in_a_session_of_its_own() -> None:
    with Processes(os.environ) as owner, ThreadPoolExecutor() as pool:
        call = pool.submit(owner.call, ["sh", "-c", "sleep 1; echo out; exit 3"])
        assert until(lambda: "sleep 1" in sleepers(owner))
        assert not {os.getpid(), os.getppid()} & {process.pid for process in owner.alive()}
        assert call.result().returncode == 3
        assert call.result().stdout == "out\n"
        assert not owner.alive()


def test_the_family_of_an_owner_that_is_killed_ends_too(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "file").touch()
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "import os, pathlib, time; from support.keeper import Processes\n"
        f"owner = Processes(os.environ, pathlib.Path({str(scratch)!r}))\n"
        f'owner.start(["bash", "-c", {FAMILY!r}])\n'
        "while len(owner.alive()) < 4: time.sleep(0.01)\n"
        "print(*(p.pid for p in owner.alive()), flush=True); time.sleep(300)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    owner.stdout.close()
    assert len(pids) == 4
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert until(lambda: not any(running(pid) for pid in pids))
    assert until(lambda: not scratch.exists())
    assert tmp_path.exists()


def test_output_goes_to_the_log_or_the_pipe(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Processes(os.environ) as owner:
        owner.start(["sh", "-c", "echo to the log; echo and errors >&2"], log).wait()
        piped = owner.start(["sh", "-c", "echo to the pipe"])
        assert piped.stdout is not None
        assert piped.stdout.read() == "to the pipe\n"
    assert log.read_text() == "to the log\nand errors\n"


def test_an_unknown_program_is_named() -> None:
    with Processes(os.environ) as owner, pytest.raises(FileNotFoundError, match="no-such-program"):
        owner.start(["no-such-program"])


def test_free_ports_are_distinct_and_free() -> None:
    """Once in three times at least: another program may take a free one at once."""

    def free() -> bool:
        ports = free_ports(20)
        assert len(set(ports)) == 20
        for port in ports:
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port))
                continue
            return False
        return True

    assert any(free() for _ in range(3))


def test_a_port_is_attributed_to_the_process_that_listens() -> None:
    (port,) = free_ports(1)
    serve = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(300)"
    with Processes(os.environ) as owner:
        child = owner.start([sys.executable, "-c", serve])
        assert wait_until_listening(child, port, 120.0)
        assert not listens(os.getpid(), port)
    assert not wait_until_listening(child, port, 1.0)
