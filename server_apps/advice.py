"""Advice on runs that failed or did not improve, for the report and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privet.rounds.divergence import WORSE, remedy
from privet.rounds.half import STEP_KEYS


def advice(summary: Mapping[str, Any]) -> str:
    """Return what may help a run with this summary, empty where nothing is known."""
    if summary.get("status") == "interrupted":
        return f"It goes on with resume={summary.get('run-folder', '')}."
    diverged = bool(summary.get("diverged"))
    if diverged or summary.get("no-better"):
        keys = [key for key in STEP_KEYS if key in summary.get("config", {})]
        private = bool(summary.get("private"))
        doubtful = bool(summary.get("doubtful-data"))
        hint = remedy(keys, diverged=diverged, private=private, doubtful=doubtful)
        search = "" if private else "; privet tune finds settings that converge"
        return f"{hint[0].upper()}{hint[1:]}{search}."
    if summary.get("failures"):
        return (
            "Too few agents answered; their own logs say why. Where some may stay away, lower "
            "min-agents or raise round-timeout."
        )
    return ""


def remark(summary: Mapping[str, Any]) -> str:
    """Return what a run's accuracy hides, "" for nothing.

    Its loss is more than `WORSE` of it above that of the starting model, or of the model that says
    the same of every row; or its accuracy is below the latter's, or in a private run below what an
    agent has alone, without noise.
    """
    if summary.get("diverged") or summary.get("no-better"):
        return ""
    constant = (summary.get("baselines") or {}).get("constant") or {}
    start = summary.get("start") or {}
    names = (("the starting model", start), ("a model that says the same of every row", constant))
    known = [(one["loss"], name) for name, one in names if isinstance(one.get("loss"), float)]
    loss, accuracy = summary.get("loss"), summary.get("accuracy")
    parts = []
    if known and isinstance(loss, int | float):
        least, name = min(known)
        if loss > least + WORSE * abs(least):
            rose = isinstance(accuracy, float) and accuracy > (start.get("accuracy") or 1.0)
            parts.append(
                f"loss {loss:.4g} is far above {least:.4g}, that of {name}"
                + (", although accuracy rose: its probabilities mislead" if rose else "")
            )
    common = constant.get("accuracy")
    if isinstance(accuracy, float) and isinstance(common, float) and accuracy < common:
        parts.append(f"accuracy {accuracy:.4f} is below the commonest class's {common:.4f}")
    if not summary.get("private"):
        return "; ".join(parts)
    keys = [key for key in STEP_KEYS if key in summary.get("config", {})]
    alone = ((summary.get("baselines") or {}).get("alone") or {}).get("accuracy")
    if isinstance(accuracy, float) and isinstance(alone, float) and accuracy < alone:
        parts.append(
            f"accuracy {accuracy:.4f} is below {alone:.4f}, the mean of agents that train alone "
            "without noise"
        )
        averaged = ((summary.get("baselines") or {}).get("fed-avg") or {}).get("accuracy")
        if isinstance(averaged, float) and averaged < alone:
            steps = " or ".join(keys)
            parts.append(
                f"FedAvg with the same work has {averaged:.4f} without noise, so noise is not "
                f"the only cause: try a larger {steps or 'step'} while the loss still falls"
            )
            return "; ".join(parts)
        parts.append("at this epsilon more rows or agents are needed")
    if parts:
        parts.append(remedy(keys, private=True))
    return "; ".join(parts)
