"""Optimizers of the server: those of Flower on averaging, the methods' own limits, and resuming."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvgM, FedYogi

from privet.client_apps import Half, LocalTask
from privet.core import Algorithm, ConfigError, registered
from privet.core.key import setting
from privet.problems import L2, RidgeRegression, minimize
from privet.rounds.half import HalfState, ServerHalf
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.strategies import LED, FedDyn, FedPDM, FedPLT, PrimalDualStrategy, Scaffold

ROUNDS, DIM = 6, 5
rng = np.random.default_rng(8)
PROBLEMS = [
    RidgeRegression(rng.standard_normal((9, DIM)), rng.standard_normal(9), regularizer=L2(0.3))
    for _ in range(3)
]
OPTIMUM = minimize(PROBLEMS).x


@dataclass(frozen=True)
class Agent(Half):
    name = "averaging"
    gamma: float = setting(0.1, "step", low=0)

    def task(self, state: Any, broadcast: Any, records: Any, streams: Any) -> LocalTask:
        return LocalTask(broadcast["x"], self.gamma, 4)

    def finish(self, state: Any, broadcast: Any, task: Any, walk: Any) -> Any:
        return {"x": walk.end}


@dataclass(slots=True)
class State(HalfState):
    x: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    state = State
    no_server_optimizer = ""
    agent: Agent = field(default_factory=Agent)

    def fold_sums(self, state: State, sums: Any, turn: Any) -> State:
        x = sums.mean("x", state.x)
        return State(x, residual=sums.step(x, state.x))


class Averaging(PrimalDualStrategy):
    algorithm, settings, server_half, local_steps = "averaging", (Agent,), Server, ""


def flowers(strategy: Any, dtype: str) -> Any:
    """Return the model of Flower's own strategy with one agent, which takes the same steps."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content: Any = message.content
        x = content["arrays"]["x"].numpy()
        for _ in range(4):
            x = x - x.dtype.type(0.1) * problem(dtype).gradient(x)
        arrays, metrics = ArrayRecord({"x": Array(x)}), MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    start = ArrayRecord({"x": Array(np.zeros(DIM, dtype))})
    result = strategy.start(InlineGrid(app, 1), start, num_rounds=ROUNDS)
    return result.arrays["x"].numpy()


def problem(dtype: str) -> RidgeRegression:
    rows = np.random.default_rng(1)
    return RidgeRegression(
        rows.standard_normal((9, DIM)).astype(dtype), rows.standard_normal(9).astype(dtype)
    )


ONE = {"min_train_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}


@pytest.mark.parametrize(
    ("flower", "own", "dtype"),
    [
        (FedAvgM(server_momentum=0.7, server_learning_rate=0.5, **ONE),
         {"server_optimizer": "momentum", "server_momentum": 0.7, "server_learning_rate": 0.5},
         "f4"),
        (FedAvgM(server_momentum=0.7, **ONE),
         {"server_optimizer": "momentum", "server_momentum": 0.7}, "f8"),
        # In float32 Flower's FedAdam goes on in float64, as it multiplies by a float64 of numpy.
        (FedAdam(eta=0.05, **ONE),
         {"server_optimizer": "adam", "server_learning_rate": 0.05}, "f8"),
        (FedYogi(eta=0.05, **ONE),
         {"server_optimizer": "yogi", "server_learning_rate": 0.05}, "f4"),
    ],
    ids=["momentum-f4", "momentum-f8", "adam", "yogi"],
)  # fmt: skip
def test_on_averaging_they_are_flowers_own_bit_by_bit(flower: Any, own: Any, dtype: str) -> None:
    with registered(Algorithm("averaging", Averaging, Agent)):
        start = ArrayRecord({"x": Array(np.zeros(DIM, dtype))})
        strategy = Averaging(num_agents=1, **own)
        result = strategy.start(grid_of("averaging", [problem(dtype)]), start, num_rounds=ROUNDS)
    found, expected = result.arrays["x"].numpy(), flowers(flower, dtype)
    assert found.dtype == np.dtype(dtype)
    assert np.abs(found).max() > 0.01
    assert np.array_equal(found, expected)


STEADY = {"step_size_rule": "constant", "step_size_base": 0.2}
LIMITS: Any = [
    (FedDyn, {**STEADY, "fed_dyn_alpha": 1.0}, 0.3),
    (FedPDM, STEADY, 0.3),
    (FedPLT, {"relaxation": 0.5}, 0.1),
    (Scaffold, STEADY, 0.3),
]


@pytest.mark.parametrize(("kind", "keys", "momentum"), LIMITS)
def test_the_limit_stays_the_methods_own(kind: Any, keys: Any, momentum: float) -> None:
    strategy = kind(
        num_agents=3, server_optimizer="momentum", server_momentum=momentum,
        server_learning_rate=0.7, **keys,
    )  # fmt: skip
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    grid = grid_of(strategy.half.name, PROBLEMS)
    result = strategy.start(grid, start, num_rounds=250, log_rounds=False)
    assert np.allclose(result.arrays["x"].numpy(), OPTIMUM, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "optimizer"), [(FedDyn, "momentum"), (FedPLT, "momentum"), (Scaffold, "adam")]
)
def test_a_resumed_run_goes_on_bit_by_bit(kind: Any, optimizer: str, tmp_path: Path) -> None:
    own = {"num_agents": 3, "server_optimizer": optimizer, "server_learning_rate": 0.05}
    start, file = ArrayRecord({"x": Array(np.zeros(DIM))}), tmp_path / "checkpoint"
    name = kind(**own).half.name
    whole = kind(**own).start(grid_of(name, PROBLEMS), start, num_rounds=6)
    kind(**own).start(grid_of(name, PROBLEMS), start, num_rounds=3, checkpoint=file)
    rest = kind(**own).start(grid_of(name, PROBLEMS), start, num_rounds=6, resume=file)
    assert np.array_equal(whole.arrays["x"].numpy(), rest.arrays["x"].numpy())


@pytest.mark.parametrize("optimizer", ["adam", "yogi"])
@pytest.mark.parametrize("kind", [FedDyn, FedPLT])
def test_adaptive_steps_are_refused_where_duals_are_in_the_step(kind: Any, optimizer: str) -> None:
    name = "fed-dyn" if kind is FedDyn else "fed-plt"
    with pytest.raises(ConfigError, match=f"server-optimizer = {optimizer}: not with {name}: its"):
        kind(server_optimizer=optimizer, server_learning_rate=0.05)
    kind(server_optimizer="momentum")


def test_a_method_that_follows_its_mean_refuses_one() -> None:
    with pytest.raises(ConfigError, match="server-optimizer = adam: not with led: "):
        LED(server_optimizer="adam")
