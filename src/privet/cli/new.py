"""``privet new``: write a Flower app to start from."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated, Any

import typer

from .keys import ConfigOption, JsonOption, PresetOption, SettingsArgument

MODELS = ("table", "sklearn", "torch")
BARE = re.compile(r"[\w-]+", re.ASCII)
"""Keys that TOML takes without quotes."""
NAME = re.compile(r"[a-z][a-z0-9-]{,31}", re.IGNORECASE)
TAKEN = ("flwr", "numpy", "privet", "sklearn", "torch")
"""Names of packages that the app imports itself."""

WHEELS = "wheels"
"""Folder of an app with the wheel that `--wheel` names."""

MODEL_CONFIG = {
    "num-server-rounds": (20, "number of rounds"),
    "local-epochs": (10, "local steps in a round"),
    "min-nodes": (2, "number of nodes to wait for"),
    "output-dir": ("", "folder for run folders; empty is ./runs where the server runs"),
}
"""Run config of the apps that define their model: values and what they mean."""
MOST_KEYS = 20
"""Lines with a key that an app has, unless more are asked for."""
OF_A_RUN = ("algorithm", "num-server-rounds", "num-agents", "output-dir", "resume")
OF_A_TABLE: tuple[str, ...] = (
    "dataset",
    "data-path",
    "label-column",
    "schema",
    "missing",
    "partition",
)
OF_A_METHOD = (
    *("local-epochs", "step-size", "step-size-base", "rho", "local-solver", "clip", "row-norm"),
    *("target-epsilon", "secure-sum"),
    *("units", "graph", "family", "formula", "time-column", "event-column", "group-column"),
)
"""Keys that an app lists where its algorithm has them, in this order; then those that the algorithm
declares first."""
DATA_OF_MODEL = {
    "sklearn": "`DATA` in `model.py` takes the keys of the line that `privet data FILE` ends "
    "with, and `predict(RUN_FOLDER, ROWS)` gives the labels of new rows.",
    "torch": "`data_of` in `model.py`.",
}
"""Where the apps that define their model say which data a node has."""
WITHOUT_GPU = """
PyTorch for GPUs takes gigabytes. Where there is none, have the smaller build first:
`pip install torch --index-url https://download.pytorch.org/whl/cpu`.
"""
FED_DYN_OF_MODEL = {
    "sklearn": '{"step_size_base": 0.1}',
    "torch": '{"step_size_base": 0.2, "batch_size": 64}',
}
"""Arguments with which FedDyn trains these models."""
RUNS_HERE = """--run-config "output-dir='$PWD/runs'\""""
"""Puts runs into the project: a ServerApp works in the folder in which the SuperLink was started,
maybe for another project. It is no part of the project, which may be moved."""


def new(
    where: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder to write; its name is the app's.")
    ],
    settings: SettingsArgument = None,
    config: ConfigOption = None,
    preset: PresetOption = "",
    model: Annotated[
        str,
        typer.Option(
            help="table (the bundled data sets and models), sklearn or torch.",
            autocompletion=lambda: MODELS,
        ),
    ] = "table",
    wheel: Annotated[
        Path | None,
        typer.Option(help="Wheel of this version to put beside the app, for whom no index serves."),
    ] = None,
    runtime_installation: Annotated[
        bool,
        typer.Option(
            "--runtime-installation",
            help="Let Flower install what the app depends on for every run, from an index.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a Flower app that depends on this version of Privet and runs with `flwr run`.

    Its pyproject.toml lists the keys that are given and the main ones of the method and the data.
    """
    from privet.core import ConfigError
    from privet.core.library import library_version

    from .config import given_keys

    folder = _new_folder(where, model)
    version = library_version()
    if wheel and not (wheel.is_file() and wheel.match(f"flwr_privet-{version}-*.whl")):
        raise ConfigError(f"--wheel {wheel}: no wheel of flwr-privet {version}")
    given = given_keys(settings, config, preset)
    if given and model != "table":
        raise ConfigError(f"{', '.join(given)}: keys are of --model table; this app has its own")
    name = folder.resolve().name.lower()
    module = _module(name)
    needed = [f"flwr-privet[simulation,plots]~={version}"]
    needed += ["torch>=2.4"] if model == "torch" else []
    texts = _texts(name, module, model, given, needed, wheel is not None, runtime_installation)
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").touch()
    for path, text in texts.items():
        (folder / path).write_text(text)
    if wheel is not None:
        (folder / WHEELS).mkdir()
        shutil.copy(wheel, folder / WHEELS)
    there = quote(str(folder))
    install = _install(wheel is not None)
    command = f"cd {there} && {install} && flwr run . --stream {RUNS_HERE}"
    if as_json:
        print(
            json.dumps({"folder": str(folder.resolve()), "files": sorted(texts), "next": command})
        )
    else:
        print(f"{folder}: a Flower app. Next: {command}")


def _new_folder(where: str, model: str) -> Path:
    """Return the folder of a new app, which may be there if it is empty.

    Raises
    ------
    ConfigError
        If there is no such model, the folder's name cannot be an app's, or something is in it.
    """
    from privet.core import ConfigError
    from privet.core.errors import did_you_mean

    if not where.strip():
        raise ConfigError("new: name the folder to write, e.g. privet new my-app")
    folder = Path(where)
    name = folder.resolve().name
    if model not in MODELS:
        near = did_you_mean(model, MODELS)
        raise ConfigError(f"--model {model!r}: choose one of {', '.join(MODELS)}{near}")
    if not NAME.fullmatch(name) or _module(name) in TAKEN:
        raise ConfigError(
            f"{folder}: the folder's name is the app's, for Flower at most 32 letters, digits and "
            f"hyphens, a letter first, and not the name of a package it uses"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists already")
    return folder


def _module(name: str) -> str:
    """Return the module of an app of that name."""
    return name.lower().replace("-", "_")


def _install(from_wheel: bool) -> str:
    """Return the command that installs an app."""
    return f"pip install -e . --find-links {WHEELS}" if from_wheel else "pip install -e ."


def _texts(
    name: str,
    module: str,
    model: str,
    given: Mapping[str, Any],
    needed: list[str],
    from_wheel: bool,
    runtime_installation: bool,
) -> dict[str, str]:
    """Return the files of an app with their content, by their paths in its folder."""
    config = app_config(given) if model == "table" else MODEL_CONFIG
    substitutions = {
        "name": name,
        "module": module,
        "dependencies": json.dumps(needed),
        "uv": "" if runtime_installation else _as_installed(needed),
        "install": _install(from_wheel),
        "config": commented(config).rstrip(),
        "light": WITHOUT_GPU if model == "torch" else "",
        "data": DATA_OF_MODEL.get(model, ""),
        "fed_dyn": FED_DYN_OF_MODEL.get(model, ""),
    }
    templates = Path(__file__).parent / "templates"
    base = templates / ("table" if model == "table" else "own")
    sources = {
        "pyproject.toml": templates / "pyproject.template",
        "README.md": base / "README.md",
        f"{module}/client_app.py": base / "client_app.py",
        f"{module}/server_app.py": base / "server_app.py",
    }
    if model != "table":
        sources[f"{module}/model.py"] = templates / model / "model.py"
    texts = {path: source.read_text(encoding="utf-8") for path, source in sources.items()}
    return {
        path: text if path.endswith(".py") else Template(text).substitute(substitutions)
        for path, text in texts.items()
    }


def _as_installed(needed: list[str]) -> str:
    """Return the lines by which Flower's `uv sync` installs nothing, so that an app runs as it is.

    uv replaces what a package is needed as by an override; its marker is true nowhere. pip, which
    installs an app once, does not read it.
    """
    names = ["flwr", *(re.split(r"[\[~>=]", one)[0] for one in needed)]
    overrides = json.dumps([f"{one} ; python_version < '3'" for one in names])
    return (
        "\n# Runs take what is installed beside Flower. Without these lines Flower installs the "
        "dependencies for\n# every run anew, from the package index.\n"
        f"[tool.uv]\noverride-dependencies = {overrides}\n"
    )


def app_config(given: Mapping[str, Any] | None = None) -> dict[str, tuple[Any, str]]:
    """Return the keys that an app lists, with their values and meanings.

    They are those given, those of a run, of its data and the main ones of its method, and ``more``,
    whose text holds any other. ``flwr run`` alone simulates two nodes.

    Raises
    ------
    ConfigError
        If what is given is no run config.
    """
    from privet.core import analyses
    from privet.core.assignments import MORE
    from privet.data.settings import DATA_OWNERS
    from privet.server_apps.config import (
        RunConfig,
        keys_of_algorithm,
        keys_of_run,
        owned_by,
        table,
    )

    asked = dict(given or {})
    resolved = _read(asked)
    name = asked.setdefault("algorithm", RunConfig.algorithm)
    asked.setdefault("num-agents", 2)
    own, known = keys_of_run(name), table()
    data = OF_A_TABLE
    if "dataset" in asked:  # else a table is what most runs name in its place
        kind = asked["dataset"]
        needs = {key: one.needs.get("dataset") for key, one in owned_by(DATA_OWNERS).items()}
        of_kind = [key for key, kinds in needs.items() if kind in (kinds or ())]
        data = tuple(k for k in (*OF_A_TABLE, *of_kind) if k in own and not own[k].unused(resolved))
    of_run = [k for k in OF_A_RUN if k != "num-server-rounds" or name not in analyses()]
    of_method = keys_of_algorithm(name)
    used = [k for k, one in of_method.items() if not one.unused(resolved)]
    order = [*of_run, *data, *OF_A_METHOD, *used]
    wanted = [k for k in order if k in own and (k not in OF_A_METHOD or k in of_method)]
    listed = list(dict.fromkeys([*asked, *wanted]))[: max(len(asked), MOST_KEYS - 1)]
    listed.sort(key=lambda k: order.index(k) if k in order else len(order))
    found = {k: (asked.get(k, known[k].written_default), own[k].doc) for k in listed}
    meaning = 'any other of `privet keys`, as "seed=1 tags=pilot", or as a line of its own here'
    return {**found, MORE: ("", meaning)}


def _read(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the resolved config of a run, whose private keys are all there.

    Raises
    ------
    ConfigError
        As `privet.server_apps.read_config`, and for a target without what it needs. The line names
        all that is missing, as that of `privet run` does.
    """
    if not given.get("target-epsilon"):
        from privet.server_apps.config import read_config

        return read_config(given)
    from privet.server_apps.build import build_strategy
    from privet.server_apps.planning import missing_named, read_private_config

    # The nodes' records are elsewhere: any number of them will do to see which keys are missing.
    public = {"num-examples": 1000} if given.get("data-path") else {}
    resolved = read_private_config(given, public)
    with missing_named(resolved, public):
        build_strategy(resolved)
    return resolved


def commented(config: Mapping[str, tuple[Any, str]]) -> str:
    """Return a flat TOML document in which each value has its meaning beside it."""
    return "".join(
        f"{toml({key: value}).rstrip()}  # {meaning}\n" for key, (value, meaning) in config.items()
    )


def toml(config: Mapping[str, str | int | float | bool]) -> str:
    """Return a flat TOML document; JSON's scalars are TOML's, except infinities and nan."""
    return "".join(
        f"{key if BARE.fullmatch(key) else _scalar(key)} = "
        f"{value if isinstance(value, float) else _scalar(value)}\n"
        for key, value in config.items()
    )


def _scalar(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)
