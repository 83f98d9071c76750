"""The grids of FedPDM's Figures 7 and 8, widened until no best setting is at an end: 30 rounds.

    .venv/bin/python -m results.fedpdm_grids DATA

It goes on from studies/fedpdm.toml, and prints what belongs there in place of its grids and best
settings. Where a best setting is at an end, it and its neighbours are tried anew and what is
beyond; the others stay. Names of comparisons after DATA search those alone. The draw is 1000, and
the accuracy is that on examples which no agent has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from privet.core.threads import pin_blas_threads
from privet.sim.logs import quiet
from studies.fed_pdm import GRIDS, RIVAL_EPSILON, arm
from studies.search import Grid, Settings, ends, widened
from studies.study import Options, tuned


def search_of(comparison: str, algorithm: str, options: Options) -> tuple[Settings, Grid]:
    """Return the best settings of an algorithm, and all that was tried of each."""
    old, best = GRIDS[comparison][algorithm], tuned("fedpdm", comparison, algorithm)
    if not ends(best, old):
        return best, old
    data = comparison.partition(",")[0]
    epsilon = RIVAL_EPSILON[data] if ", private" in comparison else 0.0
    loss = "(41)" if comparison.endswith("(41)") else "softmax"
    case = arm(options, "", data, algorithm, epsilon=epsilon, loss=loss)[0]
    near = {key: neighbours(axis, best[key]) for key, axis in old.items()}
    search = {"grid": near, "draws": 1, "workload": {"validation": True}}
    found, grid = widened(case, search)
    return found, {key: sorted({*axis, *grid[key]}) for key, axis in old.items()}


def neighbours(axis: Sequence[float], value: float) -> list[float]:
    """Return the value of an axis that is meant, and those beside it."""
    own = sorted(axis)
    place = min(range(len(own)), key=lambda at: abs(own[at] - value))
    return own[max(place - 1, 0) : place + 2]


def lines_of(comparison: str, options: Options) -> list[str]:
    """Return a comparison's two tables of the data file."""
    name = f'"{comparison}"' if "," in comparison else comparison
    grids, best = [f"[grids.{name}]"], [f"[tuned.{name}]"]
    for algorithm in GRIDS[comparison]:
        found, grid = search_of(comparison, algorithm, options)
        axes = [f"{key} = {list(axis)}" for key, axis in grid.items()]
        values = [f"{key} = {float(found[key])!r}" for key in grid]
        grids.append(f"{algorithm} = {{ {', '.join(axes)} }}")
        best.append(f"{algorithm} = {{ {', '.join(values)} }}")
        at = ends(found, grid)
        print(f"# {comparison}, {algorithm}: {found}, at an end: {at}", file=sys.stderr, flush=True)
    return [*grids, "", *best, ""]


def main(arguments: Sequence[str]) -> None:
    """Print the tables of the comparisons that are named, or of all."""
    folder, *names = arguments
    pin_blas_threads()
    quiet()
    options = Options(data_path=Path(folder).resolve())
    for comparison in names or GRIDS:
        print("\n".join(lines_of(comparison, options)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
