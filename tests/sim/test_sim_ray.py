"""The Ray engine: the bits of the in-process engine, and what the end of a process costs.

Agents that are late, break, or are reached in another way hold up no run, and each costs the agents
it concerns only.
"""

from __future__ import annotations

import enum
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from privet.agents.state import AgentState
from privet.cli.main import main
from privet.client_apps import client_app
from privet.core import ConfigError, RunError
from privet.problems import BinaryLogistic
from privet.rounds.keep.checkpoint import load
from privet.rounds.together import Worked
from privet.server_apps.model_file import load_model
from privet.sim.engine import InlineGrid
from privet.sim.ray import actors as ray_actors
from privet.sim.ray.engine import RayGrid
from privet.sim.ray.session import _processes, ray_session
from privet.sim.sweep import SweepError, sweep
from privet.strategies import Failure, FailureCode, FedPDM, FedPLT, Fraction, PrivetResult, Schedule
from support.federations import FaultyGrid, bits, logistic_agents, lose_state, position, zeros
from support.keeper import free_ports
from support.memory import resident_megabytes
from support.paths import ROOT

pytestmark = [
    pytest.mark.ray,
    # Ray leaves its own files and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

AGENTS = 5
NAMES = tuple(map(str, range(AGENTS)))
DIM = 600
PROBLEMS = logistic_agents(AGENTS, dim=DIM)
PLT: dict[str, Any] = {"rho": 1.0, "local_epochs": 3}
NOISY: dict[str, Any] = {
    **PLT,
    "participation": Fraction(0.6),
    "local_solver": "noisy-gd",
    "noise_variance": 1e-3,
    "noise_seed": 3,
    "seed": 11,
}


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[Any]:
    """Open one Ray for all tests here; its processes find the tests' support."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 1}')  # which is counted, and not there
        with ray_session(num_cpus=6) as ray:
            folder = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[2]
            assert folder.exists()
            started = _processes(ray)
            yield ray
            assert ray.is_initialized()  # whoever used it on the way has left it as it was
        assert not ray.is_initialized()
        assert not folder.exists()
        assert started
        assert None not in [process.returncode for process in started]


def kill(ray: Any, actor: Any) -> None:
    """Kill an actor and wait until calls of it fail: Ray only begins to when it is told."""
    ray.kill(actor)
    for _ in range(1000):
        try:
            ray.get(actor.__ray_call__.remote(lambda _: None))
        except ray.exceptions.RayActorError:
            return
        time.sleep(0.01)
    raise AssertionError("a killed actor goes on answering")


def wait_for_the_end_of(file: str) -> None:
    while os.path.exists(file):
        time.sleep(0.01)


class Trapped(BinaryLogistic):
    """Waits while the file ``trap`` exists, and says that it does."""

    def __init__(self, problem: BinaryLogistic, trap: Path) -> None:
        super().__init__(problem.features, problem.labels, regularizer=problem.regularizer)
        self.trap = trap

    def gradient(self, x: Any, rows: Any = None) -> Any:
        if self.trap.exists():
            self.trap.with_suffix(".caught").touch()
        wait_for_the_end_of(str(self.trap))
        return super().gradient(x, rows)


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that agent 1 waits at while it exists."""
    return tmp_path_factory.mktemp("trap") / "trap"


class Killing(RayGrid):
    """Kills the process of agents 0, 1 and 2 while agent 1 works, in the round after ``armed``."""

    armed: Path | None = None
    messages: int = 0

    def dispatch(self, messages: list[Message]) -> None:
        self.messages += sum(one.metadata.message_type == MessageType.TRAIN for one in messages)
        super().dispatch(messages)

    def train_together(self, *asked: Any) -> Worked:
        trap, self.armed = self.armed, None
        if trap is None:
            return super().train_together(*asked)
        caught, deadline = trap.with_suffix(".caught"), time.monotonic() + 120.0
        caught.unlink(missing_ok=True)
        trap.touch()

        def end() -> None:
            while not caught.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            kill(self._ray, self.actors[0])
            trap.unlink()

        ending = threading.Thread(target=end)
        ending.start()
        try:
            return super().train_together(*asked)
        finally:
            ending.join()
            assert caught.exists()


@pytest.fixture(scope="module")
def grid(session: Any, trap: Path) -> Iterator[Killing]:
    """Return two actors with agents 0 to 2 and 3 to 5; agent 5 is broken, and away."""

    def make_app() -> Any:
        problems = {**dict(enumerate(PROBLEMS)), 1: Trapped(PROBLEMS[1], trap)}
        return client_app(None, lambda context: problems[position(context)])

    with Killing(make_app, AGENTS + 1, actors=2) as made:
        made.online.discard(max(made.online))
        yield made


def inline(**faults: Any) -> FaultyGrid:
    return FaultyGrid(
        client_app(None, lambda context: PROBLEMS[position(context)]), AGENTS, dict(**faults)
    )


def run(strategy: Any, grid: Any, rounds: int, **options: Any) -> PrivetResult:
    result: PrivetResult = strategy.start(grid, zeros(DIM), num_rounds=rounds, **options)
    return result


def test_run_resumes_on_either_engine_with_the_same_bits(grid: Killing, tmp_path: Path) -> None:
    """A checkpoint of the Ray engine holds the agents' states, and the other way round."""
    whole = run(FedPLT(num_agents=AGENTS, **NOISY), inline(), 8)
    for name, first, second in (("ray", grid, inline()), ("inline", inline(), grid)):
        file = tmp_path / f"{name}.npz"
        run(FedPLT(num_agents=AGENTS, **NOISY), first, 4, checkpoint=file)
        held_there = [name for table in load(file).node_states for name in table.names]
        assert sorted(held_there) == list(NAMES)
        resumed = run(FedPLT(num_agents=AGENTS, **NOISY), second, 8, resume=file, checkpoint=file)
        assert bits(resumed) == bits(whole)
        assert all(done.notes == () for done in resumed.history)


@pytest.mark.parametrize("private", [False, True])
def test_actors_work_as_cohorts_with_the_same_bits(grid: Killing, private: bool) -> None:
    noise = {"clip": 1.0, "row_norm": 50.0} if private else {}
    before = grid.messages
    ours = run(FedPLT(num_agents=AGENTS, **NOISY, **noise), grid, 6)
    assert grid.messages == before
    alone = run(FedPLT(num_agents=AGENTS, **NOISY, **noise), inline(), 6)
    assert bits(ours) == bits(alone)
    assert ours.privacy == alone.privacy
    assert [{**done.to_dict(), "seconds": 0} for done in ours.history] == [
        {**done.to_dict(), "seconds": 0} for done in alone.history
    ]


@pytest.mark.parametrize("by_message", [False, True])
def test_asynchronous_runs_have_the_bits_of_the_inline_engine(
    grid: Killing, by_message: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With agents that work together and by message; resumed in the middle of tasks too."""
    if by_message:
        monkeypatch.setattr(RayGrid, "train_together", lambda *_, **__: Worked([], {}))

    def strategy() -> FedPLT:
        tasks: dict[str, Any] = {"asynchronous": True, "buffer": 2, "speeds": "lognormal"}
        return FedPLT(num_agents=AGENTS, seed=5, **PLT, **tasks)

    whole = run(strategy(), inline(), 16)
    ours = run(strategy(), grid, 16)
    run(strategy(), grid, 7, checkpoint=tmp_path / "run.npz")
    resumed = run(strategy(), grid, 16, resume=tmp_path / "run.npz")
    assert bits(ours) == bits(resumed) == bits(whole)
    lines = [[{**d.to_dict(), "seconds": 0} for d in r.history] for r in (whole, ours, resumed)]
    assert lines[0] == lines[1] == lines[2]


def held(grid: Any) -> dict[str, AgentState]:
    """Return the states that the agents hold, by name."""
    return {name: state for table in grid.node_states() for name, state in table.rows()}


def absent(numbers: int, rounds: int, killed: int) -> Schedule:
    """Return who takes part when the first agents are away for one round."""
    return Schedule(tuple(NAMES[numbers:] if r == killed else NAMES for r in range(1, rounds + 1)))


def arm(grid: Killing, trap: Path, before_round: int) -> Any:
    """Return the observer that sets the trap for a round."""

    def observe(done: Any, strategy: Any) -> None:
        if done.round == before_round - 1:
            grid.armed = trap

    return observe


def test_actor_killed_mid_round_costs_fed_plt_its_agents_for_that_round(
    grid: Killing, trap: Path
) -> None:
    """Agent 0 had finished, agent 1 was at work, agent 2 had not begun: all three are absent."""
    before = grid.actors
    strategy = FedPLT(num_agents=AGENTS, **PLT)
    ours = run(strategy, grid, 6, observers=[arm(grid, trap, 3)])
    hit = ours.history[2]
    assert hit.participants == ("3", "4")
    assert hit.failures == dict.fromkeys(
        ("0", "1", "2"), Failure(FailureCode.LOST, "error 8: its process ended")
    )
    after = ours.history[3]
    assert after.participants == NAMES
    assert after.notes == tuple(f"agent {n} was sent its state of round 2" for n in "012")
    assert [a is b for a, b in zip(before, grid.actors, strict=True)] == [False, True]
    away = FedPLT(num_agents=AGENTS, participation=absent(3, 6, 3), **PLT)
    assert bits(ours) == bits(run(away, inline(), 6))


@pytest.mark.parametrize("dual", ["public", "private"])
def test_actor_killed_mid_round_costs_fed_pdm_what_only_its_agents_knew(
    grid: Killing, trap: Path, dual: str
) -> None:
    """A public dual is sent back; a private one starts again at zero, and the log says so."""
    options: dict[str, Any] = {"num_agents": AGENTS, "max_local_steps": 3, "dual": dual}
    ours = run(FedPDM(**options), grid, 6, observers=[arm(grid, trap, 3)])
    assert ours.history[2].participants == ("3", "4")
    said = {
        "public": "agent {} was sent its state of round 2",
        "private": "agent {} lost its state of round 2: it starts again",
    }
    assert ours.history[3].notes == tuple(said[dual].format(name) for name in "012")
    reference = inline()
    if dual == "private":
        reference.faults = {(number, 4): lose_state for number in range(3)}
    away = FedPDM(**options, participation=absent(3, 6, 3))
    assert bits(ours) == bits(run(away, reference, 6))


def test_what_only_the_agents_of_a_killed_actor_knew_is_in_the_checkpoint(
    grid: Killing, trap: Path, tmp_path: Path
) -> None:
    """Also in those that are written while the agents are away."""
    options: dict[str, Any] = {"num_agents": AGENTS, "max_local_steps": 3, "dual": "private"}
    killed = arm(grid, trap, 3)
    ours = run(FedPDM(**options), grid, 6, observers=[killed], checkpoint=tmp_path / "run.npz")
    assert ours.history[2].participants == ("3", "4")
    given = "agent {} was given its state of round 2 from the checkpoint"
    assert ours.history[3].notes == tuple(given.format(name) for name in "012")
    away = FedPDM(**options, participation=absent(3, 6, 3))
    assert bits(ours) == bits(run(away, inline(), 6))
    assert sorted(n for table in load(tmp_path / "run.npz").node_states for n in table.names) == [
        *NAMES
    ]


class Fatal(BinaryLogistic):
    """Ends its own process by SIGKILL at every gradient, as the system does to the largest."""

    def gradient(self, x: Any, rows: Any = None) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("by_message", [True, False])
def test_an_agent_that_kills_its_process_costs_its_neighbours_nothing_from_then_on(
    session: Any, by_message: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Batched agents are asked one by one after the first time, and parted after the second."""
    if by_message:
        monkeypatch.setattr(RayGrid, "train_together", lambda *_, **__: Worked([], {}))
    fatal = Fatal(PROBLEMS[3].features, PROBLEMS[3].labels, regularizer=PROBLEMS[3].regularizer)
    problems = {**dict(enumerate(PROBLEMS)), 3: fatal}

    def make_app() -> Any:
        return client_app(None, lambda context: problems[position(context)])

    with RayGrid(make_app, AGENTS, actors=2) as grid, caplog.at_level("WARNING"):
        result = run(FedPLT(num_agents=AGENTS, **PLT), grid, 5)
    named = Failure(FailureCode.LOST, "error 8: its process ended at the work of agent 3")
    unknown = Failure(FailureCode.LOST, "error 8: its process ended")
    first = [dict.fromkeys("34", named if by_message else unknown)]
    second = [] if by_message else [dict.fromkeys("34", named)]
    alone: list[dict[str, Failure]] = [{"3": named}] * (5 - len(first + second))
    assert [done.failures for done in result.history] == [*first, *second, *alone]
    assert "is replaced, its 1 agents lost their state: its process ended at the work of" in (
        caplog.text
    )


def test_agent_that_cannot_build_its_problem_is_turned_away_by_name(grid: Killing) -> None:
    broken = max(grid.node_configs)
    grid.online.add(broken)
    try:
        strategy = FedPLT(num_agents=AGENTS + 1, **PLT)
        result = run(strategy, grid, 2)
    finally:
        grid.online.discard(broken)
    assert strategy.session is not None
    assert list(strategy.session.roster.rejected.values()) == ["agent 5: KeyError: 5"]
    assert result.history[-1].participants == NAMES


def test_node_that_is_away_is_answered_for(grid: Killing) -> None:
    away = max(grid.node_configs)
    content = RecordDict({"any": ConfigRecord({"number": 1})})
    messages = [Message(content, node, MessageType.EVALUATE) for node in (away, away - 1)]
    first, second = grid.send_and_receive(messages, timeout=120.0)
    assert first.error.code == 5
    assert str(away) in str(first.error.reason)
    assert first.metadata.reply_to_message_id == messages[0].metadata.message_id
    # Our own agent's answer to a message without a model, or after a private run to any.
    assert str(second.error.reason).startswith("agent ")


def test_reply_that_is_late_is_left_for_later(grid: Killing, trap: Path) -> None:
    """A pull returns what is there; the others can be pulled when they have come."""
    content = RecordDict({"arrays": zeros(DIM), "config": ConfigRecord({"server-round": 1})})
    messages = [Message(content, node, MessageType.EVALUATE) for node in sorted(grid.online)]
    late = set(grid.push_messages(messages))
    assert late == {message.metadata.message_id for message in messages}
    deadline = time.monotonic() + 120.0
    found: list[Message] = []
    while len(found) < AGENTS and time.monotonic() < deadline:
        found += grid.pull_messages(late)
    assert {reply.metadata.src_node_id for reply in found} == grid.online
    assert {reply.metadata.reply_to_message_id for reply in found} == late
    said = [reply.error.reason if reply.has_error() else "metrics" for reply in found]
    assert all(one == "metrics" or "declines evaluation" in str(one) for one in said)


def test_checkpoint_does_not_wait_for_agents_at_work_and_their_late_replies_are_dropped(
    session: Any, grid: Killing, trap: Path, caplog: Any
) -> None:
    strategy = FedPLT(num_agents=AGENTS, round_timeout=120.0, **PLT)
    strategy.start(grid, zeros(DIM), num_rounds=2)
    assert sorted(held(grid)) == list(NAMES)
    assert "hand over their states" not in caplog.text
    strategy.run.options = replace(strategy.run.options, round_timeout=4.0)
    trap.touch()
    try:
        for number in (3, 4):
            late = strategy.play_round(grid, number)
            assert late.participants == ("3", "4")
        begun = time.monotonic()
        assert sorted(held(grid)) == ["3", "4"]
        assert time.monotonic() - begun < 60.0
    finally:
        trap.unlink()
    said = [line for line in caplog.messages if "hand over their states" in line]
    assert said == [
        "3 of 6 agents could not hand over their states: still at work on an earlier round (3)"
    ]
    assert len(grid._forgotten) == 3  # round 3's were asked together, round 4's by message
    late_batches = list(grid._under_way)
    session.wait(late_batches, num_returns=len(late_batches), timeout=120.0)
    assert sorted(held(grid)) == list(NAMES)  # what has ended does not count as at work
    strategy.run.options = replace(strategy.run.options, round_timeout=120.0)
    for number in (5, 6):
        assert strategy.play_round(grid, number).participants == NAMES
    assert (grid._replies, grid._forgotten, grid._under_way) == ({}, set(), {})
    assert sorted(held(grid)) == list(NAMES)


def test_replies_that_came_too_late_for_send_and_receive_are_dropped(
    grid: Killing, trap: Path
) -> None:
    """Another caller's late replies are left for it."""
    content = RecordDict({"any": ConfigRecord({"number": 1})})

    def messages() -> list[Message]:
        return [Message(content, node, MessageType.EVALUATE) for node in sorted(grid.online)]

    grid.actors[0].__ray_call__.remote(lambda _: time.sleep(4.0))
    kept = list(grid.push_messages(messages()))
    assert len(list(grid.send_and_receive(messages(), timeout=0.0))) < AGENTS
    assert len(grid._forgotten) >= 3
    grid.forget(["no such message"])
    found: list[Message] = []
    deadline = time.monotonic() + 120.0
    while len(found) < AGENTS and time.monotonic() < deadline:
        found += grid.pull_messages(kept)
    assert {reply.metadata.reply_to_message_id for reply in found} == set(kept)
    assert len(list(grid.send_and_receive(messages(), timeout=120.0))) == AGENTS
    assert (grid._replies, grid._forgotten) == ({}, set())


def test_actor_that_does_not_answer_costs_a_checkpoint_its_agents_only(
    session: Any, grid: Killing, trap: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    FedPLT(num_agents=AGENTS, **PLT).start(grid, zeros(DIM), num_rounds=1)
    whole, tables = held(grid), grid.node_states()
    trap.touch()
    file = str(trap)
    blocked = grid.actors[0].__ray_call__.remote(lambda _: wait_for_the_end_of(file))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ray_actors, "STATES_PATIENCE", 3.0)
            assert held(grid) == {name: whole[name] for name in ("3", "4")}
            with pytest.raises(RunError, match=r"could not be put back: no answer within 3 s$"):
                grid.restore_node_states(tables)
    finally:
        trap.unlink()
    session.get(blocked)
    assert "their states: no answer within 3 s (3)" in caplog.text
    damaged: Any = tables[0]._replace(experiment=3)
    with pytest.raises(RunError, match=r"could not be put back: .*'int' has no len") as caught:
        grid.restore_node_states([damaged])
    assert "\n" not in str(caught.value)
    kill(session, grid.actors[1])
    assert held(grid) == {name: whole[name] for name in ("0", "1", "2")}
    assert "their states: their process ended (3)" in caplog.text
    with pytest.raises(RunError, match=r"could not be put back: their process ended$"):
        grid.restore_node_states(tables)


def test_client_app_that_cannot_be_made_is_one_line(session: Any) -> None:
    def make_app() -> Any:
        raise FileNotFoundError("no data here")

    with pytest.raises(RunError, match=r"ClientApp could not be made: .*no data here"):
        RayGrid(make_app, 2, actors=1)
    assert session.is_initialized()  # the session was there before, so it stays


def seeing() -> Any:
    def answer(message: Message, context: Context) -> Message:
        seen = {"process": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "all")}
        return Message(RecordDict({"seen": ConfigRecord(seen)}), reply_to=message)

    return answer


@pytest.mark.parametrize(
    ("num_gpus", "actors", "processes", "visible"), [(0.25, None, 4, "0"), (0.0, 2, 2, "all")]
)
def test_a_share_of_a_gpu_limits_how_many_actors_there_are(
    session: Any, num_gpus: float, actors: int | None, processes: int, visible: str
) -> None:
    with RayGrid(seeing, 10, num_gpus=num_gpus, actors=actors) as made:
        messages = [Message(RecordDict(), node, "train") for node in made.node_configs]
        replies = list(made.send_and_receive(messages, timeout=120.0))
        assert session.available_resources().get("GPU", 0.0) == (0.0 if num_gpus else 1.0)
    seen = [dict(reply.content["seen"]) for reply in replies]
    assert len(seen) == 10
    assert len({one["process"] for one in seen}) == processes
    assert {one["gpus"] for one in seen} == {visible}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"num_gpus": 0.25, "actors": 5}, "0.25: Ray has GPUs: 1, room for 4 of 5 actors"),
        ({"num_gpus": 1 / 3, "actors": 4}, "0.333333: Ray has GPUs: 1, room for 3 of 4 actors"),
        ({"num_gpus": 2}, "2: Ray has GPUs: 1, room for 0 of 1 actors"),
        ({"num_gpus": 1.5}, "1.5: must be a fraction >= 0.0001, or a whole number"),
        ({"num_gpus": -1.0}, "-1.0: must be a fraction >= 0.0001, or a whole number"),
    ],
)
def test_gpus_that_are_not_there_are_one_line(options: Any, line: str) -> None:
    """Ray would wait for them."""
    with pytest.raises(ConfigError) as caught:
        RayGrid(seeing, 10, **options)
    assert str(caught.value) == f"num_gpus = {line}"


def test_a_gpu_that_others_use_ends_in_one_line(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RayGrid(seeing, 1, num_gpus=0.75):  # which may take its time
        monkeypatch.setattr(ray_actors, "START_PATIENCE", 0.5)
        with pytest.raises(RunError, match=r"1 of 1 actors did not start .* 1 GPUs, which others"):
            RayGrid(seeing, 1, num_gpus=0.5)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (False, "its process did not start: FileNotFoundError: no data here"),
        pytest.param(True, "its process did not start: ", marks=pytest.mark.slow),
    ],
)
def test_actor_that_cannot_be_replaced_ends_the_run_with_the_cause(
    session: Any, tmp_path: Path, end: bool, reason: str
) -> None:
    missing = tmp_path / "missing"

    def make_app() -> Any:
        if missing.exists():
            if end:
                os._exit(1)
            raise FileNotFoundError("no data here")
        return lambda message, context: Message(message.content, reply_to=message)

    def asked(grid: RayGrid) -> list[str]:
        content = RecordDict({"any": ConfigRecord({"number": 1})})
        messages = [Message(content, node, "train") for node in sorted(grid.node_configs)]
        replies = grid.send_and_receive(messages, timeout=120.0)
        return [str(one.error.reason) if one.has_error() else "" for one in replies]

    with RayGrid(make_app, 2, actors=2) as made:
        missing.touch()
        kill(session, made.actors[0])
        assert asked(made) == ["its process ended", ""]
        for _ in range(2):
            said, fine = asked(made)
            assert said.startswith(reason)
            assert fine == ""
        line = f"^process 1 of 2 was replaced 3 times in a row without success: {reason}"
        with pytest.raises(RunError, match=line):
            asked(made)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_of_all_processes_is_flat(grid: Killing, session: Any) -> None:
    """Only the history here grows, by less than a kilobyte a round; nothing stays in the actors."""
    strategy = FedPLT(num_agents=AGENTS, **PLT)
    run(strategy, grid, 3_000)  # by then the allocators have settled, and all actors are there
    pids = [os.getpid()]
    pids += session.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in grid.actors])
    before = [resident_megabytes(pid) for pid in pids]
    for number in range(3_001, 10_001):
        strategy.play_round(grid, number)
    grown = [resident_megabytes(pid) - old for pid, old in zip(pids, before, strict=True)]
    assert grown[0] < 7_000 / 1024
    assert max(grown[1:]) < 1.0


# ------------------------------------------------------------------ agents that compute nothing


def answering() -> Any:
    """Return a ClientApp that answers as a record of the message says, by default with all of it.

    ``count`` changes what it was sent and says what it has then; ``strange`` answers differently at
    every node, mostly wrongly.
    """

    class Local(enum.IntEnum):
        ONE = 1

    def answer(message: Message, context: Any) -> Any:
        reply = Message(RecordDict(dict(message.content.items())), reply_to=message)
        if "count" in message.content:
            config: Any = message.content["count"]
            config["round"] += 1
            config["list"].append(config["round"])
        if "strange" in message.content:
            node = context.node_config["partition-id"]
            if node == 1:
                reply.content["mine"] = ConfigRecord({"cannot": Local.ONE})
            return {0: None, 2: message}.get(node, reply)
        return reply

    return answer


@pytest.fixture(scope="module")
def plain(session: Any) -> Iterator[RayGrid]:
    """Return two actors with four agents that compute nothing."""
    with RayGrid(answering, 4, actors=2) as made:
        yield made


def sent(grid: RayGrid, number: int) -> tuple[list[str], list[bytes]]:
    """Push a message to every node; return the ids, and what each of them holds."""
    nodes = sorted(grid.node_configs)
    all_ = ConfigRecord({"payload": bytes([number]) * 50_000})
    own = [bytes([number, node % 256]) * (3_000 + 1_000 * number) for node in nodes]
    messages = [
        Message(RecordDict({"all": all_, "own": ConfigRecord({"payload": one})}), node, "train")
        for node, one in zip(nodes, own, strict=True)
    ]
    ids = list(grid.push_messages(messages))
    return ids, [bytes([number]) * 50_000 + one for one in own]


def pulled(grid: RayGrid, ids: list[str]) -> list[bytes]:
    """Wait for the replies; return what each of them holds."""
    found: dict[str, bytes] = {}
    deadline = time.monotonic() + 120.0
    while len(found) < len(ids) and time.monotonic() < deadline:
        for reply in grid.pull_messages(ids):
            both: Any = [reply.content[name] for name in ("all", "own")]
            held = b"".join(one["payload"] for one in both)
            found[reply.metadata.reply_to_message_id] = held
    return [found[one] for one in ids]


def test_every_reply_holds_what_its_own_message_held(plain: RayGrid) -> None:
    """Also where batches overtake the reading of replies."""
    batches = [sent(plain, number) for number in (1, 2)]
    for ids, held in batches:
        assert pulled(plain, ids) == held


def test_reply_that_cannot_be_sent_costs_its_own_agent_only(plain: RayGrid) -> None:
    content = RecordDict({"strange": ConfigRecord({"number": 1})})
    messages = [Message(content, node, "train") for node in sorted(plain.node_configs)]
    replies = list(plain.send_and_receive(messages, timeout=120.0))
    assert [reply.has_error() for reply in replies] == [True] * 3 + [False]
    reasons = ("returned NoneType", "local object", "no reply to the one")
    for reply, reason in zip(replies, reasons, strict=False):
        assert reply.error.code == 2
        assert reason in str(reply.error.reason)
    assert replies[3].content == content


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_agents_that_change_what_they_were_sent_do_not_see_one_another(
    plain: RayGrid, engine: str
) -> None:
    """On every engine, as in a deployment."""
    made: Any = plain if engine == "ray" else InlineGrid(answering(), 4)
    config = ConfigRecord({"round": 3, "list": [1]})
    content = RecordDict({"count": config})
    contents = [content, content, RecordDict({"count": config}), content]
    messages = [
        Message(one, node, "train")
        for one, node in zip(contents, sorted(made.node_configs), strict=True)
    ]
    replies = list(made.send_and_receive(messages, timeout=120.0))
    assert [dict(one.content["count"]) for one in replies] == [{"round": 4, "list": [1, 4]}] * 4
    assert all(message.content["count"] is config for message in messages)
    assert dict(config) == {"round": 3, "list": [1]}


# ------------------------------------------------------------------ sweeps


def test_sweep_uses_the_session_that_is_open_unless_asked_for_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default as many cases run at a time as the session has cores, not this machine."""
    monkeypatch.setattr("privet.sim.sweep.local_cpus", lambda: 1)

    def meet(case: int) -> tuple[int, int]:
        (tmp_path / str(case)).touch()
        deadline = time.monotonic() + 120.0
        while (met := len(list(tmp_path.iterdir()))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return met, os.getpid()

    met, pids = zip(*sweep(meet, range(2), progress=False), strict=True)
    assert met == (2, 2)
    assert os.getpid() not in pids
    assert os.getpid() not in sweep(lambda _: os.getpid(), [0], progress=False)
    assert sweep(lambda _: os.getpid(), [0], workers=1, progress=False) == [os.getpid()]


def test_case_that_cannot_be_sent_or_brought_back_is_a_failure_of_its_own() -> None:
    def work(case: Any) -> Any:
        return threading.Lock() if case == 1 else case

    with pytest.raises(SweepError) as caught:
        sweep(work, [0, 1, threading.Lock(), 3], workers=2, progress=False, label=lambda _: "it")
    assert caught.value.results == {0: 0, 3: 3}
    assert sorted(caught.value.failures) == [1, 2]
    for reason in caught.value.failures.values():
        assert reason.startswith("TypeError: cannot pickle '_thread.lock' object")


def test_function_that_cannot_be_sent_is_one_line() -> None:
    lock = threading.Lock()

    def work(case: int) -> bool:
        return lock.locked()

    with pytest.raises(ConfigError, match=r"work cannot be sent to other processes: TypeError: ca"):
        sweep(work, [0, 1], workers=2, progress=False)


def test_sweep_gives_the_results_of_this_process_whatever_happens_to_others() -> None:
    """One case raises and another ends its process: the first is named, the rest are kept."""
    here = os.getpid()

    def work(case: int) -> tuple[float, bool]:
        if case == 2:
            raise ValueError("two is not a case")
        if case == 3:
            os._exit(1)
        return float(np.random.default_rng(case).standard_normal(500).sum()), os.getpid() == here

    with pytest.raises(SweepError) as caught:
        sweep(work, range(6), workers=2)
    assert str(caught.value).startswith("case 2 (2): ValueError: two is not a case; 2 of 6 cases")
    assert sorted(caught.value.failures) == [2, 3]
    kept = caught.value.results
    assert {case: value for case, (value, _) in kept.items()} == {
        case: work(case)[0] for case in (0, 1, 4, 5)
    }
    assert not any(same for _, same in kept.values())


@pytest.mark.slow
def test_tune_finds_the_same_with_several_processes(capsys: Any) -> None:
    said = []
    for options in ([], ["--workers", "2"]):
        with pytest.raises(SystemExit) as left:
            main(["tune", "fed-plt", "smoothness=2", "strong-convexity=0.5", "--json", *options])
        assert left.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].count("spectral-radius") == 8


def test_run_command_takes_the_ray_engine(tmp_path: Path, capsys: Any) -> None:
    """The models of ``privet run`` are the same bits on either engine."""
    for name, options in (("inline", []), ("ray", ["--engine", "ray", "--actors", "1"])):
        with pytest.raises(SystemExit) as left:
            main(["run", f"output-dir={tmp_path / name}", "num-server-rounds=3", *options])
        assert left.value.code == 0
    assert "test accuracy" in capsys.readouterr().out
    models = [next((tmp_path / name).glob("*/model.npz")) for name in ("inline", "ray")]
    reference, ours = (load_model(path).arrays for path in models)
    assert sorted(ours) == sorted(reference)
    for member, array in reference.items():
        assert ours[member].tobytes() == array.tobytes()


# ------------------------------------------------------------------ Ray Client


THROUGH_RAY_CLIENT = """
import sys
from flwr.app import ConfigRecord, Message, RecordDict
from privet.sim.ray.engine import RayGrid
from privet.core import ConfigError

def echo():
    return lambda message, context: Message(message.content, reply_to=message)

with RayGrid(echo, 4, actors=2, address=sys.argv[1]) as grid:
    for size in (10, 50_000, 200_000):
        everyone = ConfigRecord({"payload": bytes(size)})
        held = {n: b"%d" % n * size for n in grid.node_configs}
        messages = [
            Message(RecordDict({"all": everyone, "own": ConfigRecord({"own": one})}), n, "train")
            for n, one in held.items()
        ]
        replies = list(grid.send_and_receive(messages, timeout=120.0))
        assert [reply.content["own"]["own"] for reply in replies] == list(held.values())
    assert grid.node_states() == []
try:
    RayGrid(echo, 4, num_gpus=0.25, address=sys.argv[1])
except ConfigError as error:
    assert str(error) == "num_gpus = 0.25: Ray has no GPU, room for 0 of 1 actors"
    print("as it was")
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_cluster_is_reached_through_ray_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values come back although Ray Client carries nothing beside a pickle."""
    monkeypatch.delenv("RAY_OVERRIDE_RESOURCES")
    port, client = free_ports(2)
    program = Path(sys.executable).with_name("ray")
    with tempfile.TemporaryDirectory(prefix="privet-", dir="/tmp") as folder:
        head = subprocess.Popen(
            [
                *(program, "start", "--head", "--block", "--num-cpus=2", f"--port={port}"),
                *(f"--ray-client-server-port={client}", f"--temp-dir={folder}"),
                *("--include-dashboard=false", "--disable-usage-stats"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Else the process that Ray Client's proxy forks for a client may die of the threads of
            # gRPC that it was forked beside: https://github.com/ray-project/ray/issues/63202
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
        )
        try:
            wait_for_listener(client)
            ran = subprocess.run(
                [sys.executable, "-c", THROUGH_RAY_CLIENT, f"ray://127.0.0.1:{client}"],
                capture_output=True,
                text=True,
                timeout=300.0,
                check=False,
            )
        finally:
            head.terminate()
            head.wait(60.0)
    assert ran.stdout == "as it was\n", ran.stderr


def wait_for_listener(port: int) -> None:
    deadline = time.monotonic() + 300.0
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on {port}")
