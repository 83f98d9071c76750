"""Start and end Ray, in one place.

A local Ray is a handful of processes with temporary files: both are gone when the session ends.
With an address nothing is started and nothing but the connection ends. Ray itself is imported when
a session opens, so that everything else works without it.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from privet.core import ConfigError, RunError
from privet.core.errors import one_line

LONGEST_FOLDER = 32
"""Ray puts sockets below its folder, and a socket's path may have 107 bytes only."""

CONNECT_PATIENCE = 10.0
"""Seconds a cluster may take to accept a connection."""

EXIT_PATIENCE = 10.0
"""Seconds to wait for the exit of a process of Ray that was terminated."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Silences a warning of Ray that concerns machines with GPUs only.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LOCAL_ENVIRONMENT = {
    **_ENVIRONMENT,
    # The events of all calls of the last second, several MB of them, would wait in every process
    # for a dashboard that is not there.
    "RAY_task_events_report_interval_ms": "0",
}


def import_ray() -> Any:
    """Return the ``ray`` module (raises ``ConfigError`` where it is not installed)."""
    try:
        # Ray prints the output of its daemon to stdout, where results go. A failure also raises an
        # error, so that nothing is lost.
        with _environment({"RAY_DEDUP_LOGS_SKIP_REGEX": "."}):
            import ray
    except ImportError:
        raise ConfigError(
            "Ray is not installed: pip install 'flwr-privet[simulation]', or use the inline engine"
        ) from None
    return ray


@contextmanager
def ray_session(
    *,
    address: str | None = None,
    num_cpus: int | None = None,
    runtime_env: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """Yield the connected ``ray`` module; end what was started here and nothing else.

    Inside another session, or where the caller has connected to Ray already, that connection is
    used and left as it is.

    Parameters
    ----------
    address : str, optional
        A running cluster, ``host:port`` or, through Ray Client, ``ray://host:port``; its nodes
        need this library installed. Where Ray Client is refused because "Starting Ray client
        server failed" (Ray's issue 63202), start the head with GRPC_ENABLE_FORK_SUPPORT=0. By
        default a local Ray is started, whatever ``RAY_ADDRESS`` says.
    num_cpus : int, optional
        Processes that a local Ray runs at a time; one per core by default.
    runtime_env : mapping, optional
        Ray's, for all processes of the session.

    Raises
    ------
    ConfigError
        If Ray is not installed, or a ``runtime_env`` is given to a connection that is there.
    RunError
        If Ray does not start, or there is no cluster at the address.
    """
    ray = import_ray()
    if ray.is_initialized():
        if runtime_env:
            raise ConfigError("runtime_env: Ray is connected already; give it to ray.init")
        yield ray
        return
    folder = None if address else _short_folder()
    try:
        with _environment(_ENVIRONMENT if address else _LOCAL_ENVIRONMENT):
            _connect(ray, address, num_cpus, folder, runtime_env)
        yield ray
    finally:
        started = _processes(ray)
        ray.shutdown()
        for process in started:  # which Ray kills without waiting for their end
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_PATIENCE)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _processes(ray: Any) -> list[subprocess.Popen[bytes]]:
    """Return the processes of a Ray that was started here."""
    node = ray._private.worker._global_node
    kinds = () if node is None else node.all_processes.values()
    return [each.process for kind in kinds for each in kind]


def last_line(error: Exception) -> str:
    """Return the last line of a Ray error, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)


def is_connected() -> bool:
    """Return whether a Ray session is open in this process, without importing Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def cluster_cpus(ray: Any) -> int:
    """Return the number of processes the connected Ray runs at a time, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def cluster_gpus(ray: Any) -> list[float]:
    """Return the number of GPUs of each machine of the connected Ray that has some."""
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [gpus for each in alive if (gpus := each.get("GPU", 0.0)) > 0]


def local_cpus() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _connect(
    ray: Any,
    address: str | None,
    num_cpus: int | None,
    folder: str | None,
    runtime_env: Mapping[str, Any] | None,
) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    if folder is not None:
        options |= {
            "num_cpus": num_cpus or local_cpus(),
            "include_dashboard": False,
            "_temp_dir": folder,
        }
    try:
        if address:
            _require_listener(address)
        ray.init(address=address or "local", **options)
    except Exception as error:  # Ray raises a plain one where its processes start too slowly
        where = f"no Ray cluster at {address}" if address else "Ray did not start"
        raise RunError(f"{where}: {one_line(str(error))}") from None


def _require_listener(address: str) -> None:
    """Raise ``OSError`` where nobody listens; Ray itself takes minutes to find out."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_PATIENCE).close()


def _short_folder() -> str:
    folder = tempfile.mkdtemp(prefix="privet-")
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="privet-", dir="/tmp")
    return folder


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
