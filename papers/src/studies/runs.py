"""Runs that are played once: their results are lines of a file, and what is there is not played."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .study import key_of

log = logging.getLogger("flwr.privet")


def missing(**run: Any) -> dict[str, Any]:
    """Play nothing (raises ``LookupError``)."""
    raise LookupError(run)


class Runs:
    """Results that are kept in a file of one JSON object a line, by a hash of what was run.

    A line holds under ``run`` the keyword arguments, or under ``key`` the key of a `Case`; the last
    line of a run counts. One that cannot be read is named in the log, and its run is missing.

    Parameters
    ----------
    file : Path
        Several processes may write to it.
    play : callable
        Returns the results of a run, by its keyword arguments.
    """

    def __init__(self, file: Path, play: Callable[..., dict[str, Any]] = missing) -> None:
        self.file, self.play = file, play
        self.found: dict[str, Mapping[str, Any]] = {}
        lines = file.read_text().splitlines() if file.exists() else []
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                done = json.loads(line)
                self.found[done.get("key") or key_of(done["run"])] = done
            except (ValueError, KeyError, AttributeError):
                log.warning("%s, line %d: cannot be read; its run counts as missing", file, number)

    def has(self, **run: Any) -> bool:
        """Return whether a run is in the file."""
        return key_of(run) in self.found

    def keep(self, key: str, done: Mapping[str, Any]) -> None:
        """Add a line, on a line of its own where the last one was cut off."""
        self.found[key] = done
        with self.file.open("a+b") as file:
            size = file.tell()
            file.seek(max(size - 1, 0))
            cut = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * cut + json.dumps(done).encode() + b"\n")

    def __call__(self, **run: Any) -> Mapping[str, Any]:
        """Return a run's results, played if they are not in the file."""
        key = key_of(run)
        if key not in self.found:
            self.keep(key, {"run": run, **self.play(**run)})
            print(self.found[key], flush=True)
        return self.found[key]
