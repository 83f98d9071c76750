"""What may leave a private round of a training loop of one's own, whatever the loop tries."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError, RunError
from privet.data import DataError
from privet.kernel import BudgetRefused, Told
from privet.kernel.round import Ended
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn
from privet.wire import RECORD
from support.told import own_log, refused

torch = pytest.importorskip("torch", reason="needs the group torch")

ROWS, SECRET = 12, "Ada, 1815"
PRIVATE: dict[str, Any] = {"clip": 0.5, "noise_scale": 0.02, "max_local_steps": 2}
Handler = Callable[[LoopParticipant, Message, Context], Message]


def network() -> Any:
    torch.manual_seed(5)
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).double()
    made.register_buffer("kept", torch.zeros(2, dtype=torch.float64))
    return made


def data() -> Any:
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return inputs, (inputs[:, 0] > 0).long()


def loss(model: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def steps(local: Any) -> None:
    for _ in range(local.steps):
        local.private_step(loss, data())


def honest(participant: LoopParticipant, message: Message, context: Context) -> Message:
    with participant.round(message, context, network()) as local:
        steps(local)
    return local.reply()


def played(handler: Handler, *, mods: Any = (), buffers: str = "constant", rounds: int = 1) -> Any:
    participant = LoopParticipant("fed-dyn", network, lambda context: ROWS, buffers=buffers)
    app = participant.app(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return handler(participant, message, context)

    strategy = FedDyn(num_agents=1, **PRIVATE)
    return strategy.start(InlineGrid(app, 1), initial_arrays(network()), num_rounds=rounds)


def test_an_honest_loop_takes_part() -> None:
    done = played(honest, rounds=2)
    assert not any(each.failures for each in done.history)
    assert 0 < done.history[-1].epsilon < float("inf")


def rewritten(participant: LoopParticipant, message: Message, context: Context) -> Message:
    reply = honest(participant, message, context)
    reply.content[RECORD]["note"] = SECRET
    return reply


def repacked(participant: LoopParticipant, message: Message, context: Context) -> Message:
    """The payload's bytes are the loop's own."""
    reply = honest(participant, message, context)
    held = dict(reply.content[RECORD])
    held["payload"] = bytes(len(held["payload"]))
    return Message(RecordDict({RECORD: ConfigRecord(held)}), reply_to=message)


def forged(participant: LoopParticipant, message: Message, context: Context) -> Message:
    """No round was opened, and nothing charged."""
    return Message(RecordDict({RECORD: ConfigRecord({"payload": b"1815"})}), reply_to=message)


def declining(participant: LoopParticipant, message: Message, context: Context) -> Message:
    raise Ended(forged(participant, message, context).content)


def with_metrics(participant: LoopParticipant, message: Message, context: Context) -> Message:
    reply = honest(participant, message, context)
    reply.content["metrics"] = MetricRecord({"num-examples": ROWS, "loss": 0.5})
    return reply


def forgetful(participant: LoopParticipant, message: Message, context: Context) -> Message:
    """Nobody would know any more that the agent is private."""
    reply = with_metrics(participant, message, context)
    for name in list(context.state):
        del context.state[name]
    return reply


@pytest.mark.parametrize(
    "handler", [rewritten, repacked, forged, declining, with_metrics, forgetful]
)
def test_what_leaves_is_what_was_packed(handler: Handler) -> None:
    with pytest.raises(RunError, match=r"a private agent sends what local.reply\(\) returned"):
        played(handler)


def test_an_earlier_reply_is_no_reply() -> None:
    earlier: list[Message] = []

    def again(participant: LoopParticipant, message: Message, context: Context) -> Message:
        earlier.append(honest(participant, message, context))
        return earlier[0]

    done = played(again, rounds=1)
    assert not done.history[0].failures
    with pytest.raises(RunError, match="a private agent sends what local"):
        played(again, rounds=1)


def test_a_mod_adds_nothing() -> None:
    def adding(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if message.metadata.message_type == "train":
            reply.content["beside"] = MetricRecord({"loss": 0.5})
        return reply

    with pytest.raises(RunError, match="a private agent sends what local"):
        played(honest, mods=[adding])


def several(participant: LoopParticipant, message: Message, context: Context) -> Message:
    """Of which the loop sends the one it likes best."""
    honest(participant, message, context)
    return honest(participant, message, context)


def at_once(participant: LoopParticipant, message: Message, context: Context) -> Message:
    with participant.round(message, context, network()) as local:
        steps(local)
        return honest(participant, message, context)


@pytest.mark.parametrize("handler", [several, at_once])
def test_a_message_opens_one_round(handler: Handler) -> None:
    with pytest.raises(RunError, match="a private round is opened once, with the message"):
        played(handler)


def test_a_private_round_needs_the_guard_of_the_participants_app() -> None:
    def bare(participant: LoopParticipant, message: Message, context: Context) -> Message:
        return honest(LoopParticipant("fed-dyn", network, lambda _: ROWS), message, context)

    with pytest.raises(RunError, match=r"that a handler of participant.app\(\) was given"):
        played(bare)


def test_a_copy_of_a_round_takes_no_draws_of_its_own() -> None:
    def deep(participant: LoopParticipant, message: Message, context: Context) -> Message:
        with participant.round(message, context, network()) as local:
            steps(copy.deepcopy(local))
        return local.reply()

    def shallow(participant: LoopParticipant, message: Message, context: Context) -> Message:
        with participant.round(message, context, network()) as local:
            steps(copy.copy(local))
            steps(local)
        return local.reply()

    with refused(Told.COPIED, "the noise of a release is not copied"):
        played(deep)
    with refused(Told.DRAWS, "more than the 2 draws that were charged"):
        played(shallow)


class Named(Exception):
    pass


Named.__name__ = Named.__qualname__ = SECRET


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError(SECRET)


class Quoting(ConfigError):
    pass


def raising(error: Exception) -> Handler:
    def handler(participant: LoopParticipant, message: Message, context: Context) -> Message:
        with participant.round(message, context, network()):
            raise error

    return handler


def raising_loss(participant: LoopParticipant, message: Message, context: Context) -> Message:
    def failing(model: Any, batch: Any) -> Any:
        raise ConfigError(SECRET)

    with participant.round(message, context, network()) as local:
        local.private_step(failing, data())
    return local.reply()


def raising_optimizer(participant: LoopParticipant, message: Message, context: Context) -> Message:
    class Failing:
        def step(self) -> None:
            raise BudgetRefused(SECRET)

    with participant.round(message, context, network()) as local:
        local.private_step(loss, data(), Failing())
    return local.reply()


@pytest.mark.parametrize(
    "handler",
    [
        raising(ValueError(SECRET)),
        raising(ConfigError(SECRET)),
        raising(Quoting(SECRET)),
        raising(BudgetRefused(SECRET)),
        raising(ConfigError("a line", told=SECRET)),
        raising(DataError("a line", told=SECRET)),
        raising(Named(SECRET)),
        raising(Unspeakable()),
        raising_loss,
        raising_optimizer,
    ],
)
def test_no_text_of_the_loop_is_sent(handler: Handler) -> None:
    """Nor the name of a class, and whatever is raised it is one text."""
    with own_log() as said, pytest.raises(RunError, match=re.escape(Told.WORK)) as caught:
        played(handler)
    assert SECRET not in str(caught.value)
    assert "agent 0" in said.text
    if handler in (raising_loss, raising_optimizer):
        assert SECRET in said.text


def test_a_private_agent_answers_no_query_of_the_users() -> None:
    app = LoopParticipant("fed-dyn", network, lambda context: ROWS).app()
    asked = []

    @app.query("dump")
    def dump(message: Message, context: Context) -> Message:
        asked.append(message)
        return Message(RecordDict(), reply_to=message)

    for config, answered in (({}, True), ({"max-clip": 1.0}, False)):
        grid = InlineGrid(app, [{"agent": "me", **config}])
        node = next(iter(grid.online))
        (reply,) = grid.send_and_receive([Message(RecordDict(), node, "query.dump")])
        assert reply.has_error() != answered
        assert len(asked) == 1
    assert "agent me: declines a query of its own app" in reply.error.reason


class Moving:
    """An optimizer that moves more than the parameters that it was given gradients of."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def step(self) -> None:
        self.model.kept += data()[0].mean()


@pytest.mark.parametrize("buffers", ["constant", "local"])
def test_an_optimizer_that_moves_a_buffer_is_noticed(buffers: str) -> None:
    def handler(participant: LoopParticipant, message: Message, context: Context) -> Message:
        model = network()
        with participant.round(message, context, model) as local:
            for _ in range(local.steps):
                local.private_step(loss, data(), Moving(model))
        return local.reply()

    with pytest.raises(RunError, match="the model was changed outside of private_step"):
        played(handler, buffers=buffers)


def test_attributes_of_the_round_are_suggestions() -> None:
    """Another step size or round changes no number of the upload but the noise."""
    ends = []

    def handler(participant: LoopParticipant, message: Message, context: Context) -> Message:
        with participant.round(message, context, network()) as local:
            if ends:
                local.step_size, local.round = 1e3, 7
            steps(local)
        reply = local.reply()
        ends.append(dict(reply.content[RECORD]))
        return reply

    for _ in range(2):
        participant = LoopParticipant("fed-dyn", network, lambda _: ROWS, buffers="constant")
        app = participant.app()
        app.train()(lambda message, context, held=participant: handler(held, message, context))
        strategy = FedDyn(num_agents=1, noise_seed=3, **PRIVATE)
        strategy.start(InlineGrid(app, 1), initial_arrays(network()), num_rounds=1)
    assert ends[0] == ends[1]
