"""The tools the deployment tests stand on: counting proxy, certificates, start and end."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import Deployment
from support.proxy import CountingProxy
from support.tls import make_certificates, make_node_key

APP = ROOT / "tests" / "support" / "tiny_app"


def serve_once(listener: socket.socket, answer: bytes) -> threading.Thread:
    """Read one connection to its end, then answer with the number of bytes read and `answer`."""

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            count = 0
            while data := connection.recv(1 << 16):
                count += len(data)
            connection.sendall(b"%12d" % count + answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_proxy_carries_and_counts_every_byte_both_ways() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    sent, answer = b"u" * 3_000_001, b"d" * 1_000_003
    server = serve_once(listener, answer)
    with CountingProxy(listener.getsockname()[1]) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: client.recv(1 << 16), b""))
        server.join()
    assert received == b"%12d" % len(sent) + answer
    assert proxy.total == (len(sent), len(answer) + 12)


def test_closing_the_proxy_cuts_open_connections() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with CountingProxy(listener.getsockname()[1]) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port))
        server, _ = listener.accept()
        client.sendall(b"first")
        assert server.recv(16) == b"first"
    assert client.recv(16) == b""
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", proxy.port))
    for connection in (client, server, listener):
        connection.close()
    assert proxy.total == (5, 0)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_the_certificate_is_accepted_for_loopback(tmp_path: Path, name: str) -> None:
    made = make_certificates(tmp_path)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(made.certificate, made.key)
    theirs = ssl.create_default_context(cafile=str(made.authority))
    ends = (ssl.MemoryBIO(), ssl.MemoryBIO())
    server = ours.wrap_bio(ends[0], ends[1], server_side=True)
    client = theirs.wrap_bio(ends[1], ends[0], server_hostname=name)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"
    assert client.getpeercert()


def test_a_node_key_has_its_public_half_beside_it(tmp_path: Path) -> None:
    key = make_node_key(tmp_path, "node")
    assert key.stat().st_mode & 0o077 == 0
    derived = subprocess.check_output(["ssh-keygen", "-y", "-f", str(key)], text=True)
    public = key.with_suffix(".pub").read_text()
    assert public.split()[:2] == derived.split()[:2]
    assert public.startswith("ecdsa-sha2-nistp384 ")


@pytest.mark.slow
@pytest.mark.deployment
def test_a_deployment_with_tls_runs_breaks_and_leaves_no_process(tmp_path: Path) -> None:
    floats = 50_000
    with Deployment(tmp_path, make_certificates(tmp_path)) as deployment:
        deployment.start_superlink()
        with CountingProxy(deployment.port) as proxy:
            for number in range(2):
                key = make_node_key(tmp_path, f"key-{number}")
                deployment.register(key.with_suffix(".pub"))
                port = proxy.port if number == 0 else None
                config = {"partition-id": number}
                deployment.start_node(str(number), config, superlink_port=port, key=key)
            deployment.wait_for_nodes()
            before = proxy.total
            run = deployment.submit(APP, {"rounds": 1, "floats": floats})
            verdict = run.wait()
            down = proxy.total[1] - before[1]
            assert verdict.completed, verdict.log
            assert verdict.details == ""
            record = json.loads(verdict.log[verdict.log.index('{"round": 1') :].splitlines()[0])
            assert record["answers"] == [{"partition": p, "calls": 1} for p in range(2)]
            assert 8 * floats < down < 8 * floats + 60_000

            broken = deployment.submit(APP, {"rounds": 1000})
            broken.wait_for_line(r'"round": 1,')
            (server_app,) = deployment.server_apps()
            deployment.kill(server_app.pid)
            broken.stop()
            assert broken.wait().status == "finished:stopped"
            assert not deployment.server_apps()
            deployment.processes.end()
    mark = f"FLWR_HOME={tmp_path}".encode()
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and carries(int(pid), mark)]


def carries(pid: int, entry: bytes) -> bool:
    try:
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
