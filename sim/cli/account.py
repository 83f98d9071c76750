"""``privet account``: what a run's releases cost, and how much noise a budget takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
import typer

from .account_cases import CASES, Case, Values, contraction, delta, fed_pdm_sensitivity, need
from .account_cases import relation as relation_of
from .account_flags import COMMANDS, command

if TYPE_CHECKING:
    from privet.privacy import Account

account_app = typer.Typer(
    help="What an agent's releases cost: per round, in total, and as the papers print it.",
    no_args_is_help=True,
)
solve_app = typer.Typer(help="The noise that a total (epsilon, delta) takes.", no_args_is_help=True)
_TITLES = {
    "fed-plt": "Fed-PLT with the noisy gradient (13).",
    "dp-iadmm": "DP-IADMM with noisy inner steps.",
    "fed-pdm": "DP-FedPDM with noise on the upload.",
    "gfl": "Graph federated learning with noise between servers.",
}


def _one_line(run: Callable[[str, Values, bool], None]) -> Callable[[str, Values, bool], None]:
    """Turn what the privacy room refuses into usage errors."""

    @wraps(run)
    def guarded(algorithm: str, values: Values, as_json: bool) -> None:
        try:
            run(algorithm, values, as_json)
        except ValueError as error:
            raise click.UsageError(f"{algorithm}: {error}") from None

    return guarded


@_one_line
def show_account(algorithm: str, values: Values, as_json: bool) -> None:
    """Print the account of a run."""
    _print(CASES[algorithm](values), delta(values), as_json)


@_one_line
def show_solution(algorithm: str, values: Values, as_json: bool) -> None:
    """Print the noise that meets a target, then the account of a run with it."""
    parameter, value = _SOLVERS[algorithm](values)
    (target,) = need(values, "target-epsilon")
    solution = {
        "algorithm": algorithm, "parameter": parameter, "value": value,
        "target-epsilon": target, "delta": delta(values),
        "accountant": values.get("accountant", "smaller"),
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(solution))
    else:
        typer.echo(f"{algorithm}: {parameter} = {value:.8g} for epsilon {target:g}")
    _print(CASES[algorithm]({**values, parameter: value}), delta(values), as_json)


def _target(values: Values) -> dict[str, Any]:
    (target,) = need(values, "target-epsilon")
    return {
        "epsilon": target,
        "delta": delta(values),
        "accountant": values.get("accountant", "smaller"),
    }


def _solve_fed_plt(values: Values) -> tuple[str, float]:
    from privet.privacy import calibrate

    rounds, steps, step, clip, examples = need(
        values, "rounds", "local-steps", "step-size", "clip", "num-examples"
    )
    tau = calibrate.fed_plt_tau(
        **_target(values), rounds=rounds, clip=clip, num_examples=examples, step_size=step,
        local_steps=steps, contraction=contraction(values), relation=relation_of(values),
    )  # fmt: skip
    return "noise-variance", tau * tau


def _solve_dp_iadmm(values: Values) -> tuple[str, float]:
    from privet.privacy import calibrate

    (rounds,) = need(values, "rounds")
    updates, mechanism = values.get("local-updates", 1), values.get("mechanism", "gaussian")
    if "clip" not in values and "num-examples" not in values:
        multiplier = calibrate.noise_multiplier(
            **_target(values), count=rounds * updates, mechanism=mechanism
        )
        return "noise-multiplier", multiplier
    clip, examples = need(values, "clip", "num-examples")
    return "noise-scale", calibrate.dp_iadmm_noise_scale(
        **_target(values), rounds=rounds, clip=clip, num_examples=examples, local_updates=updates,
        mechanism=mechanism, relation=relation_of(values),
    )  # fmt: skip


def _solve_fed_pdm(values: Values) -> tuple[str, float]:
    from privet.privacy import calibrate

    (rounds,) = need(values, "rounds")
    sensitivity, _ = fed_pdm_sensitivity(values)
    multiplier = calibrate.noise_multiplier(**_target(values), count=rounds)
    return "noise-scale", multiplier * sensitivity


def _solve_gfl(values: Values) -> tuple[str, float]:
    from privet.privacy import calibrate

    if values.get("observer", "neighbour") == "own-server":
        raise ValueError("no noise on the links hides raw models from the unit's own server")
    rounds, step, clip = need(values, "rounds", "step-size", "clip")
    return "noise-scale", calibrate.gfl_noise_scale(
        **_target(values), rounds=rounds, clip=clip, step_size=step,
        mechanism=values.get("mechanism", "gaussian"), relation=relation_of(values),
        contraction=values.get("contraction"), batch_size=values.get("batch-size"),
        participants=values.get("participants"),
    )  # fmt: skip


_SOLVERS: dict[str, Callable[[Values], tuple[str, float]]] = {
    "fed-plt": _solve_fed_plt,
    "dp-iadmm": _solve_dp_iadmm,
    "fed-pdm": _solve_fed_pdm,
    "gfl": _solve_gfl,
}


def _print(case: Case, at: float, as_json: bool) -> None:
    from privet.privacy import Account, account

    total = account(case.releases, at)
    world, last = total, "post-processing: published models cost no more than the messages"
    if case.published:
        world, last = Account(math.inf, at, "none", math.inf, math.inf), case.published
    if not as_json:
        _table(case, account(case.per_round, at), total, world, last)
        return
    printed = case.as_printed if case.as_printed not in (None, math.inf) else None
    rows = (("coordinator", total, case.all_assumptions()),
            ("world", world, [last, *case.all_assumptions()]))  # fmt: skip
    for to, cost, assumptions in rows:
        row = {
            "to": to, "epsilon": _number(cost.epsilon), "delta": at, "method": cost.method,
            "assumptions": assumptions, "as-printed": printed,
        }  # fmt: skip
        typer.echo(json.dumps(row))


def _table(case: Case, one: Account, total: Account, world: Account, last: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"epsilon at delta = {total.delta:g}")
    for column in ("to", "what", "epsilon", "RDP", "PLD"):
        table.add_column(column, justify="left" if column in ("to", "what") else "right")
    rows = (("coordinator", "one round (the costliest)", one),
            ("coordinator", "total", total),
            ("world", "final model", world))  # fmt: skip
    for to, what, cost in rows:
        table.add_row(to, what, _text(cost.epsilon), _text(cost.rdp), _text(cost.pld))
    printed = "has no value here" if case.as_printed is None else _text(case.as_printed)
    table.add_row("-", f"as printed, no claim: {case.printed_as}", printed, "", "")
    console = Console()
    console.print(table)
    console.print("Assumptions:")
    for line in [*case.all_assumptions(), f"final model: {last}"]:
        console.print(f"- {line}", soft_wrap=True)


def _number(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


def _text(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.6g}"


for _algorithm in COMMANDS:
    account_app.command(_algorithm, help=_TITLES[_algorithm])(
        command(_algorithm, False, show_account)
    )
    solve_app.command(_algorithm, help=_TITLES[_algorithm])(
        command(_algorithm, True, show_solution)
    )
account_app.add_typer(solve_app, name="solve")
