"""Privacy-critical: what a node's operator lets analyses have, whatever a message asks.

Un-noised sums of an analysis leave a node only within these rules. They are those of a node that
reads a table of its own; where one process deals a table to all sites nobody sets any.

    rule             in the clear                              in a secure sum
    ----             ------------                              ---------------
    allow-analyses   the node refuses                          the node refuses
    sums-only        the node refuses                          it takes part
    min-records      the node refuses with fewer rows          the same
    min-cell         the node hides cells, and refuses sums    the coordinator's table alone: the
                     that give one                             node's own cells are in no message
    max-analyses     the node refuses the next                 the same
    pooled-baseline  the node refuses sums over those at risk  the same
                     at each time, unless it is true
    (of each)        the node answers `MOST_ANSWERS` rounds    the same
                     of it: over its lifetime where it has
                     analyses-path, else in a run of Flower

A secure sum is of three sites at least. What it says of one of them the others cannot know, unless
all of them but that one tell each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checks import count_in, flag_in
from .errors import BudgetRefused
from .told import Told

KEYS = (
    "allow-analyses", "min-records", "min-cell", "max-analyses", "sums-only", "pooled-baseline",
    "analyses-path",
)  # fmt: skip
MOST_ANSWERS = 200
"""Rounds of one analysis that a node with a table of its own answers: the longest take 70."""
_LONGEST_LINE = 4096
_LONGEST_SUM = 1 << 16
"""Bytes of the names of a masked sum, which are written down once for each analysis."""
_LONGEST_FILE = 1 << 25
"""Bytes of the file of answered analyses: it is read at each answer, in less than .1 s."""


@dataclass(frozen=True, slots=True)
class AnalysisRules:
    """The rules of a node for un-noised analyses.

    Attributes
    ----------
    allowed : bool
    min_records : int
        Rows, complete for the analysis, that the node has at least.
    min_cell : int
        Rows that a cell of a table has at least, or none at all; 1 for no rule.
    most : int
        ``max-analyses``: analyses that the node answers, over its lifetime, at however many points
        each; 0 for any number.
    answers : int
        Rounds of one analysis that it answers; 0 for any number.
    sums_only : bool
        Whether its sums leave the node masked alone.
    pooled_baseline : bool
        Whether the sums over those at risk at each time of an event may leave the node, which make
        a baseline hazard of all sites: late ones, and those over who has the event, are of few
        rows, if not of one.
    path : str
        ``analyses-path``, a file with a line for each analysis that was answered, and a short one
        for each of its further rounds; empty for none.
    """

    allowed: bool = True
    min_records: int = 1
    min_cell: int = 1
    most: int = 0
    answers: int = 0
    sums_only: bool = False
    pooled_baseline: bool = True
    path: str = ""

    @classmethod
    def from_node_config(cls, mapping: Mapping[str, Any]) -> AnalysisRules:
        """Read the rules; those of a node with a ``data-path`` have defaults that hide cells.

        Raises
        ------
        ValueError
            One line naming the key.
        """
        own = "data-path" in mapping
        path = mapping.get("analyses-path", "")
        if not isinstance(path, str) or (path and not Path(path).is_absolute()):
            raise ValueError(f"node-config: analyses-path = {path!r}, expected an absolute path")
        most = count_in(mapping, "max-analyses", 0)
        if most and not path:
            raise ValueError("node-config: max-analyses needs analyses-path, a file to count in")
        return cls(
            allowed=flag_in(mapping, "allow-analyses", default=True),
            min_records=count_in(mapping, "min-records", 10 if own else 1),
            min_cell=count_in(mapping, "min-cell", 5 if own else 1),
            most=most,
            answers=MOST_ANSWERS if own else 0,
            sums_only=flag_in(mapping, "sums-only", default=False),
            pooled_baseline=flag_in(mapping, "pooled-baseline", default=not own),
            path=path,
        )

    def screen(self, *, masked: bool, baseline: bool = False, noised: bool = False) -> None:
        """Refuse an analysis before anything is read (raises ``BudgetRefused``).

        ``baseline`` says that it sums over those at risk at each time of an event. A node with a
        table of its own answers ``noised`` sums under a budget alone: without one any noise would
        do, next to nothing as well.
        """
        if not self.allowed:
            raise BudgetRefused(Told.ANALYSES)
        if noised and self.answers:
            raise BudgetRefused(Told.NO_BUDGET)
        if self.sums_only and not masked:
            raise BudgetRefused(Told.SUMS_ONLY)
        if baseline and not self.pooled_baseline:
            raise BudgetRefused(Told.POOLED_BASELINE)

    def require_few_answers(self, before: int) -> None:
        """Refuse a round after so many answers to its analysis (raises ``BudgetRefused``).

        Each answers a question of the coordinator's choice: enough of them would give every row.
        """
        if 0 < self.answers <= before:
            raise BudgetRefused(Told.MOST_ANSWERS)

    def require_records(self, count: int) -> None:
        """Refuse a site with too few rows (raises ``BudgetRefused``)."""
        if count < self.min_records:
            why = f"{count} are complete, and min-records = {self.min_records}"
            raise BudgetRefused(Told.FEW_RECORDS) from ValueError(why)  # for its own log

    def note(
        self,
        experiment: str,
        what: str,
        settings: str,
        cohort: Mapping[str, Any] | None = None,
        summed: Sequence[str] = (),
        known_agents: Collection[str] | None = None,
    ) -> None:
        """Write a line for an answer to an analysis, before it is given.

        ``cohort`` is of which query of a database the node's rows are, and how many; ``summed`` are
        the names of the masked sum that the answer is part of, and ``known_agents`` those of whom
        the node's operator has pinned keys, None where there are none (`is_chain`).

        Which experiment a message is of is the coordinator's word, and an analysis of other
        settings is another one.

        Raises
        ------
        BudgetRefused
            If as many analyses as ``max-analyses``, or as many rounds of this one as any needs,
            were answered before, a sum of this analysis was over these agents and exactly one more,
            or without one of them, or the line cannot be written.
        """
        if not self.path:
            return
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BudgetRefused(Told.ANALYSES_FILE) from error
        try:
            self._note(file, experiment, what, settings, cohort or {}, summed, known_agents)
        except BudgetRefused:  # a ValueError itself
            raise
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BudgetRefused(Told.ANALYSES_FILE) from error
        finally:
            os.close(file)

    def _note(
        self,
        file: int,
        experiment: str,
        what: str,
        settings: str,
        cohort: Mapping[str, Any],
        summed: Sequence[str],
        known_agents: Collection[str] | None,
    ) -> None:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("analyses-path is no regular file")
        with os.fdopen(os.dup(file), "rb") as lines:
            known = _Counted.of(lines.read(_LONGEST_FILE + 1))
        mark = hashlib.sha256(json.dumps([experiment, what, settings]).encode()).hexdigest()
        answered = known.answers(mark)
        self.require_few_answers(answered)
        line: dict[str, Any] = {"round": answered + 1}
        if not answered:
            if 0 < self.most <= known.analyses:
                raise BudgetRefused(Told.MOST_ANALYSES)
            line = {"run": experiment, "analysis": what, "settings": settings[:_LONGEST_LINE]}
            line |= cohort
        if summed:
            before = known.summed(mark)
            if before and not is_chain(before, summed, known_agents):
                raise BudgetRefused(Told.DIFFERENCE)
            here = set(summed)
            if left := [name for name in before if name not in here]:
                line["left"] = left
            elif not before:
                line["sum"] = list(summed)
                if len(json.dumps(line["sum"], ensure_ascii=False).encode()) > _LONGEST_SUM:
                    raise ValueError(f"names of a sum that take more than {_LONGEST_SUM} bytes")
        text = (json.dumps({**line, "mark": mark}, ensure_ascii=False) + "\n").encode()
        size = os.fstat(file).st_size
        try:
            if os.write(file, text) < len(text):
                raise OSError("the line was cut off")
        except OSError:
            os.ftruncate(file, size)  # else no line could be read again
            raise
        os.fsync(file)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The lines of the file of answered analyses, counted without reading each as JSON.

    A quote within a text of a line is escaped, so that no setting can look like a mark.
    """

    lines: bytes
    analyses: int

    @classmethod
    def of(cls, lines: bytes) -> _Counted:
        """Count the analyses (raises ``ValueError`` for a file that is too long, or damaged)."""
        if len(lines) > _LONGEST_FILE:
            raise ValueError(
                f"analyses-path is over {_LONGEST_FILE >> 20} MiB: set max-analyses, and begin a "
                "new file where those in it may be counted anew"
            )
        # Without a copy: up to 32 MiB are read at each answer.
        kinds = [
            lines.startswith(kind) + lines.count(b"\n" + kind)
            for kind in (b'{"run": ', b'{"round": ')
        ]
        ends = lines.count(b'"}\n')
        if (lines and not lines.endswith(b"\n")) or not sum(kinds) == lines.count(_MARK) == ends:
            raise ValueError("analyses-path holds a line that is none of an analysis")
        if lines.count(b"\n") != ends or b"\0" in lines:
            raise ValueError("analyses-path holds a line that is none of an analysis")
        return cls(lines, kinds[0])

    def answers(self, mark: str) -> int:
        """Return how many rounds of an analysis were answered."""
        return self.lines.count(_MARK + mark.encode() + b'"')

    def summed(self, mark: str) -> list[str]:
        """Return the names of the last masked sum of an analysis; none where there was none."""
        end, left = len(self.lines), set[str]()
        while (place := self.lines.rfind(_MARK + mark.encode() + b'"', 0, end)) >= 0:
            start = self.lines.rfind(b"\n", 0, place) + 1
            line = json.loads(self.lines[start : self.lines.index(b"\n", place)])
            left.update(map(str, line.get("left", ())))
            if "sum" in line:
                return [name for name in map(str, line["sum"]) if name not in left]
            end = start
        return []


_MARK = b'"mark": "'


def is_chain(
    before: Collection[str], here: Collection[str], known: Collection[str] | None = None
) -> bool:
    """Whether a sum over ``here`` may come after one over ``before``, of which it is a part.

    Not if agents came, or exactly one left: the difference would be its upload. Nor if half of them
    left or more: then there could be two such sums without a common agent, who would compare them,
    and both together could lack exactly one. Both are also so of the ``known`` agents alone, whose
    keys are pinned: a coordinator knows what agents that it made up have sent.
    """
    every = [set(before)] if known is None else [set(before), set(before).intersection(known)]
    left = [len(some.difference(here)) for some in every]
    if not set(here) <= set(before) or 1 in left:
        return False
    return all(2 * gone < max(len(some), 1) for gone, some in zip(left, every, strict=True))


NO_RULES = AnalysisRules()
"""Those of a process that deals a table to all sites."""
