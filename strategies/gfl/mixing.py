"""The messages between servers of graph federated learning, and their combination.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning", eqs. (8) and (47):

    w_p = sum_m a_pm (psi_m + g_pm),   g_pm the noise on the message from m to p.

"homomorphic": g_pm = g_m for p != m and -(1 - a_pp)/a_pp g_p on the own message, that is

    w_p = a_pp psi_p - (1 - a_pp) g_p + sum_{m != p} a_pm (psi_m + g_m),   w = A psi + (A - I) g,

so that the noise sums to zero over the units. "random": independent g_pm on every link, none on
the own message.

One round has three steps, each in one place for a process that hosts all units and for one that
hosts a single unit: a `Perturbation` draws the noise (`outgoing`), a `Mixer` carries the messages
to the neighbours, and `combine` computes w_p from those that arrived. `LocalMixer` is the mixer of
the first kind. The mixer never learns where the noise comes from; it sends what
`MixingInput.message` returns and nothing else, for psi_p alone is not protected.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError

from .graph import Edge, Matrix, check_weights, edges_of, neighbours
from .noise import LinkNoise

log = logging.getLogger("flwr.privet")

Vector = NDArray[Any]

PERTURBATIONS = ("none", "random", "homomorphic")


@dataclass(frozen=True, slots=True)
class MixingInput:
    """The input of one process's hosted units to the exchange of one round.

    Attributes
    ----------
    units : tuple of int
        The hosted units, ascending.
    models : array (H, d)
        Their psi_p, which must not leave the process.
    shared : mapping of int to array (d,)
        g_p of each hosted unit; empty without homomorphic noise.
    links : mapping of (sender, receiver) to array (d,)
        Independent noise of each link; empty without random noise.
    """

    units: tuple[int, ...]
    models: Vector
    shared: Mapping[int, Vector] = field(default_factory=dict)
    links: Mapping[tuple[int, int], Vector] = field(default_factory=dict)

    def model(self, unit: int) -> Vector:
        """Return psi_p of a hosted unit, shape (d,); not to be sent."""
        psi: Vector = self.models[self.units.index(unit)]
        return psi

    def message(self, unit: int, receiver: int) -> Vector:
        """Return the message of a hosted unit to a neighbour, psi_p + g_rp, shape (d,).

        Privacy: this is all that leaves a unit's server in an exchange.
        """
        noise = self.shared.get(unit, self.links.get((unit, receiver)))
        psi = self.model(unit)
        return psi if noise is None else (psi + noise).astype(psi.dtype, copy=False)


@dataclass(frozen=True, slots=True)
class Mixed:
    """The result of an exchange.

    Attributes
    ----------
    models : array (H, d)
        w_p of the hosted units, in their order.
    dropped : tuple of edges
        Edges (p, m), p < m, of hosted units that did not count in this round.
    notes : tuple of str
        Notes for the round's record, one line each; the mixer has logged them.
    residual : float
        Norm of the noise known to be left in the sum over the units, beyond rounding: 0 where it
        cancels, NaN where the two ends of an edge may disagree.
    """

    models: Vector
    dropped: tuple[Edge, ...] = ()
    notes: tuple[str, ...] = ()
    residual: float = 0.0


class Mixer(Protocol):
    """Exchanges the messages of one round and combines them for the hosted units.

    An implementation sends ``outgoing.message(p, m)`` to every neighbour m of every hosted unit p,
    decides which edges count (an edge counts at both ends or at none), and returns
    ``combine(weights[p], p, ...)`` of the messages that count for each hosted unit.
    """

    @property
    def weights(self) -> Matrix:
        """The combination matrix A of all units, (P, P), checked by `check_weights`."""
        ...

    @property
    def units(self) -> tuple[int, ...]:
        """The units hosted here, ascending; all of them in a simulation."""
        ...

    def present_round(self, round_: int, last: int) -> int:
        """Return the round to play next, ``round_`` or a later one up to ``last``.

        It is later if this server was away and its neighbours on other servers are ahead.
        """
        ...

    def mix(self, round_: int, outgoing: MixingInput, *, step: int = 0) -> Mixed:
        """Do one exchange.

        Parameters
        ----------
        round_ : int
            The round, counted from 1. A round played again after a resume has its number again.
        outgoing : Outgoing
            The input of the units hosted here.
        step : int
            0 in a round; 1, 2, ... for the exchanges without noise that may close a run.
        """
        ...


def combine(
    row: Vector,
    unit: int,
    psi: Vector,
    noise: Vector | None,
    received: Mapping[int, Vector],
) -> Vector:
    """Return w_p from the messages that count in a round, eqs. (8) and (47), shape (d,).

    The weight of a neighbour whose message does not count goes to the own model: with
    s = sum of a_pm over the received ones, w_p = (1 - s) psi_p - s g_p + sum a_pm message_m.

    Parameters
    ----------
    row : array (P,)
        Row p of A; 1 - s is a_pp where all messages arrived.
    unit : int
        p.
    psi : array (d,)
        The own model, without noise.
    noise : array (d,), optional
        g_p; None without homomorphic noise.
    received : mapping of int to array (d,)
        Message of each neighbour that counts; they are added in ascending order, so that the bits
        do not depend on who came first.
    """
    senders = sorted(received)
    if unit in received:
        raise ValueError(f"unit {unit}: its own message does not travel")
    given = math.fsum(float(row[m]) for m in senders)
    mixed: Vector = psi * (1.0 - given)
    if noise is not None:
        mixed -= given * noise
    for sender in senders:
        mixed += float(row[sender]) * received[sender]
    return mixed


@dataclass(frozen=True, slots=True)
class Perturbation:
    """The noise on the messages between servers (raises ``ConfigError``).

    Parameters
    ----------
    kind : {"none", "random", "homomorphic"}
    noise : LinkNoise, optional
        Needed unless ``kind`` is "none".
    """

    kind: str = "none"
    noise: LinkNoise | None = None

    def __post_init__(self) -> None:
        if self.kind not in PERTURBATIONS:
            raise ConfigError(f"perturbation = {self.kind!r}: gfl has {', '.join(PERTURBATIONS)}")
        if self.kind != "none" and self.noise is None:
            raise ConfigError(f"perturbation = {self.kind!r} needs a source of noise")

    def outgoing(
        self, round_: int, units: Sequence[int], models: Vector, weights: Matrix
    ) -> MixingInput:
        """Draw the hosted units' noise, and return their input to a round's exchange."""
        hosted, dim = tuple(units), models.shape[1]
        if self.kind == "none" or self.noise is None:
            return MixingInput(hosted, models)
        if self.kind == "homomorphic":
            shared = {unit: self.noise.shared(unit, round_, dim) for unit in hosted}
            return MixingInput(hosted, models, shared=shared)
        links: dict[tuple[int, int], Vector] = {}
        for unit in hosted:
            receivers = neighbours(weights, unit)
            drawn = self.noise.independent(unit, round_, receivers, dim)
            links.update({(unit, receiver): drawn[receiver] for receiver in receivers})
        return MixingInput(hosted, models, links=links)


class LocalMixer:
    """Mixes the units that one process hosts together: a simulation of the exchange.

    Parameters
    ----------
    weights : array (P, P)
        A; `check_weights` names the matrices that are refused.
    cut : mapping of int to edges, optional
        Edges that fail, by round; for experiments with failing links.
    """

    def __init__(self, weights: Any, cut: Mapping[int, Iterable[Edge]] | None = None) -> None:
        self.weights: Matrix = check_weights(weights)
        self._edges = edges_of(self.weights)
        self._cut = {
            round_: {(min(edge), max(edge)) for edge in edges}
            for round_, edges in (cut or {}).items()
        }

    @property
    def units(self) -> tuple[int, ...]:
        """All units."""
        return tuple(range(len(self.weights)))

    def present_round(self, round_: int, last: int) -> int:
        """Return ``round_``: there are no other servers."""
        return round_

    def mix(self, round_: int, outgoing: MixingInput, *, step: int = 0) -> Mixed:
        """Deliver every message but those on failed edges, and combine."""
        failed = self._cut.get(round_, set())
        dropped = tuple(edge for edge in self._edges if edge in failed)
        mixed = np.empty_like(outgoing.models)
        for index, unit in enumerate(outgoing.units):
            received = {
                m: outgoing.message(m, unit)
                for m in neighbours(self.weights, unit)
                if (min(m, unit), max(m, unit)) not in failed
            }
            mixed[index] = combine(
                self.weights[unit],
                unit,
                outgoing.model(unit),
                outgoing.shared.get(unit),
                received,
            )
        notes = tuple(f"edge {p}-{m} failed: both units dropped it" for p, m in dropped)
        for note in notes:
            log.warning("round %d: %s", round_, note)
        return Mixed(mixed, dropped, notes)


def perturbation_kind(config: Mapping[str, Any], *, given: bool = False) -> str:
    """Return the value of ``perturbation``: "auto" is homomorphic if there is noise, else none."""
    if config["perturbation"] != "auto":
        return str(config["perturbation"])
    return "homomorphic" if given or config["noise-variance"] > 0 else "none"
