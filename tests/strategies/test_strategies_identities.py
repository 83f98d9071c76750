"""What docs/identities.md proves, played: primal-dual methods beside FedSGD, to 1e-12.

Everybody takes part, one clipped gradient at the model, equal constants, no h, float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.kernel import Problem
from privet.problems import L2, BinaryLogistic
from privet.sim.inline import grid_of
from privet.strategies import DPFedSGD, FedPDM, FedPLT, PrimalDualStrategy

AGENTS, ROUNDS, DIM, CLIP = 4, 6, 3, 0.3
Vector = NDArray[np.float64]


def problems(seed: int) -> list[BinaryLogistic]:
    rng = np.random.default_rng(seed)
    return [
        BinaryLogistic(
            2 * rng.standard_normal((7, DIM)), rng.choice([-1.0, 1.0], 7), regularizer=L2(0.2)
        )
        for _ in range(AGENTS)
    ]


def models(name: str, strategy: PrimalDualStrategy, own: list[BinaryLogistic]) -> Vector:
    """Return the model after each round, (rounds, d)."""
    found: list[Vector] = []

    def watch(_: Any) -> bool:
        assert strategy.run is not None
        found.append(np.array(strategy.run.models()["last"]))
        return False

    start = ArrayRecord({"x": Array(np.linspace(-1.0, 1.0, DIM))})
    held: list[Problem] = list(own)
    grid = grid_of(name, held, [{}] * AGENTS)
    strategy.start(grid, start, num_rounds=ROUNDS, log_rounds=False, should_stop=watch)
    return np.array(found)


def fed_sgd(own: list[BinaryLogistic], step: float) -> Vector:
    strategy = DPFedSGD(
        num_agents=AGENTS, step_size_base=step, step_size_rule="constant", momentum=0.0, clip=CLIP
    )
    return models("dp-fedsgd", strategy, own)


def mean_gradient(own: list[BinaryLogistic], x: Vector) -> Vector:
    """Return the mean of the clipped gradients, by a few lines."""
    total = np.zeros(DIM)
    for one in own:
        slopes = -one.labels / (1.0 + np.exp(one.labels * (one.features @ x)))
        rows = slopes[:, None] * one.features
        norms = np.linalg.norm(rows, axis=1)
        total += np.mean(rows * np.minimum(1.0, CLIP / norms)[:, None], axis=0) + 0.2 * x
    return total / AGENTS


def quasi_hyperbolic(own: list[BinaryLogistic], step: float, beta: float, nu: float) -> Vector:
    """m <- beta m + (1 - beta) g,  x <- x - step ((1 - nu) g + nu m)."""
    x, m, found = np.linspace(-1.0, 1.0, DIM), np.zeros(DIM), []
    for _ in range(ROUNDS):
        g = mean_gradient(own, x)
        m = beta * m + (1 - beta) * g
        x = x - step * ((1 - nu) * g + nu * m)
        found.append(x)
    return np.array(found)


def fed_pdm(own: list[BinaryLogistic], rho: float, eta: float) -> Vector:
    strategy = FedPDM(
        num_agents=AGENTS, rho=rho, step_size_base=eta, step_size_rule="constant", clip=CLIP,
        max_local_steps=1, dual="public",
    )  # fmt: skip
    return models("fed-pdm", strategy, own)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    relaxation=st.floats(0.1, 1.0),
    step=st.floats(0.05, 0.5),
    rho=st.floats(0.2, 5.0),
)
def test_fed_plt_with_one_gradient_at_the_model_is_fed_sgd(
    seed: int, relaxation: float, step: float, rho: float
) -> None:
    own = problems(seed)
    strategy = FedPLT(
        num_agents=AGENTS, rho=rho, relaxation=relaxation, step_size=step, local_epochs=1,
        local_start="model", local_solver="noisy-gd", clip=CLIP, returned_model="y",
    )  # fmt: skip
    found = models("fed-plt", strategy, own)
    np.testing.assert_allclose(found, fed_sgd(own, 2 * relaxation * step), rtol=0, atol=1e-12)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), rho=st.floats(0.3, 5.0), kappa=st.floats(0.05, 0.95))
def test_fed_pdm_with_one_step_is_fed_sgd_with_quasi_hyperbolic_momentum(
    seed: int, rho: float, kappa: float
) -> None:
    own = problems(seed)
    nu = (1 - 2 * kappa) / (1 - kappa)
    wanted = quasi_hyperbolic(own, 1 / rho, 1 - kappa, nu)
    np.testing.assert_allclose(fed_pdm(own, rho, kappa / rho), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rho", [0.5, 1.0, 4.0])
def test_fed_pdm_at_half_is_plain_fed_sgd(rho: float) -> None:
    own = problems(0)
    found, wanted = fed_pdm(own, rho, 0.5 / rho), fed_sgd(own, 1 / rho)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    assert np.abs(fed_pdm(own, rho, 0.4 / rho) - wanted).max() > 1e-3


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), rho=st.floats(0.3, 5.0), eta=st.floats(0.1, 5.0))
def test_dp_iadmm_with_its_gradient_and_start_at_w_is_fed_pdm(
    seed: int, rho: float, eta: float
) -> None:
    """The changed method, by its closed form; it is not what the library runs."""
    own = problems(seed)
    w, lam, found = np.linspace(-1.0, 1.0, DIM), np.zeros((AGENTS, DIM)), []
    for _ in range(ROUNDS):
        z = np.array(
            [
                (rho * w + dual - mean_gradient([one] * AGENTS, w) + w / eta) / (rho + 1 / eta)
                for one, dual in zip(own, lam, strict=True)
            ]
        )
        lam = lam + rho * (w - z)
        w = np.mean(z - lam / rho, axis=0)
        found.append(w)
    same = fed_pdm(own, rho, eta / (1 + rho * eta))
    np.testing.assert_allclose(np.array(found), same, rtol=0, atol=1e-12)
