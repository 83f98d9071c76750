"""Hosts of a Ray cluster that die, join and are stopped: raylets of this machine.

They are slow: a raylet takes ten seconds to start.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privet.client_apps import client_app
from privet.core import RunError
from privet.sim.engine import InlineGrid
from privet.sim.ray import batches
from privet.sim.ray.engine import RayGrid
from privet.sim.ray.session import ray_session
from privet.strategies import FedPDM
from support.federations import bits, logistic_agents, position, zeros
from support.keeper import Marked
from support.paths import ROOT
from support.ray_hosts import LONG, STORE, RayHosts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

AGENTS, DIM, ROUNDS = 6, 30, 12
PROBLEMS = logistic_agents(AGENTS, dim=DIM)
NAMES = tuple(map(str, range(AGENTS)))
OPTIONS: dict[str, Any] = {"num_agents": AGENTS, "max_local_steps": 3, "dual": "private"}


@pytest.fixture
def make_app() -> Any:
    """Return a factory that is sent by value: the workers cannot import this module."""
    problems = PROBLEMS

    def make() -> Any:
        return client_app(None, lambda context: problems[position(context)])

    return make


def wait_for_a_process_on(grid: RayGrid, count: int) -> None:
    """Wait until the actors are on so many hosts."""
    deadline = time.monotonic() + LONG
    while len({seat.host for seat in grid._actors.seats}) != count:
        assert time.monotonic() < deadline
        time.sleep(1.0)
        list(grid.get_node_ids())


def add_host(cluster: Any, num_cpus: int = 1, **options: Any) -> Any:
    """Add a host; Ray gives it up after 30 s, in which a busy machine may not start it."""
    for left in (2, 1, 0):
        try:
            return cluster.add_node(num_cpus=num_cpus, object_store_memory=STORE, **options)
        except Exception as error:
            if "timed out during startup" not in str(error) or not left:
                raise
    raise AssertionError("Ray has not started a host")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a cluster of one host with one CPU, beside a head without any."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "240")
    mark = f"PRIVET_PROCESS_{secrets.token_hex(8)}"
    monkeypatch.setenv(mark, "1")  # what Ray starts has it: a host that it gives up stays otherwise
    made = Cluster()
    try:
        add_host(made, num_cpus=0, include_dashboard=False)
        add_host(made)
        yield made
    finally:
        made.shutdown()
        Marked(mark).end()


def test_hosts_join_and_die_and_the_bits_are_those_of_one_process(
    cluster: Any, make_app: Any, tmp_path: Path, caplog: Any
) -> None:
    """Agents move to a host that joined without losing what only they know.

    A host that dies between two rounds costs its agents none: the checkpoint has their states.
    """
    caplog.set_level("INFO")
    joined: list[Any] = []
    with ray_session(address=cluster.address), RayGrid(make_app, AGENTS) as grid:

        def change(done: Any, strategy: Any) -> None:
            if done.round == 4:
                joined.append(add_host(cluster))
                wait_for_a_process_on(grid, 2)
            if done.round == 8:
                cluster.remove_node(joined[0], allow_graceful=False)
                wait_for_a_process_on(grid, 1)

        ours = FedPDM(**OPTIONS).start(
            grid,
            zeros(DIM),
            num_rounds=ROUNDS,
            observers=[change],
            checkpoint=tmp_path / "run.npz",
        )
    alone = FedPDM(**OPTIONS).start(InlineGrid(make_app(), AGENTS), zeros(DIM), num_rounds=ROUNDS)
    assert bits(ours) == bits(alone)
    assert [done.participants for done in ours.history] == [NAMES] * ROUNDS
    assert "3 agents moved to a new process on" in caplog.text
    assert "3 agents of process 2, whose states are lost, go to 1 process" in caplog.text
    given = [name for done in ours.history for name in done.notes if "from the checkpoint" in name]
    assert len(given) == 3


def test_what_all_hosts_are_sent_is_put_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by actors that share no memory with this process, as those on other machines."""

    def echo() -> Any:
        return lambda message, context: Message(message.content, reply_to=message)

    add_host(cluster)
    monkeypatch.setattr(batches.Arena, "__init__", _no_arena)
    size = 4 * batches.CROSSES_ONCE
    with ray_session(address=cluster.address) as ray, RayGrid(echo, 6) as grid:
        put: list[int] = []
        usual = ray.put
        monkeypatch.setattr(ray, "put", lambda value: put.append(len(value)) or usual(value))
        model = ConfigRecord({"payload": os.urandom(size)})
        messages = [Message(RecordDict({"all": model}), n, "train") for n in grid.node_configs]
        replies = list(grid.send_and_receive(messages, timeout=LONG))
        assert len({seat.host for seat in grid._actors.seats}) == 2  # they are spread
        assert put == [size]
        assert [reply.content["all"] for reply in replies] == [model] * 6


def _no_arena(arena: Any, address: str = "") -> None:
    raise OSError("another machine")


def test_hosts_without_the_data_are_named_before_round_1(cluster: Any, make_app: Any) -> None:
    with pytest.raises(RunError, match=r"2 of 2 hosts .* no file at data-path /nowhere/x.csv"):
        RayGrid(make_app, AGENTS, {"data-path": "/nowhere/x.csv"}, address=cluster.address)


def test_runtime_env_reaches_the_agents(cluster: Any) -> None:
    def seeing() -> Any:
        def answer(message: Message, context: Any) -> Message:
            seen = {"seen": ConfigRecord({"it": os.environ.get("OF_THE_RUN", "")})}
            return Message(RecordDict(seen), reply_to=message)

        return answer

    environment = {"env_vars": {"OF_THE_RUN": "yes"}}
    with RayGrid(seeing, 1, address=cluster.address, runtime_env=environment) as grid:
        (node,) = grid.node_configs
        (reply,) = grid.send_and_receive([Message(RecordDict(), node, "train")], timeout=LONG)
    assert reply.content["seen"]["it"] == "yes"


def test_a_run_whose_host_hangs_leaves_a_checkpoint_within_seconds_of_sigterm(
    tmp_path: Path,
) -> None:
    """The round under way is given up, and a resume plays it again."""
    settings = ("num-agents=6", "local-epochs=2000", "baseline-seconds=0", "round-timeout=600")
    runs = tmp_path / "runs"

    def played() -> int:
        return sum(len(one.read_bytes().splitlines()) for one in runs.glob("*/history.jsonl"))

    with RayHosts() as cluster:
        hosts = [cluster.join(), cluster.join()]
        where = (f"output-dir={runs}", "checkpoint-every=100", "num-server-rounds=500")
        child = cluster.run(*settings, *where, log=tmp_path / "log")
        while played() < 3:
            assert child.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        cluster.signal(hosts[1], signal.SIGSTOP)
        time.sleep(3.0)
        stopped = played()
        told = time.monotonic()
        child.terminate()
        checkpoint = next(runs.glob("*")) / "checkpoint.npz"
        while not checkpoint.exists():
            assert time.monotonic() < told + 60.0, (tmp_path / "log").read_text()
            time.sleep(0.05)
        assert time.monotonic() - told < 30.0  # seconds on a machine that has nothing else to do
        child.wait(LONG)
        assert child.returncode == 0
        summary = json.loads(checkpoint.with_name("summary.json").read_text())
        assert summary["status"] == "stopped"
        assert summary["checkpoint-round"] == summary["rounds"] == stopped
        assert {one["code"] for one in summary["failures"].values()} == {"stopped"}
