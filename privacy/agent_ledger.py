"""The ledger of one run, light enough to travel in an agent's state and reply."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from privet.privacy.accountant import Account, account, epsilon_of_messages
from privet.privacy.events import Release


@dataclass(frozen=True, slots=True)
class AgentLedger:
    """The releases of one run, held in memory by an agent; equal releases collapse to a count.

    Immutable: `record` returns a new ledger, so that it can be kept with a state that is written
    only on success.
    """

    entries: tuple[tuple[Release, int], ...] = ()

    def record(self, release: Release) -> AgentLedger:
        """Return the ledger with one more message."""
        for place, (known, times) in enumerate(self.entries):
            if known == release:
                changed = (*self.entries[:place], (known, times + 1), *self.entries[place + 1 :])
                return AgentLedger(changed)
        return AgentLedger((*self.entries, (release, 1)))

    @property
    def messages(self) -> int:
        """Number of messages recorded."""
        return sum(times for _, times in self.entries)

    def releases(self) -> list[Release]:
        """Return the recorded releases with the number of messages folded into their counts."""
        return [replace(known, count=known.count * times) for known, times in self.entries]

    def spent(self, delta: float) -> float:
        """Return the RDP epsilon of everything recorded (see `accountant.epsilon_rdp`)."""
        return epsilon_of_messages(self.entries, delta)

    def account(self, delta: float) -> Account:
        """Return the full account of everything recorded (the smaller of RDP and PLD)."""
        return account(self.releases(), delta)

    def to_json(self) -> str:
        """Return the ledger as one flat JSON text."""
        entries = [f'{_head(known)},"times":{times}}}' for known, times in self.entries]
        return f"[{','.join(entries)}]"

    @classmethod
    def from_json(cls, text: str) -> AgentLedger:
        """Rebuild a ledger from `to_json`; ValueError naming the entry for anything else."""
        try:
            entries = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("agent ledger is not JSON") from None
        if not isinstance(entries, list):
            raise ValueError("agent ledger is not a JSON list")
        return cls(tuple(_counted(entry, place) for place, entry in enumerate(entries)))


@lru_cache(maxsize=64)
def _head(release: Release) -> str:
    """Return a release as a JSON object that is not closed yet."""
    return json.dumps(release.to_dict(), separators=(",", ":"))[:-1]


def _counted(entry: Any, place: int) -> tuple[Release, int]:
    if not isinstance(entry, dict):
        raise ValueError(f"agent ledger entry {place} is not an object")
    times = entry.pop("times", None)
    if type(times) is not int or times < 1:
        raise ValueError(f"agent ledger entry {place} has no positive integer 'times'")
    try:
        return Release.from_dict(entry), times
    except ValueError as error:
        raise ValueError(f"agent ledger entry {place}: {error}") from None
