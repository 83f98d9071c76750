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

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from privet.client_apps.rivals.fed_lin import Agent
from privet.rounds.half import Arrays, HalfState, Positions, ServerHalf, Turn, Vector, mean_row
from privet.rounds.hooks import Cost, SearchAxis
from privet.rounds.uploads import Sums
from privet.wire.ring import Shapes

from .constructors import FedLinArguments


@dataclass(slots=True)
class State(HalfState):
    """State of FedLin's coordinator.

    Attributes
    ----------
    x : array (d,)
        The model.
    g : array (N, d)
        The agents' gradients.
    mean : array (d,) or (0,)
        Their mean in round B, empty in round A.
    missed : bool
        Whether round A went without somebody.
    residual : float
        Mean over the last participants of ||x_i - x||^2.
    """

    x: Vector
    g: Vector
    mean: Vector
    missed: bool = False


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of FedLin."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def rows(self, start: Vector) -> Arrays:
        return {"g": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        return State(start, **self.tables(start, count), mean=start[:0])

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent of g_i = 0 that has not seen x."""
        state.missed = True
        return super().admit(state, position, start)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at g_i = 0 that has not seen x."""
        state.missed = True
        return super().renew(state, position, start)

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        """Return x in round A, g in round B."""
        if not state.mean.size:
            return state, {"x": state.x}
        again = {"x": state.x} if state.missed else {}
        return state, {"g": state.mean, **again}

    def recovery(self, state: State, positions: Positions) -> Arrays:
        return {"x": state.x, "g": state.g[positions]}

    def summands(self, state: State) -> Shapes:
        """Return g_i (d,) in round A, x_i (d,) in round B."""
        return {"x" if state.mean.size else "g": state.x.shape}

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """End round A with g, round B with the next x."""
        if not sums.positions:
            return state
        if not state.mean.size:
            state.missed = len(sums.positions) < len(state.g)
            state.mean = mean_row(state.g)
            return state
        state.residual = sums.gap("x", state.x)
        state.x = sums.mean("x", state.x)
        state.mean, state.missed = state.x[:0], False
        return state


class FedLin(FedLinArguments):
    """FedLin as a Flower Strategy, an iteration of which is two rounds.

    Notes
    -----
    Who is averaged when some are absent: of the gradients all, absent ones with their old g_i; of
    the models the participants.
    Privacy: none.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = (
        "an iteration is two exchanges, in which all agents are sent one x and one mean gradient"
    )
    settings: ClassVar[tuple[type, ...]] = (Agent,)
    server_half = Server
    search: ClassVar[tuple[SearchAxis, ...]] = (SearchAxis("step-size", 0.05, 3.0, "smoothness"),)
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=1, shared=2, exchanges=2, up=2, down=2)
