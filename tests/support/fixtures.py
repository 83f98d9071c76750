"""Hypothesis profiles of all tests, and fixtures that each conftest.py imports."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.serverapp import Grid
from hypothesis import HealthCheck, settings

from privet.rounds.enrol import waiting
from privet.server_apps.report import plots
from privet.sim.grid import LocalGrid
from support.postgres import postgres
from support.wheel import Built, build_wheel

__all__ = [
    "_baselines_only_where_they_are_looked_at",
    "_curves_only_where_they_are_looked_at",
    "_loggers_as_imported",
    "_nodes_of_this_process_are_all_there",
    "_the_same_global_draws",
    "built",
    "clock",
    "postgres",
]

# Work is bounded, not seconds: on a busy machine a deadline fails where nothing is wrong. Every run
# of the suite looks at the same examples; PYTEST_ARGS=--hypothesis-profile=search looks at others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("privet", settings.get_profile("search"), derandomize=True)
settings.load_profile("privet")


_LOGGERS = [logging.getLogger(name) for name in ("flwr", "flwr.privet")]
_AS_IMPORTED = [(log.level, log.propagate, log.disabled, list(log.handlers)) for log in _LOGGERS]


def _restore_loggers() -> None:
    logging.disable(logging.NOTSET)
    for log, (level, propagate, disabled, handlers) in zip(_LOGGERS, _AS_IMPORTED, strict=True):
        log.setLevel(level)
        log.propagate, log.disabled, log.handlers = propagate, disabled, list(handlers)


@pytest.fixture(autouse=True)
def _loggers_as_imported() -> Iterator[None]:
    """Undo what a command does to the loggers that a test, or a fixture of many, runs here."""
    _restore_loggers()
    yield
    _restore_loggers()


@pytest.fixture(autouse=True)
def _the_same_global_draws() -> None:
    """Estimators without ``random_state`` draw from NumPy's global generator."""
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture(autouse=True)
def _nodes_of_this_process_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits a second for more nodes, a resume five for those it had; here no more come."""

    def wait(grid: Grid, *arguments: Any) -> None:
        with monkeypatch.context() as patch:
            if isinstance(grid, LocalGrid):
                patch.setattr(waiting, "STABLE", 0.0)
            waiting.wait_for_nodes(grid, *arguments)

    def wait_briefly(grid: Grid, *arguments: Any) -> None:
        saved, wanted, least, timeout, *others = arguments
        timeout = min(timeout, 0.5) if isinstance(grid, LocalGrid) else timeout
        waiting.wait_for_return(grid, saved, wanted, least, timeout, *others)

    monkeypatch.setattr("privet.rounds.run.wait_for_nodes", wait)
    monkeypatch.setattr("privet.rounds.keep.resume.wait_for_return", wait_briefly)


@pytest.fixture(autouse=True)
def _curves_only_where_they_are_looked_at(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing them takes nineteen twentieths of a short run; without them the page is whole."""
    if request.node.get_closest_marker("curves") is None:
        monkeypatch.setattr(plots, "have_matplotlib", lambda: False)


@pytest.fixture(autouse=True)
def _baselines_only_where_they_are_looked_at(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take longer than a short run, of whose numbers none depends on them."""
    if request.node.get_closest_marker("baselines") is None:
        # As an attribute of the package, `execute` is the function.
        module = sys.modules["privet.server_apps.execute"]
        monkeypatch.setattr(module, "_baselines", lambda *arguments: {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass only while somebody sleeps: no work is too slow for a timeout."""
    begun = time.time()
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr("time.monotonic", lambda: sum(slept))
    monkeypatch.setattr("time.time", lambda: begun + sum(slept))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return the wheel of this tree, built once."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
