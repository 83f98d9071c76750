"""Keys of the run config: their checks, and the names that they share with what they choose."""

from __future__ import annotations

from typing import Any

import pytest

from privet.core import ConfigError
from privet.core.key import keys_of
from privet.data import SCHEMES, DataSettings
from privet.problems import H_NAMES, REGULARIZER_NAMES
from privet.server_apps.config import RunConfig
from privet.strategies.run.options import RunSettings
from privet.strategies.shared_regularizer import RegularizerSettings


def test_names_of_functions_are_those_of_the_problems() -> None:
    assert set(keys_of(RegularizerSettings)["h"].choices) == set(H_NAMES)
    assert set(keys_of(DataSettings)["regularizer"].choices) == set(REGULARIZER_NAMES)
    assert keys_of(DataSettings)["partition"].choices == SCHEMES


@pytest.mark.parametrize(
    ("owner", "name"), [(RunSettings, "seed"), (RunConfig, "tolerance"), (RunConfig, "algorithm")]
)
def test_whole_numbers_fit_into_a_message(owner: Any, name: str) -> None:
    key = keys_of(owner)[name]
    for value in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(ConfigError, match=f"{name}: a whole number of more than 64 bits"):
            key.check(value)
    assert keys_of(RunSettings)["seed"].check(2**63 - 1) == 2**63 - 1
