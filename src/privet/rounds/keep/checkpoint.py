"""Checkpoints: one ``.npz`` with a JSON manifest inside, no pickle, replaced atomically.

The file is written under a temporary name in the same folder, flushed to the disk and renamed, so
a full disk or a killed process leaves the previous checkpoint as it was. The one before it stays
beside it, for the case that the newest is damaged or gone. The history is in a file of its own,
which is appended to: what a checkpoint costs does not grow with the rounds. The checkpoint states a
digest of it. A history that is not the one that was written is set aside, and the run goes on with
rounds of which nothing is recorded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privet.agents.state_tables import StateTable, from_members, of_others, to_members
from privet.core import ConfigError, RunError
from privet.core.errors import HopelessError, near_path, one_line
from privet.core.files import open_regular, read_npz, write_npz, write_whole
from privet.core.shapes import parsed
from privet.wire.contract import means_privacy

from ..roster import updated
from ..session import Round
from ..table_rows import Latest
from .journal import Request, has_requests, last_check, read_journal

log = logging.getLogger("flwr.privet")
T = TypeVar("T")


class HistoryFile:
    """A history file for appending; a line that cannot be written is written with the next one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._waiting = b""
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of the lines so far, as hexadecimal digits."""
        return self._hash.hexdigest()

    def begin(self, earlier: list[Round]) -> None:
        """Start the file, whole, with the rounds before a resume (raises ``OSError``).

        Lines of these rounds that are there stay as they are, as checkpoints state their digest.
        """
        data = b"".join(map(_line, earlier))
        there = _first_lines(self.path, len(earlier)) if self.path.exists() else []
        same = False
        with suppress(*_UNREADABLE):
            same = b"".join(map(_line, _rounds(there))) == data
        if same:
            data = b"".join(there)
        elif there and earlier and NOT_RECORDED in earlier[0].notes:
            _set_aside(self.path)
        write_whole(self.path, data)
        self._size, self._waiting = len(data), b""
        self._hash = hashlib.sha256(data)

    def append(self, done: Round) -> None:
        """Add a round (raises ``OSError``; its line then waits for the next one)."""
        line = _line(done)
        self._hash.update(line)
        self._waiting += line
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


def read_history(path: Path, rounds: int, digest: str | None, epsilon: float) -> list[Round]:
    """Return the first rounds of a history; later lines are not read.

    If they are not what was written, the rounds returned have, after a warning, nothing but a note
    and ``epsilon``, the run's at the last of them. A ``digest`` of None is that of a checkpoint of
    format 6, which states none.

    Raises
    ------
    HopelessError
        If they are not what was written, and there is no digest.
    """
    why = f"does not hold rounds 1 to {rounds} in order, as they were written"
    history: list[Round] = []
    try:
        lines = _first_lines(path, rounds)
        if digest in (None, hashlib.sha256(b"".join(lines)).hexdigest()):
            history = _rounds(lines)
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except _UNREADABLE as error:
        why = f"a round cannot be read ({one_line(repr(error))})"
    if [done.round for done in history] == list(range(1, rounds + 1)):
        return history
    if digest is None:
        raise HopelessError(f"resume: {path}: {why}")
    log.warning("resume: %s: %s; goes on without the record of these rounds", path, why)
    return [Round(one, (), notes=(NOT_RECORDED,), epsilon=epsilon) for one in range(1, rounds + 1)]


NOT_RECORDED = "not recorded: the history of this round was lost before a resume"
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


def _set_aside(path: Path) -> None:
    """Keep a history that cannot be used under another name (raises ``OSError``)."""
    aside = path.with_suffix(f".aside{path.suffix}")
    if not aside.exists():
        path.replace(aside)
        log.warning("%s is kept as %s", path, aside.name)


def _first_lines(path: Path, count: int) -> list[bytes]:
    with open_regular(path) as file:
        return [line for _, line in zip(range(count), file, strict=False)]


def _rounds(lines: Sequence[bytes]) -> list[Round]:
    return [Round.from_dict(parsed(line)) for line in lines]


def _rounds_after(path: Path, rounds: int) -> dict[int, tuple[str, ...]]:
    """Return the participants of the rounds that a history has after the first ``rounds``."""
    found: dict[int, tuple[str, ...]] = {}
    with suppress(OSError, *_UNREADABLE), open_regular(path) as file:
        for line in file:
            done = Round.from_dict(parsed(line))
            if done.round > rounds:
                found[done.round] = done.participants
    return found


def _line(done: Round) -> bytes:
    return json.dumps(done.to_dict()).encode() + b"\n"


FORMAT = 7
_MIGRATED = 6
"""The format before, which is read as well: without marks of the journal and the history."""
FILE_NAME = "checkpoint.npz"
PART = re.compile(r"[0-9]+-[0-9a-f]{16}\.npz")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a run needs to continue.

    ``arrays`` is the algorithm's server state, ``node_states`` the agents' own states where the
    engine can hand them over (in process), ``tasks`` the results of simulated agents that are
    still to come, ``manifest`` everything that is not an array,
    ``history`` the finished rounds and ``requests`` those of later ones, as ``load`` finds
    them beside the file ``where``, whose journal ended with the line of the checksum
    ``journal_end``.
    """

    manifest: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    node_states: list[StateTable] = field(default_factory=list)
    tasks: dict[str, bytes] = field(default_factory=dict)
    history: list[Round] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    where: Path | None = None
    journal_end: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of a run's checkpoints: the round of the last one (0: none) and the failures.

    ``error`` says why the last attempt failed; it is empty if that one was written.
    """

    round: int = 0
    failures: int = 0
    error: str = ""


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


def parts_beside(checkpoint: Path) -> Path:
    """Return the folder of the parts that a checkpoint may need: ``checkpoint.parts``."""
    return checkpoint.with_suffix(".parts")


def save(path: Path, checkpoint: Checkpoint, parts: Sequence[str] = ()) -> str:
    """Write a checkpoint so that ``path`` always holds one (raises ``OSError``).

    The one that was there is kept beside it, where the file system has hard links. ``parts`` are
    the names of those that it needs, none if it is whole; returned is its own name as a part.
    """
    identity = secrets.token_hex(8)
    about = {"format": FORMAT, "identity": identity, "parts": list(parts)}
    manifest = {**checkpoint.manifest, **about}
    members: dict[str, NDArray[Any]] = {
        "manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8),
        **{f"state/{name}": array for name, array in checkpoint.arrays.items()},
        **{f"node/{name}": a for name, a in to_members(checkpoint.node_states).items()},
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
    return _name_of(manifest)


def located(where: Path) -> Path:
    """Return the path of a run folder's checkpoint, or the file itself; it may be gone.

    Those before it serve in its place.

    Raises
    ------
    ConfigError
        If there is none.
    """
    path = where / FILE_NAME if where.is_dir() else where
    if not has_checkpoint(where):
        raise ConfigError(f"resume: no checkpoint at {path}{near_path(where)}{_untouched(path)}")
    return path


def has_checkpoint(where: Path) -> bool:
    """Whether a run folder (or the file itself) has a checkpoint, be it the one before the last."""
    path = where / FILE_NAME if where.is_dir() else where
    return any(file.exists() for file in (path, previous_beside(path), *_parts_there(path)))


def _untouched(path: Path) -> str:
    """Return the end of a line on a run without a checkpoint that has asked no agent, or nothing.

    There is one before the first message leaves, so such a run was killed before.
    """
    history = history_beside(path)
    if not history.exists() or history.stat().st_size or has_requests(journal_beside(path)):
        return ""
    return "; that run was killed before it asked an agent: begin it anew, without resume"


class _Damaged(HopelessError):
    """A checkpoint that cannot be read, in whose place the one before it may serve."""


def read_manifest(where: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest, and none of its arrays (raises as ``load``)."""
    return _or_previous(located(where), _manifest)[0]


def _or_previous(path: Path, read: Callable[[Path], T]) -> tuple[T, RunError | None]:
    """Return the result of ``read``; if the newest is damaged, of the last that is not, and why."""
    damage: RunError | None = None
    for file in (path, previous_beside(path), *_parts_there(path)):
        try:
            return read(file), damage
        except _Damaged as error:
            damage = damage or error
        except RunError as error:
            raise damage or error from None
    assert damage is not None
    raise damage


def _parts_there(path: Path) -> list[Path]:
    """Return the parts beside a checkpoint, those of the last round first."""
    parts = [part for part in parts_beside(path).glob("*.npz") if PART.fullmatch(part.name)]
    return sorted(parts, key=lambda part: int(part.name.partition("-")[0]), reverse=True)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = _checked(path, read_npz(path, only="manifest"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise _Damaged(f"resume: {path} is damaged, or no checkpoint ({why})") from None
    if PART.fullmatch(path.name) and path.name != _name_of(manifest):
        raise _Damaged(f"resume: {path} is another checkpoint's file")
    return manifest


def _checked(path: Path, members: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the manifest of a file's members (raises ``RunError``)."""
    packed = members.get("manifest")
    if packed is None:
        raise _Damaged(f"resume: {path} is no checkpoint")
    try:
        manifest: dict[str, Any] = parsed(packed.tobytes())
        version, rounds = manifest["format"], manifest.get("round")
    except (ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"resume: {path} is damaged, or no checkpoint ({error})") from None
    if version not in (FORMAT, _MIGRATED):
        raise HopelessError(
            f"resume: {path} has checkpoint format {version}, this version reads {_MIGRATED} and "
            f"{FORMAT}: resume with the version that wrote it, or keep its model, model.npz beside "
            "it, for a new run"
        )
    if type(rounds) is not int or rounds < 0:
        raise _Damaged(f"resume: {path} is damaged (its round is {rounds!r})")
    parts = manifest.get("parts")
    if not isinstance(parts, list) or not all(PART.fullmatch(str(part)) for part in parts):
        raise _Damaged(f"resume: {path} is damaged (its parts are {one_line(repr(parts))})")
    return manifest


def load(where: Path) -> Checkpoint:
    """Read the checkpoint of a run folder (or the file itself), if it is damaged the one before.

    Privacy: every request since the one that is read is in ``requests``.

    Raises
    ------
    ConfigError
        If there is none.
    RunError
        If all are damaged, it is of another format, or its journal does not fit.
    """
    path, broken = located(where), dict[Path, str]()
    checkpoint, damage = _or_previous(path, lambda file: _load(file, path, broken))
    if damage is not None:
        log.warning(
            "%s: goes on from the one before, of round %d", damage, checkpoint.manifest["round"]
        )
    return checkpoint


def _load(file: Path, path: Path, broken: dict[Path, str]) -> Checkpoint:
    """Read a checkpoint's file and its parts, and the history and journal of those at ``path``.

    ``broken`` has the parts that cannot be read, and why: each is tried once.
    """
    manifest = _manifest(file)
    names: list[str] = manifest["parts"]
    parts = [parts_beside(path) / name for name in names]
    gathered = _Gathered()
    for part in filter(broken.__contains__, parts):
        raise _Damaged(f"resume: {file} needs {part}, which is {broken[part]}")
    try:
        members = read_npz(file, file.parent)
        tasks = {n[5:]: a.tobytes() for n, a in members.items() if n.startswith("task/")}
        gathered.add(manifest, members)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"resume: {file} is damaged ({one_line(str(error))})") from None
    for number, part in reversed([*enumerate(parts)]):
        try:
            members = read_npz(part, file.parent)
            about = _checked(part, members)
            if names[: number + 1] != [*about["parts"], _name_of(about)]:
                raise ValueError("it is a part of another checkpoint")
            gathered.add(about, members)
        except (OSError, ValueError, KeyError, TypeError, RunError) as error:
            broken[part] = f"damaged ({one_line(str(error))})" if part.exists() else "not there"
            raise _Damaged(f"resume: {file} needs {part}, which is {broken[part]}") from None
    try:
        checkpoint = gathered.whole(manifest, tasks)
        epsilon = float(checkpoint.manifest.get("epsilon", math.nan))
        private = means_privacy(checkpoint.manifest.get("settings", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"resume: {file} is damaged ({one_line(repr(error))})") from None
    rounds = int(manifest["round"])
    end, requests = _requests(checkpoint.manifest, path, private)
    history = read_history(history_beside(path), rounds, manifest.get("history"), epsilon)
    return replace(checkpoint, history=history, requests=requests, where=path, journal_end=end)


def as_now(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with all requests since, also those made after it was read.

    Raises
    ------
    HopelessError
        If they are not known: the journal beside it does not reach back to it any more.
    """
    if checkpoint.where is None:
        return checkpoint
    private = means_privacy(checkpoint.manifest["settings"])
    end, requests = _requests(checkpoint.manifest, checkpoint.where, private)
    return replace(checkpoint, requests=requests, journal_end=end)


def _requests(manifest: Mapping[str, Any], path: Path, private: bool) -> tuple[str, list[Request]]:
    """Return the end of the journal and the requests since a checkpoint.

    The end is read first: a request that comes in between is one after it.

    Raises
    ------
    HopelessError
        If they are not known.
    """
    rounds, journal = int(manifest["round"]), journal_beside(path)
    mark, end = manifest.get("journal"), ""
    with suppress(OSError):  # which reading the requests says
        end = last_check(journal)
    requests = read_journal(journal, rounds, _name_of(manifest), mark, private=private)
    if (
        mark or (private and mark is None)
    ) and "tasks" not in manifest:  # of a private run whose rounds wait for their replies
        asked = {request.round for request in requests}
        for number, participants in _rounds_after(history_beside(path), rounds).items():
            if participants and number not in asked:
                raise HopelessError(
                    f"resume: {journal}: has no request of round {number}, which was played: what "
                    f"the agents have spent since round {rounds} is not known"
                )
    return end, requests


def _name_of(manifest: Mapping[str, Any]) -> str:
    """Return the name of a checkpoint as a part of later ones."""
    return f"{manifest.get('round')}-{manifest.get('identity')}.npz"


class _Gathered:
    """What a checkpoint's file and its parts hold, taken over from the last to the first."""

    def __init__(self) -> None:
        self._latest = Latest()
        self._nodes: list[StateTable] = []
        self._seen: set[str] = set()
        self._agents: list[Any] = []

    def add(self, manifest: Mapping[str, Any], members: Mapping[str, NDArray[Any]]) -> None:
        """Take over what no later file has (raises ``ValueError``, ``KeyError``, ``TypeError``)."""
        tables = from_members({n[5:]: a for n, a in members.items() if n.startswith("node/")})
        tables = of_others(tables, self._seen)
        self._nodes += tables
        self._seen.update(name for table in tables for name in table.names)
        self._latest.add({n[6:]: a for n, a in members.items() if n.startswith("state/")})
        self._agents.append(manifest.get("agents"))

    def whole(self, manifest: dict[str, Any], tasks: dict[str, bytes]) -> Checkpoint:
        """Return the checkpoint without history and requests (raises as ``add``)."""
        if len(self._agents) > 1:
            *changes, first = self._agents
            manifest = {**manifest, "agents": updated(first, reversed(changes))}
        return Checkpoint(manifest, self._latest.arrays(), self._nodes, tasks)
