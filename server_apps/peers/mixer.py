"""The mixer of a server that hosts one unit: GFL's exchange over the network.

With v = psi + g, eq. (47) reads w_p = psi_p + sum_m a_pm (v_m - v_p): every edge carries a flow,
and as a_pm = a_mp the flows of its two ends sum to zero, the noise with them. So an edge must count
at both ends or at neither. Where that fails, the sum over the units is off by exactly one flow: a
leader that was in doubt adds it once it hears that the other end counted the edge, and an end whose
partner was started again from before that round takes it back.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError, RunError
from privet.strategies.gfl.graph import Edge, Matrix, check_weights, neighbours
from privet.strategies.gfl.mixing import Mixed, MixingInput, combine

from .edge import News
from .exchange import Exchanged, Peers
from .messages import LAST_ROUND, REPORTED, EdgeOutcome, Shape
from .settings import PeerSettings

log = logging.getLogger("flwr.privet")

Vector = NDArray[Any]
STEPS = 1 << 16
"""Exchanges of one round at most; round and step together number an exchange."""
HELD = 2
"""Past exchanges whose flows are held, so that they can be taken back."""


@dataclass(slots=True)
class _Past:
    """Flows and their norms by (exchange, neighbour)."""

    flows: dict[tuple[int, int], Vector] = field(default_factory=dict)
    norms: dict[tuple[int, int], float] = field(default_factory=dict)
    doubtful: dict[tuple[int, int], Vector] = field(default_factory=dict)


class NetworkMixer:
    """Mixes one unit with its neighbours on other servers.

    Parameters
    ----------
    weights : array (P, P)
        A, the same on all servers.
    settings : PeerSettings
        Own unit and the way to the others.
    agreed : mapping
        What else the servers must have in common; compared before the first exchange.

    Raises
    ------
    ConfigError
        If the unit is not one of the graph's.

    Notes
    -----
    Privacy: neighbours see psi_p + g_p and nothing else of this unit; TLS keeps others out. A round
    played again after a resume is sent only to neighbours that have not closed it, with new noise.
    """

    def __init__(self, weights: Any, settings: PeerSettings, agreed: Mapping[str, Any]) -> None:
        self.weights: Matrix = check_weights(weights)
        count = len(self.weights)
        if not (settings.unit.isdecimal() and int(settings.unit) < count):
            raise ConfigError(f"unit = {settings.unit!r}: the graph has units 0 ... {count - 1}")
        self.unit = int(settings.unit)
        self._row = self.weights[self.unit]
        self._neighbours = neighbours(self.weights, self.unit)
        self._past = _Past()
        self._behind = False
        self._settings, self._agreed = settings, dict(agreed)
        self._peers: Peers | None = None

    @property
    def units(self) -> tuple[int, ...]:
        """The unit hosted here."""
        return (self.unit,)

    @property
    def peers(self) -> Peers:
        """This server among its neighbours (raises ``RunError`` before it has started)."""
        if self._peers is None:
            raise RunError(f"the server of unit {self.unit} has not started")
        return self._peers

    def start(self, shape: Shape, patience: float, *, resumed: bool = False) -> None:
        """Wait for the neighbours' servers.

        Parameters
        ----------
        shape : Shape
            Of the models.
        patience : float
            Seconds to wait.
        resumed : bool
            Whether the run goes on, and does so without those that are missing.

        Raises
        ------
        ConfigError
            If a neighbour has no address, or its server differs in what was to be agreed on.
        RunError
            If a neighbour's server is missing.
        """
        self._behind = resumed
        names = tuple(str(m) for m in self._neighbours)
        agreement = _digest(self.weights, shape, self._agreed)
        self._peers = Peers(self._settings, names, shape, agreement)
        self._peers.start(patience, required=not resumed)

    def leave_out(self, units: frozenset[str]) -> None:
        """Exchange nothing with these units until told otherwise; their edges are dropped."""
        self.peers.excluded = units

    def close(self) -> None:
        """End the service, if it has started, and say which edges were never cleared up."""
        if self._peers is not None:
            self._peers.close()
        for number, unit in sorted(self._past.doubtful):
            log.warning("%s", self._never(number, unit))
        self._past.doubtful.clear()

    def present_round(self, round_: int, last: int) -> int:
        """Return the round to play next, see ``privet.strategies.gfl.mixing.Mixer``.

        The neighbours are asked where this server was resumed, or an edge was dropped in its last
        exchange. One round behind is made up for: the neighbours wait that long.
        """
        if not self._behind:
            return round_
        present = min(self.peers.furthest() // STEPS + 1, last, LAST_ROUND // STEPS)
        if present < round_ + 2:
            return round_
        missed = range(max(round_, present - REPORTED), present)
        self.peers.skip([number * STEPS for number in missed], present * STEPS)
        return present

    def mix(self, round_: int, outgoing: MixingInput, *, step: int = 0) -> Mixed:
        """Do one exchange with the neighbours; see ``privet.strategies.gfl.mixing.Mixer``.

        Raises
        ------
        RunError
            If there are more than 65,535 closing exchanges.
        """
        if step >= STEPS:
            raise RunError(f"closing exchange {step}: at most {STEPS - 1} are supported")
        number = round_ * STEPS + step
        own = {str(m): outgoing.message(self.unit, m) for m in self._neighbours}
        done = self.peers.exchange(number, own)
        psi, noise = outgoing.model(self.unit), outgoing.shared.get(self.unit)
        received = {int(name): vector for name, vector in done.vectors.items()}
        mixed = combine(self._row, self.unit, psi, noise, received)
        base = psi if noise is None else outgoing.message(self.unit, self.unit)
        notes, residual = self._record(number, base, done)
        if outgoing.links:  # independent noise, which does not cancel and is not known here
            residual = math.nan
        for news in done.news:
            note, change, left = self._clear_up(news)
            notes.append(note)
            residual += left
            if change is not None:
                mixed = mixed + change
        notes += self._forget()
        for note in notes:
            log.warning("round %d: %s", round_, note)
        dropped = tuple(
            self._edge(int(m)) for m, o in done.outcomes.items() if o is not EdgeOutcome.USED
        )
        self._behind = bool(dropped)
        return Mixed(mixed[None, :], tuple(sorted(dropped)), tuple(notes), residual)

    # ------------------------------------------------------------------ bookkeeping of flows

    def _record(self, number: int, base: Vector, done: Exchanged) -> tuple[list[str], float]:
        """Keep the flows of this exchange; return its notes, and NaN where an edge is in doubt."""
        notes: list[str] = []
        residual = 0.0
        for name, outcome in done.outcomes.items():
            unit = int(name)
            arrived = done.arrived.get(name)
            if arrived is not None:
                flow = float(self._row[unit]) * (arrived - base)
                self._past.norms[number, unit] = float(np.linalg.norm(flow))
                if outcome is EdgeOutcome.USED:
                    self._past.flows[number, unit] = flow
                elif outcome is EdgeOutcome.DOUBT:
                    self._past.doubtful[number, unit] = flow
            if outcome is EdgeOutcome.DOUBT:
                residual = math.nan
                notes.append(
                    f"edge {self._text(unit)} is in doubt ({done.reasons[name]}): left out until "
                    f"unit {unit} says whether it counted there"
                )
            elif outcome is EdgeOutcome.DROPPED:
                notes.append(f"edge {self._text(unit)} was dropped: {done.reasons[name]}")
        return notes, residual

    def _clear_up(self, news: News) -> tuple[str, Vector | None, float]:
        """Return a note, what is added to w_p, and the norm of what stays in the sum."""
        unit = int(news.unit)
        key = (news.round, unit)
        where = f"edge {self._text(unit)} of {_when(news.round)}"
        if news.mine is EdgeOutcome.DOUBT:
            flow = self._past.doubtful.pop(key, None)
            if news.theirs is EdgeOutcome.DROPPED:
                return f"{where} was dropped at both ends", None, 0.0
            return f"{where} counted at unit {unit}: counted here now as well", flow, 0.0
        if news.mine is EdgeOutcome.DROPPED:
            return f"{where} had counted at unit {unit}, which takes it back or says so", None, 0.0
        lost = f"{where} no longer counts at unit {unit}, which was started again"
        flow = self._past.flows.pop(key, None)
        if flow is not None:
            return f"{lost}: taken back here", -flow, 0.0
        norm = self._past.norms.get(key, math.nan)
        return f"{lost}: noise did not cancel, {_size(norm)}", None, norm

    def _forget(self) -> list[str]:
        """Drop what is too old to be cleared up; return a note on each edge still in doubt."""
        past = self._past
        numbers = sorted({number for number, _ in past.norms})
        held, known = set(numbers[-HELD:]), set(numbers[-REPORTED:])
        notes = [self._never(*key) for key in past.doubtful if key[0] not in known]
        past.flows = {key: flow for key, flow in past.flows.items() if key[0] in held}
        past.doubtful = {key: flow for key, flow in past.doubtful.items() if key[0] in known}
        past.norms = {key: norm for key, norm in past.norms.items() if key[0] in known}
        return notes

    def _never(self, number: int, unit: int) -> str:
        norm = self._past.norms.get((number, unit), math.nan)
        return (
            f"edge {self._text(unit)} of {_when(number)} stays in doubt: if it counted at unit "
            f"{unit}, noise did not cancel, {_size(norm)}"
        )

    def _edge(self, unit: int) -> Edge:
        return min(self.unit, unit), max(self.unit, unit)

    def _text(self, unit: int) -> str:
        return "{}-{}".format(*self._edge(unit))


def _size(norm: float) -> str:
    return "by how much is not known here" if math.isnan(norm) else f"the sum is off by {norm:.3g}"


def _when(number: int) -> str:
    round_, step = divmod(number, STEPS)
    return f"round {round_}" + (f", closing exchange {step}" if step else "")


def _digest(weights: Matrix, shape: Shape, agreed: Mapping[str, Any]) -> str:
    text = json.dumps([shape.dim, shape.dtype, dict(agreed)], sort_keys=True, default=str)
    return sha256(weights.tobytes() + text.encode()).hexdigest()
