"""Sites with tables of their own, whose columns one of them may have otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.data import problem_from_context
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT

COLUMNS = ("age", "sodium", "ward", "died")
NAMES = ("bern", "graz", "linz", "nice")
SCHEMA = '[columns]\nage = [0, 120]\nsodium = [100, 180]\nward = ["a", "b"]\ndied = ["0", "1"]\n'
PERMUTED = '[columns]\ndied = ["0", "1"]\nward = ["a", "b"]\nsodium = [100, 180]\nage = [0, 120]\n'


def rows(count: int, seed: int) -> dict[str, list[Any]]:
    """Return the columns of a site: the older and the lower in sodium die more often."""
    draws = np.random.default_rng(seed)
    age = draws.normal(50 + 10 * seed, 12, count).round(1).clip(0, 120)
    sodium = draws.normal(138, 4, count).round(1)
    ward = draws.integers(0, 2, count)
    score = (age - 60) / 12 - (sodium - 138) / 4 + 0.8 * ward
    died = draws.random(count) < 1 / (1 + np.exp(-score))
    return {
        "age": age.tolist(),
        "sodium": sodium.tolist(),
        "ward": ["ab"[one] for one in ward],
        "died": [str(int(one)) for one in died],
    }


def table(
    columns: Mapping[str, Sequence[Any]],
    order: Sequence[str] = COLUMNS,
    names: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
) -> str:
    """Return a site's CSV with columns in an order, some renamed and some texts replaced."""
    named, recoded = names or {}, values or {}
    lines = [",".join(named.get(name, name) for name in order)]
    for row in zip(*(columns[name] for name in order), strict=True):
        cells = map(str, row)
        lines.append(
            ",".join(
                recoded.get(f"{name}={cell}", cell) for name, cell in zip(order, cells, strict=True)
            )
        )
    return "\n".join(lines) + "\n"


def nodes(
    folder: Path, tables: Sequence[str], schemas: Sequence[str] = (), **keys: Any
) -> list[dict[str, Any]]:
    """Write the files of sites, and return the configs of their nodes, of a written weight."""
    folder.mkdir(exist_ok=True)
    configs = []
    for number, text in enumerate(tables):
        name = NAMES[number]
        (folder / f"{name}.csv").write_text(text)
        config = {
            "partition-id": number,
            "num-partitions": len(tables),
            "agent": name,
            "dataset": "csv",
            "data-path": str(folder / f"{name}.csv"),
            "label-column": "died",
            "partition": "none",
            "regularizer-weight": 0.05,
            **keys,
        }
        if schemas:
            (folder / f"{name}.toml").write_text(schemas[number])
            config["schema"] = str(folder / f"{name}.toml")
        configs.append(config)
    return configs


def train(
    configs: list[dict[str, Any]],
    rounds: int = 20,
    *,
    engine: Callable[..., InlineGrid] = InlineGrid,
    dim: int = 4,
    **options: Any,
) -> tuple[NDArray[Any], FedPLT]:
    """Return the model of a run of these nodes, and its strategy."""
    strategy = FedPLT(**{"num_agents": len(configs), "min_agents": 1, **options})
    start = ArrayRecord({"x": Array(np.zeros(dim))})
    grid = engine(client_app("fed-plt", problem_from_context), configs)
    result = strategy.start(grid, start, num_rounds=rounds, log_rounds=False)
    return result.arrays["x"].numpy(), strategy


def turned_away(strategy: FedPLT) -> list[str]:
    """Return why nodes of a run were turned away, in the order of the nodes."""
    assert strategy.session is not None
    rejected = strategy.session.roster.rejected
    return [rejected[node] for node in sorted(rejected)]
