"""One run of an app in Flower's Ray simulation, with nothing left behind.

``flwr run`` alone leaves a SuperLink running and exits with 0 even when the ServerApp raised. Here
the SuperLink is our own child on a port of its own, the SuperLink's verdict is what is returned,
and every process ends with the call, or else with this process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .keeper import Processes, free_ports, wait_until_listening
from .processes import ConfigValue, Verdict
from .run_config import overrides

NO_INSTALLATION = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class SimulationError(RuntimeError):
    """The run could not be started, or its SuperLink ended before it gave a verdict."""


def run_simulation(
    app_dir: Path | str,
    *,
    num_supernodes: int,
    run_config: Mapping[str, ConfigValue] | None = None,
    num_cpus: int = 2,
    flwr_home: Path | str | None = None,
    on_line: Callable[[str], None] = print,
) -> Verdict:
    """Run a Flower app in the Ray simulation and return the SuperLink's verdict.

    Parameters
    ----------
    app_dir : path
        Folder of the app's ``pyproject.toml``.
    num_supernodes : int
        How many nodes are simulated.
    run_config : mapping, optional
        Overrides of ``[tool.flwr.app.config]``.
    num_cpus : int
        How many client processes Ray starts, one CPU each.
    flwr_home : path, optional
        Flower's home, created when absent; its ``config.toml`` is overwritten. Without it, a
        temporary one is used and removed.
    on_line : callable
        Receives every line of the run's log, without colour codes, and of the SuperLink's own
        where the run failed.

    Raises
    ------
    SimulationError
        When the SuperLink does not start, ``flwr run`` refuses the app or its configuration, or
        the SuperLink ends during the run.
    """
    scratch = Path(tempfile.mkdtemp(prefix="privet-"))
    home = Path(flwr_home).resolve() if flwr_home else scratch / "flwr"
    home.mkdir(parents=True, exist_ok=True)
    command = _command(home, app_dir, num_supernodes, num_cpus, run_config or {})
    with Processes(_environment(home, scratch), scratch) as processes:
        completed = False
        try:
            verdict = _run(processes, home, command, on_line)
            completed = verdict.completed
        finally:
            if not completed:
                for line in _superlink_lines(home):
                    on_line(f"SuperLink: {line}")
    return verdict


def _command(
    home: Path,
    app_dir: Path | str,
    num_supernodes: int,
    num_cpus: int,
    run_config: Mapping[str, ConfigValue],
) -> list[str]:
    """Return the ``flwr run`` command, its overrides in a file where no shell rules apply."""
    federation = {
        "num-supernodes": num_supernodes,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": num_cpus,
    }
    command = ["flwr", "run", str(app_dir), "privet", "--stream", "--federation-config"]
    command.append(" ".join(f"{key}={value}" for key, value in federation.items()))
    if run_config:
        file = home / "run-config.toml"
        file.write_text(overrides(app_dir, run_config))
        command += ["--run-config", str(file)]
    return command


def _run(
    processes: Processes, home: Path, command: list[str], on_line: Callable[[str], None]
) -> Verdict:
    superlink, port = _start_superlink(processes, home)
    home.joinpath("config.toml").write_text(
        '[superlink]\ndefault = "privet"\n\n'
        f'[superlink.privet]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    flwr = processes.start(command)
    lines = deque[str](maxlen=500)
    for raw in flwr.stdout or ():
        lines.append(_COLOUR.sub("", raw).rstrip())
        on_line(lines[-1])
    flwr.wait()
    # The stream may break while the run goes on, so the verdict is asked for until it is there.
    while superlink.poll() is None:
        runs = _runs(processes)
        if not runs:
            raise SimulationError(f"flwr run did not start a run: {_refusal(lines)}")
        status = runs[0]["status"]
        if status.startswith("finished:"):
            details = runs[0]["status-details"].removeprefix("N/A")
            return Verdict(runs[0]["run-id"], status, details, "\n".join(lines))
        time.sleep(1.0)
    raise SimulationError(f"the SuperLink ended during the run: {_last_line(home)}")


def _refusal(lines: Iterable[str]) -> str:
    """Return the command's error, which it wraps in a box, in one line."""
    boxed = [line.strip("│ ") for line in lines if line.startswith("│")]
    return " ".join(boxed) or next((line for line in lines if line), "no output")


def _start_superlink(processes: Processes, home: Path) -> tuple[subprocess.Popen[str], int]:
    for _ in range(3):  # Another process may take the port between our look and the bind.
        (port,) = free_ports(1)
        command = ["flower-superlink", "--simulation", "--insecure", "--host", "127.0.0.1"]
        child = processes.start([*command, "--port", str(port)], home / "superlink.log")
        if wait_until_listening(child, port):
            return child, port
    raise SimulationError(f"the SuperLink did not start: {_last_line(home)}")


def _runs(processes: Processes) -> list[dict[str, str]]:
    """Return what the SuperLink knows; it is ours alone, so at most the one run."""
    done = processes.call(["flwr", "ls", "privet", "--format", "json"])
    try:
        answer: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    except ValueError:
        raise SimulationError(f"flwr ls: {done.stdout.strip()} {done.stderr.strip()}") from None
    return answer.get("runs", [])


def _environment(home: Path, scratch: Path) -> dict[str, str]:
    """Return the environment of a run: quiet, one BLAS thread each, no downloads unless set."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment |= {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        NO_INSTALLATION: os.environ.get(NO_INSTALLATION, "1"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Silences a warning of Ray that concerns machines with GPUs only.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Flower's actors have a runtime environment, so workers started in advance go unused.
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONUNBUFFERED": "1",
    }
    environment |= dict.fromkeys(_THREADS, "1")
    # Ray puts sockets below this folder, and a socket's path may have 107 bytes only.
    if len(os.fsencode(scratch)) <= 32:
        environment["RAY_TMPDIR"] = str(scratch)
    return environment


def _superlink_lines(home: Path) -> list[str]:
    """Return what the SuperLink has written so far."""
    log = home / "superlink.log"
    text = _COLOUR.sub("", log.read_text(errors="replace")) if log.exists() else ""
    return [line for line in text.splitlines() if line.strip()]


def _last_line(home: Path) -> str:
    return next(reversed(_superlink_lines(home)), "no output")
