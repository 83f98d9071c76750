"""Loopback TCP ports: which are free, and whether what listens on one is ours. Linux only."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path


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
