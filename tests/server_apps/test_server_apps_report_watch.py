"""A run in progress as a page: from its history alone, on this machine alone."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from privet.server_apps.report import ReportError
from privet.server_apps.report.watch import newest, served
from support.cli import privet
from support.reports import Page, rounds, run_folder


class Browser:
    """Asks the server for pages."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token

    def get(
        self, path: str = "/", host: str = "127.0.0.1", token: str | None = None
    ) -> tuple[HTTPResponse, str]:
        path = f"{path}?token={self.token if token is None else token}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "runs" / "first", rounds(3))


@pytest.fixture
def browser(folder: Path) -> Iterator[Browser]:
    with served(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Browser(server.server_port, server.token)
        server.shutdown()
        thread.join()


def write_round(folder: Path, line: dict[str, Any]) -> None:
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_the_page_follows_the_history_until_the_run_has_ended(
    folder: Path, browser: Browser
) -> None:
    answer, text = browser.get()
    assert (answer.status, Page(text).value(0, "rounds")) == (200, 3)
    assert '<meta http-equiv="refresh"' in text
    assert "The run has not ended" in text
    write_round(folder, rounds(4)[3])
    assert Page(browser.get()[1]).value(0, "rounds") == 4
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 5')  # a line that is being written
    assert Page(browser.get()[1]).value(0, "rounds") == 4
    (folder / "summary.json").write_text(json.dumps({"status": "completed"}))
    _, text = browser.get()
    assert '<meta http-equiv="refresh"' not in text
    assert "The run has not ended" not in text


def test_a_browser_that_leaves_before_the_page_is_sent_is_no_error(folder: Path) -> None:
    errors: list[object] = []
    with served(folder) as server:
        answered = server.process_request_thread
        done = threading.Semaphore(0)

        def finished(*request: Any) -> None:
            answered(*request)
            done.release()

        server.process_request_thread = finished  # type: ignore[method-assign]
        server.handle_error = lambda *_: errors.append(sys.exc_info()[1])  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for _ in range(3):
            with socket.create_connection(server.server_address) as left:
                left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                left.sendall(
                    f"GET /?token={server.token} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                )
            assert done.acquire(timeout=600)
        server.shutdown()
        thread.join()
    assert errors == []


def test_nothing_but_the_page_is_served_and_only_to_this_machine(browser: Browser) -> None:
    assert browser.get("/history.jsonl")[0].status == 404
    assert browser.get("/../first/history.jsonl")[0].status == 404
    assert browser.get(host="attacker.example")[0].status == 403
    assert browser.get(host="localhost:80")[0].status == 200


def test_the_page_is_for_who_has_the_token(folder: Path, browser: Browser) -> None:
    assert len(browser.token) >= 32
    for token in ("", browser.token[:-1], browser.token + "x", "%ff%00"):
        answer, text = browser.get(token=token)
        assert answer.status == 403
        assert "data-metric" not in text
    assert browser.get()[0].status == 200
    with served(folder) as another:
        assert another.token != browser.token
        assert another.url == f"http://127.0.0.1:{another.server_port}/?token={another.token}"


def test_a_history_that_cannot_be_read_is_said_on_the_page(folder: Path, browser: Browser) -> None:
    (folder / "history.jsonl").write_text("no json\n{}\n")
    _, text = browser.get()
    assert "line 1: not a round" in text
    assert "refresh" in text


def test_a_port_that_is_taken_is_named(folder: Path, browser: Browser) -> None:
    with (
        pytest.raises(ReportError, match=f"^port {browser.port}: Address already in use"),
        served(folder, browser.port),
    ):
        pass


def test_of_several_runs_the_newest_is_watched(folder: Path) -> None:
    other = run_folder(folder.parent / "second", rounds(1))
    assert newest(folder.parent) == other
    assert newest(folder) == folder
    with pytest.raises(ReportError, match="no run writes here"):
        newest(folder / "nothing")


def test_the_command_says_where_and_ends_with_ctrl_c(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("socketserver.BaseServer.serve_forever", stop)
    code, out, err = privet("watch", folder.parent)
    assert code == 130
    assert out.startswith(f"{folder}: http://127.0.0.1:")
    assert len(out.partition("/?token=")[2].strip()) >= 32
    assert err == "privet: interrupted; the run itself goes on\n"
