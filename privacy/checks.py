"""Checks of the plain numbers this room is given."""

from __future__ import annotations

import math


def positive(**numbers: float) -> None:
    """Raise ValueError naming the first argument that is not a finite number > 0."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}, expected a finite number > 0")


def non_negative(**numbers: float) -> None:
    """Raise ValueError naming the first argument that is not a finite number >= 0."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value!r}, expected a finite number >= 0")


def at_least_one(**numbers: int) -> None:
    """Raise ValueError naming the first argument that is not an integer >= 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, expected an integer >= 1")
