"""The server half of DP-IADMM on numbers that can be checked by hand, and its schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.core import ConfigError
from privet.rounds.half import Turn
from privet.server_apps import read_config
from privet.server_apps.config import defaults, without_stand_ins
from privet.strategies import DPIADMM
from privet.strategies.dp_iadmm import Penalty, Server
from privet.wire import digest
from support.server_rounds import accept, fold

# ------------------------------------------------------------------ the penalty


def test_penalty_follows_24() -> None:
    penalty = Penalty(rho_c1=2.0, rho_c2=5.0, rho_growth=1.2, rho_period=2, epsilon=0.5)
    assert [penalty(t) for t in range(1, 6)] == pytest.approx([12.0, 12.4, 12.4, 12.88, 12.88])
    assert Penalty(rho_period=1, rho_max=50.0, rho_growth=2.0)(10) == 50.0
    assert Penalty(rho_period=1, rho_growth=1e6)(10**6) == 1e9  # no overflow on the way
    assert Penalty(rho=3.0, epsilon=0.1)(7) == 3.0


@given(
    c1=st.floats(0.0, 10.0),
    c2=st.floats(0.1, 10.0),
    growth=st.floats(1.0, 3.0),
    period=st.integers(1, 50),
    epsilon=st.floats(0.01, 100.0),
    t=st.integers(1, 10_000),
)
def test_penalty_is_positive_and_never_decreases(
    c1: float, c2: float, growth: float, period: int, epsilon: float, t: int
) -> None:
    penalty = Penalty(rho_c1=c1, rho_c2=c2, rho_growth=growth, rho_period=period, epsilon=epsilon)
    assert 0 < penalty(t) <= penalty(t + 1) <= 1e9


# ------------------------------------------------------------------ two agents by hand


def two_agents() -> tuple[Server, Any]:
    """Two agents in one dimension: z = (1, 3), lam = (2, -4), rho = 2."""
    server = Server(penalty=Penalty(rho=2.0))
    state = server.with_tables(np.array([[1.0], [3.0]]), np.array([[2.0], [-4.0]]))
    return server, state


def test_round_of_two_agents_by_hand() -> None:
    server, state = two_agents()
    state, sent = server.broadcast(state, Turn(1))
    # w = ((1 - 2/2) + (3 + 4/2)) / 2 = 2.5
    assert sent["w"].tolist() == [2.5]
    assert int(sent["t"]) == 1
    assert float(sent["rho"]) == 2.0
    first, agreed = accept(server, state, 0, {"z": np.array([2.0])}, sent)
    # lam_0 = 2 + 2 (2.5 - 2) = 3
    assert first.state is not None
    assert first.state["lam"].tolist() == [[3.0]]
    assert agreed == digest(np.array([3.0]))
    state = fold(server, state, {0: {"z": np.array([2.0])}, 1: {"z": np.array([3.5])}}, sent)
    # lam_1 = -4 + 2 (2.5 - 3.5) = -6
    assert state.lam.tolist() == [[3.0], [-6.0]]
    # next w = ((2 - 3/2) + (3.5 + 6/2)) / 2 = 3.5
    assert server.broadcast(state, Turn(1))[1]["w"].tolist() == [3.5]
    # mean ||z - w||^2 + ||new w - w||^2 = (0.25 + 1)/2 + 1
    assert server.residual(state) == pytest.approx(1.625)


def test_absent_agent_keeps_and_counts_with_its_old_pair() -> None:
    server, state = two_agents()
    state, sent = server.broadcast(state, Turn(1))
    state = fold(server, state, {0: {"z": np.array([2.0])}}, sent)
    assert state.z.tolist() == [[2.0], [3.0]]
    assert state.lam.tolist() == [[3.0], [-4.0]]
    # ((2 - 3/2) + (3 + 4/2)) / 2
    assert server.broadcast(state, Turn(1))[1]["w"].tolist() == [2.75]


def test_averages_are_those_of_the_theorems() -> None:
    rng = np.random.default_rng(0)
    server = Server(penalty=Penalty(rho=1.5))
    state = server.initialise(np.zeros(3), 2)
    sent = []
    for number in range(1, 8):
        state, broadcast = server.broadcast(state, Turn(number))
        sent.append(broadcast["w"].copy())
        uploads = {place: {"z": rng.standard_normal(3)} for place in range(2)}
        state = fold(server, state, uploads, broadcast, Turn(number))
    models = server.models(state)
    weights = np.arange(1, 8) * 2 / (7 * 8)
    np.testing.assert_allclose(models["average"], np.mean(sent, axis=0), rtol=1e-13)
    np.testing.assert_allclose(models["weighted-average"], weights @ np.array(sent), rtol=1e-13)
    np.testing.assert_allclose(models["mean"], state.z.mean(axis=0), rtol=1e-13)


def test_models_before_round_1_are_the_start() -> None:
    server = Server()
    models = server.models(server.initialise(np.array([1.0, 2.0], np.float32), 3))
    assert set(models) == {"last", "mean", "average", "weighted-average"}
    for model in models.values():
        assert model.dtype == np.float32
        assert model.tolist() == pytest.approx([1.0, 2.0])


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"epsilon": 0.5}, "epsilon = 0.5 needs clip > 0"),
        ({"rho_c1": 0.0}, "rho-c1 = 0: needs rho > 0, or rho-c2 > 0 with a finite epsilon"),
        ({"sensitivity": "paper", "epsilon": 1.0}, "sensitivity = paper needs mechanism = laplace"),
        (
            {"sensitivity": "paper", "epsilon": 1.0, "mechanism": "laplace", "clip": 1.0},
            "sensitivity = paper needs clip = none",
        ),
        (
            {"sensitivity": "paper", "mechanism": "laplace", "perturbation": "output"},
            "sensitivity = paper needs perturbation = objective",
        ),
    ],
)
def test_bad_settings_are_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        DPIADMM(**settings)


def test_epsilon_alone_shapes_the_schedule_without_perturbation() -> None:
    strategy = DPIADMM(epsilon=0.5, perturbation="none")
    half = strategy.half
    assert isinstance(half, Server)
    assert half.penalty(1) == 12.0


def test_run_config_makes_the_same_half_as_the_constructor() -> None:
    raw = {
        **without_stand_ins(defaults()),
        "algorithm": "dp-iadmm",
        "local-updates": 3,
        "rho-c1": 4.0,
        "clip": 1.0,
        "epsilon": 2.0,
    }
    strategy = DPIADMM.from_config(read_config({**raw, "algorithm": "dp-iadmm"}))
    same = DPIADMM(local_updates=3, rho_c1=4.0, clip=1.0, epsilon=2.0)
    assert strategy.half == same.half
    with pytest.raises(ConfigError, match="h = l1: dp-iadmm does not use it"):
        read_config({**raw, "h": "l1", "algorithm": "dp-iadmm"})
