"""Privacy-critical: the settings of a message that belong to no algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privet.core.key import check_fields, setting, values_of
from privet.wire import Settings

MEAN_EXAMPLES = "mean-examples"
"""The key of `MessageTerms.mean_examples`, in a message and in a checkpoint."""
POOLED_WEIGHT = "pooled-weight"
"""The key of `MessageTerms.pooled_weight`, in a message and in a checkpoint."""
ENCODING = "encoding"
"""The key of `MessageTerms.encoding` in a message."""
ARRIVAL_TIMES = "arrival-times"
"""The key of `MessageTerms.arrival_times` in a message."""
WHOLE_SUM = "whole-sum"
"""The key of `MessageTerms.whole_sum` in a message."""


@dataclass(frozen=True)
class MessageTerms:
    """The settings of every message, whatever the algorithm."""

    seed: int = setting(0, "seed of all random draws except privacy noise", low=0)
    secure_sum: bool = setting(
        False,
        "agents mask their uploads: the server sees sums over at least three of them; an attempt "
        "at one takes half of the round-timeout at most",
        topic="Privacy",
    )
    sum_threshold: int = setting(
        0,
        "agents that are enough to open a secure sum when others drop out, more than half of all "
        "and one (of more than 100 agents: of the 64 that each draws); all asks those that are "
        "left for another upload",
        low=0,
        words={"all": 0},
        needs={"secure_sum": True},
        topic="Privacy",
    )
    mean_examples: float = setting(
        0.0, "D of every f_i, the agents' mean number of examples; 0 leaves each its own", low=0
    )
    pooled_weight: float = setting(
        0.0, "weight of a penalty that is left to the run; 0: as in a private run", low=0
    )
    encoding: str = setting(
        "", "digest of the encoding of the columns that the agents have agreed on; empty for none"
    )
    arrival_times: bool = setting(
        False, "when an upload comes decides which model it is combined with"
    )
    whole_sum: int = setting(
        0, "agents of the run, where the mean of their moves is the model's step, else 0", low=0
    )


@dataclass(frozen=True)
class BudgetSchedule:
    """The schedule of a run's budget over the rounds, for algorithms with a private form.

    An error that is made in round t of K is worth c^(K - t) of itself in the end where a round
    contracts by c. With noise sigma_t in round t the squared error in the end is the sum of
    c^(2 (K - t)) sigma_t^2, and the Gaussian-DP parameter the root of the sum of (s / sigma_t)^2;
    the best sigma_t for a given one are proportional to c^(t / 2): a ratio of sqrt(c), with

        K sum_{j < K} c^(2 j) / (sum_{j < K} c^j)^2

    times less squared error than equal noise, which tends to K (1 - c) / (1 + c).
    """

    topic: ClassVar[str] = "Privacy"

    budget_schedule: str = setting(
        "constant",
        "noise over the rounds: the same in all, or geometric, where noise and its key are those "
        "of round 1 and each later round has budget-ratio times that before",
        choices=("constant", "geometric"),
    )
    budget_ratio: float = setting(
        0.0,
        "noise of a round over that of the round before; auto is the root of the rate at which "
        "the algorithm contracts, where theory knows it",
        low=0,
        high=1,
        words={"auto": 0},
        needs={"budget_schedule": "geometric"},
    )


@dataclass(frozen=True)
class NoiseTerms:
    """Settings of a run's noise that no algorithm computes with.

    Attributes
    ----------
    delta : float
        The delta at which the run's epsilon is stated.
    noise_seed : int
        Seed of the privacy noise, which marks a run as not private; -1 draws from the system.
    """

    topic: ClassVar[str] = "Privacy"

    delta: float = setting(1e-5, "delta at which epsilon is stated", low=0, high=0.5, open_low=True)
    noise_seed: int = setting(
        -1,
        "seed of the privacy noise: marks the run not private; none: the system's random bytes",
        low=0,
        words={"none": -1},
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class PrivacyTerms(NoiseTerms):
    """Privacy settings that agents are sent, where their algorithm has a private form.

    Attributes
    ----------
    target_epsilon : float
        Upper bound on the epsilon that any agent spends; 0 for no bound, and then it is not sent.
    """

    topic: ClassVar[str] = "Privacy"

    target_epsilon: float = setting(
        0.0,
        "total epsilon of the run, which sets the noise; none: the noise is taken as given",
        low=0,
        words={"none": 0},
        only_unset=True,
    )

    def settings(self) -> Settings:
        """Return the terms as the settings of a message."""
        settings = values_of(self)
        if not self.target_epsilon:
            del settings["target-epsilon"]
        return settings
