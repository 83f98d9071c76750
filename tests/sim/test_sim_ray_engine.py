"""The Ray engine: the bits of the in-process engine, and what the end of a process costs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from privet.client_apps import client_app
from privet.sim.cli.main import main
from privet.sim.ray.engine import RayGrid
from privet.sim.ray.session import ray_session
from privet.sim.sweep import SweepError, sweep
from privet.strategies import FedPDM, FedPLT, Fraction, PrivetResult, Schedule
from privet.wire import ConfigError, RunError
from support.federations import FaultyGrid, logistic_agents, lose_state, position, zeros
from support.memory import resident_megabytes
from support.paths import ROOT
from support.traps import Trapped

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
        with ray_session(num_cpus=4) as ray:
            folder = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[2]
            assert folder.exists()
            yield ray
            assert ray.is_initialized()  # whoever used it on the way has left it as it was
        assert not ray.is_initialized()
        assert not folder.exists()


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that agent 1 waits at while it exists."""
    return tmp_path_factory.mktemp("trap") / "trap"


class Killing(RayGrid):
    """Kills the process of agents 0, 1 and 2 while agent 1 works, in the push after ``armed``."""

    armed: Path | None = None

    def dispatch(self, messages: list[Message]) -> None:
        trap, self.armed = self.armed, None
        if trap is None:
            super().dispatch(messages)
            return
        caught = trap.with_suffix(".caught")
        trap.touch()
        super().dispatch(messages)
        deadline = time.monotonic() + 30.0
        while not caught.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert caught.exists()
        trap.unlink()
        caught.unlink()
        self._ray.kill(self.actors[0])


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


def bits(result: PrivetResult) -> bytes:
    return b"".join(np.asarray(record["x"].numpy()).tobytes() for record in result.models.values())


def run(strategy: Any, grid: Any, rounds: int, **options: Any) -> PrivetResult:
    result: PrivetResult = strategy.start(grid, zeros(DIM), num_rounds=rounds, **options)
    return result


def test_partial_participation_and_seeded_noise_give_the_bits_of_the_inline_run(
    grid: Killing,
) -> None:
    ours = run(FedPLT(num_agents=AGENTS, **NOISY), grid, 8)
    reference = run(FedPLT(num_agents=AGENTS, **NOISY), inline(), 8)
    assert bits(ours) == bits(reference)
    taking_part = [done.participants for done in ours.history]
    assert taking_part == [done.participants for done in reference.history]
    assert len(set(taking_part)) > 1
    assert [done.bytes_up for done in ours.history] == [d.bytes_up for d in reference.history]


def echo() -> Any:
    """Return a ClientApp that sends back what it got; the bytes of a model are large."""

    def answer(message: Message, context: Any) -> Message:
        return Message(RecordDict(dict(message.content.items())), reply_to=message)

    return answer


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
    deadline = time.monotonic() + 30.0
    while len(found) < len(ids) and time.monotonic() < deadline:
        for reply in grid.pull_messages(ids):
            both: Any = [reply.content[name] for name in ("all", "own")]
            held = b"".join(one["payload"] for one in both)
            found[reply.metadata.reply_to_message_id] = held
    return [found[one] for one in ids]


def test_every_reply_holds_what_its_own_message_held(session: Any) -> None:
    """Also where batches overtake the reading of replies."""
    with RayGrid(echo, 6, actors=2) as made:
        batches = [sent(made, number) for number in (1, 2)]
        for ids, held in batches:
            assert pulled(made, ids) == held


def test_run_resumes_on_either_engine_with_the_same_bits(grid: Killing, tmp_path: Path) -> None:
    """A checkpoint of the Ray engine holds the agents' states, and the other way round."""
    whole = run(FedPLT(num_agents=AGENTS, **NOISY), inline(), 8)
    for name, first, second in (("ray", grid, inline()), ("inline", inline(), grid)):
        file = tmp_path / f"{name}.npz"
        run(FedPLT(num_agents=AGENTS, **NOISY), first, 4, checkpoint=file)
        with np.load(file) as saved:
            assert sum(member.startswith("node/") for member in saved.files) == AGENTS
        resumed = run(FedPLT(num_agents=AGENTS, **NOISY), second, 8, resume=file)
        assert bits(resumed) == bits(whole)
        assert all(done.notes == () for done in resumed.history)


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
    assert hit.failures == dict.fromkeys(("0", "1", "2"), "error 8: its process ended")
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


def test_agent_that_cannot_build_its_problem_is_turned_away_by_name(grid: Killing) -> None:
    broken = max(grid.node_configs)
    grid.online.add(broken)
    try:
        strategy = FedPLT(num_agents=AGENTS + 1, **PLT)
        result = run(strategy, grid, 2)
    finally:
        grid.online.discard(broken)
    assert strategy.session is not None
    assert list(strategy.session.roster.rejected.values()) == ["agent 5: 5"]
    assert result.history[-1].participants == NAMES


def test_node_that_is_away_is_answered_for(grid: Killing) -> None:
    away = max(grid.node_configs)
    content = RecordDict({"any": ConfigRecord({"number": 1})})
    messages = [Message(content, node, MessageType.EVALUATE) for node in (away, away - 1)]
    first, second = grid.send_and_receive(messages, timeout=30.0)
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
    deadline = time.monotonic() + 30.0
    found: list[Message] = []
    while len(found) < AGENTS and time.monotonic() < deadline:
        found += grid.pull_messages(late)
    assert {reply.metadata.src_node_id for reply in found} == grid.online
    assert {reply.metadata.reply_to_message_id for reply in found} == late
    said = [reply.error.reason if reply.has_error() else "metrics" for reply in found]
    assert all(one == "metrics" or "declines evaluation" in str(one) for one in said)


def test_client_app_that_cannot_be_made_is_one_line(session: Any) -> None:
    def make_app() -> Any:
        raise FileNotFoundError("no data here")

    with pytest.raises(RunError, match=r"ClientApp could not be made: .*no data here"):
        RayGrid(make_app, 2, actors=1)
    assert session.is_initialized()  # the session was there before, so it stays


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_of_all_processes_is_flat(grid: Killing, session: Any) -> None:
    """Only the history here grows, by less than a kilobyte a round; nothing stays in the actors."""
    pids = [os.getpid()]
    pids += session.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in grid.actors])
    strategy = FedPLT(num_agents=AGENTS, **PLT)
    run(strategy, grid, 3_000)  # by then the allocators have settled
    before = [resident_megabytes(pid) for pid in pids]
    for number in range(3_001, 10_001):
        strategy.play_round(grid, number)
    grown = [resident_megabytes(pid) - old for pid, old in zip(pids, before, strict=True)]
    assert grown[0] < 7_000 / 1024
    assert max(grown[1:]) < 1.0


# ------------------------------------------------------------------ sweeps


def test_sweep_uses_the_session_that_is_open_unless_asked_for_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default as many cases run at a time as the session has cores, not this machine."""
    monkeypatch.setattr("privet.sim.sweep.local_cpus", lambda: 1)

    def meet(case: int) -> tuple[int, int]:
        (tmp_path / str(case)).touch()
        deadline = time.monotonic() + 30.0
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
    with np.load(models[0]) as reference, np.load(models[1]) as ours:
        assert sorted(ours.files) == sorted(reference.files)
        for member in reference.files:
            assert ours[member].tobytes() == reference[member].tobytes()
