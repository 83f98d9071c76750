"""The server half of graph federated learning: hosted units, their means, their exchange.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning", eqs. (7) and (8):

    psi_p = mean over the participants of unit p of their models
    w_p   = sum_m a_pm (psi_m + g_pm)                               the exchange between servers

The exchange itself is in ``mixing.py``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privet.client_apps.gfl import Agent
from privet.core import UploadError
from privet.rounds.half import UNSAVED, Arrays, GroupedHalf, HalfState, Positions, Turn, Vector
from privet.rounds.uploads import Block, ClearSums, Sums, Uploads, followed
from privet.wire import Settings
from privet.wire.magnitude import LARGEST
from privet.wire.ring import Shapes

from .mixing import Mixer, MixingInput, Perturbation

log = logging.getLogger("flwr.privet")

NOWHERE = "none"
"""The group of agents that belong to no unit; it is sent nothing and its uploads are refused."""


@dataclass(slots=True)
class State(HalfState):
    """Server state of the H units hosted here.

    Attributes
    ----------
    models : array (H, d)
        w_p.
    psi : array (H, d)
        The units' means before the last exchange.
    members : array (N,) of int
        Index of each agent's unit among the hosted ones, by position; -1 before it is placed.
    round : int
        The last round folded, 0 before the first.
    leftover : float
        Norm of the noise that the last exchange is known to have left in the sum over the units.
    repeated : array of int
        The rounds that a process was in when it ended, once for each: what it sent to the other
        servers is a release of its own beside that of the process that folded the round.
    residual : float
        Squared move of the hosted units' mean model in the last round.
    silent : tuple of str
        A line for each unit without an upload in the last round.
    notes : tuple of str
        Notes on the last exchange; like ``silent``, for the history alone.
    """

    models: Vector
    psi: Vector
    members: NDArray[np.int64]
    round: int = 0
    leftover: float = 0.0
    repeated: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    silent: tuple[str, ...] = field(default=(), metadata=UNSAVED)
    notes: tuple[str, ...] = field(default=(), metadata=UNSAVED)


@dataclass(frozen=True)
class Server(GroupedHalf[State]):
    """Server half of GFL.

    Parameters
    ----------
    perturbation : Perturbation
    closing_rounds : int
        Exchanges without noise that follow the last round.
    secure_sum : bool
        Whether the uploads of a unit's agents are masked (48): psi_p needs their sum only.
    mixer : Mixer
        Holds A and knows which units are hosted here.
    """

    state = State
    restarts: ClassVar[bool] = True
    no_robust: ClassVar[str] = ""

    agent: Agent = field(default_factory=Agent)
    perturbation: Perturbation = field(default_factory=Perturbation)
    closing_rounds: int = 0
    secure_sum: bool = False
    mixer: Mixer = field(kw_only=True)

    @property
    def masked(self) -> bool:
        return self.secure_sum

    def settings(self) -> Settings:
        """Return the agents' settings, with delta and the perturbation of servers' messages."""
        extra: Settings = {"delta": self.terms.delta, "perturbation": self.perturbation.kind}
        return {**super().settings(), **extra}

    def initialise(self, start: Vector, count: int) -> State:
        """Return w_p = start for every unit; no agent is placed yet."""
        models = np.tile(start, (len(self.mixer.units), 1))
        return State(models, models.copy(), np.full(count, -1))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with one more agent, which is in no unit before it is placed."""
        state.members = np.insert(state.members, position, -1)
        return state

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with this agent in no unit."""
        state.members[position] = -1
        return state

    def place(self, state: State, position: int, name: str, unit: str) -> State:
        """Return the state with an agent in the unit that its node config names.

        An agent that names none is assigned to a hosted unit by its position, in contiguous blocks
        of equal size: agents 0 ... K - 1 to the first, and so on.

        One that names a unit that is not hosted here belongs to none and is sent no model.
        """
        units = self.mixer.units
        if not unit:
            state.members[position] = position * len(units) // len(state.members)
            return state
        if not unit.isdecimal() or int(unit) not in units:
            known = ", ".join(map(str, units))
            log.warning(
                "agent %s: unit %r is not hosted here, expected %s: it takes no part",
                *(name, unit, known),
            )
            return state
        state.members[position] = units.index(int(unit))
        return state

    def group(self, state: State, position: int) -> str:
        """Return the unit of an agent; `NOWHERE` if it has none."""
        member = state.members[position]
        return str(self.mixer.units[member]) if member >= 0 else NOWHERE

    def resumed(self, state: State, asked: Sequence[int]) -> State:
        """Return the state with these rounds among the repeated ones."""
        state.repeated = np.append(state.repeated, np.asarray(asked, np.int64))
        return state

    def next_round(self, number: int, last: int) -> int:
        """Return the round of the neighbouring servers, which is later if this one was away."""
        return self.mixer.present_round(number, last)

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        """Return nothing: no array is the same for all units."""
        return state, {}

    def broadcast_to(self, state: State, group: str) -> Arrays:
        """Return w_p of a unit."""
        if group == NOWHERE:
            return {}
        return {"w": state.models[self.mixer.units.index(int(group))]}

    def summands(self, state: State) -> Shapes:
        """Return an agent's model (d,)."""
        return {"x": state.models.shape[1:]}

    def accept(self, state: State, block: Block) -> tuple[Block, NDArray[np.uint64]]:
        """Check the models of agents (k, d) of hosted units."""
        if (state.members[block.positions] < 0).any():
            raise UploadError("belongs to no unit that is hosted here")
        block, agreed = followed(self.agent, {}, block, self.summands(state), state.models[0])
        x = block.upload["x"]
        if float(np.abs(x).max()) > LARGEST[x.dtype.itemsize]:
            raise UploadError("x holds numbers that are too large: the run diverges")
        return block, agreed

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """End a round with the sums of the uploads by unit, as ``fold_sums``."""
        return self.fold_sums(state, ClearSums(uploads, lambda p: self.group(state, p)), turn)

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Compute the units' means, eq. (7), and have the servers exchange them.

        A unit without any upload exchanges its own w_p.
        """
        psi, places = self.unit_means(state, sums)
        silent = [unit for unit, place in zip(self.mixer.units, places, strict=True) if not place]
        return self._exchange(state, psi, _silences(silent), sums, turn.number)

    def unit_means(self, state: State, sums: Sums) -> tuple[Vector, list[int]]:
        """Return psi (H, d), eq. (7), and the number of agents in the mean of each unit."""
        psi, counts = state.models.copy(), []
        for index, unit in enumerate(self.mixer.units):
            of_unit = sums.groups.get(str(unit))
            if of_unit is not None:
                psi[index] = of_unit.mean("x", psi[index])
            counts.append(len(of_unit.positions) if of_unit else 0)
        return psi, counts

    def _exchange(
        self, state: State, psi: Vector, silent: tuple[str, ...], sums: Sums, number: int
    ) -> State:
        before = state.models.mean(axis=0)
        sent = self.perturbation.outgoing(number, self.mixer.units, psi, self.mixer.weights)
        mixed = self.mixer.mix(number, sent)
        for note in silent:
            log.warning("round %d: %s", number, note)
        return replace(
            state,
            models=mixed.models,
            psi=psi,
            round=number,
            residual=sums.step(mixed.models.mean(axis=0), before),
            silent=silent,
            notes=mixed.notes,
            leftover=mixed.residual,
        )

    def close(self, state: State) -> State:
        """Return the state after the closing exchanges, w <- A w without noise."""
        models = state.models
        for step in range(1, self.closing_rounds + 1):
            sent = MixingInput(self.mixer.units, models)
            models = self.mixer.mix(state.round, sent, step=step).models
        return replace(state, models=models)

    def recovery(self, state: State, positions: Positions) -> Arrays:
        """Return no state: an agent starts every round from w_p."""
        return {}

    def model(self, state: State) -> Vector:
        """Return the mean of the hosted units' models.

        In a simulation that is the centroid; a server that hosts one unit has its own model.
        """
        mean: Vector = state.models.mean(axis=0)
        return mean

    def models(self, state: State) -> Arrays:
        """Return ``last``, the hosted units' mean, and ``unit-p`` for each of them."""
        by_unit = {f"unit-{unit}": state.models[i] for i, unit in enumerate(self.mixer.units)}
        return {"last": self.model(state), **by_unit}

    def measures(self, state: State) -> dict[str, float]:
        """Return the measures of a round in addition to its residual.

        If all units are hosted here, ``disagreement`` is (1/P) sum_p ||w_p - w_c||^2, eq. (30), and
        ``centroid-noise`` the norm of the exchange's change of the centroid, ||w_c - mean psi||: 0
        up to rounding without noise and with homomorphic noise. Otherwise the centroid is not known
        and ``centroid-noise`` is the residual of the sum over the units that the mixer states.
        ``epsilon-links`` is NaN, not known, after a repeated round.
        """
        # The monitor counts each round once; the account alone counts the repeated ones.
        unknown = {"epsilon-links": math.nan} if len(state.repeated) else {}
        if len(self.mixer.units) < len(self.mixer.weights):
            return {"centroid-noise": state.leftover, **unknown}
        center = state.models.mean(axis=0)
        gaps = state.models - center
        return {
            **unknown,
            "disagreement": float(np.mean(np.sum(gaps * gaps, axis=1))),
            "centroid-noise": float(np.linalg.norm(center - state.psi.mean(axis=0))),
        }

    def notes(self, state: State, silent: Sequence[str]) -> tuple[str, ...]:
        """Return notes on units without an upload, on the exchange, and on repeated rounds."""
        again = sorted(set(state.repeated.tolist()))
        if not again or state.round > again[-1]:
            return (*state.silent, *state.notes)
        rounds = ", ".join(map(str, again))
        repeated = (
            f"messages to other units in round {rounds} may have left more than once: privacy.json "
            "counts them, epsilon-links is not known"
        )
        return (*state.silent, *state.notes, repeated)


def _silences(units: Sequence[int | str]) -> tuple[str, ...]:
    return tuple(f"unit {unit} had no upload: it continues with its own model" for unit in units)
