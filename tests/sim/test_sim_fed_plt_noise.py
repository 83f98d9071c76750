"""Table VII of the Fed-PLT paper: the asymptotic error grows with the noise's deviation."""

from __future__ import annotations

import itertools
import math

import pytest

from privet.sim.experiments.fed_plt import TABLE_VII, IidProblem, asymptotic_error

DECADES = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]


def test_one_decade_of_variance_is_a_factor_sqrt_10() -> None:
    problem = IidProblem.draw(0)
    ours = {variance: asymptotic_error(problem, variance) for variance in DECADES}
    for low, high in itertools.pairwise(DECADES):
        ratio = ours[high] / ours[low]
        assert ratio == pytest.approx(math.sqrt(10), rel=0.25)
        assert ratio == pytest.approx(TABLE_VII[high] / TABLE_VII[low], rel=0.25)


def test_size_of_the_error_is_the_papers() -> None:
    """The paper's own problem is not published; the scale still has to be the same."""
    found = asymptotic_error(IidProblem.draw(1), 1e-2)
    assert 0.5 < found / TABLE_VII[1e-2] < 2.0
