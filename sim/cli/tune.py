"""``privet tune``: parameters of an algorithm from its theory, checked on the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from privet.problems import Moduli
    from privet.strategies.fed_plt_theory import Prediction


def tune(
    algorithm: Annotated[str, typer.Argument(help="Algorithm: fed-plt.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Run-config keys of the data as key=value.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file of run-config keys.")
    ] = None,
    strong_convexity: Annotated[
        float, typer.Option(help="Smallest over the agents; 0 computes both from the data.")
    ] = 0.0,
    smoothness: Annotated[float, typer.Option(help="Largest over the agents.")] = 0.0,
    solver: Annotated[str, typer.Option(help="gd or agd.")] = "gd",
    max_local_epochs: Annotated[int, typer.Option(help="Largest N_e to try.", min=1)] = 40,
    reduction: Annotated[
        float, typer.Option(help="Factor by which the error is to shrink.")
    ] = 1e-3,
    participation: Annotated[
        float, typer.Option(help="Probability that an agent takes part.")
    ] = 1.0,
    gradient_cost: Annotated[float, typer.Option(help="Cost t_G of a local gradient.")] = 1.0,
    communication_cost: Annotated[float, typer.Option(help="Cost t_C of a round.")] = 10.0,
    top: Annotated[int, typer.Option(help="Settings to print.", min=1)] = 8,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Search (rho, gamma, N_e) with the corrected convergence matrix.

    Prints spectral radius, norm, predicted rounds and cost, the cheapest setting first.
    """
    import numpy as np

    from privet.sim.cli.run import parse_assignments, read_config_file
    from privet.strategies.fed_plt_theory import search
    from privet.wire import ConfigError

    if algorithm != "fed-plt":
        raise ConfigError(f"tune {algorithm!r}: only fed-plt has a convergence matrix")
    if solver not in ("gd", "agd"):
        raise ConfigError(f"--solver {solver!r}: choose one of gd, agd")
    for name, value in (("reduction", reduction), ("participation", participation)):
        if not 0 < value <= 1:
            raise ConfigError(f"--{name} {value!r}: must be > 0 and <= 1")
    raw = read_config_file(config) if config else {}
    raw |= parse_assignments(settings or [])
    moduli = _moduli(strong_convexity, smoothness, raw)
    scale = 1.0 / np.sqrt(abs(moduli.strong_convexity * moduli.smoothness) or 1.0)
    found = search(
        moduli,
        [float(rho) for rho in scale * np.logspace(-2, 2, 81)],
        range(1, max_local_epochs + 1),
        solver=solver,
        step_factors=[float(factor) for factor in np.linspace(0.5, 1.0, 6)],
        reduction=reduction,
        participation=participation,
        gradient_cost=gradient_cost,
        communication_cost=communication_cost,
    )
    stable = sum(one.radius < 1 for one in found)
    if json_lines:
        for one in found[:top]:
            print(json.dumps(_row(one)))
        return
    _print(found[:top], moduli, stable, len(found))


def _moduli(strong_convexity: float, smoothness: float, raw: dict[str, Any]) -> Moduli:
    from privet.problems import Moduli
    from privet.server_apps import read_config
    from privet.server_apps.execute import build_evaluation

    if smoothness > 0:
        return Moduli(strong_convexity, smoothness)
    problems = build_evaluation(read_config(raw)).federation.problems
    own = [problem.moduli for problem in problems]
    return Moduli(min(one.strong_convexity for one in own), max(one.smoothness for one in own))


def _row(one: Prediction) -> dict[str, Any]:
    import math

    return {
        "rho": one.setting.rho,
        "step-size": one.setting.step_size,
        "local-epochs": one.setting.local_epochs,
        "local-solver": one.setting.solver,
        "spectral-radius": one.radius,
        "norm": one.norm,
        "rounds": one.rounds if math.isfinite(one.rounds) else "inf",
        "cost": one.cost if math.isfinite(one.cost) else "inf",
    }


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
