"""LED: local exact diffusion, the server half.

S. A. Alghunaim, "Local Exact-Diffusion for Decentralized Optimization and Learning" (2023),
Algorithm 1, on the star: the mixing matrix is the mean over all agents. An agent does

    w <- x,  N_e times  w <- w - alpha grad f_i(w) - beta y_i,  x_i = w
    x <- mean of all x_i,   y_i <- y_i + x_i - x

With h_i = -(beta / alpha) y_i this is averaging with control variates at the rate beta / alpha, and
that is how it is kept: agents with steps of their own then still agree on the limit. With N_e = 1
and beta = 1 it is exact diffusion. The paper has no partial participation; absent agents keep their
y_i and the mean is over those present, which leaves the sum of all y_i at zero.
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
    """Server half of LED.

    Parameters
    ----------
    beta : float
        Weight of y_i in a local step.
    alpha : float
        The local step size.
    """

    name: ClassVar[str] = "led"

    beta: float = 1.0
    alpha: float = 0.1

    def rate(self, count: int, total: int) -> float:
        """Return beta / alpha."""
        return self.beta / self.alpha


class LED(RivalStrategy):
    """LED; keys: ``dual_step_size`` (beta; 0 takes 1 / N_e) and those of the local steps."""

    algorithm: ClassVar[str] = "led"
    keys: ClassVar[tuple[str, ...]] = (*RIVAL_KEYS, "dual-step-size")
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=1, shared=1)

    @staticmethod
    def server(config: Mapping[str, Any], settings: Settings) -> ServerHalf[Any]:
        """Return the server half."""
        beta = config["dual-step-size"] or 1.0 / config["local-epochs"]
        return Server(settings, beta, config["step-size"])
