"""TAMUNA: local training with partial participation, the server half.

L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik, "TAMUNA: Doubly Accelerated Distributed
Optimization with Local Training, Compression, and Partial Participation" (2023), Algorithm 1. A
cohort of c of the n agents is drawn, and with it a number of steps L, geometric of mean 1/p:

    agent    w <- x,  L times  w <- w - gamma (grad f_i(w) - h_i),   x_i = w
    server   x <- mean over the cohort of x_i
    agent    h_i <- h_i + (eta / gamma) (x - x_i)        for the cohort; the others keep h_i

Here p = 1 / ``local-epochs``; eta is ``dual-step-size``, by default the largest the paper's theory
allows, p n (c - 1) / (c (n - 1)), which is p when all take part. L is drawn by every agent from a
public stream of the seed and the round (``privet.wire.agreement.local_steps``), the same for all.
The sparsification of the uploads (s of the paper) is off: s = c, every coordinate of every x_i
counts. A cohort of one (c = 1) learns no h_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from privet.wire import Settings

from ..cost import Cost
from ..half import ServerHalf
from .base import RIVAL_KEYS, RivalStrategy
from .control_variates import ControlledServer


@dataclass(frozen=True)
class Server(ControlledServer):
    """Server half of TAMUNA.

    Parameters
    ----------
    probability : float
        p, the reciprocal of the mean number of local steps.
    gamma : float
        The local step size.
    eta : float
        Step size of the control variates; 0 takes the largest that theory allows.
    """

    name: ClassVar[str] = "tamuna"

    probability: float = 0.1
    gamma: float = 0.1
    eta: float = 0.0

    def rate(self, count: int, total: int) -> float:
        """Return eta / gamma."""
        if self.eta > 0:
            return self.eta / self.gamma
        largest = total * (count - 1) / (count * (total - 1)) if total > 1 else 1.0
        return self.probability * largest / self.gamma


class Tamuna(RivalStrategy):
    """TAMUNA; keys: ``dual_step_size`` (eta; 0 takes the theory's) and those of the local steps.

    ``local_epochs`` is the mean number of local steps. Absent agents keep their h_i and do not
    count in the mean. One that missed rounds is sent its h_i besides x, two vectors down; the
    paper's agents receive two as well, x before and after their round.
    """

    algorithm: ClassVar[str] = "tamuna"
    keys: ClassVar[tuple[str, ...]] = (*RIVAL_KEYS, "dual-step-size")
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=1, shared=1)
    partial: ClassVar[bool] = True

    @staticmethod
    def server(config: Mapping[str, Any], settings: Settings) -> ServerHalf[Any]:
        """Return the server half."""
        probability = 1.0 / config["local-epochs"]
        return Server(settings, probability, config["step-size"], config["dual-step-size"])
