"""Tables II (convex), IV, VI and IX of the Fed-PLT paper on its iid problem, in rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from privet.sim.experiments.fed_plt import (
    TABLE_II_CONVEX,
    TABLE_IV,
    TABLE_IX,
    TABLE_VI,
    IidProblem,
    rounds_needed,
)
from privet.strategies import Fraction

DRAWS = 6


@cache
def draws() -> list[IidProblem]:
    return [IidProblem.draw(seed) for seed in range(DRAWS)]


def mean_rounds(**options: Any) -> float:
    return float(np.mean([rounds_needed(draw, **options) for draw in draws()]))


def deviations(printed: Mapping[Any, int], ours: Callable[[Any], float]) -> list[float]:
    return [abs(ours(entry) / rounds - 1) for entry, rounds in printed.items()]


def test_table_ii_convex() -> None:
    assert mean_rounds() == pytest.approx(TABLE_II_CONVEX, abs=2)


def test_table_iv_accelerated() -> None:
    assert mean_rounds(local_solver="agd") == pytest.approx(TABLE_IV["agd"], abs=2)


def test_table_ix_local_epochs() -> None:
    off = deviations(TABLE_IX, lambda epochs: mean_rounds(local_epochs=epochs))
    assert sum(one <= 0.2 for one in off) >= len(off) - 1
    assert max(off) <= 0.3


def test_table_vi_partial_participation() -> None:
    off = deviations(TABLE_VI, lambda part: mean_rounds(participation=Fraction(part)))
    assert sum(one <= 0.2 for one in off) >= len(off) - 1
    assert max(off) <= 0.3


def test_nonconvex_problem_reaches_a_stationary_point() -> None:
    draw = IidProblem.draw(2, regularizer="nonconvex")
    assert draw.federation.problems[0].moduli.strong_convexity < 0
    assert rounds_needed(draw, rho=2.0, most=300) < 100
