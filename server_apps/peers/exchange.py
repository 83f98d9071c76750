"""Exchange of vectors between the servers of a graph, over HTTPS with mutual TLS.

Per edge and exchange: both ends send their vector (``POST /psi``) and are told that it arrived; the
end that leads, holding both, asks the other that the edge count (``POST /commit``). A neighbour
that cannot be reached for a while is dropped; one that answers is merely late, perhaps because it
waits for another, and is waited for. See ``edge`` for what each end may conclude.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from privet.core import ConfigError, RunError
from privet.wire import sort_names

from .client import EdgeConnection, LinkError
from .edge import Board, Edge, News
from .messages import EdgeOutcome, Identity, Parcel, Shape
from .server import Service, application
from .settings import PeerSettings
from .settling import Patience, Settling, greet

log = logging.getLogger("flwr.privet")

LOOK = 2.0
"""Seconds a neighbour has to say how far it is, before a round."""

Vector = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result of an exchange.

    Attributes
    ----------
    outcomes : dict of str to Outcome
        Of each neighbour's edge.
    arrived : dict of str to array (d,)
        The neighbours' vectors that are here, whether their edge counts or not.
    reasons : dict of str to str
        Why an edge does not count, one line.
    news : tuple of News
        What came to light of earlier exchanges.
    """

    outcomes: dict[str, EdgeOutcome]
    arrived: dict[str, Vector]
    reasons: dict[str, str] = field(default_factory=dict)
    news: tuple[News, ...] = ()

    @property
    def vectors(self) -> dict[str, Vector]:
        """The vectors of the edges that count."""
        return {m: self.arrived[m] for m, o in self.outcomes.items() if o is EdgeOutcome.USED}


class Peers:
    """This server among its neighbours: a service of its own and a link to each.

    Parameters
    ----------
    settings : PeerSettings
        Own unit, address, credentials, and ``addresses``, of which the neighbours' are used.
    neighbours : iterable of str
        The units at the other ends of this unit's edges.
    shape : Shape
        Of the vectors.
    agreement : str
        Digest of all that the servers must have in common.

    Raises
    ------
    ConfigError
        If a neighbour has no address, or address or credentials cannot be used.
    """

    def __init__(
        self, settings: PeerSettings, neighbours: tuple[str, ...], shape: Shape, agreement: str
    ) -> None:
        missing = [m for m in neighbours if m not in settings.addresses]
        if missing:
            raise ConfigError(f"peers: no address of unit {missing[0]}, a neighbour in the graph")
        self.settings = settings
        self.shape = shape
        # Servers that start again must be told from their predecessors without a memory.
        self.identity = Identity(settings.unit, settings.run, agreement, time.time_ns())
        self.board = Board(settings.unit, neighbours)
        self._last = self._before_last = 0
        self._ended = False
        self.excluded: frozenset[str] = frozenset()
        context = settings.credentials.client_context()
        app = application(self.identity, self.board, shape)
        self._service = Service(app, settings.bind, settings.credentials)
        self._links = {m: EdgeConnection(m, settings.addresses[m], context) for m in neighbours}
        self._pool = ThreadPoolExecutor(max(1, len(neighbours)), "peer")

    @property
    def port(self) -> int:
        """Where the service listens."""
        return self._service.port

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ beginning and end

    def start(self, patience: float, *, required: bool = True) -> tuple[str, ...]:
        """Start the service and wait until all neighbours' services answer; return who did not.

        Parameters
        ----------
        patience : float
            Seconds to wait.
        required : bool
            Whether a missing neighbour is an error; a resumed server goes on without.

        Raises
        ------
        RunError
            If a neighbour is missing and required.
        ConfigError
            If one is there whose graph, weights or model differ.
        """
        self._service.start()
        deadline = time.monotonic() + patience
        missing = dict.fromkeys(sort_names(self._links), "no answer")
        while missing:
            for unit in tuple(missing):
                try:
                    seconds = max(0.5, min(2.0, deadline - time.monotonic()))
                    greet(self.board, self._links[unit], self.identity, seconds)
                    del missing[unit]
                except LinkError as error:
                    missing[unit] = str(error)
            if not missing or time.monotonic() >= deadline:
                break
            time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
        if missing:
            text = "; ".join(f"unit {unit} ({reason})" for unit, reason in missing.items())
            line = f"waited {patience:g} s for the servers of the other units; missing: {text}"
            if required:
                raise RunError(line)
            log.warning("%s", line)
        return tuple(missing)

    def close(self) -> None:
        """End service and connections. An edge in doubt by now stays in doubt, and is named."""
        if self._ended:
            return
        self._ended = True
        self._pool.shutdown()
        self._service.close()
        for link in self._links.values():
            link.close()

    # ------------------------------------------------------------------ who was away

    def furthest(self) -> int:
        """Ask the neighbours how far they are; return the last exchange that one has closed."""
        jobs = [
            self._pool.submit(greet, self.board, link, self.identity, LOOK)
            for unit, link in self._links.items()
            if unit not in self.excluded
        ]
        for job in jobs:
            try:
                job.result()
            except (LinkError, ConfigError) as error:
                log.debug("a neighbour does not say how far it is: %s", error)
        return self.board.furthest()

    def skip(self, numbers: Sequence[int], following: int) -> None:
        """Take no part in some exchanges; the next one is ``following``."""
        self.board.skip(numbers, following)

    # ------------------------------------------------------------------ one exchange

    def exchange(self, number: int, own: Mapping[str, Vector]) -> Exchanged:
        """Send a vector (d,) to each neighbour and return what came back.

        Parameters
        ----------
        number : int
            The exchange, counted upwards, by which the ends' vectors are matched.
        own : mapping of str to array (d,)
            What each neighbour is sent; this is all that leaves the process.
        """
        parcels = {m: Parcel.of(own[m], self.identity.attempt) for m in self._links}
        self.board.open(number, parcels)
        for unit in self.excluded & parcels.keys():
            self.board.decide(unit, number, EdgeOutcome.DROPPED)
        jobs = {
            m: self._pool.submit(self._settling(edge, parcels[m], number).run)
            for m, edge in self.board.edges.items()
            if m not in self.excluded
        }
        outcomes, reasons = {}, {}
        for unit in self.board.edges:
            reason = jobs[unit].result() if unit in jobs else "excluded by the operator"
            outcomes[unit] = self.board.decide(unit, number, EdgeOutcome.DROPPED)
            if outcomes[unit] is not EdgeOutcome.USED:
                reasons[unit] = reason
        self._before_last, self._last = self._last, number
        arrived = {
            unit: self.shape.read(edge.chosen.data)
            for unit, edge in self.board.edges.items()
            if edge.chosen is not None
        }
        return Exchanged(outcomes, arrived, reasons, tuple(self.board.news()))

    def _settling(self, edge: Edge, own: Parcel, number: int) -> Settling:
        before = edge.outcomes.get(self._last, EdgeOutcome.USED)  # none before the first exchange
        away = before is not EdgeOutcome.USED and edge.left < self._last
        patience = Patience(self.settings.timeout, self.settings.longest, away=away)
        link = self._links[edge.unit]
        return Settling(
            self.board, edge, own, link, self.identity, number, self._before_last, patience
        )
