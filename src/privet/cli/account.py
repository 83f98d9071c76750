"""``privet account``: what a run would cost, and how much noise a target takes, before it runs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from .config import given_keys
from .keys import ConfigOption, JsonOption, PresetOption, SettingsArgument

if TYPE_CHECKING:
    from privet.server_apps.planning import Planned


def account(
    settings: SettingsArgument = None,
    config: ConfigOption = None,
    preset: PresetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what a run would cost in privacy and, for a target-epsilon, how much noise it takes.

    With num-examples=N (and dim=D) it plans for agents of N examples each and reads no data; with
    colluders=T for nodes that trust masked sums but for T agents (noise-sharing).
    """
    from privet.server_apps.config import is_idle
    from privet.server_apps.planning import FACT_KEYS, plan_account, read_private_config
    from privet.server_apps.run_folder import to_json
    from privet.sim.logs import quiet

    quiet()
    raw = given_keys(settings, config, preset)
    public = {key: _whole(key, raw.pop(key)) for key in FACT_KEYS if key in raw}
    resolved = read_private_config(raw, public)
    idle = [key for key in given_keys(settings, config) if is_idle(key)]
    planned = plan_account(resolved, public)
    if as_json:
        print(json.dumps(to_json(_summary(resolved, planned)), allow_nan=False))
        return
    if idle:
        print(f"not used here, as no account depends on them: {', '.join(idle)}")
    if "num-examples" in public:
        print(f"planned for agents of {public['num-examples']} examples each, without reading data")
    _print(resolved, planned)


def _whole(key: str, value: Any) -> int:
    from privet.core import ConfigError

    least = 0 if key == "colluders" else 1
    if type(value) is not int or value < least:
        raise ConfigError(f"{key} = {value!r}: expected a whole number >= {least}")
    return value


def _summary(config: dict[str, Any], planned: Planned) -> dict[str, Any]:
    accounts = planned.account["accounts"]
    return {
        "algorithm": config["algorithm"],
        "private": planned.account["private"],
        "reason": planned.account["reason"],
        "epsilon": accounts[0]["epsilon"] if accounts else math.inf,
        "delta": planned.delta,
        "relation": planned.relation,
        "drawn-delta": accounts[0].get("drawn-delta", 0.0) if accounts else 0.0,
        "per-round": planned.per_round,
        "noise": dict(planned.noise),
        "accounts": accounts,
        "advice": planned.advice,
    }


def _print(config: dict[str, Any], planned: Planned) -> None:
    from rich.table import Table

    from privet.core import format as fmt
    from privet.core.terminal import console

    screen = console()
    target = config.get("target-epsilon", 0.0)
    for key, value in planned.noise.items():
        how = f" for epsilon {target:g}" if target else ""
        print(f"{config['algorithm']}: {key} = {value}{how}")
    if planned.advice:
        print(planned.advice)
    table = Table(title=f"epsilon at delta = {planned.delta:g} ({planned.relation})")
    accounts = planned.account["accounts"]
    printed = any(entry["as-printed"] is not None for entry in accounts)
    for column in ("to", "epsilon", *(["as printed, no claim"] if printed else [])):
        table.add_column(column, justify="left" if column == "to" else "right")
    for entry in accounts:
        figure = [] if entry["as-printed"] is None else [f"{entry['as-printed']:.6g}"]
        table.add_row(entry["to"], fmt.epsilon(entry["epsilon"]), *figure)
    for entry in accounts[:1]:
        if person := entry.get("person"):
            who = f"a person of {person['rows']} records"
            table.add_row(who, fmt.epsilon(person["epsilon"]))
    if planned.account["private"]:
        table.add_row("coordinator, costliest round", fmt.epsilon(planned.per_round))
    if table.row_count:
        screen.print(table)
    screen.print(planned.account["reason"], soft_wrap=True, highlight=False)
    for entry in planned.account["accounts"][:1]:
        if "drawn-delta" in entry:
            print(f"delta with the noise as it is drawn: {fmt.summed_delta(entry)}")
    assumptions = dict.fromkeys(
        line for entry in planned.account["accounts"] for line in entry["assumptions"]
    )
    for line in assumptions:
        screen.print(f"- {line}", soft_wrap=True, highlight=False, markup=False)
