"""A Ray cluster of several hosts on this machine: a raylet each, killed and joined like hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from support.keeper import Processes, free_ports
from support.paths import ROOT

LONG = 300.0
"""Seconds that only what hangs takes, on a busy machine too."""
STORE = 100_000_000
"""Bytes of a host's object store."""


class RayHosts:
    """A head without CPUs, and hosts that join it; all end with the context.

    Attributes
    ----------
    address : str
        The cluster's, for ``--ray-address``.
    environment : dict of str to str
        Of everything that is started here.
    """

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._open = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="privet-", dir="/tmp"))
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "240",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            # As in test_sim_ray: https://github.com/ray-project/ray/issues/63202
            "GRPC_ENABLE_FORK_SUPPORT": "0",
        }
        self._hosts: list[Processes] = []

    def __enter__(self) -> RayHosts:
        self._open.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._start("--head", f"--port={self.address.rpartition(':')[2]}", cpus=0)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def join(self, cpus: int = 1) -> int:
        """Start a host and wait until the cluster has it; return its number."""
        return self._start(f"--address={self.address}", cpus=cpus)

    def kill(self, number: int) -> None:
        """End all processes of a host at once, as a power cut does."""
        while left := self._hosts[number].alive():
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to all processes of a host."""
        for process in self._hosts[number].alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, which)

    def _start(self, *options: str, cpus: int) -> int:
        number = len(self._hosts)
        host = self._open.enter_context(Processes(self.environment))
        self._hosts.append(host)
        log = self.folder / f"host-{number}.log"
        common = (f"--num-cpus={cpus}", f"--object-store-memory={STORE}", "--disable-usage-stats")
        command = ("ray", "start", *options, *common, "--block")
        of_head = (f"--temp-dir={self.folder}", "--include-dashboard=false")
        where = of_head if "--head" in options else ()
        child = host.start([*command, *where, "--node-ip-address=127.0.0.1"], log)
        deadline = time.monotonic() + LONG
        while "Ray runtime started" not in (log.read_text() if log.exists() else ""):
            if child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"host {number} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        return number

    def status(self) -> str:
        """Return what `ray status` prints."""
        command = ["ray", "status", f"--address={self.address}"]
        return self._hosts[0].call(command, LONG).stdout

    def run(self, *settings: str, log: Path) -> subprocess.Popen[str]:
        """Start ``privet run`` on the cluster."""
        options = ("--engine", "ray", "--ray-address", self.address)
        return self._hosts[0].start(["privet", "run", *options, *settings], log)
