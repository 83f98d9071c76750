"""Privacy-critical: what an algorithm's agent half is: parameters and pure functions on arrays.

``client_apps/base.py`` binds any object of the shape of `AgentHalf` to Flower once, for all
algorithms. `Half` has everything of it but what is a method's own: its parameters, the local task
that it makes of what it received, what it makes of the walk, and what that costs in privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from privet.privacy import Facts, Perturber, Release
from privet.problems import Problem
from privet.wire.key import check_fields, read

from .inputs import Arrays, Streams, Vector
from .local_task import LocalTask, Need, Walk, walk


class Local(NamedTuple):
    """What an agent's local work leaves: its new state, what it uploads, what both agree on."""

    state: Arrays
    upload: Arrays
    agreed: Vector


class AgentHalf(Protocol):
    """The mathematics of an agent, without Flower.

    Beside what is below, a half may have

    ``noise_key``
        The run-config key that ``target-epsilon`` solves for; a half without it has no private
        form.
    ``noise_settings``
        Mapping of the run-config keys that the noise needs, such as ``local-solver``.
    ``as_printed(facts, rounds, delta)``
        The paper's own figure for a run, which is no claim; None where it has none.
    ``divisor``
        "federation" where f_i is divided by all agents' examples unless the run config says
        otherwise; "agent", by its own, where there is no such attribute.
    """

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
        self, state: Arrays, broadcast: Arrays, problem: Problem, streams: Streams, noise: Perturber
    ) -> Local:
        """Do one round's local work, taking exactly the draws of the round's release."""
        ...


@dataclass(frozen=True)
class Half:
    """An agent half with everything derived that is not a method's own.

    The fields of a subclass are the run-config keys of the same names, with hyphens. It gives
    ``task`` and ``finish``, or ``local_update`` where the solver is part of the method; a private
    method gives ``private``, ``clip``, ``noise_key`` and ``noised_release``.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    noise_key: ClassVar[str] = ""
    """The key that a target epsilon is solved for; empty for none."""
    upload: ClassVar[str] = "upload"
    """What an upload is, in the ledger."""
    steady: ClassVar[bool] = False
    """Whether a private round costs the same whatever its number: then it is worked out once."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What ``finish`` needs of a walk besides its end."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        return read(cls, settings)

    def __post_init__(self) -> None:
        """Check every key (raises ``ConfigError``)."""
        check_fields(self)

    @property
    def private(self) -> bool:
        """Whether this configuration means to be private: it is not."""
        return False

    @property
    def clip(self) -> float:
        """Per-example gradient bound: none."""
        return 0.0

    def prepare(self, problem: Problem) -> Problem:
        """Return the problem as it is."""
        return problem

    def restart(self, broadcast: Arrays, problem: Problem) -> Arrays:
        """Return no state."""
        return {}

    def release(self, facts: Facts, round_: int) -> Release:
        """Return what a round's upload releases; cached by facts, and by round unless steady.

        Raises
        ------
        NoCertificateError
            If no sensitivity is proven for this configuration.
        """
        if not self.private:
            return self._un_noised
        key = (facts, 1 if self.steady else round_)
        release = self._releases.get(key)
        if release is None:
            if len(self._releases) >= _MOST_RELEASES:
                self._releases.clear()
            release = self._releases[key] = self.noised_release(facts, round_)
        return release

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return what a round of a private configuration releases.

        Raises
        ------
        NoCertificateError
        """
        raise NotImplementedError

    def task(
        self, state: Arrays, broadcast: Arrays, problem: Problem, facts: Facts, streams: Streams
    ) -> LocalTask:
        """Return the round's local task; a pure function."""
        raise NotImplementedError

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Local:
        """Return the new state, the upload and what both sides agree on; a pure function."""
        raise NotImplementedError

    def local_update(
        self, state: Arrays, broadcast: Arrays, problem: Problem, streams: Streams, noise: Perturber
    ) -> Local:
        """Do one round's local work: the task, the built-in solver's walk, what follows of it."""
        task = self.task(state, broadcast, problem, noise.facts, streams)
        return self.finish(state, broadcast, task, walk(task, problem, streams, noise))

    @cached_property
    def _un_noised(self) -> Release:
        return Release("none", what=f"{self.name} {self.upload}")

    @cached_property
    def _releases(self) -> dict[tuple[Facts, int], Release]:
        return {}


_MOST_RELEASES = 256

__all__ = ["AgentHalf", "Arrays", "Half", "Local", "Streams", "Vector"]
