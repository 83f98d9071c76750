"""``privet run``: the quickest look, all agents in this process or in Ray actors."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .config import given_keys, run_name
from .keys import ConfigOption, PresetOption, completed
from .of_tables import paths_and_keys

ENGINES = ("auto", "inline", "cohort", "ray")


RunArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE]... [KEY=VALUE]...",
        help="Run-config keys, e.g. rho=2.0; privet keys lists them. Of an analysis also tables, "
        "or files of cohorts, each that of a site.",
        autocompletion=completed,
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        help="inline (this process), cohort (this process, agents of one shape together), ray "
        "(one process per core) or auto (cohort where there are enough agents).",
        autocompletion=lambda: ENGINES,
    ),
]
ActorsOption = Annotated[
    int | None, typer.Option(help="Processes of the Ray engine, else one per core.", min=1)
]
RayAddressOption = Annotated[
    str, typer.Option(help="Ray cluster to run on, host:port; else Ray starts here.")
]
RayRuntimeEnvOption = Annotated[
    str,
    typer.Option(
        help="Ray's runtime_env for the cluster's processes: JSON, or the path of a JSON file."
    ),
]
ColludersOption = Annotated[
    int | None,
    typer.Option(
        help="Nodes with pinned keys, of whom so many may collude: for noise-sharing.", min=0
    ),
]
JsonSummaryOption = Annotated[
    bool, typer.Option("--json", help="Print the summary as one JSON object.")
]


def run(
    arguments: RunArgument = None,
    config: ConfigOption = None,
    preset: PresetOption = "",
    engine: EngineOption = "auto",
    actors: ActorsOption = None,
    ray_address: RayAddressOption = "",
    ray_runtime_env: RayRuntimeEnvOption = "",
    colluders: ColludersOption = None,
    json_line: JsonSummaryOption = False,
) -> None:
    """Run an algorithm with all agents on this machine, or on a Ray cluster."""
    from privet.core import ConfigError
    from privet.core.errors import did_you_mean
    from privet.core.exits import Exit
    from privet.core.registry import DEFAULT_ALGORITHM, analyses
    from privet.server_apps.model_file import FILE
    from privet.sim.inline import run_inline, run_ray, run_tables
    from privet.sim.logs import plain, quiet

    if engine not in ENGINES:
        near = did_you_mean(engine, ENGINES)
        raise ConfigError(f"--engine {engine!r}: choose one of {', '.join(ENGINES)}{near}")
    if engine != "ray" and (actors or ray_address or ray_runtime_env):
        raise ConfigError(
            "--actors, --ray-address and --ray-runtime-env belong to the Ray engine: give "
            "--engine ray"
        )
    if engine == "ray" and colluders is not None:
        raise ConfigError("--colluders is not of the Ray engine")
    paths, keys = paths_and_keys(arguments or [])
    raw = given_keys(keys, config, preset)
    quiet() if json_line else plain()
    algorithm = str(raw.get("algorithm", DEFAULT_ALGORITHM))
    name = run_name(algorithm)
    if paths and (algorithm not in analyses() or engine == "ray" or colluders is not None):
        raise ConfigError(
            f"{paths[0]!r}: expected key=value; tables of sites are for analyses "
            f"({', '.join(analyses())}), in this process"
        )
    if paths:
        finished: Any = run_tables(paths, raw, name)
    elif engine == "ray":
        environment = _runtime_env(ray_runtime_env)
        finished = run_ray(
            raw, name, actors=actors, address=ray_address or None, runtime_env=environment
        )
    else:
        finished = run_inline(raw, name, engine=engine, colluders=colluders)
    if json_line:
        print(json.dumps(finished.summary))
        raise typer.Exit(finished.result.exit_code)
    for label, value in finished.headline().items():
        print(f"{label}: {value}")
    if (fitted := getattr(finished.result, "fitted", None)) is not None:
        print(f"\n{fitted}".rstrip())
    folder = Path(finished.folder)
    predicts = (folder / FILE).exists() or "coef" in getattr(finished.result, "table", {})
    if predicts and finished.result.exit_code != Exit.FRUITLESS:
        print(f"predict new rows: privet predict {shlex.quote(str(folder))} ROWS.csv")
    raise typer.Exit(finished.result.exit_code)


def _runtime_env(given: str) -> dict[str, Any]:
    """Return the ``runtime_env`` of an option (raises ``ConfigError`` where it is none)."""
    from privet.core import ConfigError
    from privet.core.errors import one_line
    from privet.core.files import read_given

    if not given:
        return {}
    try:
        text = given if given.lstrip().startswith("{") else read_given(Path(given))
        environment = json.loads(text)
        if not isinstance(environment, dict):
            raise ValueError(f"a JSON object is needed, not {type(environment).__name__}")
    except OSError as error:
        raise ConfigError(f"--ray-runtime-env {given}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--ray-runtime-env {given}: {one_line(str(error))}") from None
    return environment
