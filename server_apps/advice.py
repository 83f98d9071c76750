"""What may help a run that did not go well: said by its page and on the terminal alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STEPS = ("step-size", "step-size-base")


def advice(summary: Mapping[str, Any]) -> str:
    """Return what may help a run with this summary, empty where nothing is known."""
    config = summary.get("config")
    step = next((key for key in STEPS if key in (config or ())), "step size")
    if summary.get("status") == "interrupted":
        return f"It goes on with resume={summary.get('run-folder', '')}."
    if summary.get("diverged"):
        return (
            f"The models grew beyond all bounds. Try a smaller {step}; privet tune finds settings "
            "that converge."
        )
    if summary.get("no-better"):
        if summary.get("private"):
            return "Its noise hides what it learns. Try fewer rounds, or a larger epsilon."
        return (
            f"Unless the start was good already, try half of {step}, or twice as much where the "
            "loss hardly moves. privet tune finds settings that converge."
        )
    if summary.get("failures"):
        return (
            "Too few agents answered; their own logs say why. Where some may stay away, lower "
            "min-agents or raise round-timeout."
        )
    return ""
