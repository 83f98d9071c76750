"""Privacy-critical: the rows of a cohort, fixed for as long as one run lasts.

A query runs anew in every run and never twice in one: what it gave is a Parquet file, which is then
read as any table is. A node keeps it beside its state, in a folder of its owner's alone, where a
file names its run and a digest of all that decides which rows are read; the files of other runs are
removed when the next one begins. A command keeps it in a temporary folder of its own.

Privacy: the files hold personal data of the node. Nothing of them leaves.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from flwr.app import ConfigRecord, Context

from privet.core import mapped
from privet.core.assignments import with_more
from privet.core.files import open_own, read_text, state_path, write_by, write_whole
from privet.kernel import Told
from privet.wire.flower_internals import held_by

from ..dataset import DataError
from .cohorts import SQL, URLS, NamedCohort, cohort_of
from .databases import batches

COHORT_RECORD = "privet.cohort"
"""In a node's context: of which query the run's rows are, how many, and a digest of them."""
IDLE = 3600.0
"""Seconds without a message after which another run's rows are removed when a run begins."""
_END = ".parquet"
_ABOUT = ".json"
_TEMPORARY = "privet-cohort-"
_open: dict[str, Path] = {}
"""The files of this process's own run, by what decides which rows they have."""


@contextmanager
def held(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Give a config of ``dataset = sql`` as one of a file, with the same rows until the end.

    Within another such block the rows are those of the outer one. Any other config stays as it is.

    Raises
    ------
    DataError
        As `cohort_of` and `batches`.
    """
    if config.get("dataset") != SQL:
        yield config
        return
    cohort = cohort_of(str(config.get("data-path", "")), str(config.get("cohort", "")))
    if (path := _open.get(cohort.identity)) is not None:
        with _called(cohort, path):
            yield _of_file(config, cohort, path)
        return
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=f"{_TEMPORARY}{os.getpid()}-") as folder:
        path = Path(folder, f"{cohort.name}{_END}")
        write_rows(cohort, path)
        _open[cohort.identity] = path
        try:
            with _called(cohort, path):
                yield _of_file(config, cohort, path)
        finally:
            del _open[cohort.identity]


def of_node(context: Context) -> dict[str, Any]:
    """Return a node's config of ``dataset = sql`` as one of the file with the run's rows.

    The run config may name the cohort, if the node's own does not.

    Raises
    ------
    DataError
        As `cohort_of` and `batches`; a node without ``state-path``; and where the rows have to be
        read again in a run, and are others.
    """
    config = dict(context.node_config)
    asked, own = (str(one.get("cohort", "")) for one in (with_more(context.run_config), config))
    if own and asked not in ("", own):
        raise DataError(f"cohort = {asked}: this node's own config names {own}", Told.COHORT)
    source = str(config.get("data-path", ""))
    if source.startswith(URLS):
        raise DataError(
            "data-path is a URL, of which a run could name any table: name a file of cohorts",
            Told.DATABASE,
        )
    cohort = cohort_of(source, own or asked)
    state = state_path(config)
    if state is None:
        raise DataError(
            "dataset = sql needs state-path, beside which the rows of a run are kept", Told.DATABASE
        )
    path, about = _kept(cohort, state.with_name(f"{state.name}.cohorts"), context)
    context.state[COHORT_RECORD] = ConfigRecord(about)
    return _of_file(config, cohort, path)


def _kept(cohort: NamedCohort, folder: Path, context: Context) -> tuple[Path, dict[str, Any]]:
    """Return the file with a run's rows, made where it is not there, and what is said of it."""
    import fcntl

    path = folder / f"{cohort.name}-{context.run_id}-{cohort.identity}{_END}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        lock = open_own(folder / "lock")
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}", Told.STATE) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two messages at a time one reads the database
        about = _about(path)
        if about is None:
            _sweep(folder, path)
            about = _made(cohort, path)
            _require_same(cohort, path, about, context)
        with suppress(OSError):
            os.utime(path.with_suffix(_ABOUT))
    finally:
        os.close(lock)
    return path, about


def _about(path: Path) -> dict[str, Any] | None:
    """Return what is said of a file that is there as a whole."""
    try:
        about: dict[str, Any] = json.loads(read_text(path.with_suffix(_ABOUT)))
        return about if path.is_file() and not path.is_symlink() else None
    except (OSError, ValueError):
        return None


def _made(cohort: NamedCohort, path: Path) -> dict[str, Any]:
    rows = write_rows(cohort, path)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        about = {"cohort": cohort.name, "query": cohort.digest, "rows": rows, "digest": digest}
        write_whole(path.with_suffix(_ABOUT), json.dumps(about).encode())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", Told.STATE) from None
    return about


def _require_same(cohort: NamedCohort, path: Path, about: dict[str, Any], context: Context) -> None:
    """Refuse other rows than the run began with (raises ``DataError``)."""
    before: Any = held_by(context.state).get(COHORT_RECORD)
    if before is not None and before["digest"] != about["digest"]:
        for one in (path, path.with_suffix(_ABOUT)):
            one.unlink(missing_ok=True)
        raise cohort.unusable(
            "the rows of this run are gone, and the query gives others now: the node is out of "
            "the run, and takes part in the next"
        )


def _sweep(folder: Path, wanted: Path) -> None:
    """Remove the rows of other runs, and what a process that died has left."""
    known = time.time() - IDLE
    for file in folder.glob(f"*{_END}"):
        about = file.with_suffix(_ABOUT)
        with suppress(OSError):
            if not about.exists() or about.stat().st_mtime < known or file == wanted:
                file.unlink(missing_ok=True)
                about.unlink(missing_ok=True)
    for file in folder.glob(".*.tmp"):
        file.unlink(missing_ok=True)


def write_rows(cohort: NamedCohort, path: Path) -> int:
    """Write the rows of a cohort's query to a new file of its owner's alone; return how many.

    Raises
    ------
    DataError
        As `batches`, and where the file cannot be written.
    """
    from pyarrow import default_memory_pool, parquet

    count = 0

    def write(file: BinaryIO) -> None:
        nonlocal count
        rows = batches(cohort)
        first = next(rows)
        with parquet.ParquetWriter(file, first.schema) as writer:
            for batch in itertools.chain([first], rows):
                writer.write_batch(batch)
                count += batch.num_rows

    try:
        write_by(path, write)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", Told.STATE) from None
    default_memory_pool().release_unused()  # else what the batches took stays with the process
    mapped.trim()
    return count


def _of_file(config: Mapping[str, Any], cohort: NamedCohort, path: Path) -> dict[str, Any]:
    found = {**config, **cohort.keys, "dataset": "csv", "data-path": str(path)}
    found.pop("cohort", None)
    return found


@contextmanager
def _called(cohort: NamedCohort, path: Path) -> Iterator[None]:
    """Have errors name the cohort in place of its file."""
    try:
        yield
    except DataError as error:
        error.args = (str(error).replace(str(path), cohort.called),)
        raise


def _remove_left() -> None:
    """Remove temporary folders of this user's processes that died."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*-*"):
        process = re.match(rf"{_TEMPORARY}(\d+)-", folder.name)
        with suppress(OSError):
            if process and folder.lstat().st_uid == os.geteuid() and not _lives(int(process[1])):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
