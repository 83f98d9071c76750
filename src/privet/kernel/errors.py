"""Privacy-critical: the errors of this room, one line each that names no record.

A line may hold lengths and counts. A private node sends what ``told`` names instead, and of an
error without one the text of its class (`privet.kernel.exits`).
"""

from __future__ import annotations

from .told import Told


class KernelError(ValueError):
    """A failure in this room.

    Parameters
    ----------
    text : str
        The line, for the node's own log and for nodes that are not private.
    told : Told, optional
        What a private node sends; not needed where the text is one of these.
    """

    def __init__(self, text: str, told: Told | None = None) -> None:
        super().__init__(text)
        self.told = told


class NoCertificateError(KernelError):
    """No proven sensitivity exists for these settings, so no epsilon may be computed for it."""


class NoiseError(KernelError):
    """The requested noise does not match its charge; the text holds public numbers only."""


class UnsupportedAccountError(KernelError):
    """The releases cannot be accounted together or at all (mixed relations)."""


class RecordsError(KernelError):
    """The requested value of the records cannot be computed; the text holds public numbers only."""


class LedgerError(KernelError):
    """The ledger file is damaged or cannot be trusted; somebody has to inspect it."""


class MovedError(KernelError):
    """The ledger has been charged since, or is another one."""


class MaskError(KernelError):
    """An upload must not be masked for this roster; the text names agents and no record."""


class BudgetRefused(KernelError):
    """The node's own rules: this reply must not leave."""
