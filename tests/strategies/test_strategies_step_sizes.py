"""Step sizes that fall over the rounds, against recursions written out here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.client_apps import client_app
from privet.client_apps.rivals.tamuna import local_steps
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import (
    LED,
    FedDyn,
    FedLin,
    FedPD,
    FedPDM,
    FedPLT,
    FedSplit,
    FiveGCS,
    Scaffold,
    Tamuna,
)
from privet.wire import ConfigError

AGENTS, DIM, STEPS, ROUNDS, BASE = 3, 4, 3, 6, 0.08
rng = np.random.default_rng(11)
PROBLEMS = [
    RidgeRegression(rng.standard_normal((12, DIM)), rng.standard_normal(12), regularizer=L2(0.1))
    for _ in range(AGENTS)
]
START = rng.standard_normal(DIM)


def falling(number: int, period: int) -> float:
    """Half a wave from BASE down to a hundredth of it, then constant."""
    share = min(number - 1, period) / period
    return BASE * (1 + 99 * math.cos(math.pi * share / 2) ** 2) / 100


def slope(agent: int, w: Any) -> Any:
    problem = PROBLEMS[agent]
    errors = problem.features @ w - problem.targets
    return 2 * problem.features.T @ errors / len(errors) + 0.1 * w  # of the mean square


def descend(agent: int, w: Any, step: float, extra: Any) -> Any:
    for _ in range(STEPS):
        w = w - step * (slope(agent, w) + extra(w))
    return w


def played(strategy: Any) -> Any:
    app = client_app(None, lambda context: PROBLEMS[int(context.node_config["partition-id"])])
    start = ArrayRecord({"x": Array(START)})
    result = strategy.start(InlineGrid(app, AGENTS), start, num_rounds=ROUNDS)
    return result.arrays["x"].numpy()


def test_cosine_in_fed_dyn_is_the_recursion() -> None:
    alpha, period = 0.5, 4
    x, h, g = START, np.zeros(DIM), np.zeros((AGENTS, DIM))
    for number in range(1, ROUNDS + 1):
        step = falling(number, period)
        ends = np.array(
            [
                descend(i, x, step, lambda w, i=i, x=x, g=g: alpha * (w - x) - g[i])
                for i in range(AGENTS)
            ]
        )
        g = g - alpha * (ends - x)
        h = h - alpha * (ends.mean(axis=0) - x)
        x = ends.mean(axis=0) - h / alpha
    found = played(
        FedDyn(
            num_agents=AGENTS,
            fed_dyn_alpha=alpha,
            step_size_base=BASE,
            step_size_rule="cosine",
            step_size_rounds=period,
            max_local_steps=STEPS,
        )
    )
    assert np.allclose(found, x, rtol=0, atol=1e-12)


def test_cosine_in_scaffold_is_the_recursion() -> None:
    """Where the server counts on the same step as its agents."""
    period = 8
    x, c, own = START, np.zeros(DIM), np.zeros((AGENTS, DIM))
    for number in range(1, ROUNDS + 1):
        step = falling(number, period)
        ends = [descend(i, x, step, lambda w, i=i, c=c, own=own: c - own[i]) for i in range(AGENTS)]
        new = np.array([own[i] - c + (x - end) / (STEPS * step) for i, end in enumerate(ends)])
        x = np.mean(ends, axis=0)
        c, own = c + (new - own).mean(axis=0), new
    found = played(
        Scaffold(
            num_agents=AGENTS,
            step_size_base=BASE,
            step_size_rule="cosine",
            step_size_rounds=period,
            max_local_steps=STEPS,
        )
    )
    assert np.allclose(found, x, rtol=0, atol=1e-10)


def test_cosine_in_fed_plt_is_the_recursion() -> None:
    rho, period = 0.9, 5
    x = z = np.tile(START, (AGENTS, 1))
    for number in range(1, ROUNDS + 1):
        step, y = falling(number, period), z.mean(axis=0)
        x = np.array(
            [
                descend(i, x[i], step, lambda w, i=i, y=y, z=z: (w - 2 * y + z[i]) / rho)
                for i in range(AGENTS)
            ]
        )
        z = z + 2 * (x - y)
    found = played(
        FedPLT(
            num_agents=AGENTS,
            rho=rho,
            step_size=BASE,
            step_size_rule="cosine",
            step_size_rounds=period,
            local_epochs=STEPS,
            returned_model="y",
        )
    )
    assert np.allclose(found, z.mean(axis=0), rtol=0, atol=1e-12)


def test_inverse_sqrt_in_fed_plt_is_the_recursion() -> None:
    rho = 0.9
    x = z = np.tile(START, (AGENTS, 1))
    for number in range(1, ROUNDS + 1):
        y = z.mean(axis=0)
        step = BASE / math.sqrt(number)
        x = np.array(
            [
                descend(i, x[i], step, lambda w, i=i, y=y, z=z: (w - 2 * y + z[i]) / rho)
                for i in range(AGENTS)
            ]
        )
        z = z + 2 * (x - y)
    rule: Any = {"step_size": BASE, "step_size_rule": "inverse-sqrt", "returned_model": "y"}
    found = played(FedPLT(num_agents=AGENTS, rho=rho, local_epochs=STEPS, **rule))
    assert np.allclose(found, z.mean(axis=0), rtol=0, atol=1e-12)


PERIOD = 4
COSINE: Any = {
    "num_agents": AGENTS,
    "step_size": BASE,
    "step_size_rule": "cosine",
    "step_size_rounds": PERIOD,
    "local_epochs": STEPS,
}


def test_cosine_in_fed_pd_is_the_recursion() -> None:
    eta = 0.9
    x, lam, x0 = np.tile(START, (AGENTS, 1)), np.zeros((AGENTS, DIM)), START
    for number in range(1, ROUNDS + 1):
        step, before = falling(number, PERIOD), x
        x = np.array(
            [
                descend(i, before[i], step, lambda w, i=i, x0=x0, lam=lam: lam[i] + (w - x0) / eta)
                for i in range(AGENTS)
            ]
        )
        lam = lam + (x - x0) / eta
        x0 = (x + eta * lam).mean(axis=0)
    assert np.allclose(played(FedPD(rho=eta, **COSINE)), x0, rtol=0, atol=1e-12)


def test_cosine_in_fed_lin_is_the_recursion() -> None:
    """Of two rounds an iteration: the steps are those of the second, at its number."""
    x = START
    for number in range(2, ROUNDS + 1, 2):
        own = np.array([slope(i, x) for i in range(AGENTS)])
        mean, step = own.mean(axis=0), falling(number, PERIOD)
        extra = [lambda w, i=i, own=own, mean=mean: mean - own[i] for i in range(AGENTS)]
        x = np.mean([descend(i, x, step, extra[i]) for i in range(AGENTS)], axis=0)
    assert np.allclose(played(FedLin(**COSINE)), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("drawn", [False, True], ids=["led", "tamuna"])
def test_cosine_with_control_variates_is_the_recursion(drawn: bool) -> None:
    """The rate of h_i is over the round's own step, so that h_i remains a gradient."""
    x, h = START, np.zeros((AGENTS, DIM))
    for number in range(1, ROUNDS + 1):
        step, ends = falling(number, PERIOD), np.tile(x, (AGENTS, 1))
        for i in range(AGENTS):
            for _ in range(local_steps(0, number, STEPS) if drawn else STEPS):
                ends[i] -= step * (slope(i, ends[i]) - h[i])
        x = ends.mean(axis=0)
        h = h + (x - ends) / (STEPS * step)
    strategy: Any = Tamuna if drawn else LED
    assert np.allclose(played(strategy(**COSINE)), x, rtol=0, atol=1e-11)


def test_cosine_in_five_gcs_is_the_recursion() -> None:
    rho, gamma = 0.9, 0.3
    x, u = START, np.zeros((AGENTS, DIM))
    for number in range(1, ROUNDS + 1):
        step, old = falling(number, PERIOD), u.mean(axis=0)
        ends = [
            descend(i, x, step, lambda w, i=i, x=x, u=u: (w - x) / rho - u[i])
            for i in range(AGENTS)
        ]
        u = np.array([slope(i, end) for i, end in enumerate(ends)])
        x = x - gamma * (u.mean(axis=0) - old) - gamma * u.mean(axis=0)
    found = played(FiveGCS(rho=rho, server_step_size=gamma, **COSINE))
    assert np.allclose(found, x, rtol=0, atol=1e-12)


def test_a_limit_that_depends_on_the_steps_has_no_schedule() -> None:
    with pytest.raises(TypeError, match="step_size_rule"):
        FedSplit(step_size_rule="cosine")  # type: ignore[call-arg]


def test_what_does_not_go_together_is_one_line() -> None:
    for strategy in (FedDyn, FedPDM, Scaffold):
        with pytest.raises(ConfigError, match="cosine: needs step-size-rounds"):
            strategy(step_size_rule="cosine")
    with pytest.raises(ConfigError, match="cosine: needs step-size-rounds"):
        FedPLT(step_size=0.1, step_size_rule="cosine")
    private: Any = {"local_solver": "noisy-gd", "clip": 1.0, "noise_variance": 1.0}
    with pytest.raises(ConfigError, match="step-size-rule = 'cosine': not with noisy-gd"):
        FedPLT(step_size=0.1, step_size_rule="cosine", step_size_rounds=4, **private)
    with pytest.raises(ConfigError, match="step-size-rule = 'cosine': not with agd"):
        FiveGCS(local_solver="agd", step_size_rule="cosine", step_size_rounds=4)


def test_the_context_of_the_schedule_is_the_round() -> None:
    """An agent that is asked for round 5 first takes the step of round 5."""
    half = FedDyn(step_size_base=BASE, step_size_rule="cosine", step_size_rounds=9).half.agent
    assert half.step_size(5) == pytest.approx(falling(5, 9), rel=1e-14)
    assert half.step_size(10) == half.step_size(99) == pytest.approx(BASE / 100, rel=1e-14)
