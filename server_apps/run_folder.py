"""The folder of a run, written as the run goes, so that nothing is lost."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from privet.core import ConfigError, RunError
from privet.core.files import write_whole
from privet.data import DataError
from privet.data.schema import read_schema
from privet.strategies import PrivetResult
from privet.strategies.run.checkpoint import FILE_NAME, Checkpoint, load

from .model_file import FILE, write_model

log = logging.getLogger("flwr.privet")


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
        base = _base(output_dir)
        path = base / run_id
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output-dir = {str(base)!r}: {error.strerror}") from None
        return cls(path)

    @classmethod
    def newest(cls, output_dir: str, *, private: bool) -> tuple[RunFolder, Checkpoint] | None:
        """Return the folder with the newest checkpoint that can be read, and it; None without.

        Privacy: a private run never passes over a checkpoint that cannot be read. An older one, or
        a new run, would forget what the agents have spent since, and spend the target again.

        Raises
        ------
        RunError
            If that folder is in use, or in a private run the newest checkpoint cannot be read.
        """
        folders = sorted(
            _base(output_dir).glob(f"*/{FILE_NAME}"), key=lambda path: path.stat().st_mtime
        )
        for path in reversed(folders):
            folder = cls(path.parent)
            with folder.held():
                try:
                    return folder, load(path)
                except RunError as error:
                    if private:
                        raise RunError(
                            f"{error}; a private run does not begin anew by itself, since what its "
                            "agents have spent would be forgotten: put the file back, or set "
                            "resume = '' to begin a run with an account of its own"
                        ) from None
                    log.warning("%s: skipped", error)
        return None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of the folder for as long as the block takes.

        Raises
        ------
        RunError
            If another process has it, such as the run that a supervisor believes to be over.
        """
        try:
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise RunError(f"run folder {self.path}: {error.strerror}") from None
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"run folder {self.path} is in use by another process") from None
            yield

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


def _base(output_dir: str) -> Path:
    return Path(output_dir) if output_dir else Path.cwd() / "runs"


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
    return {"schema": {"sha-256": digest, "columns": columns}}


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
