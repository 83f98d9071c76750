"""One key of the run config: its type, default, range and meaning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Key:
    """One run-config key.

    ``auto`` gives, per algorithm, the value that stands in for the default: a shared key such as
    ``rho`` has one entry in the run config but another sensible value for each algorithm. Entries
    named ``algorithm:preset`` do so where the run config asks for that preset.
    """

    name: str
    default: Scalar
    doc: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    floor: float = 0.0
    """Smallest value above 0, where 0 itself has a meaning of its own."""
    auto: Mapping[str, Scalar] = field(default_factory=dict)

    def check(self, value: Any) -> Scalar:
        """Return the value in the key's type.

        Raises
        ------
        ConfigError
            If the type, range or choice is wrong.
        """
        kind = type(self.default)
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{self.name}: a whole number of more than 64 bits")
        if kind is float and type(value) is int:
            value = float(value)
        if kind is float and value == "inf":
            value = math.inf
        if type(value) is not kind:
            raise ConfigError(f"{self.name} = {value!r}: expected {_KINDS[kind]}")
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.name} = {value!r}: choose one of {', '.join(self.choices)}")
        if isinstance(value, int | float) and kind is not bool:
            self._check_range(value)
        checked: Scalar = value
        return checked

    def _check_range(self, value: float) -> None:
        below = value <= self.low if self.open_low else value < self.low
        if 0 < value < self.floor:
            raise ConfigError(f"{self.name} = {value!r}: must be 0 or >= {self.floor:g}")
        if math.isnan(value) or below or value > self.high:
            sign = ">" if self.open_low else ">="
            bounds = [f"{sign} {self.low:g}"] if self.low > -math.inf else []
            bounds += [f"<= {self.high:g}"] if self.high < math.inf else []
            raise ConfigError(
                f"{self.name} = {value!r}: must be {' and '.join(bounds) or 'a number'}"
            )


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
