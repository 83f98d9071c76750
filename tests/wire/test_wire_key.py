"""Keys of the run config: their checks, and the names that they share with what they choose."""

from __future__ import annotations

from typing import Any

import pytest

from privet.datasets import SCHEMES, DataSettings
from privet.problems import H_NAMES, REGULARIZER_NAMES
from privet.server_apps.config import RunConfig, read_config
from privet.strategies.run.options import RunSettings
from privet.strategies.shared_regularizer import RegularizerSettings
from privet.wire import Algorithm, ConfigError, algorithms
from privet.wire.key import keys_of


def test_names_of_functions_are_those_of_the_problems() -> None:
    assert set(keys_of(RegularizerSettings)["h"].choices) == set(H_NAMES)
    assert set(keys_of(DataSettings)["regularizer"].choices) == set(REGULARIZER_NAMES)
    assert keys_of(DataSettings)["partition"].choices == SCHEMES


@pytest.mark.parametrize("entry", algorithms().values(), ids=lambda entry: entry.name)
def test_both_halves_of_every_algorithm_load_and_agree(entry: Algorithm) -> None:
    strategy, agent = entry.load_strategy(), entry.load_agent()
    assert strategy.algorithm == entry.name == agent.name
    built = strategy.from_config(read_config({"algorithm": entry.name}))
    assert (built.half.name, built.half.version) == (agent.name, agent.version)
    agent.from_settings(dict(built.half.settings()))


@pytest.mark.parametrize(
    ("owner", "name"), [(RunSettings, "seed"), (RunConfig, "tolerance"), (RunConfig, "algorithm")]
)
def test_whole_numbers_fit_into_a_message(owner: Any, name: str) -> None:
    key = keys_of(owner)[name]
    for value in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(ConfigError, match=f"{name}: a whole number of more than 64 bits"):
            key.check(value)
    assert keys_of(RunSettings)["seed"].check(2**63 - 1) == 2**63 - 1
