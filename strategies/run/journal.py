"""Privacy-critical: the requests to agents since the last checkpoint of a private run.

A coordinator that dies in a round forgets the uploads that left since its checkpoint, and a resume
would spend them again. So a private run writes each request to disk before any message leaves. A
resume counts every request after its checkpoint as an upload that left and was lost. A checkpoint
that is safe on disk holds the accounts themselves, and a line of the journal records that;
requests since the checkpoint before it stay, as a resume may have to go back to that one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from privet.core import RunError
from privet.core.files import write_whole


class Request(NamedTuple):
    """A request of a round: its recipients, the agents to be in a sum, and the settings sent."""

    round: int
    names: tuple[str, ...]
    agents: int = 1
    settings: str = "{}"


class Journal:
    """The requests of a private run since the last checkpoint but one, a JSON line each.

    Parameters
    ----------
    path : Path
        The file; it is made, for its owner alone, with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self) -> None:
        """Mark the start of a process, which may try rounds again that are in the file.

        A last line that is cut, as its process died, is removed: its messages never left.
        """
        if self.path.exists():
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        self._add({"begun": True})

    def add(self, number: int, request: Request) -> None:
        """Write a process's request of this number before its messages leave.

        A further line of the same number replaces the one before.

        Raises
        ------
        RunError
            If it cannot be written: then no agent may be asked.
        """
        self._add({"request": number, **request._asdict()})

    def mark(self, round_: int) -> None:
        """Record that the checkpoint of a round contains the cost of every request so far.

        Requests before the last such line are removed (raises ``OSError``).
        """
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        marks = [place for place, line in enumerate(lines) if line.startswith(_MARK)]
        kept = lines[marks[-1] :] if marks else lines
        write_whole(self.path, b"".join([*kept, _line({"saved": round_})]))

    def _add(self, entry: Mapping[str, object]) -> None:
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, _line(entry))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}; a private run asks no agent "
                "whose cost it could forget"
            ) from None


_MARK = b'{"saved":'


def _line(entry: Mapping[str, object]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def read_journal(path: Path, after: int) -> list[Request]:
    """Return the requests since the checkpoint of a round; none if there is no file.

    If no line marks that checkpoint, as a process died before it could write one, the requests of
    later rounds are returned.

    Raises
    ------
    RunError
        If a whole line cannot be read, or requests since that checkpoint were removed, as of one
        older than the last but one: the privacy cost of the agents is then unknown.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"resume: {path}: {error.strerror}") from None
    requests: dict[tuple[int, int], Request] = {}
    process, first = 0, after
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline was cut
        try:
            entry = json.loads(line)
            if entry.get("begun"):
                process += 1
                continue
            if "saved" in entry:
                if number == 1:
                    first = int(entry["saved"])
                if entry["saved"] == after:
                    first = after
                    requests.clear()
                continue
            names, agents, settings = entry["names"], entry["agents"], entry["settings"]
            request = Request(int(entry["round"]), tuple(names), int(agents), str(settings))
            requests[process, int(entry["request"])] = request
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(
                f"resume: {path}: line {number} is damaged: what the agents have spent since the "
                "checkpoint is not known"
            ) from None
    if first > after:
        raise RunError(
            f"resume: {path} begins after round {first}: what the agents have spent since round "
            f"{after} is not known; resume from the newest checkpoint"
        )
    return [request for request in requests.values() if request.round > after]
