"""How a Strategy's constructor and the run config are one list of names.

The fields of the dataclasses in ``settings`` are the algorithm's run-config keys: of its agent
half, its server half, and what else it brings. The constructor has them as named arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, Self

from privet.wire import ConfigError, algorithm
from privet.wire.errors import did_you_mean
from privet.wire.key import Key, keys_of, read

from . import participation
from .flower_options import FlowerArguments
from .hooks import Monitor
from .run_settings import RunSettings
from .shared_regularizer import RegularizerSettings

NOISE_KEYS = ("noise-scale", "noise-variance")
"""Run-config keys of the size of a noise."""

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "lr": ("step_size", "step_size_base", "eta_rule"),
    "learning_rate": ("step_size", "step_size_base", "eta_rule"),
    "eta": ("step_size", "step_size_base", "eta_rule"),
    "server_lr": ("server_step_size",),
    "epochs": ("local_epochs", "max_local_steps", "local_updates"),
    "local_steps": ("local_epochs", "max_local_steps", "local_updates"),
    "steps": ("local_epochs", "max_local_steps", "local_updates"),
    "batch": ("batch_size",),
    "batchsize": ("batch_size",),
    "solver": ("local_solver",),
    "optimizer": ("local_solver",),
    "max_grad_norm": ("clip",),
    "l2_norm_clip": ("clip",),
    "clip_norm": ("clip",),
    "noise_multiplier": ("noise_scale", "noise_variance"),
    "sigma": ("noise_scale", "noise_variance"),
    "eps": ("target_epsilon",),
    "epsilon": ("target_epsilon",),
    "mu": ("strong_convexity", "common_convexity"),
    "clients": ("num_agents",),
    "num_clients": ("num_agents",),
}
"""What the field calls an argument, and what it is called here, in order of preference."""


class RunArguments(FlowerArguments, total=False):
    """What every strategy takes besides its algorithm's own arguments.

    Those that are not listed are the run-config keys of `RunSettings`, which says what they mean.

    Attributes
    ----------
    participation : Participation, optional
        Who takes part in a round; all by default.
    fraction_evaluate : float
        Share of the agents asked for a federated evaluation after each round, as in FedAvg; 0 asks
        none. Agents in a private run decline: an evaluation is an un-noised release.
    monitor : callable, optional
        ``(round, models) -> {"loss": ..., "accuracy": ..., "stationarity": ...}`` on the server.
    """

    num_agents: int
    min_agents: int
    participation: participation.Participation | None
    seed: int
    wait_timeout: float
    round_timeout: float
    fraction_evaluate: float
    monitor: Monitor | None
    secure_sum: bool
    recover_by_name: str


class Configured:
    """The constructor's arguments as run-config keys."""

    algorithm: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = ()
    """The dataclasses whose fields are the algorithm's run-config keys."""

    @classmethod
    def arguments(cls) -> Mapping[str, Any]:
        """Return the named arguments of the constructor with their defaults."""
        return {
            name: entry.default
            for name, entry in inspect.signature(cls).parameters.items()
            if entry.kind is not entry.VAR_KEYWORD
        }

    @classmethod
    def config_keys(cls) -> dict[str, Key]:
        """Return the algorithm's run-config keys, by the names of their arguments.

        They are fields of the dataclasses in ``settings``; of two of a name the first counts.
        """
        found: dict[str, Key] = {}
        for owner in cls.settings:
            for name, key in keys_of(owner).items():
                found.setdefault(name, key)
        return found

    @classmethod
    def resolved(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of a constructor's arguments, every key checked.

        Raises
        ------
        ConfigError
            If a value does not fit its key, or a target has nothing to bound a release by.
        """
        keys = {name: key for name, key in cls.config_keys().items() if name in given}
        config: dict[str, Any] = {
            key.name: key.check(given[name]) for name, key in keys.items() if name != "h"
        }
        config = cls.filled(
            config, {key.name for key in keys.values() if config.get(key.name) != key.default}
        )
        config["secure-sum"] = bool(given["run"].get("secure_sum", False))
        if config.get("target-epsilon", 0.0) > 0 and config["clip"] <= 0:
            raise ConfigError("target-epsilon needs clip > 0")
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for.

        Raises
        ------
        ConfigError
            If a value does not fit.
        """
        taken = cls.arguments()
        arguments = {
            name: config[key.name] for name, key in cls.config_keys().items() if name in taken
        }
        if "h" in taken:
            arguments["h"] = read(RegularizerSettings, config).make()
        arguments["participation"] = participation.from_config(config)
        arguments |= {
            name: config[key.name]
            for name, key in keys_of(RunSettings).items()
            if key.name in config
        }
        return cls(**{**arguments, **options})

    @classmethod
    def filled(cls, config: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
        """Return a resolved run config in which defaults depend on what was given.

        Parameters
        ----------
        config : mapping
            Every key with its value or default.
        given : container of str
            The keys that were given.
        """
        return dict(config)

    @classmethod
    def unused(
        cls, given: Mapping[str, Any], config: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield keys that were given and are not used in a run, and why.

        What the keys say of themselves (``needs``) is asked before.

        Parameters
        ----------
        given : mapping
            The keys that were given.
        config : mapping
            The resolved run config.
        """
        noise = algorithm(cls.algorithm).load_agent().noise_key or "noise-variance"
        target = config.get("target-epsilon", 0.0)
        if noise in given and target > 0:
            yield noise, "not used with target-epsilon, which sets the noise"
        if "noise-seed" in given and not (target > 0 or cls.is_noised(config)):
            yield "noise-seed", "not used without noise"

    @classmethod
    def is_noised(cls, config: Mapping[str, Any]) -> bool:
        """Whether a resolved run config asks for noise."""
        return any(config.get(key, 0.0) > 0 for key in NOISE_KEYS)

    @classmethod
    def refuse_argument(cls, name: str) -> NoReturn:
        """Raise ``TypeError`` for an argument that the constructor does not have."""
        known = {**cls.arguments(), **RunArguments.__annotations__}
        near = [meant for meant in SYNONYMS.get(name, ()) if meant in known]
        hint = f"; did you mean {near[0]!r}?" if near else did_you_mean(name, known)
        raise TypeError(f"{cls.__name__} takes no {name!r}{hint}")


__all__ = ["Configured", "RunArguments"]
