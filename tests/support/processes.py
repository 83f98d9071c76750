"""A real deployment on loopback: a SuperLink, its SuperNodes and runs, all ended by pid."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.keeper import Process, Processes, free_ports, wait_until_listening
from support.run_config import overrides
from support.tls import Certificates, make_node_key

ConfigValue = str | int | float | bool

LONG = 900.0
"""Seconds that only what hangs takes, on a busy machine too."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # How often a SuperLink and a SuperNode look for an app process to start; one second unasked.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": "", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0"}
"""Environment of a measured deployment: compiled files are kept, and Flower's own interval."""


class DeploymentError(AssertionError):
    """Something of the deployment did not happen in time, with the end of its log."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the SuperLink says of a finished run, and what the run printed."""

    run_id: str
    status: str
    details: str
    log: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


@dataclass(frozen=True, slots=True)
class Node:
    """A SuperNode: its process, where it writes its log, and what it was started with."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    command: tuple[str, ...]

    def node_id(self) -> int | None:
        """Return the id the SuperLink gave it, or None before it did."""
        found = re.findall(r"SuperNode ID: (\d+)", _read(self.log))
        return int(found[-1]) if found else None


class Run:
    """A submitted run, followed through the log that `flwr run --stream` writes to a file."""

    def __init__(self, deployment: Deployment, stream: subprocess.Popen[str], log: Path) -> None:
        self._deployment = deployment
        self._stream = stream
        self._log = log

    @property
    def run_id(self) -> str:
        """Flower's id, once the SuperLink has accepted the run."""
        return self.wait_for_line(r"Successfully started run (\d+)")[1]

    @property
    def ended(self) -> bool:
        """Whether the run is over; its stream also ends when its SuperLink is slow or restarted."""
        return self._stream.poll() is not None and self._entry()["status"].startswith("finished:")

    def _entry(self) -> dict[str, Any]:
        """Return what the SuperLink says of the run; asking takes seconds of the processor."""
        (entry,) = self._deployment.flwr("ls", "--run-id", self.run_id)["runs"]
        return dict(entry)

    def log(self) -> str:
        """Return what the run has printed so far."""
        return _read(self._log)

    def wait_for_line(self, pattern: str, timeout: float = LONG) -> re.Match[str]:
        """Wait until the run prints something that matches, the moment to break something."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(filter(None, [re.search(pattern, self.log())]))
            return bool(found) or self._stream.poll() is not None

        _until(look, timeout, f"no line {pattern!r} in the run's log", self._log)
        if not found:
            raise DeploymentError(f"the run ended without {pattern!r}:\n{self.log()[-3000:]}")
        return found[0]

    def stop(self) -> None:
        """Tell the SuperLink to stop the run; `wait` then returns at once."""
        self._deployment.flwr("stop", self.run_id)

    def wait(self, timeout: float = LONG) -> Verdict:
        """Wait until the run is over and return the SuperLink's verdict."""
        deadline = time.monotonic() + timeout
        run_id = self.run_id
        with suppress(subprocess.TimeoutExpired):
            self._stream.wait(timeout)
        # The stream also ends when its SuperLink is restarted; then the state has to be polled.
        while True:
            entry = self._entry()
            if (status := entry["status"]).startswith("finished:"):
                details = entry["status-details"].removeprefix("N/A")
                return Verdict(run_id, status, details, self.log())
            if time.monotonic() > deadline:
                raise DeploymentError(f"run {run_id} is {entry['status']}:\n{self.log()[-3000:]}")
            time.sleep(1.0)


class Deployment:
    """One SuperLink with its SuperNodes; a context manager that leaves no process behind.

    Parameters
    ----------
    home : Path
        Folder for Flower's home, logs and the database.
    certificates : Certificates, optional
        Use TLS and require that nodes authenticate; without them the deployment is insecure.
    environment : mapping, optional
        Added to the environment of every process.
    programs : Path, optional
        Folder of the SuperLink's and SuperNodes' programs, in an environment that has Flower
        alone: apps' dependencies are then installed for every run.
    """

    def __init__(
        self,
        home: Path,
        certificates: Certificates | None = None,
        environment: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        self.home = home
        self._programs = programs
        self.certificates = certificates
        self.nodes: dict[str, Node] = {}
        self.superlink: subprocess.Popen[str] | None = None
        (self.port,) = free_ports(1)
        extra = {"FLWR_HOME": str(home), **(environment or {})}
        self.processes = Processes({**os.environ, **_QUIET, **extra})
        self._submitted = len(list(home.glob("run-*.toml")))
        security = (
            f'root-certificates = "{certificates.authority}"' if certificates else "insecure = true"
        )
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "dep"\n\n'
            f'[superlink.dep]\naddress = "127.0.0.1:{self.port}"\n{security}\n'
        )

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.end()

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again on the same port and database."""
        command = [self._program("superlink"), "--host", "127.0.0.1", "--port", str(self.port)]
        if self._programs is None:
            command += ["--disable-runtime-dependency-installation"]
        command += ["--database", str(self.home / "state.db")]
        if tls := self.certificates:
            command += ["--ssl-ca-certfile", str(tls.authority), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(tls.certificate), "--ssl-keyfile", str(tls.key)]
        else:
            command += ["--insecure"]
        log = self.home / "superlink.log"
        self.superlink = self.processes.start(command, log)
        if not wait_until_listening(self.superlink, self.port):
            raise DeploymentError(f"the SuperLink does not listen:\n{_read(log)[-3000:]}")

    def kill_superlink(self) -> None:
        """Kill the SuperLink and its ServerApps at once, as a power cut would."""
        assert self.superlink is not None
        self.kill(*self.tree(self.superlink.pid))
        self.superlink.wait()

    def start_node(
        self,
        name: str,
        config: Mapping[str, ConfigValue],
        *,
        superlink_port: int | None = None,
        key: Path | None = None,
        program: Sequence[str] = (),
    ) -> Node:
        """Start a SuperNode without waiting for it; `wait_for_nodes` does.

        Parameters
        ----------
        name : str
            What tests call it; a name that ran before is started again.
        config : mapping
            Its node config.
        superlink_port : int, optional
            Another port than the SuperLink's own, such as a proxy's.
        key : Path, optional
            Its private key, of `register`.
        program : sequence of str
            What starts it in place of ``flower-supernode``.
        """
        (own,) = free_ports(1)
        command = [
            *(program or [self._program("supernode")]),
            "--host",
            "127.0.0.1",
            "--port",
            str(own),
        ]
        if self._programs:
            # A process that ends removes the environment that its home has of the run.
            own_home = self.home / f"home-{name}"
            own_home.mkdir(exist_ok=True)
            command = ["env", f"FLWR_HOME={own_home}", *command]
            command += ["--allow-runtime-dependency-installation"]
        command += ["--superlink", f"127.0.0.1:{superlink_port or self.port}"]
        command += ["--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
        if self.certificates:
            command += ["--root-certificates", str(self.certificates.authority)]
        else:
            command += ["--insecure"]
        if key:
            command += ["--auth-supernode-private-key", str(key)]
        return self._launch(name, tuple(command))

    def restart_node(self, name: str, timeout: float = LONG) -> Node:
        """Start a killed SuperNode as it was started before and wait for its id.

        A node with a key is refused, and its process ends, until the SuperLink has noticed that
        the old one is gone (a minute); so this tries again, as a supervisor would.
        """
        deadline = time.monotonic() + timeout
        while True:
            node = self._launch(name, self.nodes[name].command)
            try:
                self.wait_for_nodes()
            except DeploymentError:
                if node.process.poll() is None or time.monotonic() > deadline:
                    raise
                time.sleep(5.0)
            else:
                return node

    def kill_node(self, name: str) -> None:
        """Kill a SuperNode and its ClientApps at once."""
        process = self.nodes[name].process
        self.kill(*self.tree(process.pid))
        process.wait()

    def wait_for_nodes(self, timeout: float = LONG) -> None:
        """Wait until the SuperLink has given every started SuperNode its id."""
        for node in self.nodes.values():

            def ready(node: Node = node) -> bool:
                return node.node_id() is not None or node.process.poll() is not None

            _until(ready, timeout, f"SuperNode {node.name} got no id", node.log)
            if node.process.poll() is not None:
                raise DeploymentError(f"SuperNode {node.name} ended:\n{_read(node.log)[-3000:]}")

    def register(self, name: str) -> Path:
        """Admit a node by a new key, before it starts; return the private key's file."""
        key = make_node_key(self.home, f"node{name}")
        self.flwr("supernode", "register", str(key.with_suffix(".pub")))
        return key

    def submit(self, app_dir: Path, run_config: Mapping[str, ConfigValue]) -> Run:
        """Submit a run of an app without waiting for it."""
        self._submitted += 1
        file = self.home / f"run-{self._submitted}.toml"
        file.write_text(overrides(app_dir, run_config))
        command = ["flwr", "run", str(app_dir), "dep", "--stream", "--run-config", str(file)]
        log = file.with_suffix(".log")
        return Run(self, self.processes.start(command, log), log)

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command on this deployment and return its JSON answer."""
        done = self.processes.call(["flwr", *arguments, "dep", "--format", "json"])
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise DeploymentError(f"flwr {arguments}: {done.stdout}{done.stderr}") from None
        return answer

    def server_apps(self) -> list[Process]:
        """Return the ServerApp processes."""
        return [p for p in self.processes.alive() if "flwr-serverapp" in p.command]

    def client_apps(self, name: str) -> list[Process]:
        """Return the ClientApp processes of a node: one for each message it is working on."""
        ours = set(self.tree(self.nodes[name].process.pid))
        alive = self.processes.alive()
        return [p for p in alive if p.pid in ours and "flwr-clientapp" in p.command]

    def kill(self, *pids: int) -> None:
        """Send SIGKILL to processes of this deployment."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def tree(self, root: int) -> list[int]:
        """Return a process of this deployment and its descendants, the parents first."""
        alive = self.processes.alive()
        found = [root]
        for pid in found:  # The list grows while it is walked.
            found += [process.pid for process in alive if process.parent == pid]
        return found

    def _program(self, name: str) -> str:
        return str(self._programs / f"flower-{name}") if self._programs else f"flower-{name}"

    def _launch(self, name: str, command: tuple[str, ...]) -> Node:
        number = len(list(self.home.glob(f"node-{name}-*.log")))
        log = self.home / f"node-{name}-{number}.log"
        self.nodes[name] = Node(name, self.processes.start(command, log), log, command)
        return self.nodes[name]


def _read(log: Path) -> str:
    return _COLOUR.sub("", log.read_text(errors="replace")) if log.exists() else ""


def _until(condition: Callable[[], bool], timeout: float, what: str, log: Path) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise DeploymentError(f"{what} within {timeout:g} s:\n{_read(log)[-3000:]}")
        time.sleep(0.1)
