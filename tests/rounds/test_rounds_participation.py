"""Who takes part: reproducible, engine-independent, and with the promised frequencies."""

from __future__ import annotations

import pytest

from privet.core import ConfigError
from privet.rounds.participation import from_config, parse_probability, parse_schedule
from privet.server_apps import read_config
from privet.strategies import All, Fraction, Participation, Probability, Schedule

NAMES = [str(i) for i in range(10)]


@pytest.mark.parametrize("kind", [All(), Fraction(0.4), Probability(0.5)])
def test_same_seed_and_round_same_choice_in_order(kind: Participation) -> None:
    for number in range(1, 20):
        chosen = kind.select(number, NAMES, 5)
        assert chosen == kind.select(number, NAMES, 5)
        assert chosen == sorted(chosen, key=NAMES.index)


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.26, 3), (0.01, 1)])
def test_fraction_is_a_fixed_number_drawn_evenly(fraction: float, count: int) -> None:
    times = dict.fromkeys(NAMES, 0)
    for number in range(1, 2001):
        chosen = Fraction(fraction).select(number, NAMES, 0)
        assert len(set(chosen)) == count
        for name in chosen:
            times[name] += 1
    expected = 2000 * count / 10
    # Binomial with at most 2000 draws: six standard deviations are below 135.
    assert all(abs(number - expected) < 135 for number in times.values())


def test_probability_of_its_own_for_each_agent() -> None:
    coins = Probability(0.5, {"3": 1.0, "7": 0.1})
    times = dict.fromkeys(NAMES, 0)
    for number in range(1, 2001):
        for name in coins.select(number, NAMES, 1):
            times[name] += 1
    assert times["3"] == 2000
    assert abs(times["7"] - 200) < 6 * (2000 * 0.1 * 0.9) ** 0.5
    assert abs(times["0"] - 1000) < 6 * (2000 * 0.25) ** 0.5


def test_seeds_differ() -> None:
    draws = [Fraction(0.5).select(number, NAMES, 0) for number in range(1, 30)]
    assert draws != [Fraction(0.5).select(number, NAMES, 1) for number in range(1, 30)]


def test_schedule_repeats_and_names_unknown_agents() -> None:
    schedule = parse_schedule("0, 2; 1")
    assert [schedule.select(r, NAMES, 0) for r in (1, 2, 3)] == [["0", "2"], ["1"], ["0", "2"]]
    with pytest.raises(ConfigError, match="agent 'x', which is not enrolled"):
        Schedule((("x",),)).select(1, NAMES, 0)


@pytest.mark.parametrize("text", ["", ";", " ; "])
def test_empty_schedule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="schedule is empty"):
        parse_schedule(text)


@pytest.mark.parametrize("text", ["often", "0", "1.5", "a=b", "a=0.5,b"])
def test_bad_probabilities_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="probability = "):
        parse_probability(text)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, All()),
        ({"participation": "fraction", "fraction": 0.3}, Fraction(0.3)),
        ({"participation": "probability", "probability": "0.3"}, Probability(0.3)),
        ({"participation": "schedule", "schedule": "0;1"}, Schedule((("0",), ("1",)))),
    ],
)
def test_from_config(config: dict[str, object], expected: Participation) -> None:
    assert from_config(read_config({**config, "algorithm": "fed-plt"})) == expected
