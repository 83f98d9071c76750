"""Fed-PLT with Newton steps and learned curvature, as it is where nothing is set."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.client_apps.fed_plt import Agent
from privet.core import ConfigError
from privet.data import federation_from_config
from privet.kernel import Moduli, Zero
from privet.problems import L2, BinaryLogistic, MultinomialLogistic, PooledL2, RidgeRegression
from privet.problems.proximal import ElasticNet
from privet.problems.reference import minimize
from privet.rounds.method import Turn
from privet.rounds.uploads import Block, Uploads
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of, run_inline
from privet.strategies import FedPLT, Fraction, fed_plt_accelerated
from privet.strategies.fed_plt_accelerated import AcceleratedServer
from privet.strategies.fed_plt_curvature import Curvature, diagonal, pair
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


@pytest.mark.parametrize("partition", ["label", "dirichlet", "iid"])
@pytest.mark.parametrize("dataset", C_OF_1)
def test_eighty_rounds_of_half_of_the_agents_do_as_well(dataset: str, partition: str) -> None:
    problems, best = federation(dataset, partition)
    _, result = play(problems, 80, participation=Fraction(0.5))
    assert distance(result, best) < 1e-3


def rare_columns() -> list[BinaryLogistic]:
    """Return agents with categories that hardly any row has: curvature from 1e-5 to 1/4."""
    draws = np.random.default_rng(5)
    shares = np.geomspace(0.5, 1e-3, 24)
    truth = draws.standard_normal(24) * 2
    agents = []
    for _ in range(6):
        rows = (draws.random((500, 24)) < shares).astype(float)
        labels = np.where(draws.random(500) < 1 / (1 + np.exp(-rows @ truth)), 1.0, -1.0)
        agents.append(BinaryLogistic(rows, labels, regularizer=L2(1 / 3000)))
    return agents


@pytest.mark.parametrize(("share", "rounds"), [(1.0, 40), (0.5, 80)])
def test_rare_categories_are_as_exact_as_the_others(share: float, rounds: int) -> None:
    problems = rare_columns()
    best = minimize(problems, tolerance=1e-12).x
    _, result = play(problems, rounds, participation=Fraction(share))
    assert distance(result, best) < 1e-4


def test_free_intercepts_of_several_classes_are_not_shifted_together() -> None:
    """Only their differences matter: the pooled fit has a sum of 0, and so has the run's."""
    draws = np.random.default_rng(6)
    centers = draws.standard_normal((3, 4))
    agents = []
    for _ in range(4):
        labels = draws.integers(0, 3, 60)
        rows = np.hstack([centers[labels] + draws.standard_normal((60, 4)), np.ones((60, 1))])
        agents.append(MultinomialLogistic(rows, labels, 3, regularizer=PooledL2(1 / 240, free=3)))
    _, result = play(agents, 40)
    best = minimize(agents, tolerance=1e-11).x
    assert distance(result, best) < 1e-5


@pytest.mark.parametrize("weight", [1e-3, 0.05])
def test_a_shared_l1_term_has_its_optimum_too(weight: float) -> None:
    problems = logistic_agents(5, rows=40, dim=6, weight=0.01)
    _, result = play(problems, 40, h=ElasticNet(weight))
    best = minimize(problems, ElasticNet(weight), tolerance=1e-12).x
    assert float(np.linalg.norm(model(result) - best)) < 1e-5 * float(np.linalg.norm(best))


# ---------------------------------------------------------------------- the matrices


def pairs(count: int, memory: int, dim: int, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Return pairs of quadratic functions, the same as lists, and their Hessians."""
    draws = np.random.default_rng(seed)
    moved, turned = np.zeros((2, count, memory, dim))
    lists: list[list[Any]] = []
    hessians = []
    for i in range(count):
        root = draws.standard_normal((dim, dim))
        hessians.append(root @ root.T + 0.1 * np.eye(dim))
        found = []
        for k in range(memory - i % 2):  # agents of odd places have one pair less
            s = draws.standard_normal(dim)
            scaled = pair(s, hessians[-1] @ s)
            assert scaled is not None
            place = memory - 1 - k
            moved[i, place], turned[i, place] = scaled
            found.insert(0, scaled)
        lists.append(found)
    return moved, turned, lists, np.array(hessians)


def bfgs(base: Any, found: list[Any]) -> Any:
    """Return the matrix by its textbook recursion."""
    b = np.diag(base)
    for s, g in found:
        b = b - np.outer(b @ s, b @ s) / (s @ b @ s) + np.outer(g, g) / (s @ g)
    return b


@pytest.mark.parametrize("memory", [1, 3, 7])
def test_the_matrices_are_those_of_the_recursion(memory: int) -> None:
    moved, turned, lists, _ = pairs(4, memory, 7)
    base = np.linspace(0.5, 2.0, 7)
    whole = [bfgs(base, found) for found in lists]
    curvature = Curvature.of(base, moved, turned)
    rows = np.random.default_rng(1).standard_normal((4, 7))
    expected = [b @ row for b, row in zip(whole, rows, strict=True)]
    np.testing.assert_allclose(curvature.products(rows), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(curvature.total(rows[0]), sum(whole) @ rows[0], rtol=1e-8)
    solution = np.linalg.solve(sum(whole), rows[0])
    np.testing.assert_allclose(curvature.solved(rows[0]), solution, rtol=1e-6, atol=1e-9)
    eigenvalues = np.linalg.eigvalsh(sum(whole))
    assert eigenvalues[0] > 0
    assert curvature.largest() >= eigenvalues[-1] * (1 - 1e-12)


def test_the_newest_pair_is_met_exactly() -> None:
    moved, turned, _, _ = pairs(3, 5, 6)
    curvature = Curvature.of(np.ones(6), moved, turned)
    np.testing.assert_allclose(curvature.products(moved[:, -1]), turned[:, -1], atol=1e-9)


def test_pairs_that_no_convex_function_has_are_left_out() -> None:
    s = np.array([1.0, 2.0])
    assert pair(s, -s) is None
    assert pair(s, np.array([2.0, -1.0])) is None
    assert pair(0 * s, 0 * s) is None
    scaled = pair(3 * s, 4 * s)
    assert scaled is not None
    assert scaled[0] @ scaled[1] == pytest.approx(1.0)
    np.testing.assert_allclose(scaled[1], scaled[0] * 4 / 3)


def test_the_diagonal_has_the_curvature_of_a_diagonal_hessian() -> None:
    values = np.array([1e-4, 0.3, 7.0])
    draws = np.random.default_rng(2).standard_normal((2, 5, 3))
    np.testing.assert_allclose(diagonal(draws, values * draws, 0.0, 1.0), values)
    np.testing.assert_allclose(diagonal(draws, values * draws, 0.5, 1.0), [0.5, 0.5, 7.0])
    np.testing.assert_allclose(diagonal(0 * draws, 0 * draws, 0.1, 0.9), 0.9)


# ---------------------------------------------------------------------- rounds


def states(half: Any, problems: Any, rounds: int, who: Any) -> Any:
    """Play a half's rounds with exact proximal points, without messages; return its state."""
    state = half.initialise(np.zeros(problems[0].dim), len(problems))
    for number in range(1, rounds + 1):
        turn = Turn(number)
        state, sent = half.broadcast(state, turn)
        places = who(number)
        uploads = []
        for i in places:
            v = half.per_agent_broadcast(state, i, turn)["v"]
            near = Proximal(problems[i], v, float(sent["rho"][0]))
            uploads.append(minimize(near, tolerance=1e-13, moduli=near.moduli).x)
        x = np.array(uploads)
        block = Block(np.array(places), {"x": x}, sent, {"x": x})
        state = half.fold(state, Uploads(places, [lambda block=block: block]), turn)
    return state


class Proximal:
    """f(w) + ||w - v||^2 / (2 rho)."""

    def __init__(self, problem: Any, v: Any, rho: float) -> None:
        self.problem, self.v, self.rho = problem, v, rho
        self.dim, self.dtype, self.num_examples = problem.dim, problem.dtype, 1
        self.moduli = problem.moduli + Moduli(1 / rho, 1 / rho)

    def value(self, x: Any) -> float:
        return float(self.problem.value(x) + (x - self.v) @ (x - self.v) / (2 * self.rho))

    def gradient(self, x: Any, rows: Any = None) -> Any:
        return self.problem.gradient(x) + (x - self.v) / self.rho

    def hessian(self, x: Any) -> Any:
        return self.problem.hessian(x) + np.eye(self.dim) / self.rho


def half_of(rho: float, **more: Any) -> AcceleratedServer:
    agent = Agent(rho=rho, local_solver="newton", acceleration="quasi-newton")
    return AcceleratedServer(agent, Zero(), "y", convexity=0.5, **more)


def test_without_pairs_it_is_algorithm_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """x_i and y of the recursion z_i <- z_i + 2 (x_i - y), with agents absent."""
    monkeypatch.setattr(fed_plt_accelerated, "pair", lambda moved, turned: None)
    problems, rho = logistic_agents(3), 2.0
    who: Any = {1: [0, 1, 2], 2: [0, 2], 3: [1], 4: [0, 1, 2]}.__getitem__
    state = states(half_of(rho), problems, 4, who)
    z = x = np.zeros((3, 4))
    for number in range(1, 5):
        y = z.mean(axis=0)
        x, z = x.copy(), z.copy()
        for i in who(number):
            near = Proximal(problems[i], 2 * y - z[i], rho)
            x[i] = minimize(near, tolerance=1e-13, moduli=near.moduli).x
            z[i] += 2 * (x[i] - y)
    np.testing.assert_allclose(state.x, x, atol=1e-9)
    np.testing.assert_allclose(state.center, z.mean(axis=0), atol=1e-9)


def test_the_minimiser_of_the_models_does_not_depend_on_the_units() -> None:
    """With the diagonal, columns in other units give the same next y in these units."""
    moved, turned, _, _ = pairs(3, 4, 5)
    draws = np.random.default_rng(4)
    x, u = draws.standard_normal((2, 3, 5))
    scale = np.array([1e-2, 0.3, 1.0, 4.0, 50.0])

    def center(unit: Any) -> Any:
        base = diagonal(moved / unit, turned * unit, 0.0, 1.0)
        curvature = Curvature.of(base, moved / unit, turned * unit)
        middle = (x / unit).mean(axis=0)
        slope = (curvature.products(middle - x / unit) + u * unit).sum(axis=0)
        return middle - curvature.solved(slope)

    np.testing.assert_allclose(scale * center(scale), center(np.ones(5)), rtol=1e-5, atol=1e-7)


def test_quadratic_functions_of_few_dimensions_end_in_as_many_rounds() -> None:
    """d pairs determine a Hessian: the models are then right and y is the optimum."""
    problems = [
        RidgeRegression(a.features, a.labels, regularizer=L2(0.5)) for a in logistic_agents(3)
    ]
    best = minimize(problems, tolerance=1e-13).x
    state = states(half_of(0.3), problems, 9, lambda number: [0, 1, 2])
    assert float(np.linalg.norm(state.center - best)) < 1e-8 * float(np.linalg.norm(best))


def test_pairs_are_forgotten_where_the_residual_does_not_fall() -> None:
    half = half_of(1.0)
    state = states(half, logistic_agents(3), 4, lambda number: [0, 1, 2])
    assert state.turned.any()
    state.first = 1e-30
    half._guard(state)
    assert not state.turned.any()
    assert not state.moved.any()
    plain = state.x.mean(axis=0) - state.u.mean(axis=0)
    np.testing.assert_allclose(half.completed(state).center, plain)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_array_of_rho_is_never_taken_for_a_vector_of_the_model(dim: int) -> None:
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


def test_newcomers_and_other_nodes_begin_without_pairs() -> None:
    problems = logistic_agents(3)
    half = half_of(1.0)
    state = states(half, problems, 4, lambda number: [0, 1, 2])
    before, start = state.turned.copy(), np.full(4, 0.1)
    state = half.admit(state, 1, start)
    np.testing.assert_array_equal(state.turned[[0, 2, 3]], before)
    assert not state.turned[1].any()
    assert state.visited.tolist() == [1, 0, 1, 1]
    np.testing.assert_array_equal(state.x[1], start)
    state = half.renew(state, 3, start)
    assert not state.moved[3].any()
    assert not state.u[3].any()
    assert state.visited.tolist() == [1, 0, 1, 0]
    np.testing.assert_array_equal(state.x[3], start)
    assert state.v.shape == (4, 4)


def test_rho_follows_the_curvature_where_it_is_open() -> None:
    problems, _ = federation("breast-cancer", "iid")
    strategy, result = play(problems, 12)
    rhos = [done.measures["rho"] for done in result.history]
    assert rhos[-1] != rhos[0]
    assert strategy.run.session.state.rho == rhos[-1]
    _, result = play(problems, 12, rho=30.0, local_solver="newton", acceleration="quasi-newton")
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
    with pytest.raises(ConfigError, match="acceleration = quasi-newton: not with"):
        FedPLT(acceleration="quasi-newton", **given)


def test_an_asynchronous_run_keeps_gradient_steps() -> None:
    grid = InlineGrid(app_of(logistic_agents(3)), 3)
    strategy = FedPLT(asynchronous=True, buffer=2)
    strategy.start(grid, zeros(4), num_rounds=3)
    assert strategy.half.settings()["local-solver"] == "gd"


@pytest.mark.parametrize("solver", ["newton", "auto"])
def test_newton_steps_that_are_named_are_those_of_the_default(solver: str, tmp_path: Path) -> None:
    """rho and the acceleration are left open as where nothing is set."""
    config = {"algorithm": "fed-plt", "num-agents": 3, "num-server-rounds": 6}
    config |= {"output-dir": str(tmp_path)}
    usual, named = (
        run_inline({**config, **more}, name).result.arrays["x"].numpy()
        for name, more in (("usual", {}), ("named", {"local-solver": solver}))
    )
    assert named.tobytes() == usual.tobytes()
