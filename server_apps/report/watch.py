"""The report of a run in progress, on this machine alone: made anew from the history it writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from privet.server_apps.report.assemble import page
from privet.server_apps.report.format import text
from privet.server_apps.report.runs import HISTORY, SUMMARY, NoRunError, ReportError, read_runs

REFRESH = 3
"""Seconds after which a browser looks again, until the run has ended."""
LOCAL = ("127.0.0.1", "localhost")


def newest(folder: Path) -> Path:
    """Return the run folder that is meant: itself, or the one below it that was last written to.

    Raises
    ------
    NoRunError
        If there is no history in it or below it.
    """
    found = [folder / HISTORY, *folder.glob(f"*/{HISTORY}")]
    written = [path for path in found if path.is_file()]
    if not written:
        raise NoRunError(f"{folder}: no run writes here; expected {HISTORY}, or a folder with it")
    if written[0] == folder / HISTORY:
        return folder
    return max(written, key=lambda path: path.stat().st_mtime).parent


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """Serve the report of a run folder on 127.0.0.1; the caller runs ``serve_forever``.

    Only who is on this machine reaches it, and a page of another site cannot have it read: a
    request that names another host is refused.

    Raises
    ------
    ReportError
        If the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        made: tuple[object, bytes] = (None, b"")

        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in LOCAL:
                self.send_error(403)
            elif self.path != "/":
                self.send_error(404)
            else:
                body = self.report()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

        def handle(self) -> None:
            with suppress(ConnectionError):  # a browser that reloads or leaves before the end
                super().handle()

        def report(self) -> bytes:
            """Return the page, rendered again where the run has written since."""
            files = [folder / name for name in (HISTORY, SUMMARY)]
            state = [(one.stat().st_mtime_ns, one.stat().st_size) for one in files if one.exists()]
            if Handler.made[0] != state:
                try:
                    ended = files[1].exists()
                    body = page(read_runs([folder]), refresh=0 if ended else REFRESH)
                except ReportError as error:
                    refresh = f'<meta http-equiv="refresh" content="{REFRESH}">'
                    return f"<!doctype html>{refresh}<p>{text(error)}</p>".encode()
                Handler.made = (state, body)
            return Handler.made[1]

        def log_message(self, *_: object) -> None:
            """Keep the terminal for what the user asked."""

    try:
        made = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ReportError(f"port {port}: {error.strerror}") from None
    with made as server:
        yield server
