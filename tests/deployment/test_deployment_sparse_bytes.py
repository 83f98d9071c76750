"""What a sparse and a dense reply cost at the sockets of a real SuperNode."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.processes import Deployment
from support.proxy import CountingProxy

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

REQUEST = re.compile(rb"(?:POST|GET) (\S+) HTTP/1\.1\r\n")
LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")
CONFIG: dict[str, Any] = {
    "algorithm": "fed-pdm",
    "dataset": "synthetic",
    "features": 7850,
    "examples-per-agent": 20,
    "intercept": "no",
    "dtype": "float32",
    "num-agents": 1,
    "partition": "iid",
    "regularizer": "nonconvex",  # no centralised optimum is sought
    "num-server-rounds": 3,
    "max-local-steps": 1,
    "round-timeout": 120.0,
}


class RequestProxy(CountingProxy):
    """Keeps the requests that pass upwards: when they began, their path and their size."""

    def __init__(self, target_port: int) -> None:
        self.streams: list[tuple[bytearray, list[tuple[int, float]]]] = []
        super().__init__(target_port)

    def _carry(self, source: socket.socket, sink: socket.socket, upward: bool, both: Any) -> None:
        data, times = bytearray(), []
        if upward:
            self.streams.append((data, times))
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                if upward:
                    times.append((len(data), time.monotonic()))
                    data += chunk
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self._lock:
            if both.finished():
                self._open -= {source, sink}

    def requests(self) -> list[tuple[float, str, int]]:
        """Return all requests so far, oldest first."""
        found = []
        for data, times in list(self.streams):
            raw, at = bytes(data), 0
            while match := REQUEST.match(raw, at):
                end = raw.index(b"\r\n\r\n", at) + 4
                length = LENGTH.search(raw, at, end)
                size = end - at + (int(length.group(1)) if length else 0)
                began = max(when for offset, when in times if offset <= at)
                found.append((began, match.group(1).decode(), size))
                at += size
        return sorted(found)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: Any) -> Iterator[tuple[Deployment, RequestProxy]]:
    """One node whose every byte passes a proxy."""
    with Deployment(tmp_path_factory.mktemp("bytes")) as running:
        running.start_superlink()
        with RequestProxy(running.port) as proxy:
            node = {"partition-id": 0, "num-partitions": 1}
            running.start_node("0", node, superlink_port=proxy.port)
            running.wait_for_nodes()
            yield running, proxy


def bytes_of_a_reply(
    running: Deployment, proxy: RequestProxy, folder: Path, **config: Any
) -> float:
    """Return the mean size of the TRAIN replies of a run, HTTP headers included."""
    begin = time.monotonic()
    run = running.submit(ROOT, {**CONFIG, **config, "output-dir": str(folder)})
    verdict = run.wait()
    assert verdict.completed, verdict.details
    pushed = [
        (path, size) for when, path, size in proxy.requests() if when > begin and "/push-" in path
    ]
    first_of = [i for i, (path, _) in enumerate(pushed) if path.endswith("/push-messages")]
    assert len(first_of) == 1 + 3  # the answer to the enrolment question, then three rounds
    return sum(size for _, size in pushed[first_of[1] :]) / 3


def test_a_tenth_of_the_coordinates_costs_less_than_a_quarter(
    deployment: tuple[Deployment, RequestProxy], tmp_path: Path
) -> None:
    sparse = bytes_of_a_reply(*deployment, tmp_path, **{"sparsifier": "top-k", "alpha-u": 0.1})
    dense = bytes_of_a_reply(*deployment, tmp_path)
    assert sparse <= 8700
    assert dense >= 4.2 * sparse
    print(f"sparse {sparse:.0f} B, dense {dense:.0f} B, ratio {dense / sparse:.2f}")
