"""The measures of graph federated learning in addition to the loss: deviations and epsilon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .account import Spending

Vector = NDArray[Any]


@dataclass
class GflMeasures:
    """Mean-square deviations from the centralised optimum, and eps(i) of the stated adversary.

    Parameters
    ----------
    optimum : callable
        Returns w^o, or None if there is none; called once.
    units : int
        P; a server that does not host all of them does not know the centroid.
    spending : Spending, optional
        None if the messages between servers are not certified.
    """

    optimum: Callable[[], Vector | None]
    units: int
    spending: Spending | None = None

    @cached_property
    def _optimum(self) -> Vector | None:
        return self.optimum()

    def __call__(self, round_: int, models: Mapping[str, Vector]) -> dict[str, float]:
        """Return the measures of a round.

        ``msd-centroid`` is ||w_c - w^o||^2, eq. (58), only where all units are hosted here;
        ``msd-units`` the mean of ||w_p - w^o||^2 over the units hosted here, eq. (59);
        ``epsilon-links`` the epsilon, at the run's delta, of all rounds so far against an observer
        of the messages between servers.
        """
        best = self._optimum
        measures: dict[str, float] = {}
        if best is not None:
            hosted = [model for name, model in models.items() if name.startswith("unit-")]
            if len(hosted) == self.units:
                measures["msd-centroid"] = _square(models["last"] - best)
            measures["msd-units"] = float(np.mean([_square(model - best) for model in hosted]))
        if self.spending is not None:
            measures["epsilon-links"] = self.spending.after(round_)
        return measures


def _square(vector: Vector) -> float:
    return float(vector @ vector)
