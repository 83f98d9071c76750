"""A run of a model of the user's own that leaves a run folder behind, as `execute` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from privet.core.exits import EXIT_CODE
from privet.core.library import LIBRARY_VERSION, library_version
from privet.strategies import PrimalDualStrategy

from .account import privacy_account
from .execute import Finished, bad_ends, bound, pace, require_gain
from .model_file import about_arrays
from .report import write_report
from .report.files import PAGE, STATEMENT
from .report.statement import has_statement
from .run_folder import RunFolder, to_json


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
        If the folder cannot be made.
    RunError
        If the run cannot go on. History and checkpoint are in the folder.
    FruitlessError
        If no upload was folded; summary and report are in the folder.
    """
    folder = RunFolder.create(output_dir, name)
    began = time.monotonic()
    with folder.held():
        result = strategy.start(
            grid,
            initial_arrays,
            num_rounds=num_rounds,
            evaluate_fn=evaluate_fn,
            checkpoint=folder.checkpoint,
            **options,
        )
        # With the values that the run chose for what was left open.
        settings = {**(config or {}), "algorithm": strategy.half.name, **strategy.half.settings()}
        # The formula as printed needs a regulariser that is known, and is no claim.
        privacy = privacy_account(strategy, {**settings, "regularizer": "none"})
        run = {"id": name, "algorithm": strategy.half.name, "config": settings}
        folder.write_model(result, about_arrays(run, privacy))
        last: Mapping[str, Any] = result.evaluate_metrics_serverapp.get(num_rounds) or {}
        summary = {
            "algorithm": strategy.half.name,
            "dataset": "own data",
            "status": result.status,
            EXIT_CODE: result.exit_code,
            "stopped": result.stopped,
            "diverged": result.diverged,
            "no-better": result.no_better,
            **bad_ends(strategy.run),
            **pace(strategy.run),
            **{key: value for key, value in last.items() if isinstance(value, int | float)},
            "seconds": time.monotonic() - began,
            "rounds": len(result.history),
            LIBRARY_VERSION: library_version(),
            "bytes-up": sum(done.bytes_up for done in result.history),
            "bytes-down": sum(done.bytes_down for done in result.history),
            "private": privacy["private"],
            "privacy": privacy["reason"],
            **(bound(folder, strategy) if privacy["private"] else {}),
            "run-folder": str(folder.path),
            "ended": datetime.now().astimezone().isoformat(timespec="seconds"),
            "config": settings,
        }
        folder.write_json("summary.json", summary)
        folder.write_json("privacy.json", privacy)
        stated = has_statement(privacy, result.exit_code, result.history)
        statement = folder.path / STATEMENT if stated else None
        write_report([folder.path], folder.path / PAGE, statement=statement)
    require_gain(result)
    return Finished(folder.path, result, to_json(summary))
