"""The hosts of a Ray cluster: who is there, what they have, and whether they can run agents."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from privet.core import RunError
from privet.core.errors import listed
from privet.core.library import library_version

from .session import last_line

CHECK_PATIENCE = 120.0
"""Seconds a host may take to say what it has; its first worker is started for that."""
GIGABYTE = 1e9


class RayHost(NamedTuple):
    """A living host of the cluster.

    Attributes
    ----------
    id : str
        Ray's.
    address : str
        With the beginning of the id where several hosts have the same address.
    cpus, gpus : float
        As many as Ray hands out there.
    memory : float
        Bytes that Ray hands out there.
    """

    id: str
    address: str
    cpus: float
    gpus: float
    memory: float

    def __str__(self) -> str:
        gpus = f", {counted(self.gpus, 'GPU')}" if self.gpus else ""
        return (
            f"{self.address} ({counted(self.cpus, 'CPU')}{gpus}, {self.memory / GIGABYTE:.1f} GB)"
        )


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> counted(1, "CPU"), counted(2.5, "CPU"), counted(2, "process", "processes")
    ('1 CPU', '2.5 CPUs', '2 processes')
    """
    return f"{number:g} {noun if number == 1 else plural or noun + 's'}"


def living_hosts(ray: Any) -> dict[str, RayHost]:
    """Return the living hosts of the connected Ray by id."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    addresses = [str(node["NodeManagerAddress"]) for node in alive]
    hosts = {}
    for node, address in zip(alive, addresses, strict=True):
        has, name = node["Resources"], str(node["NodeID"])
        said = f"{address}/{name[:8]}" if addresses.count(address) > 1 else address
        figures = (float(has.get(kind, 0.0)) for kind in ("CPU", "GPU", "memory"))
        hosts[name] = RayHost(name, said, *figures)
    return hosts


def what_is_left(ray: Any, hosts: Iterable[RayHost]) -> str:
    """Return in words what `ray status` says: the living hosts, and the CPUs that are free."""
    left = list(hosts)
    free = ray.available_resources().get("CPU", 0.0)
    return f"{counted(len(left), 'host')} left: {listed(map(str, left))}; {free:g} CPUs free"


class WorkerEnvironment(NamedTuple):
    """What a process on a host has: Python and libraries by version, and the data path."""

    versions: dict[str, str]
    sees_data: bool

    def unlike(self, ours: WorkerEnvironment, data_path: str) -> str:
        """Return why it cannot run agents of ours; an empty text if it can."""
        for name, version_ in ours.versions.items():
            if self.versions.get(name) != version_:
                there = self.versions.get(name, "not there")
                return f"{name} {there}, here {version_}"
        if not self.sees_data:
            return f"no file at data-path {data_path}"
        return ""

    def __str__(self) -> str:
        return ", ".join(f"{name} {version_}" for name, version_ in self.versions.items())


def this_worker(data_path: str) -> WorkerEnvironment:
    """Return what this process has.

    ``data_path`` is the run config's; an empty one, and one on the hub, needs no file.
    """
    major, minor, _ = platform.python_version_tuple()
    versions = {"Python": f"{major}.{minor}", "privet": library_version()}
    for package in ("flwr", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    local = data_path and not data_path.startswith("hf:")
    return WorkerEnvironment(versions, not local or os.path.exists(data_path))


def check_hosts(
    ray: Any, hosts: Mapping[str, RayHost], data_path: str, say: Callable[[str], object]
) -> None:
    """Ask a process on every host what it has, and say so in a line for each.

    Parameters
    ----------
    ray : module
        Connected.
    data_path : str
        The run config's.
    say : callable
        Given a line for every host that can run agents.

    Raises
    ------
    RunError
        If a host cannot: the line names all of them, and why.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(this_worker)
    there = {name: NodeAffinitySchedulingStrategy(name, soft=False) for name in hosts}
    asked = {
        task.options(scheduling_strategy=where).remote(data_path): hosts[name]
        for name, where in there.items()
    }
    arrived, _ = ray.wait(list(asked), num_returns=len(asked), timeout=CHECK_PATIENCE)
    ours, unfit = this_worker("")._replace(sees_data=True), []
    for reference, host in asked.items():
        if reference not in arrived:
            unfit.append(f"{host.address}: no answer within {CHECK_PATIENCE:g} s")
            continue
        try:
            worker: WorkerEnvironment = ray.get(reference)
        except ray.exceptions.RayError as error:
            unfit.append(f"{host.address}: {last_line(error)}")
            continue
        if why := worker.unlike(ours, data_path):
            unfit.append(f"{host.address}: {why}")
        else:
            say(f"host {host}: {worker}")
    if unfit:
        raise RunError(
            f"{len(unfit)} of {len(hosts)} hosts cannot run agents: {'; '.join(unfit)}: install "
            "the same there, or give --ray-runtime-env"
        )
