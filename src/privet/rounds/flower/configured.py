"""How a Strategy's constructor and the run config are one list of names.

The fields of the dataclasses in ``settings`` are the algorithm's run-config keys: of its agent
half, its server half, and what else it brings. Each is an argument of the constructor; its default,
its checks and what is said of it come from the field. The constructors of this library's own
strategies are written out in ``constructors.py``, and what all strategies take in ``arguments.py``,
by ``make keys``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

from privet.agents.half import Half
from privet.agents.value_bits import NOISE
from privet.core import algorithm
from privet.core.errors import did_you_mean
from privet.core.key import SYNONYMS, Config, Key, keys_of
from privet.kernel.programs.steps import STEPLESS

from ..half import ServerHalf
from ..options import RunOptions, RunSettings
from ..shared_regularizer import RegularizerSettings
from .arguments import RunArguments
from .options import OBJECTS

Constructor = TypeVar("Constructor", bound=Callable[..., None])

NOISE_KEYS = ("noise-scale", "noise-variance")
"""Run-config keys of the size of a noise."""

FOR_NOISE = ("noise-seed", "delta", "relation")
"""Run-config keys of no use without noise."""


def shared_defaults() -> dict[str, Any]:
    """Return the defaults of the arguments that every strategy takes, by their names."""
    keys = {name: key.written_default for name, key in keys_of(RunOptions).items()}
    return keys | {name: default for name, (_, default, _) in OBJECTS.items()}


def takes_run_arguments(constructor: Constructor) -> Constructor:
    """Name each of `RunArguments` in a constructor's signature, in place of ``**arguments``.

    ``inspect.signature``, notebooks and ``help`` show them then; the code is not changed.
    """
    signature = inspect.signature(constructor)
    *own, _ = signature.parameters.values()
    types = RunArguments.__annotations__
    shared = (
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=types[name].__forward_arg__,
        )
        for name, default in shared_defaults().items()
        if name not in signature.parameters
    )
    named = signature.replace(parameters=[*own, *shared])
    constructor.__signature__ = named  # type: ignore[attr-defined]
    return constructor


class Configured:
    """An algorithm's arguments, which are its run-config keys, and what a half is made of."""

    algorithm: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = ()
    """The dataclasses whose fields are the algorithm's run-config keys: its agent half first."""
    server_half: ClassVar[type[ServerHalf[Any]]]
    """The class of the server half."""
    positional: ClassVar[tuple[str, ...]] = ()
    """Arguments that may be given by their place."""
    objects: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Arguments that are no run-config keys: their types, and what they are."""
    config_only: ClassVar[tuple[type, ...]] = (RegularizerSettings,)
    """Owners of keys that are no arguments, as an object or nothing at all stands for them."""

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
        """Return the keys that are the algorithm's own arguments, those with a place first."""
        keys = cls.config_keys()
        elsewhere = {*RunArguments.__annotations__}.union(*map(keys_of, cls.config_only))
        names = [*cls.positional, *(name for name in keys if name not in cls.positional)]
        return {name: keys[name] for name in names if name not in elsewhere}

    @classmethod
    def arguments(cls) -> Mapping[str, Any]:
        """Return the algorithm's own arguments with their defaults."""
        keys = {name: key.default for name, key in cls.argument_keys().items()}
        return {**keys, **dict.fromkeys(cls.objects)}

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> Config:
        """Return the arguments that are run-config keys as such, every value checked.

        Raises
        ------
        ConfigError
            If a value does not fit its key.
        TypeError
            For names that are no arguments, each with the nearest that is one.
        """
        known = {**cls.arguments(), **RunArguments.__annotations__}
        if strange := [name for name in given if name not in known]:
            cls.refuse_arguments(strange)
        keys = {**keys_of(RunSettings), **cls.argument_keys()}
        return Config({keys[n].name: keys[n].check(v) for n, v in given.items() if n in keys})

    @classmethod
    def resolved(cls, given: Config) -> Config:
        """Return a constructor's config with the defaults of what was not given."""
        keys = {key.name: key for key in cls.config_keys().values()}
        config = {**{name: key.default for name, key in keys.items()}, **given}
        changed = {name for name, key in keys.items() if config[name] != key.default}
        return Config(cls.filled(config, changed))

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> ServerHalf[Any]:
        """Return the server half that a resolved config and the objects beside it ask for.

        Raises
        ------
        ConfigError
            If values do not fit together.
        """
        agent = next(owner for owner in cls.settings if issubclass(owner, Half))
        return cls.server_half.from_config(agent.from_settings(config), config, **objects)

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
        solver = given.get("local-solver")
        if solver in STEPLESS and given.get("step-size"):
            yield "step-size", f"not used with local-solver = {solver}, which takes its own steps"
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
    def refuse_arguments(cls, names: Sequence[str]) -> NoReturn:
        """Raise ``TypeError`` for arguments that the constructor does not have."""
        known = {**cls.arguments(), **RunArguments.__annotations__}

        def refused(name: str) -> str:
            near = [meant for meant in SYNONYMS.get(name, ()) if meant in known]
            hint = f"; did you mean {near[0]!r}?" if near else did_you_mean(name, known)
            return f"{name!r}{hint}"

        raise TypeError(f"{cls.__name__} takes no {', no '.join(map(refused, names))}")
