"""Three engines, one trajectory; and projects that bring a ClientApp of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy

from privet.client_apps import Participant
from privet.core import RunError
from privet.kernel import Told
from privet.problems import minimize
from privet.rounds.exchange import exchange
from privet.server_apps.model_file import load_model
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import FedPLT, Fraction
from support.federations import app_of, logistic_agents, model, position, train, zeros
from support.paths import ROOT
from support.simulation import run_simulation
from support.told import own_log

CONFIG: dict[str, Any] = {
    "num-agents": 4,
    "num-server-rounds": 5,
    "participation": "probability",
    "probability": "0=0.5,2=0.7",
    "local-solver": "noisy-gd",
    "noise-variance": 0.001,
    "noise-seed": 3,
    "clip": 1.0,
    "row-norm": 4.0,
    "h": "l1",
    "h-weight": 0.05,
    "seed": 11,
}


@pytest.mark.ray
def test_ray_simulation_gives_the_bits_of_the_inline_run(tmp_path: Path) -> None:
    """Partial participation, a proximal h, seeded noise and a path of the run config included."""
    clicks = tmp_path / "clicks.svm"
    clicks.write_text("".join(f"{i % 2} 1:{i % 7} 2:{i % 5} 3:{i % 3}\n" for i in range(60)))
    data = {"dataset": "click", "data-path": str(clicks), "columns": 3, "partition": "iid"}
    config = {**CONFIG, **data, "output-dir": str(tmp_path)}
    outcome = run_simulation(ROOT, num_supernodes=4, run_config=config, on_line=lambda line: None)
    assert outcome.completed, outcome.details
    inline = run_inline(config, "inline").folder
    ray = tmp_path / outcome.run_id
    ours, reference = load_model(ray).arrays, load_model(inline).arrays
    for name, array in reference.items():
        assert ours[name].tobytes() == array.tobytes()
    lines = [
        [
            json.loads(line)["participants"]
            for line in (one / "history.jsonl").read_text().splitlines()
        ]
        for one in (ray, inline)
    ]
    assert lines[0] == lines[1]
    assert len({len(participants) for participants in lines[0]}) > 1


@pytest.mark.ray
@pytest.mark.slow
def test_asynchronous_run_in_flowers_simulation_goes_by_the_real_clock(tmp_path: Path) -> None:
    config = {
        "num-agents": 4,
        "num-server-rounds": 25,
        "asynchronous": True,
        "buffer": 1,
        "max-uploads": 12,
        "dataset": "synthetic",
        "regularizer-weight": 2.0,
        "strong-convexity": 2.0,
        "smoothness": 4.0,
        "rho": 8.0**-0.5,
        "local-epochs": 30,
        "output-dir": str(tmp_path),
    }
    outcome = run_simulation(ROOT, num_supernodes=4, run_config=config, on_line=lambda line: None)
    assert outcome.completed, outcome.details
    folder = tmp_path / outcome.run_id
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    clocks = [line["clock"] for line in lines]
    assert clocks == sorted(clocks)
    assert not any(line["failures"] for line in lines)
    assert any(
        sent < line["round"] for line in lines for sent in line["versions"]
    )  # it did not wait for all
    summary = json.loads((folder / "summary.json").read_text())
    uploads = [name for line in lines for name in line["participants"]]
    assert summary["uploads"] == len(uploads) == 4 * summary["sweeps"]
    assert summary["distance-to-optimum"] < 1e-2


def app_of_fedavg() -> ClientApp:
    """Return a ClientApp as Flower's FedAvg wants it, left as it was."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    return app


def app_without_query_handler() -> ClientApp:
    """Return a ClientApp around a participant, which nobody can enrol."""
    app, participant = ClientApp(), Participant(lambda context: logistic_agents(1)[0])
    app.train()(participant.train)
    return app


NOT_OURS = (
    "this ClientApp is not Privet's: use client_app(...), LoopParticipant, or Participant with its "
    "query handler (docs/how-to/flower-project.md)"
)


@pytest.mark.parametrize("app", [app_of_fedavg, app_without_query_handler])
def test_client_app_of_another_strategy_is_named_in_one_line(app: Any, caplog: Any) -> None:
    """For all nodes together; the error is that line as well."""
    with pytest.raises(RunError) as raised:
        train(logistic_agents(5), 2, grid=InlineGrid(app(), 5))
    assert str(raised.value) == f"0 agents could be enrolled, below min-agents = 1: {NOT_OURS}"
    said = [record.getMessage() for record in caplog.records if "not Privet's" in record.message]
    assert said == [f"turned away: nodes 1000, 1001, 1002 and 2 more: {NOT_OURS}"]


def test_it_is_known_by_its_reason_under_a_long_traceback() -> None:
    """As Flower's simulation gives it: Ray's text comes first."""
    ray = "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'" + "  File ...\n" * 90
    reason = f"{ray}ValueError: No query function registered with name 'privet'"

    def app(message: Message, context: Context) -> Message:
        return Message(Error(2, reason), reply_to=message)

    with pytest.raises(RunError, match=r"^0 agents could be enrolled.*: this ClientApp is"):
        train(logistic_agents(2), 2, grid=InlineGrid(app, 2))


def test_a_node_of_another_strategy_costs_the_others_nothing() -> None:
    problems, other = logistic_agents(3), app_of_fedavg()
    ours = app_of(problems)

    def app(message: Message, context: Context) -> Message:
        return (other if position(context) == 1 else ours)(message, context)

    result, strategy, _ = train(problems, 2, grid=InlineGrid(app, 3))
    assert strategy.session is not None
    assert list(strategy.session.roster.agents) == ["0", "2"]
    assert result.history[0].participants == ("0", "2")
    assert f"turned away: node 1001: {NOT_OURS}" in result.history[0].notes


def test_flowers_own_loop_can_drive_the_strategy() -> None:
    """configure_train and aggregate_train alone make a round."""
    problems = logistic_agents(4)
    options: dict[str, Any] = {
        "rho": 1.0,
        "local_epochs": 3,
        "num_agents": 4,
        "participation": Fraction(0.5),
    }
    driven = Strategy.start(
        FedPLT(**options), InlineGrid(app_of(problems), 4), zeros(4), num_rounds=7
    )
    ours, _, _ = train(problems, 7, participation=Fraction(0.5))
    assert driven.arrays["x"].numpy().tobytes() == model(ours).tobytes()
    assert driven.train_metrics_clientapp[7]["participants"] == 2


def test_engine_runs_other_peoples_strategies_and_apps() -> None:
    app = ClientApp()

    @app.train()
    def add_one(message: Message, context: Context) -> Message:
        (array,) = message.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
        message.content["scratch"] = ConfigRecord({"mine": 1})  # must not reach the others
        assert len(message.content) == 3
        content = {"arrays": ArrayRecord([array + context.node_config["partition-id"]])}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({**content, "metrics": metrics}), reply_to=message)

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    result = strategy.start(InlineGrid(app, 3), ArrayRecord([np.zeros(2)]), num_rounds=4)
    assert np.allclose(result.arrays.to_numpy_ndarrays()[0], 4.0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda message: None, "the ClientApp returned NoneType, not a Message"),
        (lambda message: message, "returned a Message that is no reply to the one sent"),
        (lambda message: Message(RecordDict(), 1, "train"), "is no reply to the one sent"),
    ],
)
def test_answer_that_is_no_reply_is_an_error_of_its_node(answer: Any, reason: str) -> None:
    """It is there at once: nobody waits for the deadline."""

    def app(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1:
            return answer(message)  # type: ignore[no-any-return]
        return Message(RecordDict(), reply_to=message)

    grid = InlineGrid(app, 3)
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    ids = list(grid.push_messages(messages))
    assert ids == ["1", "2", "3"]
    replies = list(grid.pull_messages(ids))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[1].error.code == 2
    assert reason in str(replies[1].error.reason)


def test_ids_are_those_of_the_messages_also_where_one_comes_back_as_its_own_reply() -> None:
    class Mirror(InlineGrid):
        def deliver(self, message: Message) -> Message:
            return message

    grid = Mirror(lambda message, context: message, 2)
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    assert list(grid.push_messages(messages)) == ["1", "2"]


class Slow(InlineGrid):
    """Answers only when the next messages are pushed."""

    def dispatch(self, messages: list[Message]) -> None:
        late, self.late = getattr(self, "late", []), messages
        super().dispatch(late)


def test_exchange_asks_a_grid_to_forget_what_came_too_late() -> None:
    """A grid that cannot, such as Flower's own, is left alone."""
    asked: list[set[str]] = []

    class Forgetful(Slow):
        def forget(self, message_ids: Iterable[str]) -> None:
            asked.append(set(message_ids))

    class Keeping(Slow):
        forget = None  # type: ignore[assignment]

    for kind in (Forgetful, Keeping):
        grid = kind(lambda message, context: Message(RecordDict(), reply_to=message), 2)
        named = {str(n): Message(RecordDict(), n, "train") for n in grid.get_node_ids()}
        replies = exchange(grid, named, 0.01)
        assert [reply.reason for reply in replies.values()] == ["no reply within 0.01 s"] * 2
    assert asked == [{"1", "2"}]


def test_waiting_has_a_line_each_time_it_is_twice_as_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of eight do not reply: a first line, and others ever later, for whom and how long."""

    class Dead(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            return (
                None if message.metadata.dst_node_id in (1002, 1007) else super().deliver(message)
            )

    monkeypatch.setattr("privet.rounds.exchange.SILENCE", 0.05)
    grid = Dead(lambda message, context: Message(RecordDict(), reply_to=message), 8)
    named = {f"ward-{n}": Message(RecordDict(), n, "train") for n in grid.get_node_ids()}
    with caplog.at_level("INFO", "flwr.privet"):
        exchange(grid, named, 1.0)
    lines = [one for one in caplog.messages if one.startswith("waited")]
    assert 1 <= len(lines) <= 5
    said = r"waited \d s for 2 of 8 replies, at most \d s more: ward-1002, ward-1007"
    assert all(re.fullmatch(said, line) for line in lines), lines


def test_forgotten_replies_are_not_kept() -> None:
    grid = InlineGrid(lambda message, context: Message(RecordDict(), reply_to=message), 3)
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    first, *others = grid.push_messages(messages)
    grid.forget([*others, "no such message"])
    assert [one.metadata.reply_to_message_id for one in grid.pull_messages([first, *others])] == [
        first
    ]


def test_state_path_carries_an_agent_over_a_restart(tmp_path: Path) -> None:
    problems = logistic_agents(2)
    nodes = [{"partition-id": i, "state-path": str(tmp_path / f"{i}.npz")} for i in range(2)]
    grid = InlineGrid(app_of(problems), nodes)
    train(problems, 3, grid=grid, start={"checkpoint": tmp_path / "checkpoint.npz"})
    fresh = InlineGrid(app_of(problems), nodes)
    result, _, _ = train(problems, 6, grid=fresh, start={"resume": tmp_path / "checkpoint.npz"})
    assert result.history[3].notes == ()  # both nodes still hold the state: nothing was sent
    assert model(result).tobytes() == model(train(problems, 6)[0]).tobytes()


@pytest.mark.parametrize("damage", [b"", b"PK", b"not a state at all"])
def test_damaged_state_file_is_named_and_the_others_go_on(tmp_path: Path, damage: bytes) -> None:
    problems = logistic_agents(2)
    file = tmp_path / "state.npz"
    file.write_bytes(damage)
    nodes = [{"partition-id": 0, "state-path": str(file)}, {"partition-id": 1}]
    with own_log() as said:
        _, strategy, _ = train(problems, 1, grid=InlineGrid(app_of(problems), nodes))
    assert strategy.session is not None
    assert list(strategy.session.roster.agents) == ["1"]
    # Nobody knows any more whether the agent is private.
    assert [*strategy.session.roster.rejected.values()] == [f"agent 0: {Told.STATE}"]
    assert f"agent 0: state-path {file} is damaged" in said.text


def test_agent_that_appears_later_joins() -> None:
    problems = logistic_agents(3)
    grid = InlineGrid(app_of(problems), 3)
    grid.online.discard(1002)
    strategy = FedPLT(rho=1.0, local_epochs=10, num_agents=2)
    strategy.start(grid, zeros(4), num_rounds=3)
    grid.online.add(1002)

    done = strategy.play_round(grid, 4)
    assert done.notes == ("agent 2 joined",)
    for number in range(5, 80):
        strategy.play_round(grid, number)
    assert strategy.session is not None
    last = strategy.half.models(strategy.session.state)["last"]
    assert np.allclose(last, minimize(problems).x, atol=1e-8)
