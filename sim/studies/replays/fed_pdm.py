"""Replaying worked instances of (BS)DP-FedPDM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.strategies import FedPDM
from privet.wire import ConfigError

from .instance import Found, Instance, agent_states, arguments, build_problems

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
    strategy = FedPDM(
        **arguments(_run_config(instance)), participation=instance.schedule, num_agents=count
    )

    def own(draws: Any, agent: int) -> Any:
        return draws[str(agent)] if isinstance(draws, Mapping) else draws[agent]

    grid = instance.grid(problems, noise_factory=instance.draws(own))
    start = np.asarray(instance.init["x0"], float)
    for state in instance.play(strategy, grid, start):
        lam: NDArray[Any] = np.zeros((count, start.size))
        for name, held in agent_states(grid).items():
            lam[int(name)] = held["lam"]
        tables = [lam, state.lam] if strategy.half.public else [lam]  # type: ignore[attr-defined]
        yield {"x0": [state.center], "x0hat": [state.sent], "lam": tables}


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
