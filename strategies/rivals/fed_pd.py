"""FedPD: federated primal-dual algorithm, the server half.

X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu, "FedPD: A Federated Learning Framework with Adaptivity
to Non-IID Data" (IEEE Transactions on Signal Processing, 2021), Algorithm 1 with Oracle I, and
communication in every round (skipping probability 0). With eta = ``rho``, all agents do

    x_i   <- N_e gradient steps on f_i(x) + <lam_i, x - x0> + ||x - x0||^2 / (2 eta), from x_i
    lam_i <- lam_i + (x_i - x0) / eta
    x0    <- mean over all agents of  x_i + eta lam_i

Solved exactly this is Douglas-Rachford splitting where Fed-PLT is Peaceman-Rachford. The paper
sends x_i + eta lam_i; here x_i travels, one vector as well, and both sides compute lam_i. Absent
agents (not in the paper) keep and count with their old x_i and lam_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.wire import Settings, UploadError, digest, finite
from privet.wire.agreement import ascend

from ..cost import Cost
from ..half import Arrays, ServerHalf, Vector
from .base import RIVAL_KEYS, RivalServer, RivalStrategy, State, apart, mean_row
from .dp_fedsgd import checked


@dataclass(frozen=True)
class Server(RivalServer):
    """Server half of FedPD."""

    name: ClassVar[str] = "fed-pd"

    rho: float = 1.0

    def rows(self, start: Vector) -> Arrays:
        """Return x_i = start and lam_i = 0."""
        return {"x": start, "lam": np.zeros_like(start)}

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check x_i and return it with the lam_i that follows."""
        x = checked(upload, "x", state.x)
        with np.errstate(all="ignore"):
            lam = ascend(state.own["lam"][position], x, state.x, 1.0 / self.rho)
        if not finite(lam):
            raise UploadError("upload holds numbers that are too large")
        return {"x": x, "lam": lam}, digest(lam)

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Take the participants' rows and the next x0."""
        if not uploads:
            return state
        state.residual = apart(uploads, state.x)
        for position, arrays in uploads.items():
            state.own["x"][position] = arrays["x"]
            state.own["lam"][position] = arrays["lam"]
        state.x = mean_row(state.own["x"]) + state.x.dtype.type(self.rho) * mean_row(
            state.own["lam"]
        )
        return state

    def models(self, state: State) -> Arrays:
        """Return ``last`` (x0) and ``mean`` (mean of x_i over all agents)."""
        return {"last": state.x, "mean": mean_row(state.own["x"])}


class FedPD(RivalStrategy):
    """FedPD; keys: ``rho`` (eta of the paper) and those of the local steps.

    ``step_size`` 0 lets every agent take 2 / (smoothness + strong convexity + 2/rho) of its own.
    """

    algorithm: ClassVar[str] = "fed-pd"
    keys: ClassVar[tuple[str, ...]] = (*RIVAL_KEYS, "rho")
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=2, shared=1)

    @staticmethod
    def server(config: Mapping[str, Any], settings: Settings) -> ServerHalf[Any]:
        """Return the server half."""
        return Server(settings, config["rho"])
