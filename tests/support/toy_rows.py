"""Plays runs of a loss and a partition that are a file each in folders besides the library's own.

``python toy_rows.py OUT`` prints JSON: what the runs came to, and the lines of refusals.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MORE = {
    "privet.problems.losses": HERE / "toy_losses",
    "privet.data.partitions": HERE / "toy_partitions",
}


class LongerFolders:
    """As if the toy files lay in the library's folders."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in MORE else None
        if spec is not None and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(MORE[name]))
        return spec


def main(folder: str) -> None:
    sys.meta_path.insert(0, LongerFolders)  # type: ignore[arg-type]
    from privet.core import ConfigError
    from privet.data import problem_from_config
    from privet.server_apps.config import read_config, table
    from privet.sim.inline import run_inline

    base = {"dataset": "regression", "partition": "iid", "num-agents": 3, "output-dir": folder}
    runs = {
        "loss": {**base, "loss": "toy", "toy-weight": 4.0, "num-server-rounds": 2},
        "partition": {**base, "partition": "toy-blocks", "toy-block": 20, "num-server-rounds": 2},
    }
    said = []
    for wrong in ({"toy-weight": 2.0}, {"toy-block": 7}, {"loss": "toy", "toy-weight": 0.0}):
        try:
            read_config({**base, **wrong})
        except ConfigError as error:
            said.append(str(error))
    problems = {
        name: [problem_from_config(config, agent, 3) for agent in range(3)]
        for name, config in runs.items()
    }
    print(
        json.dumps(
            {
                "rounds": [len(run_inline(runs[name], name).result.history) for name in runs],
                "counts": [one.num_examples for one in problems["partition"]],
                "weights": [one.constants for one in problems["loss"]],
                "flattest": problems["loss"][0].moduli.strong_convexity,
                "keys": sorted(name for name in table() if name.startswith("toy-")),
                "said": said,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
