"""``privet run``: the quickest look, all agents in this process or in Ray actors."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

ENGINES = ("inline", "ray")


def parse_assignments(pairs: list[str]) -> dict[str, Any]:
    """Return ``key=value`` pairs with values in TOML types (bare words are texts).

    Raises
    ------
    ConfigError
        If a pair has no equals sign.
    """
    import tomllib

    from privet.wire import ConfigError

    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError(f"{pair!r}: expected key=value")
        try:
            parsed[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key.strip()] = _number_or_text(text.strip())
    return parsed


def _number_or_text(text: str) -> float | str:
    """Return what TOML does not know as a number but everybody else does, such as .5, as one."""
    try:
        return float(text) if text[:1] in "+-.0123456789" else text
    except ValueError:
        return text


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the flat table of a TOML file (raises ``ConfigError``)."""
    import tomllib

    from privet.wire import ConfigError

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path}: expected a flat table, found deeply nested ones") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: expected TOML ({error})") from None


def run(
    settings: Annotated[
        list[str] | None, typer.Argument(help="Run-config keys as key=value, e.g. rho=2.0")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file of run-config keys.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Preset to start from, e.g. mnist or dp-iadmm/mnist.")
    ] = "",
    engine: Annotated[
        str, typer.Option(help="inline (this process) or ray (one process per core).")
    ] = "inline",
    actors: Annotated[
        int | None, typer.Option(help="Processes of the Ray engine, else one per core.", min=1)
    ] = None,
    ray_address: Annotated[
        str, typer.Option(help="Ray cluster to run on, host:port; else Ray starts here.")
    ] = "",
    json_line: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object.")
    ] = False,
) -> None:
    """Run an algorithm with all agents on this machine, or on a Ray cluster."""
    from privet.server_apps.execute import headline
    from privet.sim.inline import run_inline, run_ray
    from privet.sim.logs import plain, quiet
    from privet.sim.presets import load_preset
    from privet.wire import ConfigError

    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine!r}: choose one of {', '.join(ENGINES)}")
    if engine == "inline" and (actors or ray_address):
        raise ConfigError("--actors and --ray-address are of the Ray engine: give --engine ray")
    raw = read_config_file(config) if config else {}
    raw |= parse_assignments(settings or [])
    if preset:
        raw = load_preset(preset, str(raw.get("algorithm", ""))) | raw
    quiet() if json_line else plain()
    # The process id keeps runs apart that are started in the same second.
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}-{raw.get('algorithm', 'fed-plt')}"
    if engine == "ray":
        finished = run_ray(raw, name, actors=actors, address=ray_address or None)
    else:
        finished = run_inline(raw, name)
    if json_line:
        print(json.dumps(finished.summary))
        return
    for label, value in headline(finished.summary).items():
        print(f"{label}: {value}")
