"""Fed-PLT's rivals: the papers' recursions, their limits, their reductions, their costs."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.agents.state import STATE_RECORD, AgentState
from privet.client_apps.rivals.tamuna import local_steps
from privet.core import ConfigError
from privet.problems import make_h, minimize
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.strategies import (
    AREA,
    LED,
    FedAsync,
    FedBuff,
    FedLin,
    FedPD,
    FedPLT,
    FedSplit,
    FiveGCS,
    Fraction,
    PrimalDualStrategy,
    Tamuna,
)
from privet.strategies.rivals.base import RivalStrategy
from support.federations import app_of, logistic_agents, model
from support.federations import zeros as start_at_zero

Vector = NDArray[np.float64]
COUNT = 6
PROBLEMS = logistic_agents(COUNT)
NAMES = [str(i) for i in range(COUNT)]
ZERO = np.zeros(4)
ROUNDS = 12
BEST = minimize(PROBLEMS, make_h("zero")).x

SETTINGS: dict[type[RivalStrategy], dict[str, Any]] = {
    FedPD: {"rho": 1.2, "step_size": 0.4, "local_epochs": 3},
    FedLin: {"step_size": 0.3, "local_epochs": 4},
    LED: {"step_size": 0.3, "dual_step_size": 0.25, "local_epochs": 3},
    Tamuna: {"step_size": 0.3, "local_epochs": 3},
    FiveGCS: {
        "rho": 1.1,
        "step_size": 0.4,
        "server_step_size": 0.7,
        "common_convexity": 0.3,
        "local_epochs": 3,
    },
    FedSplit: {"rho": 1.2, "step_size": 0.4, "local_epochs": 3},
}
RIVALS = list(SETTINGS)
EXACT = [kind for kind in RIVALS if kind is not FedSplit]


def play(strategy: PrimalDualStrategy, rounds: int = ROUNDS, start: Vector = ZERO) -> Vector:
    app = app_of(PROBLEMS, strategy.algorithm)
    arrays = ArrayRecord({"x": Array(start)})
    return model(strategy.start(InlineGrid(app, COUNT), arrays, num_rounds=rounds))


def build(kind: type[RivalStrategy], fraction: float = 1.0, **own: Any) -> RivalStrategy:
    who = Fraction(fraction) if fraction < 1 else None
    return kind(**{**SETTINGS.get(kind, {}), "num_agents": COUNT, "participation": who, **own})


@pytest.mark.parametrize("kind", EXACT)
def test_the_limit_is_the_centralised_optimum(kind: type[RivalStrategy]) -> None:
    strategy = build(kind, 0.67)
    assert np.abs(play(strategy, 150) - BEST).max() < 1e-9
    assert strategy.session is not None
    assert strategy.session.history[-1].residual < 1e-18


def test_fed_split_stops_short_of_the_optimum_and_nearer_with_more_steps() -> None:
    off = [np.linalg.norm(play(build(FedSplit, local_epochs=n), 60) - BEST) for n in (2, 5, 40)]
    assert off[0] > 5 * off[1] > 1e-3
    assert off[2] < 1e-9


def newton_prox(problem: Any, v: Vector, rho: float) -> Vector:
    """Return prox_{rho f}(v) of an L2-regularised logistic loss."""
    signed = problem.labels[:, None] * problem.features
    w = v
    for _ in range(40):
        share = 1 / (1 + np.exp(signed @ w))
        weights = share * (1 - share) / len(signed)
        hessian = (signed.T * weights) @ signed + (problem.regularizer.weight + 1 / rho) * np.eye(4)
        w = w - np.linalg.solve(hessian, problem.gradient(w) + (w - v) / rho)
    return w


def test_with_exact_proximal_steps() -> None:
    """FedSplit and Fed-PLT are Peaceman-Rachford splitting, FedPD is Douglas-Rachford."""
    rho, rounds = 1.3, 8
    many = {"rho": rho, "local_epochs": 120, "num_agents": COUNT}
    peaceman, douglas = [np.zeros((COUNT, 4)) for _ in range(2)]
    for _ in range(rounds):
        x = peaceman.mean(axis=0)
        proxes = [newton_prox(f, 2 * x - z, rho) for f, z in zip(PROBLEMS, peaceman, strict=True)]
        peaceman = peaceman + 2 * (np.array(proxes) - x)
        near = np.array([newton_prox(f, w, rho) for f, w in zip(PROBLEMS, douglas, strict=True)])
        center = (2 * near - douglas).mean(axis=0)
        douglas = douglas + center - near
    assert np.abs(play(FedSplit(**many), rounds) - peaceman.mean(axis=0)).max() < 1e-12
    assert np.abs(play(FedPLT(**many), rounds) - peaceman.mean(axis=0)).max() < 1e-12
    assert np.abs(play(FedPD(**many), rounds) - center).max() < 1e-12


def test_five_gcs_with_a_full_cohort_and_exact_local_solves() -> None:
    """The u_i then are gradients of Moreau envelopes: u_i <- u_i + (xhat - y_i) / rho."""
    rho, gamma = 0.8, 0.5
    half = {"rho": rho, "server_step_size": gamma, "local_epochs": 150, "num_agents": COUNT}
    x, u = ZERO, np.zeros((COUNT, 4))
    for _ in range(ROUNDS):
        hat = x - gamma * u.mean(axis=0)
        y = np.array(
            [newton_prox(f, hat + rho * one, rho) for f, one in zip(PROBLEMS, u, strict=True)]
        )
        new = u + (hat - y) / rho
        x, u = hat - gamma * (new - u).mean(axis=0), new
    assert np.abs(play(FiveGCS(**half)) - (x - gamma * u.mean(axis=0))).max() < 1e-12


def test_tamunas_steps_are_geometric_and_public() -> None:
    draws = [local_steps(7, number, 5) for number in range(1, 4001)]
    assert min(draws) == 1
    # Mean 5 and standard deviation sqrt(20); one in five rounds has a single step.
    assert np.mean(draws) == pytest.approx(5, abs=5 * np.sqrt(20 / 4000))
    assert np.mean(np.array(draws) == 1) == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 4000))
    assert local_steps(7, 3, 1) == 1


class Counted:
    """A problem that counts its gradients."""

    def __init__(self, problem: Any) -> None:
        self.problem, self.gradients = problem, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        self.gradients += 1
        return self.problem.gradient(x, rows)


@pytest.mark.parametrize("kind", [*RIVALS, FedPLT, FedBuff, FedAsync])
def test_stated_costs_are_what_a_run_costs(kind: Any) -> None:
    """Gradients and vectors per iteration, vectors kept by an agent and by the coordinator."""
    dim, count, iterations = 1000, 3, 4
    problems = [Counted(one) for one in logistic_agents(count, dim=dim, rows=5)]
    app = app_of(problems, kind.algorithm)
    grid = InlineGrid(app, count)
    own = SETTINGS.get(kind, {"local_epochs": 3})
    strategy = kind(**{**own, "num_agents": count})
    cost, epochs = kind.cost, own["local_epochs"]
    rounds = iterations * cost.exchanges
    strategy.start(grid, start_at_zero(dim), num_rounds=rounds)
    assert strategy.session is not None

    steps = [epochs] * iterations
    if kind is Tamuna:
        steps = [local_steps(0, number, epochs) for number in range(1, rounds + 1)]
    assert problems[0].gradients == sum(cost.gradients(one) for one in steps)
    vector = 8 * dim
    last = strategy.session.history[-cost.exchanges :]
    up = sum(one.bytes_up for one in last) / count / vector
    down = sum(one.bytes_down for one in last) / count / vector
    assert cost.up <= up < cost.up + 0.2
    assert cost.down <= down < cost.down + 0.2
    for context in grid.contexts.values():
        held = AgentState.from_record(context.state[STATE_RECORD])  # type: ignore[arg-type]
        assert len(held.states[-1]) / vector == pytest.approx(cost.agent, abs=0.1)
    kept = sum(array.size for array in strategy.half.dump(strategy.session.state).values()) / dim
    # FedLin drops the mean gradient, and Fed-PLT the center it can compute, between iterations.
    assert kept <= cost.coordinator * count + cost.shared + 0.1
    assert kept >= cost.coordinator * count + cost.shared - 1 - 0.1


def test_an_agent_of_tamuna_that_missed_rounds_is_sent_its_control_variate() -> None:
    strategy = build(Tamuna, 0.5)
    play(strategy)
    assert strategy.session is not None
    who = Fraction(0.5)
    rounds = [[int(n) for n in who.select(t, NAMES, 0)] for t in range(1, ROUNDS + 1)]
    vector = 8 * 4
    for number, (before, now) in enumerate(pairwise(rounds), 2):
        seen = {i for who in rounds[: number - 1] for i in who}
        behind = [i for i in now if i in seen and i not in before]
        fresh = [i for i in now if i not in seen]  # tag 0: sent h_i = 0 as their first state
        sent = strategy.session.history[number - 1].bytes_down
        plain = strategy.session.history[0].bytes_down / len(rounds[0])
        assert sent >= len(now) * vector + (len(behind) + len(fresh)) * vector
        assert sent <= len(now) * plain + len(behind) * vector


@pytest.mark.parametrize("kind", RIVALS)
def test_mini_batches_and_accelerated_steps(kind: type[RivalStrategy]) -> None:
    """Each solver runs, is what it says, or is refused by name."""
    takes_sgd = kind is not FedLin
    takes_agd = kind in (FiveGCS, FedSplit)
    if takes_sgd:
        all_rows = PROBLEMS[0].num_examples
        whole = play(build(kind))
        assert np.abs(play(build(kind, local_solver="sgd", batch_size=all_rows)) - whole).max() < (
            1e-12
        )
        assert np.abs(play(build(kind, local_solver="sgd", batch_size=4)) - whole).max() > 1e-4
    else:
        with pytest.raises(ConfigError, match=r"local-solver = 'sgd': choose one of gd$"):
            build(kind, local_solver="sgd")
    if takes_agd:
        many = {"local_epochs": 80, "rho": 1.0, "step_size": 0.0}
        slow = play(build(kind, **{**many, "local_epochs": 200}))
        assert np.abs(play(build(kind, local_solver="agd", **many)) - slow).max() < 1e-9
    else:
        with pytest.raises(ConfigError, match=r"local-solver = 'agd': choose one of gd(, sgd)?$"):
            build(kind, local_solver="agd")


@pytest.mark.parametrize("kind", [*RIVALS, FedBuff, FedAsync, AREA])
def test_what_a_rival_has_not_is_refused(kind: type[RivalStrategy], caplog: Any) -> None:
    for key, value in (("h", "l1"), ("clip", 1.0)):
        with pytest.raises(
            ConfigError, match=f"{key} = {value}: {kind.algorithm} does not use it; it is a key of "
        ):
            read_config({key: value, "algorithm": kind.algorithm})
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        build(kind, 0.5)
    assert ("assumes that every agent takes part" in caplog.text) is not kind.partial
