"""DP-IADMM with a secure sum: the server keeps the means of z_p and lam_p and sees neither.

With S the participants of round t and P agents,

    zbar   <- zbar + (1/P) sum_{p in S} (z_p - z_p of before)
    lambar <- lambar + (rho_t/P) ( |S| w - sum_{p in S} z_p )
    w       = zbar - lambar / rho_{t+1}

are the means of what ``dp_iadmm.py`` keeps in its tables, absent agents with their old values: the
server runs as if there were one agent, the mean. The agents round z_p to multiples of 2^-40 before
they use it, so that sums and agents agree. An agent that loses lam_p and z_p cannot go on, because
nobody else has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from privet.wire import Settings, ring
from privet.wire.ring import Shapes

from . import dp_iadmm
from .dp_iadmm_settings import Penalty
from .half import Arrays, GroupSum, Vector


@dataclass(slots=True)
class State:
    """Server state.

    Attributes
    ----------
    mean : dp_iadmm.State
        That of a server with one agent, whose z_p and lam_p are the means, in float64.
    count : int
        Number P of agents.
    start : array (d,)
        z_p of an agent that begins.
    """

    mean: dp_iadmm.State
    count: int
    start: Vector


@dataclass(frozen=True)
class Server:
    """Server half of DP-IADMM for masked uploads; parameters as in ``dp_iadmm.Server``."""

    name: ClassVar[str] = "dp-iadmm"
    version: ClassVar[int] = 1
    secure_sum: ClassVar[bool] = True
    restarts: ClassVar[bool] = False

    penalty: Penalty = field(default_factory=Penalty)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _one(self) -> dp_iadmm.Server:
        return dp_iadmm.Server(self.penalty, self.agent_settings)

    def settings(self) -> Settings:
        """Return what the agents need to know; rho_t travels with w."""
        return self._one.settings()

    def initialise(self, start: Vector, count: int) -> State:
        """Return z_p = start, rounded to multiples of 2^-40, and lam_p = 0 for all agents."""
        start = ring.rounded(start)
        mean = self._one.initialise(start.astype(np.float64), 1)
        return _typed(State(mean, count, start))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent at z_p = start, lam_p = 0 more."""
        share = state.count / (state.count + 1)
        z = state.mean.z * share + state.start / (state.count + 1)
        center = self._one.state(z, state.mean.lam * share).center
        state.mean.z, state.mean.lam = z, state.mean.lam * share
        state.mean.center = center
        state.count += 1
        return _typed(state)

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return w (Algorithm 1 line 5), t and rho_t."""
        state.mean, arrays = self._one.broadcast(state.mean)
        return state, arrays

    def summands(self, state: State) -> Shapes:
        """Return z_p (d,), by how much it moved (d,), and ||z_p - w||."""
        shape = state.mean.w.shape
        return {"z": shape, "moved": shape, "distance": ()}

    def fold_sums(self, state: State, sums: Mapping[str, GroupSum]) -> State:
        """Move the means by the participants' sums and take the next w."""
        mean = state.mean
        active = sum(len(found.positions) for found in sums.values())
        if not active:
            state.mean = self._one.fold(mean, {})
            return _typed(state)
        behind = sum((found.arrays["z"] for found in sums.values()), -active * mean.w.astype("f8"))
        moved = sum((found.arrays["moved"] for found in sums.values()), np.zeros(mean.w.size))
        z = mean.z[0] + moved / state.count
        lam = mean.lam[0] - (mean.rho / state.count) * behind
        state.mean = self._one.fold(mean, {0: {"z": z, "lam": lam}})
        apart = sum(float(found.arrays["distance"]) for found in sums.values()) / active
        step = state.mean.center - mean.w
        state.mean.residual = apart * apart + float(step @ step)
        return _typed(state)

    def recovery(self, state: State, position: int) -> Arrays:
        """Return what an agent begins with; nothing is known of one that has begun."""
        return {"lam": np.zeros_like(state.start), "inner": state.start, "z": state.start}

    def models(self, state: State) -> Arrays:
        """Return what ``dp_iadmm.Server.models`` returns."""
        kind = state.start.dtype
        models = self._one.models(state.mean)
        return {name: model.astype(kind, copy=False) for name, model in models.items()}

    def residual(self, state: State) -> float:
        """Return (mean ||z_p - w||)^2, each at most 64, plus the squared step of w; 0 at rest."""
        return state.mean.residual

    def dump(self, state: State) -> Arrays:
        """Return the state as arrays."""
        own = {"count": np.array(state.count), "start": state.start}
        return {**self._one.dump(state.mean), **own}

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        return _typed(State(self._one.load(arrays), int(arrays["count"]), arrays["start"]))


def _typed(state: State) -> State:
    """Return the state with the next w in the model's own dtype."""
    state.mean.center = state.mean.center.astype(state.start.dtype)
    return state
