"""One Flower simulation from the command line, with nothing left behind.

``flwr run`` alone leaves a SuperLink running and exits with 0 even when the ServerApp raised. Here
the SuperLink is our own child on a port of its own, the SuperLink's verdict is what is returned,
and every process ends with the call.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from privet.core import ConfigError
from privet.sim.processes import Processes, free_ports, wait_until_listening

ConfigValue = str | int | float | bool

_BARE = re.compile(r"[\w-]+", re.ASCII)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Killed)\b.*: .")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_COMPLETED = "finished:completed"


class FlowerRunError(RuntimeError):
    """The run could not be started, or its SuperLink ended before it gave a verdict."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the SuperLink says of a run.

    Attributes
    ----------
    run_id : str
        Flower's id of the run.
    status : str
        ``"finished:completed"``, ``"finished:failed"`` or ``"finished:stopped"``.
    details : str
        Why it failed, in Flower's words; empty where it gives none.
    seconds : float
        Wall time from the start of the SuperLink to the verdict.
    """

    run_id: str
    status: str
    details: str
    seconds: float

    @property
    def completed(self) -> bool:
        """Whether the ServerApp returned without an error."""
        return self.status == _COMPLETED


def run_simulation(
    app_dir: Path | str,
    *,
    num_supernodes: int,
    run_config: Mapping[str, ConfigValue] | None = None,
    num_cpus: int = 2,
    flwr_home: Path | str | None = None,
    on_line: Callable[[str], None] = print,
) -> Outcome:
    """Run a Flower app in the Ray simulation and return the SuperLink's verdict.

    All processes are children of this one; they are gone when the function returns or raises,
    also on Ctrl-C, SIGTERM and SIGHUP.

    Parameters
    ----------
    app_dir : path
        Folder of the app's ``pyproject.toml``.
    num_supernodes : int
        How many nodes are simulated.
    run_config : mapping, optional
        Overrides of ``[tool.flwr.app.config]``; a key that is not there is refused.
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
    FlowerRunError
        When the SuperLink does not start, ``flwr run`` refuses the app or its configuration, or
        the SuperLink ends during the run.
    """
    with _raising_signals():
        scratch = Path(tempfile.mkdtemp(prefix="privet-"))
        home = Path(flwr_home).resolve() if flwr_home else scratch / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        processes = Processes(_environment(home, scratch), scratch)
        try:
            command = _command(home, app_dir, num_supernodes, num_cpus, run_config or {})
            try:
                outcome = _run(processes, home, command, on_line)
            except FlowerRunError:
                _tell(home, on_line)
                raise
            if not outcome.completed:
                _tell(home, on_line)
            return outcome
        finally:
            with _ignoring_signals():
                processes.end()


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
        _check_keys(Path(app_dir, "pyproject.toml"), run_config)
        overrides = home / "run-config.toml"
        overrides.write_text(toml(run_config))
        command += ["--run-config", str(overrides)]
    return command


def _check_keys(pyproject: Path, run_config: Mapping[str, ConfigValue]) -> None:
    """Refuse unknown keys by name, which Flower's own refusal does not (raises ``ConfigError``)."""
    try:
        known = tomllib.loads(pyproject.read_text())["tool"]["flwr"]["app"].get("config", {})
    except (OSError, ValueError, KeyError, AttributeError):
        raise ConfigError(f"{pyproject}: expected a Flower app's pyproject.toml") from None
    for key in run_config:
        if key not in known:
            raise ConfigError(f"run config {key!r} is not a key of {pyproject}: {sorted(known)}")


def _run(
    processes: Processes, home: Path, command: list[str], on_line: Callable[[str], None]
) -> Outcome:
    start = time.monotonic()
    superlink, port = _start_superlink(processes, home)
    home.joinpath("config.toml").write_text(
        '[superlink]\ndefault = "privet"\n\n'
        f'[superlink.privet]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    flwr = processes.start(command)
    lines = deque[str](maxlen=20)
    for raw in flwr.stdout or ():
        lines.append(_COLOUR.sub("", raw).rstrip())
        on_line(lines[-1])
    flwr.wait()
    # The stream may break while the run goes on, so the verdict is asked for until it is there.
    while superlink.poll() is None:
        runs = _runs(processes)
        if not runs:
            raise FlowerRunError(f"flwr run did not start a run: {_refusal(lines)}")
        status = runs[0]["status"]
        if status.startswith("finished:"):
            details = runs[0]["status-details"].removeprefix("N/A")
            return Outcome(runs[0]["run-id"], status, details, time.monotonic() - start)
        time.sleep(1.0)
    raise FlowerRunError(f"the SuperLink ended during the run: {_last_line(home)}")


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
    raise FlowerRunError(f"the SuperLink did not start: {_last_line(home)}")


def _runs(processes: Processes) -> list[dict[str, str]]:
    """Return what the SuperLink knows; it is ours alone, so at most the one run."""
    done = processes.call(["flwr", "ls", "privet", "--format", "json"])
    try:
        answer: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    except ValueError:
        raise FlowerRunError(f"flwr ls: {done.stdout.strip()} {done.stderr.strip()}") from None
    return answer.get("runs", [])


def _environment(home: Path, scratch: Path) -> dict[str, str]:
    """Return the environment of a run: quiet, without downloads, one BLAS thread each."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment |= {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
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


def toml(config: Mapping[str, ConfigValue]) -> str:
    """Return a flat TOML document; JSON's scalars are TOML's, infinities and nan apart."""
    return "".join(
        f"{key if _BARE.fullmatch(key) else _scalar(key)} = "
        f"{value if isinstance(value, float) else _scalar(value)}\n"
        for key, value in config.items()
    )


def _scalar(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)


def _superlink_lines(home: Path) -> list[str]:
    """Return what the SuperLink has written so far."""
    log = home / "superlink.log"
    text = _COLOUR.sub("", log.read_text(errors="replace")) if log.exists() else ""
    return [line for line in text.splitlines() if line.strip()]


def _last_line(home: Path) -> str:
    return next(reversed(_superlink_lines(home)), "no output")


def _tell(home: Path, on_line: Callable[[str], None]) -> None:
    for line in _superlink_lines(home):
        on_line(f"SuperLink: {line}")


def cause_of(lines: Iterable[str]) -> str:
    """Return the line of a log that says why a run failed, empty where none does.

    It is what this library says of a failure it understands, else the first error of a traceback:
    those that follow are what came of it.
    """
    errors = []
    for line in lines:
        text = line.strip()
        if "run failed: " in text:
            return text.partition("run failed: ")[2]
        if _RAISED.match(text):
            errors.append(text)
    return errors[0] if errors else ""


@contextmanager
def _raising_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `finally` runs, as for Ctrl-C."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handlers({signal.SIGTERM: leave, signal.SIGHUP: leave}):
        yield


@contextmanager
def _ignoring_signals() -> Iterator[None]:
    ignore = signal.SIG_IGN
    with _handlers({signal.SIGINT: ignore, signal.SIGTERM: ignore, signal.SIGHUP: ignore}):
        yield


@contextmanager
def _handlers(
    handlers: Mapping[signal.Signals, signal.Handlers | Callable[..., None]],
) -> Iterator[None]:
    # Only the main thread may set handlers; elsewhere the caller's thread is not interrupted.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
