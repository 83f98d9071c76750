"""A run of a model of the user's own that leaves a run folder behind, as `execute` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from privet.core import ConfigError
from privet.core.exits import EXIT_CODE
from privet.rounds.keep.checkpoint import Checkpoint
from privet.strategies import PrimalDualStrategy
from privet.wire.contract import means_privacy

from .account import privacy_account
from .execute import Finished, Noted, finish, finish_failed, require_gain
from .model_file import about_arrays
from .run_folder import RunFolder
from .tracking import Tracking

_OWN = {"tags": "", "notes": "", "schema": ""}
"""Of what `finish` reads, what a run of a model of the user's own has none of."""


def run_and_save(
    strategy: PrimalDualStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    *,
    name: str,
    output_dir: str = "",
    config: Mapping[str, Any] | None = None,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    **options: Any,
) -> Finished:
    """Train, and write model, history, checkpoint, account and report.

    Parameters
    ----------
    strategy : PrimalDualStrategy
    grid, initial_arrays, num_rounds, evaluate_fn, **options
        Of `PrimalDualStrategy.start`.
    name : str
        Of the run folder, such as ``str(context.run_id)``.
    output_dir : str
        Where it is made; empty means ``runs`` in the working directory.
    config : mapping, optional
        Settings of the app, which the summary and the report show beside the algorithm's.

    Returns
    -------
    Finished
        Folder, result and summary. ``privet.load_model(folder)`` has the arrays by their names.

    Raises
    ------
    ConfigError
        If the folder cannot be made, or holds a private run and ``resume`` is not given; if a
        private run is to go on from a `Checkpoint` in place of a folder.
    RunError
        If the run cannot go on. History, checkpoint, account and summary are in the folder.
    FruitlessError
        If no upload was folded; summary and report are in the folder.
    """
    folder = RunFolder.create(output_dir, name)
    private, resume = _is_private(strategy), options.get("resume")
    path = _path_of(resume, private=private)
    source = RunFolder.of(path) if private and path else folder
    noted = (Noted(folder),) if private else ()
    observers = (*noted, *options.pop("observers", ()))
    began = time.monotonic()

    def told() -> dict[str, Any]:
        """Return the settings, with the values that the run chose for what was left open."""
        return {**(config or {}), "algorithm": strategy.half.name, **strategy.half.settings()}

    tracking = Tracking((), folder.path, _OWN)
    with folder.held(), source.held_as_source(folder):
        folder.require_unspent(path, private=private)
        try:
            result = strategy.start(
                grid,
                initial_arrays,
                num_rounds=num_rounds,
                evaluate_fn=evaluate_fn,
                checkpoint=folder.checkpoint,
                observers=observers,
                **options,
            )
            require_gain(result)
            run = {"id": name, "algorithm": strategy.half.name, "config": told()}
            about = about_arrays(run, privacy_account(strategy, _as_finished(told())))
            folder.write_model(result, about)
        except BaseException as error:
            finish_failed(folder, strategy, _as_finished(told()), tracking, error, config=told())
            raise
        last: Mapping[str, Any] = result.evaluate_metrics_serverapp.get(num_rounds) or {}
        outcome = {
            "status": result.status,
            EXIT_CODE: result.exit_code,
            "stopped": result.stopped,
            "diverged": result.diverged,
            "no-better": result.no_better,
            **{key: value for key, value in last.items() if isinstance(value, int | float)},
            "seconds": time.monotonic() - began,
            "config": told(),
        }
        summary = finish(folder, strategy, _as_finished(told()), tracking, outcome)
    return Finished(folder.path, result, summary)


def _is_private(strategy: PrimalDualStrategy) -> bool:
    """Return whether a run of a strategy is private, by its agents or by its settings."""
    settings = strategy.half.settings()
    return (
        strategy.half.agent.private
        or means_privacy(settings)
        or float(settings.get("target-epsilon", 0.0)) > 0
    )


def _path_of(resume: str | Path | Checkpoint | None, *, private: bool) -> str | Path | None:
    """Return the path that a run goes on from, None where it begins or has what was read.

    Raises
    ------
    ConfigError
        If a private run is to go on from a `Checkpoint`.
    """
    if not isinstance(resume, Checkpoint):
        return resume
    if private:
        raise ConfigError(
            "resume: a private run goes on from its folder, which is held and closed to "
            "others: give the folder's path in place of a checkpoint that was read"
        )
    return None


def _as_finished(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings as `finish` reads them."""
    return {**told, **_OWN, "dataset": str(told.get("dataset", "own data"))}
