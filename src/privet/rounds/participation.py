"""The participants of a round: all, a fixed fraction, by turns, coin flips, or a given schedule.

Draws come from a separate generator per round over the sorted agent names, so the choice does not
depend on Flower's random node ids or on the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from privet.core import ConfigError
from privet.core.key import read, setting
from privet.kernel import stream


class Participation(Protocol):
    """Chooses the participants of a round."""

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the participants among the sorted names, in that order."""
        ...


@dataclass(frozen=True, slots=True)
class All:
    """Every agent takes part in every round."""

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return all names."""
        return list(names)


@dataclass(frozen=True, slots=True)
class Fraction:
    """A fixed number of agents, max(1, round(fraction * N)), uniformly without replacement."""

    fraction: float

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction = {self.fraction!r}: must be > 0 and <= 1")

    def count(self, total: int) -> int:
        """Return the number of participants of a round, of ``total`` agents."""
        return max(1, round(self.fraction * total))

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the sampled names."""
        count = self.count(len(names))
        rng = stream(seed, "participation", round_=round_)
        chosen = rng.choice(len(names), size=min(count, len(names)), replace=False)
        return [names[i] for i in sorted(chosen)]


@dataclass(frozen=True, slots=True)
class Balanced(Fraction):
    """A fixed number of agents, max(1, round(fraction * N)), each equally often.

    The agents, in a random order, take turns; after N / gcd(N, K) rounds each has taken part
    K / gcd(N, K) times and a new order is drawn. The schedule is public: it depends on the seed and
    the number of agents only. If every participation costs privacy, no agent pays more than the
    others, as some do with uniform sampling.
    """

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the names whose turn it is."""
        total = len(names)
        if not total:
            return []
        count = self.count(total)
        cycle, turn = divmod(round_ - 1, total // math.gcd(total, count))
        order = stream(seed, "balanced", round_=cycle).permutation(total)
        places = (turn * count + np.arange(count)) % total
        return [names[i] for i in sorted(order[places])]


@dataclass(frozen=True, slots=True)
class PerGroup:
    """A fixed number of agents of every group, uniformly without replacement (GFL's L of K).

    Each group draws from a generator of its own, so that it makes no difference whether one server
    or several choose.

    Parameters
    ----------
    count : int
        Agents of each group, >= 1; a smaller group takes part as a whole.
    groups : callable
        Returns the group of every agent, in the order of the sorted names.
    """

    count: int
    groups: Callable[[], Sequence[str]] = field(repr=False)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"participants = {self.count!r}: must be >= 1")

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the sampled names."""
        members: dict[str, list[int]] = {}
        for index, group in enumerate(self.groups()):
            members.setdefault(group, []).append(index)
        chosen: list[int] = []
        for group, indices in members.items():
            rng = stream(seed, "participation", group, round_)
            size = min(self.count, len(indices))
            chosen += [indices[i] for i in rng.choice(len(indices), size=size, replace=False)]
        return [names[i] for i in sorted(chosen)]


@dataclass(frozen=True, slots=True)
class Probability:
    """Each agent takes part with its own probability, independently (Fed-PLT, Assumption 2)."""

    common: float = 1.0
    own: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value in (self.common, *self.own.values()):
            if not 0 < value <= 1:
                raise ConfigError(f"probability = {value!r}: must be > 0 and <= 1")

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the names whose coin came up; possibly none."""
        coins = stream(seed, "participation", round_=round_).random(len(names))
        return [
            name
            for name, coin in zip(names, coins, strict=True)
            if coin < self.own.get(name, self.common)
        ]


@dataclass(frozen=True, slots=True)
class UpTo:
    """As many rounds as agents have uploads left: how an asynchronous run is planned.

    Parameters
    ----------
    uploads : int
        Of an agent in the whole run, at most.
    done : mapping of str to int
        Those that agents were asked for already, up to round ``since``.
    since : int
    """

    uploads: int
    done: Mapping[str, int]
    since: int = 0

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the agents that have uploads left when each is asked in every round."""
        more = round_ - self.since
        return [name for name in names if self.done.get(name, 0) + more <= self.uploads]


@dataclass(frozen=True, slots=True)
class Schedule:
    """An explicit list of names per round, repeated when it ends."""

    rounds: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ConfigError(
                "schedule is empty: give names separated by commas, rounds by semicolons"
            )

    def select(self, round_: int, names: Sequence[str], seed: int) -> list[str]:
        """Return the scheduled names; an unknown one is an error that names it."""
        wanted = self.rounds[(round_ - 1) % len(self.rounds)]
        for name in wanted:
            if name not in names:
                raise ConfigError(f"schedule names agent {name!r}, which is not enrolled")
        return [name for name in names if name in wanted]


@dataclass(frozen=True)
class ParticipationSettings:
    """The run-config keys of the participation in a round."""

    topic: ClassVar[str] = "Who takes part"

    participation: str = setting(
        "all",
        "which agents take part in a round",
        choices=("all", "fraction", "balanced", "probability", "schedule"),
    )
    fraction: float = setting(
        1.0,
        "share of the agents that take part in a round",
        low=0,
        high=1,
        open_low=True,
        needs={"participation": ("fraction", "balanced")},
    )
    probability: str = setting(
        "1.0",
        "probability of taking part: one for all agents, or name=p,name=p,...",
        needs={"participation": "probability"},
    )
    schedule: str = setting(
        "",
        "agents of each round, repeated: names separated by commas, rounds by semicolons",
        needs={"participation": "schedule"},
    )

    def make(self) -> Participation:
        """Return the participation (raises ``ConfigError``)."""
        if self.participation == "fraction":
            return Fraction(self.fraction)
        if self.participation == "balanced":
            return Balanced(self.fraction)
        if self.participation == "probability":
            return parse_probability(self.probability)
        if self.participation == "schedule":
            return parse_schedule(self.schedule)
        return All()


def from_config(config: Mapping[str, Any]) -> Participation:
    """Return the participation of a run config (raises ``ConfigError``)."""
    return read(ParticipationSettings, config).make()


def parse_probability(text: str) -> Probability:
    """Parse ``"0.5"`` or ``"a=0.3,b=0.9"`` (agents not named take part always).

    >>> parse_probability("0=0.25,1=1").own
    {'0': 0.25, '1': 1.0}
    """
    try:
        if "=" not in text:
            return Probability(float(text))
        pairs = (part.split("=") for part in text.split(","))
        return Probability(1.0, {name.strip(): float(value) for name, value in pairs})
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError(f"probability = {text!r}: expected a number or name=p,name=p") from None


def parse_schedule(text: str) -> Schedule:
    """Parse ``"0,1,2;1,3"``.

    >>> parse_schedule("0,2;1").rounds
    (('0', '2'), ('1',))
    """
    rounds = [part for part in text.split(";") if part.strip()]
    return Schedule(
        tuple(tuple(name.strip() for name in part.split(",") if name.strip()) for part in rounds)
    )
