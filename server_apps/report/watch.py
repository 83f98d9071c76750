"""Serve the report of a run in progress on this machine, rebuilt as its history grows."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from privet.core.errors import near_path
from privet.core.format import text

from .assemble import page
from .runs import (
    HISTORY,
    SUMMARY,
    ReportError,
    ReportUsageError,
    read_runs,
)

REFRESH = 3
"""Seconds between reloads by the browser, until the run has ended."""
LOCAL = ("127.0.0.1", "localhost")


class PageServer(ThreadingHTTPServer):
    """A server of one page, which only who has the token may read."""

    token = ""

    @property
    def url(self) -> str:
        """The page's address, with the token."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"


def newest(folder: Path) -> Path:
    """Return the folder itself if it is a run folder, else the last written one below it.

    Raises
    ------
    ReportUsageError
        If there is no history in it or below it.
    """
    candidates = [folder / HISTORY, *folder.glob(f"*/{HISTORY}")]
    written = [path for path in candidates if path.is_file()]
    if not written:
        raise ReportUsageError(
            f"{folder}: no run writes here; expected {HISTORY}, or a folder with it"
            f"{near_path(folder)}"
        )
    if written[0] == folder / HISTORY:
        return folder
    return max(written, key=lambda path: path.stat().st_mtime).parent


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[PageServer]:
    """Serve the report of a run folder on 127.0.0.1; the caller runs ``serve_forever``.

    It is reachable from this machine only, and with the token in `PageServer.url` only: other users
    of the machine cannot read run folders either. A request that names another host is refused, so
    that pages of other sites cannot read it.

    Raises
    ------
    ReportError
        If the port is taken.
    """

    token = secrets.token_urlsafe(24)

    class Handler(BaseHTTPRequestHandler):
        made: tuple[object, bytes] = (None, b"")

        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in LOCAL:
                self.send_error(403)
            elif urlsplit(self.path).path != "/":
                self.send_error(404)
            elif not self.has_token():
                self.send_error(403, "the address that privet watch printed has a token")
            else:
                body = self.report()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)

        def has_token(self) -> bool:
            given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
            return secrets.compare_digest(given.encode(), token.encode())

        def handle(self) -> None:
            with suppress(ConnectionError):  # a browser that reloads or leaves before the end
                super().handle()

        def report(self) -> bytes:
            """Return the page, rendered again if the run has written since."""
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
            """Do not log requests to the terminal."""

    try:
        made = PageServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ReportError(f"port {port}: {error.strerror}") from None
    made.token = token
    with made as server:
        yield server
