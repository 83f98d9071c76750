"""Nodes that were turned away or are silent are asked again; messages of closed rounds expire."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from privet.client_apps import client_app
from privet.kernel import AgentLedger, Told
from privet.sim.engine import InlineGrid
from privet.strategies import Failure, FailureCode, FedPLT, Schedule
from privet.wire import AGENT_RECORD, ENROL
from support.federations import app_of, logistic_agents, position, zeros
from support.told import refused

PROBLEMS = logistic_agents(3)


class Mounted:
    """Problems of which the last one is missing until it is mounted."""

    def __init__(self) -> None:
        self.missing = {2}

    def __call__(self, context: Context) -> Any:
        number = position(context)
        if number in self.missing:
            raise FileNotFoundError("train.csv")
        return PROBLEMS[number]


class Watched(InlineGrid):
    """Counts the enrolment questions by node; the nodes in ``mute`` answer none."""

    def __init__(self, problem: Any = None, mute: frozenset[int] = frozenset()) -> None:
        problem = problem or (lambda context: PROBLEMS[position(context)])
        super().__init__(client_app("fed-plt", problem), 3)
        self.asked: dict[int, int] = {}
        self.mute = mute

    def deliver(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if message.metadata.message_type == ENROL:
            self.asked[node] = self.asked.get(node, 0) + 1
            if node in self.mute:
                return None
        return super().deliver(message)


@pytest.fixture
def later(monkeypatch: Any) -> Any:
    """Return a function that lets seconds pass."""
    passed, real = [0.0], time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: real() + passed[0])

    def wait(seconds: float) -> None:
        passed[0] += seconds

    return wait


def begun(grid: InlineGrid, **options: Any) -> FedPLT:
    strategy = FedPLT(**{"rho": 1.0, "local_epochs": 2, "num_agents": 3, **options})
    strategy.start(grid, zeros(4), num_rounds=1)
    return strategy


def test_a_node_turned_away_is_asked_when_it_comes_back() -> None:
    problem = Mounted()
    grid = Watched(problem)
    strategy = begun(grid)
    assert strategy.session is not None
    assert "train.csv" in strategy.session.history[0].notes[0]
    problem.missing.clear()
    assert strategy.play_round(grid, 2).participants == ("0", "1")  # it is not asked all the time
    grid.online.discard(1002)
    strategy.play_round(grid, 3)
    grid.online.add(1002)
    assert strategy.play_round(grid, 4).participants == ("0", "1", "2")
    assert strategy.session.roster.rejected == {}


def test_a_node_turned_away_is_asked_after_a_pause_and_told_of_once(later: Any) -> None:
    problem = Mounted()
    grid = Watched(problem)
    strategy = begun(grid)
    for number in (2, 3):
        later(130.0)
        assert strategy.play_round(grid, number).notes == ()
    assert grid.asked[1002] == 3
    problem.missing.clear()
    later(250.0)
    assert strategy.play_round(grid, 4).participants == ("0", "1", "2")


def test_an_agent_turned_away_for_its_number_comes_back_with_the_right_one(later: Any) -> None:
    few = logistic_agents(3, rows=12)
    problems = list(PROBLEMS)
    grid = Watched(lambda context: problems[position(context)])
    private = {"clip": 1.0, "noise_variance": 1.0, "local_solver": "noisy-gd", "row_norm": 9.0}
    strategy = begun(grid, **private)
    assert strategy.session is not None
    problems[1] = few[1]
    strategy.session.roster.doubtful.add("1")
    app: Any = grid._nodes
    app.client_app = app_of(problems)
    refused = strategy.play_round(grid, 2)
    assert "a private run keeps the number" in refused.failures["1"].text
    problems[1] = PROBLEMS[1]
    later(61.0)
    app.client_app = app_of(problems)
    assert strategy.play_round(grid, 3).participants == ("0", "1", "2")


def test_the_loser_of_a_name_steps_in_when_it_is_free() -> None:
    grid = Watched()
    config = {"partition-id": 0, "num-partitions": 3}
    grid.contexts[2000] = Context(1, 2000, config, RecordDict(), {})
    grid.online.add(2000)
    strategy = begun(grid, recover_by_name="no")
    strategy.play_round(grid, 2)
    assert strategy.session is not None
    assert strategy.session.roster.agents["0"].node == 1000
    grid.online.discard(1000)
    assert strategy.play_round(grid, 3).participants == ("0", "1", "2")
    assert strategy.session.roster.agents["0"].node == 2000


def test_a_mute_node_is_asked_with_growing_pauses(later: Any, monkeypatch: Any) -> None:
    """Each question costs a round its timeout: over 20 rounds there are few, and one note."""
    monkeypatch.setattr("privet.rounds.enrol.admission.ENROL_PATIENCE", 0.01)
    monkeypatch.setattr("privet.rounds.enrol.admission.ENROL_TIMEOUT", 0.01)
    grid = Watched(mute=frozenset({1002}))
    strategy = FedPLT(rho=1.0, local_epochs=2, num_agents=3, wait_timeout=0.01)
    strategy.begin(grid, zeros(4))
    first = grid.asked[1002]
    assert first == 1
    notes: list[str] = []
    asked = []
    for number in range(1, 21):
        notes += strategy.play_round(grid, number).notes
        asked.append(grid.asked[1002])
        later(30.0)
    assert asked[-1] - first <= 5
    assert sum("did not answer the enrolment question" in note for note in notes) == 1
    grid.mute = frozenset()
    grid.online.discard(1002)
    strategy.play_round(grid, 21)
    grid.online.add(1002)
    later(60.0)
    assert strategy.play_round(grid, 22).participants == ("0", "1", "2")


# ------------------------------------------------------------------ time to live


class Flowers(Grid):
    """A grid as Flower's: an engine behind it, without this library's own methods."""

    def __init__(self, inner: InlineGrid) -> None:
        self.inner = inner
        self.ttl: list[tuple[str, float]] = []

    def set_run(self, run: Any) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self.inner.create_message(*args, **kwargs)

    def get_node_ids(self) -> Any:
        return self.inner.get_node_ids()

    def push_messages(self, messages: Any) -> Any:
        batch = list(messages)
        self.ttl += [(m.metadata.message_type, m.metadata.ttl) for m in batch]
        return self.inner.push_messages(batch)

    def pull_messages(self, message_ids: Any) -> Any:
        return self.inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        pytest.fail("these messages would live for Flower's own time")


def test_every_message_lives_for_what_is_left_of_its_round() -> None:
    app = app_of(PROBLEMS)
    grid = Flowers(InlineGrid(app, 3))
    strategy = FedPLT(rho=1.0, num_agents=3, round_timeout=25.0, fraction_evaluate=1.0)
    result = strategy.start(grid, zeros(4), num_rounds=2)
    assert {kind for kind, _ in grid.ttl} == {"train", "evaluate", ENROL}
    assert all(0 < ttl <= 25.0 for kind, ttl in grid.ttl if kind != ENROL)
    assert all(0 < ttl <= 180.0 for _, ttl in grid.ttl)
    assert isinstance(result.evaluate_metrics_clientapp[2], MetricRecord)


@pytest.mark.usefixtures("clock")
def test_an_expired_message_costs_no_work_and_no_budget(tmp_path: Path) -> None:
    """A node stopped in its work on a round that has ended refuses it when it goes on."""
    ledger = tmp_path / "ledger.jsonl"
    rules = {"max-epsilon": 100.0, "delta": 1e-5, "ledger-path": str(ledger)}
    app = app_of(PROBLEMS)

    class Stopped(InlineGrid):
        late = False

        def deliver(self, message: Message) -> Message | None:
            if self.late and AGENT_RECORD in message.content:
                message.metadata.ttl = time.time() - message.metadata.created_at - 7.0
            return super().deliver(message)

    nodes = [{"partition-id": 0, **rules}, {"partition-id": 1}, {"partition-id": 2}]
    grid = Stopped(app, nodes)
    private = {"clip": 1.0, "noise_variance": 1.0, "local_solver": "noisy-gd", "row_norm": 9.0}
    strategy = begun(grid, **private, patience=0)
    assert len(ledger.read_text().splitlines()) == 1
    grid.late = True
    with refused(Told.EXPIRED, "agent 1: the message expired 7 s ago by this node's", Exception):
        strategy.play_round(grid, 2)
    grid.late = False
    assert len(ledger.read_text().splitlines()) == 1
    strategy.play_round(grid, 3)
    assert strategy.session is not None
    assert AgentLedger.from_json(strategy.session.roster.agents["0"].ledger).messages == 2


class Sleeper(InlineGrid):
    """A node that sleeps for a third of the time, and then goes through its messages in order."""

    nap, period = 0.4, 1.2
    node = 1000

    def __init__(self) -> None:
        super().__init__(app_of(PROBLEMS), 3)
        self.begun, self.queue, self.worked = time.monotonic(), list[Message](), 0

    def dispatch(self, messages: list[Message]) -> None:
        for one in messages:
            one.metadata.__dict__["_created_at"] = time.time()  # Flower's own clock goes on
        train = [one for one in messages if one.metadata.message_type != ENROL]
        self.queue += [one for one in train if one.metadata.dst_node_id == self.node]
        super().dispatch([one for one in messages if one not in self.queue])
        time.sleep(0.05 if train else 0.0)  # the work of the others

    def pull_messages(self, message_ids: Any) -> Any:
        while self.queue and (time.monotonic() - self.begun) % self.period > self.nap:
            message = self.queue.pop(0)
            reply = self.deliver(message)
            assert reply is not None
            self.worked += reply.has_content()
            self.arrived(message, reply)
        return super().pull_messages(message_ids)


@pytest.mark.usefixtures("clock")
def test_a_node_that_sleeps_costs_its_own_rounds_only() -> None:
    """As a minute in every three, on a smaller scale: it never works on a closed round."""
    grid, timeout, rounds = Sleeper(), 0.15, 40
    strategy = FedPLT(rho=1.0, num_agents=3, round_timeout=timeout)
    result = strategy.start(Flowers(grid), zeros(4), num_rounds=rounds)
    took_part = [done.participants for done in result.history]
    assert set(took_part) == {("0", "1", "2"), ("1", "2")}
    assert {name for done in result.history for name in done.failures} == {"0"}
    assert grid.worked == took_part.count(("0", "1", "2"))
    naps = 1 + (time.monotonic() - grid.begun) / grid.period
    assert took_part.count(("1", "2")) <= naps * (grid.nap / timeout + 1)
    app = app_of(PROBLEMS)
    asked = FedPLT(rho=1.0, num_agents=3, participation=Schedule(tuple(took_part)))
    undisturbed = asked.start(InlineGrid(app, 3), zeros(4), num_rounds=rounds)
    ours, theirs = (one.arrays["x"].numpy() for one in (result, undisturbed))
    assert ours.tobytes() == theirs.tobytes()


# ------------------------------------------------------------------ versions


def test_a_mixed_federation_is_named_once(monkeypatch: Any) -> None:
    """Versions that speak the same protocols work together; the history says that they do."""
    grid = Watched()
    versions = iter(["0.0.9"])
    ours = "0.2.0"
    monkeypatch.setattr("privet.agents.base.library_version", lambda: next(versions, ours))
    monkeypatch.setattr("privet.rounds.run.library_version", lambda: ours)
    strategy = begun(grid)
    assert strategy.session is not None
    assert strategy.session.history[0].participants == ("0", "1", "2")
    line = "privet 0.2.0 here, 0.0.9 on the nodes of agents 0"
    assert strategy.session.history[0].notes == (line,)
    assert strategy.play_round(grid, 2).notes == ()


def test_flowers_word_for_an_expired_message_is_a_late_reply() -> None:
    """It comes in place of a reply once the time to live of the message is over."""

    class Expires(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            if AGENT_RECORD in message.content and message.metadata.dst_node_id == 1001:
                return Message(Error(3, "Error: Message Unavailable - ..."), reply_to=message)
            return super().deliver(message)

    app = app_of(PROBLEMS)
    strategy = begun(Expires(app, 3), round_timeout=9.0)
    assert strategy.session is not None
    assert strategy.session.history[0].failures == {
        "1": Failure(FailureCode.LATE, "no reply within 9 s")
    }
