"""Budgets that are spread unevenly: the schedule's optimality, its account, and its refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from privet.core import ConfigError
from privet.kernel import Facts, SystemNoise, Totals
from privet.problems import L2, BinaryLogistic, public_facts
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, DPFedSGD, FedPDM, FedPLT
from privet.testing import logistic_federation
from support.federations import app_of, zeros

COUNT = 4
MAKE: dict[str, Any] = {
    "fed-plt": lambda **o: FedPLT(
        **{
            "rho": 1.0,
            "local_epochs": 2,
            "local_solver": "noisy-gd",
            "row_norm": 1.0,
            "clip": 1.0,
            **o,
        }
    ),
    "fed-pdm": lambda **o: FedPDM(
        **{
            "rho": 1.0,
            "max_local_steps": 1,
            "step_size_base": 0.5,
            "step_size_rule": "constant",
            "dual": "public",
            "clip": 1.0,
            **o,
        }
    ),
    "dp-fedsgd": lambda **o: DPFedSGD(
        **{"step_size_base": 0.5, "step_size_rule": "constant", "clip": 1.0, **o}
    ),
    "dp-iadmm": lambda **o: DPIADMM(**{"rho": 2.0, "local_updates": 2, "clip": 1.0, **o}),
}
KNOWN = {"fed-plt", "dp-fedsgd"}
"""Algorithms whose rate theory knows."""


def agents(weight: float = 0.3) -> list[BinaryLogistic]:
    found = logistic_federation(COUNT, examples=12, dim=3, seed=1)
    return [BinaryLogistic(a.features, a.labels, regularizer=L2(weight)) for a in found]


def play(name: str, rounds: int = 6, weight: float = 0.3, **options: Any) -> tuple[Any, Any]:
    problems = agents(weight)
    app = app_of(problems, name)
    strategy = MAKE[name](num_agents=COUNT, budget_schedule="geometric", **options)
    result = strategy.start(InlineGrid(app, COUNT), zeros(3), num_rounds=rounds, log_rounds=False)
    return result, strategy


@pytest.mark.parametrize(("rate", "rounds"), [(0.5, 4), (0.8, 12), (0.95, 7)])
def test_the_root_of_the_rate_is_the_best_schedule(rate: float, rounds: int) -> None:
    """Against a numerical minimum over all schedules of one Gaussian-DP parameter."""
    worth = rate ** (2.0 * (rounds - np.arange(1, rounds + 1)))

    def error(logs: Any) -> float:  # of variances exp(logs), scaled to cost 1
        cost = float(np.exp(-logs).sum())
        return float((worth * np.exp(logs)).sum()) * cost

    best = minimize(error, np.zeros(rounds), method="BFGS", options={"gtol": 1e-10})
    ours = 2.0 * np.arange(rounds) * math.log(math.sqrt(rate))
    assert error(ours) == pytest.approx(best.fun, rel=1e-6)
    steps = rate ** np.arange(rounds)
    said = rounds * (steps**2).sum() / steps.sum() ** 2
    assert error(np.zeros(rounds)) / error(ours) == pytest.approx(said, rel=1e-12)
    assert said > 1


@pytest.mark.parametrize("name", MAKE)
def test_a_target_is_spent_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn in each round has the scale that is charged for it."""
    drawn: list[float] = []
    plain = SystemNoise.gaussian

    def gaussian(self: Any, size: Any, scale: float) -> Any:
        drawn.append(scale)
        return plain(self, size, scale)

    monkeypatch.setattr(SystemNoise, "gaussian", gaussian)
    result, strategy = play(name, target_epsilon=1.0, budget_ratio=0.8)
    assert result.privacy.private
    assert 1 - 1e-7 < result.privacy.epsilon <= 1.0
    for ledger in result.privacy.agents.values():
        charged = [release.scale for release, _ in ledger.entries]
        assert charged == pytest.approx([charged[0] * 0.8**t for t in range(6)], rel=1e-12)
        assert set(charged) == set(drawn)
        totals = Totals()
        for release, times in ledger.entries:
            totals = totals.add(release, times)
        assert totals.epsilon(1e-5) == result.privacy.epsilon
    assert strategy.half.settings()["budget-ratio"] == 0.8


@pytest.mark.parametrize("name", MAKE)
def test_the_ratio_is_that_of_theory_or_must_be_given(name: str) -> None:
    if name not in KNOWN:
        with pytest.raises(ConfigError, match="budget-ratio: no contraction is known"):
            play(name, target_epsilon=1.0)
        return
    result, strategy = play(name, target_epsilon=1.0)
    ratio = strategy.half.settings()["budget-ratio"]
    facts = public_facts(agents()[0])
    assert ratio == math.sqrt(strategy.half.contraction(facts))
    assert 0 < ratio < 1
    assert 1 - 1e-7 < result.privacy.epsilon <= 1.0


@pytest.mark.parametrize("momentum", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("step", [0.05, 0.5, 2.0])
def test_dp_fedsgd_knows_the_rate_of_the_heavy_ball(momentum: float, step: float) -> None:
    """The largest eigenvalue of one step on a quadratic of the least curvature."""
    modulus = 0.3
    half = MAKE["dp-fedsgd"](momentum=momentum, step_size_base=step).half
    round_ = np.array([[1 - step * modulus, -step * momentum], [modulus, momentum]])
    largest = np.max(np.abs(np.linalg.eigvals(round_)))
    facts = Facts(10, 10.0, 3, loss="binary-logistic", regularizer="l2", modulus=modulus)
    assert half.contraction(facts) == pytest.approx(largest, rel=1e-7)


def test_without_curvature_no_ratio_is_known() -> None:
    with pytest.raises(ConfigError, match="budget-ratio: no contraction is known"):
        play("dp-fedsgd", weight=0.0, target_epsilon=1.0)


def test_noise_that_vanishes_is_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match="this run cannot be private"):
        play("dp-fedsgd", rounds=400, noise_scale=1e-90, budget_ratio=0.1)
