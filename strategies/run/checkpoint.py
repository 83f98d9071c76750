"""Checkpoints: one ``.npz`` with a JSON manifest inside, no pickle, replaced atomically.

The file is written under a temporary name in the same folder, flushed to the disk and renamed, so
a full disk or a killed process leaves the previous checkpoint as it was. The one before it stays
beside it, for the case that the newest is damaged. The history is in a file of its own, which is
appended to: what a checkpoint costs does not grow with the rounds.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError, RunError
from privet.core.errors import near_path
from privet.core.files import read_npz, write_npz, write_whole

from .journal import Request, read_journal
from .session import Round

log = logging.getLogger("flwr.privet")
T = TypeVar("T")


class HistoryFile:
    """A history file for appending; a line that cannot be written is written with the next one."""

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
    """Return the first rounds of a history; later lines are not read.

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
    history: list[Round] = []
    try:
        history = [Round.from_dict(json.loads(line)) for line in lines]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"resume: {path}: a round cannot be read ({error!r})") from None
    if [done.round for done in history] != list(range(1, rounds + 1)):
        raise RunError(f"resume: {path}: does not hold rounds 1 to {rounds} in order")
    return history


def _line(done: Round) -> bytes:
    return json.dumps(done.to_dict()).encode() + b"\n"


FORMAT = 4
FILE_NAME = "checkpoint.npz"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a run needs to continue.

    ``arrays`` is the algorithm's server state, ``node_states`` the agents' own states where the
    engine can hand them over (in process), ``tasks`` the results of simulated agents that are
    still to come, ``manifest`` everything that is not an array,
    ``history`` the finished rounds and ``requests`` those of later ones, as ``load`` finds
    them.
    """

    manifest: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    node_states: dict[str, bytes] = field(default_factory=dict)
    tasks: dict[str, bytes] = field(default_factory=dict)
    history: list[Round] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


def journal_beside(checkpoint: Path) -> Path:
    """Return where the journal of a private run is: ``asked.jsonl`` in a run folder."""
    if checkpoint.name == FILE_NAME:
        return checkpoint.with_name("asked.jsonl")
    return checkpoint.with_suffix(".asked.jsonl")


def history_beside(checkpoint: Path) -> Path:
    """Return where the history of a checkpoint is: ``history.jsonl`` in a run folder."""
    if checkpoint.name == FILE_NAME:
        return checkpoint.with_name("history.jsonl")
    return checkpoint.with_suffix(".history.jsonl")


def previous_beside(checkpoint: Path) -> Path:
    """Return where the checkpoint before the newest is: ``checkpoint.previous.npz``."""
    return checkpoint.with_suffix(f".previous{checkpoint.suffix}")


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that ``path`` always holds a whole one (raises ``OSError``).

    The one that was there is kept beside it, where the file system has hard links.
    """
    manifest = {"format": FORMAT, **checkpoint.manifest}
    members: dict[str, NDArray[Any]] = {
        "manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8),
        **{f"state/{name}": array for name, array in checkpoint.arrays.items()},
        **{
            f"node/{name}": np.frombuffer(blob, np.uint8)
            for name, blob in checkpoint.node_states.items()
        },
        **{f"task/{n}": np.frombuffer(blob, np.uint8) for n, blob in checkpoint.tasks.items()},
    }
    kept = path.with_name(f".{path.name}.kept")
    kept.unlink(missing_ok=True)
    with suppress(OSError):
        os.link(path, kept)
    try:
        write_npz(path, members)
        if kept.exists():
            kept.replace(previous_beside(path))
    finally:
        kept.unlink(missing_ok=True)


def located(where: Path) -> Path:
    """Return the checkpoint of a run folder, or the file itself (``ConfigError`` without one)."""
    path = where / FILE_NAME if where.is_dir() else where
    if not path.exists():
        raise ConfigError(f"resume: no checkpoint at {path}{near_path(where)}")
    return path


class _Damaged(RunError):
    """A checkpoint that cannot be read, in whose place the one before it may serve."""


def read_manifest(where: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest, and none of its arrays (raises as ``load``)."""
    return _or_previous(located(where), _manifest)[0]


def _or_previous(path: Path, read: Callable[[Path], T]) -> tuple[T, RunError | None]:
    """Return the result of ``read``; if the newest is damaged, of the one before and the error."""
    try:
        return read(path), None
    except _Damaged as damage:
        try:
            return read(previous_beside(path)), damage
        except RunError:
            raise damage from None


def _manifest(path: Path) -> dict[str, Any]:
    try:
        packed = read_npz(path, only="manifest").get("manifest")
        if packed is None:
            raise _Damaged(f"resume: {path} is no checkpoint")
        manifest: dict[str, Any] = json.loads(packed.tobytes())
        version, rounds = manifest["format"], manifest.get("round")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"resume: {path} is damaged, or no checkpoint ({error})") from None
    if version != FORMAT:
        raise RunError(
            f"resume: {path} has checkpoint format {version}, this version reads {FORMAT}: resume "
            "with the version that wrote it, or keep its model, model.npz beside it, for a new run"
        )
    if type(rounds) is not int or rounds < 0:
        raise _Damaged(f"resume: {path} is damaged (its round is {rounds!r})")
    return manifest


def load(where: Path) -> Checkpoint:
    """Read the checkpoint of a run folder (or the file itself), if it is damaged the one before.

    Privacy: every request since the one that is read is in ``requests``.

    Raises
    ------
    ConfigError
        If there is none.
    RunError
        If both are damaged, it is of another format, or its history is not there.
    """
    path = located(where)
    checkpoint, damage = _or_previous(path, lambda file: _load(file, path))
    if damage is not None:
        log.warning(
            "%s: goes on from the one before, of round %d", damage, checkpoint.manifest["round"]
        )
    return checkpoint


def _load(file: Path, path: Path) -> Checkpoint:
    """Read a checkpoint's file, and the history and journal of the checkpoints at ``path``."""
    manifest = _manifest(file)
    try:
        members = read_npz(file, file.parent)
    except (OSError, ValueError) as error:
        raise _Damaged(f"resume: {file} is damaged ({error})") from None
    history = read_history(history_beside(path), manifest["round"])
    arrays = {n[6:]: array for n, array in members.items() if n.startswith("state/")}
    nodes = {n[5:]: a.tobytes() for n, a in members.items() if n.startswith("node/")}
    tasks = {n[5:]: a.tobytes() for n, a in members.items() if n.startswith("task/")}
    requests = read_journal(journal_beside(path), manifest["round"])
    return Checkpoint(manifest, arrays, nodes, tasks, history, requests)
