"""Why an agent that was asked is not in a round: a code, which decides, and a text for people.

A text may be an agent's own, so that nothing may depend on what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FailureCode(StrEnum):
    """The kinds of failures, as the metrics and ``history.jsonl`` name them."""

    NOT_CONNECTED = "not connected"
    EXCLUDED = "excluded"
    """By the operator."""
    OUT = "out"
    """It is not asked any more, or not in this round: its budget or its state is gone."""
    LATE = "late"
    LOST = "lost"
    """Flower lost the message, the node or its ClientApp."""
    REFUSED = "refused"
    """Its budget or its rules forbid the reply."""
    FAILED = "failed"
    """Its own error."""
    OTHER_APP = "other app"
    """Its ClientApp is not one of this library."""
    DROPPED = "dropped"
    """The server cannot use what it sent."""
    LEFT_OUT = "left out"
    """Of a secure sum that others could not be part of."""
    NOT_FINITE = "not finite"
    """The server found numbers in its upload that are not finite, or too large."""
    SAYS_NOT_FINITE = "says not finite"
    """It says so of numbers that the server cannot look at."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an agent was asked and not folded.

    Attributes
    ----------
    code : FailureCode
        All that a decision may depend on.
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


def overflowed(failures: Mapping[str, Failure], asked: int) -> bool:
    """Whether the failures of a round say that the run blows up.

    One upload in which the server itself finds such numbers is enough. Where it cannot look, in a
    secure sum or where private agents refuse a broadcast, half of those that were asked must say
    so: a single agent ends no run by its word.
    """
    codes = [failure.code for failure in failures.values()]
    if FailureCode.NOT_FINITE in codes:
        return True
    said = codes.count(FailureCode.SAYS_NOT_FINITE)
    return said > 0 and 2 * said >= asked
