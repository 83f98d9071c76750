"""The top of a run's page: accuracy beside its baselines, privacy and rounds, then the rest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from privet.core import format as fmt
from privet.core.format import text

from . import tables
from .baselines import baselines_line
from .runs import RecordedRun, settings_of

_SWING = {"accuracy": 0.02, "loss": 0.05}
"""Change from one round to the next, of a loss relative, from which noise is said to dominate."""
_ROUNDS_OF_A_SWING = 8


def headline(run: RecordedRun) -> str:
    """Return the figures of one run: three large ones, and the others small."""
    quality = "accuracy" if run.last("accuracy") else "loss"
    large = [*_quality(run, quality), *_privacy(run), *_rounds(run)]
    small = tables.figures(run, without=(quality, "rounds", "epsilon"))
    rest = f'<dl class="tiles">{small}</dl>' if small else ""
    return f'<dl class="large">{"".join(large)}</dl>{rest}'


def _quality(run: RecordedRun, key: str) -> list[str]:
    shown = tables.figure(run, key)
    beside = text(baselines_line(run.summary, fmt.fraction, fmt.measure)).replace(
        " %", "\N{NO-BREAK SPACE}%"
    )
    if beside and run.privacy.private:
        beside = f"without noise, outside of ε: {beside}"
    aside = f"<dd><small>{beside}</small></dd>" if beside else ""
    return [f"<div>{shown}{aside}</div>"] if shown else []


def _rounds(run: RecordedRun) -> list[str]:
    asked = settings_of(run).get("num-server-rounds")
    early = isinstance(asked, int) and 0 < len(run.rounds) < asked
    aside = f"<dd><small>of {asked} at most</small></dd>" if early else ""
    return [f"<div>{tables.figure(run, 'rounds')}{aside}</div>"]


def _privacy(run: RecordedRun) -> list[str]:
    """Return a tile for each promise, or one that says that nothing is promised."""
    privacy = run.privacy
    if privacy.private is False:
        return [f"<div>{_not_private(run)}</div>"]
    tiles = [_promise(entry) for entry in tables.entries_of(privacy)]
    if not tables.is_claimed(run) and (own := tables.figure(run, "epsilon")):
        tiles.insert(0, f"<div>{own}</div>")
    return tiles


def _promise(entry: Mapping[str, Any]) -> str:
    shown, to = fmt.epsilon(entry.get("epsilon")), text(entry["to"])
    if shown == "∞":
        aside = f"<dd><small>no guarantee against the {to}</small></dd>"
        return f'<div><dt>Privacy</dt><dd class="soft">None</dd>{aside}</div>'
    delta = text(fmt.stated(entry.get("delta")))
    return (
        f"<div><dt>Privacy spent, ε</dt><dd>{text(shown)}</dd>"
        f"<dd><small>at δ = {delta}, against the {to}</small></dd></div>"
    )


def _not_private(run: RecordedRun) -> str:
    why = run.privacy.reason.removeprefix("not private: ")
    reason = f"<dd><small>{text(why)}</small></dd>" if why else ""
    stored = tables.final(run, "epsilon")
    where = f" {tables.attributes(0, 'epsilon', stored)}" if stored else ""
    return (
        f'<dt>Privacy</dt><dd class="soft" data-privacy="not-private"><span{where}>Not private'
        f"</span></dd>{reason}"
    )


def broken_promise(run: RecordedRun) -> str:
    """Return what a run was to promise and does not, "" where it keeps its word."""
    target = settings_of(run).get("target-epsilon")
    if not isinstance(target, int | float) or target <= 0 or run.privacy.private is None:
        return ""
    asked = f"target-epsilon = {target:g} was asked for"
    if run.privacy.private is False:
        return f"{asked}, and the run is not private"
    spent = [entry.get("epsilon") for entry in run.privacy.entries]
    over = [one for one in spent if isinstance(one, int | float) and one > target * (1 + 1e-9)]
    return f"{asked}, and ε is {fmt.epsilon(max(over))}" if over else ""


def swing(run: RecordedRun, key: str) -> str:
    """Return a note where a private run's curve moves up and down by more than noise should.

    It looks at the later half of the rounds: the median change from one round to the next.
    """
    _, values = run.series(key)
    half = values[len(values) // 2 :]
    if run.privacy.private is not True or key not in _SWING or len(values) < _ROUNDS_OF_A_SWING:
        return ""
    steps = [second - first for first, second in pairwise(half)]
    turns = sum(first * second < 0 for first, second in pairwise(steps))
    change = statistics.median(map(abs, steps))
    size = change if key == "accuracy" else change / max(abs(statistics.median(half)), 1e-300)
    if not size > _SWING[key] or 3 * turns < len(steps):
        return ""
    moved = f"{100 * change:.1f} points" if key == "accuracy" else fmt.measure(change)
    return (
        f"Noise dominates: the {key} moves by {moved} from one round to the next. Fewer rounds "
        "share the same ε with less noise in each."
    )
