"""Run given problems, or a whole run config, on the engines of this library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from privet.agents.cohort import FEWEST
from privet.client_apps import client_app
from privet.core import ConfigError, analyses
from privet.core.key import Config
from privet.data import DataError, problem_from_context, table_from_context
from privet.data.frames import table_from_config
from privet.data.sql.cohorts import table_keys
from privet.data.sql.snapshots import held
from privet.data.tables.files import site_name
from privet.kernel.node_rules import ALLOW_RUN_DATA
from privet.server_apps import Finished, execute, read_config
from privet.server_apps.analysis import execute_analysis, sites_of
from privet.server_apps.build import build_federation, build_strategy
from privet.server_apps.planning import read_private_config

from .cohort import CohortGrid
from .engine import InlineGrid
from .grid import NodeConfig
from .trusting import require_colluders, trusting_nodes


def run_inline(
    raw: Mapping[str, Any], run_id: str, *, engine: str = "auto", colluders: int | None = None
) -> Finished:
    """Run a run config in this process.

    ``engine`` is "inline", one agent after the other, "cohort", where agents are batched if
    possible, or "auto", which is the cohort engine unless there are too few. The bits are the same.
    With ``colluders`` the nodes have pinned each other's keys, for noise that agents share.

    Raises
    ------
    ConfigError, RunError
        As ``privet.server_apps.read_config`` and ``execute``.
    """
    with with_rows(raw) as (config, told):
        agents = int(config["num-agents"])
        kind = _kind(engine, agents)
        require_colluders(config, colluders)
        if colluders is None:
            return played(kind(configured_app(), simulated(config), told), config, run_id)
        with TemporaryDirectory() as folder:
            relation = str(config["relation"])
            nodes = trusting_nodes(Path(folder), map(str, range(agents)), colluders, relation)
            return played(kind(configured_app(), nodes, told), config, run_id)


@contextmanager
def with_rows(raw: Mapping[str, Any]) -> Iterator[tuple[Config, Mapping[str, Any]]]:
    """Give the resolved config of a simulated run, and the one that its agents are told.

    They differ where the data are a cohort of a database: agents read its rows, which stay the same
    until the end, from a file.

    Raises
    ------
    ConfigError
        As `simulated_config`, and for a cohort that cannot be read.
    """
    try:
        with held(raw):
            config = simulated_config(raw)
            with held(config) as told:
                yield config, told
    except DataError as error:
        raise ConfigError(str(error)) from None


def simulated(config: Mapping[str, Any]) -> int | list[dict[str, Any]]:
    """Return the nodes of a run, as `privet.sim.grid.LocalGrid` takes them.

    Under ``relation = add-remove`` each declares the number of examples that it has.
    """
    count = int(config["num-agents"])
    if config.get("relation") != "add-remove":
        return count
    if config["algorithm"] in analyses():
        held = [table.frame.rows for table in sites_of(config).tables]
    else:
        held = [problem.num_examples for problem in build_federation(config).problems]
    terms = {"num-partitions": count, ALLOW_RUN_DATA: True, "relation": "add-remove"}
    return [{"partition-id": i, "num-examples": own, **terms} for i, own in enumerate(held)]


def _kind(engine: str, agents: int) -> type[InlineGrid]:
    if engine == "auto":
        return InlineGrid if agents < FEWEST else CohortGrid
    return {"inline": InlineGrid, "cohort": CohortGrid}[engine]


def grid_of(
    algorithm: str,
    problems: Sequence[Any],
    nodes: Sequence[NodeConfig] = (),
    *,
    engine: str = "auto",
    **app: Any,
) -> InlineGrid:
    """Return the engine in this process on which agent i of an algorithm holds ``problems[i]``,
    or the table of that place, of an analysis.

    ``nodes`` are more keys of their node configs, in order; ``engine`` is as in `run_inline`;
    ``app`` are the other arguments of ``client_app``.
    """
    count = len(problems)
    extra = nodes or ({},) * count
    return _kind(engine, count)(
        app_of(algorithm, problems, **app),
        [{"partition-id": i, "num-partitions": count, **extra[i]} for i in range(count)],
    )


def app_of(algorithm: str, problems: Sequence[Any], **options: Any) -> ClientApp:
    """Return the ClientApp of an algorithm that gives every node its own problem."""
    return client_app(
        algorithm, lambda context: problems[int(context.node_config["partition-id"])], **options
    )


def run_ray(
    raw: Mapping[str, Any],
    run_id: str,
    *,
    actors: int | None = None,
    address: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
) -> Finished:
    """Run a run config on the Ray engine.

    ``actors``, ``address`` and ``runtime_env`` are those of ``privet.sim.ray.engine.RayGrid``. On a
    cluster every host has this library, and the data at the same ``data-path``.

    Raises
    ------
    ConfigError, RunError
        As ``privet.server_apps.read_config`` and ``execute``, and where Ray does not start.
    """
    from .ray.engine import RayGrid

    with with_rows(raw) as (config, told):
        made = RayGrid(
            *(configured_app, simulated(config), told),
            actors=actors,
            address=address,
            runtime_env=runtime_env,
        )
        with made as grid:
            return played(grid, config, run_id)


def run_tables(paths: Sequence[str], raw: Mapping[str, Any], run_id: str) -> Finished:
    """Run an analysis of several tables in this process, each that of a site of its own.

    Raises
    ------
    ConfigError, RunError
        As ``run_inline``.
    """
    config = read_config({**raw, "num-agents": len(paths)})
    tables = []
    strategy: Any = build_strategy(config)
    for path in paths:
        try:
            tables.append(table_from_config({**config, **table_keys(path)}))
            strategy.reads_as(tables[-1])  # one line here, in place of one for each site
        except DataError as error:
            raise ConfigError(str(error)) from None
    name = str(config["algorithm"])
    nodes = [{"agent": site_name(path)} for path in paths]
    if len({one["agent"] for one in nodes}) < len(nodes):
        nodes = [{"agent": path} for path in paths]
    grid = grid_of(name, tables, nodes, engine="inline")
    return execute_analysis(grid, config, run_id)


def simulated_config(raw: Mapping[str, Any]) -> Config:
    """Return the resolved config of a simulated run; an analysis has a site for each id.

    Raises
    ------
    ConfigError
        As ``privet.server_apps.read_config``, and for a table that cannot be read.
    """
    config = read_private_config(raw, {})
    if config["algorithm"] not in analyses() or config["num-agents"]:
        return config
    return Config({**config, "num-agents": sites_of(config).count})


def played(grid: Grid, config: Config, run_id: str) -> Finished:
    """Execute a config: that of a run, or of an analysis."""
    if config["algorithm"] in analyses():
        return execute_analysis(grid, config, run_id)
    return execute(grid, config, run_id)


def configured_app() -> ClientApp:
    """Return the ClientApp whose agents take their problems from the run config."""
    return client_app(None, problem_from_context, table_fn=table_from_context)
