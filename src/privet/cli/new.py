"""``privet new``: write a Flower app to start from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from .keys import JsonOption

MODELS = ("table", "sklearn", "torch")
BARE = re.compile(r"[\w-]+", re.ASCII)
"""Keys that TOML takes without quotes."""
NAME = re.compile(r"[a-z][a-z0-9-]{,31}", re.IGNORECASE)
TAKEN = ("flwr", "numpy", "privet", "sklearn", "torch")
"""Names of packages that the app imports itself."""

MODEL_CONFIG = {"num-server-rounds": 20, "local-epochs": 10, "min-nodes": 2, "output-dir": ""}
"""Run config of the apps that define their model."""
RUNS_HERE = """--run-config "output-dir='$PWD/runs'\""""
"""Puts runs into the project: a ServerApp works in the folder in which the SuperLink was started,
maybe for another project. It is no part of the project, which may be moved."""


def new(
    where: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder to write; its name is the app's.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="table (the bundled data sets and models), sklearn or torch.",
            autocompletion=lambda: MODELS,
        ),
    ] = "table",
    as_json: JsonOption = False,
) -> None:
    """Write a Flower app that depends on Privet and runs with `flwr run`."""
    folder = _new_folder(where, model)
    name = folder.resolve().name.lower()
    module = _module(name)
    texts = _texts(name, module, model)
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").touch()
    for path, text in texts.items():
        (folder / path).write_text(text)
    there = quote(str(folder))
    command = f"cd {there} && pip install -e . && flwr run . --stream {RUNS_HERE}"
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


def _texts(name: str, module: str, model: str) -> dict[str, str]:
    """Return the files of an app with their content, by their paths in its folder."""
    needed = [
        _library("simulation,plots"),
        *(["torch>=2.4"] if model == "torch" else []),
    ]
    config: Mapping[str, Any] = app_config() if model == "table" else MODEL_CONFIG
    substitutions = {
        "name": name,
        "module": module,
        "dependencies": json.dumps(needed),
        "config": toml(config).rstrip(),
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


def app_config() -> dict[str, str | int | float | bool]:
    """Return every key and its value in an app: `flwr run` alone simulates two nodes."""
    from privet.server_apps.config import defaults

    return {**defaults(), "num-agents": 2}


def toml(config: Mapping[str, str | int | float | bool]) -> str:
    """Return a flat TOML document; JSON's scalars are TOML's, except infinities and nan."""
    return "".join(
        f"{key if BARE.fullmatch(key) else _scalar(key)} = "
        f"{value if isinstance(value, float) else _scalar(value)}\n"
        for key, value in config.items()
    )


def _scalar(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)


def _library(extras: str) -> str:
    """Return the requirement of this library, from where it was installed itself (PEP 610)."""
    library = distribution("flwr-privet")
    name, index = f"flwr-privet[{extras}]", f"flwr-privet[{extras}]>={library.version}"
    try:
        origin = json.loads(library.read_text("direct_url.json") or "{}")
        url = str(origin["url"])
    except (ValueError, KeyError):
        return index
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    elif url.startswith("file:") and not Path(unquote(urlsplit(url).path)).exists():
        return index
    inside = origin.get("subdirectory")
    return f"{name} @ {url}" + (f"#subdirectory={inside}" if inside else "")
