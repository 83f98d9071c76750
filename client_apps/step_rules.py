"""Rules by which a local step size falls from round to round."""

from __future__ import annotations

import math
from typing import Any

from privet.core import ConfigError
from privet.core.key import setting

LEAST = 0.01
"""Share of the first step that cosine ends with."""


def step_rule(default: str = "constant", automatic: tuple[str, str] | None = None) -> Any:
    """Declare the key ``step-size-rule``."""
    return setting(
        default,
        "constant, divided by sqrt(1 + t) in round t = 0, 1, ..., or cosine: half a wave down to a "
        "hundredth over step-size-rounds, which it keeps then",
        choices=(*(("auto",) if automatic else ()), "constant", "inverse-sqrt", "cosine"),
        automatic=automatic,
    )


def step_rounds() -> Any:
    """Declare the key ``step-size-rounds``."""
    return setting(
        0, "rounds over which the step size falls", low=0, needs={"step_size_rule": "cosine"}
    )


def require_rounds(rule: str, rounds: int) -> None:
    """Refuse cosine without the number of its rounds (raises ``ConfigError``)."""
    if rule == "cosine" and not rounds:
        raise ConfigError(
            "step-size-rule = cosine: needs step-size-rounds, mostly those of the run"
        )


def step_in(step: Any, rule: str, rounds: int, round_: int) -> Any:
    """Return what is left of a step size, or of a column of them, in a round counted from 1.

    With t = round - 1, inverse-sqrt: step / sqrt(1 + t). cosine: the step times
    c + (1 - c) (1 + cos(pi t / T)) / 2 with c = 1/100 up to t = T, after I. Loshchilov and
    F. Hutter, "SGDR" (2017), (5), without restarts.
    """
    if rule == "inverse-sqrt":
        return step / math.sqrt(round_)
    if rule == "cosine":
        done = min(round_ - 1, rounds) / rounds
        return step * (LEAST + (1.0 - LEAST) * 0.5 * (1.0 + math.cos(math.pi * done)))
    return step
