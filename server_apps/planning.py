"""The planned privacy account of a run, as if every round had happened.

The numbers are those of a run with the same config, because they come from the same places: the
calibration, the agent half's releases and the account that a run writes into ``privacy.json``.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError
from privet.core.key import Config
from privet.core.log_level import hushed
from privet.data import DataError, planned_facts
from privet.data.loaders import TABLES
from privet.kernel import Facts, Release, Totals
from privet.problems import public_facts
from privet.rounds.calibration import calibrated, plans
from privet.rounds.open_settings import with_open_settings
from privet.rounds.roster import EnrolledAgent, Roster
from privet.rounds.session import Session
from privet.strategies import PrimalDualStrategy, Run

from .account import privacy_account
from .build import agents_of, build_federation, build_strategy, require_public_data
from .config import UnusedKeyError, changed, read_config
from .noise_plan import planned_noise

FACT_KEYS = ("num-examples", "dim", "colluders")
"""Public numbers that replace the data, in addition to the run-config keys."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned run: its account as in ``privacy.json``, one round's cost, and its noise.

    Attributes
    ----------
    account : mapping
    per_round : float
        epsilon of the costliest round of one agent.
    noise : mapping
        The noise key of the algorithm and its value, as given or as calibrated.
    delta, relation
        The delta at which epsilon is stated, and the neighbouring relation.
    advice : str
        One line where a target is shared by so many steps that noise hides the updates, else "".
    """

    account: Mapping[str, Any]
    per_round: float
    noise: Mapping[str, float]
    delta: float
    relation: str
    advice: str = ""


_BOUNDS: Mapping[str, Any] = {
    "local-solver": "noisy-gd",
    "clip": 1.0,
    "loss": "binary-logistic",
}
"""Keys that a private run may need in addition to its noise, with example values."""
SCHEMA = "schema=schema.toml"
"""The key that a private run on a table needs, with the name of a file that is to be written."""


def plan_account(config: Config, public: Mapping[str, Any]) -> Planned:
    """Return the planned account of a resolved config.

    Parameters
    ----------
    config : Config
        A resolved run config.
    public : mapping
        ``num-examples`` (and ``dim``) of every agent, in place of the config's data, which are
        read if it is empty. ``colluders`` of every node that trusts sums.

    Raises
    ------
    ConfigError
        If the run cannot be private as configured, or the data cannot be read; the error names
        all keys that are missing.
    """
    with missing_named(config, public):
        return _plan(config, public)


def read_private_config(raw: Mapping[str, Any], public: Mapping[str, Any]) -> Config:
    """Return ``read_config(raw)``; of a run with a target its error names all missing keys.

    ``public`` as in `plan_account`. Raises ``ConfigError``.
    """
    try:
        return read_config(raw)
    except UnusedKeyError as error:
        if error.config.get("target-epsilon", 0.0) <= 0:
            raise
        with missing_named(error.config, public):
            raise


@contextmanager
def missing_named(config: Config, public: Mapping[str, Any]) -> Iterator[None]:
    """Extend a ``ConfigError`` that names one missing key of a private run by all others."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}{_ready(config, _missing(config, public))}") from None


def require_fewer(name: str, colluders: int, agents: int) -> None:
    """Raise ``ConfigError`` unless an agent is left that does not collude."""
    if colluders >= agents:
        raise ConfigError(
            f"{name} {colluders}: the run has {agents} agents; take at most {agents - 1}"
        )


def _ready(config: Config, missing: Sequence[str]) -> str:
    """Return the missing keys as they are typed, and how a schema is written; "" for none."""
    if not missing:
        return ""
    text = f"; add {' '.join(missing)}"
    if SCHEMA not in missing:
        return text
    label = config["label-column"]
    words = [config["data-path"], *([f"label-column={label}"] if label else [])]
    return f"{text}, where privet data {shlex.join(words)} --schema schema.toml writes a first one"


def _missing(config: Config, public: Mapping[str, Any]) -> list[str]:
    """Return the keys that a run lacks to be private, each with an example value."""
    given = changed(config)
    bounds = {**_BOUNDS, "row-norm": _usual_norm(config, public)}
    absent = {key: bounds[key] for key in bounds if key in config and key not in given}

    def fails(added: Mapping[str, Any]) -> bool:
        with hushed():
            try:
                _plan(Config({**config, **added}), public, any_data=True)
            except ConfigError:
                return True
        return False

    if fails(absent):
        return []
    needed = [
        f"{key}={absent[key]}"
        for key in absent
        if fails({name: absent[name] for name in absent if name != key})
    ]
    if needed and config["dataset"] in TABLES and not config["schema"]:
        needed.append(SCHEMA)
    return needed


def _usual_norm(config: Config, public: Mapping[str, Any]) -> float:
    """Return the norm of a row whose features are of order 1: the root of their number."""
    count = public.get("dim", 1)
    if "num-examples" not in public:
        try:
            count = build_federation(config).problems[0].num_features
        except ConfigError:  # the data are named by their own error, once the keys are there
            count = 1
    return round(math.sqrt(count), 1)


def _plan(config: Config, public: Mapping[str, Any], *, any_data: bool = False) -> Planned:
    """Return the plan; ``any_data`` also accepts data that a private run refuses."""
    strategy = build_strategy(config)
    if "colluders" in public and not strategy.half.agent.noise_sharing:
        raise ConfigError("colluders: not used without noise-sharing = true")
    if "colluders" not in public and strategy.half.agent.noise_sharing:
        raise ConfigError("noise-sharing = true: give colluders, how many agents may collude")
    require_fewer("colluders =", int(public.get("colluders", -1)), agents_of(config))
    session = _session(config, _facts(strategy, config, public, any_data=any_data))
    rounds = int(config["num-server-rounds"])
    options = replace(strategy.options, rounds=rounds)
    half, _ = calibrated(with_open_settings(strategy.half, options, session), session, options)
    strategy.run = Run(half, options, session)
    advice = planned_noise(strategy, strategy.run)
    planned = _complete(strategy.run)
    key = strategy.half.noise_key
    noise = {key: float(strategy.half.settings()[key])} if key else {}
    delta = strategy.half.terms.delta
    per_round = max((Totals().add(release).epsilon(delta) for release in planned), default=math.inf)
    relation = str(strategy.half.settings().get("relation", "replace-one"))
    return Planned(privacy_account(strategy, config), per_round, noise, delta, relation, advice)


def _facts(
    strategy: PrimalDualStrategy,
    config: Mapping[str, Any],
    public: Mapping[str, Any],
    *,
    any_data: bool,
) -> list[Facts]:
    """Return every agent's public facts: those given, else those of the config's data."""
    count, colluders = agents_of(config), int(public.get("colluders", -1))
    if "num-examples" not in public:
        if "dim" in public:
            raise ConfigError("dim: goes with num-examples")
        federation = build_federation(config)
        if not any_data:
            require_public_data(strategy, federation, config)
        return [replace(public_facts(one), colluders=colluders) for one in federation.problems]
    examples, dim = int(public["num-examples"]), int(public.get("dim", 1))
    try:
        facts = planned_facts(config, count, examples, dim)
    except DataError as error:
        raise ConfigError(str(error)) from None
    return [replace(facts, colluders=colluders)] * count


def _session(config: Mapping[str, Any], facts: list[Facts]) -> Session:
    """Return a session whose agents are enrolled and have taken part in no round."""
    start = ArrayRecord({"x": Array(np.zeros(facts[0].dim, config["dtype"]))})
    agents = {
        str(place): EnrolledAgent(place, known.num_examples, facts=known.to_json())
        for place, known in enumerate(facts)
    }
    return replace(Session.of("", start), roster=Roster(agents))


def _complete(run: Run) -> set[Release]:
    """Charge every planned release, mark all rounds as played and return the releases."""
    half, agents = run.half.agent, run.session.roster.agents
    planned: set[Release] = set()
    if half.private:
        for name, plan in plans(run.session, run.options).items():
            if plan.rounds:
                planned |= plan.releases(half).keys()
                agents[name].tag = plan.rounds[-1]
                agents[name].ledger = plan.carried_out(half)
    run.session.round = run.options.rounds or 0
    return planned
