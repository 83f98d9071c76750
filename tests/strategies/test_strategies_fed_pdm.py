"""FedPDM's server half and Strategy: aggregation, duals, faults, and runs with known ends."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.client_apps.fed_pdm import Agent
from privet.core import ConfigError, UploadError
from privet.problems import make_h, minimize
from privet.rounds.half import Turn
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.strategies import Balanced, FedPDM, Fraction, PrivetResult
from privet.strategies.fed_pdm import Server, State
from privet.wire.payload import ENCODED, encoded, opened
from privet.wire.sparse import SparseError, decode, encode
from support.federations import (
    FaultyGrid,
    app_of,
    logistic_agents,
    lose_state,
    model,
    zeros,
)
from support.server_rounds import accept, fold


def run(
    problems: list[Any], rounds: int, grid: InlineGrid | None = None, **options: Any
) -> tuple[PrivetResult, FedPDM]:
    settings = {"step_size_rule": "constant", "step_size_base": 0.3, "max_local_steps": 4}
    strategy = FedPDM(num_agents=len(problems), **{**settings, **options})
    grid = grid or InlineGrid(app_of(problems, "fed-pdm"), len(problems))
    return strategy.start(grid, zeros(problems[0].dim), num_rounds=rounds), strategy


def upload(values: list[float], indices: list[int], dim: int) -> dict[str, NDArray[Any]]:
    return encoded(encode(np.array(values), np.array(indices, int), dim))


def state_of(half: Server, count: int, dim: int = 4) -> State:
    state, _ = half.broadcast(half.initialise(np.zeros(dim), count), Turn(1))
    return state


# ------------------------------------------------------------------ the server by hand


def test_mean_is_over_those_that_sent_a_coordinate() -> None:
    half = Server(Agent(rho=2.0))
    state = fold(
        half,
        state_of(half, 3),
        {0: upload([4.0, 0.0], [0, 1], 4), 2: upload([2.0, 6.0], [0, 2], 4)},
        {},
    )
    # Coordinate 0: (4 + 2)/2; 1: a zero that was sent counts; 2: sent once; 3: nobody sent it.
    assert state.center.tolist() == [3.0, 0.0, 6.0, 0.0]


def test_plain_averaging_divides_by_the_number_of_participants() -> None:
    half = Server(Agent(rho=2.0), aggregation="plain")
    state = fold(
        half,
        state_of(half, 3),
        {0: upload([4.0, 0.0], [0, 1], 4), 2: upload([2.0, 6.0], [0, 2], 4)},
        {},
    )
    assert state.center.tolist() == [3.0, 0.0, 3.0, 0.0]


def test_threshold_of_the_l1_norm_is_gamma_over_rho() -> None:
    half = Server(Agent(rho=2.0), h=make_h("l1", **{"h-weight": 0.5}))
    state = fold(half, state_of(half, 1), {0: upload([1.0, -0.2, -3.0], [0, 1, 2], 4)}, {})
    assert state.center.tolist() == [0.75, 0.0, -2.75, 0.0]


def test_broadcast_is_the_largest_coordinates_ties_to_the_smaller_index() -> None:
    half = Server(downlink_k=2)
    none = np.zeros((0, 4))
    state = State(np.array([1.0, -3.0, 1.0, 1.0]), np.zeros(4), none, none)
    state, arrays = half.broadcast(state, Turn(1))
    assert decode(arrays[ENCODED], max_dim=4).indices.tolist() == [0, 1]
    assert state.sent.tolist() == [1.0, -3.0, 0.0, 0.0]


def test_public_dual_moves_where_something_was_sent() -> None:
    half = Server(Agent(rho=2.0, dual="public"))
    state = half.initialise(np.array([1.0, 1.0, 1.0, 1.0]), 2)
    state.lam[1] = [0.5, 0.5, 0.5, 0.5]
    state, sent = half.broadcast(state, Turn(1))
    state = fold(half, state, {1: upload([3.0], [2], 4)}, opened(sent, 4))
    # (0.5 + 2 (1 - 3)) / 2 at the coordinate that was sent.
    assert state.lam.tolist() == [[0.0] * 4, [0.5, 0.5, -1.75, 0.5]]
    assert half.recovery(state, slice(1, 2))["lam"].tolist() == [[0.5, 0.5, -1.75, 0.5]]  # type: ignore[index]
    assert Server().recovery(state_of(Server(), 1), slice(1)) is None


def test_table_adds_what_the_agents_own_duals_do_not_explain() -> None:
    half = Server(Agent(rho=2.0, dual="public"), aggregation="table")
    state = half.initialise(np.array([1.0, 7.0]), 2)
    state.lam[:] = [[2.0, 0.0], [6.0, 4.0]]
    state, sent = half.broadcast(state, Turn(1))
    state = fold(half, state, {0: upload([3.0], [0], 2)}, opened(sent, 2))
    # y + lam_0/rho - mean(lam)/rho = 3 + 1 - 2; a coordinate nobody sent stays.
    assert state.center.tolist() == [2.0, 7.0]


def test_latest_is_the_mean_of_what_all_sent_last() -> None:
    half = Server(Agent(rho=2.0), h=make_h("l1", **{"h-weight": 1.0}), aggregation="latest")
    state = half.initialise(np.array([1.0, 1.0]), 4)
    state = fold(half, state, {1: upload([9.0, 5.0], [0, 1], 2), 2: upload([3.0], [0], 2)}, {})
    state = fold(half, state, {1: upload([-7.0], [1], 2)}, {})
    assert state.y.tolist() == [[1.0, 1.0], [9.0, -7.0], [3.0, 1.0], [1.0, 1.0]]
    assert state.center.tolist() == [3.0, -0.5]  # means 3.5 and -1, less 1 / rho
    assert half.recovery(state, slice(1, 2)) is None  # an agent is not sent its own y


def test_a_public_dual_moves_from_what_its_agent_was_sent() -> None:
    """The model may have moved on by then."""
    half = Server(Agent(rho=2.0, dual="public"), aggregation="latest")
    state = half.initialise(np.array([1.0, 1.0]), 2)
    state.sent = np.array([100.0, 100.0])
    state = fold(half, state, {1: upload([3.0], [0], 2)}, {"x": np.array([1.0, 1.0])})
    assert state.lam.tolist() == [[0.0, 0.0], [-2.0, 0.0]]  # (0 + 2 (1 - 3)) / 2


def test_table_needs_public_duals() -> None:
    with pytest.raises(ConfigError, match="public"):
        FedPDM(dual="private", aggregation="table")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros(4)}, "holds x"),
        (upload([1.0], [0], 5), "5 numbers, at most 4"),
        (upload([1.0], [0], 3), "length 3"),
        (encoded(encode(np.zeros(4, "f4"))), "float32"),
        (upload([np.nan], [0], 4), "not finite"),
        (encoded(encode(np.zeros(4))[:-1]), "ends inside"),
    ],
)
def test_unusable_upload_is_refused_with_the_reason(arrays: Any, reason: str) -> None:
    half = Server()
    with pytest.raises((UploadError, SparseError), match=reason):
        accept(half, state_of(half, 1), 0, arrays, {})


def test_memory_of_a_fold_does_not_grow_with_the_number_of_agents() -> None:
    dim, k = 100_000, 10_000
    rng = np.random.default_rng(0)
    half = Server()
    uploads = {
        i: encoded(encode(rng.standard_normal(k), np.sort(rng.choice(dim, k, False)), dim))
        for i in range(40)
    }

    def peak(count: int) -> int:
        state = state_of(half, 40, dim)
        tracemalloc.start()
        fold(half, state, {place: uploads[place] for place in range(count)}, {})
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few, many = peak(2), peak(40)
    assert many < few + dim  # bytes: far below one more vector a message
    assert many < 8 * dim * 8


# ------------------------------------------------------------------ runs with known ends


@pytest.mark.parametrize("weight", [0.02, 0.2])
def test_h_is_weighed_against_the_mean_of_the_losses(weight: float) -> None:
    problems = logistic_agents(5)
    best = minimize(problems, make_h("l1", **{"h-weight": 5 * weight})).x
    result, _ = run(problems, 80, h=make_h("l1", **{"h-weight": weight}))
    assert np.abs(model(result) - best).max() < 1e-8
    assert (model(result) == 0).tolist() == (np.abs(best) < 1e-9).tolist()


@pytest.mark.parametrize(
    "participation", [Balanced(0.25), pytest.param(Fraction(0.25), marks=pytest.mark.slow)]
)
def test_table_converges_exactly_with_five_of_twenty(participation: Any) -> None:
    problems = logistic_agents(20)
    best = minimize(problems, make_h("zero")).x
    options = {"dual": "public", "participation": participation, "rho": 2.0}
    exact, _ = run(problems, 200, aggregation="table", **options)
    assert np.abs(model(exact) - best).max() < 1e-9
    stalled, _ = run(problems, 60, aggregation="participants", **options)
    assert np.abs(model(stalled) - best).max() > 1e-3


SPARSE = {"sparsifier": "rand-k", "uplink_k": 2}


@pytest.mark.parametrize(
    ("dual", "sparse"),
    [
        ("private", {}),
        pytest.param("public", {}, marks=pytest.mark.slow),
        pytest.param("public", SPARSE, marks=pytest.mark.slow),
    ],
)
def test_latest_converges_exactly_with_absent_agents(dual: str, sparse: dict[str, Any]) -> None:
    problems = logistic_agents(4)
    best = minimize(problems, make_h("l1", **{"h-weight": 4 * 0.05})).x
    options: dict[str, Any] = {"dual": dual, "participation": Fraction(0.5), **sparse}
    options["h"] = make_h("l1", **{"h-weight": 0.05})
    exact, _ = run(problems, 600 if sparse else 120, aggregation="latest", **options)
    assert np.abs(model(exact) - best).max() < 1e-7
    stalled, _ = run(problems, 60, aggregation="participants", **options)
    assert np.abs(model(stalled) - best).max() > 1e-3


def test_fewer_bytes_with_fewer_coordinates() -> None:
    problems = logistic_agents(3, dim=2000, rows=5)
    dense, _ = run(problems, 1)
    sparse, _ = run(problems, 1, sparsifier="top-k", alpha_u=0.1, alpha_d=0.5)
    assert dense.history[0].bytes_up == 3 * (24 + 8 * 2000)
    assert sparse.history[0].bytes_up < 3 * (8 * 200 + 200 * 0.62 + 32)
    assert sparse.history[0].bytes_down < dense.history[0].bytes_down * 0.55


def test_broadcast_is_encoded_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    import privet.strategies.fed_pdm as module

    calls: list[int] = []

    def counting(*args: Any) -> bytes:
        calls.append(1)
        return encode(*args)

    monkeypatch.setattr(module, "encode", counting)
    problems = logistic_agents(7)
    run(problems, 3, alpha_d=0.5)
    assert len(calls) == 3


# ------------------------------------------------------------------ faults


def test_lost_private_dual_starts_at_zero_says_so_and_converges() -> None:
    problems = logistic_agents(4)
    best = minimize(problems, make_h("zero")).x
    grid = FaultyGrid(app_of(problems, "fed-pdm"), 4, {(1, 50): lose_state})
    result, _ = run(problems, 150, grid, dual="private")
    assert result.history[49].notes == ("agent 1 lost its state of round 49: it starts again",)
    assert result.history[49].failures == {}
    shorter, _ = run(
        problems, 50, FaultyGrid(app_of(problems, "fed-pdm"), 4, {(1, 50): lose_state})
    )
    undisturbed, _ = run(problems, 50)
    before, after = (np.abs(model(r) - best).max() for r in (undisturbed, shorter))
    assert after > 100 * before
    assert np.abs(model(result) - best).max() < 1e-9


def test_agent_that_joins_later_has_a_dual_of_zero() -> None:
    problems = logistic_agents(3)
    grid = InlineGrid(app_of(problems, "fed-pdm"), 3)
    nodes = sorted(grid.online)
    grid.online = set(nodes[:2])
    strategy = FedPDM(num_agents=2, dual="public", max_local_steps=2)
    strategy.begin(grid, zeros(4))
    strategy.play_round(grid, 1)
    grid.online = set(nodes)
    strategy.play_round(grid, 2)
    assert strategy.session is not None
    assert strategy.session.history[-1].participants == ("0", "1", "2")
    assert strategy.session.state.lam.shape == (3, 4)


# ------------------------------------------------------------------ configuration


def test_private_preset_is_what_the_certificate_covers() -> None:
    config = read_config({"preset": "private", "algorithm": "fed-pdm"})
    assert config["max-local-steps"] == 1
    assert config["clip"] == 1.0
    assert config["rho"] * config["step-size-base"] == 0.5
    strategy = FedPDM(preset="private", noise_scale=0.1)
    assert strategy.half.settings()["dual"] == "public"
    with pytest.raises(
        ConfigError, match="preset = private: fed-plt does not use it; it is a key of fed-pdm"
    ):
        read_config({"preset": "private", "algorithm": "fed-plt"})


def test_top_k_with_noise_is_refused_with_three_ways_out() -> None:
    config = read_config(
        {"sparsifier": "top-k", "alpha-u": 0.1, "target-epsilon": 1.0, "algorithm": "fed-pdm"}
    )
    with pytest.raises(ConfigError, match="rand-k, public-top-k or noisy-top-k"):
        FedPDM.from_config(config)


def test_dual_is_public_where_there_is_noise() -> None:
    for raw, dual in (
        ({}, "private"),
        ({"noise-scale": 0.1}, "public"),
        ({"target-epsilon": 1.0, "clip": 1.0}, "public"),
        ({"noise-scale": 0.1, "dual": "private"}, "private"),
        ({"dual": "public"}, "public"),
    ):
        half = FedPDM.from_config(read_config({**raw, "algorithm": "fed-pdm"})).half
        assert half.settings()["dual"] == dual


def test_the_private_preset_serves_a_target_too() -> None:
    """Its clip is there before the target is looked at, in code as in a run config."""
    half = FedPDM(preset="private", target_epsilon=1.0).half
    assert half.agent.clip == 1.0  # type: ignore[attr-defined]
    assert half.terms.target_epsilon == 1.0
