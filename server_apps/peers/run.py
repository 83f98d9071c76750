"""From a run config to a running mixer between servers, and to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from privet.core import ConfigError
from privet.core.key import Config
from privet.strategies.gfl.graph import combination_matrix
from privet.strategies.gfl.mixing import perturbation_kind

if TYPE_CHECKING:
    from .mixer import NetworkMixer

AGREED = ("seed", "init-scale", "closing-rounds")
"""Run-config keys that all servers must share, besides graph, weights, model and perturbation."""


def unit_mixer(config: Config) -> NetworkMixer | None:
    """Return the mixer of the config's ``unit``, not started; None where one process hosts all.

    Parameters
    ----------
    config : Config
        A resolved run config.

    Raises
    ------
    ConfigError
        If a key cannot be used.
    """
    if not config.get("unit"):
        return None
    # Only here: FastAPI and uvicorn are slow to load.
    from .mixer import NetworkMixer
    from .settings import peer_settings

    agreed = {key: config[key] for key in AGREED} | {"perturbation": perturbation_kind(config)}
    return NetworkMixer(combination_matrix(config), peer_settings(config), agreed)


@contextmanager
def started(mixer: NetworkMixer | None, config: Config, dim: int) -> Iterator[None]:
    """Start a mixer, if there is one, for models of length ``dim``; it ends with the block.

    Raises
    ------
    ConfigError
        If a neighbour has no address, or its server differs in what was to be agreed on.
    RunError
        If a neighbour's server does not come; a resumed run goes on without it.
    """
    if mixer is None:
        yield
        return
    from .messages import Shape

    shape = Shape(dim, config["dtype"])
    try:
        mixer.start(shape, config["wait-timeout"], resumed=bool(config["resume"]))
        yield
    finally:
        mixer.close()


def hosted_here(config: Config) -> Config:
    """Return the config with ``num-agents`` as those of its ``unit``, if it has one.

    Raises
    ------
    ConfigError
        If the agents cannot be divided by the units.
    """
    if not config.get("unit"):
        return config
    return Config({**config, "num-agents": unit_agents(config)})


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
            f"unit-agents = auto: {total} agents cannot be divided by {units} units; "
            "give the number of this unit's agents"
        )
    return int(total // units)
