"""The Ray engine where agents are late, break, or are reached in another way.

None of it holds up a run, and each costs the agents it concerns only.
"""

from __future__ import annotations

import enum
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from privet.client_apps import client_app
from privet.problems import BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.sim.ports import free_ports
from privet.sim.ray import actors as ray_actors
from privet.sim.ray.engine import RayGrid
from privet.sim.ray.session import ray_session
from privet.strategies import FedPLT
from privet.wire import RunError
from support.federations import logistic_agents, position, zeros
from support.paths import ROOT

pytestmark = [
    pytest.mark.ray,
    # Ray leaves its own files and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

AGENTS = 5
NAMES = tuple(map(str, range(AGENTS)))
DIM = 4
PROBLEMS = logistic_agents(AGENTS, dim=DIM)
PLT: dict[str, Any] = {"rho": 1.0, "local_epochs": 3}


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[Any]:
    """Open one Ray for all tests here; its processes find the tests' support."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        with ray_session(num_cpus=4) as ray:
            yield ray


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


class Gated(BinaryLogistic):
    """Waits while a file exists."""

    def __init__(self, problem: BinaryLogistic, gate: Path) -> None:
        super().__init__(problem.features, problem.labels, regularizer=problem.regularizer)
        self.gate = gate

    def gradient(self, x: Any, rows: Any = None) -> Any:
        wait_for_the_end_of(str(self.gate))
        return super().gradient(x, rows)


def wait_for_the_end_of(file: str) -> None:
    while os.path.exists(file):
        time.sleep(0.01)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that agent 1 of ``gated`` waits at while it exists."""
    return tmp_path_factory.mktemp("gate") / "gate"


@pytest.fixture(scope="module")
def gated(session: Any, gate: Path) -> Iterator[RayGrid]:
    """Return two actors with agents 0 to 2 and 3 to 4."""

    def make_app() -> Any:
        problems = {**dict(enumerate(PROBLEMS)), 1: Gated(PROBLEMS[1], gate)}
        return client_app(None, lambda context: problems[position(context)])

    with RayGrid(make_app, AGENTS, actors=2) as made:
        yield made


def test_checkpoint_does_not_wait_for_agents_at_work_and_their_late_replies_are_dropped(
    session: Any, gated: RayGrid, gate: Path, caplog: Any
) -> None:
    strategy = FedPLT(num_agents=AGENTS, round_timeout=0.5, **PLT)
    strategy.start(gated, zeros(DIM), num_rounds=2)
    assert sorted(gated.node_states()) == list(NAMES)
    assert "holds no state" not in caplog.text
    gate.touch()
    try:
        for number in (3, 4):
            late = strategy.play_round(gated, number)
            assert late.participants == ("3", "4")
        begun = time.monotonic()
        assert sorted(gated.node_states()) == ["3", "4"]
        assert time.monotonic() - begun < 10.0
    finally:
        gate.unlink()
    said = [line for line in caplog.messages if "holds no state" in line]
    assert said == [
        "the checkpoint holds no state of 3 of 5 agents: still at work on an earlier round (3)"
    ]
    assert len(gated._forgotten) == 6
    late_batches = list(gated._under_way)
    session.wait(late_batches, num_returns=len(late_batches), timeout=30.0)
    assert sorted(gated.node_states()) == list(NAMES)  # what has ended does not count as at work
    strategy.run.options = replace(strategy.run.options, round_timeout=30.0)
    for number in (5, 6):
        assert strategy.play_round(gated, number).participants == NAMES
    assert (gated._replies, gated._forgotten, gated._under_way) == ({}, set(), {})
    assert sorted(gated.node_states()) == list(NAMES)


def test_replies_that_came_too_late_for_send_and_receive_are_dropped(
    gated: RayGrid, gate: Path
) -> None:
    """Another caller's late replies are left for it."""
    content = RecordDict({"any": ConfigRecord({"number": 1})})

    def messages() -> list[Message]:
        return [Message(content, node, MessageType.EVALUATE) for node in sorted(gated.online)]

    gated.actors[0].__ray_call__.remote(lambda _: time.sleep(1.0))
    kept = list(gated.push_messages(messages()))
    assert len(list(gated.send_and_receive(messages(), timeout=0.0))) < AGENTS
    assert len(gated._forgotten) >= 3
    gated.forget(["no such message"])
    found: list[Message] = []
    deadline = time.monotonic() + 30.0
    while len(found) < AGENTS and time.monotonic() < deadline:
        found += gated.pull_messages(kept)
    assert {reply.metadata.reply_to_message_id for reply in found} == set(kept)
    assert len(list(gated.send_and_receive(messages(), timeout=30.0))) == AGENTS
    assert (gated._replies, gated._forgotten) == ({}, set())


def test_actor_that_does_not_answer_costs_a_checkpoint_its_agents_only(
    session: Any, gated: RayGrid, gate: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    FedPLT(num_agents=AGENTS, **PLT).start(gated, zeros(DIM), num_rounds=1)
    whole = gated.node_states()
    gate.touch()
    trap = str(gate)
    blocked = gated.actors[0].__ray_call__.remote(lambda _: wait_for_the_end_of(trap))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ray_actors, "STATES_PATIENCE", 0.3)
            assert gated.node_states() == {name: whole[name] for name in ("3", "4")}
            with pytest.raises(RunError, match=r"could not be put back: no answer within 0.3 s$"):
                gated.restore_node_states(whole)
    finally:
        gate.unlink()
    session.get(blocked)
    assert "no state of 3 of 5 agents: no answer within 0.3 s (3)" in caplog.text
    with pytest.raises(RunError, match=r"could not be put back: .*not a dense payload") as caught:
        gated.restore_node_states({"4": b"nonsense"})
    assert "\n" not in str(caught.value)
    kill(session, gated.actors[1])
    assert gated.node_states() == {name: whole[name] for name in ("0", "1", "2")}
    assert "no state of 2 of 5 agents: their process ended (2)" in caplog.text
    with pytest.raises(RunError, match=r"could not be put back: their process ended$"):
        gated.restore_node_states(whole)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (False, "its process did not start: FileNotFoundError: no data here"),
        (True, "its process did not start: "),
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
        replies = grid.send_and_receive(messages, timeout=30.0)
        return [str(one.error.reason) if one.has_error() else "" for one in replies]

    with RayGrid(make_app, 2, actors=2) as made:
        missing.touch()
        kill(session, made.actors[0])
        assert asked(made) == ["its process ended", ""]
        for _ in range(2):
            said, fine = asked(made)
            assert said.startswith(reason)
            assert fine == ""
        line = f"^process 1 of 2 was replaced 3 times in a row in vain: {reason}"
        with pytest.raises(RunError, match=line):
            asked(made)


def strange() -> Any:
    """Return a ClientApp that answers differently at every node, mostly wrongly."""

    class Local(enum.IntEnum):
        ONE = 1

    def answer(message: Message, context: Any) -> Any:
        node = context.node_config["partition-id"]
        reply = Message(RecordDict(dict(message.content.items())), reply_to=message)
        if node == 1:
            reply.content = "text"  # type: ignore[assignment]
        if node == 2:
            reply.content["mine"] = ConfigRecord({"cannot": Local.ONE})
        return {0: None, 3: message}.get(node, reply)

    return answer


def test_reply_that_cannot_be_sent_costs_its_own_agent_only(session: Any) -> None:
    with RayGrid(strange, 5, actors=1) as made:
        content = RecordDict({"any": ConfigRecord({"number": 1})})
        messages = [Message(content, node, "train") for node in sorted(made.node_configs)]
        replies = list(made.send_and_receive(messages, timeout=30.0))
        assert [reply.has_error() for reply in replies] == [True] * 4 + [False]
        reasons = (
            "returned NoneType",
            "has no attribute 'items'",
            "local object",
            "no reply to the one",
        )
        for reply, reason in zip(replies, reasons, strict=False):
            assert reply.error.code == 2
            assert reason in str(reply.error.reason)
        assert replies[4].content == content


def counting() -> Any:
    """Return a ClientApp that changes what it was sent, and says what it has then."""

    def answer(message: Message, context: Any) -> Message:
        config: Any = message.content["config"]
        config["round"] += 1
        config["list"].append(config["round"])
        return Message(message.content, reply_to=message)

    return answer


@pytest.mark.parametrize("actors", [0, 1, 2])
def test_agents_that_change_what_they_were_sent_do_not_see_one_another(
    session: Any, actors: int
) -> None:
    """On every engine, as in a deployment."""
    with ExitStack() as stack:
        made: Any = InlineGrid(counting(), 4)
        if actors:
            made = stack.enter_context(RayGrid(counting, 4, actors=actors))
        config = ConfigRecord({"round": 3, "list": [1]})
        content = RecordDict({"config": config})
        contents = [content, content, RecordDict({"config": config}), content]
        messages = [
            Message(one, node, "train")
            for one, node in zip(contents, sorted(made.node_configs), strict=True)
        ]
        replies = list(made.send_and_receive(messages, timeout=30.0))
    assert [dict(one.content["config"]) for one in replies] == [{"round": 4, "list": [1, 4]}] * 4
    assert all(message.content["config"] is config for message in messages)
    assert dict(config) == {"round": 3, "list": [1]}


THROUGH_RAY_CLIENT = """
import sys
from flwr.app import ConfigRecord, Message, RecordDict
from privet.sim.ray.engine import RayGrid

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
        replies = list(grid.send_and_receive(messages, timeout=30.0))
        assert [reply.content["own"]["own"] for reply in replies] == list(held.values())
    assert grid.node_states() == {}
print("as it was")
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_cluster_is_reached_through_ray_client(tmp_path: Path) -> None:
    """Large values come back although Ray Client carries nothing beside a pickle."""
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
        )
        try:
            wait_for_listener(client)
            ran = subprocess.run(
                [sys.executable, "-c", THROUGH_RAY_CLIENT, f"ray://127.0.0.1:{client}"],
                capture_output=True,
                text=True,
                timeout=120.0,
                check=False,
            )
        finally:
            head.terminate()
            head.wait(60.0)
    assert ran.stdout == "as it was\n", ran.stderr


def wait_for_listener(port: int) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on {port}")
