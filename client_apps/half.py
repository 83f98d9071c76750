"""What an algorithm's agent half is: parameters and one pure function on arrays.

``client_apps/base.py`` binds any object of this shape to Flower once, for all algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from privet.privacy import Facts, Perturber, Release
from privet.problems import Problem
from privet.wire import stream

Vector = NDArray[Any]
Arrays = Mapping[str, Vector]


@dataclass(frozen=True, slots=True)
class Streams:
    """The named random streams of one agent in one round; opening one is not free."""

    seed: int
    agent: str
    round: int

    def open(self, purpose: str) -> np.random.Generator:
        """Return the generator of (seed, agent, round, purpose)."""
        return stream(self.seed, purpose, self.agent, self.round)


@dataclass(frozen=True, slots=True)
class Local:
    """What an agent's local work leaves: its new state, what it uploads, what both agree on."""

    state: Arrays
    upload: Arrays
    agreed: Vector


class AgentHalf(Protocol):
    """The mathematics of an agent, without Flower."""

    @property
    def name(self) -> str:
        """Protocol name, as in the registry."""
        ...

    @property
    def version(self) -> int:
        """Protocol version; both halves must agree."""
        ...

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for the parameters of a message.

        Raises
        ------
        ConfigError
            If a parameter is unknown or out of range.
        """
        ...

    @property
    def private(self) -> bool:
        """Whether this configuration means to be private (noise is added)."""
        ...

    @property
    def clip(self) -> float:
        """Per-example gradient bound, 0 for none."""
        ...

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem to work on, e.g. with rows within a public bound; kept by the app.

        Raises
        ------
        ConfigError
            If this configuration cannot run on the problem.
        """
        ...

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return the state of an agent that has none and was sent none."""
        ...

    def release(self, facts: Facts, round_: int) -> Release:
        """Return what a round's upload releases: the only place that knows what a round costs.

        The node's ledger, the calibration to a target, the account of a run and the planner all
        ask here. The mechanism is "none" where the upload is not noised and bounded.

        Raises
        ------
        NoCertificateError
            If no sensitivity is proven for this configuration.
        """
        ...

    def local_update(
        self,
        state: Arrays,
        broadcast: Arrays,
        problem: Problem,
        streams: Streams,
        noise: Perturber,
    ) -> Local:
        """Do one round's local work, taking exactly the draws of the round's release."""
        ...
