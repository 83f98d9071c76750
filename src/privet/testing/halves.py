"""Checks of an algorithm's declarations: names, settings, keys, arguments."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args

from privet.client_apps import Half
from privet.core import ConfigError
from privet.rounds.hooks import Unit
from privet.wire.contract import decode_settings, encode_settings

from .subject import CheckFailed, Subject, require

OF_THE_DATA = ("row-norm",)
"""Keys of the data sets that are fields of an agent half too; of use in its private form alone."""


def halves_agree_on_name_and_version(subject: Subject) -> None:
    """Both halves load, have the registered name, and speak one version of the protocol."""
    strategy, agent = subject.registered.load_strategy(), subject.registered.load_agent()
    require(
        strategy.algorithm == subject.name,
        f"the Strategy's algorithm is {strategy.algorithm!r}, registered as {subject.name!r}",
    )
    require(agent.name == subject.name, f"the agent half calls itself {agent.name!r}")
    sent = subject.plain.grid.exchanges[0].instruction
    require(sent.protocol == subject.name, f"messages are of protocol {sent.protocol!r}")
    require(
        type(sent.version) is int and sent.version == agent.version,
        f"messages are of version {sent.version!r}, the agent half of {agent.version!r}",
    )


def settings_make_equal_agent_halves(subject: Subject) -> None:
    """The settings of a message make an agent half, and an equal one after a round trip as JSON."""
    made = subject.registered.load_agent().from_settings
    private = [subject.private_settings] if subject.noise_key else []
    for settings in (subject.settings, *private):
        text = subject.instruction(settings).settings
        again = encode_settings(decode_settings(text))
        first, second = made(decode_settings(text)), made(decode_settings(again))
        require(first == second, "equal settings make agent halves that are not equal")
        require(hash(first) == hash(second), "equal agent halves have different hashes")


def every_number_reaches_the_agent_half(subject: Subject) -> None:
    """A number of the run config that the agent half takes is the one that it is sent."""
    made = subject.registered.load_agent().from_settings
    for field in _number_fields(made(decode_settings(subject.instruction().settings))):
        name = field.replace("_", "-")
        other = _another_value(subject, name)
        if other is None or name in OF_THE_DATA:
            continue
        sent = decode_settings(subject.instruction({**subject.settings, name: other}).settings)
        try:
            meant = getattr(made({**sent, name: other}), field)
        except ConfigError:  # it does not go with the others
            continue
        arrived = getattr(made(sent), field)
        require(
            arrived == meant, f"{name} = {other!r} in the run config is {arrived!r} at the agents"
        )


def unknown_arguments_are_refused(subject: Subject) -> None:
    """A misspelt constructor argument is an error that names it."""
    try:
        subject.strategy(no_such_argument=1)
    except (TypeError, ConfigError) as refusal:
        require(
            "no_such_argument" in str(refusal) or "no-such-argument" in str(refusal),
            f"the refusal of an unknown argument does not name it: {refusal}",
        )
    else:
        raise CheckFailed("the Strategy takes an argument that it does not have")


def keys_are_documented(subject: Subject) -> None:
    """Every key of the algorithm has a doc, and a default that passes the key's check."""
    for key in subject.registered.load_strategy().config_keys().values():
        require(bool(key.doc.strip()), f"key {key.name!r} has no doc")
        try:
            checked = key.check(key.default)
        except ConfigError as error:
            raise CheckFailed(f"key {key.name!r} refuses its own default: {error}") from None
        require(checked == key.default, f"the default of key {key.name!r} is of another type")


def noise_has_its_key(subject: Subject) -> None:
    """An agent half with a private form names the key of its noise."""
    agent = subject.registered.load_agent()
    forms = ("private", "noised_release")
    formed = [name for name in forms if getattr(agent, name) is not getattr(Half, name)]
    require(
        bool(subject.noise_key) or not formed,
        f"the agent half has {' and '.join(formed)} and no noise_key: its releases are not checked",
    )


def what_is_searched_is_there(subject: Subject) -> None:
    """A Strategy's search, local steps and conditions name existing keys."""
    strategy = subject.registered.load_strategy()
    keys = strategy.config_keys()
    named = {axis.key: "search" for axis in strategy.search}
    if strategy.local_steps:
        named[strategy.local_steps] = "local_steps"
    config = subject.config()
    for key in keys.values():
        named |= dict.fromkeys(key.needs, f"needs of {key.name}")
    for name, where in named.items():
        require(name in config, f"{where} names {name!r}, which is no key of a run")
    for axis in strategy.search:
        require(0 < axis.low < axis.high, f"search of {axis.key}: {axis.low:g} to {axis.high:g}")
        require(axis.unit in get_args(Unit), f"search of {axis.key}: no unit {axis.unit!r}")


def _number_fields(half: Any) -> list[str]:
    """Return the fields of an agent half that hold numbers."""
    if not is_dataclass(half):
        return []
    return [one.name for one in fields(half) if type(getattr(half, one.name)) in (int, float)]


def _another_value(subject: Subject, name: str) -> float | None:
    """Return a value of a run-config key that is not the one in use; None where there is none."""
    config = subject.config()
    if name not in config:
        return None
    value = config[name]
    if type(value) is int:
        other: float = value + 1
    else:
        other = value / 2 if 0 < value < float("inf") else 0.25
    try:
        subject.strategy({**subject.settings, name: other})
    except ConfigError:  # it does not go with the others
        return None
    return other


CHECKS = (
    halves_agree_on_name_and_version,
    settings_make_equal_agent_halves,
    every_number_reaches_the_agent_half,
    unknown_arguments_are_refused,
    keys_are_documented,
    noise_has_its_key,
    what_is_searched_is_there,
)
