"""How the uploads of a run's rounds are collected: one by one in clear, or as masked sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from ..half import ServerHalf, summing
from .clear import ClearUploads
from .exchange import Reply
from .history import Round
from .masked import MaskedSums
from .question import Question
from .recovery import Recovery
from .round import Pending


class Collector(Protocol):
    """Collects the uploads of a run, round by round.

    Between ``open`` and ``close`` of a round messages are sent out and replies waited for, once at
    least: ``timeout`` says how long, ``retry`` whom to ask once more. A loop that knows no second
    try, as Flower's own, goes from ``open`` to ``close``.
    """

    @property
    def masked(self) -> bool:
        """Whether agents mask their uploads, so that the server reads sums of them alone."""
        ...

    def recovery(self, half: ServerHalf[Any], wanted: Recovery) -> Recovery:
        """Return what becomes of an agent whose node is gone, where ``wanted`` was asked for."""
        ...

    def renew(self, half: ServerHalf[Any], state: Any, position: int, start: Any) -> Any:
        """Return the state in which an agent is a newcomer again."""
        ...

    def open(self, pending: Pending) -> list[str]:
        """Begin a round and return whom to ask; for the others, ``absent`` says why not."""
        ...

    def timeout(self, pending: Pending) -> float:
        """Return how many seconds the next try may take."""
        ...

    def retry(
        self, pending: Pending, replies: Sequence[Message], grid: Grid, question: Question
    ) -> dict[str, Message]:
        """Return the messages of another try; none ends the collecting.

        ``replies`` are all that came in this round.
        """
        ...

    def close(self, pending: Pending, replies: Mapping[str, Reply]) -> Round:
        """Fold what can be folded of the replies and record the round.

        Raises
        ------
        RunError
            If fewer uploads than ``min_agents`` (or than were asked) could be folded.
        """
        ...


def collector_of(half: ServerHalf[Any]) -> Collector:
    """Return what collects the uploads for a half."""
    return ClearUploads() if summing(half) is None else MaskedSums()


__all__ = ["Collector", "collector_of"]
