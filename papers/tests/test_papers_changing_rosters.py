"""What sums over changing rosters cost: by brute force, by an attack, and what the library does."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.agents.method import Method
from privet.core import ConfigError
from privet.core.registry import algorithms
from privet.strategies import DPIADMM, FedPDM, FedPLT
from results import changing_rosters as own

PAGE = Path(__file__).parents[2] / "docs" / "identities.md"


def states_of_fed_plt(u: NDArray[np.float64], present: NDArray[np.bool_], p: float) -> list[float]:
    """Play one agent whose model y is 0: its messages (y - x) / gamma in its rounds, else 0."""
    w, sent = 0.0, []  # w is z / (2 a gamma)
    for noised, there in zip(u, present, strict=True):
        message = noised + p * w if there else 0.0
        w -= message
        sent.append(message)
    return sent


def states_of_fed_pdm(u: NDArray[np.float64], present: NDArray[np.bool_], k: float) -> list[float]:
    """Play one agent of FedPDM: (x - y) rho / (2 kappa), and its dual."""
    lam, sent = 0.0, []
    for noised, there in zip(u, present, strict=True):
        sent.append((2 * k * noised + (1 - 2 * k) * lam) / (2 * k) if there else 0.0)
        lam = (1 - k) * lam + k * noised if there else lam
    return sent


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.floats(0.05, 1.8), st.integers(0, 1000))
def test_maps_are_those_of_agents_that_are_played(there: list[bool], p: float, seed: int) -> None:
    present, u = np.array(there), np.random.default_rng(seed).standard_normal(6)
    k = min(p, 0.95)
    for matrix, sent in (
        (own.fed_plt(p, 6), states_of_fed_plt(u, present, p)),
        (own.fed_pdm(k, 6), states_of_fed_pdm(u, present, k)),
    ):
        np.testing.assert_allclose(own.placed(matrix, present) @ u[present], sent, atol=1e-9)


rosters = st.integers(0, 10_000).map(
    lambda seed: np.vstack(
        [np.ones((1, 7), bool), np.random.default_rng(seed).random((5, 7)) < 0.7]
    )[np.random.default_rng(seed + 1).permutation(6)]
)


@given(rosters, st.floats(0.05, 1.9))
def test_the_cost_lies_between_the_best_signs_and_the_bounds(
    present: NDArray[np.bool_], p: float
) -> None:
    """All 2^7 signs; vectors of two dimensions do not cost more than pi / 2 times as much."""
    if not present[0].any():
        present[0, 0] = True
    found = own.information(own.fed_plt(p, 7), present)
    count = len(found)
    brute = max(
        float(np.array(s) @ found @ np.array(s)) for s in product((-1.0, 1.0), repeat=count)
    )
    assert own.at_least(found) <= brute + 1e-9
    assert own.at_least(found) >= 0.9 * brute
    assert brute <= own.at_most(found) + 1e-9
    assert brute <= count + 1e-9, "never more than the noise of the agent alone"
    angles = np.random.default_rng(0).uniform(0, 2 * math.pi, (200, count))
    vectors = np.exp(1j * angles)
    worst = float(np.max(np.real(np.einsum("aj,jk,ak->a", vectors.conj(), found, vectors))))
    assert worst <= math.pi / 2 * brute + 1e-9


def test_with_everybody_present_the_charge_is_exact() -> None:
    for matrix in own.METHODS.values():
        found = own.information(matrix, np.ones((5, own.ROUNDS), bool))
        np.testing.assert_allclose(found, np.eye(own.ROUNDS) / 5, atol=1e-9)


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0, 1.5])
def test_who_leaves_pays_what_the_corollary_says(p: float) -> None:
    present = own.ROSTERS["leaves after round 1"][0](20, 30)
    (cost,) = own.information(own.fed_plt(p, 30), present).ravel()
    v = (1 + p * p * 29) / 19
    assert cost == pytest.approx(v / (1 + v))
    assert own.left_after_one(own.fed_plt(p, 30), 20) == pytest.approx(v / (1 + v))
    later = [own.left_after_one(own.fed_plt(p, rounds), 20) for rounds in (2, 10, 100)]
    assert later == sorted(later), "others' rounds after it left make it dearer"


def test_after_many_rounds_who_left_has_no_noise_left() -> None:
    assert own.left_after_one(own.fed_plt(1.5, 1000), 20) > 0.99


@given(st.floats(0.02, 0.98))
def test_in_fed_pdm_who_leaves_pays_a_third_more_at_most(kappa: float) -> None:
    v = own.left_after_one(own.fed_pdm(kappa, 60), 30)
    assert v / (1 - v) * 29 == pytest.approx(1 + 4 / 3 * (kappa - 0.5) ** 2, rel=1e-6)


@given(rosters)
def test_at_half_whoever_is_absent_pays_what_is_charged(present: NDArray[np.bool_]) -> None:
    if not present[0].any():
        present[0, 0] = True
    found = own.information(own.fed_pdm(0.5, 7), present)
    np.testing.assert_allclose(found, np.diag(1.0 / present.sum(axis=0)[present[0]]), atol=1e-9)


def test_an_attack_on_sums_of_played_agents() -> None:
    """4,000 runs with and without the record; 5 deviations of a mean of 4,000 are .08."""
    agents, rounds, p, runs = 91, 40, 0.5, 4000
    present = own.ROSTERS["leaves after round 1"][0](agents, rounds)
    matrix = own.fed_plt(p, rounds)
    maps = [own.placed(matrix, one) for one in present]
    weights = np.linalg.solve(np.sum([one @ one.T for one in maps], axis=0), maps[0][:, 0])
    rng = np.random.default_rng(7)
    # The sum of 90 agents that are always there is that of one with noise of sqrt(90).
    noise = math.sqrt(agents - 1) * rng.standard_normal((runs, rounds))
    others = np.array([states_of_fed_plt(one, present[1], p) for one in noise])
    first = rng.standard_normal(runs)
    scores = []
    for record in (0.0, 1.0):
        sums = others.copy()
        sums[:, 0] += first + record
        scores.append(sums @ weights)
    spread = float(np.std(scores[0], ddof=1))
    apart = float(np.mean(scores[1]) - np.mean(scores[0])) / spread
    assert apart == pytest.approx(math.sqrt(own.left_after_one(matrix, agents)), abs=0.02)
    assert apart == pytest.approx(0.327, abs=0.02)
    assert math.sqrt(own.charged(present)) == pytest.approx(0.105, abs=0.001)


@pytest.mark.parametrize("strategy", [FedPLT, FedPDM, DPIADMM])
def test_methods_with_states_share_no_noise(strategy: type) -> None:
    with pytest.raises((TypeError, ConfigError), match=r"noise.sharing"):
        strategy(num_agents=4, secure_sum=True, noise_sharing=True)


def test_methods_that_share_noise_keep_no_state() -> None:
    sharing = {
        name: one.load_agent()
        for name, one in algorithms().items()
        if "noise_sharing" in one.load_strategy().argument_keys()
    }
    assert sorted(sharing) == ["dp-fedavg", "dp-fedsgd"]
    for name, agent in sharing.items():
        assert agent.restart is Method.restart, f"an agent of {name} holds nothing"
        assert agent.follow is Method.follow, name


def test_the_page_has_the_table() -> None:
    between = PAGE.read_text().split("<!-- begin rosters -->")[1].split("<!-- end rosters -->")[0]
    assert between.split() == " ".join(own.table()).split()
