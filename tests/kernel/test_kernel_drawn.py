"""What drawing adds to delta, and the account of several records at once."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import stats

from privet.kernel import Release, Totals, drawn_delta, gaussian_epsilon
from privet.kernel.perturb import spacing
from privet.kernel.ziggurat import cell


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("epsilon", [0.0, 3.0, 20.0])
def test_drawing_adds_the_sampler_and_the_stream(mechanism: str, epsilon: float) -> None:
    norm = "l2" if mechanism == "gaussian" else "l1"
    release = Release(mechanism, 2.0, 1.0, norm, count=3)  # type: ignore[arg-type]
    dim, times = 500, 40
    with localcontext() as context:
        context.prec = 40
        draws = Decimal(3 * dim)
        ratio = Decimal(cell(mechanism, 2.0)) / Decimal(spacing(release, dim))  # type: ignore[arg-type]
        sampler = draws * (Decimal(2) ** -56 + Decimal(2) ** -51 * ratio)
        stream = draws**2 * Decimal(2) ** -129
        exact = times * (sampler + stream) * (1 + Decimal(epsilon).exp())
    found = drawn_delta([(release, times)], dim, epsilon)
    assert float(exact) <= found <= float(exact) * (1 + 1e-11)


def test_drawing_adds_one_at_most_and_nothing_without_noise() -> None:
    assert drawn_delta([(Release("gaussian", 1.0), 10)], 10**6, 800.0) == 1.0
    assert drawn_delta([(Release("gaussian", 1.0), 10)], 10**6, math.inf) == 1.0
    assert drawn_delta([(Release("none"), 1)], 10, 1.0) == 0.0


@pytest.mark.parametrize("rows", [2, 5])
def test_person_of_gaussian_releases_has_rows_times_mu(rows: int) -> None:
    one = Totals().add(Release("gaussian", 10.0, 1.0), 7)
    found = one.of_group(rows).epsilon(1e-6)
    exact = gaussian_epsilon(rows * one.mu, 1e-6)
    assert exact <= found <= exact * (1 + 1e-11)


def test_person_of_one_laplace_release_has_rows_times_epsilon() -> None:
    release = Release("laplace", 8.0, 1.0, "l1")
    once = Totals().add(release).of_group(3)
    loss = 3 * release.loss
    # delta of Laplace noise at epsilon below its loss: 1 - e^{(epsilon - loss) / 2}.
    exact = loss + 2 * math.log1p(-1e-3)
    assert exact <= once.epsilon(1e-3) <= exact * (1 + 1e-3)


@pytest.mark.parametrize(("mu", "q", "rows"), [(0.8, 0.1, 3), (0.3, 0.4, 4), (2.0, 0.02, 2)])
def test_person_of_sampled_records_costs_no_less_than_all_coins(
    mu: float, q: float, rows: int
) -> None:
    release = Release("gaussian", 1.0 / mu, 1.0, relation="add-remove", sampling=q)
    found = Totals().add(release).of_group(rows).epsilon(1e-6)
    # All rows are the same record: the shift is binomial, and delta an integral on a line.
    x = np.linspace(-12, 12 + rows * mu, 400_001)
    counts = stats.binom.pmf(np.arange(rows + 1), rows, q)
    there = sum(w * stats.norm.pdf(x - j * mu) for j, w in enumerate(counts))
    away = stats.norm.pdf(x)
    step = x[1] - x[0]
    for first, second in ((there, away), (away, there)):
        delta = float(np.maximum(first - math.exp(found) * second, 0).sum() * step)
        assert delta <= 1e-6 * (1 + 1e-3)
    whole = gaussian_epsilon(rows * release.loss, 1e-6)
    assert Totals().add(release).epsilon(1e-6) < found < whole


def test_person_of_one_record_or_of_a_whole_agent_is_the_unit() -> None:
    one = Totals().add(Release("gaussian", 3.0))
    assert one.of_group(1) == one
    agent = Totals().add(Release("gaussian", 3.0, relation="replace-agent"))
    assert agent.of_group(9) == agent
    with pytest.raises(ValueError, match="rows is 0"):
        one.of_group(0)
