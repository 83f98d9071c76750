"""How a Strategy's constructor and the run config are one list of names.

The fields of the dataclasses in ``settings`` are the algorithm's run-config keys: of its agent
half, its server half, and what else it brings. The constructor has them as named arguments, or
``**run`` does by its type, an `Unpack` of a TypedDict; defaults, checks and what the docstring says
of an argument come from the field.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, Self, cast, get_args, get_type_hints

from privet.client_apps.value_bits import NOISE
from privet.core import ConfigError, algorithm
from privet.core.errors import did_you_mean
from privet.core.key import Key, keys_of, owned, read

from . import participation
from .flower_options import FlowerArguments
from .hooks import Monitor
from .run.options import RunOptions, RunSettings
from .shared_regularizer import RegularizerSettings

NOISE_KEYS = ("noise-scale", "noise-variance")
"""Run-config keys of the size of a noise."""

FOR_NOISE = ("noise-seed", "delta", "relation")
"""Run-config keys of no use without noise."""

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

    Those that are run-config keys are `RunSettings`; a Strategy's docstring lists them.

    Attributes
    ----------
    participation : Participation, optional
        Who takes part in a round; all by default.
    fraction_evaluate : float
        Share of the agents asked for a federated evaluation after each round, as in FedAvg; 0 asks
        none. Agents in a private run decline: an evaluation is an un-noised release.
    agent_weights : {"equal", "examples"}
        What an agent counts. Equal: the objective is sum_i f_i + h, with f_i a mean over the
        agent's n_i examples. Examples: it is sum_i (n_i / n) f_i + h with n the mean of the n_i in
        the first round, as FedAvg weighs them; the gradients of agent i are that much longer, and
        every method reaches what it then reaches on these f_i. Not in private runs, nor for
        dp-iadmm, whose f_i count examples alike in any case. Units of gfl remain equal.
    monitor : callable, optional
        ``(round, models) -> {"loss": ..., "accuracy": ..., "stationarity": ...}`` on the server.
    """

    num_agents: int
    min_agents: int
    patience: float
    participation: participation.Participation | None
    seed: int
    wait_timeout: float
    round_timeout: float
    fraction_evaluate: float
    agent_weights: str
    monitor: Monitor | None
    secure_sum: bool
    recover_by_name: str
    on_divergence: str


class Configured:
    """The constructor's arguments as run-config keys."""

    __signature__: ClassVar[inspect.Signature]

    algorithm: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = ()
    """The dataclasses whose fields are the algorithm's run-config keys."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = cls._complete_signature()
        text = cls.__dict__.get("__doc__")
        if cls.settings and text:
            cls.__doc__ = cls._complete_docstring(inspect.cleandoc(text))

    @classmethod
    def _complete_signature(cls) -> inspect.Signature:
        """Return the constructor's signature with the keys that ``**run`` has by its type."""
        _, *named = inspect.signature(cls.__init__).parameters.values()
        explicit = {entry.name for entry in named}
        keys = cls.config_keys()
        typed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=keys[name].default)
            for name in _names_of_rest(cls.__init__)
            if name in keys.keys() - explicit - RunArguments.__annotations__.keys()
        ]
        return inspect.Signature(sorted([*named, *typed], key=lambda entry: entry.kind))

    @classmethod
    def _complete_docstring(cls, text: str) -> str:
        """Return a docstring with what the fields say of the arguments among its parameters."""
        entries = ""
        for name, key in {**cls.argument_keys(), **keys_of(RunOptions)}.items():
            choices = ", ".join(f'"{choice}"' for choice in key.choices)
            kind = f"{{{choices}}}" if choices else type(key.default).__name__
            entries += f"{name} : {kind}, default {key.default!r}\n    {key.doc}\n"
        entries += "run\n    Other arguments that every strategy takes, see `RunArguments`.\n"
        summary, _, rest = text.partition("\n\n")
        if rest.startswith(_PARAMETERS):
            return f"{summary}\n\n{_PARAMETERS}{entries}{rest.removeprefix(_PARAMETERS)}"
        return f"{summary}\n\n{_PARAMETERS}{entries}\n{rest}"

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
    def argument_keys(cls) -> dict[str, Key]:
        """Return the keys that are arguments, in their order; h is none, as it is an object."""
        keys = cls.config_keys()
        return {name: keys[name] for name in cls.arguments() if name in keys and name != "h"}

    @classmethod
    def resolved(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of a constructor's ``locals()``, every key checked.

        Raises
        ------
        ConfigError
            If a value does not fit its key, or a target has nothing to bound a release by.
        """
        named, keys = {**given, **given["run"]}, cls.argument_keys()
        for name in given["run"].keys() & cls.arguments().keys() - keys.keys():
            cls.refuse_argument(name)  # the type of **run has it, this algorithm has not
        config: dict[str, Any] = {
            key.name: key.check(named.get(name, key.default)) for name, key in keys.items()
        }
        changed = {key.name for key in keys.values() if config[key.name] != key.default}
        config = cls.filled(config, changed)
        config["secure-sum"] = bool(given["run"].get("secure_sum", False))
        if config.get("target-epsilon", 0.0) > 0 and config["clip"] <= 0:
            raise ConfigError("target-epsilon needs clip > 0")
        return config

    @classmethod
    def of_run(cls, run: Mapping[str, Any]) -> RunArguments:
        """Return what is in ``**run`` besides the algorithm's own arguments."""
        taken = cls.arguments()
        return cast(RunArguments, {name: run[name] for name in run if name not in taken})

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for.

        Raises
        ------
        ConfigError
            If a value does not fit.
        """
        arguments = {name: owned(config, key, cls) for name, key in cls.argument_keys().items()}
        if "h" in cls.arguments():
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
        noised = target > 0 or cls.is_noised(config)
        if given.get("budget-schedule") == "geometric" and not noised:
            yield "budget-schedule", "not used without noise"
        if given.get("participation") == "fraction" and config["fraction"] == 1.0:
            yield "participation", "fraction = 1.0 asks all agents: give fraction, below 1"
        weighted = keys_of(RegularizerSettings)["h_weight"].needs["h"] or ()
        if given.get("h") in weighted and not config["h-weight"]:
            yield "h", "not used with h-weight = 0: give h-weight, above 0"
        if given.get("value-bits") == NOISE and not noised:
            yield "value-bits", "not used without noise"
        for key in FOR_NOISE:
            if key in given and not noised:
                yield key, "not used without noise"

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


_PARAMETERS = "Parameters\n----------\n"


def _names_of_rest(constructor: Any) -> list[str]:
    """Return the names that a constructor's ``**run`` may hold by its type."""
    try:
        hints = get_type_hints(constructor)
    except NameError:  # a type that is imported for type checkers alone
        return []
    rest = inspect.getfullargspec(constructor).varkw
    return [name for typed in get_args(hints.get(rest or "")) for name in typed.__annotations__]
