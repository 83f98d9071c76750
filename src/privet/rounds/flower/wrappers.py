"""Wrappers that would change what a strategy of this library is given: they are refused.

Flower's strategies for differential privacy clip and perturb the array records of replies, and the
model that a round returns. An upload of this library is in no array record, and the next round goes
on from the strategy's own state: around one of its strategies they protect nothing.
"""

from __future__ import annotations

import sys
from types import FrameType

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from privet.core import ConfigError
from privet.core.errors import INSTEAD_OF_FLOWERS

WRAPPERS = (
    DifferentialPrivacyServerSideFixedClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyClientSideAdaptiveClipping,
)
_METHODS = {"start", "summary", "configure_train", "aggregate_train"}


def refuse_wrappers(strategy: object) -> None:
    """Refuse to be driven by one of these wrappers, or by a subclass.

    They touch the strategy they are given first in ``summary`` or ``configure_train``, before
    any message is sent, and hand it nothing that names them: only the call stack does.

    Raises
    ------
    ConfigError
        One line that names the wrapper and what to use in its place.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _METHODS:
            caller = frame.f_locals.get("self")
            if isinstance(caller, WRAPPERS):
                raise ConfigError(
                    f"{type(caller).__name__} around {type(strategy).__name__} protects nothing: "
                    f"{INSTEAD_OF_FLOWERS}"
                )
        frame = frame.f_back


def refuse_changed_model(strategy: object, given: ArrayRecord, returned: ArrayRecord) -> None:
    """Refuse to begin a round with another model than the last one returned.

    The strategy goes on from its own state: what was changed on the way would be lost.

    Raises
    ------
    ConfigError
        If the arrays differ.
    """
    if given is not returned and given != returned:
        raise ConfigError(
            f"{type(strategy).__name__}: the model given is not the one it returned last; a "
            "wrapper that changes it changes nothing, as the strategy goes on from its own state"
        )
