"""Flower's client goes through the proxy that the page on firewalls names, or past it."""

from __future__ import annotations

import socket
import threading

import httpx
import pytest
from flwr.supercore.protobuf.client import ProtobufClient

from support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "firewall.md").read_text()


def test_the_proxy_is_asked_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "HTTPS_PROXY=" in PAGE
    assert "`CONNECT`" in PAGE
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(60)

        def answer() -> None:
            connection, _ = proxy.accept()
            with connection:
                asked.append(connection.recv(4096))

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        client = ProtobufClient("https://fl.example.org:9092")
        with pytest.raises(httpx.RemoteProtocolError):
            client._client.get("https://fl.example.org:9092/")
        client._client.close()
        thread.join()
    assert asked[0].startswith(b"CONNECT fl.example.org:9092 ")


def test_flower_s_default_ports_are_those_of_the_page() -> None:
    from flwr.supercore import constant

    assert f"Flower's default is {constant.SUPERLINK_UVICORN_DEFAULT_PORT}" in PAGE
    assert f"{constant.SUPERNODE_UVICORN_DEFAULT_PORT} by default" in PAGE
