"""Tuning: the same budget for every algorithm, on draws that are not reported, without a test set.

A case with ``options["search"]`` names tuning draws and what is tried: a ``grid`` of values by key,
or axes ``[key, low, high]`` on logarithmic scales with a ``budget``. Half of a budget is a Latin
hypercube over the box, the rest a box a quarter as wide around the best so far. A grid whose best
setting is at an end of it goes on there, `WIDER` times at most, so that it ends at neither side of
the best; what is at an end all the same is named by `ends`. The objective is the mean over the
tuning draws: iterations to the tolerance, or accuracy on validation examples.

Studies that score settings themselves search with `compass`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from privet.core import ConfigError, RunError
from privet.kernel import NoCertificateError, stream
from privet.sim.tuning import Axis, hypercube, placed

from .runner import play
from .study import Case

FIRST_TUNING_DRAW = 1000
"""Draws from here on are for tuning; those that are reported begin at 0."""
FAR = 1.5
"""A run is given up at this many times the iterations of the best settings so far."""
WIDER = 8
TRIALS, WIDEST = 7, 8
"""Of a compass search: how much it tries at least, and its first width, in eighths of a power."""
Settings = dict[str, Any]
Grid = Mapping[str, Sequence[float]]


def searched(case: Case) -> Case:
    """Return the case with the best settings of its search, if it has one, in its place."""
    if "search" not in case.options:
        return case
    plain = {key: value for key, value in case.options.items() if key != "search"}
    asked = replace(case, label="", seed=0, workload={**case.workload, "draw": 0})
    best = _best(json.dumps([asdict(asked), plain], sort_keys=True))
    return replace(case, settings={**case.settings, **best}, options=plain)


@cache
def _best(text: str) -> Settings:
    content, plain = json.loads(text)
    search = content["options"]["search"]
    case = Case(**{**content, "options": plain})
    if "grid" in search:
        return widened(case, search)[0]
    axes = [Axis(*axis) for axis in search["axes"]]
    budget, dim = search["budget"], len(axes)
    points = hypercube(stream(0, "tuning", case.algorithm), -(-budget // 2), dim)
    tried = [placed({}, axes, point) for point in points]
    score, best = _least(case, search, tried)
    centre = points[tried.index(best)] if best else np.full(dim, 0.5)
    again = stream(0, "tuning", f"{case.algorithm} again")
    around = (hypercube(again, budget // 2, dim) - 0.5) / 4
    closer = [placed({}, axes, point) for point in np.clip(centre + around, 0.0, 1.0)]
    return _least(case, search, closer, (score, best))[1]


def widened(case: Case, search: Mapping[str, Any]) -> tuple[Settings, Grid]:
    """Return the best settings of a grid, and the grid as far as it had to go."""
    grid: dict[str, list[float]] = {key: list(axis) for key, axis in search["grid"].items()}
    best = _least(case, search, _points(grid))
    for _ in range(WIDER):
        further = {key: _further(grid[key], best[1][key]) for key in ends(best[1], grid)}
        beyond = {key: value for key, value in further.items() if value}
        if not beyond:
            break
        key, value = next(iter(beyond.items()))
        best = _least(case, search, _points({**grid, key: [value]}), best)
        grid[key] = sorted([*grid[key], value])
    return best[1], grid


def ends(settings: Mapping[str, Any], grid: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the keys whose value is the last on its axis; 0 is an end by nature."""
    return [
        key
        for key, axis in grid.items()
        if any(end and math.isclose(settings[key], end) for end in (min(axis), max(axis)))
    ]


def near_ends(settings: Mapping[str, Any], axes: Sequence[Sequence[Any]]) -> list[str]:
    """Return the keys whose value is in the outer twentieth of its axis, on its scale."""
    places = {key: math.log(settings[key] / low) / math.log(high / low) for key, low, high in axes}
    return [key for key, place in places.items() if not 0.05 < place < 0.95]


def _further(axis: Sequence[float], end: float) -> float:
    """Return the value beyond an end, as far as its neighbour is by ratio; 0 beside a 0."""
    own = sorted(axis)
    near = own[1] if math.isclose(end, own[0]) else own[-2]
    return float(f"{end * end / near:.3g}") if own[0] else 0.0


def _points(grid: Mapping[str, Sequence[float]]) -> list[Settings]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _least(
    case: Case,
    search: Mapping[str, Any],
    candidates: Sequence[Settings],
    best: tuple[float, Settings] = (math.inf, {}),
) -> tuple[float, Settings]:
    """Return the least score and its settings."""
    for settings in candidates:
        score = _score(case, search, settings, best[0])
        if score < best[0]:
            best = score, settings
    return best


def _score(case: Case, search: Mapping[str, Any], settings: Settings, best: float) -> float:
    """Return the mean over the tuning draws; infinity where a run fails or is far behind."""
    counted = case.measure == "iterations"
    rounds = case.rounds
    if counted and math.isfinite(best):
        rounds = min(rounds, math.ceil(FAR * best))
    scores = []
    for draw in range(FIRST_TUNING_DRAW, FIRST_TUNING_DRAW + search["draws"]):
        tried = replace(
            case,
            seed=draw,
            workload={**case.workload, "draw": draw, **search.get("workload", {})},
            settings={**case.settings, **settings},
            rounds=rounds,
        )
        try:
            found = play(tried)
        except (RunError, ConfigError, NoCertificateError):  # they overflow, or have no theory
            return math.inf
        score = found["smooth"] if counted else -found["value"]
        if score is None:
            return math.inf
        scores.append(score)
    return float(np.mean(scores))


# ------------------------------------------------------------------ any score


class Found(NamedTuple):
    """The best values, how many were tried, and whether the best has worse ones on all sides."""

    values: dict[str, float]
    trials: int
    inside: bool = True


def compass(
    grid: Mapping[str, float],
    most: Mapping[str, float],
    score: Callable[[dict[str, float]], float],
    trials: int = TRIALS,
    bound: float = math.inf,
) -> Found:
    """Return the best of a compass search on a grid of powers; a lower score is better.

    From the middle it goes to the better neighbour, a factor 3 on a key; where none is, by its
    root, and so on. It ends after ``trials``, but not before the best has worse ones on all sides,
    nor later than after ``bound``.
    """
    keys, tried = list(grid), dict[tuple[int, ...], float]()

    def value(place: tuple[int, ...]) -> dict[str, float]:
        return {
            k: float(f"{grid[k] * 3 ** (p / WIDEST):.4g}") for k, p in zip(keys, place, strict=True)
        }

    def beside(place: tuple[int, ...], width: int) -> Iterator[tuple[int, ...]]:
        for axis in range(len(keys)):
            for side in (-width, width):
                near = (*place[:axis], place[axis] + side, *place[axis + 1 :])
                if all(one <= most.get(key, math.inf) for key, one in value(near).items()):
                    yield near

    best, width, bracketed = (0,) * len(keys), WIDEST, False
    tried[best] = score(value(best))
    while len(tried) < bound:
        around = [near for near in beside(best, width) if near not in tried]
        if not around:
            bracketed = True
            if len(tried) >= trials or width == 1:
                break
            width //= 2
            continue
        if bracketed and len(tried) >= trials:
            break
        near = around[0]
        tried[near] = score(value(near))
        if tried[near] < tried[best]:
            best, bracketed = near, bracketed and width < WIDEST
    return Found(value(best), len(tried), bracketed)
