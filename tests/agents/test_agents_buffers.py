"""A module's buffers in a training loop of one's own: averaged, local or constant; any state dict
as a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privet.agents.loop.carried import LOCAL_BUFFERS
from privet.agents.state import keep_state, read_state
from privet.client_apps import LoopParticipant, TorchProblem, client_app, initial_arrays
from privet.core import ConfigError, RunError
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedAvg, FedDyn, FedPDM, FedPLT, PrimalDualStrategy
from privet.wire import AGENT_RECORD, RECORD, Layout, pack, unpack
from privet.wire.contract import agent_record, encode_settings, shared_record
from privet.wire.payload import BUFFERS
from support.told import refused

torch = pytest.importorskip("torch")
AGENTS, ROWS, ROUNDS = 3, 24, 3
STATISTICS = ("0.running_mean", "0.running_var")
COUNTED = "0.num_batches_tracked"


def network(kind: Any = None) -> Any:
    torch.manual_seed(1)
    layers = (torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    model = torch.nn.Sequential(*layers).to(kind or torch.float32)
    model[2].requires_grad_(False)
    return model


def records(agent: int, kind: Any) -> Any:
    rng = np.random.default_rng(agent)
    inputs = rng.normal(agent, 1.0 + agent, size=(ROWS, 4))
    return torch.tensor(inputs, dtype=kind), torch.tensor(rng.integers(2, size=ROWS))


class Loop:
    """A federation whose agents share one module, and note its buffers around every round."""

    def __init__(self, name: str, kind: Any = None, **options: Any) -> None:
        self.kind = kind or torch.float32
        self.model = network(kind)
        self.begins: list[tuple[int, dict[str, Any]]] = []
        self.ends: list[tuple[int, dict[str, Any]]] = []
        taking_part = LoopParticipant(name, self.model, lambda context: ROWS, **options)
        self.app = taking_part.app()

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            agent = int(context.node_config["partition-id"])
            inputs, classes = records(agent, self.kind)
            with taking_part.round(message, context, self.model, hook=True) as local:
                self.begins.append((agent, self.noted()))
                optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
                for rows in torch.arange(ROWS).split(8):
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy
                    loss(self.model(inputs[rows]).float(), classes[rows]).backward()
                    optimizer.step()
                self.ends.append((agent, self.noted()))
            return local.reply()

    def noted(self) -> dict[str, Any]:
        return {name: each.detach().clone() for name, each in self.model.named_buffers()}

    def start(self, strategy: PrimalDualStrategy, arrays: ArrayRecord, **options: Any) -> Any:
        options = {"num_rounds": ROUNDS, **options}
        return strategy.start(InlineGrid(self.app, AGENTS), arrays, **options)


def fed_dyn(**more: Any) -> FedDyn:
    return FedDyn(num_agents=AGENTS, step_size_base=0.05, **more)


STRATEGIES = {
    "fed-dyn": fed_dyn,
    "fed-plt": lambda: FedPLT(num_agents=AGENTS, step_size=0.05, rho=1.0),
    "fed-pdm": lambda: FedPDM(num_agents=AGENTS, step_size_base=0.05, alpha_u=0.5),
}


def state_dict() -> ArrayRecord:
    return ArrayRecord(network().state_dict())


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_next_round_begins_with_the_mean_of_the_agents_statistics(name: str) -> None:
    loop = Loop(name)
    result = loop.start(STRATEGIES[name](), state_dict())
    for statistic in STATISTICS:
        for number in range(ROUNDS):
            of_round = slice(number * AGENTS, (number + 1) * AGENTS)
            ends = [each[statistic].double().numpy() for _, each in loop.ends[of_round]]
            mean = np.mean(ends, axis=0).astype("f4")
            assert np.abs(mean - ends[0]).max() > 0.01
            if number < ROUNDS - 1:
                following = slice((number + 1) * AGENTS, (number + 2) * AGENTS)
                for _, begin in loop.begins[following]:
                    assert np.allclose(begin[statistic].numpy(), mean, rtol=1e-6)
            else:
                assert np.allclose(result.arrays[statistic].numpy(), mean, rtol=1e-6)
    network().load_state_dict(result.arrays.to_torch_state_dict())  # strict: nothing is missing
    assert result.arrays[COUNTED].numpy() == 0


def test_local_statistics_are_those_an_agent_ended_with() -> None:
    loop = Loop("fed-dyn", buffers="local")
    result = loop.start(fed_dyn(), state_dict())
    for agent in range(AGENTS):
        begins = [each for who, each in loop.begins if who == agent]
        ends = [each for who, each in loop.ends if who == agent]
        assert [int(each[COUNTED]) for each in begins] == [0, 3, 6]
        for before, after in zip(ends, begins[1:], strict=False):
            assert all(torch.equal(before[name], after[name]) for name in before)
        assert torch.equal(begins[0]["0.running_mean"], torch.zeros(4))
    assert np.array_equal(result.arrays["0.running_mean"].numpy(), np.zeros(4))


def test_a_lost_reply_leaves_local_statistics_where_the_round_began() -> None:
    loop, strategy = Loop("fed-dyn", buffers="local"), fed_dyn()
    grid = InlineGrid(loop.app, AGENTS)
    strategy.begin(grid, state_dict())
    strategy.play_round(grid, 1)
    kept = {node: context.state["privet.state"] for node, context in grid.contexts.items()}
    expected = dict(loop.ends)
    messages = strategy.configure_train(2, strategy.run.arrays, None, grid)  # type: ignore[arg-type]
    grid.send_and_receive(messages)  # whose replies are lost
    assert any(context.state["privet.state"] != kept[n] for n, context in grid.contexts.items())
    loop.begins.clear()
    again = [Message(each.content, each.metadata.dst_node_id, "train") for each in messages]
    grid.send_and_receive(again)
    for who, begin in loop.begins:
        assert torch.equal(begin["0.running_mean"], expected[who]["0.running_mean"])


def test_constant_statistics_are_those_of_the_starting_model() -> None:
    loop, start = Loop("fed-dyn", buffers="constant"), state_dict()
    start["0.running_mean"] = Array(np.full(4, 5.0, "f4"))
    result = loop.start(fed_dyn(), start)
    assert all(
        torch.equal(each["0.running_mean"], torch.full((4,), 5.0)) for _, each in loop.begins
    )
    assert not torch.equal(loop.ends[0][1]["0.running_mean"], torch.full((4,), 5.0))
    assert torch.equal(loop.model[0].running_mean, torch.full((4,), 5.0))  # after the round
    assert np.array_equal(result.arrays["0.running_mean"].numpy(), np.full(4, 5.0))


@pytest.mark.parametrize("buffers", ["average", "local", "constant"])
def test_a_state_dict_and_the_initial_arrays_are_the_same_start(buffers: str) -> None:
    """The former has frozen parameters besides, which come back as they were."""
    one, other = Loop("fed-dyn", buffers=buffers), Loop("fed-dyn", buffers=buffers)
    whole, part = state_dict(), initial_arrays(network())
    assert whole.keys() - part.keys() == {"2.weight", "2.bias"}
    results = one.start(fed_dyn(), whole).arrays, other.start(fed_dyn(), part).arrays
    assert list(results[0]) == list(whole)
    for name in part:
        assert np.array_equal(results[0][name].numpy(), results[1][name].numpy())
    assert np.array_equal(results[0]["2.weight"].numpy(), whole["2.weight"].numpy())
    assert not np.array_equal(results[0]["1.weight"].numpy(), whole["1.weight"].numpy())


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_a_resumed_run_goes_on_with_its_statistics(buffers: str, tmp_path: Path) -> None:
    whole = Loop("fed-dyn", buffers=buffers).start(fed_dyn(), state_dict(), num_rounds=4)
    loop, path = Loop("fed-dyn", buffers=buffers), tmp_path / "checkpoint.npz"
    loop.start(fed_dyn(), state_dict(), num_rounds=2, checkpoint=path)
    resumed = loop.start(fed_dyn(), state_dict(), num_rounds=4, resume=path)
    for name, array in whole.arrays.items():
        assert np.array_equal(resumed.arrays[name].numpy(), array.numpy())


def test_half_precision_trains_as_it_is_and_comes_back_as_it_was() -> None:
    loop = Loop("fed-dyn", torch.float16)
    start = ArrayRecord(network(torch.float16).state_dict())
    result = loop.start(fed_dyn(), start)
    assert loop.begins[0][1]["0.running_mean"].dtype == torch.float16
    assert {name: array.dtype for name, array in result.arrays.items()} == {
        name: array.dtype for name, array in start.items()
    }
    means = [each["0.running_mean"].double().numpy() for _, each in loop.ends[-AGENTS:]]
    found = result.arrays["0.running_mean"].numpy()
    assert np.array_equal(found, np.mean(means, axis=0).astype("f4").astype("f2"))
    coarse = Loop("fed-dyn", torch.bfloat16)
    given = initial_arrays(network(torch.bfloat16))
    assert given["0.running_var"].dtype == "float32"
    assert given[COUNTED].dtype == "int64"
    assert np.isfinite(coarse.start(fed_dyn(), given).arrays["0.running_var"].numpy()).all()


PRIVATE = {"clip": 1.0, "noise_scale": 1.0, "noise_seed": 3}


def test_averaged_statistics_never_leave_a_private_agent(tmp_path: Path) -> None:
    said = r"agent 0: buffers = 'average' would send '0.running_mean', un-noised"
    loop = Loop("fed-dyn")
    with refused(Told.BUFFERS, said):
        loop.start(fed_dyn(**PRIVATE), state_dict())
    ledger = tmp_path / "0.jsonl"
    budget = {"max-epsilon": 1.0, "delta": 1e-5, "ledger-path": str(ledger)}
    grid = InlineGrid(loop.app, [{"partition-id": 0, **budget}])
    with refused(Told.BUFFERS, said):
        FedDyn(num_agents=1, step_size_base=0.05).start(grid, state_dict(), num_rounds=1)
    assert not ledger.exists()
    assert not loop.begins
    masked = Loop("fed-plt")
    strategy = FedPLT(num_agents=AGENTS, step_size=0.05, secure_sum=True)
    with refused(Told.BUFFERS, r"would send .0\.running_mean."):
        masked.start(strategy, state_dict())
    assert not masked.begins


def test_statistics_that_the_participant_was_not_made_with_do_not_leave(tmp_path: Path) -> None:
    """A layer without parameters came later: the layouts agree, and nothing was asked of it."""
    bare = torch.nn.Sequential(torch.nn.Linear(4, 2))
    model = torch.nn.Sequential(*bare, torch.nn.BatchNorm1d(2, affine=False))
    taking_part = LoopParticipant("fed-dyn", bare, lambda context: ROWS)
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        inputs, _ = records(0, torch.float32)
        with taking_part.round(message, context, model) as local:
            model(inputs)
            model.eval()
            for _ in range(local.steps):
                local.private_step(lambda net, rows: net(rows).square().mean(), inputs)
        return local.reply()

    ledger = tmp_path / "0.jsonl"
    node = {"partition-id": 0, "max-epsilon": 1e3, "delta": 1e-5, "ledger-path": str(ledger)}
    strategy = FedDyn(num_agents=1, step_size_base=0.05, clip=1.0, noise_scale=1.0)
    with refused(Told.WORK, "has other buffers than the participant's"):
        strategy.start(InlineGrid(app, [node]), initial_arrays(bare), num_rounds=1)
    assert not ledger.exists()


def private_app(buffers: str) -> ClientApp:
    """Return an app of private steps, whose statistics are those of the start."""
    model = network()
    model[0].eval()  # in training mode it would mix the examples
    taking_part = LoopParticipant("fed-dyn", model, lambda context: ROWS, buffers=buffers)
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        inputs, classes = records(0, torch.float32)
        with taking_part.round(message, context, model) as local:
            for _ in range(local.steps):
                local.private_step(
                    lambda net, batch: torch.nn.functional.cross_entropy(net(batch[0]), batch[1]),
                    (inputs, classes),
                )
        return local.reply()

    return app


@pytest.mark.parametrize("buffers", ["local", "constant"])
def test_a_private_round_trains_with_statistics_that_stay(buffers: str) -> None:
    strategy = FedDyn(num_agents=2, step_size_base=0.05, **PRIVATE)
    done = strategy.start(InlineGrid(private_app(buffers), 2), state_dict(), num_rounds=2)
    assert len(done.history[-1].participants) == 2
    assert np.array_equal(done.arrays["0.running_mean"].numpy(), np.zeros(4))


class Adding(InlineGrid):
    """A grid whose agent 1 sends buffers of its own choice."""

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        node = self.contexts[message.metadata.dst_node_id].node_config
        if message.metadata.message_type == "train" and node["partition-id"] == 1:
            assert reply is not None
            assert reply.has_content()
            record = reply.content[RECORD]
            added = {BUFFERS: np.full(8, 1e6, "f4")}
            record["payload"] = pack({**unpack(record["payload"]), **added})  # type: ignore[arg-type,index]
        return reply


def test_buffers_that_an_agent_of_a_private_run_sends_cost_it_its_upload() -> None:
    strategy = FedDyn(num_agents=3, step_size_base=0.05, patience=0.0, **PRIVATE)
    done = strategy.start(Adding(private_app("constant"), 3), state_dict(), num_rounds=2)
    assert [each.participants for each in done.history] == [("0", "2")] * 2
    assert all("private run sends" in each.failures["1"].text for each in done.history)
    assert np.array_equal(done.arrays["0.running_mean"].numpy(), np.zeros(4))


def test_one_agent_alone_does_not_set_the_buffers_of_a_run() -> None:
    loop = Loop("fed-dyn", buffers="constant")
    done = fed_dyn().start(Adding(loop.app, AGENTS), state_dict(), num_rounds=1)
    assert done.history[0].participants == ("0", "1", "2")
    assert np.allclose(done.arrays["0.running_mean"].numpy(), 1e6 / AGENTS)


@pytest.mark.parametrize("charged", [False, True])
def test_a_private_round_begins_with_no_statistics_of_unnoised_steps(charged: bool) -> None:
    """Those of an update that is noised as a whole are functions of the records, never noised."""
    model, begins, contexts = network(), [], []
    taking_part = LoopParticipant(None, model, lambda context: ROWS, buffers="local")
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        inputs, classes = records(0, torch.float32)
        contexts.append(context)
        with taking_part.round(message, context, model) as local:
            begins.append(model[0].running_mean.clone())
            model.train(not charged)
            for _ in range(local.steps if charged else 0):
                local.private_step(
                    lambda net, batch: torch.nn.functional.cross_entropy(net(batch[0]), batch[1]),
                    (inputs, classes),
                )
            if not charged:
                model(inputs)
        return local.reply()

    class Renaming(InlineGrid):
        """Puts the statistics of the other kind of round into the agent's state, by their name."""

        def deliver(self, message: Message) -> Message | None:
            if contexts and message.metadata.message_type == "train":
                (held,) = {id(one): read_state(one) for one in contexts}.values()
                state = unpack(held.states[-1])
                assert set(LOCAL_BUFFERS.values()) & set(state) == {LOCAL_BUFFERS[charged]}
                state[LOCAL_BUFFERS[not charged]] = np.full(9, 7.0)
                states = (*held.states[:-1], pack(state))
                keep_state(contexts[0], held._replace(states=states))
                assert held.fully_charged
            return super().deliver(message)

    private = {"num_agents": 1, "clip": 1.0, "noise_scale": 1.0, "step_size_base": 0.05}
    strategy = FedDyn(**private) if charged else DPFedAvg(**private)
    done = strategy.start(Renaming(app, 1), state_dict(), num_rounds=2)
    assert not any(each.failures for each in done.history)
    assert not begins[0].any()
    assert bool(begins[1].any()) is not charged
    assert not (begins[1] == 7.0).any()
    with torch.no_grad():
        model[0].running_mean.fill_(5.0)
    taking_part.recall(model, contexts[0])
    assert not (model[0].running_mean == 5.0).any()


@pytest.mark.parametrize("kind", ["average", "local", "constant"])
@pytest.mark.parametrize("size", [1, 7, 9])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_message_with_other_statistics_costs_no_work(kind: str, size: int, dtype: str) -> None:
    """Whatever a server sends in their place, in the broadcast or as the agent's own state."""
    loop = Loop("fed-dyn", buffers=kind)
    grid = InlineGrid(loop.app, 1)
    (node,) = grid.get_node_ids()
    settings = encode_settings({"step-size-base": 0.05})
    model = {"x": np.zeros(15, "f4")}
    statistics = {BUFFERS: np.zeros(size, dtype)}
    for broadcast, state in (({**model, **statistics}, None), (model, statistics)):
        shared = shared_record("fed-dyn", 1, "e", 1, settings, broadcast)
        held = None if state is None else pack({"g": np.zeros(15, "f4"), **state})
        content = RecordDict({RECORD: shared, AGENT_RECORD: agent_record(0, held)})
        (reply,) = grid.send_and_receive([Message(content, node, "train")])
        assert "array 'buffers' is of shape" in reply.error.reason
    assert not loop.begins


def test_what_does_not_go_together_is_one_line() -> None:
    with pytest.raises(ConfigError, match="buffers is 'keep', expected average, local, constant"):
        LoopParticipant("fed-dyn", network(), lambda context: 1, buffers="keep")
    bare = ArrayRecord({n: a for n, a in state_dict().items() if not n.startswith("0.r")})
    with pytest.raises(RunError, match=r"takes '0.running_mean' from the server, which is not in"):
        Loop("fed-dyn").start(fed_dyn(), bare)
    with pytest.raises(ConfigError, match="array 'n' is int64: parameters must be floats"):
        Loop("fed-dyn").start(fed_dyn(), ArrayRecord({"n": Array(np.zeros(3, int))}))


def test_agents_that_treat_buffers_differently_do_not_take_part_together() -> None:
    apps = [Loop("fed-dyn", buffers=kind).app for kind in ("average", "local")]

    def app(message: Message, context: Context) -> Message:
        return apps[int(context.node_config["partition-id"]) > 0](message, context)

    strategy = FedDyn(num_agents=2, step_size_base=0.05)
    done = strategy.start(InlineGrid(app, 2), state_dict(), num_rounds=1)
    assert done.history[0].participants == ("0",)
    assert "handles its buffers (average, constant, local)" in done.history[0].notes[0]


def test_a_module_of_the_library_begins_with_a_whole_state_dict() -> None:
    def problem(context: Context) -> TorchProblem:
        data = records(int(context.node_config["partition-id"]), torch.float32)
        loss = torch.nn.functional.cross_entropy
        return TorchProblem(network(), loss, data, buffers="constant")

    strategy = FedPLT(num_agents=AGENTS, step_size=0.05, fraction_evaluate=1.0)
    start = state_dict()
    grid = InlineGrid(client_app(None, problem), AGENTS)
    done = strategy.start(grid, start, num_rounds=2)
    assert list(done.arrays) == list(start)
    assert done.evaluate_metrics_clientapp[2]["loss"] > 0
    assert not np.array_equal(done.arrays["1.weight"].numpy(), start["1.weight"].numpy())
    assert np.array_equal(done.arrays["0.running_var"].numpy(), np.ones(4))


def layout(*names: str) -> Layout:
    return Layout(names, ((2,),) * len(names), ("float32",) * len(names))


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (("a.w", "b.w"), ("a.w", "b.w")),
        (("b.w",), ("b.w",)),
        (("module.a.w", "module.b.w"), ("a.w", "b.w")),
        (("b.w", "a.w"), None),
        (("a.w", "a.w"), None),
        (("w",), None),
        (("c.w",), None),
        (("module.a.w", "b.w"), None),
    ],
)
def test_a_part_of_a_layout_is_found_by_name(part: tuple[str, ...], found: Any) -> None:
    whole = layout("a.w", "a.mean", "b.w")
    assert whole.chosen(layout(*part)) == (None if found is None else layout(*found))
    wrapped = layout("net.a.w", "net.a.mean", "net.b.w")
    expected = found and layout(*(f"net.{name}" for name in found))
    if not part[0].startswith("module."):
        assert wrapped.chosen(layout(*part)) == expected
