"""All algorithms, as parameters of tests that play runs of each."""

from __future__ import annotations

import pytest

from privet.core import algorithms

SLOW = ("area", "fed-async", "fed-buff", "fed-split", "led")
"""Played in slow tests: servers of a few lines whose agents are like those of others."""


EVERY_ALGORITHM = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
    for name in sorted(algorithms())
]
