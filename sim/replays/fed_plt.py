"""Replaying worked instances of Fed-PLT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import DTypeLike, NDArray

from privet.client_apps import LOCAL_KEYS, client_app
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    Problem,
    Regularizer,
    RidgeRegression,
    make_h,
    make_regularizer,
)
from privet.sim.engine import InlineGrid
from privet.strategies import All, FedPLT, Schedule
from privet.strategies.fed_plt import AGENT_KEYS, Server
from privet.strategies.loop import play_round
from privet.wire import ConfigError, resolve

from .instance import Instance, agent_states

Found = dict[str, list[NDArray[Any]]]


class ExplicitNoise:
    """The draws of an instance for one agent and round, handed out one after the other."""

    private = False

    def __init__(self, draws: NDArray[Any]) -> None:
        self._draws = draws.reshape(-1)
        self._taken = 0

    def gaussian(
        self, size: int | tuple[int, ...], scale: float, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Return the given draws, whatever the scale."""
        count = int(np.prod(size))
        self._taken += count
        return self._draws[self._taken - count : self._taken].reshape(size).astype(dtype)

    laplace = gaussian


def play(instance: Instance) -> Iterator[Found]:
    """Yield, after every round, y and all copies of x and z: the server's and the agents'."""
    problems = build_problems(instance.problem)
    count = len(problems)
    per_agent = {k: v for k, v in instance.config.items() if isinstance(v, list)}
    common = {k: (v[0] if k in per_agent else v) for k, v in instance.config.items()}
    config = resolve(common, "fed-plt")
    schedule = instance.participation
    strategy = FedPLT(
        **{key.replace("-", "_"): config[key] for key in AGENT_KEYS},
        h=make_h(config["h"], **{k: v for k, v in config.items() if k.startswith("h-")}),
        participation=All()
        if schedule is None
        else Schedule(tuple(tuple(str(agent) for agent in active) for active in schedule)),
        num_agents=count,
    )
    grid = InlineGrid(
        client_app(
            "fed-plt",
            lambda context: problems[_position(context)],
            noise_factory=None
            if instance.noise is None
            else (
                lambda agent, round_: ExplicitNoise(
                    np.asarray(instance.noise, float)[round_ - 1, :, int(agent)]
                )
            ),
        ),
        [
            {
                "partition-id": i,
                "num-partitions": count,
                **{k: v[i] for k, v in per_agent.items() if k in LOCAL_KEYS},
            }
            for i in range(count)
        ],
    )
    x, z = (np.asarray(instance.init[name], float) for name in ("x", "z"))
    half: Server = strategy.half  # type: ignore[assignment]
    start = ArrayRecord({"x": Array(np.zeros(x.shape[1]))})
    session = strategy.begin(grid, start, state=half.state(x, z))
    for number in range(1, len(instance.rounds) + 1):
        play_round(strategy, grid, number, evaluate=False)
        yield _found(session.state, agent_states(grid))


def _found(state: Any, agents: dict[str, dict[str, NDArray[Any]]]) -> Found:
    """The server's tables, and the same tables as the agents hold them."""
    x, z = state.x.copy(), state.z.copy()
    for name, held in agents.items():
        x[int(name)] = held["x"]
        z[int(name)] = held["z"]
    return {"y": [state.y], "x": [state.x, x], "z": [state.z, z]}


def _position(context: Context) -> int:
    return int(context.node_config["partition-id"])


def build_problems(
    spec: Any, *, regularizer: Regularizer | None = None, divisor: float | None = None
) -> list[Problem]:
    """Return the agents' problems of an instance (raises ``ConfigError`` for an unknown kind).

    ``regularizer`` replaces the instance's own; ``divisor`` is that of all agents.
    """
    kind = spec["kind"]
    if regularizer is None and "beta" in spec:
        regularizer = make_regularizer("nonconvex", spec["beta"])
    elif regularizer is None:
        regularizer = make_regularizer(spec.get("regularizer", "none"), spec.get("weight", 0.0))
    common: Any = {"regularizer": regularizer, "divisor": divisor}
    features = [np.asarray(rows, float) for rows in spec["features"]]
    targets = spec.get("labels", spec.get("targets"))
    if kind == "logistic":
        return [
            BinaryLogistic(a, np.asarray(b, float), **common)
            for a, b in zip(features, targets, strict=True)
        ]
    if kind in ("multinomial", "one-class-logistic"):
        model = MultinomialLogistic if kind == "multinomial" else OneClassLogistic
        return [
            model(a, np.asarray(b, int), spec["classes"], **common)
            for a, b in zip(features, targets, strict=True)
        ]
    if kind == "ridge":
        return [
            RidgeRegression(a, np.asarray(b, float), **common)
            for a, b in zip(features, targets, strict=True)
        ]
    raise ConfigError(
        f"problem kind {kind!r}: known are logistic, multinomial, one-class-logistic, ridge"
    )
