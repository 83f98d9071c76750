"""``privet tune`` where it runs the algorithm: the same budget and search for every algorithm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privet.sim.cli.tune import finite

if TYPE_CHECKING:
    from privet.sim.race import Task
    from privet.sim.tuning import Budget, Trial

TOLERANCE = 1e-5
"""Where the run config gives none: that of the Fed-PLT paper."""


def tune_by_runs(
    algorithm: str,
    raw: Mapping[str, Any],
    budget: Budget,
    *,
    most_epochs: int,
    top: int,
    workers: int | None,
    address: str | None,
    json_lines: bool,
) -> None:
    """Search the algorithm's own parameters on the run config's data and print the best settings.

    Raises
    ------
    ConfigError
        If the algorithm has no parameters to search, or the config asks for h or clipping.
    """
    from privet.sim.logs import plain
    from privet.sim.tuning import axes, fixed, moduli_of, require_tunable, tune

    require_tunable(algorithm)
    plain()
    config, task = _task({**raw, "algorithm": algorithm})
    moduli = moduli_of([task])
    epochs, solver = config["local-epochs"], config["local-solver"]
    trials = tune(
        algorithm,
        [task],
        axes(algorithm, moduli, epochs, solver=solver, most_epochs=most_epochs),
        fixed(algorithm, moduli, epochs, solver),
        budget,
        workers=workers or (None if address else 1),
        address=address,
        progress=bool(workers or address),
    )
    if json_lines:
        for trial in trials[:top]:
            print(json.dumps({**trial.settings, **_figures(trial, budget)}, allow_nan=False))
        return
    reached = sum(trial.reached for trial in trials)
    print(
        f"strong convexity {moduli.strong_convexity:.4g}, smoothness {moduli.smoothness:.4g}; "
        f"{reached} of {len(trials)} settings reach {task.tolerance:g}"
    )
    _print(trials[:top], budget)


def _task(raw: Mapping[str, Any]) -> tuple[dict[str, Any], Task]:
    from privet.server_apps import read_config
    from privet.server_apps.execute import build_evaluation, starting_model
    from privet.sim.race import Task
    from privet.strategies import participation
    from privet.wire import ConfigError

    config = read_config(raw)
    if config["h"] != "zero" or config["clip"] > 0:
        raise ConfigError("tune by runs: neither h nor clip, the measure is the gradient alone")
    federation = build_evaluation(config).federation
    start = starting_model(config, federation.dim)["x"].numpy()
    who = participation.from_config(config)
    tolerance = config["tolerance"] or TOLERANCE
    return config, Task(federation.problems, start, tolerance, who, config["seed"])


def _figures(trial: Trial, budget: Budget) -> dict[str, Any]:
    """Return what a setting took as JSON values: None for what is not finite."""
    (one,) = trial.outcomes
    figures = {
        "reached": one.reached,
        "iterations": one.iterations,
        "rounds": one.rounds,
        "gradients": one.gradients,
        "messages": one.messages,
        "cost": one.time(budget.gradient_cost, budget.communication_cost),
    }
    return {name: finite(value) for name, value in figures.items()}


def _print(trials: Sequence[Trial], budget: Budget) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("settings")
    for column in ("iterations", "gradients", "messages", "cost"):
        table.add_column(column, justify="right")
    for trial in trials:
        said = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in trial.settings.items()
        )
        figures = _figures(trial, budget)
        shown = str(figures["iterations"]) if figures["reached"] else "does not arrive"
        numbers = (figures[name] for name in ("gradients", "messages", "cost"))
        cells = ("-" if number is None else f"{number:.6g}" for number in numbers)
        table.add_row(said, shown, *cells)
    Console().print(table)
