"""The balanced schedule: equal turns, no repetition, known in advance."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.core import ConfigError
from privet.rounds.participation import from_config
from privet.server_apps import read_config
from privet.strategies import Balanced


@given(st.integers(1, 40), st.floats(0.02, 1.0), st.integers(1, 60), st.integers(0, 5))
def test_turns_are_equal(total: int, fraction: float, rounds: int, seed: int) -> None:
    names = [str(i) for i in range(total)]
    who = Balanced(fraction)
    count = max(1, round(fraction * total))
    turns: Counter[str] = Counter(dict.fromkeys(names, 0))
    for number in range(1, rounds + 1):
        chosen = who.select(number, names, seed)
        assert len(chosen) == len(set(chosen)) == count
        assert chosen == sorted(chosen, key=int)
        turns.update(chosen)
    assert max(turns.values()) - min(turns.values()) <= 1


def test_order_changes_from_cycle_to_cycle() -> None:
    names = [str(i) for i in range(30)]
    who = Balanced(0.1)
    cycles = [tuple(tuple(who.select(10 * c + r, names, 0)) for r in range(1, 11)) for c in (0, 1)]
    assert cycles[0] != cycles[1]


def test_run_config_names_it() -> None:
    config = read_config({"participation": "balanced", "fraction": 0.3, "algorithm": "fed-pdm"})
    assert from_config(config) == Balanced(0.3)
    with pytest.raises(ConfigError, match="fraction"):
        Balanced(0.0)
