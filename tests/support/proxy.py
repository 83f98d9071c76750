"""TCP proxies on loopback: they count the bytes they carry; one keeps these, one can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CountingProxy:
    """Carries connections from a port of its own to a target port.

    Attributes
    ----------
    port : int
        Where it listens.
    up, down : int
        Bytes carried so far towards the target and back from it.
    """

    def __init__(self, target_port: int) -> None:
        self.up = 0
        self.down = 0
        self._target_port = target_port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> CountingProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def total(self) -> tuple[int, int]:
        """Bytes up and down, read together."""
        with self._lock:
            return self.up, self.down

    def close(self) -> None:
        """Cut all connections and wait for the threads that carried them."""
        # shutdown, unlike close, wakes a thread that is blocked in accept or recv.
        with self._lock:
            for connection in (self._listener, *self._open):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            client.close()
            return
        with self._lock:
            self._open |= {client, server}
        both = _Countdown(client, server)
        for source, sink, upward in ((client, server, True), (server, client, False)):
            thread = threading.Thread(target=self._carry, args=(source, sink, upward, both))
            self._threads.append(thread)
            thread.start()

    def _note(self, data: bytes, upward: bool) -> None:
        if upward:
            self.up += len(data)
        else:
            self.down += len(data)

    def _carry(
        self, source: socket.socket, sink: socket.socket, upward: bool, both: _Countdown
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self._note(data, upward)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self._lock:
            if both.finished():
                self._open -= {source, sink}


class RecordingProxy(CountingProxy):
    """Keeps what it carries towards the target, of all connections, in the order it came."""

    def __init__(self, target_port: int) -> None:
        self._parts: list[bytes] = []
        super().__init__(target_port)

    @property
    def carried(self) -> bytes:
        """The bytes towards the target."""
        with self._lock:
            return b"".join(self._parts)

    def _note(self, data: bytes, upward: bool) -> None:
        super()._note(data, upward)
        if upward:
            self._parts.append(data)


class CuttableProxy(CountingProxy):
    """A link that can be cut and mended; while it is cut, connections end as soon as they begin.

    ``handshakes`` counts the connections that ended after the client's first words, which is how a
    TLS handshake is cut (`cut_handshakes`).
    """

    def __init__(self, target_port: int) -> None:
        self.handshakes = 0
        self._after_hello = False
        self._whole = threading.Event()
        self._whole.set()
        super().__init__(target_port)

    def cut_handshakes(self) -> None:
        """End all connections; new ones end once the client has begun its TLS handshake."""
        self._after_hello = True
        self.cut()

    def cut(self) -> None:
        """End all connections and let none begin."""
        self._whole.clear()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Carry connections again."""
        self._whole.set()
        self._after_hello = False

    def _serve(self, client: socket.socket) -> None:
        if self._whole.is_set():
            super()._serve(client)
            return
        with client, suppress(OSError):
            if self._after_hello and client.recv(1 << 16):
                self.handshakes += 1


class _Countdown:
    """Closes a pair of sockets when both directions are done."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets = sockets
        self._left = 2

    def finished(self) -> bool:
        self._left -= 1
        if self._left:
            return False
        for connection in self._sockets:
            connection.close()
        return True
