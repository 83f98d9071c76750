"""Flower's mods for clipping, noise and secure aggregation: none of them sees what is sent here.

They work on the one array record of a message; an upload of this library is bytes in a config
record. Around its ClientApp they would protect nothing, so they are refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from privet.core import ConfigError
from privet.core.errors import INSTEAD_OF_FLOWERS
from privet.wire.flower_internals import MODS


def refuse_mods(mods: Iterable[Any]) -> None:
    """Refuse Flower's own mods that would only seem to protect an upload.

    Raises
    ------
    ConfigError
        One line that names the mod and what to use in its place.
    """
    for mod in mods:
        for kind in (mod, *type(mod).__mro__):
            if getattr(kind, "__module__", "") in MODS:
                raise ConfigError(_line(getattr(kind, "__name__", type(mod).__name__)))


def mod_around() -> str:
    """Return why the handler that calls this must refuse, if such a mod is what called it.

    A mod of a ClientApp that was not made here is seen only on the call stack. It is enough to
    look at enrolment: those that check a message first do not pass that one on at all.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in MODS:
            # A function's own name, or the class of a mod that is an object.
            mod = frame.f_locals.get("self")
            return _line(frame.f_code.co_name if mod is None else type(mod).__name__)
        frame = frame.f_back
    return ""


def _line(name: str) -> str:
    return f"Flower's mod {name} protects nothing here: {INSTEAD_OF_FLOWERS}"
