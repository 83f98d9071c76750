"""What an agent keeps from round to round beside its method's state: the state of its optimizers,
and personal layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from privet.client_apps import LoopParticipant, initial_arrays
from privet.core import ConfigError, RunError
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.strategies import FedDyn, FedPDM, FedPLT, PrimalDualStrategy, Scaffold
from privet.wire import AGENT_RECORD, RECORD, pack
from privet.wire.contract import agent_record, encode_settings, shared_record
from support.told import refused

torch = pytest.importorskip("torch", reason="needs the group torch")

AGENTS, ROWS, STEPS = 2, 6, 3
STEP: dict[str, Any] = {"num_agents": AGENTS, "step_size_base": 0.05, "max_local_steps": STEPS}
ADAM = torch.optim.Adam


class Net(torch.nn.Module):
    """A shared body, and a head with BatchNorm that may stay with the agent."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, inputs: Any) -> Any:
        return self.head(self.norm(self.body(inputs)))


def records(agent: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(agent)
    inputs = rng.normal(agent, 1.0, size=(ROWS, 3))
    return torch.tensor(inputs, dtype=torch.float32), torch.full((ROWS, 1), 1.0 - 2.0 * agent)


def snapshot(model: Any) -> dict[str, Any]:
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


class Loop:
    """A federation whose agents note their model at both ends of every round."""

    def __init__(
        self,
        protocol: str | None = "fed-dyn",
        optimizers: Callable[[Any], Sequence[Any]] = lambda model: [
            torch.optim.SGD(model.parameters(), lr=0.05)
        ],
        freeze: Callable[[Any, int], None] = lambda model, number: None,
        made: Callable[[], Any] = Net,
        **options: Any,
    ) -> None:
        self.begins: list[tuple[int, dict[str, Any]]] = []
        self.ends: list[tuple[int, dict[str, Any]]] = []
        self.states: list[list[dict[str, Any]]] = []
        self.taking_part = LoopParticipant(protocol, made, lambda context: ROWS, **options)
        self.app = self.taking_part.app()

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            agent, model = int(context.node_config["partition-id"]), made()
            inputs, targets = records(agent)
            with self.taking_part.round(message, context, model, hook=True) as local:
                freeze(model, local.round)
                self.begins.append((agent, snapshot(model)))
                stepping = optimizers(model)
                for _ in range(STEPS):
                    for optimizer in stepping:
                        optimizer.zero_grad()
                    (model(inputs) - targets).square().mean().backward()
                    for optimizer in stepping:
                        optimizer.step()
                self.ends.append((agent, snapshot(model)))
                self.states.append([each.state_dict()["state"] for each in stepping])
            return local.reply()

    def start(self, strategy: PrimalDualStrategy, rounds: int = 3, **options: Any) -> Any:
        grid = InlineGrid(self.app, AGENTS)
        return strategy.start(grid, initial_arrays(Net()), num_rounds=rounds, **options)

    def of(self, agent: int, notes: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [note for who, note in notes if who == agent]


def equal(found: dict[str, Any], expected: dict[str, Any], names: Sequence[str]) -> bool:
    return all(torch.equal(found[name], expected[name]) for name in names)


OWN = {"num_agents": AGENTS}
BY_NAME: dict[str, Callable[[], PrimalDualStrategy]] = {
    "fed-plt": lambda: FedPLT(**OWN, step_size=0.05, local_epochs=STEPS),
    "fed-dyn": lambda: FedDyn(**STEP),
    "fed-pdm": lambda: FedPDM(0.5, **STEP),
    "scaffold": lambda: Scaffold(**STEP),
}


def test_one_app_serves_every_strategy() -> None:
    loop = Loop(None, buffers="constant")
    for name, strategy in BY_NAME.items():
        served = loop.start(strategy(), 1)
        alone = Loop(name, buffers="constant").start(strategy(), 1)
        assert len(served.history[-1].participants) == AGENTS
        for key, array in alone.arrays.items():
            assert np.array_equal(served.arrays[key].numpy(), array.numpy())


def test_an_app_for_every_strategy_refuses_what_a_loop_cannot_be() -> None:
    from privet.strategies import DPFedSGD

    loop = Loop(None, buffers="constant")
    with pytest.raises(RunError, match="dp-fedsgd does its local steps itself"):
        loop.start(DPFedSGD(num_agents=AGENTS), 1)
    assert not loop.begins


# ------------------------------------------------------------------ optimizers


def moments(states: list[dict[str, Any]]) -> list[float]:
    """Return how many steps Adam has counted, for each of a round's optimizers."""
    return [float(state[0]["step"]) for state in states]


def adam_whole(model: Any) -> list[Any]:
    return [ADAM(model.parameters(), lr=0.01)]


def adam_in_two(model: Any) -> list[Any]:
    return [ADAM(model.body.parameters(), lr=0.01), ADAM(model.head.parameters(), lr=0.01)]


@pytest.mark.parametrize("optimizers", [adam_whole, adam_in_two])
def test_an_optimizer_goes_on_from_the_round_before(optimizers: Any) -> None:
    anew = Loop(optimizers=optimizers)
    anew.start(FedDyn(**STEP), 2)
    assert {count for states in anew.states for count in moments(states)} == {float(STEPS)}
    loop = Loop(optimizers=optimizers, keep_optimizer=True)
    loop.start(FedDyn(**STEP), 2)
    counts = [moments(states) for states in loop.states[::AGENTS]]
    assert counts == [[float(STEPS * number)] * len(counts[0]) for number in (1, 2)]


def test_settings_of_an_optimizer_are_those_of_the_round() -> None:
    rates: list[float] = []

    def optimizers(model: Any) -> list[Any]:
        rates.append(0.01 / (1 + len(rates)))
        made = ADAM(model.parameters(), lr=rates[-1])
        seen.append(made)
        return [made]

    seen: list[Any] = []
    Loop(optimizers=optimizers, keep_optimizer=True).start(FedDyn(**STEP), 2)
    assert [each.param_groups[0]["lr"] for each in seen] == rates


class Around(ADAM):  # type: ignore[misc]
    """An optimizer around another, that shares its groups and loads its state, as SAM does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.01)
        self.base = ADAM(self.param_groups)
        self.param_groups = self.base.param_groups

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.base.param_groups = self.param_groups


@pytest.mark.parametrize("made", [lambda each: ADAM(each, lr=0.01), Around], ids=["adam", "around"])
def test_groups_that_are_held_are_those_of_the_optimizer(made: Any) -> None:
    held: list[tuple[Any, Any]] = []

    def optimizers(model: Any) -> list[Any]:
        optimizer = made(model.parameters())
        held.append((optimizer, optimizer.param_groups[0]))
        return [optimizer]

    loop = Loop(optimizers=optimizers, keep_optimizer=True)
    loop.start(FedDyn(**STEP), 2)
    assert loop.states[-1][0][0]["step"] == 2 * STEPS  # given back
    for optimizer, group in held:
        group["lr"] = 0.5
        for each in (optimizer, getattr(optimizer, "base", optimizer)):
            assert each.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    "options", [{"keep_optimizer": True}, {"personal": ("head", "batch-norm")}], ids=str
)
def test_a_resumed_run_goes_on_with_what_agents_keep(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """As in ``privet tune``, whose trials go on from checkpoints with new contexts."""
    whole = Loop(optimizers=adam_whole, **options).start(FedDyn(**STEP), 2)
    loop, path = Loop(optimizers=adam_whole, **options), tmp_path / "checkpoint.npz"
    loop.start(FedDyn(**STEP), 1, checkpoint=path)
    resumed = loop.start(FedDyn(**STEP), 2, resume=path)
    for name, array in whole.arrays.items():
        assert np.array_equal(resumed.arrays[name].numpy(), array.numpy())


def test_a_lost_reply_leaves_what_an_agent_keeps_where_the_round_began() -> None:
    loop = Loop(optimizers=adam_whole, keep_optimizer=True, personal="head")
    strategy, grid = FedDyn(**STEP), InlineGrid(loop.app, AGENTS)
    strategy.begin(grid, initial_arrays(Net()))
    strategy.play_round(grid, 1)
    ended = loop.of(0, loop.ends)[-1]
    messages = strategy.configure_train(2, strategy.run.arrays, None, grid)  # type: ignore[arg-type]
    grid.send_and_receive(messages)  # whose replies are lost
    strategy.play_round(grid, 2)
    again = loop.of(0, loop.begins)
    assert equal(again[1], ended, ["head.weight"])
    assert equal(again[2], ended, ["head.weight"])
    assert [moments(states) for states in loop.states[::AGENTS]] == [[3.0], [6.0], [6.0]]


def test_an_optimizer_of_another_kind_is_refused_in_a_line() -> None:
    made: list[Any] = []

    class Picky(torch.optim.SGD):  # type: ignore[misc]
        def load_state_dict(self, state: Any) -> None:
            raise ValueError("no such state")

    def optimizers(model: Any) -> list[Any]:
        made.append(None)
        kind = ADAM if len(made) <= AGENTS else Picky
        return [kind(model.parameters(), lr=0.01)]

    with pytest.raises(RunError, match=r"keep_optimizer: Picky does not take the state"):
        Loop(optimizers=optimizers, keep_optimizer=True).start(FedDyn(**STEP), 2)
    with pytest.raises(ConfigError, match=r"a mapping of arrays has no torch\.optim\.Optimizer"):
        LoopParticipant(None, {"w": np.zeros(2)}, lambda context: 1, keep_optimizer=True)


# ------------------------------------------------------------------ personal layers

HEAD = ("head.weight", "head.bias")
NORM = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")
COUNTED = "norm.num_batches_tracked"


@pytest.mark.parametrize(
    ("name", "personal", "own"),
    [
        ("fed-plt", ("norm", "head.bias"), (*NORM, COUNTED, "head.bias")),
        ("fed-dyn", "batch-norm", (*NORM, COUNTED)),
        ("fed-pdm", "head", HEAD),
        ("scaffold", "head", HEAD),
    ],
)
def test_personal_layers_stay_with_the_agent(name: str, personal: Any, own: Any) -> None:
    loop = Loop(name, personal=personal, buffers="constant")
    result = loop.start(BY_NAME[name](), 2)
    shared = [each for each in HEAD if each not in own] + ["body.weight"]
    for agent in range(AGENTS):
        first, second = loop.of(agent, loop.begins)
        assert equal(first, Net().state_dict(), own)
        assert equal(second, loop.of(agent, loop.ends)[0], own)
        assert not any(torch.equal(first[each], second[each]) for each in own)
    begins = [loop.of(agent, loop.begins)[1] for agent in range(AGENTS)]
    assert not any(torch.equal(begins[0][each], begins[1][each]) for each in own[:1])
    assert name == "fed-plt" or equal(begins[0], begins[1], shared)
    start = Net().state_dict()
    moved = [key for key, a in result.arrays.items() if not np.array_equal(a.numpy(), start[key])]
    assert {*shared} <= {*moved}
    assert not {*own} & {*moved}


def test_an_evaluation_recalls_personal_layers() -> None:
    loop = Loop(personal=("head", "batch-norm"))
    recalled: dict[int, dict[str, Any]] = {}

    @loop.app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = Net()
        for each in model.parameters():
            each.data.zero_()
        loop.taking_part.recall(model, context)
        recalled[int(context.node_config["partition-id"])] = snapshot(model)
        return Message(RecordDict(), reply_to=message)

    loop.start(FedDyn(**STEP, fraction_evaluate=1.0), 2)
    for agent in range(AGENTS):
        assert equal(recalled[agent], loop.of(agent, loop.ends)[-1], [*HEAD, *NORM, COUNTED])
        assert not recalled[agent]["body.weight"].any()


def test_what_cannot_be_personal_is_one_line() -> None:
    def made(model: Any, personal: Any) -> None:
        LoopParticipant(None, model, lambda context: 1, personal=personal)

    with pytest.raises(ConfigError, match=r"'haed'; its parameters are body\.weight"):
        made(Net(), "haed")
    with pytest.raises(ConfigError, match="the model has no BatchNorm layer"):
        made(torch.nn.Linear(1, 1), "batch-norm")
    with pytest.raises(ConfigError, match="a mapping of arrays has what travels alone"):
        made({"w": np.zeros(2)}, "w")
    with pytest.raises(ConfigError, match="no trainable parameters"):
        made(torch.nn.Sequential(torch.nn.Linear(1, 1)), "0")
    for first in ("body", "head"):
        tied = Net()
        tied.body, tied.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        tied.head.weight = tied.body.weight
        with pytest.raises(ConfigError, match="are one tensor, which cannot both stay and travel"):
            made(tied, first)


# ------------------------------------------------------------------ gradual unfreezing


def unfrozen_later(model: Any, number: int) -> None:
    model.body.requires_grad_(number > 2)


@pytest.mark.parametrize("name", ["fed-plt", "fed-dyn"])
def test_layers_may_be_frozen_in_some_rounds(name: str) -> None:
    """Frozen within the block, or before it: what travels is the same in every round."""
    results = []
    for before in (False, True):
        counted = [0]

        def made(before: bool = before, counted: list[int] = counted) -> Any:
            model = Net()
            if before and counted[0]:  # not the participant's
                unfrozen_later(model, 1 + (counted[0] - 1) // AGENTS)
            counted[0] += 1
            return model

        freeze = (lambda model, number: None) if before else unfrozen_later
        loop = Loop(name, made=made, freeze=freeze, buffers="constant")
        results.append(loop.start(BY_NAME[name](), 3))
        body = [end["body.weight"] for end in loop.of(0, loop.ends)]
        assert torch.equal(body[0], Net().body.weight)
        assert torch.equal(body[1], body[0])
        assert not torch.equal(body[2], body[1])
        heads = [end["head.weight"] for end in loop.of(0, loop.ends)]
        assert not torch.equal(heads[0], Net().head.weight)
    for key, array in results[0].arrays.items():
        assert np.array_equal(results[1].arrays[key].numpy(), array.numpy())


def test_what_was_frozen_where_the_participant_was_made_is_not_trained() -> None:
    counted = [0]

    def made() -> Any:
        model = Net()
        model.body.requires_grad_(counted[0] > 0)
        counted[0] += 1
        return model

    with pytest.raises(RunError, match=r"'body.bias': what is trained in any round has"):
        Loop(made=made, buffers="constant").start(FedDyn(**STEP), 1)


def test_a_method_that_counts_every_gradient_freezes_nothing() -> None:
    loop = Loop("scaffold", freeze=unfrozen_later, buffers="constant")
    with pytest.raises(RunError, match="of every parameter, this loop took 0 and 3"):
        loop.start(Scaffold(**STEP), 1)


# ------------------------------------------------------------------ private rounds

PRIVATE: dict[str, Any] = {**STEP, "clip": 1.0, "noise_scale": 0.1, "noise_seed": 3}


def mean_loss(model: Any, batch: Any) -> Any:
    return (model(batch[0]) - batch[1]).square().mean()


def plain() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))


class PrivateLoop:
    """Agents that step with Adam in rounds that the strategy makes private, or with plain loops."""

    def __init__(self, elsewhere: bool = False, freeze: str = "", **options: Any) -> None:
        self.counts: list[float] = []
        self.contexts: dict[int, Context] = {}
        taking_part = LoopParticipant(None, plain, lambda context: ROWS, **options)
        self.app = taking_part.app()

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            agent, model = int(context.node_config["partition-id"]), plain()
            self.contexts[agent] = context
            model[1].requires_grad_(freeze != "before")
            with taking_part.round(message, context, model) as local:
                model[1].requires_grad_(not freeze)
                optimizer = ADAM(model.parameters(), lr=0.01)
                if elsewhere:
                    mean_loss(model, records(agent)).backward()
                    optimizer.param_groups[0]["lr"] = 0.0
                    optimizer.step()
                for _ in range(local.steps):
                    if local._private is None:
                        optimizer.zero_grad()
                        mean_loss(model, records(agent)).backward()
                        local.correct(model)
                        optimizer.step()
                    else:
                        local.private_step(mean_loss, records(agent), optimizer)
                self.counts.append(float(optimizer.state_dict()["state"][0]["step"]))
            return local.reply()

    def start(self, strategy: PrimalDualStrategy, rounds: int = 2, nodes: Any = AGENTS) -> Any:
        return strategy.start(InlineGrid(self.app, nodes), initial_arrays(plain()), rounds)


def test_an_optimizer_of_private_steps_goes_on_from_private_steps() -> None:
    loop = PrivateLoop(keep_optimizer=True)
    loop.start(FedDyn(**PRIVATE))
    assert loop.counts == [3.0, 3.0, 6.0, 6.0]


def test_a_private_round_begins_with_no_state_of_other_rounds() -> None:
    """A server that asks for a plain round first would have its gradients meet charged noise."""
    loop = PrivateLoop(keep_optimizer=True)
    grid = InlineGrid(loop.app, 1)
    (node,) = grid.get_node_ids()
    dim = sum(each.numel() for each in plain().parameters())
    keys = {"step-size-base": 0.05, "max-local-steps": STEPS}
    noise = {"clip": 1.0, "noise-scale": 1.0}
    for number, settings in enumerate((keys, keys | noise, keys, keys | noise, keys | noise), 1):
        encoded, model = encode_settings(settings), {"x": np.zeros(dim, "f4")}
        shared = shared_record("fed-dyn", 1, "e", number, encoded, model)
        content = RecordDict({RECORD: shared, AGENT_RECORD: agent_record(number - 1, None)})
        (reply,) = grid.send_and_receive([Message(content, node, "train")])
        assert not reply.has_error(), reply.error.reason
    assert loop.counts == [3.0, 3.0, 3.0, 3.0, 6.0]


def test_an_optimizer_steps_in_private_steps_alone() -> None:
    with pytest.raises(RunError, match="in a private round an optimizer steps in private_step"):
        PrivateLoop(elsewhere=True, keep_optimizer=True).start(FedDyn(**PRIVATE))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"personal": "1"}, (Told.PERSONAL, "all that a private round sends depends on them")),
        ({"freeze": "before"}, (Told.FROZEN, r"'1.weight' is frozen in this round")),
    ],
    ids=["personal", "frozen"],
)
def test_what_a_private_round_cannot_have_costs_nothing(
    options: dict[str, Any], said: tuple[Told, str], tmp_path: Path
) -> None:
    ledger = tmp_path / "0.jsonl"
    node = {"partition-id": 0, "max-epsilon": 1e3, "delta": 1e-5, "ledger-path": str(ledger)}
    strategy = FedDyn(**{**STEP, "num_agents": 1}, clip=1.0, noise_scale=1.0)
    with refused(*said):
        PrivateLoop(**options).start(strategy, 1, [node])
    assert not ledger.exists()


def test_a_layer_frozen_in_a_private_round_is_refused() -> None:
    with refused(Told.FROZEN, r"'1.weight' is frozen in this round"):
        PrivateLoop(freeze="within").start(FedDyn(**PRIVATE))


def test_a_dry_run_refuses_personal_layers() -> None:
    taking_part = LoopParticipant(None, plain, lambda context: ROWS, personal="1")
    with pytest.raises(ConfigError, match="personal: layers that stay with an agent"):
        taking_part.check(mean_loss, records(0))


@pytest.mark.parametrize(
    "name", ["loop.personal", "loop.optimizers", "loop.noised-optimizers", "loop.noised-buffers"]
)
def test_no_server_gives_an_agent_what_it_keeps(name: str) -> None:
    loop = PrivateLoop(keep_optimizer=True)
    grid = InlineGrid(loop.app, 1)
    (node,) = grid.get_node_ids()
    dim = sum(each.numel() for each in plain().parameters())
    settings = encode_settings({"step-size-base": 0.05})
    shared = shared_record("fed-dyn", 1, "e", 1, settings, {"x": np.zeros(dim, "f4")})
    held = pack({"g": np.zeros(dim, "f4"), name: np.zeros(9, "u1")})
    content = RecordDict({RECORD: shared, AGENT_RECORD: agent_record(0, held)})
    (reply,) = grid.send_and_receive([Message(content, node, "train")])
    assert f"the state that was sent holds '{name}'" in reply.error.reason
    assert not loop.counts


def test_what_an_agent_keeps_does_not_travel() -> None:
    loop = Loop(optimizers=adam_whole, keep_optimizer=True, personal=("head", "batch-norm"))
    sent: list[int] = []

    def app(message: Message, context: Context) -> Message:
        reply: Message = loop.app(message, context)
        for record in reply.content.values():
            assert isinstance(record, ConfigRecord)
            blobs = [each for each in record.values() if isinstance(each, bytes)]
            assert not any(b"loop." in blob for blob in blobs)
            sent.append(sum(map(len, blobs)))
        return reply

    grid = InlineGrid(app, AGENTS)
    FedDyn(**STEP).start(grid, initial_arrays(Net()), num_rounds=2)
    assert max(sent) < 4 * 16 + 100  # the body, and names and shapes
