"""Commands on several tables, each that of a site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privet.core.exits import Exit

from .config import run_name


def paths_and_keys(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tables that a command was given, and its ``key=value`` pairs."""
    from privet.data.sql.cohorts import URLS

    paths = [one for one in arguments if "=" not in one or one.startswith(URLS)]
    return paths, [one for one in arguments if one not in paths]


def analysed(paths: Sequence[str], given: dict[str, Any]) -> tuple[dict[str, Any], list[str], Exit]:
    """Return the table of an analysis of tables (one that is dealt by ids, or each of a site),
    lines that say where the run is, who is not in it and what privacy it has, and the exit code.

    The files of a folder are tables of sites, each read by itself, so that they may differ in what
    the analysis is to show. In secure sums they are read as one table: sites state digests alone.

    Raises
    ------
    ConfigError, RunError
        As ``privet.sim.inline.run_inline``; and where no table is named.
    """
    from privet.core import ConfigError
    from privet.data.sql.cohorts import table_keys
    from privet.data.tables.files import node_files
    from privet.server_apps.report.files import PAGE
    from privet.sim.inline import run_inline, run_tables

    if not paths and "data-path" not in given:
        raise ConfigError("name the tables, or give data-path")
    files = node_files(paths[0]) if len(paths) == 1 else []
    apart = len(paths) > 1
    if files and not {"id-column", "secure-sum"} & given.keys():
        paths, apart = files, True
    name = run_name(given["algorithm"])
    if len(paths) == 1 and not apart:
        given |= table_keys(paths[0])
    finished: Any = run_tables(paths, given, name) if apart else run_inline(given, name)
    table: dict[str, Any] = finished.result.table
    where = [
        f"run folder: {finished.folder}",
        f"page: {finished.folder / PAGE}",
        *(f"{what}: {who}" for what, who in finished.missing.items()),
        f"privacy: {finished.summary['privacy']}",
    ]
    return table, where, finished.result.exit_code


def times_of(texts: str) -> list[float]:
    """Return the times of an option (raises ``ConfigError``)."""
    from privet.core import ConfigError

    try:
        return [float(text) for text in texts.split(",")] if texts.strip() else []
    except ValueError:
        raise ConfigError(
            f"--times {texts}: numbers separated by commas, such as 365,730"
        ) from None
