"""Coded uploads in whole runs: the same limit, both sides' states, privacy, refusals."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privet.agents.half import Local, Streams
from privet.agents.state import read_state
from privet.client_apps import LoopParticipant, client_app, sparse_mod
from privet.client_apps.rivals.scaffold import Agent as ScaffoldAgent
from privet.core import ConfigError, WireError
from privet.kernel import Perturber, Records, Release, Told
from privet.kernel.door import Held
from privet.kernel.programs.steps import LocalTask, Walk
from privet.problems import public_facts
from privet.server_apps import read_config
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, LED, DPFedSGD, FedDyn, FedPDM, FedPLT, Scaffold, SparseUplink
from privet.testing import logistic_federation
from privet.testing.grids import WatchedGrid, changed
from privet.wire import content_bytes
from privet.wire.payload import ENCODED, from_payload, to_payload
from privet.wire.value_coding import decode_values
from support.told import refused

DIM, AGENTS = 60, 6
PROBLEMS = logistic_federation(AGENTS, examples=30, dim=DIM)
NOISED = {"clip": 1.0, "noise_scale": 0.3}
NORMAL = math.sqrt(2 * math.pi * math.e)


def app_of(name: str) -> ClientApp:
    return client_app(name, lambda context: PROBLEMS[int(context.node_config["partition-id"])])


def play(strategy: Any, rounds: int, grid: Any = None) -> Any:
    grid = grid or InlineGrid(app_of(strategy.algorithm), AGENTS)
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    return strategy.start(grid, start, num_rounds=rounds, log_rounds=False)


def slope(result: Any) -> float:
    x = result.arrays["x"].numpy()
    return float(np.linalg.norm(sum(problem.gradient(x) for problem in PROBLEMS)))


@pytest.mark.parametrize("bits", ["16", "8", "4"])
def test_fed_plt_reaches_the_limit_of_float64_in_the_same_rounds(bits: str) -> None:
    plain, coded = (
        play(FedPLT(num_agents=AGENTS, rho=3.0, value_bits=one), 60) for one in ("0", bits)
    )
    assert slope(plain) < 1e-12
    assert slope(coded) < 1e-12
    for ours, theirs in zip(coded.history[:40], plain.history[:40], strict=True):
        assert ours.residual < 1.3 * theirs.residual
        size = int(bits) * DIM / 8 + 70
        assert ours.bytes_up <= AGENTS * size < theirs.bytes_up


def test_both_sides_hold_the_same_states_to_the_bit() -> None:
    strategy = FedPLT(num_agents=AGENTS, value_bits="4", local_start="own")
    grid = InlineGrid(app_of("fed-plt"), AGENTS)
    play(strategy, 5, grid)
    state = strategy.run.session.state
    for position in range(AGENTS):
        (context,) = (
            one for one in grid.contexts.values() if one.node_config["partition-id"] == position
        )
        held = read_state(context)
        own = held.at(held.experiment, 5)
        assert own is not None
        assert own["x"].tobytes() == state.x[position].tobytes()
        assert own["z"].tobytes() == state.z[position].tobytes()


@pytest.mark.slow
def test_a_public_dual_keeps_the_limit_of_sparse_uploads_and_a_quarter_of_their_values() -> None:
    settings: dict[str, Any] = {
        "num_agents": AGENTS,
        "dual": "public",
        "sparsifier": "rand-k",
        "alpha_u": 0.5,
        "aggregation": "table",
        "step_size_rule": "constant",
        "step_size_base": 0.3,
    }
    plain, coded = (play(FedPDM(**settings, value_bits=one), 400) for one in ("0", "8"))
    assert slope(plain) < 1e-7
    assert slope(coded) < 3 * slope(plain) + 1e-9
    values = 8 * DIM // 2
    saved = (plain.history[0].bytes_up - coded.history[0].bytes_up) / AGENTS
    assert saved > values - values / 8 - 45


def test_a_loop_of_ones_own_is_coded() -> None:
    def model() -> dict[str, Any]:
        return {"x": np.zeros(DIM)}

    taking_part = LoopParticipant("led", model, lambda context: 30)
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        problem, weights = PROBLEMS[int(context.node_config["partition-id"])], model()
        with taking_part.round(message, context, weights) as local:
            for _ in range(local.steps):
                slopes = {"x": problem.gradient(weights["x"])}
                local.correct(weights, slopes)
                weights["x"] = weights["x"] - local.step_size * slopes["x"]
        return local.reply()

    settings: dict[str, Any] = {"num_agents": AGENTS, "local_epochs": 4, "value_bits": "8"}
    own = play(LED(**settings), 6, InlineGrid(app, AGENTS))
    built_in = play(LED(**settings), 6)
    assert [done.failures for done in own.history] == [{}] * 6
    # Rounding moves a quantiser's input, so that the two may decide apart where it is on an edge.
    assert np.allclose(own.arrays["x"].numpy(), built_in.arrays["x"].numpy(), atol=2e-3)
    assert [done.bytes_up for done in own.history] == pytest.approx(
        [done.bytes_up for done in built_in.history], abs=AGENTS
    )


def test_a_cohort_leaves_coded_uploads_to_messages() -> None:
    runs = [
        play(LED(num_agents=AGENTS, value_bits="8"), 4, engine(app_of("led"), AGENTS))
        for engine in (InlineGrid, CohortGrid)
    ]
    first, second = (run.arrays["x"].numpy().tobytes() for run in runs)
    assert first == second


# ------------------------------------------------------------------ privacy


class Recording(InlineGrid):
    """Keeps the payloads of the replies."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.payloads: list[dict[str, Any]] = []

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        if reply is not None and reply.has_content() and "payload" in reply.content["privet"]:
            self.payloads.append(from_payload(reply.content["privet"]["payload"]))  # type: ignore
        return reply


STEPS = 3
NOISY: dict[str, tuple[Any, dict[str, Any], float]] = {
    "dp-fedsgd": (DPFedSGD, NOISED, 0.3),
    "scaffold": (Scaffold, {**NOISED, "max_local_steps": STEPS}, 0.3 / math.sqrt(STEPS)),
    "fed-dyn": (
        FedDyn,
        {**NOISED, "max_local_steps": STEPS, "step_size_base": 0.2, "step_size_rule": "constant"},
        0.2 * 0.3,
    ),
    "fed-pdm": (FedPDM, {**NOISED, "preset": "private"}, 0.3),
    "dp-iadmm": (DPIADMM, {**NOISED, "rho": 1.0}, 0.3 / 2),
    "dp-iadmm laplace": (
        DPIADMM,
        {**NOISED, "rho": 1.0, "mechanism": "laplace"},
        math.sqrt(2) * 0.3 / 2,
    ),
    "fed-plt": (
        FedPLT,
        {
            "local_solver": "noisy-gd",
            "clip": 1.0,
            "noise_variance": 0.5,
            "step_size": 0.1,
            "row_norm": 4.0,
        },
        math.sqrt(2 * 0.1 * 0.5),
    ),
}
"""Strategy, settings, and the standard deviation that the noise has in an upload of round 1."""


@pytest.mark.parametrize("name", NOISY)
def test_a_step_tied_to_the_noise_is_half_of_it_and_costs_no_privacy(name: str) -> None:
    make, settings, deviation = NOISY[name]
    costs = []
    for bits in ("0", "8", "noise"):
        strategy = make(num_agents=AGENTS, value_bits=bits, **settings)
        grid = Recording(app_of(strategy.algorithm), AGENTS)
        done = play(strategy, 1, grid).history[0]
        assert not done.failures
        costs.append(done.epsilon)
        if bits != "noise":
            continue
        for upload in grid.payloads:
            ((key, array),) = upload.items()
            data = array.tobytes()[28:] if key == ENCODED else array.tobytes()
            step = struct.unpack_from("<d", data, 8)[0]
            assert step == pytest.approx(deviation / 2, rel=1e-12)
    assert 0 < costs[0] < math.inf
    assert costs == [costs[0]] * 3


def test_coding_is_a_function_of_what_was_noised_and_of_the_seed() -> None:
    """The same noised gradient has the same code, whatever the data it came from are."""

    class Fixed:
        def gaussian(self, shape: Any, scale: float) -> Any:
            return np.zeros(shape)

    agent = ScaffoldAgent.from_settings({"value-bits": "noise", "clip": 1.0, "noise-scale": 0.1})
    facts = public_facts(PROBLEMS[0])
    release = Release("gaussian", scale=0.1, what="test")
    noise = Perturber(release, Fixed(), facts, given=True)  # type: ignore[arg-type]
    end = np.linspace(-1, 1, DIM)
    task = LocalTask(end, 0.1, 1)
    made = [
        agent.finished(
            {"c": np.zeros(DIM)},
            {"x": end, "c": end},
            task,
            Walk(end, 1, mean_gradient=end.copy()),
            Records(Held(PROBLEMS[0]), noise),
            Streams(3, agent_name, 1),
        )
        for agent_name in ("a", "a", "b")
    ]
    codes = [local.upload["u"].tobytes() for local in made]
    assert codes[0] == codes[1] != codes[2]
    local: Local = made[0]
    found = decode_values(local.upload["u"], DIM, np.dtype("f8"), np.zeros(DIM))
    assert found.tobytes() == local.state["c"].tobytes() == local.agreed[0].tobytes()
    assert np.abs(found - end).max() <= 0.025 * (1 + 1e-12)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"algorithm": "fed-plt", "value-bits": "8", "secure-sum": True}, "value-bits"),
        ({"algorithm": "gfl", "value-bits": "8"}, "value-bits"),
        ({"algorithm": "fed-plt", "value-bits": "noise"}, "not used without noise"),
        ({"algorithm": "fed-plt", "value-bits": 7}, "choose one of"),
    ],
)
def test_a_run_config_that_cannot_be_coded_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(config)


def test_a_number_is_taken_for_the_text() -> None:
    assert read_config({"algorithm": "led", "value-bits": 8})["value-bits"] == "8"
    assert LED(value_bits=8).half.agent.value_bits == "8"  # type: ignore[arg-type]


def test_masked_sums_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="value-bits: not with secure-sum"):
        FedPLT(secure_sum=True, value_bits="8")
    with pytest.raises(ConfigError, match="value-bits: not with secure-sum"):
        DPFedSGD(secure_sum=True, noise_sharing=True, value_bits="8")


def test_noise_that_no_account_covers_has_no_step() -> None:
    strategy = DPFedSGD(num_agents=AGENTS, noise_scale=0.3, value_bits="noise", patience=0.0)
    with refused(Told.WORK, "value-bits = noise: no noise is charged"):
        play(strategy, 1)


def test_a_code_of_another_length_costs_its_agent_only() -> None:
    def shorten(grid: WatchedGrid, message: Message) -> Message | None:
        reply = grid.deliver_as_is(message)
        assert reply is not None
        record: Any = reply.content["privet"]
        arrays = from_payload(record["payload"])
        data = bytearray(arrays["x"].tobytes())
        struct.pack_into("<I", data, 4, DIM - 1)
        record["payload"] = to_payload({"x": np.frombuffer(bytes(data), np.uint8)})
        return reply

    nodes = [{"partition-id": i} for i in range(AGENTS)]
    grid = WatchedGrid(app_of("led"), nodes, {("2", 2): shorten})
    history = play(LED(num_agents=AGENTS, value_bits="8"), 3, grid).history
    assert [sorted(done.failures) for done in history] == [[], ["2"], []]
    assert "coded values: 59 with step" in history[1].failures["2"].text
    with pytest.raises(WireError):
        decode_values(b"", DIM, np.dtype("f8"))


def test_codes_that_stand_for_many_models_cost_their_agent_only() -> None:
    """A step of 0 is 24 bytes, whatever length it says: 250 of them were 250 models."""

    def multiply(reply: Message) -> None:
        record: Any = reply.content["privet"]
        code = np.frombuffer(struct.pack("<3sBIdQ", b"PVV", 1, DIM, 0.0, 1), np.uint8)
        record["payload"] = to_payload(dict.fromkeys(map(str, range(250)), code))

    nodes = [{"partition-id": i} for i in range(AGENTS)]
    grid = WatchedGrid(app_of("led"), nodes, {("2", 2): changed(multiply)})
    history = play(LED(num_agents=AGENTS, value_bits="8"), 3, grid).history
    assert [{name: str(why) for name, why in done.failures.items()} for done in history] == [
        {},
        {"2": "upload has 250 coded arrays"},
        {},
    ]


# ------------------------------------------------------------------ other people's strategies


def test_changes_of_any_client_are_coded_without_bias() -> None:
    change = np.linspace(-1, 2, 500)
    sizes, models = [], []
    for seed in range(40):
        app = ClientApp(mods=[sparse_mod(1.0, value_bits=4, seed=seed)])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            arrays = ArrayRecord({"x": Array(1.0 + change)})
            return Message(RecordDict({"arrays": arrays}), reply_to=message)

        grid = InlineGrid(app, 3)
        strategy = SparseUplink(FedAvg(fraction_evaluate=0.0, min_available_nodes=3))
        start = ArrayRecord({"x": Array(np.ones(500))})
        for message in strategy.configure_train(1, start, ConfigRecord(), grid):
            reply = grid.deliver(message)
            assert reply is not None
            sizes.append(content_bytes(reply.content))
            assert strategy._restored(reply)
            models.append(reply.content["arrays"]["x"].numpy())  # type: ignore[union-attr]
    assert max(sizes) < 4.3 * 500 / 8 + 60
    step = NORMAL / 16 * math.sqrt(float(change @ change) / 500)
    errors = np.array(models) - 1.0 - change
    assert np.abs(errors).max() <= step / 2 * (1 + 1e-9)
    assert np.abs(errors.mean(axis=0)).max() < 5 * step / math.sqrt(12 * len(models))


def test_a_width_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="value_bits = 7: choose one of"):
        sparse_mod(0.1, value_bits=7)
