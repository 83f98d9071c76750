"""What an algorithm's agent half is: parameters and pure functions on arrays.

``client_apps/base.py`` binds any `Half` to Flower once, for all algorithms. It has everything but
what is a method's own: its parameters, the local task that it makes of what it received, what it
makes of the walk, and what that costs in privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

from privet.core import ConfigError
from privet.core.key import Scalar, check_fields, read, settle
from privet.kernel import Clipping, Facts, NoCertificateError, Records, Release
from privet.kernel.programs.steps import LocalTask, Need, Walk
from privet.kernel.streams import Streams

from .inputs import Arrays, Vector
from .value_bits import NOISE, NOISE_STEPS, NONE, Coder


class Local(NamedTuple):
    """What an agent's local work leaves: its new state, what it uploads, what both agree on."""

    state: Arrays
    upload: Arrays
    agreed: Vector


@dataclass(frozen=True)
class Half:
    """The mathematics of an agent, without Flower; everything derived that is not a method's own.

    The fields of a subclass are the run-config keys of the same names, with hyphens. It gives
    ``task`` and ``finish``, or ``local_update`` where the solver is part of the method; a private
    method gives ``private``, ``clip``, ``noise_key`` and ``noised_release``.
    """

    name: ClassVar[str] = ""
    """Protocol name, as in the registry."""
    version: ClassVar[int] = 1
    """Protocol version; both halves must agree."""
    noise_key: ClassVar[str] = ""
    """The key that a target epsilon is solved for; empty for a half without a private form."""
    noise_settings: ClassVar[Mapping[str, Any]] = {}
    """Run-config keys that the noise needs beside ``noise_key``."""
    divisor: ClassVar[str] = "agent"
    """What f_i is divided by unless the run config says otherwise: the agent's own examples, or
    with "federation" those of all agents."""
    upload: ClassVar[str] = "upload"
    """What an upload is, in the ledger."""
    steady: ClassVar[bool] = False
    """Whether a private round costs the same whatever its number: then it is worked out once."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What ``finish`` needs of a walk besides its end."""
    task_alone: ClassVar[bool] = False
    """Whether a half that gives ``local_update`` does without noise what ``task`` and ``finish``
    say, so that a custom training loop can take the steps."""
    steps_bind: ClassVar[bool] = False
    """Whether the method counts on the number and length of the task's steps, and on no other."""
    sends: ClassVar[Mapping[str, str]] = {}
    """Arrays of an upload, and the field of the walk that each of them is: what ``finish`` takes
    of these fields is what was sent, so that they may be coded. For halves with `ValueBits`."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        return read(cls, settings)

    def __post_init__(self) -> None:
        """Check every key (raises ``ConfigError``), and settle those that are automatic."""
        check_fields(self)
        if self.codes and getattr(self, "secure_sum", False):
            raise ConfigError("value-bits: not with secure-sum, whose sums are of integers")
        object.__setattr__(self, "_without_moduli", settle(self))

    @property
    def without_moduli(self) -> Mapping[str, Scalar]:
        """Values, by key, of what was left open where no agent knows its problem's moduli."""
        found: Mapping[str, Scalar] = self.__dict__["_without_moduli"]
        return found

    @property
    def private(self) -> bool:
        """Whether this configuration means to be private: it is not."""
        return False

    @property
    def noise_ratio(self) -> float:
        """What the noise that `noised_release` says is multiplied with from round to round."""
        return 1.0

    def noise_growth(self, round_: int) -> float:
        """Return the noise of a round over that of round 1.

        Raises
        ------
        NoCertificateError
            If the ratio is not settled.
        """
        ratio = self.noise_ratio
        if not ratio:
            raise NoCertificateError("budget-ratio = 0: the ratio is not settled")
        return ratio ** (round_ - 1)

    @property
    def noise_sharing(self) -> bool:
        """Whether the noise hides a record in the masked sum of many agents' uploads alone.

        Only for halves whose uploads are made of what is broadcast and of noised gradients.
        """
        return False

    @property
    def dropouts(self) -> int:
        """How many agents the planned noise of masked sums may lack."""
        return 0

    @property
    def stacks(self) -> bool:
        """Whether ``local_update`` takes the vectors of many agents as rows (N, d) of arrays.

        With the records of a `privet.problems.stacks.Stack`, and every row as if it were alone:
        so it is where a task and what follows of its walk are made entry by entry.
        """
        return False

    @property
    def clip(self) -> float:
        """The norm bound of what ``clipping`` says: none."""
        return 0.0

    @property
    def clipping(self) -> Clipping | Literal["update"]:
        """What is clipped where ``clip`` is above 0: the gradient of every example.

        Or "batch", that of a whole batch, or "update", all that the steps of a round come to
        (`Records.update`), which takes no problem that can clip.
        """
        return "example"

    def row_bound(self, facts: Facts) -> float:
        """Return the l2 norm that the agent's rows are to be held to; 0 leaves them as they are.

        Raises
        ------
        ConfigError
            If this configuration cannot run on a problem of these facts.
        """
        return 0.0

    def restart(self, broadcast: Arrays, facts: Facts) -> Arrays:
        """Return the state of an agent that has none and was sent none: by default nothing."""
        return {}

    def release(self, facts: Facts, round_: int) -> Release:
        """Return what a round's upload releases: the only place that knows what a round costs.

        The node's ledger, the calibration to a target, the account of a run and the planner all
        ask here. The mechanism is "none" where the upload is not noised and bounded. Cached by
        facts, and by round unless ``steady``.

        Raises
        ------
        NoCertificateError
            If no sensitivity is proven for this configuration.
        """
        if not self.private:
            return self._un_noised
        even = self.noise_ratio == 1
        key = (facts, 1 if self.steady and even else round_)
        release = self._releases.get(key)
        if release is None:
            if len(self._releases) >= _MOST_RELEASES:
                self._releases.clear()
            release = self.noised_release(facts, round_)
            if not even:
                release = replace(release, scale=release.scale * self.noise_growth(round_))
            self._releases[key] = release
        return release

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return what a round of a private configuration releases; a private half gives this.

        Raises
        ------
        NoCertificateError
            If no sensitivity is proven for this configuration.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define noised_release")

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return the paper's own epsilon of a run, which is no claim; None where it has none."""
        return None

    def task(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> LocalTask:
        """Return the round's local task; a pure function.

        A half gives ``task`` and ``finish``, or ``local_update`` in place of both.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither task nor local_update")

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Local:
        """Return the new state, the upload and what both sides agree on; a pure function.

        A half gives this with ``task``.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither finish nor local_update")

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Do one round's local work, taking exactly the draws of the round's release.

        By default the task, the built-in solver's walk, and what follows of it.
        """
        task = self.task(state, broadcast, records, streams)
        walked = records.walk(task, streams)
        return self.finished(state, broadcast, task, walked, records, streams)

    def finished(
        self,
        state: Arrays,
        broadcast: Arrays,
        task: LocalTask,
        walk: Walk,
        records: Records,
        streams: Streams,
    ) -> Local:
        """Return ``finish`` of a walk, of what is decoded where the upload is coded."""
        if not self.codes:
            return self.finish(state, broadcast, task, walk)
        coder = cast(Coder, self.coder(streams, records, self.noise_gain(streams.round)))
        reference, coded = self.reference(state, broadcast), {}
        for name, field in self.sends.items():
            kept, coded[name] = coder.upload(getattr(walk, field), reference.get(name), name)
            sent: dict[str, Any] = {field: kept}
            walk = walk._replace(**sent)
        local = self.finish(state, broadcast, task, walk)
        return local._replace(upload={**local.upload, **coded})

    # ------------------------------------------------------------------ coded uploads

    @cached_property
    def codes(self) -> bool:
        """Whether uploads are coded (`ValueBits`)."""
        return getattr(self, "value_bits", NONE) != NONE

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return what both sides hold that an upload is near to, by the upload's names.

        ``state`` is what the server would send to restore the agent's. By default what was
        broadcast under the name of an array of ``sends``; what is not there stands for 0. Only what
        is public of the agent in a private run.
        """
        return {name: broadcast[name] for name in self.sends if name in broadcast}

    def noise_gain(self, round_: int) -> float:
        """Return what a charged draw is multiplied with on its way to the upload, at least."""
        return 1.0

    def coder(self, streams: Streams, records: Records, gain: float = 1.0) -> Coder | None:
        """Return how the round's upload is coded; None where it is not.

        ``gain`` is what a charged draw is multiplied with on its way to the upload.

        Raises
        ------
        ConfigError
            If the step is to be tied to a noise and none is charged.
        """
        if not self.codes:
            return None
        bits = getattr(self, "value_bits", NONE)
        if bits != NOISE:
            return Coder(streams, bits=int(bits))
        if not records.charged:
            raise ConfigError("value-bits = noise: no noise is charged that a step could follow")
        return Coder(streams, step=gain * records.release.deviation / NOISE_STEPS)

    @cached_property
    def _un_noised(self) -> Release:
        return Release("none", what=f"{self.name} {self.upload}")

    @cached_property
    def _releases(self) -> dict[tuple[Facts, int], Release]:
        return {}


_MOST_RELEASES = 256


__all__ = ["Arrays", "Half", "Local", "Streams", "Vector"]
