"""What a process holds in memory. Linux only."""

from __future__ import annotations

from pathlib import Path


def resident_megabytes(pid: int | str = "self") -> float:
    """Return the resident set size of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
