"""Processes we start, with everything they start in turn: find them all, end them all.

Flower detaches its helpers into sessions of their own and Ray's workers outlive their parents, so a
process group is not enough. Every process started here carries a mark in its environment, which
children inherit; programs that overwrite their environment by renaming themselves are found through
their parent, or through their session when a marked process leads it. Linux only (``/proc``).

Run as a program, this module is the keeper of one owner: it waits until the owner is gone, however
it went, and then ends what carries the owner's mark.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One living process: its id, its parent's, its session's, and its command line."""

    pid: int
    parent: int
    session: int
    command: str


@dataclass(frozen=True, slots=True)
class Marked:
    """All processes whose environment holds a mark, with those they can be traced to.

    Attributes
    ----------
    mark : str
        Name of an environment variable that exists nowhere else.
    """

    mark: str
    _sessions: set[int] = field(default_factory=set)

    def alive(self) -> list[Process]:
        """Return the living ones, zombies left out."""
        found = [process for pid in _pids() if (process := _read(pid))]
        marked = {process.pid for process in found if _carries(process.pid, self.mark)}
        # Only a session led by one of ours is ours: others run in the session we run in. Once
        # seen it stays ours while it has members, since its number is not given out again.
        here = self._sessions & {process.session for process in found}
        here |= {p.pid for p in found if p.pid in marked and p.session == p.pid}
        self._sessions.clear()
        self._sessions.update(here)
        ours = marked | {process.pid for process in found if process.session in here}
        while more := {p.pid for p in found if p.parent in ours} - ours:
            ours |= more
        return [process for process in found if process.pid in ours]

    def end(self, grace: float = 3.0) -> None:
        """Ask all to stop, kill what is left after `grace` seconds, and wait until it is gone.

        Raises
        ------
        RuntimeError
            If a process survives; the line names it.
        """
        left = self._tell(signal.SIGTERM, grace) and self._tell(signal.SIGKILL, 5.0)
        if left:
            names = ", ".join(f"{process.pid} ({process.command[:60]})" for process in left)
            raise RuntimeError(f"processes that SIGKILL did not end: {names}")

    def _tell(self, number: signal.Signals, patience: float) -> list[Process]:
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while (left := self.alive()) and time.monotonic() < deadline:
            for process in left:
                if process.pid not in told:
                    told.add(process.pid)
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, number)
            time.sleep(0.05)
        return left


class Processes:
    """The processes started through this object and all their descendants.

    A context manager: leaving it ends them. They also end when this process dies without leaving
    it, even by SIGKILL.

    Parameters
    ----------
    environment : mapping of str to str
        Environment of what is started; the executables beside the running interpreter come first
        on its ``PATH``, because Flower starts its helpers by name.
    scratch : Path, optional
        Folder that is removed once all are gone.
    """

    def __init__(self, environment: Mapping[str, str], scratch: Path | None = None) -> None:
        # A variable of its own, not only a value: owners nest, and each must keep its mark.
        self._marked = Marked(f"PRIVET_PROCESS_{secrets.token_hex(8)}")
        path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
        self.environment: dict[str, str] = {**environment, "PATH": path, self._marked.mark: "1"}
        self._children: list[subprocess.Popen[str]] = []
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", __file__, self._marked.mark, *([scratch] if scratch else [])],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start(self, command: Sequence[str], log: Path | None = None) -> subprocess.Popen[str]:
        """Start a program in a session of its own.

        Parameters
        ----------
        command : sequence of str
            Program, looked up on ``environment["PATH"]``, and arguments.
        log : Path, optional
            File that standard output and error are appended to; without it they come through the
            pipe ``stdout``.

        Raises
        ------
        FileNotFoundError
            If there is no such program.
        """
        with ExitStack() as stack:
            child = subprocess.Popen(
                self._located(command),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(log.open("a")) if log else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def call(
        self, command: Sequence[str], timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a short command to its end and return its exit code and output."""
        return subprocess.run(
            self._located(command),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            start_new_session=True,
            check=False,
        )

    def alive(self) -> list[Process]:
        """Return all living processes of this owner, zombies left out."""
        for child in self._children:
            child.poll()
        return self._marked.alive()

    def end(self) -> None:
        """End all of them and wait until they are gone.

        Raises
        ------
        RuntimeError
            If a process survives SIGKILL; the line names it.
        """
        try:
            self._marked.end()
        finally:
            for child in self._children:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(1.0)
                if child.stdout:
                    child.stdout.close()
            if self._keeper.stdin:
                self._keeper.stdin.close()
            self._keeper.wait()

    def _located(self, command: Sequence[str]) -> list[str]:
        program = shutil.which(command[0], path=self.environment["PATH"])
        if program is None:
            raise FileNotFoundError(f"{command[0]} is not installed beside {sys.executable}")
        return [program, *command[1:]]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    # The second field is the name in parentheses and may itself contain anything.
    fields = stat.rpartition(")")[2].split()
    # A zombie whose other threads still run (field 20 counts them) is not gone yet.
    if fields[0] in "ZX" and int(fields[17]) <= 1:
        return None
    text = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid, int(fields[1]), int(fields[3]), text)


def _carries(pid: int, mark: str) -> bool:
    try:
        return f"{mark}=1".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return distinct loopback TCP ports that nothing is bound to right now."""
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def listens(pid: int, port: int) -> bool:
    """Return whether this very process (not merely some process) listens on a TCP port."""
    inodes = _listening_sockets(port)
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd") if inodes else ():
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in inodes:
                    return True
    return False


def wait_until_listening(child: subprocess.Popen[str], port: int, timeout: float = 60.0) -> bool:
    """Wait until a child listens on a port; return False when it ends or the time is up."""
    deadline = time.monotonic() + timeout
    while child.poll() is None and time.monotonic() < deadline:
        if listens(child.pid, port):
            return True
        time.sleep(0.05)
    return False


def _listening_sockets(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                # State 0A is LISTEN; the local address ends in the port in hexadecimal.
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _keep(mark: str, *folders: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # Returns when the other end is closed: the owner ended or died.
    Marked(mark).end()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _keep(*sys.argv[1:])
