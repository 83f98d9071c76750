"""A run config, read once: every key is a field of the settings of whoever uses it.

The owners of a run's keys are the run itself (`RunConfig`, `RunSettings`, `ParticipationSettings`),
the data (`DATA_OWNERS`) and the algorithm (what its Strategy names as ``settings``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from privet.core import ConfigError, algorithm, algorithms, analyses
from privet.core.assignments import with_more
from privet.core.errors import nearest
from privet.core.key import (
    AUTO,
    Config,
    ConfigEntry,
    Key,
    Scalar,
    keys_of,
    meant,
    same,
    setting,
    shown,
)
from privet.core.registry import DEFAULT_ALGORITHM
from privet.data.frames import FrameSettings
from privet.data.settings import DATA_OWNERS, dealt_by
from privet.data.tables.files import is_table
from privet.kernel.exits import KEY as ROWS_PER_PERSON
from privet.kernel.node_rules import KEYS as NODE_KEYS
from privet.rounds.options import MOST_AGENTS, RunSettings
from privet.rounds.participation import ParticipationSettings
from privet.strategies.analyses.base import MOST_ROUNDS

log = logging.getLogger("flwr.privet")

NEWEST = "auto"
"""The value of ``resume`` that goes on with the newest run of the output folder."""
ANEW = "new"
"""The value of ``resume`` that begins a run whatever the output folder holds."""


@dataclass(frozen=True)
class RunConfig:
    """The run-config keys of a run as a whole; the fields are the keys of the same names."""

    topic: ClassVar[str] = "The run"

    algorithm: str = setting(DEFAULT_ALGORITHM, "algorithm to run")
    num_server_rounds: int = setting(40, "number of rounds, at most", low=0, operational=True)
    num_sweeps: float = setting(
        0.0,
        "in place of num-server-rounds: uploads of every agent in the mean; none counts versions",
        low=0,
        words={"none": 0},
        needs={"asynchronous": True},
        operational=True,
    )
    evaluate_sweeps: float = setting(
        0.0,
        "sweeps between evaluations on the server, in place of evaluate-every; none takes that",
        low=0,
        words={"none": 0},
        needs={"asynchronous": True},
        operational=True,
    )
    tolerance: float = setting(
        -1.0,
        "stop once the stationarity is at most this, or where no monitor measures it the residual "
        "of all agents, which a secure sum knows only if all are in it; none never stops early, "
        "auto where the algorithm estimates that the model is the pooled optimum to six digits",
        low=0,
        words={"auto": -1, "none": 0},
        operational=True,
    )
    evaluate_every: int = setting(
        1, "rounds between evaluations on the server", low=1, operational=True
    )
    checkpoint_every: int = setting(
        1,
        "rounds between checkpoints; none: only at the end",
        low=0,
        words={"none": 0},
        operational=True,
    )
    output_dir: str = setting(
        "",
        "folder for run folders; absolute, or relative on the command line; empty is ./runs where "
        "the server runs",
        operational=True,
        path=(),
    )
    resume: str = setting(
        "",
        "run folder to resume from; absolute, or relative on the command line; auto: the newest "
        "one in output-dir, or a new run where there is none; new, or empty: a new run",
        operational=True,
        path=(NEWEST, ANEW),
    )
    exclude: str = setting(
        "",
        r"agents to leave out, as a,b,c; a comma of a name is \,; empty: nobody; control.toml in "
        "the run folder changes it",
        operational=True,
    )
    readmit: bool = setting(
        False,
        "whether an excluded agent takes part again once its node was away and is back, as that of "
        "a repaired site is",
        operational=True,
    )
    metrics_port: int = setting(
        0,
        "port of the Prometheus endpoint, with /healthz",
        low=0,
        words={"none": 0},
        high=65535,
        operational=True,
    )
    metrics_host: str = setting(
        "127.0.0.1",
        "address of the Prometheus endpoint; after commas, names that requests may use",
        needs={"metrics-port": None},
        operational=True,
    )
    baseline_seconds: float = setting(
        -1.0,
        "processor seconds that the baselines of a simulated run may take, after it; auto "
        "is 2, and none where the run is private, as they are fitted without noise",
        low=0,
        words={"auto": -1, "none": 0},
        operational=True,
    )
    log_json: bool = setting(False, "write log lines as JSON objects", operational=True)
    track: str = setting(
        "",
        "trackers to log the run with, as tensorboard,mlflow,wandb; empty is none",
        operational=True,
    )
    keep_best: str = setting(
        "none",
        "metric whose best round's model is kept beside the last, in model-best.npz",
        choices=("none", "loss", "accuracy", "stationarity", "residual"),
        operational=True,
    )
    rows_per_person: int = setting(
        1,
        "records that one person has at most: the account also states the epsilon of a person, "
        "whose records all differ together",
        low=1,
        operational=True,
        needs={"clip": None},
    )
    tags: str = setting("", "tags of the run, as a,b,c, for its report", operational=True)
    notes: str = setting("", "what the run is about, for its report", operational=True)
    init_scale: float = setting(
        0.0, "standard deviation of the random starting model, around zero", low=0
    )


@dataclass(frozen=True)
class AnalysisConfig:
    """The run-config keys of an analysis as a whole."""

    topic: ClassVar[str] = "The run"

    algorithm: str = same(RunConfig, "algorithm")
    num_server_rounds: int = setting(
        MOST_ROUNDS, "number of rounds, at most", low=1, operational=True
    )
    checkpoint_every: int = same(RunConfig, "checkpoint_every")
    output_dir: str = same(RunConfig, "output_dir")
    resume: str = same(RunConfig, "resume")
    exclude: str = same(RunConfig, "exclude")
    readmit: bool = same(RunConfig, "readmit")
    log_json: bool = same(RunConfig, "log_json")
    tags: str = same(RunConfig, "tags")
    notes: str = same(RunConfig, "notes")
    num_agents: int = setting(
        0,
        "number of sites to wait for; auto: those that are there, or all ids",
        low=0,
        high=MOST_AGENTS,
        words={"auto": 0},
    )
    min_agents: int = same(RunSettings, "min_agents")
    patience: float = same(RunSettings, "patience")
    wait_timeout: float = same(RunSettings, "wait_timeout")
    round_timeout: float = same(RunSettings, "round_timeout")
    secure_sum: bool = same(RunSettings, "secure_sum")
    recover_by_name: str = same(RunSettings, "recover_by_name")
    seed: int = same(RunSettings, "seed")


OF_ANALYSES: tuple[type, ...] = (AnalysisConfig, FrameSettings)
"""Owners of the keys that every analysis has."""
COMMON: tuple[type, ...] = (RunConfig, RunSettings, ParticipationSettings, *DATA_OWNERS)
"""Owners of the keys that every run has."""


def common_of(name: str) -> tuple[type, ...]:
    """Return the owners of the keys that every run like this algorithm's has."""
    return OF_ANALYSES if name in analyses() else COMMON


def keys_of_algorithm(name: str) -> dict[str, Key]:
    """Return the keys that an algorithm brings.

    Raises
    ------
    ConfigError
        For an unknown algorithm, and one that has a key of every run with another meaning.
    """
    own, common = owned_by(algorithm(name).load_strategy().settings), owned_by(common_of(name))
    for key in own.values():
        first = common.get(key.name)
        if first is not None and replace(key, needs=first.needs) != first:
            raise ConfigError(
                f"{key.name}: already a key of every run: give {name}'s another name, or declare "
                "it as the same (privet.core.key.same)"
            )
    return own


def keys_of_run(name: str) -> dict[str, Key]:
    """Return the keys of every run, and those that an algorithm brings (raises ``ConfigError``)."""
    common = owned_by(common_of(name))
    return {**common, **keys_of_algorithm(name), **common}


def table() -> dict[str, ConfigEntry]:
    """Return the keys of all registered algorithms and those of every run."""
    return _table((*algorithms(), *analyses()))


@lru_cache(maxsize=4)
def _table(registered: tuple[str, ...]) -> dict[str, ConfigEntry]:
    found: dict[str, dict[str, Key]] = {}
    for name, key in owned_by(COMMON).items():
        found.setdefault(name, {})[""] = key
    for one in registered:
        try:
            own = keys_of_algorithm(one)
        except ConfigError as error:  # another package's; its own runs end with this line
            log.warning("keys of %s are left out: %s", one, error)
            continue
        for name, key in own.items():
            found.setdefault(name, {})[one] = key
    return {name: ConfigEntry(name, owners) for name, owners in found.items()}


def changed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a resolved run config is not its owner's default, the algorithm first.

    Of an algorithm that is not installed here nothing is known, and all is returned.
    """
    try:
        own = keys_of_run(str(config.get("algorithm")))
    except ConfigError:
        return dict(config)
    return {
        key: value
        for key, value in config.items()
        if key == "algorithm" or key not in own or value not in (own[key].default, own[key].usual)
        if key != "partition" or value != dealt_by({**config, key: AUTO})
    }


def as_written(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a resolved run config as configs write them: as words where they can.

    Of an algorithm that is not installed here nothing is known of its keys.
    """
    try:
        own = keys_of_run(str(config.get("algorithm")))
    except ConfigError:
        own = {}
    return {key: own[key].text(v) if key in own else shown(v) for key, v in config.items()}


def defaults() -> dict[str, Scalar]:
    """Return the table as the ``[tool.flwr.app.config]`` section holds it."""
    return {name: entry.default for name, entry in table().items()}


def without_stand_ins(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the values that stand for every owner's own default.

    ``flwr run`` sends the whole section of pyproject.toml, in which a key has one default. What
    stands in ``more`` is what a person wrote, and becomes keys of their own as it is.

    Raises
    ------
    ConfigError
        As `with_more` and `require_meant`.
    """
    known, given = table(), with_more(raw)
    require_meant({key: value for key, value in given.items() if key not in raw})
    return {
        key: value
        for key, value in given.items()
        if key not in known or key not in raw or not known[key].is_default(value)
    }


def require_meant(given: Mapping[str, Any]) -> None:
    """Refuse a default that stands for a key that is not there, where a person wrote it.

    Raises
    ------
    ConfigError
    """
    for key, value in given.items():
        entry = table().get(key)
        for owned in entry.owners.values() if entry else ():
            if owned.only_unset and value == owned.default:
                raise ConfigError(
                    f"{key} = {value}: no noise brings the total down to that; leave the key out "
                    "for a run without a target"
                )


_OF_NOISE = ("target-epsilon", "noise-scale", "noise-variance", "clip")
"""Keys that ask for a private run."""


class UnusedKeyError(ConfigError):
    """A key was given that does nothing beside the others, all of which are in ``config``."""

    def __init__(self, text: str, config: Config) -> None:
        super().__init__(text)
        self.config = config


def read_config(raw: Mapping[str, Any]) -> Config:
    """Return the keys that a run uses, checked and filled in.

    A value equal to its owner's default counts as not given.

    Raises
    ------
    ConfigError
        If a key is unknown (with the nearest known name), a value does not fit, or a key was given
        that this run does not use; and as `with_more`.
    """
    raw = with_more(raw)
    name = str(raw.get("algorithm", RunConfig.algorithm))
    kind = algorithm(name).load_strategy()
    own = keys_of_run(name)
    known = table()
    given: dict[str, Scalar] = {}
    for key, value in raw.items():
        entry = known.get(key)
        if entry is None:
            raise ConfigError(unknown(key, value=value))
        if key == "dataset" and is_table(str(value)):
            raise ConfigError(f"dataset = {value!r}: write dataset=csv data-path={value}")
        if key not in own:
            why = f": {kind.no_noise}" if key in _OF_NOISE and kind.no_noise else ""
            near = _quoted(meant(key, own))
            text = f"{key} = {shown(value)}: {name} does not use it{why}{_users(entry)}{near}"
            raise ConfigError(text)
        checked = own[key].check(value)
        if own[key].is_relative(checked):
            raise ConfigError(f"{key} = {checked!r}: must be an absolute path")
        if checked != own[key].default:
            given[key] = checked
    resolved = kind.filled({key: given.get(key, own[key].usual) for key in own}, given)
    if name not in analyses():
        resolved["partition"] = dealt_by(resolved)
    unused: dict[str, list[str]] = {}
    for key, why in (*_unused(own, given, resolved), *kind.unused(given, resolved)):
        unused.setdefault(why, []).append(f"{key} = {own[key].text(given[key])}")
    for why, keys in unused.items():
        raise UnusedKeyError(f"{', '.join(keys)}: {why}", Config(resolved))
    return Config(resolved)


_OF_ACCOUNTS = ("num-server-rounds", ROWS_PER_PERSON)


def is_idle(key: str) -> bool:
    """Whether a key has no part in what a run promises: it says how the run is operated.

    Of such keys the number of rounds and the rows of a person alone are a matter of privacy.
    """
    entry = table().get(key)
    owners = entry.owners.values() if entry else ()
    return key not in _OF_ACCOUNTS and any(owned.operational for owned in owners)


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a resolved config that decide what is computed."""
    keys = keys_of_run(config["algorithm"])
    return {name: config[name] for name, key in keys.items() if not key.operational}


def unknown(key: str, others: Iterable[str] = (), *, value: Scalar | None = None) -> str:
    """Return the line on a key that nobody declares, with the nearest name there is.

    Of the keys that have the nearest one's name as words of theirs, that of most algorithms comes
    first: target-epsilon before dp-iadmm's epsilon.
    """
    if key in NODE_KEYS:
        return f"{key} is a node's own key: it stands in the node config, where no run reaches"
    known = table()
    if value is not None and (hyphened := key.replace("_", "-")) in known:
        return f"unknown config key {key!r}: write {hyphened}={shown(value)}"
    if found := meant(key, known):
        return f"unknown config key {key!r}{_quoted(found)}"
    near = nearest(key, (*known, *others))
    if near not in known:
        hint = f"did you mean {near!r}?" if near else "privet keys --all lists them"
        return f"unknown config key {key!r}; {hint}"
    longer = [name for name in known if f"-{near}-" in f"-{name}-"]
    first = max(longer, key=lambda name: ("" in known[name].owners, len(known[name].owners)))
    also = "" if first == near else f" or {near!r}"
    return f"unknown config key {key!r}; did you mean {first!r}{also}?"


def _quoted(names: Sequence[str]) -> str:
    """Return the end of a line that suggests keys, empty for none."""
    return f"; did you mean {' or '.join(map(repr, names[:2]))}?" if names else ""


def _users(entry: ConfigEntry) -> str:
    return (
        f"; it is a key of {', '.join(name or 'every training' for name in sorted(entry.owners))}"
    )


def _unused(
    own: Mapping[str, Key],
    given: Mapping[str, Scalar],
    resolved: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    """Yield the keys that were given and that their own conditions leave unused, and why."""
    for key in given:
        if why := own[key].unused(resolved, own):
            yield key, why


def owned_by(owners: tuple[type, ...]) -> dict[str, Key]:
    """Return the keys that classes declare; of two of one name the first."""
    found: dict[str, Key] = {}
    for owner in owners:
        for key in keys_of(owner).values():
            found.setdefault(key.name, key)
    return found
