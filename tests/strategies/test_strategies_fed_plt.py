"""Fed-PLT's server half on numbers one can check by hand, and its theory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.client_apps.fed_plt import Agent
from privet.core import ConfigError
from privet.kernel import Moduli
from privet.problems import make_h
from privet.rounds.half import Turn
from privet.rounds.hooks import Query
from privet.server_apps import read_config
from privet.strategies.fed_plt import Server
from privet.strategies.fed_plt_theory import (
    FedPLTTheory,
    Setting,
    convergence_matrix,
    predict,
    solver_factor,
    splitting_factor,
)
from privet.wire import digest
from support.server_rounds import accept, fold


def two_agents(rho: float = 1.0, **options: Any) -> tuple[Server, Any]:
    half = Server(Agent(rho=rho), **options)
    x, z = np.array([[1.0], [3.0]]), np.array([[2.0], [6.0]])
    return half, half.with_tables(x, z)


def test_two_agents_by_hand() -> None:
    half, state = two_agents()
    state, sent = half.broadcast(state, Turn(1))
    assert sent["y"] == [4.0]  # mean of 2 and 6
    _, agreed = accept(half, state, 0, {"x": np.array([5.0])}, sent)
    assert agreed == digest(np.array([4.0]))
    state = fold(half, state, {0: {"x": np.array([5.0])}}, sent)
    assert state.x.tolist() == [[5.0], [3.0]]  # the absent agent keeps x and z
    assert state.z.tolist() == [[4.0], [6.0]]  # 2 + 2 (5 - 4)
    assert state.residual == 1.0
    assert half.models(state)["last"] == [5.0]  # (4 + 6) / 2: absent agents count
    assert half.models(state)["mean"] == [4.0]


def test_relaxation_shortens_the_reflection() -> None:
    whole, state = two_agents()
    half = replace(whole, agent=replace(whole.agent, relaxation=0.25))
    state, sent = half.broadcast(state, Turn(1))
    block, _ = accept(half, state, 0, {"x": np.array([5.0])}, sent)
    assert block.state is not None
    assert block.state["z"] == [[2.5]]  # 2 + 0.25 * 2 (5 - 4)


def test_h_enters_with_rho_over_n() -> None:
    half, state = two_agents(rho=3.0, h=make_h("l1", **{"h-weight": 1.0}))
    _, sent = half.broadcast(state, Turn(1))
    assert sent["y"] == [4.0 - 3.0 / 2]


# --------------------------------------------------------------------------- theory


def true_radius(curvatures: tuple[float, ...], setting: Setting) -> float:
    """Return the spectral radius of the exact linear map of f_i = h_i x^2 / 2, gradient solver."""
    count = len(curvatures)
    step = np.eye(2 * count)
    one_round = np.zeros((2 * count, 2 * count))
    for column in range(2 * count):
        x, z = np.split(step[column], 2)
        y = z.mean()
        new_x = x.copy()
        v = 2 * y - z
        for _ in range(setting.local_epochs):
            slope = np.array(curvatures) * new_x + (new_x - v) / setting.rho
            new_x = new_x - setting.step_size * slope
        one_round[:, column] = np.concatenate([new_x, z + 2 * (new_x - y)])
    return float(np.max(np.abs(np.linalg.eigvals(one_round))))


def test_printed_matrix_calls_a_diverging_setting_stable_and_ours_does_not() -> None:
    moduli, setting = Moduli(0.95, 1.15), Setting(rho=0.4, step_size=0.35, local_epochs=1)
    chi, zeta = solver_factor(moduli, setting), splitting_factor(moduli, setting.rho)
    lipschitz = 1.0 / (moduli.strong_convexity + 1.0 / setting.rho)  # as (17) has it
    printed = [[chi, (1 + chi) * lipschitz], [2 * chi, zeta + 2 * chi * lipschitz]]
    assert np.linalg.norm(printed, 2) == pytest.approx(0.945, abs=1e-3)
    assert np.max(np.abs(np.linalg.eigvals(printed))) < 1
    assert true_radius((0.95, 1.15), setting) == pytest.approx(1.196, abs=1e-3)
    ours = predict(Query(moduli, {}), setting)
    assert ours.figures["spectral-radius"] > 1
    assert not ours.converges
    assert ours.figures["rounds"] == math.inf


@settings(max_examples=300, deadline=None)
@given(
    st.floats(0.01, 2.0),
    st.floats(1.0, 10.0),
    st.floats(0.02, 20.0),
    st.floats(0.05, 1.0),
    st.integers(1, 20),
)
def test_a_setting_called_stable_converges(
    low: float, spread: float, rho: float, factor: float, epochs: int
) -> None:
    high = low * spread
    setting = Setting(rho, factor * 2.0 / (low + high + 2.0 / rho), epochs)
    radius = float(
        np.max(np.abs(np.linalg.eigvals(convergence_matrix(Moduli(low, high), setting))))
    )
    if radius < 1:
        assert true_radius((low, high), setting) < 1 + 1e-9
        # S bounds the two norms by a non-negative matrix, so its radius bounds the map's.
        assert true_radius((low, (low + high) / 2, high), setting) <= radius + 1e-9


def test_accelerated_factor_is_the_corrected_lemma_8() -> None:
    # kappa = 10 at rho = inf-like: (L + 1/rho) / (lambda + 1/rho) = 10.
    factor = solver_factor(Moduli(0.0, 9.0), Setting(1.0, 0.0, 20, "agd"))
    assert factor == pytest.approx(0.074, abs=1e-3)
    assert factor**2 == pytest.approx(0.0055, abs=1e-4)  # what the paper prints


def test_splitting_factor_is_least_at_the_geometric_mean() -> None:
    best = splitting_factor(Moduli(0.5, 2.0), 1.0)
    assert best == pytest.approx(1 / 3)
    assert splitting_factor(Moduli(0.5, 2.0), 1.3) > best
    assert splitting_factor(Moduli(0.5, 2.0), 0.7) > best


def test_search_sorts_by_cost_and_counts_communication() -> None:
    config = read_config({"algorithm": "fed-plt"})
    query = Query(Moduli(0.5, 1.5), config, most_steps=19, communication_cost=1000.0)
    dear = FedPLTTheory(query).search([0.5, 1.0, 2.0])
    cheap = FedPLTTheory(replace(query, communication_cost=0.0)).search([0.5, 1.0, 2.0])
    assert dear[0].figures["cost"] == min(one.figures["cost"] for one in dear)
    assert dear[0].settings["local-epochs"] > cheap[0].settings["local-epochs"]
    with pytest.raises(ConfigError, match="strong convexity"):
        FedPLTTheory(Query(Moduli(0.0, 1.0), config))


@pytest.mark.parametrize("other", [{"relaxation": 0.5}, {"local-start": "model"}])
def test_the_theory_is_that_of_the_paper_alone(other: dict[str, Any]) -> None:
    config = read_config({"algorithm": "fed-plt", **other})
    with pytest.raises(ConfigError, match=f"{next(iter(other))} = .*: the theory is that of"):
        FedPLTTheory(Query(Moduli(0.1, 1.0), config, frozenset(other)))


def test_participation_slows_the_prediction() -> None:
    query, setting = Query(Moduli(0.5, 1.5), {}), Setting(1.0, 0.5, 20)
    whole, half = predict(query, setting), predict(query, setting, participation=0.5)
    assert whole.figures["rounds"] < half.figures["rounds"]
