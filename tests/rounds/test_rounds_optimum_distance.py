"""The bound of the distance to the pooled optimum, and what runs say by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from privet.data import federation_from_config
from privet.problems import make_h
from privet.problems import minimize as reference
from privet.rounds.nearness import ENOUGH, REACHED, nearness, rounds_to
from privet.rounds.optimum_distance import ESTIMATE, distance_bound
from privet.rounds.session import Round
from privet.sim.inline import grid_of
from privet.strategies import DPFedSGD, FedPLT, Fraction
from support.federations import logistic_agents, zeros
from support.problem_cases import LOSSES, random_case


def pooled_optimum(problems: Any, l1: float = 0.0) -> np.ndarray:
    """The minimiser of the mean f_i + l1 ||x||_1 / N by scipy; |x_j| by two non-negative parts."""
    count, dim = len(problems), problems[0].dim

    def value(z: np.ndarray) -> tuple[float, np.ndarray]:
        x = z[:dim] - z[dim:]
        total = sum(problem.value(x) for problem in problems) + l1 * z.sum()
        slope = sum(problem.gradient(x) for problem in problems)
        return total / count, np.concatenate([slope + l1, l1 - slope]) / count

    if not l1:
        whole = minimize(
            lambda x: (value(np.r_[x, 0 * x])[0], value(np.r_[x, 0 * x])[1][:dim]),
            np.zeros(dim),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-11},
        )
        return np.asarray(whole.x)
    bounds = [(0, None)] * (2 * dim)
    found = minimize(
        value, np.zeros(2 * dim), jac=True, method="L-BFGS-B", bounds=bounds, tol=1e-15
    )
    return np.asarray(found.x[:dim] - found.x[dim:])


class TestBound:
    @given(
        st.sampled_from(LOSSES),
        st.integers(0, 2**16),
        st.sampled_from([1e-3, 0.03, 1.0]),
        st.sampled_from([1e-4, 0.1, 3.0]),
        st.booleans(),
    )
    def test_is_never_below_the_distance(
        self, loss: str, seed: int, weight: float, spread: float, near: bool
    ) -> None:
        """Random data of four agents, random points of each, one near the optimum or not."""
        draws = np.random.default_rng(seed)
        problems = [random_case(loss, seed=seed + n, weight=weight).problem for n in range(4)]
        best = pooled_optimum(problems)
        center = best + (0.0 if near else 1.0) * draws.standard_normal(best.size)
        x = center + spread * draws.standard_normal((4, best.size))
        u = np.array([f.gradient(row) for f, row in zip(problems, x, strict=True)])
        point = center + spread * draws.standard_normal(best.size)
        bound = distance_bound(
            x,
            u,
            point,
            convexity=min(f.moduli.strong_convexity for f in problems),
            smoothness=max(f.moduli.smoothness for f in problems),
        )
        assert np.linalg.norm(point - best) <= bound * (1 + 1e-6) + 1e-6

    @given(st.integers(0, 2**16), st.sampled_from([0.01, 0.3]), st.sampled_from([0.01, 0.5]))
    def test_holds_with_a_shared_term_and_inexact_gradients(
        self, seed: int, l1: float, error: float
    ) -> None:
        draws = np.random.default_rng(seed)
        problems = [random_case("binary", seed=seed + n, weight=0.1).problem for n in range(3)]
        best = pooled_optimum(problems, l1)
        x = best + 0.2 * draws.standard_normal((3, best.size))
        wrong = error * draws.standard_normal((3, best.size))
        u = np.array([f.gradient(row) for f, row in zip(problems, x, strict=True)]) + wrong
        point = best + 0.2 * draws.standard_normal(best.size)
        bound = distance_bound(
            x,
            u,
            point,
            convexity=0.1,
            smoothness=max(f.moduli.smoothness for f in problems),
            slope=l1 * np.sign(point) / 3,
            inexactness=float(np.linalg.norm(wrong, axis=1).mean()),
        )
        assert np.linalg.norm(point - best) <= bound * (1 + 1e-6) + 1e-6

    def test_is_attained(self) -> None:
        """f_i = mu ||x||^2 / 2 and x_i = p: the distance is ||p||, and so is the bound."""
        point = np.array([3.0, -4.0])
        x = np.tile(point, (5, 1))
        assert distance_bound(x, 0.2 * x, point, convexity=0.2, smoothness=9.0) == 5.0

    def test_grows_with_the_root_of_the_condition_number(self) -> None:
        """Gradients that sum to 0, points around their mean p: sqrt((L - mu) / (2 mu)) S."""
        x = np.array([[1.0, 0.0], [-1.0, 0.0]])
        bound = distance_bound(x, 7 * x, np.zeros(2), convexity=0.5, smoothness=100.5)
        assert bound == pytest.approx(math.sqrt(100.0))


# ---------------------------------------------------------------------- runs


def errors(config: dict[str, Any], rounds: int, **given_: Any) -> list[tuple[float, float]]:
    """The true relative distance and the estimate, of the rounds that have one."""
    problems = federation_from_config({"algorithm": "fed-plt", **config}, 10).problems
    best = reference(problems, given_["h"]).x if "h" in given_ else reference(problems).x
    found = []

    def look(done: Round, strategy: Any) -> None:
        if ESTIMATE in done.measures:
            x = strategy.run.model
            away = float(np.linalg.norm(x - best) / np.linalg.norm(x))
            found.append((away, done.measures[ESTIMATE]))

    grid = grid_of("fed-plt", list(problems))
    start = zeros(problems[0].dim)
    FedPLT(**given_).start(grid, start, num_rounds=rounds, observers=[look], log_rounds=False)
    return found


@pytest.mark.parametrize(
    ("config", "given_", "factor"),
    [
        ({"dataset": "breast-cancer", "partition": "label"}, {}, 20),
        ({"dataset": "breast-cancer", "partition": "iid"}, {}, 20),
        ({"dataset": "digits", "partition": "label"}, {}, 20),
        ({"dataset": "digits", "partition": "dirichlet"}, {}, 20),
        ({"dataset": "breast-cancer", "partition": "label", "regularizer-weight": 0.1}, {}, 20),
        ({"dataset": "breast-cancer", "partition": "label", "regularizer-weight": 1e-4}, {}, 20),
        ({"dataset": "digits"}, {"participation": Fraction(0.5)}, 20),
        ({"dataset": "breast-cancer"}, {"returned_model": "mean"}, 20),
        ({"dataset": "breast-cancer"}, {"h": make_h("l1", **{"h-weight": 0.05})}, 30),
        # The rows curve every direction far more than the penalty does.
        ({"dataset": "diabetes"}, {}, 700),
        ({"dataset": "synthetic"}, {}, 800),
        ({"dataset": "regression"}, {}, 6000),
    ],
)
def test_the_estimate_of_a_run_is_above_the_error_and_within_a_factor(
    config: dict[str, Any], given_: dict[str, Any], factor: float
) -> None:
    """Default runs, intercepts without a penalty among them: above in every round that has one."""
    found = errors(config, 30, **given_)
    assert len(found) > 20
    reliable = [pair for pair in found if pair[0] > 1e-8]  # of the reference, at the least weight
    assert all(away <= estimate for away, estimate in reliable)
    assert max(estimate / away for away, estimate in reliable[5:]) < factor


def test_there_is_no_estimate_before_every_agent_took_part() -> None:
    problems = logistic_agents(4)
    measured: list[bool] = []
    FedPLT(participation=Fraction(0.5), min_agents=2, seed=1).start(
        grid_of("fed-plt", problems),
        zeros(problems[0].dim),
        num_rounds=20,
        observers=[lambda done, strategy: measured.append(ESTIMATE in done.measures)],
        log_rounds=False,
    )
    assert not measured[0]
    assert measured[-1]
    assert measured == sorted(measured)


@pytest.mark.parametrize("strategy", [FedPLT(rho=3.0), DPFedSGD()])
def test_methods_that_cannot_estimate_it_say_nothing(strategy: Any) -> None:
    problems = logistic_agents(3)
    grid = grid_of(strategy.algorithm, problems)
    result = strategy.start(grid, zeros(problems[0].dim), num_rounds=5, log_rounds=False)
    assert math.isnan(result.estimated_error)
    assert nearness(result.history) == ""


def test_a_run_ends_where_its_estimate_is_enough_and_only_if_asked() -> None:
    problems = logistic_agents(4)
    best = reference(problems, tolerance=1e-13).x
    ended = {}
    for tolerance in (-1.0, 0.0):
        result = FedPLT().start(
            grid_of("fed-plt", problems),
            zeros(problems[0].dim),
            num_rounds=60,
            tolerance=tolerance,
            log_rounds=False,
        )
        ended[tolerance] = result
    stopped, full = ended[-1.0], ended[0.0]
    assert (stopped.stopped, full.stopped, len(full.history)) == ("tolerance", "rounds", 60)
    assert len(stopped.history) < 60
    x = stopped.arrays["x"].numpy()
    assert np.linalg.norm(x - best) <= stopped.estimated_error * np.linalg.norm(x) <= ENOUGH * 10
    assert [done.measures[ESTIMATE] > ENOUGH for done in stopped.history[3:]] == [
        *([True] * (len(stopped.history) - 4)),
        False,
    ]


# ---------------------------------------------------------------------- words


def history(*estimates: float) -> list[Round]:
    return [Round(n, (), measures={ESTIMATE: e}) for n, e in enumerate(estimates, 1)]


def test_the_rounds_that_are_missing_follow_from_the_rate() -> None:
    falling = history(*(2.0**-n for n in range(6)))  # after round 6 it is 1/32
    assert rounds_to(falling, REACHED) == 5  # 1/1024 < 1e-3 <= 1/512
    assert "about 5 more rounds give 0.001 (num-server-rounds = 11)" in nearness(falling)
    assert nearness(falling).startswith("not reached: at most about 3.1e-02 of the model's norm")


def test_an_error_that_no_longer_falls_is_said_to_do_so() -> None:
    level = history(*([0.1] * 12))
    assert rounds_to(level, REACHED) is None
    assert "it no longer falls" in nearness(level)


def test_what_is_reached_and_what_is_unknown() -> None:
    assert nearness(history(0.5, 2e-5)).startswith("reached within 2.0e-05 of the model's norm")
    assert nearness([]) == nearness([Round(1, ())]) == ""
