"""Writing a report's files: nothing over a run's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privet.server_apps.report.runs import ReportError
from privet.wire.files import write_whole

PAGE = "report.html"
HISTORY = "history.jsonl"
SUMMARY = "summary.json"
_OWN = (HISTORY, SUMMARY, "privacy.json", "model.npz", "checkpoint.npz")


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write; ``option`` is what the user gave its path as."""

    option: str
    path: Path
    content: bytes
    is_page: bool = False


def write_outputs(outputs: Sequence[Output], folders: Sequence[Path]) -> None:
    """Write files, and the folders that are missing above them.

    Raises
    ------
    ReportError
        If a path is given twice, or is a file that one of the run ``folders`` was left with, which
        a page may be in place of only where that is a page. Nothing is written then.
    OSError
        If a file cannot be written.
    """
    taken = {
        folder.resolve() / name: f"{name} belongs to the run itself"
        for folder in folders
        for name in _OWN
    }
    pages = {folder.resolve() / PAGE: f"{PAGE} belongs to the run itself" for folder in folders}
    for output in outputs:
        path = output.path.resolve()
        why = taken.get(path) or (None if output.is_page else pages.get(path))
        if why:
            raise ReportError(f"{output.option} {output.path}: {why}")
        taken[path] = f"choose another file than {output.option}'s"
    for output in outputs:
        output.path.parent.mkdir(parents=True, exist_ok=True)
        if output.path.exists() and not output.path.is_file():  # such as /dev/stdout
            output.path.write_bytes(output.content)
        else:
            write_whole(output.path, output.content)
