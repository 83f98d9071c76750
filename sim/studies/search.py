"""Tuning: the same budget for every algorithm, on draws that are not reported, without a test set.

A case with ``options["search"]`` names axes, a budget and tuning draws. An axis is
``[key, low, high]`` on a logarithmic scale or ``[key, [values]]``; in place of axes there may be
``points``, the settings themselves. Half of the budget is a Latin
hypercube over the box, the rest a box a quarter as wide around the best so far. The objective is
the mean over the tuning draws: iterations to the tolerance, or accuracy on validation examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from privet.wire import stream

from .runner import play
from .study import Case

FIRST_TUNING_DRAW = 1000
"""Draws from here on are for tuning; those that are reported begin at 0."""


FAR = 1.5
"""A run is given up at this many times the iterations of the best settings so far."""


def searched(case: Case) -> Case:
    """Return the case with the best settings of its search, if it has one, in its place."""
    if "search" not in case.options:
        return case
    plain = {key: value for key, value in case.options.items() if key != "search"}
    asked = replace(case, label="", seed=0, workload={**case.workload, "draw": 0})
    best = _best(json.dumps([asdict(asked), plain], sort_keys=True))
    return replace(case, settings={**case.settings, **best}, options=plain)


@lru_cache(maxsize=64)
def _best(text: str) -> Mapping[str, Any]:
    content, plain = json.loads(text)
    case = Case(**content)
    asked = case.options["search"]
    trials = [Trial(math.inf, {}, ())]
    for point in _first(asked, case.algorithm):
        trials.append(_tried(case, plain, point, min(trials).score))
    if "points" not in asked and not _is_grid(asked):
        for point in _second(asked, case.algorithm, min(trials).point):
            trials.append(_tried(case, plain, point, min(trials).score))
    return min(trials).settings


@dataclass(frozen=True, order=True, slots=True)
class Trial:
    """Settings that were tried: their mean score, the less the better."""

    score: float
    settings: dict[str, Any] = field(compare=False)
    point: Any = field(compare=False)


def _tried(case: Case, plain: Mapping[str, Any], point: Any, best: float) -> Trial:
    """Return what settings give; they are given up where they fail or are far behind the best."""
    asked = case.options["search"]
    settings = _settings(asked, point)
    counted = case.measure == "iterations"
    rounds = case.rounds
    if counted and math.isfinite(best):
        rounds = min(rounds, math.ceil(FAR * best))
    scores = []
    for number in range(asked["draws"]):
        draw = FIRST_TUNING_DRAW + number
        one = replace(
            case,
            seed=draw,
            workload={**case.workload, "draw": draw, **asked.get("workload", {})},
            settings={**case.settings, **settings},
            rounds=rounds,
            options=plain,
        )
        found = play(one)
        scores.append(found["smooth"] if counted else -found["value"])
        if scores[-1] is None:
            return Trial(math.inf, settings, point)
    return Trial(float(np.mean(scores)), settings, point)


def _is_grid(asked: Mapping[str, Any]) -> bool:
    return all(len(axis) == 2 for axis in asked["axes"])


def _first(asked: Mapping[str, Any], name: str) -> list[Any]:
    if "points" in asked:
        return list(asked["points"])
    if _is_grid(asked):
        return list(product(*(axis[1] for axis in asked["axes"])))
    return list(_hypercube(name, -(-asked["budget"] // 2), len(asked["axes"])))


def _second(asked: Mapping[str, Any], name: str, centre: Any) -> list[Any]:
    count = asked["budget"] // 2
    around = (_hypercube(f"{name} again", count, len(asked["axes"])) - 0.5) / 4
    return list(np.clip(np.asarray(centre) + around, 0.0, 1.0))


def _hypercube(name: str, count: int, dim: int) -> Any:
    """Return points of [0, 1]^dim, one in each of ``count`` slices per axis."""
    rng = stream(0, "tuning", name)
    slices = np.stack([rng.permutation(count) for _ in range(dim)], axis=1)
    return (slices + rng.random((count, dim))) / count


def _settings(asked: Mapping[str, Any], point: Any) -> dict[str, Any]:
    if "points" in asked:
        return dict(point)
    return dict(zip((axis[0] for axis in asked["axes"]), _values(asked, point), strict=True))


def _values(asked: Mapping[str, Any], point: Sequence[Any]) -> list[Any]:
    if _is_grid(asked):
        return list(point)
    return [
        float(low * (high / low) ** share)
        for (_, low, high), share in zip(asked["axes"], point, strict=True)
    ]
