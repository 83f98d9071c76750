"""Agents that rounds go without: those that a deadline keeps dropping, those never folded at all.

The limit of a run is that of the agents in it, so a run without some of them ends elsewhere.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from privet.agents.base import LOCAL_KEYS
from privet.core.errors import listed

from .failure import FailureCode
from .late import late_agents
from .observers import Observer
from .session import Round

if TYPE_CHECKING:
    from .run import Run

log = logging.getLogger("flwr.privet")

LASTING = 3
"""The number of its rounds in a row that an agent must be late in to be named in the log."""

MOST_NAMED = 10
"""Lines at a run's end on what happened often."""

NOT_MEASURED = "no round measured it"


class Lateness(Observer):
    """Names agents that a deadline keeps dropping, each once, with what helps.

    Parameters
    ----------
    local_steps : str
        The run-config key of the number of local steps, empty if there is none.
    """

    def __init__(self, local_steps: str) -> None:
        self.local_steps = local_steps
        self.streaks: dict[str, int] = {}
        self.named: set[str] = set()

    def on_begin(self, run: Run) -> None:
        """Look at the rounds before a resume."""
        for done in run.session.history:
            self._add(done)

    def on_round(self, run: Run, done: Round) -> str | None:
        """Name the agents that were late once too often."""
        self._add(done)
        new = [
            name
            for name, streak in self.streaks.items()
            if streak >= LASTING and name not in self.named
        ]
        if new:
            self.named.update(new)
            log.warning(
                "%s; without them the run ends elsewhere: %s (docs/how-to/slow-agents.md)",
                listed(f"agent {name}: late in {LASTING} rounds in a row" for name in new),
                self._remedy(run),
            )
        return None

    def _add(self, done: Round) -> None:
        for name, failure in done.failures.items():
            if failure.code == FailureCode.LATE:
                self.streaks[name] = self.streaks.get(name, 0) + 1
        for name in self.streaks.keys() & set(done.participants) if self.streaks else ():
            del self.streaks[name]

    def _remedy(self, run: Run) -> str:
        longer = f"try a round-timeout above {run.options.round_timeout:g}"
        if self.local_steps in LOCAL_KEYS:
            return f"{longer}, or a smaller {self.local_steps} in the config of their nodes"
        return f"{longer}, or a smaller {self.local_steps}" if self.local_steps else longer


class Complaints(Observer):
    """Says at a run's end how often an agent's upload was not in a round, where it was often."""

    def on_end(self, run: Run) -> None:
        """Say what was logged once, and happened again."""
        found = ((count, name, what) for (name, _), (what, count) in run.session.complaints.items())
        often = sorted((one for one in found if one[0] > 1), reverse=True)
        for count, name, what in often[:MOST_NAMED]:
            log.warning("agent %s, %d times: %s", name, count, what)
        if len(often) > MOST_NAMED:
            log.warning("%d more such lines; the report has all", len(often) - MOST_NAMED)

    def on_abort(self, run: Run) -> None:
        """As at the end."""
        self.on_end(run)


def unknown_residual(run: Run) -> str:
    """Return why the last residual is unknown, with the agents that it lacks; "" if it is known."""
    session, history = run.session, run.session.history
    if not history or not math.isnan(history[-1].residual):
        return ""
    names = session.roster.names
    if run.collector.masked:
        last = history[-1]
        absent = [name for name in names if name not in set(last.participants)]
        reasons = listed(f"agent {name}: {_in_round(last, name)}" for name in absent)
        if not reasons:
            return NOT_MEASURED
        return f"a secure sum has it of all agents alone; in the last one {reasons}"
    if not session.gaps.tables and any(done.participants for done in history):
        return NOT_MEASURED  # by the rounds that there were, as by the first of two exchanges
    unknown = [names[position] for position in session.gaps.unknown()]
    return _never_folded(unknown, history) or NOT_MEASURED


def _in_round(done: Round, name: str) -> str:
    return done.failures[name].text if name in done.failures else "not chosen"


def _never_folded(names: Iterable[str], history: Sequence[Round]) -> str:
    """Return why these agents were not folded in any round, as one line."""
    late = late_agents(history)
    folded = {name for done in history for name in done.participants}
    failed = {name: why.text for done in history for name, why in done.failures.items()}

    def reason(name: str) -> str:
        if name in folded:
            return "not folded since it started again"
        if name in late:
            return str(late[name])
        return f"never folded: {failed[name]}" if name in failed else "never chosen"

    return listed(f"agent {name}: {reason(name)}" for name in names)
