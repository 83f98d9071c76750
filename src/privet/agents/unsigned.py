"""Whether the SuperNode that started this process runs unsigned apps."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

log = logging.getLogger("flwr.privet")

_SUPERNODE, _OPTION = "flower-supernode", "--trusted-entities"
_ANCESTORS = 8
UNSIGNED = (
    "this node has limits, and its SuperNode was started without --trusted-entities: it runs "
    "whatever app a run brings, and other code than Privet's need not keep the limits; see Pin the "
    "code in docs/privacy.md, and privet check-node"
)


def supernode_command(proc: Path = Path("/proc"), pid: int | None = None) -> list[str] | None:
    """Return the command line of the SuperNode above a process, None where it is not seen.

    It is not where the system has no ``/proc``, or where apps run in another container.
    """
    pid = os.getpid() if pid is None else pid
    for _ in range(_ANCESTORS):
        try:
            words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if any(Path(word).name == _SUPERNODE for word in words[:3]):
            return words
    return None


@functools.lru_cache(maxsize=16)
def warn_of_unsigned(run_id: int) -> None:
    """Warn, once a run, that a node with limits runs unsigned apps; to be called by such a node."""
    words = supernode_command()
    if words is not None and not any(word.partition("=")[0] == _OPTION for word in words):
        log.warning("%s", UNSIGNED)
