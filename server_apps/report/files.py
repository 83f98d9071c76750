"""Write a report's files without overwriting the files of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from privet.core.files import write_named, write_whole

from .runs import HISTORY, SUMMARY, ReportUsageError

PAGE, STATEMENT = "report.html", "statement.html"
_RUN_FILES = (HISTORY, SUMMARY, "privacy.json", "model.npz", "checkpoint.npz", "table.json")
_SUFFIXES = {
    **dict.fromkeys(("--out", "--statement"), (".html", ".htm")),
    "--csv": (".csv",),
    "--parquet": (".parquet",),
    "--markdown": (".md",),
    "--latex": (".tex",),
}
"""Suffixes of a report's files, by command-line option."""


def write_outputs(outputs: Mapping[str, tuple[Path, bytes]], folders: Sequence[Path]) -> None:
    """Write the files, by option, and create their missing parent folders.

    Raises
    ------
    ReportUsageError
        If a path is given twice, would overwrite a file of one of the run ``folders`` (a page may
        replace an older page), or has the wrong suffix; nothing is written then. Also if a file
        cannot be written.
    """
    taken = {
        folder.resolve() / name: f"{name} belongs to the run itself"
        for folder in folders
        for name in _RUN_FILES
    }
    pages = {folder.resolve() / PAGE: f"{PAGE} belongs to the run itself" for folder in folders}
    for option, (path, _) in outputs.items():
        where, suffixes = path.resolve(), _SUFFIXES[option]
        why = taken.get(where) or (None if option == "--out" else pages.get(where))
        if path.suffix.lower() not in ("", *suffixes):
            why = why or f"expected a name in {' or '.join(suffixes)}"
        if why:
            raise ReportUsageError(f"{option} {path}: {why}")
        taken[where] = f"choose another file than {option}'s"
    own = {folder.resolve() for folder in folders}
    # The page last: a run whose page is there has written the rest (`RunFolder.has_ended`).
    for option, (path, content) in reversed(list(outputs.items())):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A folder that was handed on may hold a link to where nobody meant to write.
            write = write_whole if path.parent.resolve() in own else write_named
            write(path, content)
        except OSError as error:
            raise ReportUsageError(f"{option} {path}: {error.strerror}") from None
