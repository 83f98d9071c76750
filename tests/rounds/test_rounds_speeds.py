"""The clock of simulated agents."""

from __future__ import annotations

import math

from privet.kernel import stream
from privet.rounds.speeds import Speeds, SpeedSettings

SETTINGS = SpeedSettings(speeds="stragglers", speed_jitter=0.3)
NAMES = [str(number) for number in range(10)]


def test_a_task_takes_as_long_whenever_it_is_asked_about() -> None:
    forward, alone = Speeds(SETTINGS, 5, NAMES), Speeds(SETTINGS, 5, NAMES)
    times = [forward.finish("3", number, 0.0, 2) for number in range(1, 101)]
    assert alone.finish("3", 77, 0.0, 2) == times[76]
    assert len(set(times)) == 100


def test_jitters_are_one_stream_of_an_agent() -> None:
    speeds = Speeds(SETTINGS, 5, NAMES)
    draws = stream(5, "task", "3").standard_normal(100)
    for number in (1, 40, 100):
        expected = 12.0 * speeds.factor("3") * math.exp(0.3 * draws[number - 1])
        assert speeds.finish("3", number, 0.0, 2) == expected
