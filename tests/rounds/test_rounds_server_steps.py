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
from privet.client_apps.rivals.fed_dyn import Agent as FedDynAgent
from privet.core import Algorithm, ConfigError, registered
from privet.core.key import setting
from privet.problems import L2, RidgeRegression, minimize
from privet.rounds.half import HalfState, ServerHalf, Turn
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


@pytest.mark.parametrize("optimizer", ["adam", "yogi"])
@pytest.mark.parametrize("kind", [FedDyn, Scaffold])
def test_the_limit_of_adaptive_steps_is_the_methods_own(kind: Any, optimizer: str) -> None:
    own = {"fed_dyn_alpha": 1.0} if kind is FedDyn else {}
    strategy = kind(
        num_agents=3, server_optimizer=optimizer, server_learning_rate=0.5, server_tau=1.0,
        **STEADY, **own,
    )  # fmt: skip
    start = ArrayRecord({"x": Array(np.zeros(DIM))})
    grid = grid_of(strategy.half.name, PROBLEMS)
    result = strategy.start(grid, start, num_rounds=400, log_rounds=False)
    assert np.allclose(result.arrays["x"].numpy(), OPTIMUM, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["adam", "yogi"])
def test_feddyn_rescales_the_mean_move_less_its_mean_dual(optimizer: str) -> None:
    """Two of three agents a round; the agents' steps, and h, are those of Algorithm 1."""
    alpha, eta, step, steps, beta = 0.7, 0.05, 0.1, 3, 0.8
    strategy = FedDyn(
        num_agents=3, fraction_train=0.7, fed_dyn_alpha=alpha, max_local_steps=steps,
        step_size_base=step, step_size_rule="constant", server_optimizer=optimizer,
        server_learning_rate=eta, server_momentum=beta,
    )  # fmt: skip
    start = ArrayRecord({"x": Array(np.ones(DIM))})
    result = strategy.start(grid_of("fed-dyn", PROBLEMS), start, num_rounds=ROUNDS)
    x, h, g, m, v = np.ones(DIM), np.zeros(DIM), np.zeros((3, DIM)), np.zeros(DIM), np.zeros(DIM)
    c = step / (1 + step * alpha)
    for number, done in enumerate(result.history, 1):
        assert len(done.participants) == 2
        moves = []
        for agent in map(int, done.participants):
            w = x.copy()
            for _ in range(steps):
                w = w - step * (PROBLEMS[agent].gradient(w) - g[agent] + alpha * (w - x))
            g[agent] -= alpha * (w - x)
            moves.append(w - x)
        rate, d = eta, np.mean(moves, axis=0) - c * h
        h = h - alpha / 3 * np.sum(moves, axis=0)
        m = beta * m + (1 - beta) * d
        if optimizer == "adam":
            v = 0.99 * v + 0.01 * d**2
            rate = eta * np.sqrt(1 - 0.99 ** (number + 1)) / (1 - beta ** (number + 1))
        else:
            v = v - 0.01 * d**2 * np.sign(v - d**2)
        x = x + rate * m / (np.sqrt(v) + 1e-3)
    assert np.abs(x - 1.0).min() > 0.01
    assert np.allclose(result.arrays["x"].numpy(), x, rtol=0, atol=1e-12)


def test_what_feddyn_rescales_where_losses_have_a_curvature() -> None:
    """In the mean over rosters, whatever the duals are: -s grad f + (s - c) h, with s >= c."""
    alpha, step, steps, curved = 0.5, 0.2, 5, 3.0
    agent = FedDynAgent(
        fed_dyn_alpha=alpha, step_size_base=step, max_local_steps=steps, step_size_rule="constant"
    )
    half: Any = FedDyn.server_half(agent=agent)
    draws, x = np.random.default_rng(2), np.ones(DIM)
    optima, duals = draws.standard_normal((4, DIM)), draws.standard_normal((4, DIM))
    moves = []
    for optimum, dual in zip(optima, duals, strict=True):
        w = x.copy()
        for _ in range(steps):
            w = w - step * (curved * (w - optimum) - dual + alpha * (w - x))
        moves.append(w - x)
    h, found = duals.mean(axis=0), []
    for roster in ([0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3], [0, 1, 2, 3]):
        mean, share = np.mean([moves[one] for one in roster], axis=0), len(roster) / 4
        after = h - alpha * share * mean
        state = half.state(x + mean - after / alpha, after, duals, share=share)
        found.append(half.ascent(x, state, Turn(1)))
    s = (1 - (1 - step * (alpha + curved)) ** steps) / (alpha + curved)
    c = step / (1 + step * alpha)
    assert s > c
    wanted = (s - c) * h - s * curved * (x - optima).mean(axis=0)
    assert np.allclose(found[-1], wanted, rtol=1e-12)
    assert np.allclose(np.mean(found[:-1], axis=0), wanted, rtol=1e-12)
    assert np.abs(found[0] - wanted).max() > 0.1


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [(FedDyn, "momentum"), (FedDyn, "adam"), (FedPLT, "momentum"), (Scaffold, "adam")],
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
@pytest.mark.parametrize("kind", [FedPDM, FedPLT])
def test_adaptive_steps_are_refused_where_duals_are_in_the_step(kind: Any, optimizer: str) -> None:
    name = "fed-pdm" if kind is FedPDM else "fed-plt"
    said = f"^server-optimizer = {optimizer}: not with {name}: its .*: use fed-dyn or scaffold"
    with pytest.raises(ConfigError, match=said):
        kind(server_optimizer=optimizer, server_learning_rate=0.05)
    kind(server_optimizer="momentum")


def test_a_method_that_follows_its_mean_refuses_one() -> None:
    with pytest.raises(ConfigError, match="server-optimizer = adam: not with led: "):
        LED(server_optimizer="adam")
