"""What measures bytes in the deployment tests counts them all."""

from __future__ import annotations

import socket
import threading

from support.proxy import CountingProxy


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
