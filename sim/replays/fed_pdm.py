"""Replaying worked instances of (BS)DP-FedPDM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.problems import make_h
from privet.sim.engine import InlineGrid
from privet.strategies import All, FedPDM, Schedule
from privet.strategies.fed_pdm import AGENT_KEYS, SERVER_KEYS
from privet.strategies.loop import play_round
from privet.wire import ConfigError, resolve

from .fed_plt import ExplicitNoise, Found, build_problems
from .instance import Instance, agent_states

RULES = {
    "base/sqrt(1+t)": "inverse-sqrt",
    "inverse-sqrt": "inverse-sqrt",
    "base": "constant",
    "constant": "constant",
}


def play(instance: Instance) -> Iterator[Found]:
    """Yield, after every round, x0 and the duals: the agents', and the server's where public."""
    problems = build_problems(instance.problem)
    count = len(problems)
    config = resolve(_run_config(instance), "fed-pdm")
    schedule = instance.participation
    strategy = FedPDM(
        **{key.replace("-", "_"): config[key] for key in (*AGENT_KEYS, *SERVER_KEYS)},
        h=make_h(config["h"], **{k: v for k, v in config.items() if k.startswith("h-")}),
        participation=All()
        if schedule is None
        else Schedule(tuple(tuple(str(agent) for agent in active) for active in schedule)),
        num_agents=count,
    )

    def position(context: Context) -> int:
        return int(context.node_config["partition-id"])

    def given(agent: str, round_: int) -> ExplicitNoise:
        draws = instance.noise[round_ - 1]
        own = draws[agent] if isinstance(draws, Mapping) else draws[int(agent)]
        return ExplicitNoise(np.asarray(own, float))

    app = client_app(
        "fed-pdm",
        lambda context: problems[position(context)],
        noise_factory=None if instance.noise is None else given,
    )
    grid = InlineGrid(app, count)
    start = np.asarray(instance.init["x0"], float)
    session = strategy.begin(grid, ArrayRecord({"x0": Array(start)}))
    for number in range(1, len(instance.rounds) + 1):
        play_round(strategy, grid, number, evaluate=False)
        held = agent_states(grid)
        lam: NDArray[Any] = np.zeros((count, start.size))
        for name, state in held.items():
            lam[int(name)] = state["lam"]
        tables = [lam, session.state.lam] if strategy.half.public else [lam]  # type: ignore[attr-defined]
        yield {"x0": [session.state.center], "x0hat": [session.state.sent], "lam": tables}


def _run_config(instance: Instance) -> dict[str, Any]:
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
