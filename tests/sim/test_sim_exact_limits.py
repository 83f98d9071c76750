"""Fed-PLT's limit is the centralised composite optimum, whoever takes part and however little
local work is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet

from privet.problems import (
    L2,
    BinaryLogistic,
    MultinomialLogistic,
    RidgeRegression,
    make_h,
    minimize,
)
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, Fraction, Participation, Probability
from support.federations import app_of, logistic_agents, model, train, zeros

L1 = {"h-weight": 0.25}


def kkt_residual(problems: list[Any], h: Any, x: Any) -> float:
    slope = np.sum([problem.gradient(x) for problem in problems], axis=0)
    return float(h.subgradient_residual(x, slope))


@pytest.mark.parametrize("local_epochs", [1, 5, 20])
@pytest.mark.parametrize("participation", [None, Fraction(0.5), Probability(0.6, {"0": 0.2})])
def test_l1_limit_is_the_composite_optimum(
    local_epochs: int, participation: Participation | None
) -> None:
    problems = logistic_agents(6, rows=40, dim=20, weight=0.2)
    h = make_h("l1", **L1)
    result, _, _ = train(
        problems,
        1500,
        h=h,
        local_epochs=local_epochs,
        participation=participation,
        start={"tolerance": 1e-24},
    )
    found = model(result)
    optimum = minimize(problems, h).x
    assert np.any(optimum == 0)
    assert np.any(optimum != 0)
    assert np.array_equal(found == 0, optimum == 0)
    assert kkt_residual(problems, h, found) <= 1e-6
    assert np.allclose(found, optimum, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("zero", {}),
        ("elastic-net", {"h-weight": 0.5, "h-ratio": 0.3}),
        ("box", {"h-radius": 0.1}),
        ("l2-ball", {"h-radius": 0.2}),
        ("group-l1", {"h-weight": 0.8, "h-group-size": 2}),
    ],
)
def test_every_h(name: str, parameters: dict[str, float]) -> None:
    problems = logistic_agents(4, rows=30, dim=6)
    h = make_h(name, **parameters)
    result, _, _ = train(problems, 600, h=h, local_epochs=5, start={"tolerance": 1e-24})
    assert np.allclose(model(result), minimize(problems, h).x, atol=1e-8)


@pytest.mark.parametrize("solver", ["gd", "agd"])
def test_ridge_with_l1_is_scikit_learns_elastic_net(solver: str) -> None:
    rng = np.random.default_rng(1)
    features = [rng.standard_normal((25, 8)) for _ in range(4)]
    targets = [a @ np.r_[2.0, -1.0, np.zeros(6)] + rng.standard_normal(25) for a in features]
    problems = [
        RidgeRegression(a, t, regularizer=L2(0.3)) for a, t in zip(features, targets, strict=True)
    ]
    h = make_h("l1", **{"h-weight": 1.0})
    result, _, _ = train(
        problems, 800, h=h, local_epochs=8, local_solver=solver, start={"tolerance": 1e-26}
    )
    # sum_i f_i + h = (1/25) ||t - A x||^2 + 0.6 ||x||^2 + |x|_1 is 2 * 100/25 times
    # (1/200) ||t - A x||^2 + alpha (l1_ratio |x|_1 + (1 - l1_ratio) / 2 ||x||^2).
    alpha = 1 / 8 + 1.2 / 8
    oracle = ElasticNet(
        alpha=alpha, l1_ratio=(1 / 8) / alpha, fit_intercept=False, tol=1e-12, max_iter=100_000
    )
    oracle.fit(np.concatenate(features), np.concatenate(targets))
    assert np.allclose(model(result), oracle.coef_, atol=1e-6)


def test_multinomial_agents() -> None:
    rng = np.random.default_rng(2)
    problems = [
        MultinomialLogistic(
            rng.standard_normal((30, 3)), rng.integers(0, 4, 30), 4, regularizer=L2(0.3)
        )
        for _ in range(3)
    ]
    result, _, _ = train(problems, 500, local_epochs=5, start={"tolerance": 1e-24})
    assert np.allclose(model(result), minimize(problems).x, atol=1e-8)


def test_agents_may_use_solvers_and_moduli_of_their_own() -> None:

    problems = logistic_agents(4, dim=5)
    own = [
        {"local-solver": "agd", "local-epochs": 2},
        {"local-solver": "gd", "step-size": 0.2},
        {"strong-convexity": 0.1, "smoothness": 9.0},
        {},
    ]
    grid = InlineGrid(
        app_of(problems),
        [{"partition-id": i, "num-partitions": 4, **settings} for i, settings in enumerate(own)],
    )
    result, _, _ = train(problems, 800, grid=grid, start={"tolerance": 1e-26})
    assert np.allclose(model(result), minimize(problems).x, atol=1e-9)


def test_single_precision_is_kept_from_end_to_end() -> None:
    double = logistic_agents(3)
    single = [
        BinaryLogistic(p.features.astype("f4"), p.labels, regularizer=L2(0.5)) for p in double
    ]

    strategy = FedPLT(rho=1.0, num_agents=3)
    result = strategy.start(InlineGrid(app_of(single), 3), zeros(4, "float32"), num_rounds=60)
    assert model(result).dtype == np.float32
    assert strategy.session is not None
    assert strategy.session.state.z.dtype == np.float32
    assert np.allclose(model(result), minimize(double).x, atol=1e-5)
