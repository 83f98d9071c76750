"""What the private presets give, and what each of their values is worth.

    .venv/bin/python -m results.private_presets docs FOLDER

FOLDER has mnist_20k.npz and the files of Adult. Every finished run is a line of
docs/results/private-presets.jsonl; the tables of docs/choose.md are written at the end.
"""

from __future__ import annotations

import argparse
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from privet.cli.presets import load_preset
from privet.data import Federation, federation_from_config
from privet.server_apps import read_config
from privet.server_apps.build import build_strategy, starting_model
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from results.marked import fill
from studies.runs import Runs
from studies.statistics import Estimate, difference

SEEDS = range(1, 6)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DATA = {
    "private-tabular": {"dataset": "adult", "data-path": ""},
    "private-images": {"dataset": "mnist", "data-path": "mnist_20k.npz"},
}
"""What stands in for a hospital's own records, in the folder of the data."""


def variants(preset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what is changed, one thing at a time; a step follows from clip and momentum."""
    rounds, clip, step = (preset[key] for key in ("num-server-rounds", "clip", "step-size-base"))
    fall = {"budget-schedule": "geometric", "budget-ratio": 0.3 ** (1 / (rounds - 1))}
    return {
        "as it is": {},
        "noise of the last round .3 of the first's": fall,
        "no momentum, step x 10": {"momentum": 0.0, "step-size-base": 10 * step},
        "half of the agents in a round": {"participation": "fraction", "fraction": 0.5},
        "float64": {"dtype": "float64"},
        "half the clip": {"clip": clip / 2, "step-size-base": 2 * step},
        "twice the clip": {"clip": 2 * clip, "step-size-base": step / 2},
        "half the rounds": {"num-server-rounds": rounds // 2},
        "twice the rounds": {"num-server-rounds": 2 * rounds},
        "half the step": {"step-size-base": step / 2},
        "twice the step": {"step-size-base": 2 * step},
    }


@lru_cache(maxsize=4)
def federation_of(seed: int, keys: tuple[tuple[str, Any], ...]) -> Federation:
    config = dict(keys)
    return federation_from_config({**config, "partition-seed": seed}, config["num-agents"])


def play(folder: Path, *, preset: str, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the test accuracy of a run of a preset, with what is changed of it."""
    own = DATA[preset]
    given = {**load_preset(preset), **own, "data-path": str(folder.absolute() / own["data-path"])}
    config = read_config({**given, **changes, "seed": seed})
    federation = federation_of(seed, tuple(sorted(config.items())))
    result = build_strategy(config).start(
        grid_of(config["algorithm"], federation.problems),
        starting_model(config, federation.dim),
        num_rounds=config["num-server-rounds"],
        log_rounds=False,
    )
    assert result.privacy is not None
    assert result.privacy.private
    accuracy = federation.evaluate(result.arrays["x"].numpy())["accuracy"]
    return {"accuracy": accuracy, "spent": result.privacy.epsilon}


def tables(runs: Runs) -> list[str]:
    """Return what the presets give at each epsilon, and by how much each variant differs."""

    def found(preset: str, **changes: Any) -> list[float]:
        return [runs(preset=preset, seed=seed, **changes)["accuracy"] for seed in SEEDS]

    lines = [f"| test accuracy | {' | '.join(f'epsilon {one:g}' for one in EPSILONS)} |"]
    lines.append("|---" * (len(EPSILONS) + 1) + "|")
    for preset, own in DATA.items():
        cells = [Estimate.of(found(preset, **{"target-epsilon": one})) for one in EPSILONS]
        said = " | ".join(f"{one.mean:.3f} ± {one.half_width:.3f}" for one in cells)
        lines.append(f"| `{preset}` on {own['dataset']} | {said} |")
    changed = {preset: variants(load_preset(preset)) for preset in DATA}
    lines += ["", f"| changed | {' | '.join(f'`{preset}`' for preset in DATA)} |"]
    lines.append("|---" * (len(DATA) + 1) + "|")
    for name in next(iter(changed.values())):
        if name == "as it is":
            continue
        gaps = [
            difference(found(preset, **changed[preset][name]), found(preset)) for preset in DATA
        ]
        said = " | ".join(f"{one.mean:+.3f} ± {one.half_width:.3f}" for one in gaps)
        lines.append(f"| {name} | {said} |")
    return lines


def main() -> None:
    """Play what is missing; write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("docs", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    quiet()
    file = arguments.docs / "results" / "private-presets.jsonl"
    runs = Runs(file, partial(play, arguments.folder))
    fill(arguments.docs / "choose.md", "tables", tables(runs))


if __name__ == "__main__":
    main()
