"""Privacy-critical: the errors of this room, one line each that names no record."""

from __future__ import annotations


class NoCertificateError(ValueError):
    """No proven sensitivity exists for these settings, so no epsilon may be computed for it."""


class NoiseError(ValueError):
    """The requested noise does not match its charge; the text holds public numbers only."""


class UnsupportedAccountError(ValueError):
    """The releases cannot be accounted together or at all (mixed relations)."""


class RecordsError(ValueError):
    """The requested value of the records cannot be computed; the text holds public numbers only."""


class LedgerError(ValueError):
    """The ledger file is damaged or cannot be trusted; somebody has to inspect it."""


class MaskError(ValueError):
    """An upload must not be masked for this roster; the text names agents and no record."""


class BudgetRefused(ValueError):
    """The node's own rules: this reply must not leave.

    Attributes
    ----------
    reason
        One line that can be sent back to the coordinator; it names the rule and public numbers
        only, never a record.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
