"""Presets: run configs that are worth starting from, as TOML files ``<algorithm>/<name>.toml``.

``privet new --preset`` writes an app that lists the keys of one, for ``flwr run``.

Not public: names in here may move without notice.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from privet.core import ConfigError
from privet.core.errors import did_you_mean


def preset_names() -> list[str]:
    """Return all presets as ``algorithm/name``, sorted."""
    folders = [entry for entry in files(__name__).iterdir() if entry.is_dir()]
    return sorted(
        f"{folder.name}/{entry.name.removesuffix('.toml')}"
        for folder in folders
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_preset(name: str, algorithm: str = "") -> dict[str, Any]:
    """Return the run config of a preset.

    Parameters
    ----------
    name : str
        ``algorithm/name``, or the name alone where only one algorithm, or the one given, has it.
    algorithm : str
        The algorithm the caller has already chosen, if any.

    Raises
    ------
    ConfigError
        If there is no such preset, or several algorithms have it; the line lists them.
    """
    known = preset_names()
    prefix = f"{algorithm}/" if algorithm else ""
    matches = [one for one in known if name in (one, one.partition("/")[2])]
    matches = [one for one in matches if one.startswith(prefix)]
    if len(matches) != 1:
        several = f"several algorithms have it: {', '.join(matches)}"
        offered = [one for one in known if one.startswith(prefix)]
        near = did_you_mean(name, [*offered, *(one.partition("/")[2] for one in offered)])
        none = f"known are {', '.join(offered) or 'none'}{near}"
        raise ConfigError(f"preset {name!r}: {several if matches else none}")
    owner, _, preset = matches[0].partition("/")
    return tomllib.loads(files(__name__).joinpath(owner, f"{preset}.toml").read_text())
