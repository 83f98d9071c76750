"""The failure of an agent in a round: a code, for decisions, and a text for people.

A text may come from an agent, so no decision may depend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FailureCode(StrEnum):
    """The kinds of failures, as the metrics and ``history.jsonl`` name them."""

    NOT_CONNECTED = "not connected"
    EXCLUDED = "excluded"
    """By the operator."""
    OUT = "out"
    """It is no longer asked, or not in this round: its budget or its state is gone."""
    LATE = "late"
    LOST = "lost"
    """Flower lost the message, the node or its ClientApp."""
    STOPPED = "stopped"
    """The run was to stop before the reply came: the round is given up."""
    REFUSED = "refused"
    """Its budget or its rules forbid the reply."""
    FAILED = "failed"
    """Its own error."""
    ENROL_AGAIN = "enrols again"
    """It does not hold the encoding that was agreed on, and is told it before the next round."""
    OTHER_APP = "other app"
    """Its ClientApp is not one of this library."""
    DROPPED = "dropped"
    """The server cannot use what it sent."""
    IMPOSSIBLE = "impossible"
    """The server found sums in its upload that no records give."""
    LEFT_OUT = "left out"
    """Of a secure sum that others could not be part of."""
    NOT_FINITE = "not finite"
    """The server found numbers in its upload that are not finite, or too large."""
    SAYS_NOT_FINITE = "says not finite"
    """Its own report on numbers that the server cannot check."""
    IN_VAIN = "in vain"
    """Not asked again: its last task was charged, and no upload was folded since."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a chosen agent's upload was not folded.

    Attributes
    ----------
    code : FailureCode
        The kind of failure; decisions depend on it alone.
    text : str
        One line for people.
    """

    code: FailureCode
    text: str

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, str]:
        """Return it as JSON types."""
        return {"code": str(self.code), "text": self.text}

    @classmethod
    def from_json(cls, value: Any) -> Failure:
        """Return the failure of ``to_json``."""
        return cls(FailureCode(value["code"]), str(value["text"]))


_NOT_FINITE = (FailureCode.NOT_FINITE, FailureCode.SAYS_NOT_FINITE)
FOR_A_PERSON = frozenset(
    {
        *(FailureCode.OUT, FailureCode.REFUSED, FailureCode.EXCLUDED, FailureCode.OTHER_APP),
        FailureCode.IMPOSSIBLE,
    }
)
"""The kinds of failures that are there until a person changes something."""
FRUITLESS = frozenset(
    {
        *_NOT_FINITE,
        *(FailureCode.LATE, FailureCode.LOST, FailureCode.FAILED, FailureCode.DROPPED),
        FailureCode.ENROL_AGAIN,
    }
)
"""Failures of a task that may have been charged, or after which the agent enrols again. A private
run stops asking after `REPEATS` of them in a row."""


def not_finite(failures: Mapping[str, Failure]) -> list[str]:
    """Return the agents whose numbers were not finite, by their own word or the server's check."""
    return [name for name, failure in failures.items() if failure.code in _NOT_FINITE]


def overflowed(
    failures: Mapping[str, Failure],
    chosen: int,
    never_folded: Collection[str] = (),
    lately: Collection[str] | None = None,
) -> bool:
    """Whether the failures of a round show that the run diverges.

    Half of the chosen agents must have sent numbers that are not finite, or reported them where the
    server cannot check, in a secure sum or if private agents refuse a broadcast. The fault of one
    agent's data ends no run, however few a round has: it counts beside another's in this round, or
    in the ones before it, which ``lately`` names (None in a run of one agent). ``never_folded`` are
    agents of which nothing was ever folded, in a run that has folded uploads of others: what is not
    finite at them is not counted.
    """
    found = not_finite(failures)
    counted = [name for name in found if name not in never_folded]
    if not counted or 2 * len(counted) < chosen - (len(found) - len(counted)):
        return False
    return lately is None or len({*counted, *lately}) > 1
