"""TAMUNA: local training with partial participation, the server half.

L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik, "TAMUNA: Doubly Accelerated Distributed
Optimization with Local Training, Compression, and Partial Participation" (2023), Algorithm 1. A
cohort of c of the n agents is drawn, and with it a number of steps L, geometric of mean 1/p:

    agent    w <- x,  L times  w <- w - gamma (grad f_i(w) - h_i),   x_i = w
    server   x <- mean over the cohort of x_i
    agent    h_i <- h_i + (eta / gamma) (x - x_i)        for the cohort; the others keep h_i

Here p = 1 / ``local-epochs``; eta is ``dual-step-size``, by default the largest the paper's theory
allows, p n (c - 1) / (c (n - 1)), which is p when all take part. L is drawn by every agent from a
public stream of the seed and the round (`privet.client_apps.rivals.tamuna.local_steps`), the same
for all. The sparsification of the uploads (s of the paper) is off: s = c, every coordinate of every
x_i counts. A cohort of one (c = 1) learns no h_i.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from privet.client_apps.rivals.tamuna import Agent
from privet.core.key import setting
from privet.rounds.hooks import Cost, SearchAxis

from .constructors import TamunaArguments
from .control_variates import ControlledServer


@dataclass(frozen=True)
class Server(ControlledServer):
    """Server half of TAMUNA; ``agent`` has the step size gamma, and 1/p as its local epochs."""

    agent: Agent = field(default_factory=Agent)
    dual_step_size: float = setting(
        0.0, "eta; auto is the largest that theory allows", low=0, words={"auto": 0}
    )

    def weight(self, count: int, total: int) -> float:
        if self.dual_step_size > 0:
            return self.dual_step_size
        largest = total * (count - 1) / (count * (total - 1)) if total > 1 else 1.0
        return (1.0 / self.agent.local_epochs) * largest


class Tamuna(TamunaArguments):
    """TAMUNA as a Flower Strategy.

    Notes
    -----
    ``local_epochs`` is the mean number of local steps.
    Who is averaged when some are absent: the participants; the others keep their h_i. One that
    missed rounds is sent its h_i in addition to x, two vectors down; the paper's agents receive two
    as well, x before and after their round.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "the steps and the weight of a round are those of a cohort that works on one model together"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent, Server)
    server_half = Server
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=1, shared=1)
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("step-size", 0.05, 3.0, "smoothness"),
        SearchAxis("dual-step-size", 0.1, 10.0, "epochs"),
    )
    partial: ClassVar[bool] = True
