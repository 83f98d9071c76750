"""What a site's sums cannot be: no honest site's are called impossible, and damaged ones are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privet.analyses.analysis import Analysis
from privet.analyses.cox import CoxAnalysis
from privet.analyses.description import DescribeAnalysis
from privet.analyses.evaluation import EvaluatedGlm
from privet.analyses.frame import AnalysisError, Frame
from privet.analyses.glm import Glm
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.analyses.pooled_cox import PooledCox
from privet.analyses.possible import impossible
from support.analysis_sites import GRID, agreed

TIMES = {"time_column": "days", "event_column": "died"}
COX = {**TIMES, "formula": "x + group"}
ANALYSES: dict[str, Analysis[Any]] = {
    "binomial": Glm(formula="died ~ x + group"),
    "weighted": Glm(formula="died ~ x + group", weight_column="w"),
    "poisson": Glm("poisson", "visits ~ x + group", exposure_column="w"),
    "gaussian": Glm("gaussian", "x ~ died + group", weight_column="w"),
    "firth": Glm(formula="died ~ x + group", firth=True),
    "evaluated": EvaluatedGlm(Glm(formula="died ~ x + group")),
    "cox": CoxAnalysis(**COX, entry_column="came", weight_column="w"),
    "breslow": CoxAnalysis(**{**COX, "formula": "x"}, ties="breslow", strata_column="group"),
    "cox-firth": CoxAnalysis(**COX, firth=True),
    "pooled": PooledCox(**COX, weight_column="w"),
    "curves": KaplanMeierAnalysis(**TIMES, group_column="group", entry_column="came"),
    "horizon": KaplanMeierAnalysis(**TIMES, group_column="group", horizon=200.0),
    "describe": DescribeAnalysis(),
    "by": DescribeAnalysis(by="group"),
}


def site(
    rng: np.random.Generator,
    rows: int,
    scale: float,
    shift: float,
    missing: float,
    tail: int = 3,
) -> Frame:
    """Rows with heavy tails, ties and missing values, in any unit, and weights of any size."""
    x = (rng.standard_t(2, rows) + shift) * scale
    x[rng.random(rows) < missing] = np.nan
    came = rng.integers(0, 50, rows).astype(float)
    return Frame.of(
        {
            "x": x,
            "group": rng.choice(["a", "b", "c"], rows),
            "died": rng.integers(0, 2, rows).astype(float),
            "visits": rng.poisson(3.0, rows).astype(float),
            "w": rng.exponential(10.0 ** rng.integers(-tail, tail + 1), rows) + 1e-6,
            "came": came,
            "days": came + rng.integers(1, 300, rows),
        }
    )


def rounds(analysis: Analysis[Any], frames: list[Frame], least: int) -> Any:
    """Yield the states that ask, and each site's sums."""
    levels = agreed(analysis, frames)
    if not analysis.needs_levels:  # numbers are described too
        levels = {**dict.fromkeys(frames[0].names, ()), **levels}
    sites = [analysis.sums(frame, levels) for frame in frames]
    if least > 1:
        sites = [analysis.guarded(one, least) for one in sites]
    state = analysis.begin(levels)
    for _ in range(40):
        replies = [one.statistics(analysis.point(state)) for one in sites]
        yield state, replies
        if state.done:
            return
        totals = {name: sum(reply[name] for reply in replies) for name in replies[0]}
        state = analysis.step(state, totals)


def on_grid(replies: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the total as a secure sum has it."""
    return {
        name: np.asarray(sum(np.rint(reply[name] / GRID) * GRID for reply in replies))
        for name in replies[0]
    }


@pytest.mark.parametrize("name", ANALYSES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    scale=st.sampled_from([1e-9, 1e-3, 1.0, 1e5, 1e12]),
    shift=st.sampled_from([0.0, 3.0, 1e5]),
    missing=st.sampled_from([0.0, 0.3, 1.0]),
    least=st.sampled_from([1, 1, 5]),
)
def test_honest_sums_are_never_impossible(
    name: str,
    seed: int,
    sizes: list[int],
    scale: float,
    shift: float,
    missing: float,
    least: int,
) -> None:
    analysis, rng = ANALYSES[name], np.random.default_rng(seed)
    share = [missing if not place else 0.1 * missing for place in range(len(sizes))]
    frames = [site(rng, n, scale, shift, one) for n, one in zip(sizes, share, strict=True)]
    before = [math.nan] * (len(frames) + 1)
    try:
        with np.errstate(all="ignore"):
            for state, replies in rounds(analysis, frames, least):
                each = [(one, 1) for one in replies] + [(on_grid(replies), len(replies))]
                for place, (sums, count) in enumerate(each):
                    assert impossible(analysis, state, sums, before[place], count) == ""
                    said = analysis.rows_said(state, sums)
                    before[place] = before[place] if math.isnan(said) else said
    except (AnalysisError, np.linalg.LinAlgError):
        pass  # such rows have no result, which no site's sums alone say


def damaged(sums: dict[str, Any], key: str, how: str) -> dict[str, Any]:
    array = np.asarray(sums[key], float)
    made = {
        "negative": -array - 1e-3,
        "part": array * 0.37,
        "nan": array * math.nan,
        "skew": array + np.triu(np.ones_like(np.atleast_2d(array)), 1) * 0.1,
        "less": array - 1.0,
        "rising": np.sort(np.atleast_1d(array)),
        "huge": np.full_like(array, 1e300),
        "late": np.full_like(array, array.max(initial=0.0)),
    }
    return {**sums, key: made[how].reshape(array.shape)}


CASES = [
    ("binomial", "rows", "part"),
    ("binomial", "nonzero", "negative"),
    ("binomial", "left_out", "negative"),
    ("binomial", "information", "negative"),
    ("binomial", "information", "skew"),
    ("binomial", "meat", "negative"),
    ("binomial", "cluster", "part"),
    ("binomial", "deviance", "negative"),
    ("binomial", "outcomes", "part"),
    ("binomial", "violations", "negative"),
    ("binomial", "score", "nan"),
    ("poisson", "null_deviance", "negative"),
    ("evaluated", "brier", "negative"),
    ("evaluated", "events", "negative"),
    ("cox", "counts", "negative"),
    ("cox", "sizes", "negative"),
    ("cox", "information", "negative"),
    ("cox", "meat", "negative"),
    ("cox", "cluster", "part"),
    ("cox", "pairs", "negative"),
    ("cox", "rows", "part"),
    ("pooled", "later", "negative"),
    ("pooled", "later", "rising"),
    ("curves", "later", "rising"),
    ("pooled", "deaths", "negative"),
    ("pooled", "at_risk", "negative"),
    ("pooled", "meat", "negative"),
    ("curves", "rows", "negative"),
    ("curves", "events", "part"),
    ("curves", "censored", "negative"),
    ("curves", "entries", "negative"),
    ("curves", "variance", "negative"),
    ("describe", "rows", "negative"),
    ("describe", "persons", "negative"),
    ("by", "squares", "less"),
    ("describe", "counts", "negative"),
    ("describe", "cells", "negative"),
    ("describe", "coarse", "negative"),
    ("describe", "parts", "negative"),
    ("describe", "bins", "part"),
    ("describe", "sizes", "negative"),
    ("describe", "squares", "less"),
    ("binomial", "score", "huge"),
    ("binomial", "null_score", "huge"),
    ("binomial", "deviance", "huge"),
    ("evaluated", "squares", "huge"),
    ("cox", "score", "huge"),
    ("cox", "trend", "huge"),
    ("pooled", "at_risk", "huge"),
    ("curves", "excess", "huge"),
    ("by", "sums", "huge"),
    ("curves", "later", "late"),
    ("pooled", "later", "late"),
]


@pytest.mark.parametrize(("name", "key", "how"), CASES)
def test_damaged_sums_are_impossible(name: str, key: str, how: str) -> None:
    analysis, rng = ANALYSES[name], np.random.default_rng(3)
    frames = [site(rng, n, 1.0, 0.0, 0.1, 0) for n in (201, 301, 401)]
    rows, tried = math.nan, 0
    for state, replies in rounds(analysis, frames, 1):
        if key in replies[1]:
            why = impossible(analysis, state, damaged(replies[1], key, how), rows)
            assert key in why or "rows" in why
            tried += 1
        said = analysis.rows_said(state, replies[1])
        rows = rows if math.isnan(said) else said
    assert tried
