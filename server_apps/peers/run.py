"""From a run config to a running mixer between servers, and to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from privet.core import ConfigError
from privet.core.key import Config
from privet.strategies.gfl.graph import combination_matrix
from privet.strategies.gfl.mixing import perturbation_kind

AGREED = ("seed", "init-scale", "closing-rounds")
"""Run-config keys that all servers must share, besides graph, weights, model and perturbation."""


@contextmanager
def hosted_unit(config: Config, dim: int) -> Iterator[tuple[Config, dict[str, Any]]]:
    """Yield the config and the options of a strategy that hosts the config's ``unit``.

    The options hold a mixer that has found the neighbours' servers and ends with the block; in the
    config, ``num-agents`` are those of the unit. Without ``unit`` one process hosts all units: the
    config is as it was and there are no options.

    Parameters
    ----------
    config : Config
        A resolved run config.
    dim : int
        Length of the model.

    Raises
    ------
    ConfigError
        If a key cannot be used.
    RunError
        If a neighbour's server does not come; a resumed run goes on without it.
    """
    if not config.get("unit"):
        yield config, {}
        return
    # Only here: FastAPI and uvicorn are slow to load.
    from .messages import Shape
    from .mixer import NetworkMixer
    from .settings import peer_settings

    agreed = {key: config[key] for key in AGREED} | {"perturbation": perturbation_kind(config)}
    own = Config({**config, "num-agents": unit_agents(config)})
    shape = Shape(dim, config["dtype"])
    mixer = NetworkMixer(combination_matrix(config), peer_settings(config), shape, agreed)
    try:
        mixer.start(config["wait-timeout"], resumed=bool(config["resume"]))
        yield own, {"mixer": mixer}
    finally:
        mixer.close()


def unit_agents(config: Mapping[str, Any]) -> int:
    """Return how many agents the unit hosted here has (raises ``ConfigError``).

    >>> unit_agents({"unit-agents": 0, "num-agents": 6, "units": 3})
    2
    """
    total, units = config["num-agents"], config["units"]
    if config["unit-agents"]:
        return int(config["unit-agents"])
    if total % units:
        raise ConfigError(
            f"unit-agents = 0: {total} agents cannot be divided by {units} units; "
            "give the number of this unit's agents"
        )
    return int(total // units)
