"""Fed-PLT with Newton steps and Anderson acceleration, as it is where nothing is set."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.client_apps.fed_plt_history import MEMORY, first_rows, followed, mixed, mixing
from privet.core import ConfigError
from privet.data import federation_from_config
from privet.problems.reference import minimize
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.strategies import FedPLT, Fraction
from privet.strategies.fed_plt_accelerated import AcceleratedServer, anderson_weights
from support.federations import app_of, logistic_agents, model, zeros

C_OF_1 = {"breast-cancer": 1 / 455, "digits": 1 / 1438}
"""lambda = 1 / n: scikit-learn's C = 1."""


@lru_cache(maxsize=4)
def federation(dataset: str, partition: str) -> Any:
    config = {
        "dataset": dataset,
        "partition": partition,
        "algorithm": "fed-plt",
        "regularizer-weight": C_OF_1[dataset],
    }
    problems = federation_from_config(config, 10).problems
    return problems, minimize(problems).x


def play(
    problems: Any, rounds: int, *, start: Any = None, engine: str = "inline", **more: Any
) -> Any:
    grid = grid_of("fed-plt", list(problems), engine=engine)
    strategy = FedPLT(**more)
    result = strategy.start(grid, zeros(problems[0].dim), num_rounds=rounds, **(start or {}))
    return strategy, result


def distance(result: Any, best: Any) -> float:
    return float(np.linalg.norm(model(result) - best) / np.linalg.norm(best))


# ---------------------------------------------------------------------- exactness


@pytest.mark.parametrize("partition", ["label", "dirichlet", "iid"])
@pytest.mark.parametrize("dataset", C_OF_1)
def test_forty_rounds_of_defaults_give_the_pooled_model_at_scikit_learns_weight(
    dataset: str, partition: str
) -> None:
    problems, best = federation(dataset, partition)
    _, result = play(problems, 40)
    assert distance(result, best) < 1e-3


def test_rivals_of_the_same_rounds_are_a_hundred_times_farther() -> None:
    problems, best = federation("breast-cancer", "label")
    _, ours = play(problems, 40)
    _, papers = play(problems, 40, rho=3.0)
    assert distance(papers, best) > 100 * distance(ours, best)


def test_the_weights_minimise_the_combined_residual() -> None:
    residuals = np.random.default_rng(0).standard_normal((4, 3, 5))
    weights = anderson_weights(residuals)
    assert weights.sum() == pytest.approx(1.0)
    flat = residuals.reshape(4, -1).T
    # Lagrange: flat^T flat w is the same for every residual.
    products = flat.T @ flat @ weights
    np.testing.assert_allclose(products, products[0], rtol=1e-6)


def test_a_linear_map_of_few_dimensions_ends_in_as_many_rounds() -> None:
    """Anderson's rule is GMRES then: MEMORY directions take MEMORY + 1 residuals."""
    draws = np.random.default_rng(1)
    values = draws.uniform(-0.9, 0.9, MEMORY)
    basis = np.linalg.qr(draws.standard_normal((MEMORY, MEMORY)))[0]
    matrix, offset = basis * values @ basis.T, draws.standard_normal(MEMORY)
    z, images, residuals = np.zeros(MEMORY), [], []
    for _ in range(MEMORY + 2):
        images.insert(0, matrix @ z + offset)
        residuals.insert(0, images[0] - z)
        weights = anderson_weights(np.array(residuals[: MEMORY + 1]))
        z = sum(w * image for w, image in zip(weights, images, strict=False))
    exact = np.linalg.solve(np.eye(MEMORY) - matrix, offset)
    np.testing.assert_allclose(z, exact, atol=1e-3)


@pytest.mark.parametrize("same", [0.0, 1.0])
def test_residuals_that_do_not_differ_give_the_plain_method(same: float) -> None:
    assert anderson_weights(np.full((3, 2, 2), same)).tolist() == [1.0]


# ---------------------------------------------------------------------- what both sides compute


def test_weights_of_one_round_are_algorithm_1() -> None:
    """x_i and z_i of the plain recursion, for any rho that each round has."""
    draws = np.random.default_rng(2)
    state: Any = first_rows(draws.standard_normal(4))
    z = state["x"]
    for rho in (2.0, 2.0, 2.0):
        y, x = draws.standard_normal((2, 4))
        array = mixing(rho, np.ones(1), 4, np.dtype(np.float64))
        np.testing.assert_allclose(mixed(state, array), z, atol=1e-12)
        state = followed(state, y, array, x)
        z = z + 2 * (x - y)
        np.testing.assert_allclose(state["u"], (x - z) / rho, atol=1e-12)
    other = mixing(5.0, np.ones(1), 4, np.dtype(np.float64))
    np.testing.assert_allclose(mixed(state, other), x + 2.5 * (z - x), atol=1e-12)


@pytest.mark.parametrize("dim", [1, MEMORY + 1, MEMORY + 2, MEMORY + 3])
def test_the_array_of_weights_is_never_taken_for_a_vector_of_the_model(dim: int) -> None:
    problems = logistic_agents(3, dim=dim)
    _, result = play(problems, 12)
    best = minimize(problems, tolerance=1e-12).x
    assert distance(result, best) < 1e-6


@pytest.mark.parametrize("engine", ["cohort"])
def test_every_engine_gives_the_same_bits(engine: str) -> None:
    problems, _ = federation("breast-cancer", "label")
    _, alone = play(problems, 8)
    _, together = play(problems, 8, engine=engine)
    assert np.array_equal(model(alone), model(together))


def test_a_resumed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    problems, _ = federation("breast-cancer", "label")
    file = tmp_path / "checkpoint.npz"
    _, whole = play(problems, 14)
    play(problems, 9, start={"checkpoint": file})
    strategy, rest = play(problems, 14, start={"resume": file})
    assert np.array_equal(model(whole), model(rest))
    assert isinstance(strategy.half, AcceleratedServer)


# ---------------------------------------------------------------------- absences, newcomers


def test_with_half_of_the_agents_absent_it_is_the_plain_method_and_converges() -> None:
    problems, best = federation("breast-cancer", "label")
    strategy, result = play(problems, 80, participation=Fraction(0.5))
    assert strategy.run.session.state.accelerated == 0
    assert distance(result, best) < 1e-3


def test_an_absent_agent_begins_the_history_anew() -> None:
    problems, best = federation("breast-cancer", "label")

    class Sometimes(Fraction):
        def select(self, round_: int, names: Any, seed: int) -> list[str]:
            return list(names[1:] if round_ % 7 == 0 else names)

    strategy, result = play(problems, 40, participation=Sometimes(1.0))
    assert 0 < strategy.run.session.state.accelerated < 35
    assert distance(result, best) < 1e-3


def test_rho_follows_the_curvature_where_it_is_open() -> None:
    problems, _ = federation("breast-cancer", "iid")
    strategy, result = play(problems, 12)
    rhos = [done.measures["rho"] for done in result.history]
    assert rhos[-1] != rhos[0]
    assert strategy.run.session.state.rho == rhos[-1]
    _, result = play(problems, 12, rho=30.0, local_solver="newton", acceleration="anderson")
    assert {done.measures["rho"] for done in result.history} == {30.0}


# ---------------------------------------------------------------------- when it is not used


@pytest.mark.parametrize(
    "given",
    [{"rho": 3.0}, {"local_epochs": 5}, {"step_size": 0.1}, {"local_solver": "gd"}],
)
def test_settings_of_gradient_steps_keep_the_papers_method(given: dict[str, Any]) -> None:
    strategy, _ = play(logistic_agents(3), 2, **given)
    settings = strategy.half.settings()
    assert (settings["local-solver"], settings["acceleration"]) == ("gd", "none")
    assert not isinstance(strategy.half, AcceleratedServer)


@pytest.mark.parametrize(
    "given", [{"secure_sum": True}, {"relaxation": 0.5}], ids=["secure-sum", "relaxation"]
)
def test_what_needs_every_z_refuses_sums_and_other_relaxations(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="acceleration = anderson: not with"):
        FedPLT(acceleration="anderson", **given)


def test_an_asynchronous_run_keeps_gradient_steps() -> None:
    grid = InlineGrid(app_of(logistic_agents(3)), 3)
    strategy = FedPLT(asynchronous=True, buffer=2)
    strategy.start(grid, zeros(4), num_rounds=3)
    assert strategy.half.settings()["local-solver"] == "gd"
