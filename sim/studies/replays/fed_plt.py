"""Replaying worked instances of Fed-PLT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from privet.client_apps import LOCAL_KEYS, client_app
from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    Problem,
    Regularizer,
    RidgeRegression,
    make_regularizer,
)
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT
from privet.strategies.fed_plt import Server, State
from privet.wire import ConfigError

from .instance import Found, Instance, agent_states, arguments, position

MODELS: Mapping[str, tuple[Any, bool]] = {
    "logistic": (BinaryLogistic, False),
    "multinomial": (MultinomialLogistic, True),
    "one-class-logistic": (OneClassLogistic, True),
    "ridge": (RidgeRegression, False),
}
"""Kind of problem -> model, and whether it has classes."""


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
    per_agent = {key: own for key, own in instance.config.items() if isinstance(own, list)}
    common = {key: own[0] if key in per_agent else own for key, own in instance.config.items()}
    strategy = FedPLT(**arguments(common), participation=instance.schedule, num_agents=count)

    def draws(agent: str, round_: int) -> ExplicitNoise:
        return ExplicitNoise(np.asarray(instance.noise, float)[round_ - 1, :, int(agent)])

    app = client_app(
        "fed-plt",
        lambda context: problems[position(context)],
        noise_factory=None if instance.noise is None else draws,
    )
    own = [
        {key: values[place] for key, values in per_agent.items() if key in LOCAL_KEYS}
        for place in range(count)
    ]
    grid = InlineGrid(
        app, [{"partition-id": i, "num-partitions": count, **own[i]} for i in range(count)]
    )
    x, z = (np.asarray(instance.init[name], float) for name in ("x", "z"))
    half: Server = strategy.half  # type: ignore[assignment]
    for state in instance.play(
        strategy, grid, np.zeros(x.shape[1]), half.completed(State(x, z, np.zeros(x.shape[1])))
    ):
        held_x, held_z = state.x.copy(), state.z.copy()
        for name, held in agent_states(grid).items():
            held_x[int(name)], held_z[int(name)] = held["x"], held["z"]
        yield {"y": [state.y], "x": [state.x, held_x], "z": [state.z, held_z]}


def build_problems(
    spec: Any, *, regularizer: Regularizer | None = None, divisor: float | None = None
) -> list[Problem]:
    """Return the agents' problems of an instance (raises ``ConfigError`` for an unknown kind).

    ``regularizer`` replaces the instance's own; ``divisor`` is that of all agents.
    """
    if regularizer is None and "beta" in spec:
        regularizer = make_regularizer("nonconvex", spec["beta"])
    elif regularizer is None:
        regularizer = make_regularizer(spec.get("regularizer", "none"), spec.get("weight", 0.0))
    kind = spec["kind"]
    if kind not in MODELS:
        raise ConfigError(f"problem kind {kind!r}: known are {', '.join(MODELS)}")
    model, classes = MODELS[kind]
    more: Any = (spec["classes"],) if classes else ()
    return [
        model(
            np.asarray(rows, float),
            np.asarray(targets, int if classes else float),
            *more,
            regularizer=regularizer,
            divisor=divisor,
        )
        for rows, targets in zip(
            spec["features"], spec.get("labels", spec.get("targets")), strict=True
        )
    ]
