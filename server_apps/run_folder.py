"""The folder of a run, written as the run goes, so that nothing is lost."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from privet.core import ConfigError, RunError
from privet.core import format as fmt
from privet.core.errors import HopelessError, listed, said_of
from privet.core.files import open_own, read_text, write_whole
from privet.core.shapes import parsed
from privet.data import DataError
from privet.data.tables.schema import read_schema
from privet.rounds.keep.checkpoint import (
    FILE_NAME,
    Checkpoint,
    history_beside,
    journal_beside,
    load,
)
from privet.rounds.keep.journal import has_requests
from privet.rounds.keep.place import (
    CONTINUED,
    begun_files,
    read_note,
    require_end,
    require_unspent,
    write_note,
)
from privet.strategies import PrivetResult

from .model_file import FILE, write_model
from .report.files import PAGE, STATEMENT

log = logging.getLogger("flwr.privet")

ACCOUNT, SUMMARY = "privacy.json", "summary.json"
TABLE = "table.json"
"""The file of a run folder with the result of an analysis."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``<output-dir>/<run-id>/`` with ``history.jsonl``, ``model.npz``, ``checkpoint.npz``,
    ``summary.json``, ``privacy.json`` and ``report.html``."""

    path: Path

    @classmethod
    def create(cls, output_dir: str, run_id: str) -> RunFolder:
        """Make the folder; an empty ``output_dir`` means ``runs`` in the working directory.

        Raises
        ------
        ConfigError
            If the path cannot be made.
        """
        return cls(_made(output_dir, run_id))

    @classmethod
    def of(cls, resume: str | Path) -> RunFolder:
        """Return the folder of the run that is resumed: its path, or that of its checkpoint."""
        path = Path(resume)
        return cls(path if path.is_dir() else path.parent)

    @classmethod
    @contextmanager
    def chosen_in(cls, output_dir: str) -> Iterator[None]:
        """Keep others from choosing a run of ``output_dir`` by themselves while the block runs.

        Privacy: of two that found no run at once, the account of one would be forgotten.

        Raises
        ------
        ConfigError
            If the path cannot be made.
        RunError
            If another process has chosen there, and runs.
        """
        with _lock(_made(output_dir), "output-dir"):
            yield

    @classmethod
    def newest(cls, output_dir: str, *, private: bool) -> RunFolder | None:
        """Return the folder of the newest run; None where there is no run.

        Any file that a run has written makes a folder a run's, so that a run whose checkpoint is
        gone is not taken for none.

        Privacy: no run is passed over. An older one, or a new one, would forget what the agents
        have spent since, and spend the target again.

        Raises
        ------
        HopelessError
            If the newest run's folder is not there any more, or it went on in another.
        """
        base = _base(output_dir)
        runs = _runs(base, empty=not private)
        known = [path for _, path in sorted(runs, key=lambda one: one[0])]
        folders = known
        if private and (name := _last_private(base)):
            # The newest by its files may be a copy, or an older run beside one that was emptied.
            folders = [path for path in known if path.name == name]
            if not folders:
                raise HopelessError(
                    f"resume: run folder {base / name} is not there, or holds no run, and {_LAST} "
                    f"beside it names it as the newest; {_BY_HAND}"
                )
        if not folders:
            return None
        folder = cls(folders[-1])
        if private:
            folder.require_end()
            if others := listed(one.path.name for one in map(cls, known) if one._is_open(folder)):
                log.warning(
                    "resume: %s goes on, and its account does not hold what was spent in runs that "
                    "have not ended either: %s", folder.path, others,
                )  # fmt: skip
        return folder

    def saved(self) -> Checkpoint:
        """Return the checkpoint of this run, which goes on by itself.

        The folder is held by then, and stays so: what another process did to it in between would
        not be in the checkpoint.

        Raises
        ------
        HopelessError
            If the run cannot be read.
        """
        try:
            return load(self.path)
        except (RunError, ConfigError) as error:
            raise HopelessError(f"{error}; {_BY_HAND}") from None

    @classmethod
    def spent_before(cls, output_dir: str) -> str:
        """Return a line on the epsilon of the runs of ``output_dir``; empty where none has any."""
        spent = []
        for _, path in sorted(_runs(_base(output_dir)), key=lambda one: one[0]):
            if not os.path.lexists(path / ACCOUNT):
                if os.path.lexists(journal_beside(path / FILE_NAME)):
                    spent.append(f"{path.name}: no account")
                continue
            try:
                account = parsed(read_text(path / ACCOUNT))["accounts"][0]
                spent.append(f"{path.name}: epsilon {fmt.epsilon(float(account['epsilon']))}")
            except IndexError:  # it was not private
                continue
            except (OSError, ValueError, KeyError, TypeError, OverflowError):
                spent.append(f"{path.name}: account cannot be read")
        return listed(spent, 10)

    def note_newest(self) -> None:
        """Note in the output folder that this private run is its newest.

        Raises
        ------
        RunError
            If the note cannot be written.
        """
        write_note(self.path.parent / _LAST, self.path.name)

    def require_end(self) -> None:
        """Refuse a private run that went on in another folder (raises ``HopelessError``)."""
        require_end(self.checkpoint)

    @contextmanager
    def held_as_source(self, target: RunFolder) -> Iterator[None]:
        """Keep other runs from going on with this private run, which goes on in ``target``.

        Raises
        ------
        HopelessError
            If it went on in another folder.
        RunError
            If another process has it, such as the run itself.
        """
        if self.path.resolve() == target.path.resolve():  # held already
            self.require_end()
            yield
            return
        with self.held():
            self.require_end()
            yield

    def require_unspent(self, resume: str | Path | None, *, private: bool) -> None:
        """Refuse to begin a run, or to go on with another folder's, where a private run is.

        ``resume`` is the folder, or its file, from which the run goes on. A ``private`` run begins
        in the folder of no run: what that one has spent may be lost.

        Raises
        ------
        ConfigError
            If one has asked agents here: its account would be replaced by that of the new run.
        """
        if resume and RunFolder.of(resume).path.resolve() == self.path.resolve():
            return
        require_unspent(self.checkpoint, private=private, stated=_spends(self.path / ACCOUNT))

    def remove_end(self) -> None:
        """Remove what the end of this private run stated: it goes on, and spends more.

        Raises
        ------
        RunError
            If a file cannot be removed.
        """
        for name in (STATEMENT, PAGE, ACCOUNT, SUMMARY):
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                raise RunError(
                    f"{self.path / name} cannot be removed: {error.strerror}; it would state less "
                    "than the run goes on to spend"
                ) from None

    def remove_empty(self) -> bool:
        """Remove the folder of a run that has written nothing (its lock is no content)."""
        empty = [one.name for one in self.path.iterdir()] == [".lock"]
        if empty:
            (self.path / ".lock").unlink()
            self.path.rmdir()
        return empty

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of the folder for as long as the block takes.

        Raises
        ------
        RunError
            If another process has it, such as the run that a supervisor believes to be over.
        """
        with _lock(self.path, "run folder"):
            self._remove_temporary()
            yield

    def _remove_temporary(self) -> None:
        """Remove what killed processes were writing; nobody else writes here now."""
        with suppress(OSError):
            for file in self.path.iterdir():
                if _TEMPORARY.fullmatch(file.name):
                    file.unlink(missing_ok=True)

    def summary(self) -> dict[str, Any]:
        """Return the summary; empty where there is none.

        Raises
        ------
        HopelessError
            If it cannot be read: how the run ended is then not known.
        """
        file = self.path / SUMMARY
        if not os.path.lexists(file):
            return {}
        try:
            found = parsed(read_text(file))
            if not isinstance(found, dict):
                raise ValueError("expected a JSON object")
        except (OSError, ValueError) as error:
            raise HopelessError(
                f"resume: {file} cannot be read ({said_of(error)}), and it says how the run "
                "ended: put it back, or remove it to go on without it"
            ) from None
        return found

    def has_begun(self) -> bool:
        """Whether a run has written here what a resume goes on from, or what it has spent."""
        return bool(_times(self.path, empty=False))

    def _is_open(self, newest: RunFolder) -> bool:
        """Whether another private run asked agents here, did not end, and went on nowhere."""
        ended = any(os.path.lexists(self.path / name) for name in (SUMMARY, CONTINUED))
        asked = has_requests(journal_beside(self.checkpoint))
        return asked and not ended and self.path.name != newest.path.name

    def has_ended(self, rounds: int) -> bool:
        """Whether all that a run writes after its last round is there, of so many rounds.

        Model, account, summary and page are written in this order.
        """
        if self.summary().get("rounds") != rounds:
            return False
        try:
            times = [(self.path / name).stat().st_mtime_ns for name in _AT_THE_END]
        except OSError:
            return False
        return times == sorted(times)

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint."""
        return self.path / FILE_NAME

    def write_model(self, result: PrivetResult, about: Mapping[str, Any]) -> None:
        """Write ``model.npz``: the last model under the user's names, the others prefixed, and
        what `privet.server_apps.model_file` says of them."""
        members = dict(_arrays(result.arrays))
        for name, record in result.models.items():
            if name != "last":
                members |= {f"{name}/{key}": array for key, array in _arrays(record).items()}
        write_model(self.path / FILE, members, to_json(about))

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one JSON file; NaN becomes null and infinity the string "inf"."""
        text = json.dumps(to_json(content), indent=2, allow_nan=False)
        write_whole(self.path / name, f"{text}\n".encode())


_AT_THE_END = (FILE, ACCOUNT, SUMMARY, PAGE)
_LAST = ".newest-private-run"
_BY_HAND = (
    "a run does not begin anew by itself, since what its agents have spent, or what it has learnt, "
    "would be forgotten: put the file back, or set resume = new to begin a run with an account of "
    "its own"
)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


def _last_private(base: Path) -> str:
    """Return the name of the newest private run's folder, empty where none is noted.

    Raises
    ------
    HopelessError
        If the note holds no name.
    """
    note = base / _LAST
    name, fault = read_note(note)
    if fault or name != Path(name).name:
        raise HopelessError(
            f"resume: {note} {fault or 'names no folder'}: write the name of the newest private "
            "run's folder into it, or set resume to that folder"
        )
    return name


def _runs(base: Path, *, empty: bool = False) -> Iterator[tuple[float, Path]]:
    """Yield the folders in which a run has begun, with the time of their last change.

    Those with an ``empty`` history alone count where a run is to go on that nothing was spent in:
    its checkpoint, which was there before its first round, is gone.
    """
    for path in base.glob("*/"):
        if times := _times(path, empty=empty):
            yield max(times), path


def _times(path: Path, *, empty: bool) -> list[float]:
    """Return when the files of a folder's run were last changed; empty where none has begun."""
    account, history = path / ACCOUNT, history_beside(path / FILE_NAME)
    files = [*begun_files(path / FILE_NAME), *([account] if _spends(account) else [])]
    files += [history] if empty and os.path.lexists(history) else []
    return [(file if file.exists() else file.parent).stat().st_mtime for file in files]


def _spends(account: Path) -> bool:
    """Whether a run's account states that something was released, or cannot be read."""
    if not os.path.lexists(account):
        return False
    try:
        return bool(parsed(read_text(account))["private"])
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _base(output_dir: str) -> Path:
    return Path(output_dir) if output_dir else Path.cwd() / "runs"


def _made(output_dir: str, below: str = "") -> Path:
    """Return the output folder, or one below it, made if need be (raises ``ConfigError``)."""
    base = _base(output_dir)
    try:
        (base / below).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output-dir = {str(base)!r}: {error.strerror}") from None
    return base / below


@contextmanager
def _lock(path: Path, what: str) -> Iterator[None]:
    """Keep other processes out of a folder for as long as the block takes (raises ``RunError``)."""
    try:
        lock = open_own(path / ".lock")
    except OSError as error:
        raise RunError(f"{what} {path}: .lock: {error.strerror}") from None
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{what} {path} is in use by another process") from None
        yield


def schema_stated(path: str) -> dict[str, Any]:
    """Return the summary's entry on a schema: its digest and columns, as public as the file."""
    if not path:
        return {}
    try:
        read = read_schema(path)
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, DataError):
        return {"schema": {"sha-256": "the file could not be read after the run"}}
    columns: dict[str, list[Any]] = {
        name: list(column.categories) or [column.low, column.high]
        for name, column in read.columns.items()
    }
    described = {"described": dict(read.described)} if read.described else {}
    return {"schema": {"sha-256": digest, "columns": columns, **described}}


def to_json(value: Any) -> Any:
    """Return a value in JSON types."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return None
        return number if math.isfinite(number) else ("inf" if number > 0 else "-inf")
    return value.item() if isinstance(value, np.generic) else value


def _arrays(record: ArrayRecord) -> dict[str, Any]:
    return {name: array.numpy() for name, array in record.items()}
