"""All algorithms, as parameters of tests that play runs of each."""

from __future__ import annotations

from typing import Any

import pytest

from privet.core import algorithms

SLOW = ("area", "fed-async", "fed-buff")
"""Played in slow tests: servers of a few lines whose agents are like those of others."""


def played(name: str, *values: Any, **more: Any) -> Any:
    """Return parameters of a test of one algorithm, marked slow where it is one of ``SLOW``."""
    marks = pytest.mark.slow if name in SLOW else ()
    return pytest.param(*(values or (name,)), marks=marks, **more)


EVERY_ALGORITHM = [played(name) for name in sorted(algorithms())]
