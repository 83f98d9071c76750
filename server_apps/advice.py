"""Advice on runs that failed or did not improve, for the report and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privet.strategies.half import STEP_KEYS
from privet.strategies.run.divergence import remedy


def advice(summary: Mapping[str, Any]) -> str:
    """Return what may help a run with this summary, empty where nothing is known."""
    if summary.get("status") == "interrupted":
        return f"It goes on with resume={summary.get('run-folder', '')}."
    diverged = bool(summary.get("diverged"))
    if diverged or summary.get("no-better"):
        keys = [key for key in STEP_KEYS if key in summary.get("config", {})]
        private = bool(summary.get("private"))
        hint = remedy(keys, diverged=diverged, private=private)
        search = "" if private else "; privet tune finds settings that converge"
        return f"{hint[0].upper()}{hint[1:]}{search}."
    if summary.get("failures"):
        return (
            "Too few agents answered; their own logs say why. Where some may stay away, lower "
            "min-agents or raise round-timeout."
        )
    return ""
