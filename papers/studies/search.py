"""Tuning: the same budget for every algorithm, on draws that are not reported, without a test set.

A case with ``options["search"]`` names tuning draws and what is tried: ``points``, which are
settings, or axes ``[key, low, high]`` on logarithmic scales with a ``budget``. Half of a budget is
a Latin hypercube over the box, the rest a box a quarter as wide around the best so far. The
objective is the mean over the tuning draws: iterations to the tolerance, or accuracy on validation
examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np

from privet.core import RunError
from privet.kernel import stream
from privet.sim.tuning import Axis, hypercube, placed

from .runner import play
from .study import Case

FIRST_TUNING_DRAW = 1000
"""Draws from here on are for tuning; those that are reported begin at 0."""
FAR = 1.5
"""A run is given up at this many times the iterations of the best settings so far."""
Settings = dict[str, Any]


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
    if "points" in search:
        return _least(case, search, search["points"])[1]
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
        except RunError:  # settings that overflow are part of a search
            return math.inf
        score = found["smooth"] if counted else -found["value"]
        if score is None:
            return math.inf
        scores.append(score)
    return float(np.mean(scores))
