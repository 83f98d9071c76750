"""The attacks kit: what each attack sends, that both sides follow it, and what it refuses."""

from __future__ import annotations

import logging
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.core import ConfigError
from privet.problems import BinaryLogistic, MultinomialLogistic, RidgeRegression
from privet.sim.inline import grid_of
from privet.testing import logistic_federation
from privet.testing.attacks import (
    ATTACKS,
    Attack,
    Seen,
    against_the_mean,
    alie,
    attacked_grid,
    drift,
    flipped_labels,
    mimic,
    other_units,
    scaled,
    with_data,
)
from privet.testing.runs import agent_states
from privet.testing.subject import Subject
from support.every_algorithm import EVERY_ALGORITHM

AGENTS, WRONG, ROUNDS = 7, (1, 4), 3
rng = np.random.default_rng(61)
HONEST = rng.standard_normal((5, 6))
SEEN = Seen(rng.standard_normal(6), HONEST, len(WRONG), 4)


def played(name: str, attack: Attack, rounds: int = ROUNDS) -> Any:
    """Return the result, the grid and the strategy of an attacked run."""
    subject = Subject(name, problems=logistic_federation(AGENTS))
    grid = attacked_grid(name, subject.problems, WRONG, attack)
    strategy = subject.strategy()
    return strategy.start(grid, subject.start(), num_rounds=rounds), grid, strategy


def model(result: Any) -> NDArray[Any]:
    return np.asarray(result.arrays["x"].numpy())


# ------------------------------------------------------------------ what each attack sends


def test_simple_attacks_send_what_their_formulas_say() -> None:
    assert np.array_equal(scaled(10.0)(SEEN), 10 * SEEN.own)
    assert np.array_equal(scaled(-1.0)(SEEN), -SEEN.own)
    assert np.allclose(against_the_mean(0.5)(SEEN), -0.5 * HONEST.sum(axis=0) / 5)
    assert np.array_equal(mimic(SEEN), HONEST[0])


def test_alie_stands_among_the_half_of_all_sites_that_is_nearest_to_the_mean() -> None:
    # n = 7, f = 2: k = floor(7/2 + 1) - 2 = 2 of 5 honest ones beyond z, so z = Phi^-1(3/5).
    z = NormalDist().inv_cdf(0.6)
    expected = [np.mean(row) - z * np.std(row) for row in HONEST.T]
    assert np.allclose(alie(SEEN), expected)


def test_drift_grows_by_the_same_step_in_every_round() -> None:
    added = [np.linalg.norm(drift(0.1)(SEEN._replace(round=t)) - SEEN.own) for t in (1, 2, 5)]
    usual = sorted(float(np.linalg.norm(row)) for row in HONEST)[2]
    assert np.allclose(added, [0.1 * usual, 0.2 * usual, 0.5 * usual])


def test_flipped_labels_negate_binary_ones_and_turn_classes_round() -> None:
    features = rng.standard_normal((4, 2))
    binary = flipped_labels(BinaryLogistic(features, np.array([1.0, -1.0, 1.0, 1.0])))
    classes = flipped_labels(MultinomialLogistic(features, np.array([0, 1, 2, 2]), classes=3))
    ridge = flipped_labels(RidgeRegression(features, np.arange(4.0), divisor=2.0))
    assert binary.labels.tolist() == [-1.0, 1.0, -1.0, -1.0]
    assert classes.labels.tolist() == [2, 1, 0, 0]
    assert (ridge.targets.tolist(), ridge.divisor) == ([0.0, -1.0, -2.0, -3.0], 2.0)


def test_other_units_scale_one_column_and_leave_the_given_problem() -> None:
    problem = logistic_federation(1)[0]
    before = problem.features.copy()
    changed = other_units(10.0, column=1)(problem)
    assert np.array_equal(changed.features[:, 1], 10 * before[:, 1])
    assert np.array_equal(changed.features[:, [0, 2]], before[:, [0, 2]])
    assert np.array_equal(problem.features, before)
    assert changed.regularizer == problem.regularizer


# ------------------------------------------------------------------ whole runs


@pytest.mark.parametrize("name", [one for one in EVERY_ALGORITHM if one.values != ("gfl",)])
def test_honest_agents_of_the_kit_have_the_bits_of_plain_ones(name: str) -> None:
    subject = Subject(name, problems=logistic_federation(AGENTS))
    plain = subject.strategy().start(
        grid_of(name, subject.problems), subject.start(), num_rounds=ROUNDS
    )
    found, _, _ = played(name, Attack("none"))
    assert model(found).tobytes() == model(plain).tobytes()


@pytest.mark.parametrize("attack", sorted(ATTACKS))
@pytest.mark.parametrize("name", ["fed-plt", "fed-pdm", "dp-iadmm", "scaffold", "dp-fedavg"])
def test_what_wrong_sites_send_is_folded_and_followed_on_both_sides(name: str, attack: str) -> None:
    found, grid, strategy = played(name, ATTACKS[attack])
    honest, _, _ = played(name, Attack("none"))
    assert [done.failures for done in found.history] == [{}] * ROUNDS
    if attack == "dual" and name == "dp-fedavg":
        assert model(found).tobytes() == model(honest).tobytes()  # agents keep no dual
    else:
        assert not np.allclose(model(found), model(honest))
    half, session = strategy.half, strategy.session
    for agent, held in agent_states(grid).items():
        place = session.roster.positions[agent]
        known = half.recovery_of(session.state, place, session.start) or {}
        assert all(np.array_equal(held[key], array) for key, array in known.items())


def test_wrong_sites_see_the_honest_moves_of_their_own_round() -> None:
    seen: list[Seen] = []

    def look(one: Seen) -> NDArray[Any]:
        seen.append(one)
        return one.own

    found, _, _ = played("dp-fedavg", Attack("look", move=look))
    assert [one.round for one in seen] == [1, 1, 2, 2, 3, 3]
    dim = logistic_federation(1)[0].dim
    assert {one.honest.shape for one in seen} == {(AGENTS - len(WRONG), dim)}
    plain, _, _ = played("dp-fedavg", Attack("none"))
    assert model(found).tobytes() == model(plain).tobytes()


# ------------------------------------------------------------------ what is refused


def test_all_agents_wrong_and_unknown_places_are_refused() -> None:
    problems = logistic_federation(3)
    for wrong in ((0, 1, 2), (3,)):
        with pytest.raises(ConfigError, match=r"attacked_grid: wrong is .* of 3 agents"):
            attacked_grid("fed-plt", problems, wrong, ATTACKS["scaled"])


def test_data_of_a_problem_that_is_no_linear_model_are_refused_by_its_class() -> None:
    with pytest.raises(ConfigError, match="attack on data: object is no linear model"):
        with_data(object(), HONEST, HONEST[:, 0])


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("fed-plt", {"value-bits": "8"}, "set value-bits = none"),
        ("fed-pdm", {"sparsifier": "top-k", "uplink-k": 2}, "sends some coordinates alone"),
    ],
)
def test_uploads_that_cannot_be_changed_are_refused_by_the_agents(
    name: str, settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    subject = Subject(name, settings, problems=logistic_federation(AGENTS))
    grid = attacked_grid(name, subject.problems, WRONG, ATTACKS["scaled"])
    with caplog.at_level(logging.WARNING, "flwr.privet"), pytest.raises(Exception, match=said):
        subject.strategy().start(grid, subject.start(), num_rounds=1)
