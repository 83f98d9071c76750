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

from dataclasses import dataclass, field
from typing import ClassVar

from privet.client_apps.rivals.led import Agent
from privet.core.key import setting
from privet.rounds.hooks import Cost, SearchAxis

from .constructors import LEDArguments
from .control_variates import ControlledServer


@dataclass(frozen=True)
class Server(ControlledServer):
    """Server half of LED; ``agent`` has the local step size alpha."""

    agent: Agent = field(default_factory=Agent)
    dual_step_size: float = setting(
        0.0,
        "beta, the weight of y_i in a local step; auto is 1 / local-epochs",
        low=0,
        words={"auto": 0},
    )

    def weight(self, count: int, total: int) -> float:
        return self.dual_step_size or 1.0 / self.agent.local_epochs


class LED(LEDArguments):
    """LED as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: the participants; the others keep their y_i.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "an agent corrects itself by the mean of the x_i of its own round, which no other "
        "upload may enter"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent, Server)
    server_half = Server
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=1, shared=1)
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size", 0.05, 3.0, "smoothness"),
        SearchAxis("dual-step-size", 0.1, 10.0, "epochs"),
    )
