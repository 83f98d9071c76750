"""Replaying worked instances of DP-IADMM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.client_apps.dp_iadmm import Agent
from privet.privacy import Facts
from privet.problems import L2
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, All, Schedule
from privet.strategies.dp_iadmm import Server
from privet.strategies.loop import play_round

from .fed_plt import ExplicitNoise, Found, build_problems
from .instance import Instance, agent_states


def play(instance: Instance) -> Iterator[Found]:
    """Yield, after every round, rho, eta, w, z and all copies of lam and of the inner iterates."""
    config = {key: value for key, value in instance.config.items() if value is not None}
    spec = instance.problem
    count = len(spec["labels"])
    problems = build_problems(
        spec,
        regularizer=L2(2.0 * config.pop("beta", 0.0) / count),
        divisor=sum(len(labels) for labels in spec["labels"]),
    )
    noise = None if instance.noise is None else np.asarray(instance.noise, float)
    # Given draws are added as they are; without any, epsilon shapes the schedules only.
    given = {"perturbation": "none"} if noise is None else {"noise-scale": 1.0}
    schedule = instance.participation
    strategy = DPIADMM(
        **{key.replace("-", "_"): value for key, value in {**config, **given}.items()},
        participation=All()
        if schedule is None
        else Schedule(tuple(tuple(str(agent) for agent in active) for active in schedule)),
        num_agents=count,
    )

    def problem(context: Context) -> Any:
        return problems[int(context.node_config["partition-id"])]

    def draws(agent: str, round_: int) -> ExplicitNoise:
        assert noise is not None
        return ExplicitNoise(noise[round_ - 1, :, int(agent)])

    app = client_app("dp-iadmm", problem, noise_factory=None if noise is None else draws)
    grid = InlineGrid(app, count)
    z, lam = (np.asarray(instance.init[name], float) for name in ("z", "lam"))
    half: Server = strategy.half  # type: ignore[assignment]
    agent = Agent.from_settings(half.settings())
    shape = z.shape[1:]
    session = strategy.begin(
        grid,
        ArrayRecord({"x": Array(np.zeros(shape))}),
        state=half.state(z.reshape(count, -1), lam.reshape(count, -1)),
    )
    for number in range(1, len(instance.rounds) + 1):
        play_round(strategy, grid, number, evaluate=False)
        etas = [np.asarray(agent.eta(own, Facts.of(own), number)) for own in problems]
        yield _found(session.state, agent_states(grid), shape) | {"eta": etas}


def _found(state: Any, agents: dict[str, dict[str, NDArray[Any]]], shape: tuple[int, ...]) -> Found:
    """The server's tables, and what the agents hold of them."""
    lam, inner = state.lam.copy(), state.z.copy()
    for name, held in agents.items():
        lam[int(name)] = held["lam"]
        inner[int(name)] = held["inner"]
    tables = {"z": [state.z], "lam": [state.lam, lam], "z_inner_last": [inner]}
    return {
        "rho": [np.asarray(state.rho)],
        "w": [state.w.reshape(shape)],
        **{name: [t.reshape(-1, *shape) for t in copies] for name, copies in tables.items()},
    }
