"""The rounds of a run on disk: one line of JSON each, appended as the run goes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from privet.wire import RunError
from privet.wire.files import write_whole

from .session import Round


class HistoryFile:
    """A history that is appended to; what could not be written is written with what follows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._waiting = b""

    def begin(self, earlier: list[Round]) -> None:
        """Start the file, whole, with the rounds before a resume (raises ``OSError``)."""
        data = b"".join(map(_line, earlier))
        write_whole(self.path, data)
        self._size, self._waiting = len(data), b""

    def append(self, done: Round) -> None:
        """Add a round (raises ``OSError``; its line then waits for the next one)."""
        self._waiting += _line(done)
        self.flush()

    def flush(self, *, durable: bool = False) -> None:
        """Write what waits; ``durable`` waits for the disk (raises ``OSError``)."""
        with self.path.open("r+b") as file:
            file.truncate(self._size)  # of a line that a full disk cut
            file.seek(self._size)
            file.write(self._waiting)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        self._size, self._waiting = self._size + len(self._waiting), b""


def read_history(path: Path, rounds: int) -> list[Round]:
    """Return the first rounds of a history; what follows them is not looked at.

    Raises
    ------
    RunError
        If there are fewer, or a line is not a round.
    """
    try:
        with path.open("rb") as file:
            lines = [line for _, line in zip(range(rounds), file, strict=False)]
    except OSError as error:
        raise RunError(f"resume: {path}: {error.strerror}") from None
    found: list[Round] = []
    try:
        found = [Round.from_dict(json.loads(line)) for line in lines]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"resume: {path}: a round cannot be read ({error!r})") from None
    if [done.round for done in found] != list(range(1, rounds + 1)):
        raise RunError(f"resume: {path}: does not hold rounds 1 to {rounds} in order")
    return found


def _line(done: Round) -> bytes:
    return json.dumps(done.to_dict()).encode() + b"\n"
