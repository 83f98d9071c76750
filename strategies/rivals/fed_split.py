"""FedSplit: operator splitting with inexact proximal steps, the server half.

R. Pathak, M. J. Wainwright, "FedSplit: An Algorithmic Framework for Fast Federated Optimization"
(2020), Algorithm 1. With s = ``rho`` and the local solver in place of the exact proximal operator,

    server   x = mean over all agents of z_i
    agent    x_i <- N_e solver steps on  f_i(w) + ||w - (2x - z_i)||^2 / (2 s),   from w = 2x - z_i
             z_i <- z_i + 2 (x_i - x)

Fed-PLT is this with the solver started at the agent's own last x_i in place of the argument of the
prox: solved exactly, both are Peaceman-Rachford splitting and the same; with finitely many steps
FedSplit stops at a point that is not the minimiser, at a distance that shrinks with N_e. Absent
agents (not in the paper) keep and count with their old z_i.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from privet.client_apps.rivals.fed_split import Agent
from privet.rounds.hooks import Cost, SearchAxis

from ..fed_plt import Server as Splitting
from .constructors import FedSplitArguments


@dataclass(frozen=True)
class Server(Splitting):
    """Server half of FedSplit: that of Fed-PLT, without h."""

    agent: Agent = field(default_factory=Agent)


class FedSplit(FedSplitArguments):
    """FedSplit as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: all agents, absent ones with their old z_i.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent, Server)
    server_half = Server
    positional = ("rho",)
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("rho", 0.05, 20.0, "splitting"),
        SearchAxis("step-size", 0.25, 1.5, "subproblem"),
    )
    cost: ClassVar[Cost] = Cost(agent=1, coordinator=2, shared=2)
