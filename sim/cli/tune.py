"""``privet tune``: parameters of an algorithm, by runs on the engine or from its theory."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from privet.problems import Moduli
    from privet.strategies.fed_plt_theory import Prediction

RHOS_A_CASE = 9
"""Values of rho that one process searches at a time."""
SETTINGS = 36
"""Settings that are run where --budget does not say how many."""


def tune(
    algorithm: Annotated[str, typer.Argument(help="Algorithm: fed-plt or one of its rivals.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Run-config keys of the data as key=value.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file of run-config keys.")
    ] = None,
    strong_convexity: Annotated[
        float | None,
        typer.Option(help="Smallest over the agents; without both, they are computed."),
    ] = None,
    smoothness: Annotated[
        float | None, typer.Option(help="Largest over the agents; of fed-plt's theory.")
    ] = None,
    solver: Annotated[str, typer.Option(help="gd or agd.")] = "gd",
    max_local_epochs: Annotated[
        int | None,
        typer.Option(help="Largest N_e to try; by runs N_e is local-epochs without this.", min=1),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="Settings to run; fed-plt without it asks its theory instead.", min=1),
    ] = None,
    reduction: Annotated[
        float, typer.Option(help="Factor by which the error is to shrink.")
    ] = 1e-3,
    participation: Annotated[
        float, typer.Option(help="Probability that an agent takes part.")
    ] = 1.0,
    gradient_cost: Annotated[float, typer.Option(help="Cost t_G of a local gradient.")] = 1.0,
    communication_cost: Annotated[float, typer.Option(help="Cost t_C of a round.")] = 10.0,
    top: Annotated[int, typer.Option(help="Settings to print.", min=1)] = 8,
    workers: Annotated[
        int | None, typer.Option(help="Processes to search with; by default this one.", min=1)
    ] = None,
    ray_address: Annotated[
        str, typer.Option(help="Ray cluster to search on, host:port; all of it by default.")
    ] = "",
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Search an algorithm's own parameters, the cheapest setting first.

    With --budget, and for every algorithm but fed-plt, by runs on the data: the same search with
    as many settings for each, until ||sum grad f||^2 is at most the key tolerance (1e-5 where it
    is 0). Without, fed-plt's (rho, gamma, N_e) by its corrected convergence matrix, with spectral
    radius, norm, predicted rounds and cost.
    """
    import numpy as np

    from privet.sim.cli.run import parse_assignments, read_config_file
    from privet.sim.logs import plain
    from privet.sim.sweep import sweep
    from privet.strategies.fed_plt_theory import cheapest_first, require_strong_convexity, search
    from privet.wire import ConfigError

    _check_costs(gradient_cost, communication_cost)
    given = _given(strong_convexity, smoothness)
    raw = read_config_file(config) if config else {}
    raw |= parse_assignments(settings or [])
    if algorithm != "fed-plt" or budget is not None:
        from privet.sim.cli.tune_by_runs import tune_by_runs
        from privet.sim.tuning import Budget

        for name, is_given, instead in (
            ("smoothness", given is not None, "the data"),
            ("solver", solver != "gd", "the key local-solver"),
            ("reduction", reduction != 1e-3, "the key tolerance"),
            ("participation", participation != 1.0, "the key participation"),
        ):
            if is_given:
                raise ConfigError(f"--{name} is of fed-plt's theory; runs go by {instead}")
        tune_by_runs(
            algorithm,
            raw,
            Budget(budget or SETTINGS, gradient_cost, communication_cost),
            most_epochs=max_local_epochs or 0,
            top=top,
            workers=workers,
            address=ray_address or None,
            json_lines=json_lines,
        )
        return
    if solver not in ("gd", "agd"):
        raise ConfigError(f"--solver {solver!r}: choose one of gd, agd")
    for name, value in (("reduction", reduction), ("participation", participation)):
        if not 0 < value <= 1:
            raise ConfigError(f"--{name} {value!r}: must be > 0 and <= 1")
    moduli = given or _moduli(raw)
    require_strong_convexity(moduli)
    scale = 1.0 / np.sqrt(abs(moduli.strong_convexity * moduli.smoothness) or 1.0)
    plain()
    rhos = [float(rho) for rho in scale * np.logspace(-2, 2, 81)]
    search_at = partial(
        search,
        moduli,
        local_epochs=range(1, (max_local_epochs or 40) + 1),
        solver=solver,
        step_factors=[float(factor) for factor in np.linspace(0.5, 1.0, 6)],
        reduction=reduction,
        participation=participation,
        gradient_cost=gradient_cost,
        communication_cost=communication_cost,
    )
    parts = sweep(
        search_at,
        [rhos[begin : begin + RHOS_A_CASE] for begin in range(0, len(rhos), RHOS_A_CASE)],
        workers=workers or (None if ray_address else 1),
        address=ray_address or None,
        progress=bool(workers or ray_address),
        label=lambda part: f"rho {part[0]:.3g} to {part[-1]:.3g}",
    )
    found = cheapest_first(chain.from_iterable(parts))
    stable = sum(one.radius < 1 for one in found)
    if json_lines:
        for one in found[:top]:
            print(json.dumps(_row(one), allow_nan=False))
        return
    _print(found[:top], moduli, stable, len(found))


def _check_costs(gradient_cost: float, communication_cost: float) -> None:
    from privet.wire import ConfigError

    for name, value in (("gradient", gradient_cost), ("communication", communication_cost)):
        if not 0 <= value < math.inf:
            raise ConfigError(f"--{name}-cost {value!r}: must be a finite number >= 0")
    if gradient_cost == communication_cost == 0:
        raise ConfigError("--gradient-cost and --communication-cost: at least one must be > 0")


def _given(strong_convexity: float | None, smoothness: float | None) -> Moduli | None:
    """Return the moduli of the flags, None where there are none."""
    from privet.problems import Moduli
    from privet.wire import ConfigError

    given = (("strong-convexity", strong_convexity), ("smoothness", smoothness))
    for name, value in given:
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name} {value!r}: must be a finite number > 0")
    if strong_convexity is None and smoothness is None:
        return None
    if strong_convexity is None or smoothness is None:
        (lacking,) = (name for name, value in given if value is None)
        raise ConfigError(f"--{lacking} is needed: give both moduli, or neither")
    if smoothness < strong_convexity:
        raise ConfigError(
            f"--smoothness {smoothness!r}: must be >= --strong-convexity {strong_convexity!r}"
        )
    return Moduli(strong_convexity, smoothness)


def _moduli(raw: dict[str, Any]) -> Moduli:
    from privet.problems import Moduli
    from privet.server_apps import read_config
    from privet.server_apps.execute import build_evaluation

    problems = build_evaluation(read_config(raw)).federation.problems
    own = [problem.moduli for problem in problems]
    return Moduli(min(one.strong_convexity for one in own), max(one.smoothness for one in own))


def _row(one: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON values: what is not finite is "inf" or, where no number, null."""
    return {
        "rho": one.setting.rho,
        "step-size": one.setting.step_size,
        "local-epochs": one.setting.local_epochs,
        "local-solver": one.setting.solver,
        "spectral-radius": finite(one.radius),
        "norm": finite(one.norm),
        "rounds": one.rounds if math.isfinite(one.rounds) else "inf",
        "cost": one.cost if math.isfinite(one.cost) else "inf",
    }


def finite(value: float) -> float | None:
    """Return a number that JSON has, None for the others."""
    return value if math.isfinite(value) else None


def _print(found: list[Prediction], moduli: Moduli, stable: int, tried: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"strong convexity {moduli.strong_convexity:.4g}, smoothness {moduli.smoothness:.4g}; "
        f"{stable} of {tried} settings contract"
    )
    table = Table()
    for column in ("rho", "gamma", "N_e", "solver", "radius", "norm", "rounds", "cost"):
        table.add_column(column, justify="right")
    for one in found:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in _row(one).values()))
    console.print(table)
