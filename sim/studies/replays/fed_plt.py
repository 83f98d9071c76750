"""Replaying worked instances of Fed-PLT."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from privet.client_apps import LOCAL_KEYS
from privet.strategies import FedPLT
from privet.strategies.fed_plt import Server, State

from .instance import Found, Instance, agent_states, arguments, build_problems


def play(instance: Instance) -> Iterator[Found]:
    """Yield, after every round, y and all copies of x and z: the server's and the agents'."""
    problems = build_problems(instance.problem)
    count = len(problems)
    per_agent = {key: own for key, own in instance.config.items() if isinstance(own, list)}
    common = {key: own[0] if key in per_agent else own for key, own in instance.config.items()}
    strategy = FedPLT(**arguments(common), participation=instance.schedule, num_agents=count)

    nodes = [
        {key: values[place] for key, values in per_agent.items() if key in LOCAL_KEYS}
        for place in range(count)
    ]
    draws = instance.draws(lambda own, agent: np.asarray(own)[:, agent])
    grid = instance.grid(problems, nodes, noise_factory=draws)
    x, z = (np.asarray(instance.init[name], float) for name in ("x", "z"))
    half: Server = strategy.half  # type: ignore[assignment]
    for state in instance.play(
        strategy, grid, np.zeros(x.shape[1]), half.completed(State(x, z, np.zeros(x.shape[1])))
    ):
        held_x, held_z = state.x.copy(), state.z.copy()
        for name, held in agent_states(grid).items():
            held_x[int(name)], held_z[int(name)] = held["x"], held["z"]
        yield {"y": [state.y], "x": [state.x, held_x], "z": [state.z, held_z]}
