"""Control of a run under way, by a file or SIGTERM, and alarms to its operator."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from privet.core.errors import one_line
from privet.core.files import read_text
from privet.rounds.stop import Stop
from privet.strategies import Observer, Round, Run

if TYPE_CHECKING:  # it loads FastAPI
    from .peers.mixer import NetworkMixer

log = logging.getLogger("flwr.privet")

FILE_NAME = "control.toml"
LONGEST = 1 << 20
"""Bytes of the file that are read."""
AWAY = 0
"""In place of the node of an excluded agent that is not connected."""
ABSENCES = 3
"""Rounds in a row without an agent after which the run warns of it."""
SPENT_SHARE = 0.9
"""Share of the target epsilon above which the run warns."""


class Control(Observer):
    """Reads ``control.toml`` of the run folder before every round, and every try of one.

    ``stop = true`` ends the run after the round under way; ``exclude = "3,7"`` leaves agents out
    and ``exclude-units = "1"`` neighbouring units, instead of those of the run config. A file that
    cannot be read, or holds another key, changes nothing and is a warning.

    With ``readmit`` an excluded agent takes part again once its node was away, or another node has
    its name, until ``exclude`` has not named it in between. A resume begins with whom it names.
    """

    def __init__(
        self, folder: Path, exclude: str, mixer: NetworkMixer | None, *, readmit: bool = False
    ) -> None:
        self.path, self.mixer, self.readmit = folder / FILE_NAME, mixer, readmit
        self._nodes: dict[str, int] = {}
        self._back: set[str] = set()
        self.given = {"exclude": exclude, "exclude-units": ""}
        self._refused = ""
        self._unknown: set[str] = set()

    def on_begin(self, run: Run) -> None:
        """Leave out whom the run config names."""
        self._apply(run)

    def on_round(self, run: Run, done: Round) -> str | None:
        """Read the file again."""
        return Stop.REQUEST if self._apply(run) else None

    def on_try(self, run: Run) -> None:
        """Read the file again, so that a stop need not wait for a round that succeeds."""
        if self._apply(run):
            run.stopping.set()

    def _apply(self, run: Run) -> bool:
        requested = {**self.given, **self._read()}
        roster = run.session.roster
        named = _names(requested["exclude"])
        roster.excluded = named - self._readmitted(run, named) if self.readmit else named
        unknown = set(named) - roster.agents.keys()
        if unknown - self._unknown:
            log.warning("exclude: no agent is called %s", ", ".join(sorted(unknown)))
        self._unknown = unknown
        if self.mixer is not None:
            self.mixer.leave_out(_names(requested["exclude-units"]))
        return bool(requested.get("stop"))

    def _readmitted(self, run: Run, named: frozenset[str]) -> set[str]:
        """Return those of the named agents that came back since they were left out."""
        roster = run.session.roster
        self._nodes = {name: node for name, node in self._nodes.items() if name in named}
        self._back &= named
        for name in sorted(named & roster.agents.keys() - self._back):
            node = roster.agents[name].node
            if node not in roster.online:
                self._nodes[name] = AWAY
            elif self._nodes.setdefault(name, node) != node:
                self._back.add(name)
                run.session.remark(f"agent {name} takes part again: its node is back (readmit)")
        return self._back

    def _read(self) -> dict[str, Any]:
        if not os.path.lexists(self.path):
            return {}
        try:
            requested = tomllib.loads(read_text(self.path, LONGEST))
            kinds = {"stop": bool, "exclude": str, "exclude-units": str}
            for key, value in requested.items():
                if not isinstance(value, kinds.get(key, ())):
                    raise ValueError(f"{key} = {value!r}: expected stop, exclude or exclude-units")
        except (OSError, ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)  # whose text depends on where it was found
            refused = "its lists are nested too deep" if deep else one_line(str(error))
            if refused != self._refused:
                log.warning("%s is not followed: %s", self.path, refused)
            self._refused = refused
            return {}
        self._refused = ""
        return requested


class Alarms(Observer):
    """Warns, once each time, of what an operator should look at; ``raised`` has what is in force.

    That a run comes near its target epsilon is its plan, and no warning.
    Failed checkpoints and nodes whose data changed are warned of where they are noticed.
    """

    def __init__(self, target_epsilon: float) -> None:
        self.limit = SPENT_SHARE * target_epsilon if target_epsilon > 0 else math.inf
        self.absences: Counter[str] = Counter()
        self.raised: dict[str, bool] = {}

    def on_round(self, run: Run, done: Round) -> str | None:
        """Count the round, and warn."""
        for name in done.participants:
            self.absences[name] = 0
        for name, why in done.failures.items():
            self.absences[name] += 1
            if (count := self.absences[name]) == ABSENCES:
                line = f"agent {name} was absent in {count} rounds in a row: {why}"
                log.warning("round %d: %s", done.round, line)
        spent = self.limit < done.epsilon < math.inf
        if spent and not self.raised.get("epsilon"):
            log.info("round %d: epsilon %.6g, near the target", done.round, done.epsilon)
        self.raised = {
            "absences": any(count >= ABSENCES for count in self.absences.values()),
            "epsilon": spent,
            "checkpoint": bool(run.saved.error),
            "data-changed": run.session.roster.data_changes > 0,
        }
        return None


def _names(text: str) -> frozenset[str]:
    r"""Return the names of a list; ``\,`` is a comma of a name, and ``\ `` a space at its end.

    An agent chooses its name, and any can be left out.
    """
    names = set()
    for part in re.findall(r"(?:\\[\\, ]|[^,])+", text):
        signs = re.findall(r"\\[\\, ]|.", part, re.DOTALL)
        while signs and signs[-1].isspace():
            signs.pop()
        while signs and signs[0].isspace():
            signs.pop(0)
        names.add("".join(sign[-1] for sign in signs))
    return frozenset(names - {""})


@contextmanager
def stopped_by_sigterm(stopping: threading.Event) -> Iterator[None]:
    """Let SIGTERM set an event while the block runs; a second one ends the process.

    SIGINT raises KeyboardInterrupt as ever, and sets the event too: Python drops an exception that
    is raised while it frees an object.

    Python hands signals to its main thread only; in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        log.warning("SIGTERM: the run ends after this round")
        stopping.set()

    def interrupt(number: int, frame: FrameType | None) -> None:
        stopping.set()
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGTERM, stop)
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, usual)
