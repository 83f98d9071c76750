"""What becomes of nodes whose actors end or do not start, by a Ray whose hosts are ours to end."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from privet.core import RunError
from privet.sim.ray.actors import LOOK_AGAIN, REPLACE_PATIENCE, Actors
from privet.sim.ray.hosts import RayHost, WorkerEnvironment, what_is_left
from privet.sim.ray.waiting import STOP_PATIENCE, Waiting

pytestmark = pytest.mark.usefixtures("clock")


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


@dataclass(eq=False)
class Reference:
    """A result that comes when its actor runs, or the error of one that has ended."""

    actor: Actor
    result: Any = None


@dataclass(eq=False)
class Actor:
    """An actor that holds nodes and names of states; ``host`` is empty while it waits."""

    nodes: list[int]
    host: str = ""
    broken: bool = False
    ended: bool = False
    states: set[int] = field(default_factory=set)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(
            remote=lambda *given: Reference(self, getattr(self, f"_{name}")(*given))
        )

    def _ready(self) -> None:
        return None

    def _release(self, nodes: list[int]) -> set[int]:
        taken = self.states & set(nodes)
        self.states -= taken
        return taken

    def _adopt(self, configs: dict[int, Any], states: Reference | None) -> None:
        self.nodes += configs
        if states is not None:
            self.states |= states.result

    def _states(self) -> list[int]:
        return sorted(self.states)


class FakeRay:
    """A cluster whose hosts have one CPU each; actors start where one is free."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)

    def __init__(self, hosts: int) -> None:
        self.names = itertools.count(1)
        self.hosts: list[str] = []
        self.actors: list[Actor] = []
        self.broken = False
        for _ in range(hosts):
            self.join()

    def join(self) -> str:
        self.hosts.append(f"host-{next(self.names)}")
        self._place()
        return self.hosts[-1]

    def lose(self, host: str) -> None:
        self.hosts.remove(host)
        for actor in self.actors:
            actor.ended |= actor.host == host

    def start(self, nodes: list[int], address: str) -> Actor:
        self.actors.append(Actor(list(nodes), broken=self.broken))
        self._place()
        return self.actors[-1]

    def _place(self) -> None:
        alive = [actor for actor in self.actors if not actor.ended]
        free = [host for host in self.hosts if host not in {actor.host for actor in alive}]
        for actor in alive:
            if not actor.host and not actor.broken and free:
                actor.host = free.pop(0)

    def kill(self, actor: Actor) -> None:
        actor.ended = True
        self._place()

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> Any:
        there = [one for one in references if one.actor.host or one.actor.ended or one.actor.broken]
        if len(there) < num_returns:
            time.sleep(timeout)
        return there, [one for one in references if one not in there]

    def get(self, reference: Any, timeout: float = 0.0) -> Any:
        actor = reference.actor
        if actor.ended or actor.broken:
            raise RayActorError("no data here" if actor.broken else "its node has died")
        return actor.host if reference.result is None else reference.result

    def nodes(self) -> list[dict[str, Any]]:
        has = {"CPU": 1.0, "memory": 2e9}
        return [
            {"Alive": True, "NodeID": name, "NodeManagerAddress": name, "Resources": has}
            for name in self.hosts
        ]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(len(self.hosts))}

    def available_resources(self) -> dict[str, float]:
        return {}


class Stage:
    """Six nodes on some hosts, and the actors that have them."""

    def __init__(self, hosts: int, wanted: int = 0) -> None:
        self.ray = FakeRay(hosts)
        self.stops = False
        waiting = Waiting(self.ray, lambda: self.stops)
        configs: dict[int, Any] = {node: {} for node in range(6)}
        self.actors = Actors(
            self.ray, self.ray.start, configs, lambda: wanted or len(self.ray.hosts), waiting
        )
        size = 6 // (wanted or hosts)
        self.actors.begin(list(range(first, first + size)) for first in range(0, 6, size))
        for seat in self.actors.seats:
            seat.actor.states.update(seat.nodes)

    def tend(self) -> float:
        """Begin a round, and return the seconds that it waited."""
        time.sleep(LOOK_AGAIN)
        begun = time.monotonic()
        self.actors.tend(600.0, ())
        return time.monotonic() - begun

    def fail(self, number: int, at_work: int = 0) -> None:
        """End the process of a seat and let a request notice."""
        seat = self.actors.seats[number]
        seat.actor.ended = True
        if at_work:
            seat.arena.at_work = at_work
        self.actors.lost(seat, RayActorError("ended"))

    @property
    def shares(self) -> list[list[int]]:
        return [sorted(seat.nodes) for seat in self.actors.seats]

    @property
    def absent(self) -> list[int]:
        return [node for node in range(6) if not self.actors.is_working(node)]


def test_nodes_of_a_host_that_died_go_to_the_actors_left_at_the_next_round(caplog: Any) -> None:
    stage = Stage(3)
    stage.ray.lose("host-2")
    assert stage.tend() == 0.0
    assert sorted(map(len, stage.shares)) == [3, 3]
    assert stage.absent == []
    assert [sorted(seat.actor.nodes) for seat in stage.actors.seats] == stage.shares
    assert sorted(node for seat in stage.actors.seats for node in seat.actor.states) == [0, 1, 4, 5]
    lost, moved = caplog.messages
    assert lost == (
        "host host-2 (1 CPU, 2.0 GB) is lost, with 1 process of this run and 2 agents; 2 hosts "
        "left: host-1 (1 CPU, 2.0 GB); host-3 (1 CPU, 2.0 GB); 0 CPUs free"
    )
    assert moved == (
        "2 agents of process 2, whose states are lost, go to 2 processes on the hosts that are left"
    )


def test_a_process_is_replaced_on_its_host_and_waited_for() -> None:
    stage = Stage(2)
    stage.fail(0)
    assert stage.tend() == 0.0
    assert stage.shares == [[0, 1, 2], [3, 4, 5]]
    assert stage.absent == []
    assert stage.actors.seats[0].host == "host-1"


def test_agents_at_whose_work_processes_end_share_none_with_others(caplog: Any) -> None:
    stage = Stage(3)
    stage.fail(1, at_work=2)
    stage.tend()
    assert sorted(stage.shares) == [[0, 1, 3], [2], [4, 5]]
    assert caplog.messages == [
        "process 2 of 3 is replaced, its 2 agents lost their state: "
        "its process ended at the work of agent 2"
    ]
    stage.fail(1, at_work=2)
    stage.tend()
    assert sorted(stage.shares) == [[0, 1, 3], [2], [4, 5]]
    stage.fail(2, at_work=4)
    stage.tend()
    assert sorted(stage.shares) == [[0, 1, 3, 5], [2], [4]]
    stage.fail(0, at_work=3)  # no other process is left for 0, 1 and 5
    stage.tend()
    assert sorted(stage.shares) == [[0, 1, 5], [2, 3], [4]]
    assert stage.absent == []
    for seat in stage.actors.seats:
        assert set(seat.nodes) <= set(seat.actor.nodes)


def test_agents_of_a_lost_host_go_to_none_that_ended_its_process() -> None:
    stage = Stage(3)
    stage.fail(1, at_work=2)
    stage.tend()
    stage.ray.lose("host-3")
    stage.tend()
    assert sorted(stage.shares) == [[0, 1, 3, 4, 5], [2]]


def test_a_replacement_without_room_has_a_deadline(caplog: Any) -> None:
    """Another program took the CPU: after a minute the nodes go to the process that is left."""
    stage = Stage(2)
    stage.ray.actors.append(Actor([]))  # the program, which waits in Ray's queue
    stage.fail(0)
    assert stage.ray.actors[-1].host == ""
    assert stage.tend() == pytest.approx(REPLACE_PATIENCE, abs=1.0)
    assert stage.shares == [[0, 1, 2, 3, 4, 5]]
    assert stage.tend() == 0.0
    assert "3 agents of process 1" in caplog.text
    stage.ray.join()  # where the process starts that waited meanwhile
    stage.tend()
    assert sorted(map(len, stage.shares)) == [3, 3]


def test_a_round_waits_no_longer_than_its_timeout() -> None:
    stage = Stage(2)
    stage.ray.actors.append(Actor([]))
    stage.fail(0)
    time.sleep(LOOK_AGAIN)
    begun = time.monotonic()
    stage.actors.tend(7.0, ())
    assert time.monotonic() - begun == pytest.approx(7.0, abs=1.0)
    assert stage.absent == [0, 1, 2]


def test_a_stop_cuts_the_wait_short() -> None:
    stage = Stage(2)
    stage.ray.actors.append(Actor([]))
    stage.fail(0)
    stage.stops = True
    assert stage.tend() <= STOP_PATIENCE
    assert stage.absent == [0, 1, 2]


def test_without_any_host_all_are_absent_until_one_joins(caplog: Any) -> None:
    stage = Stage(1)
    stage.ray.lose("host-1")
    assert stage.tend() == 0.0
    assert stage.absent == [0, 1, 2, 3, 4, 5]
    assert "6 agents are absent until a process starts for them: 0 hosts left" in caplog.text
    stage.ray.join()
    stage.tend()
    assert stage.absent == []


def test_a_host_that_joins_is_given_its_share_with_the_states(caplog: Any) -> None:
    caplog.set_level("INFO")
    stage = Stage(2)
    stage.ray.join()
    stage.tend()
    stage.tend()
    assert sorted(map(len, stage.shares)) == [2, 2, 2]
    for seat in stage.actors.seats:
        assert seat.actor.states == set(seat.nodes)
    assert "host host-3 (1 CPU, 2.0 GB) joined" in caplog.messages
    assert "2 agents moved to a new process on host-3 (1 CPU, 2.0 GB)" in caplog.messages


def test_agents_at_work_do_not_move() -> None:
    stage = Stage(1, wanted=1)
    stage.actors._wanted = lambda: 2
    stage.ray.join()
    for busy, shares in (([0], [6]), ([], [3, 3])):
        for _ in range(2):
            time.sleep(LOOK_AGAIN)
            stage.actors.tend(600.0, busy)
        assert sorted(map(len, stage.shares)) == shares


def test_a_process_that_cannot_start_ends_the_run_with_the_cause() -> None:
    stage = Stage(2)
    stage.ray.broken = True
    stage.fail(0)
    with pytest.raises(RunError, match=r"replaced 3 times .* did not start: no data here"):
        stage.tend()


def test_a_joined_host_that_cannot_run_agents_costs_nothing(caplog: Any) -> None:
    stage = Stage(2)
    stage.ray.broken = True
    stage.ray.join()
    for _ in range(10):
        stage.tend()
    assert stage.shares == [[0, 1, 2], [3, 4, 5]]
    lines = [line for line in caplog.messages if "a further process did not start" in line]
    assert lines == ["a further process did not start: no data here"] * 3


OURS = WorkerEnvironment({"Python": "3.11", "privet": "1", "flwr": "2"}, sees_data=True)


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (OURS, ""),
        (
            WorkerEnvironment({"Python": "3.12", "privet": "1", "flwr": "2"}, True),
            "Python 3.12, here 3.11",
        ),
        (
            WorkerEnvironment({"Python": "3.11", "privet": "0", "flwr": "2"}, True),
            "privet 0, here 1",
        ),
        (WorkerEnvironment({"Python": "3.11", "privet": "1"}, True), "flwr not there, here 2"),
        (OURS._replace(sees_data=False), "no file at data-path /data/x.csv"),
    ],
)
def test_a_worker_is_compared_with_this_process(there: WorkerEnvironment, why: str) -> None:
    assert there.unlike(OURS, "/data/x.csv") == why


def test_what_is_left_puts_the_status_into_words() -> None:
    hosts = [RayHost("a", "10.0.0.1", 8.0, 2.0, 3.2e10), RayHost("b", "10.0.0.2", 1.0, 0.0, 1e9)]
    ray = SimpleNamespace(available_resources=lambda: {"CPU": 3.0})
    assert what_is_left(ray, hosts) == (
        "2 hosts left: 10.0.0.1 (8 CPUs, 2 GPUs, 32.0 GB); 10.0.0.2 (1 CPU, 1.0 GB); 3 CPUs free"
    )
