"""Writing a report's files: all of them or none, and nothing over a run's own files."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from privet.server_apps.report.json import ReportError

PAGE = "report.html"
_OWN = ("history.jsonl", "summary.json", "privacy.json", "model.npz", "checkpoint.npz")


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write; ``option`` is what the user gave its path as."""

    option: str
    path: Path
    content: bytes
    is_page: bool = False


def write_outputs(outputs: Sequence[Output], folders: Sequence[Path]) -> None:
    """Write files beside their targets, then put each in its place.

    A device or a pipe is written to as it is.

    Parameters
    ----------
    outputs : sequence of Output
        Missing folders of theirs are made.
    folders : sequence of path
        The run folders that the report is of.

    Raises
    ------
    ReportError
        If a path is a folder, given twice, or a file that a run left behind, which a page may be
        in place of only where that is a page; or if a file cannot be written.
    """
    for position, output in enumerate(outputs):
        _check(output, outputs[:position], folders)
    staged: list[tuple[Output, Path]] = []
    try:
        for output in outputs:
            with _failing_as(output):
                output.path.parent.mkdir(parents=True, exist_ok=True)
                if _is_file_to_be(output.path):
                    temporary = output.path.resolve().with_name(f".privet-{secrets.token_hex(6)}")
                    staged.append((output, temporary))
                    _write(temporary, output.content)
        for output in outputs:
            with _failing_as(output):
                if not _is_file_to_be(output.path):
                    output.path.write_bytes(output.content)
        for output, temporary in staged:
            with _failing_as(output):
                temporary.replace(output.path.resolve())
    finally:
        for _, temporary in staged:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _check(output: Output, earlier: Sequence[Output], folders: Sequence[Path]) -> None:
    with _failing_as(output):
        with contextlib.suppress(FileNotFoundError):
            output.path.stat()  # links that lead to themselves fail here; resolve may pass them
        if output.path.is_dir():
            raise ReportError(f"{_named(output)}: expected a file to write, found a folder")
        for other in earlier:
            if _same(output.path, other.path):
                raise ReportError(f"{_named(output)}: expected another file than {other.option}'s")
        names = _OWN if output.is_page else (*_OWN, PAGE)
        for folder in folders:
            for name in names:
                if _same(output.path, folder / name):
                    raise ReportError(f"{_named(output)}: {name} is the run's own file")


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _is_file_to_be(path: Path) -> bool:
    return path.is_file() or not path.exists()


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _failing_as(output: Output) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(f"{_named(output)}: {error.strerror or error}") from None


def _named(output: Output) -> str:
    return f"{output.option} {output.path}"
