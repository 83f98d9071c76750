"""Replaying worked instances of Fed-PLT, DP-IADMM and (BS)DP-FedPDM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.client_apps import LOCAL_KEYS
from privet.core import ConfigError
from privet.kernel import Perturber, Problem, Records, Release, SystemNoise
from privet.kernel.door import Held
from privet.problems import L2, public_facts
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, FedPDM, FedPLT, dp_iadmm, fed_plt
from privet.testing.runs import agent_states

from .instance import Found, Instance, arguments, build_problems

RULES = {
    "base/sqrt(1+t)": "inverse-sqrt",
    "inverse-sqrt": "inverse-sqrt",
    "base": "constant",
    "constant": "constant",
}


def _with_held(
    grid: InlineGrid,
    name: str,
    table: NDArray[Any],
    otherwise: str = "",
    tags: Mapping[str, int] | None = None,
) -> NDArray[Any]:
    """Return the table (agents, d) with the rows that agents hold under a name, or another."""
    own = table.copy()
    for agent, held in agent_states(grid, tags).items():
        own[int(agent)] = held[name if name in held else otherwise]
    return own


def _of_agent(draws: Any, agent: int) -> Any:
    return np.asarray(draws)[:, agent]


def play_fed_plt(instance: Instance) -> Iterator[Found]:
    """Yield, after every round, y and all copies of x and z: the server's and the agents'."""
    problems = build_problems(instance.problem)
    count = len(problems)
    per_agent = {key: own for key, own in instance.config.items() if isinstance(own, list)}
    common = {key: own[0] if key in per_agent else own for key, own in instance.config.items()}
    nodes = [
        {key: values[place] for key, values in per_agent.items() if key in LOCAL_KEYS}
        for place in range(count)
    ]
    grid = instance.grid(problems, nodes, noise_factory=instance.draws(_of_agent))
    x, z = (np.asarray(instance.init[name], float) for name in ("x", "z"))
    with instance.delays() as delays:
        options = {**arguments(common), "participation": instance.schedule, **delays}
        strategy = FedPLT(**options, num_agents=count)
        half: fed_plt.Server = strategy.half  # type: ignore[assignment]
        first = half.with_tables(x, z)
        for state in instance.play(strategy, grid, np.zeros(x.shape[1]), first):
            # Agents of other versions are ahead of what was folded.
            agents = strategy.run.session.roster.agents if delays else {}
            tags = {name: agent.tag for name, agent in agents.items()} or None
            yield {
                "y": [state.y],
                "x": [state.x, _with_held(grid, "x", state.x, tags=tags)],
                "z": [state.z, _with_held(grid, "z", state.z, tags=tags)],
            }


def play_dp_iadmm(instance: Instance) -> Iterator[Found]:
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
    grid = instance.grid(problems, noise_factory=instance.draws(_of_agent))
    z, lam = (np.asarray(instance.init[name], float) for name in ("z", "lam"))
    half: dp_iadmm.Server = strategy.half  # type: ignore[assignment]
    shape = z.shape[1:]
    first = half.with_tables(z.reshape(count, -1), lam.reshape(count, -1))
    for number, state in enumerate(instance.play(strategy, grid, np.zeros(shape), first), start=1):
        tables = {
            "z": [state.z],
            "lam": [state.lam, _with_held(grid, "lam", state.lam)],
            "z_inner_last": [_with_held(grid, "inner", state.z, "z")],
        }
        yield {
            "rho": [np.asarray(half.penalty(number))],
            "eta": [np.asarray(_eta(half.agent, own, number)) for own in problems],
            "w": [state.w.reshape(shape)],
            **{name: [t.reshape(-1, *shape) for t in copies] for name, copies in tables.items()},
        }


def play_fed_pdm(instance: Instance) -> Iterator[Found]:
    """Yield, after every round, x0 and the duals: the agents', and the server's where public."""
    problems = build_problems(instance.problem)
    count = len(problems)
    strategy = FedPDM(
        **arguments(_fed_pdm_config(instance)), participation=instance.schedule, num_agents=count
    )

    def own(draws: Any, agent: int) -> Any:
        return draws[str(agent)] if isinstance(draws, Mapping) else draws[agent]

    grid = instance.grid(problems, noise_factory=instance.draws(own))
    start = np.asarray(instance.init["x0"], float)
    for state in instance.play(strategy, grid, start):
        lam = _with_held(grid, "lam", np.zeros((count, start.size)))
        tables = [lam, state.lam] if strategy.half.public else [lam]  # type: ignore[attr-defined]
        yield {"x0": [state.center], "x0hat": [state.sent], "lam": tables}


def _fed_pdm_config(instance: Instance) -> dict[str, Any]:
    """Return the instance's parameters as run-config keys (raises ``ConfigError``)."""
    config = dict(instance.config)
    rule = str(config.get("step-size-rule", "constant")).split(",")[0].strip()
    if rule not in RULES:
        raise ConfigError(f"step-size-rule {rule!r}: known are {', '.join(RULES)}")
    config["step-size-rule"] = RULES[rule]
    if config.get("batch", "full") != "full":
        raise ConfigError(f"batch = {config['batch']!r}: an instance has full batches")
    config.setdefault("dual", "private")
    if instance.noise is not None:
        config.setdefault("noise-scale", 1.0)  # given draws are added whatever the scale is
    return config


def _eta(agent: Any, problem: Problem, number: int) -> float:
    """Return an agent's eta of a round in which nothing is charged."""
    facts = public_facts(problem)
    records = Records(Held(problem), Perturber(Release("none"), SystemNoise(), facts))
    return float(agent.eta(records, facts, number))
