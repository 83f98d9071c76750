"""Build the parts of a run from its config: strategy, evaluation and starting model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError, algorithm
from privet.core.key import Config
from privet.data import DataError, Federation, federation_from_config
from privet.data.problem import doubts_of
from privet.kernel import NoCertificateError, stream
from privet.kernel.exits import require_public, rows_per_person
from privet.strategies import PrimalDualStrategy
from privet.wire.contract import means_privacy

from .evaluation import Evaluation

log = logging.getLogger("flwr.privet")


def build_strategy(config: Config, **options: Any) -> PrimalDualStrategy:
    """Return the strategy of a resolved config.

    ``options`` are further arguments of the algorithm's ``from_config``.
    """
    strategy: PrimalDualStrategy = (
        algorithm(config["algorithm"]).load_strategy().from_config(config, **options)
    )
    return strategy


def build_federation(config: Mapping[str, Any], encoding: str = "") -> Federation:
    """Return all agents' problems (raises ``ConfigError`` for unusable data).

    ``encoding`` is the one that the agents of a run have agreed on.
    """
    try:
        return federation_from_config(config, agents_of(config), agreed=encoding)
    except DataError as error:
        raise ConfigError(str(error)) from None


def tell_doubts(federation: Federation, config: Mapping[str, Any]) -> None:
    """Write into the log what is doubtful about the table of a run, and where to look."""
    keys = {key.replace("-", "_"): value for key, value in config.items()}
    for line in doubts_of(keys, federation.dataset):
        log.warning("%s", line)


def require_public_data(
    strategy: PrimalDualStrategy, federation: Federation, config: Mapping[str, Any]
) -> None:
    """Refuse a private run on data that every agent would refuse (raises ``ConfigError``)."""
    if not means_privacy(strategy.half.settings()):
        return
    bound = rows_per_person(config)
    try:
        require_public(federation.problems[0])  # preparation is the same for all agents
        most = max(problem.person_rows for problem in federation.problems)
        if most > bound:
            raise ConfigError(
                f"person-column = {config['person-column']}: a person has {most} rows in an agent, "
                f"and epsilon is stated for rows-per-person = {bound}: set rows-per-person={most}"
            )
    except NoCertificateError as error:
        raise ConfigError(str(error)) from None


def agents_of(config: Mapping[str, Any]) -> int:
    """Return the number of agents that data are dealt to (raises ``ConfigError`` where it is 0)."""
    count = int(config["num-agents"])
    if count < 1:
        raise ConfigError("num-agents = auto: give the number of agents the data are dealt to")
    return count


def build_evaluation(config: Mapping[str, Any], encoding: str = "") -> Evaluation:
    """Return the server's evaluation of models (raises ``ConfigError`` for unusable data)."""
    federation = build_federation(config, encoding)
    kind = algorithm(config["algorithm"]).load_strategy()
    evaluation = Evaluation(federation, kind.objective_h(config))
    measures = kind.measures(config, federation, evaluation.optimum)
    return replace(evaluation, measures=measures, encoded=partial(build_evaluation, config))


def starting_model(config: Mapping[str, Any], dim: int) -> ArrayRecord:
    """Return the starting model, zero or ``init-scale`` times a standard normal draw."""
    start = np.zeros(dim)
    if config["init-scale"] > 0:
        start = config["init-scale"] * stream(config["seed"], "start").standard_normal(dim)
    return ArrayRecord({"x": Array(start.astype(config["dtype"]))})
