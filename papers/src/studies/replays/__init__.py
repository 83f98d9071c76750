"""Worked instances played through the real Strategy, ClientApp and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError

from .gfl import play_gfl
from .instance import Found, Instance, load_instance
from .primal_dual import play_dp_iadmm, play_fed_pdm, play_fed_plt

REPLAYERS: Mapping[str, Callable[[Instance], Iterator[Found]]] = {
    "dp-iadmm": play_dp_iadmm,
    "fed-pdm": play_fed_pdm,
    "fed-plt": play_fed_plt,
    "gfl": play_gfl,
}
"""What yields, after every round, all copies of the arrays that an instance may give."""

__all__ = ["Instance", "Replay", "load_instance", "replay_file"]


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay."""

    file: str
    algorithm: str
    rounds: int
    max_abs_error: float

    def to_dict(self) -> dict[str, Any]:
        """Return the line that ``privet replay`` prints."""
        error = self.max_abs_error
        return {
            "file": self.file,
            "algorithm": self.algorithm,
            "rounds": self.rounds,
            "max-abs-error": error if np.isfinite(error) else "inf",
        }


def replay_file(path: Path) -> Replay:
    """Replay one file and return the largest absolute difference over all rounds and arrays.

    Raises
    ------
    ConfigError
        If the file cannot be used or is of an unknown algorithm.
    """
    instance = load_instance(path)
    if instance.algorithm not in REPLAYERS:
        known = ", ".join(REPLAYERS)
        raise ConfigError(f"{path}: unknown algorithm {instance.algorithm!r}: known are {known}")
    worst, played = 0.0, REPLAYERS[instance.algorithm](instance)
    for expected, found in zip(instance.rounds, played, strict=True):
        for name in instance.compare:
            wanted = np.asarray(expected[name], float)
            worst = max(worst, *(_difference(array, wanted) for array in found[name]))
    return Replay(str(path), instance.algorithm, len(instance.rounds), worst)


def _difference(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    gap = np.abs(found - wanted)
    # A difference that is not a number is as bad as any.
    return float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0))
