"""Rounds whose loop is the trainer of another library: PyTorch Lightning, Hugging Face.

Either steps torch optimizers, before whose steps `LoopParticipant.round` corrects the gradients
wherever they are (``hook``); nothing of the trainer is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from privet.core import ConfigError


def require_one_process(processes: int) -> None:
    """Refuse a trainer of several processes, of which a round corrects one's gradients alone.

    Raises
    ------
    ConfigError
    """
    if processes != 1:
        raise ConfigError(
            f"the trainer runs in {processes} processes: a round corrects the gradients of one; "
            "give it one device"
        )


def chosen(logged: Mapping[str, Any], names: Collection[str]) -> dict[str, float]:
    """Return some of the numbers that a trainer has logged (raises ``ConfigError``)."""
    if missing := [name for name in names if name not in logged]:
        raise ConfigError(
            f"metrics: the trainer has logged no {missing[0]!r}, only "
            f"{', '.join(sorted(logged)) or 'nothing'}"
        )
    return {name: float(logged[name]) for name in names}
