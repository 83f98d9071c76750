"""What an algorithm's agent half is: parameters and pure functions on arrays.

``client_apps/base.py`` binds any `Half` to Flower once, for all algorithms. It has everything but
what is a method's own: its parameters, the local task that it makes of what it received, what it
makes of the walk, and what that costs in privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

from privet.core import ConfigError
from privet.core.key import Scalar, check_fields, read, settle
from privet.kernel import Clipping, Facts, NoCertificateError, Records, Release
from privet.kernel.programs.steps import LocalTask, Need, Walk
from privet.kernel.streams import Streams
from privet.wire.payload import encoded

from .inputs import Arrays, Vector
from .sparsifiers import VALUES, Choice, choose, sparse_arrays
from .value_bits import NOISE, NOISE_STEPS, NONE, Coder


class Local(NamedTuple):
    """What an agent's local work leaves: its new state, what it uploads, what both agree on."""

    state: Arrays
    upload: Arrays
    agreed: tuple[Vector, ...]


def agreed_on(state: Arrays, upload: Arrays) -> tuple[Vector, ...]:
    """Return the arrays whose digest both sides compare: of the state that follows, and uploaded.

    An array that `Half.follow` takes from the upload as it is counts once: it is the same object,
    on both sides, as the arrays of an upload are objects of their own.
    """
    taken = {id(array) for array in state.values()}
    return (*state.values(), *(array for array in upload.values() if id(array) not in taken))


@dataclass(frozen=True)
class Half:
    """The mathematics of an agent, without Flower; everything derived that is not a method's own.

    The fields of a subclass are the run-config keys of the same names, with hyphens. It gives
    ``task`` and ``finish``, or ``local_update`` where the solver is part of the method; ``follow``
    where agents keep a state; a private method gives ``private``, ``clip``, ``noise_key`` and
    ``noised_release``.
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

    def finish(self, state: Arrays, broadcast: Arrays, task: LocalTask, walk: Walk) -> Arrays:
        """Return the upload that a walk comes to; a pure function that a half gives with ``task``.

        Its arrays (d,) are coded on their way where `ValueBits` asks for it.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither finish nor local_update")

    def follow(self, state: Arrays, broadcast: Arrays, upload: Arrays) -> Arrays:
        """Return the state that both sides hold after an upload: by default none.

        Agent and server each compute it, from the agent's state before the round, what it was
        broadcast and what it uploaded (as it decodes), and compare a digest of the outcome. A pure
        function, entry by entry: the server gives it rows (N, d) of several agents' arrays beside
        what they were all broadcast, (d,), or a part of one agent's.
        """
        return {}

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
        """Return what a walk comes to: ``finish``, coded, and what follows of it."""
        upload = self.finish(state, broadcast, task, walk)
        return self.conclude(state, broadcast, upload, records, streams)

    def conclude(
        self,
        state: Arrays,
        broadcast: Arrays,
        upload: Arrays,
        records: Records,
        streams: Streams,
        *,
        hidden: Arrays | None = None,
        gain: float = 0.0,
    ) -> Local:
        """Return what an upload leaves: it is coded where that is asked for, and followed.

        Parameters
        ----------
        hidden : mapping of str to array, optional
            What the agent keeps beside what both sides hold; it is lost with the agent's state.
        gain : float
            What a charged draw was multiplied with on its way to the upload; 0 takes
            ``noise_gain``.
        """
        sent = upload = {name: array.view() for name, array in upload.items()}
        if coder := self.coder(streams, records, gain or self.noise_gain(streams.round)):
            reference = self.reference(state, broadcast)
            pairs = {
                name: coder.upload(array, reference.get(name), name)
                for name, array in upload.items()
            }
            upload = {name: kept for name, (kept, _) in pairs.items()}
            sent = {name: coded for name, (_, coded) in pairs.items()}
        new = self.follow(state, broadcast, upload)
        return Local({**new, **(hidden or {})}, sent, agreed_on(new, upload))

    def conclude_sparse(
        self,
        state: Arrays,
        broadcast: Arrays,
        vector: Vector,
        choice: Choice,
        records: Records,
        streams: Streams,
        *,
        hidden: Arrays | None = None,
    ) -> Local:
        """As ``conclude``, of some coordinates of one vector (d,), which a sparsifier chooses.

        ``follow`` is given what was sent of it as ``values`` (k,), and as ``places`` (k,) where,
        unless that is everywhere; the reference of a coded one is called ``values`` as well.
        """
        coder = self.coder(streams, records, self.noise_gain(streams.round))
        near = self.reference(state, broadcast).get(VALUES)
        center = broadcast.get("x", vector)
        data, sent = choose(choice, vector, center, streams, records, coder, near)
        upload = sparse_arrays(sent)
        new = self.follow(state, broadcast, upload)
        agreed = agreed_on(new, {VALUES: upload[VALUES]})
        return Local({**new, **(hidden or {})}, encoded(data), agreed)

    # ------------------------------------------------------------------ coded uploads

    @cached_property
    def codes(self) -> bool:
        """Whether uploads are coded (`ValueBits`)."""
        return getattr(self, "value_bits", NONE) != NONE

    def reference(self, state: Arrays, broadcast: Arrays) -> Arrays:
        """Return what both sides hold that an upload is near to, by the upload's names.

        ``state`` is what the server would send to restore the agent's. By default what was
        broadcast under the same name; what is not there stands for 0. Only what is public of the
        agent in a private run.
        """
        return broadcast

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
