"""Privacy-critical: the ledger of one run, light enough to travel in an agent's state and reply."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .accountant import Totals
from .events import LARGEST_COUNT, Release

LONGEST_ACCOUNT = 1 << 21
"""Characters of an account that are read: 10,000 to 15,000 different releases of this library's."""
_SHORT = 1 << 11
"""Characters of an account that is kept as it was read."""
_FEW_KINDS = 100
"""Sampled and Laplace releases of totals whose epsilon is kept."""
MOST_RELEASES = 16_000
"""Different releases of an account that are read: more than have so many characters in a run."""


@dataclass(frozen=True, slots=True)
class AgentLedger:
    """The releases of one run, held in memory by an agent; equal releases collapse to a count.

    Immutable: `record` returns a new ledger, so that it can be kept with a state that is written
    only on success.

    Attributes
    ----------
    entries
        (release, messages) in the order of first use; `accountant.epsilon_of` takes them as they
        are.
    totals
        Their sum, kept so that a message costs the same however many went before.
    """

    entries: tuple[tuple[Release, int], ...] = ()
    totals: Totals = field(default_factory=Totals, compare=False)

    @classmethod
    def of(cls, entries: Iterable[tuple[Release, int]]) -> AgentLedger:
        """Return the ledger of these (release, messages)."""
        kept = tuple(entries)
        return cls(kept, Totals().with_all(kept))

    @classmethod
    def joined(cls, texts: Iterable[str]) -> AgentLedger:
        """Return what several ledgers hold together, as JSON texts; empty ones hold nothing.

        Raises
        ------
        ValueError
            As `from_json`, or for releases that cannot be composed.
        """
        given = [text for text in texts if text]
        if len(given) == 1:
            return cls.from_json(given[0])
        return cls.of(entry for text in given for entry in cls.from_json(text).entries)

    def covers(self, other: AgentLedger) -> bool:
        """Whether all messages of another account are in this one, so that it costs no less."""
        return other.messages <= self.messages and other._counts() <= self._counts()

    def with_all_of(self, other: AgentLedger) -> AgentLedger:
        """Return the least account that covers this one and another."""
        return AgentLedger.of((self._counts() | other._counts()).items())

    def _counts(self) -> Counter[Release]:
        counts = Counter[Release]()
        for release, times in self.entries:
            counts[release] += times
        return counts

    def record(self, release: Release) -> AgentLedger:
        """Return the ledger with one more message.

        Raises
        ------
        UnsupportedAccountError
            As `Totals.add`.
        """
        entries, totals = self.entries, self.totals.add(release)
        for place, (known, times) in enumerate(entries):
            if known == release:
                changed = (*entries[:place], (known, times + 1), *entries[place + 1 :])
                return AgentLedger(changed, totals)
        return AgentLedger((*entries, (release, 1)), totals)

    @property
    def messages(self) -> int:
        """Number of messages recorded."""
        return sum(times for _, times in self.entries)

    def spent(self, delta: float) -> float:
        """Return the epsilon of everything recorded (see `accountant`).

        That of few kinds of releases is kept: where one process has agents and coordinator, and
        for equal agents, it is computed once.
        """
        totals = self.totals
        kinds = len(totals.sampled) + len(totals.laplace)
        return _epsilon(totals, delta) if 0 < kinds <= _FEW_KINDS else totals.epsilon(delta)

    def to_json(self) -> str:
        """Return the ledger as one flat JSON text."""
        entries = [{**known.to_dict(), "times": times} for known, times in self.entries]
        return json.dumps(entries, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> AgentLedger:
        """Rebuild a ledger from `to_json`; ValueError naming the entry for anything else.

        A text may come from the other side: it has at most `LONGEST_ACCOUNT` characters, and
        `MOST_RELEASES` entries.
        """
        return _short(text) if len(text) <= _SHORT else _long(text)


@lru_cache(maxsize=1 << 12)
def _short(text: str) -> AgentLedger:
    """Return the ledger of a short text: each message's is read again with the next one."""
    return AgentLedger.of(_entries(text))


@lru_cache(maxsize=2)
def _long(text: str) -> AgentLedger:
    """Return the ledger of a long text: an agent's last two are compared in several places."""
    return AgentLedger.of(_entries(text))


@lru_cache(maxsize=64)
def _epsilon(totals: Totals, delta: float) -> float:
    return totals.epsilon(delta)


def _entries(text: str) -> Iterator[tuple[Release, int]]:
    """Yield the (release, messages) of an account (raises ``ValueError``)."""
    if len(text) > LONGEST_ACCOUNT:
        raise ValueError(f"agent ledger is longer than {LONGEST_ACCOUNT} characters")
    try:
        entries = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("agent ledger is not JSON") from None
    if not isinstance(entries, list):
        raise ValueError("agent ledger is not a JSON list")
    if len(entries) > MOST_RELEASES:
        raise ValueError(f"agent ledger has more than {MOST_RELEASES} entries")
    for place, entry in enumerate(entries):
        yield _counted(entry, place)


def _counted(entry: Any, place: int) -> tuple[Release, int]:
    if not isinstance(entry, dict):
        raise ValueError(f"agent ledger entry {place} is not an object")
    times = entry.pop("times", None)
    if type(times) is not int or not 1 <= times <= LARGEST_COUNT:
        raise ValueError(f"agent ledger entry {place} has no integer 'times' from 1 to 1e12")
    try:
        return Release.from_dict(entry), times
    except ValueError as error:
        raise ValueError(f"agent ledger entry {place}: {error}") from None
    except RecursionError:  # of a nested value that the line would show
        raise ValueError(f"agent ledger entry {place} is nested") from None
