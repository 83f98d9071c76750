"""Keys of the run config: their checks, and the names that they share with what they choose."""

from __future__ import annotations

from typing import Any

import pytest

from privet.core import ConfigError
from privet.core.key import Config, Key, check_fields, keys_of, read
from privet.data import SCHEMES, DataSettings
from privet.problems import H_NAMES, REGULARIZER_NAMES
from privet.rounds.options import RunSettings
from privet.rounds.shared_regularizer import RegularizerSettings
from privet.server_apps.config import RunConfig


def test_names_of_functions_are_those_of_the_problems() -> None:
    assert set(keys_of(RegularizerSettings)["h"].choices) == set(H_NAMES)
    assert set(keys_of(DataSettings)["regularizer"].choices) == set(REGULARIZER_NAMES)
    assert keys_of(DataSettings)["partition"].choices == ("auto", *SCHEMES)


@pytest.mark.parametrize(
    ("owner", "name"), [(RunSettings, "seed"), (RunConfig, "tolerance"), (RunConfig, "algorithm")]
)
def test_whole_numbers_fit_into_a_message(owner: Any, name: str) -> None:
    key = keys_of(owner)[name]
    for value in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(ConfigError, match=f"{name}: a whole number of more than 64 bits"):
            key.check(value)
    assert keys_of(RunSettings)["seed"].check(2**63 - 1) == 2**63 - 1


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the keys that are checked from now on, in order."""
    asked: list[str] = []
    check = Key.check

    def noted(self: Key, value: Any) -> Any:
        asked.append(self.name)
        return check(self, value)

    monkeypatch.setattr(Key, "check", noted)
    return asked


def test_what_is_read_is_checked_once_and_a_checked_config_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = counted(monkeypatch)
    settings = read(RunSettings, {"seed": 3, "patience": 7, "rho": 1.0})
    assert (settings.seed, settings.patience, type(settings.patience)) == (3, 7.0, float)
    assert sorted(asked) == sorted(key.name for key in keys_of(RunSettings).values())
    asked.clear()
    again = read(
        RunSettings, Config({key.name: key.default for key in keys_of(RunSettings).values()})
    )
    assert asked == []
    assert again == RunSettings()
    asked.clear()
    check_fields(settings)  # the trust is in what was read alone
    assert "seed" in asked
    with pytest.raises(ConfigError, match="patience = -1"):
        read(RunSettings, {"patience": -1})
