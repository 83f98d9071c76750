"""The rates that docs/rates.md proves for agents of one Hessian, beside runs of the library.

The agents have ridge losses of one diagonal Hessian and different minimisers, everybody takes part,
and nothing is random. Then every coordinate falls by itself: the model's distance by the page's
factor of means, what the agents' tables differ from one another by its factor of differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.kernel import Problem
from privet.problems import RidgeRegression
from privet.sim.inline import grid_of
from privet.strategies import (
    DPIADMM,
    LED,
    FedDyn,
    FedLin,
    FedPD,
    FedPDM,
    FedPLT,
    PrimalDualStrategy,
    Scaffold,
)

AGENTS, ROUNDS = 4, 9
CURVATURES = np.array([0.08, 0.3, 1.0])
SOLVED = 400
Vector = NDArray[np.float64]


def play(name: str, strategy: PrimalDualStrategy, table: str) -> tuple[Vector, Vector]:
    """Return the model less the optimum, and how a row of the state's table moved, each round."""
    rng = np.random.default_rng(3)
    dim = len(CURVATURES)
    features = np.diag(np.sqrt(CURVATURES * dim / 2.0))
    optima = rng.standard_normal((AGENTS, dim))
    held: list[Problem] = [RidgeRegression(features, features @ own) for own in optima]
    models: list[Vector] = []
    spreads: list[Vector] = []

    def watch(_: Any) -> bool:
        assert strategy.run is not None
        models.append(strategy.run.models()["last"] - optima.mean(axis=0))
        rows = getattr(strategy.run.session.state, table)
        spreads.append(rows[0] - np.mean(rows, axis=0))
        return False

    start = ArrayRecord({"x": Array(np.array([3.0, -2.0, 1.0]))})
    grid = grid_of(name, held, [{}] * AGENTS)
    strategy.start(grid, start, num_rounds=ROUNDS, log_rounds=False, should_stop=watch)
    return np.array(models), np.diff(spreads, axis=0)


def falls(series: Vector, factor: Vector) -> None:
    """Check that each coordinate of the last rounds is its factor times the one before."""
    np.testing.assert_allclose(series[4:], factor * series[3:-1], rtol=1e-6, atol=1e-10)
    assert np.abs(series[3]).max() > 1e-6


def falls_by_two(series: Vector, trace: Vector, determinant: Vector) -> None:
    """Check the recursion of a map of two numbers: s'' = trace s' - determinant s."""
    wanted = trace * series[4:-1] - determinant * series[3:-2]
    np.testing.assert_allclose(series[5:], wanted, rtol=1e-6, atol=1e-10)
    assert np.abs(series[3]).max() > 1e-6


def slope(step: float, steps: int) -> Vector:
    """Return sigma: (1 - (1 - step h)^steps) / (steps step h), the mean slope of local steps."""
    kept: Vector = (1 - step * CURVATURES) ** steps
    return (1 - kept) / (steps * step * CURVATURES)


@pytest.mark.parametrize("rho", [0.7, 3.5, 8.0])
def test_fed_plt_with_solved_subproblems(rho: float) -> None:
    strategy = FedPLT(
        num_agents=AGENTS, rho=rho, local_solver="gd", local_epochs=SOLVED, returned_model="y"
    )
    models, spreads = play("fed-plt", strategy, "z")
    factor = (1 - rho * CURVATURES) / (1 + rho * CURVATURES)
    falls(models, factor)
    falls(spreads, -factor)


@pytest.mark.parametrize("rho", [0.7, 3.5, 8.0])
def test_fed_pd_with_solved_subproblems(rho: float) -> None:
    models, spreads = play("fed-pd", FedPD(num_agents=AGENTS, rho=rho, local_epochs=SOLVED), "lam")
    falls(models, 1 / (1 + rho * CURVATURES))
    falls(spreads, rho * CURVATURES / (1 + rho * CURVATURES))


@pytest.mark.parametrize("rho", [0.7, 3.5, 8.0])
def test_fed_dyn_with_solved_subproblems_is_the_same_map(rho: float) -> None:
    strategy = FedDyn(
        num_agents=AGENTS, fed_dyn_alpha=1 / rho, max_local_steps=SOLVED,
        step_size_base=1 / (1 + 1 / rho), step_size_rule="constant",
    )  # fmt: skip
    models, spreads = play("fed-dyn", strategy, "g")
    falls(models, 1 / (1 + rho * CURVATURES))
    falls(spreads, rho * CURVATURES / (1 + rho * CURVATURES))


@pytest.mark.parametrize("steps", [1, 3, 12])
def test_scaffold(steps: int) -> None:
    strategy = Scaffold(
        num_agents=AGENTS, max_local_steps=steps, step_size_base=0.7, step_size_rule="constant"
    )
    models, spreads = play("scaffold", strategy, "c")
    falls(models, (1 - 0.7 * CURVATURES) ** steps)
    if steps > 1:  # with one step c_i is the gradient at x, and falls as x does
        falls(spreads, 1 - slope(0.7, steps))


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("steps", [3, 12])
def test_led(steps: int, beta: float) -> None:
    strategy = LED(num_agents=AGENTS, local_epochs=steps, step_size=0.7, dual_step_size=beta)
    models, spreads = play("led", strategy, "h")
    falls(models, (1 - 0.7 * CURVATURES) ** steps)
    falls(spreads, 1 - (beta or 1 / steps) * steps * slope(0.7, steps))


@pytest.mark.parametrize("steps", [1, 3])
def test_fed_lin_has_no_differences(steps: int) -> None:
    strategy = FedLin(num_agents=AGENTS, local_epochs=steps, step_size=0.7)
    models, spreads = play("fed-lin", strategy, "g")
    falls(models[1::2], (1 - 0.7 * CURVATURES) ** steps)
    assert np.abs(spreads[1:]).max() < 1e-12


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_fed_pdm(steps: int, rho: float) -> None:
    eta = 0.6 / (1 + rho)
    strategy = FedPDM(
        num_agents=AGENTS, rho=rho, max_local_steps=steps, step_size_base=eta,
        step_size_rule="constant", dual="public",
    )  # fmt: skip
    models, spreads = play("fed-pdm", strategy, "lam")
    solved = (1 - (1 - eta * (CURVATURES + rho)) ** steps) / (CURVATURES + rho)
    trace = 2 - (2 * CURVATURES + rho) * solved
    falls_by_two(models, trace, 1 - (CURVATURES + rho) * solved)
    falls(spreads, 1 - rho * solved)


@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_dp_iadmm(rho: float) -> None:
    strategy = DPIADMM(
        num_agents=AGENTS, rho=rho, eta_rule="smooth", smoothness=1.5, perturbation="none"
    )
    models, spreads = play("dp-iadmm", strategy, "lam")
    step = 1 / (1.5 + rho)
    falls(models, 1 - step * CURVATURES)
    kept, near = (1.5 - CURVATURES) * step, 1.5 * step
    falls_by_two(spreads, kept + near, kept)
