"""FedLin: gradient-corrected local steps, the server half.

A. Mitra, R. Jaafar, G. J. Pappas, H. Hassani, "Linear Convergence in Federated Learning: Tackling
Client Heterogeneity and Sparse Gradients" (2021), Algorithm 1 without sparsification. One iteration
is two exchanges, so it is two of this library's rounds, in turn:

    round A   x goes out, g_i = grad f_i(x) comes back:    g <- mean over all agents of g_i
    round B   g goes out, w <- x, then N_e times  w <- w - eta (grad f_i(w) - g_i + g), and
              x_i = w comes back:                          x <- mean over those x_i

The first step of B needs no new gradient, w = x - eta g, so an iteration evaluates N_e of them.
Absent agents (not in the paper): in A their old g_i counts, in B the mean is over those present;
after an A with absences x travels again in B, because not everybody has seen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.wire import Settings, digest

from ..cost import Cost
from ..half import Arrays, ServerHalf, Vector
from .base import RivalServer, RivalStrategy, State, apart, mean_row
from .dp_fedsgd import checked, mean_of


@dataclass(frozen=True)
class Server(RivalServer):
    """Server half of FedLin.

    ``extra`` holds ``g`` (d,) in round B, an empty array in A, and ``missed`` (1 where round A went
    without somebody).
    """

    name: ClassVar[str] = "fed-lin"

    def rows(self, start: Vector) -> Arrays:
        """Return g_i = 0."""
        return {"g": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x = start before a round A."""
        state = super().initialise(start, count)
        state.extra = {"g": start[:0], "missed": np.array(0)}
        return state

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent of g_i = 0 that has not seen x."""
        state.extra["missed"] = np.array(1)
        return super().admit(state, position, start)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at g_i = 0 that has not seen x."""
        state.extra["missed"] = np.array(1)
        return super().renew(state, position, start)

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x in round A, g in round B."""
        if not state.extra["g"].size:
            return state, {"x": state.x}
        again = {"x": state.x} if state.extra["missed"] else {}
        return state, {"g": state.extra["g"], **again}

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return x and g_i."""
        return {"x": state.x, "g": state.own["g"][position]}

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check g_i or x_i."""
        if not state.extra["g"].size:
            g = checked(upload, "g", state.x)
            return {"g": g}, digest(g)
        x = checked(upload, "x", state.x)
        with np.errstate(over="ignore"):
            return {"x": x}, digest(x - state.own["g"][position])

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """End round A with g, round B with the next x."""
        if not uploads:
            return state
        if not state.extra["g"].size:
            for position, arrays in uploads.items():
                state.own["g"][position] = arrays["g"]
            missed = np.array(int(len(uploads) < len(state.own["g"])))
            state.extra = {"g": mean_row(state.own["g"]), "missed": missed}
            return state
        state.residual = apart(uploads, state.x)
        state.x = mean_of(uploads, "x", state.x)
        state.extra = {"g": state.x[:0], "missed": np.array(0)}
        return state


class FedLin(RivalStrategy):
    """FedLin; keys: those of the local steps. One iteration is two rounds."""

    algorithm: ClassVar[str] = "fed-lin"
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=1, shared=2, exchanges=2, up=2, down=2)

    @staticmethod
    def server(config: Mapping[str, Any], settings: Settings) -> ServerHalf[Any]:
        """Return the server half."""
        return Server(settings)
