"""Search the weight of the penalty: the run's own algorithm, judged on rows that agents hold out.

For every C of a grid and every one of some draws, each agent holds out a fifth of its training rows
(of its persons, where rows have them), the others train together, and the model's loss on all rows
held out, without the penalty, is compared. It is what scikit-learn's ``LogisticRegressionCV`` asks,
with draws that every agent makes of its own rows. The test set takes no part.

Privacy: every run reads the records, and no account covers a search. Private runs are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core import ConfigError
from privet.core.key import Config
from privet.data import Federation
from privet.data.held_out import hold_out
from privet.problems import LinearModel, NoRegularizer, PooledL2
from privet.server_apps.build import build_federation, build_strategy, starting_model

from .inline import grid_of
from .race import read_searched

GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The values of C that are tried."""
DRAWS = 3
"""How often every agent draws the rows that it holds out."""

Vector = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tried:
    """What runs with one C gave.

    Attributes
    ----------
    c : float
        scikit-learn's C on the pooled rows.
    loss, spread : float
        Mean loss of a held-out row over the draws, and its standard deviation between draws.
    measures : mapping
        Means over the draws of the problem's other measures of held-out rows, such as accuracy.
    """

    c: float
    loss: float
    spread: float
    measures: Mapping[str, float]


def search(
    given: Mapping[str, Any],
    grid: Sequence[float] = GRID,
    draws: int = DRAWS,
    told: Callable[[str], None] = lambda line: None,
) -> list[Tried]:
    """Return what each C gave, the least loss on held-out rows first.

    Parameters
    ----------
    given : mapping
        Run-config keys; the data, the algorithm and the number of rounds are theirs.
    grid : sequence of float
        Values of C.
    draws : int
        Draws of held-out rows.
    told : callable, optional
        Is given a line after each draw.

    Raises
    ------
    ConfigError
        If the run has another penalty than the automatic one, or an agent too few rows to hold
        some out.
    """
    config = read_searched(given)
    federation = build_federation(config)
    if not all(isinstance(one.regularizer, PooledL2) for one in federation.problems):
        raise ConfigError(
            "the search is of the automatic penalty (regularizer-weight = auto) of a run that is "
            "not private; leave regularizer-weight, beta, divisor, clip and noise out"
        )
    found: dict[float, list[tuple[float, dict[str, float]]]] = {c: [] for c in sorted(grid)}
    for draw in range(draws):
        kept, held = _drawn(federation, int(config["seed"]) + draw)
        start = starting_model(config, federation.dim)["x"].numpy()
        for c, of_c in found.items():  # from the model of the stronger penalty before
            start = _model({**config, "penalty-c": c}, kept, start)
            of_c.append(_judged(held, start))
        told(f"draw {draw + 1} of {draws}: {len(found)} values of C")
    return sorted((_mean(c, of_c) for c, of_c in found.items()), key=lambda one: one.loss)


Problems = list[LinearModel[Any]]


def _drawn(federation: Federation, seed: int) -> tuple[Problems, Problems]:
    """Return the agents' problems on the rows that they keep, and on those that they hold out."""
    kept: Problems = []
    held: Problems = []
    persons = federation.dataset.train_persons
    for index, (whole, rows) in enumerate(zip(federation.problems, federation.parts, strict=True)):
        own = None if persons is None else persons[rows]
        train, test = hold_out(len(rows), seed + 7919 * index, persons=own)
        if not (len(train) and len(test)):
            raise ConfigError(f"agent {index} has {len(rows)} rows, too few to hold a fifth out")
        kept.append(whole.of_rows(train))
        held.append(whole.of_rows(test).with_regularizer(NoRegularizer()))
    return kept, held


def _model(config: Mapping[str, Any], problems: Problems, start: Vector) -> Vector:
    """Return the model of a run; the run sets D and the penalty by the rows that are kept."""
    strategy = build_strategy(Config(config))
    result = strategy.start(
        grid_of(config["algorithm"], problems),
        ArrayRecord({"x": Array(start)}),
        num_rounds=config["num-server-rounds"],
        log_rounds=False,
    )
    return result.arrays["x"].numpy()


def _judged(held: Problems, x: Vector) -> tuple[float, dict[str, float]]:
    """Return loss and measures over all rows held out, each row counted alike."""
    sizes = [one.divisor for one in held]
    loss = float(np.average([one.value(x) for one in held], weights=sizes))
    measures = [one.metrics(x) for one in held]
    return loss, {
        name: float(np.average([one[name] for one in measures], weights=sizes))
        for name in set.intersection(*map(set, measures)) - {"loss"}
    }


def _mean(c: float, of_c: list[tuple[float, dict[str, float]]]) -> Tried:
    losses = [loss for loss, _ in of_c]
    names = of_c[0][1]
    means = {name: float(np.mean([measures[name] for _, measures in of_c])) for name in names}
    return Tried(c, float(np.mean(losses)), float(np.std(losses)), means)
