"""Writing a report's files: nothing over a run's own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from privet.core.files import write_whole
from privet.server_apps.report.runs import HISTORY, SUMMARY, ReportError

PAGE = "report.html"
_OWN = (HISTORY, SUMMARY, "privacy.json", "model.npz", "checkpoint.npz")
_SUFFIXES = {"--out": (".html", ".htm"), "--csv": (".csv",), "--parquet": (".parquet",)}
"""How the names of a report's files end, by the option that a user gives them with."""


def write_outputs(outputs: Mapping[str, tuple[Path, bytes]], folders: Sequence[Path]) -> None:
    """Write files, by option, and the folders that are missing above them.

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
    for option, (path, _) in outputs.items():
        where, suffixes = path.resolve(), _SUFFIXES[option]
        why = taken.get(where) or (None if option == "--out" else pages.get(where))
        if path.suffix.lower() not in ("", *suffixes):
            why = why or f"expected a name in {' or '.join(suffixes)}"
        if why:
            raise ReportError(f"{option} {path}: {why}")
        taken[where] = f"choose another file than {option}'s"
    for option, (path, content) in outputs.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # such as /dev/stdout
                path.write_bytes(content)
            else:
                write_whole(path, content)
        except OSError as error:
            raise ReportError(f"{option} {path}: {error.strerror}") from None
