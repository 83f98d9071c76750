"""The only way from the record to the library: the functions behind ``privet run``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Run = Callable[[Mapping[str, Any], str], Path]
"""Runs a run config under a name and returns the run folder."""


def inline(settings: Mapping[str, Any], name: str, engine: str = "inline") -> Path:
    """Run a run config in this process."""
    from privet.sim.inline import run_inline

    with _no_curves():
        return run_inline(settings, name, engine=engine).folder


@contextmanager
def ray(data: Mapping[str, Any], actors: int) -> Iterator[Run]:
    """Give the function that runs configs of these ``data`` in one set of Ray actors.

    The agents read nothing of a run config but what concerns their data, so actors that were
    started once serve every algorithm; starting them takes longer than all the runs. The nodes
    begin every run with nothing, as those of a run of its own do.
    """
    from privet.server_apps import execute, read_config
    from privet.sim.inline import configured_app
    from privet.sim.ray.engine import RayGrid

    def make_app() -> Any:
        app = configured_app()

        def answer(message: Any, context: Any) -> Any:
            if message.metadata.message_type.startswith("query"):  # who is there: a run begins
                context.state.clear()
            return app(message, context)

        return answer

    with RayGrid(make_app, int(data["num-agents"]), data, actors=actors) as grid:

        def run(settings: Mapping[str, Any], name: str) -> Path:
            with _no_curves():
                return execute(grid, read_config(settings), name).folder

        yield run


def algorithm_names() -> set[str]:
    """Return the names of all algorithms."""
    from privet.core import algorithms

    return set(algorithms())


@contextmanager
def _no_curves() -> Iterator[None]:
    """Let matplotlib look uninstalled: drawing a report's curves is most of a small run's time."""
    names = ("matplotlib", "matplotlib.figure")
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)
