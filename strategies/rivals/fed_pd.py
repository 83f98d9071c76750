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

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from privet.client_apps.rivals.fed_pd import Agent
from privet.rounds.half import Arrays, HalfState, ServerHalf, Turn, Vector, mean_row
from privet.rounds.hooks import Cost, SearchAxis
from privet.rounds.uploads import Sums

from .constructors import FedPDArguments


@dataclass(slots=True)
class State(HalfState):
    """The model x0 (d,), and the agents' x_i and lam_i (N, d).

    The residual is the mean over the last participants of ||x_i - x0||^2.
    """

    x0: Vector
    x: Vector
    lam: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of FedPD; ``agent`` has eta as its rho."""

    state = State
    last: ClassVar[str] = "x0"

    agent: Agent = field(default_factory=Agent)

    def rows(self, start: Vector) -> Arrays:
        return {"x": start, "lam": np.zeros_like(start)}

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Take the mean over all agents of x_i + eta lam_i."""
        if not sums.positions:
            return state
        state.residual = sums.gap("x", "x")
        eta = state.x0.dtype.type(self.agent.rho)
        state.x0 = mean_row(state.x) + eta * mean_row(state.lam)
        return state

    def models(self, state: State) -> Arrays:
        """Return ``last`` (x0) and ``mean`` (mean of x_i over all agents)."""
        return {"last": state.x0, "mean": mean_row(state.x)}


class FedPD(FedPDArguments):
    """FedPD as a Flower Strategy.

    Notes
    -----
    Who is averaged when some are absent: all agents, absent ones with their old x_i and lam_i.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent,)
    server_half = Server
    positional = ("rho",)
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("rho", 0.05, 20.0, "splitting"),
        SearchAxis("step-size", 0.25, 1.5, "subproblem"),
    )
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=2, shared=1)
