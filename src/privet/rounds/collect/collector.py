"""The common part of how a round's uploads are collected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import Message
from flwr.serverapp import Grid

from privet.core import mapped

from ..exchange import Reply, send
from ..half import ServerHalf
from ..keep.checkpoint import Checkpoint
from ..options import RunOptions
from ..roster import Question
from ..session import Session
from ..task import Task
from .outcome import Folded
from .round import OpenRound


class Collector(ABC):
    """Chooses the agents of a round, sends their messages, and folds the uploads in the replies.

    Between ``open`` and ``fold`` of a round, messages are sent and replies waited for at least
    once: ``timeout`` returns how long, ``retry`` the messages to agents that are asked once more. A
    loop without retries, such as Flower's own, goes from ``open`` to ``fold``.
    """

    masked: ClassVar[bool] = False
    """Whether agents mask their uploads, so that the server reads sums of them alone."""

    def choose(self, options: RunOptions, session: Session, number: int) -> list[str]:
        """Return the agents that take part in a round."""
        return options.participation.select(number, session.roster.names, options.seed)

    def sweep(self, session: Session) -> int:
        """Return ``Turn.sweep``: 0, as rounds are counted."""
        return 0

    def is_over(self, session: Session) -> bool:
        """Whether no agent will ever be asked again."""
        return False

    def unfinished(self, session: Session) -> dict[str, Task]:
        """Return the tasks that agents were given and whose cost is not in their accounts yet."""
        return session.tasks

    @abstractmethod
    def open(self, opened: OpenRound) -> list[str]:
        """Begin a round and return the agents to ask."""

    @abstractmethod
    def reopen(self, opened: OpenRound) -> list[str] | None:
        """Begin another try; return the agents to ask, or None to open the round again."""

    def remember(  # noqa: B027
        self, half: ServerHalf[Any], checkpoint: Path | None, saved: Checkpoint | None
    ) -> None:
        """Write what a resume needs beside a checkpoint, and read it beside that gone on from."""

    def about(self) -> dict[str, int]:
        """Return what a checkpoint states of that."""
        return {}

    def agree(self, opened: OpenRound, grid: Grid, names: list[str]) -> list[str]:
        """Have agents agree on what they will be asked for; return those of them to ask."""
        return names

    def collect(
        self,
        opened: OpenRound,
        grid: Grid,
        messages: Mapping[str, Message],
        question: Question,
        journal: Callable[[Collection[str]], object],
    ) -> list[Message]:
        """Send the messages of a round and return all replies, those of retries included.

        ``journal`` is called with the names of the agents before they are sent anything.
        """
        layout, tally = opened.session.layout, opened.tally
        size = layout.dim * layout.dtype.itemsize
        take = partial(self.take, opened) if opened.large(size) else None
        at_once = max(1, mapped.LIMIT // max(1, 4 * size))
        replies: list[Message] = []
        while messages:
            timeout = self.timeout(opened)
            tally.tries += 1
            journal(messages)
            answers = send(grid, messages, timeout, take, tally.states, at_once)
            replies += answers.replies
            tally.missing.update(answers.missing)
            messages = self.retry(opened, replies, grid, question)
        return replies

    @abstractmethod
    def timeout(self, opened: OpenRound) -> float:
        """Return the seconds to wait for the replies of a try."""

    @abstractmethod
    def retry(
        self, opened: OpenRound, replies: Sequence[Message], grid: Grid, question: Question
    ) -> dict[str, Message]:
        """Return the messages to agents that are asked once more; none end the collecting."""

    @abstractmethod
    def take(self, opened: OpenRound, name: str, reply: Message) -> bool:
        """Accept a reply as it comes."""

    @abstractmethod
    def fold(self, opened: OpenRound, replies: Mapping[str, Reply]) -> Folded:
        """Check the replies, and fold the uploads into the state (raises ``RunError``)."""
