"""Replaying worked instances of DP-IADMM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.privacy import Facts
from privet.problems import L2
from privet.strategies import DPIADMM
from privet.strategies.dp_iadmm import Server

from .instance import Found, Instance, agent_states, arguments, build_problems


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
    # Given draws are added as they are; without any, epsilon shapes the schedules only.
    config |= {"perturbation": "none"} if instance.noise is None else {"noise-scale": 1.0}
    strategy = DPIADMM(**arguments(config), participation=instance.schedule, num_agents=count)

    draws = instance.draws(lambda own, agent: np.asarray(own)[:, agent])
    grid = instance.grid(problems, noise_factory=draws)
    z, lam = (np.asarray(instance.init[name], float) for name in ("z", "lam"))
    half: Server = strategy.half  # type: ignore[assignment]
    agent = half.agent
    shape = z.shape[1:]
    first = half.with_tables(z.reshape(count, -1), lam.reshape(count, -1))
    for number, state in enumerate(instance.play(strategy, grid, np.zeros(shape), first), start=1):
        etas = [np.asarray(agent.eta(own, Facts.of(own), number)) for own in problems]
        yield _found(state, agent_states(grid), shape) | {"eta": etas}


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
