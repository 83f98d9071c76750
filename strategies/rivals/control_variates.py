"""Averaging with a control variate per agent: what LED and TAMUNA have in common on the server.

A round with the participants S, h_i summing to zero over all agents:

    agent    w <- x,  some steps  w <- w - gamma (grad f_i(w) - h_i),  x_i = w
    server   x <- mean over S of x_i
    both     h_i <- h_i + rate (x - x_i)     for i in S, once x is known

An agent that is asked again in the very next round gets x anyway and updates its h_i itself. One
that missed rounds has not seen the x that followed its upload: it is sent its h_i.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privet.wire import digest
from privet.wire.agreement import ascend

from ..half import Arrays, Vector
from .base import RivalServer, State, apart
from .dp_fedsgd import checked, mean_of

SETTLED, WAITING, BEHIND = 0, 1, 2
"""What an agent knows of its h_i: all; all but the last x; not even that x will tell it."""


@dataclass(frozen=True)
class ControlledServer(RivalServer):
    """Server half whose agents hold h_i; ``extra`` keeps the rate and what they know of h_i."""

    @abstractmethod
    def rate(self, count: int, total: int) -> float:
        """Return the rate of a round in which ``count`` of ``total`` agents took part."""

    def rows(self, start: Vector) -> Arrays:
        """Return h_i = 0."""
        return {"h": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x = start and h_i = 0."""
        state = super().initialise(start, count)
        state.extra = {"knows": np.full(count, SETTLED), "rate": np.zeros(1)}
        return state

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent of h_i = 0."""
        state.extra["knows"] = np.insert(state.extra["knows"], position, SETTLED)
        return super().admit(state, position, start)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with every h_i back at 0: without one of them they do not sum to 0."""
        state.own["h"][:] = 0.0
        state.extra["knows"][:] = BEHIND
        state.extra["knows"][position] = SETTLED
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x and the rate of the last round."""
        return state, {"x": state.x, "rate": state.extra["rate"]}

    def place(self, state: State, position: int, name: str, unit: str) -> State:
        """Return the state as it is: units make no difference."""
        return state

    def group(self, state: State, position: int) -> str:
        """Return a group of its own for an agent that has to be sent its h_i."""
        return str(position) if state.extra["knows"][position] == BEHIND else ""

    def broadcast_to(self, state: State, group: str) -> Arrays:
        """Return h_i for an agent that missed the x after its last upload."""
        return {"h": state.own["h"][int(group)]} if group else {}

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check x_i."""
        x = checked(upload, "x", state.x)
        with np.errstate(over="ignore"):
            return {"x": x}, digest(x - state.own["h"][position])

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Take the mean of the uploads and update the participants' h_i."""
        if not uploads:
            return state
        state.residual = apart(uploads, state.x)
        h, knows = state.own["h"], state.extra["knows"]
        rate = self.rate(len(uploads), len(h))
        state.x = mean_of(uploads, "x", state.x)
        knows = np.where(knows == WAITING, BEHIND, knows)
        for position, arrays in uploads.items():
            h[position] = ascend(h[position], state.x, arrays["x"], rate)
            knows[position] = WAITING
        state.extra = {"knows": knows, "rate": np.array([rate])}
        return state
