"""Writing a report's files: nothing over a run's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privet.server_apps.report.runs import ReportError
from privet.wire.files import write_whole

PAGE = "report.html"
PAGES = (".html", ".htm")
HISTORY = "history.jsonl"
SUMMARY = "summary.json"
_OWN = (HISTORY, SUMMARY, "privacy.json", "model.npz", "checkpoint.npz")


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write; ``option`` is what the user gave its path as."""

    option: str
    path: Path
    content: bytes
    suffixes: tuple[str, ...] = PAGES

    @property
    def is_page(self) -> bool:
        """Whether it may be in place of a run's own page."""
        return self.suffixes == PAGES


def write_outputs(outputs: Sequence[Output], folders: Sequence[Path]) -> None:
    """Write files, and the folders that are missing above them.

    Raises
    ------
    ReportError
        If a path is given twice, or is a file that one of the run ``folders`` was left with, which
        a page may be in place of only where that is a page, or its name says that it is of another
        kind: nothing is written then. And if a file cannot be written.
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
        if output.path.suffix.lower() not in ("", *output.suffixes):
            why = why or f"expected a name in {' or '.join(output.suffixes)}"
        if why:
            raise ReportError(f"{output.option} {output.path}: {why}")
        taken[path] = f"choose another file than {output.option}'s"
    for output in outputs:
        try:
            output.path.parent.mkdir(parents=True, exist_ok=True)
            if output.path.exists() and not output.path.is_file():  # such as /dev/stdout
                output.path.write_bytes(output.content)
            else:
                write_whole(output.path, output.content)
        except OSError as error:
            raise ReportError(f"{output.option} {output.path}: {error.strerror}") from None
