"""The run-config keys of a command: a preset, a file over it, and ``key=value`` over both."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date, datetime, time
from itertools import count
from pathlib import Path
from typing import Any

from privet.core.assignments import MORE, parse_assignments, with_more

APP_TABLE = ("tool", "flwr", "app", "config")
"""Path of the run config in a Flower app's pyproject.toml."""


_RUNS = count(1)


def run_name(algorithm: str) -> str:
    """Return a name for a run's folder: the time, this process, and which of its runs it is.

    Two that begin in the same second differ in the process, or in the number.
    """
    number = next(_RUNS)
    process = f"{os.getpid()}.{number}" if number > 1 else f"{os.getpid()}"
    return f"{datetime.now():%Y%m%d-%H%M%S}-{process}-{algorithm}"


def given_keys(
    assignments: list[str] | None, file: Path | None = None, preset: str = "", algorithm: str = ""
) -> dict[str, Any]:
    """Return the keys that a command was given, as they are.

    Parameters
    ----------
    assignments : list of str, optional
        ``key=value``; these have the last word.
    file : Path, optional
        TOML: a flat table, or the pyproject.toml of a Flower app.
    preset : str
        Name of the preset below them.
    algorithm : str
        Chosen by other means than the key ``algorithm``; that key then says the same.

    Raises
    ------
    ConfigError
        If one of them cannot be read.

    Notes
    -----
    A relative path is one from the working directory, wherever it was given.
    """
    from privet.core import ConfigError
    from privet.server_apps.config import require_meant

    from .presets import load_preset

    given = read_config_file(file) if file else {}
    pairs = [pair for text in assignments or [] for pair in _pairs(text)]
    given |= with_more(parse_assignments(pairs))
    if algorithm and given.setdefault("algorithm", algorithm) != algorithm:
        raise ConfigError(f"algorithm = {given['algorithm']}: the command names {algorithm}")
    if preset:
        given = load_preset(preset, str(given.get("algorithm", ""))) | given
    require_meant(given)
    return {key: _whole_path(key, value) for key, value in given.items()}


def with_cohort(assignments: list[str], cohort: str) -> list[str]:
    """Return ``key=value`` pairs with the cohort that an option names."""
    return [*assignments, f"cohort={json.dumps(cohort)}"] if cohort else assignments


def _whole_path(key: str, value: Any) -> Any:
    from privet.core import ConfigError
    from privet.server_apps.config import table

    entry = table().get(key)
    relative = entry and any(owned.is_relative(value) for owned in entry.owners.values())
    if relative and "://" in value:
        raise ConfigError(f"{key} = {value!r}: expected a path: fetch the file first, and name it")
    return str(Path(value).expanduser().absolute()) if relative else value


def _pairs(text: str) -> list[str]:
    """Return the pairs of a text that may hold several, as that of Flower's ``--run-config``.

    A space before what is no key and an equals sign belongs to a value.
    """
    import re

    from privet.server_apps.config import table

    return re.split(rf"\s+(?=(?:{'|'.join((*table(), MORE))})\s*=)", text.strip())


def assignment(key: str, value: Any) -> str:
    """Return ``key=value`` that is read as that value: texts such as 01 or true in quotes."""
    from privet.core import ConfigError
    from privet.core.key import shown

    plain = f"{key}={shown(value)}"
    try:
        same = given_keys([plain]) == {key: value}
    except ConfigError:
        same = False
    if same:
        return plain
    return f"{key}={json.dumps(value, ensure_ascii=False)}" if isinstance(value, str) else plain


def _dateless(value: Any) -> Any:
    """Return a date of TOML as text, such as 2024-02-29, which keys take; others as they are."""
    return str(value) if isinstance(value, date | time) else value


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the flat table of a TOML file, or a pyproject.toml's (raises ``ConfigError``)."""
    import tomllib

    from privet.core import ConfigError
    from privet.core.errors import near_path
    from privet.core.files import read_given
    from privet.server_apps.config import without_stand_ins

    try:
        content: Any = tomllib.loads(read_given(path))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; expected a TOML file of keys{near_path(path)}"
        ) from None
    except RecursionError:
        raise ConfigError(f"{path}: expected a flat table, found nested ones") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: expected TOML ({error})") from None
    if APP_TABLE[0] not in content:
        for name, value in content.items():
            if isinstance(value, dict):
                raise ConfigError(
                    f"{path}: found a table [{name}]; expected keys alone, or "
                    f"[{'.'.join(APP_TABLE)}]"
                )
        return with_more({name: _dateless(value) for name, value in content.items()})
    for name in APP_TABLE:
        content = content.get(name) if isinstance(content, dict) else None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a table [{'.'.join(APP_TABLE)}]")
    plain = {name: _dateless(value) for name, value in content.items()}
    return without_stand_ins(plain)


def named_callable(name: str) -> Callable[..., Any]:
    """Return the function ``MODULE:FUNCTION``, imported from the working directory.

    Raises
    ------
    ConfigError
        If there is no such module or function.
    """
    import sys
    from importlib import import_module

    from privet.core import ConfigError
    from privet.core.errors import one_line

    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"{name!r}: expected MODULE:FUNCTION")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        attribute_value = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(f"{name!r}: {one_line(str(error))}") from None
    except Exception as error:
        raise ConfigError(f"{name!r}: {where_raised(error)}") from None
    if not callable(attribute_value):
        raise ConfigError(f"{name!r}: {module} has no function {attribute}")
    function: Callable[..., Any] = attribute_value
    return function


def where_raised(error: Exception) -> str:
    """Return an error of the user's code as one line, with its file and line."""
    from traceback import extract_tb

    from privet.core.errors import one_line

    *_, frame = extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return one_line(f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})")
    return one_line(f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
