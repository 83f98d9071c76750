"""How a check says that a promise is broken."""

from __future__ import annotations


class CheckFailed(AssertionError):
    """A promise that an algorithm does not keep; its text is one line."""


def require(kept: bool, otherwise: str) -> None:
    """Raise ``CheckFailed`` with this text unless a promise is kept."""
    if not kept:
        raise CheckFailed(otherwise)
