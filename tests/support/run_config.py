"""Run-config keys as ``flwr run`` takes them: those that an app does not list in its ``more``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.common.config import flatten_dict

from privet.cli.new import toml
from privet.core.assignments import MORE


def listed(app: Path | str) -> dict[str, Any]:
    """Return the run config of an app's pyproject.toml."""
    text = Path(app, "pyproject.toml").read_text()
    return flatten_dict(tomllib.loads(text)["tool"]["flwr"]["app"].get("config", {}))


def overrides(app: Path | str, keys: Mapping[str, Any]) -> str:
    """Return a file of ``--run-config`` that gives an app these keys."""
    own = listed(app)
    if MORE not in own:
        return toml(keys)
    others = toml({key: value for key, value in keys.items() if key not in own})
    return toml({key: value for key, value in keys.items() if key in own} | {MORE: others})
