"""Averaging with a control variate per agent: the common server half of LED and TAMUNA.

A round with the participants S, h_i summing to zero over all agents:

    agent    w <- x,  some steps  w <- w - gamma (grad f_i(w) - h_i),  x_i = w
    server   x <- mean over S of x_i
    both     h_i <- h_i + rate (x - x_i)     for i in S, once x is known

The rate is a weight over the round's step size gamma: where gamma falls from round to round
(``step-size-rule``), h_i keeps the size of a gradient, and a solution, with h_i = grad f_i there,
stays one.

An agent that takes part in the very next round receives x anyway and updates its h_i itself. An
agent that missed rounds has not received the x after its upload: it is sent its h_i.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from privet.client_apps.arithmetic import ascend
from privet.client_apps.rivals.control_variates import ControlledAgent
from privet.core.mapped import blocks
from privet.rounds.half import Arrays, HalfState, Positions, ServerHalf, Turn, Vector
from privet.rounds.uploads import ClearSums, Uploads

CURRENT, NEEDS_NEXT_BROADCAST, STALE = range(3)
"""An agent's copy of its h_i: up to date; up to date with the next broadcast x; must be sent."""


@dataclass(slots=True)
class State(HalfState):
    """The model x (d,), every h_i (N, d), the status of the agents' copies (N,), the last rate.

    The residual is the mean over the last participants of ||x_i - x||^2.
    """

    x: Vector
    h: Vector
    knows: Vector
    rate: float = 0.0


@dataclass(frozen=True)
class ControlledServer(ServerHalf[State]):
    """Server half whose agents hold h_i."""

    state = State

    agent: ControlledAgent

    @abstractmethod
    def weight(self, count: int, total: int) -> float:
        """Return rate times step of a round in which ``count`` of ``total`` agents took part."""

    def rows(self, start: Vector) -> Arrays:
        """Return h_i = 0; a new agent's copy is up to date."""
        return {"h": np.zeros_like(start), "knows": np.array(CURRENT)}

    def initialise(self, start: Vector, count: int) -> State:
        tables = self.tables(start, count)
        return State(start, tables["h"], tables["knows"][:, 0])

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with every h_i back at 0: without one of them they do not sum to 0."""
        for part in blocks(state.h):
            state.h[part] = 0.0
        state.knows[:] = STALE
        state.knows[position] = CURRENT
        return state

    def recovery(self, state: State, positions: Positions) -> Arrays:
        return {"h": state.h[positions]}

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        """Return x and the rate of the last round."""
        return state, {"x": state.x, "rate": np.array([state.rate])}

    def per_agent_broadcast(self, state: State, position: int, turn: Turn) -> Arrays:
        """Return h_i for an agent that missed the x after its last upload."""
        return {"h": state.h[position]} if state.knows[position] == STALE else {}

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the mean of the uploads and update the participants' h_i."""
        if not uploads:
            return state
        sums = ClearSums(uploads)
        state.residual = sums.gap("x", "x")
        step = self.agent.scheduled(self.agent.step_size, turn.number)
        state.rate = self.weight(len(uploads), len(state.h)) / step
        state.x = sums.mean("x", state.x)
        state.knows = np.where(state.knows == NEEDS_NEXT_BROADCAST, STALE, state.knows)
        for block in uploads:
            rows = block.where
            state.h[rows] = ascend(state.h[rows], state.x, block.upload["x"], state.rate)
            state.knows[rows] = NEEDS_NEXT_BROADCAST
        return state
