"""FedPDM with a secure sum: the server sees the sum of the y_i and no y_i.

Its mean (23) needs nothing else where all participants send the same coordinates: all of them, or
k that are drawn by one seed for the whole round, which travels with the broadcast. The server
holds no duals; an agent that loses a dual begins again with lam_i = 0, as the paper's would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.wire import ConfigError
from privet.wire.ring import Shapes
from privet.wire.selection import budget, index_seed, rand_k

from . import fed_pdm
from .fed_pdm import State
from .half import Arrays, GroupSum, Vector


@dataclass(frozen=True)
class Server(fed_pdm.Server):
    """Server half of FedPDM for masked uploads; parameters as in ``fed_pdm.Server``.

    Parameters
    ----------
    seed : int
        The run's, for the shared index sets of rand-k.

    Raises
    ------
    ConfigError
        If the settings need more than sums over one index set.
    """

    secure_sum: ClassVar[bool] = True
    restarts: ClassVar[bool] = True

    seed: int = 0

    def __post_init__(self) -> None:
        sparsifier = self.agent_settings.get("sparsifier", "none")
        if sparsifier not in ("none", "rand-k"):
            raise ConfigError(
                f"secure-sum = true: not with sparsifier = {sparsifier!r}: agents choose different "
                "coordinates (none and rand-k do not)"
            )
        if self.aggregation == "table":
            raise ConfigError(
                "secure-sum = true: not with aggregation = 'table': the server would have to know "
                "every agent's dual"
            )

    def initialise(self, start: Vector, count: int) -> State:
        """Return x0 = start."""
        return State(start, start, np.empty((0, 0), start.dtype))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state as it is: nothing is kept of an agent."""
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x0hat = top_k'(x0) and, with rand-k, the seed of this round's index set."""
        state, arrays = super().broadcast(state)
        state.drawn += 1
        if self._count(state) == state.center.size:
            return state, arrays
        return state, {**arrays, "indices": np.array(self._index_seed(state), np.uint64)}

    def _index_seed(self, state: State) -> int:
        return index_seed(self.seed, "", state.drawn)

    def _count(self, state: State) -> int:
        dim = state.center.size
        settings = self.agent_settings
        if settings.get("sparsifier", "none") == "none":
            return dim
        return budget(settings["uplink-k"], settings["alpha-u"], dim)

    def summands(self, state: State) -> Shapes:
        """Return y_i: all coordinates (d,), or those of the round's index set (k,)."""
        return {"y": (self._count(state),)}

    def fold_sums(self, state: State, sums: Mapping[str, GroupSum]) -> State:
        """Take the mean of the uploads, 0 where nothing was sent, and its prox."""
        active = sum(len(found.positions) for found in sums.values())
        if not active:
            return state
        total: Any = sum(found.arrays["y"] for found in sums.values())
        dim, k = state.center.size, self._count(state)
        mean = np.zeros(dim, state.center.dtype)
        where = slice(None) if k == dim else rand_k(self._index_seed(state), dim, k)
        mean[where] = total / active
        center = self.h.prox(mean, 1.0 / self.rho)
        gap = center - state.center
        state.residual = float(gap @ gap)
        state.center = center
        return state

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return nothing: an agent's dual is known to the agent alone."""
        return None

    def dump(self, state: State) -> Arrays:
        """Return the state as arrays."""
        return {**super().dump(state), "drawn": np.array(state.drawn)}

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        state = super().load(arrays)
        state.drawn = int(arrays["drawn"])
        return state
