"""Privacy-critical: the problem of a Flower node's agent, and the rules for naming its data."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from privet.core.assignments import with_more
from privet.core.files import state_path
from privet.kernel import NodeRules, Told
from privet.problems import LinearModel
from privet.wire.flower_internals import held_by

from .dataset import UNUSABLE, DataError
from .frames import SiteTable, dealt_from_config, table_from_config
from .loaders import Changes, changes
from .meaning import ENCODING_RECORD
from .prepared import forget
from .problem import problem_from_config
from .settings import DATA_KEYS, GENERATED, DataSettings, require_used
from .sql.cohorts import SQL
from .sql.snapshots import of_node


def problem_from_context(context: Context) -> LinearModel[Any]:
    """Return f_i of the node.

    The agent's number is ``partition-id``; the data are dealt to ``num-agents`` agents, or to
    ``num-partitions`` where the run config does not set it. A node that sets any data key itself
    takes none from the run config: which records it trains on, and how they are dealt, is then
    its operator's choice alone. For a node without any, a run config may name the data sets
    that need no path, of a size that costs the node little; a path, a table of the hub or more
    only where the operator sets ``allow-run-data = true`` in the node config, and in simulations.

    Of ``dataset = sql`` the run config may name the cohort of the node's own file, and nothing
    else of it; the node keeps the rows beside its ``state-path`` as long as the run lasts.

    A node with a ``state-path`` keeps the examples, as they were read and dealt, in the folder of
    that path and ``.data``, unless ``keep-data = false``, which also deletes what is there.

    Raises
    ------
    DataError
        If the node has no ``partition-id``, the run config names a path and may not, the node
        names a file that its ``dataset`` does not read, or data or keys cannot be used. Nothing is
        opened before the first three are checked.
    ConfigError
        A ``state-path`` that is not absolute.
    """
    node_config = context.node_config
    config, count = _named(context)
    if not (DATA_KEYS & node_config.keys() or _may_name_data(node_config)):
        _require_small(config, count)
    own = bool(node_config.get("data-path"))
    problem = problem_from_config(
        *(config, int(node_config["partition-id"]), count),
        own=own,
        folder=_folder(node_config),
        agreed=agreed_encoding(context),
        changed=None if own else _of_run(context, config),
    )
    if (
        node_config.get("data-path")
        and node_config.get("relation") == "add-remove"
        and _shares(config)
    ):
        problem = copy.copy(problem)
        problem.data_dependent = problem.data_dependent or _RE_DEALT
    return problem


def table_from_context(context: Context) -> SiteTable:
    """Return the table of the node's site, for analyses.

    It is the node's own where the node sets any data key, with all of its rows unless it says how
    they are dealt; else the rows that a simulated run deals to the node.

    Raises
    ------
    DataError
        As `problem_from_context`.
    """
    own = DATA_KEYS & context.node_config.keys()
    if own and context.node_config.get("partition", "none") == "none":  # it needs no partition-id
        return table_from_config(_own(context))
    config, count = _named(context)
    if not own and config.get("dataset") == DataSettings().dataset:
        del config["dataset"]  # flwr run sends every key, this one at the default of a training
    return dealt_from_config(config, count).tables[int(context.node_config["partition-id"])]


def _named(context: Context) -> tuple[dict[str, Any], int]:
    """Return the config that names a node's data, and to how many agents they are dealt.

    Raises
    ------
    DataError
        If the node has no ``partition-id``, or the run config names a path and may not.
    """
    node_config = context.node_config
    if "partition-id" not in node_config:
        raise DataError(Told.PARTITION)
    if DATA_KEYS & node_config.keys():
        config = _own(context)
    elif (asked := with_more(context.run_config)).get("data-path") and not _may_name_data(
        node_config
    ):
        raise DataError(Told.RUN_DATA, told=Told.RUN_DATA)
    else:
        config = {**asked, **node_config}
        if config.get("dataset") == SQL:  # only its operator says which queries there are
            why = Told.NO_DATABASE if _simulated_by_flower(node_config) else Told.RUN_DATA
            raise DataError(why, told=why)
    return config, int(config.get("num-agents", 0)) or int(node_config.get("num-partitions", 0))


def _own(context: Context) -> dict[str, Any]:
    """Return the config of a node that names its own data; of a database, the rows of the run.

    Raises
    ------
    DataError
        If they cannot be read, or it names a file that its ``dataset`` does not read.
    """
    config = dict(context.node_config)
    require_used(config)
    return of_node(context) if config.get("dataset") == SQL else config


def agreed_encoding(context: Context) -> str:
    """Return the encoding that the agents of the run have agreed on, as the node keeps it; empty
    where that is its own."""
    state = getattr(context, "state", None)  # that of a function's caller may have none
    record: Any = held_by(state).get(ENCODING_RECORD) if state else None
    return "" if record is None else str(record["text"])


def _of_run(context: Context, config: Mapping[str, Any]) -> Changes:
    """Return the stamps of the files that a run's data are dealt from, looked at once a run: its
    agents may be many, and so may the files."""
    run, paths = getattr(context, "run_id", 0), [config.get("data-path"), config.get("schema")]
    return _looked_at(run, *[str(path or "") for path in paths])


@lru_cache(maxsize=1)
def _looked_at(run_id: int, *paths: str) -> Changes:
    return changes(*paths)


def _shares(config: Mapping[str, Any]) -> bool:
    """Whether removing a record from the file changes more than its own contribution."""
    return config.get("partition", "label") != "none" or config.get("divisor") == "federation"


_MOST_AGENTS, _MOST_NUMBERS = 1_000, 1 << 21


def _require_small(config: Mapping[str, Any], count: int) -> None:
    """Refuse data of a run config that would cost the node more than a message may.

    A node makes the examples of all agents, and deals them, before any rule is asked.

    Raises
    ------
    DataError
    """
    settings = DataSettings.from_config(config)
    rows = features = 0
    if settings.dataset in GENERATED:
        each, features = settings.examples_per_agent, settings.features
        # Each agent of a regression has a covariance of its own.
        rows = count * (max(each, features) if settings.dataset == "regression" else each)
    if count > _MOST_AGENTS or rows * features > _MOST_NUMBERS:
        raise DataError(
            f"the run config asks for {count} agents' data, {rows * features} numbers: a node "
            f"without data of its own makes those of {_MOST_AGENTS} agents at most, "
            f"{_MOST_NUMBERS} numbers; allow-run-data = true in its config allows more"
        )


_RE_DEALT = (
    "relation = add-remove needs partition = none and not divisor = federation: where a record "
    "goes, the others are dealt or divided otherwise"
)


def _may_name_data(node_config: Mapping[str, Any]) -> bool:
    """Whether a run config may name the file or table of the hub that this node opens."""
    return _rules(node_config).allow_run_data or _simulated_by_flower(node_config)


def _rules(node_config: Mapping[str, Any]) -> NodeRules:
    try:
        return NodeRules.from_node_config(node_config)
    except ValueError as error:
        raise DataError(str(error), told=UNUSABLE) from None


def _folder(node_config: Mapping[str, Any]) -> Path | None:
    """Return where this node keeps its prepared examples; None where it keeps none."""
    path = state_path(node_config)
    if path is None:
        return None
    folder = path.with_name(f"{path.name}.data")
    if _rules(node_config).keep_data:
        return folder
    forget(folder)
    return None


def _simulated_by_flower(node_config: Mapping[str, Any]) -> bool:
    """Whether this is a node of Flower's own simulation, in which nothing has a node config.

    Its nodes have the two keys that Flower gives them and live in Ray actors of the process that
    is also the coordinator. A SuperNode runs its ClientApp in a plain process, whatever message or
    run config it gets.
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or node_config.keys() != {"partition-id", "num-partitions"}:
        return False
    return bool(ray.is_initialized() and ray.get_runtime_context().get_actor_id())
