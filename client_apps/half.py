"""What is derived of an algorithm's agent half; its author writes a `Method`.

``client_apps/base.py`` binds any `Half` to Flower once, for all algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from privet.core import ConfigError
from privet.core.key import Scalar, check_fields, read, settle
from privet.kernel import Facts, NoCertificateError, Records, Release
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.streams import Streams
from privet.wire.payload import encoded

from .inputs import Arrays, Vector
from .method import Local, Method, agreed_on
from .sparsifiers import VALUES, Choice, choose, sparse_arrays
from .value_bits import NOISE, NOISE_STEPS, NONE, Coder


@dataclass(frozen=True)
class Half(Method):
    """The mathematics of an agent, without Flower: `Method` says what its author gives.

    Here is what few methods change, the first seven names, and what is derived for all of them,
    which nobody writes. An author's own ``local_update`` ends with ``conclude``.
    """

    noise_settings: ClassVar[Mapping[str, Any]] = {}
    """Run-config keys that the noise needs beside ``noise_key``."""
    steady: ClassVar[bool] = False
    """Whether a private round costs the same whatever its number: then it is worked out once."""

    @property
    def noise_ratio(self) -> float:
        """What the noise that `noised_release` says is multiplied with from round to round."""
        return 1.0

    def noise_gain(self, round_: int) -> float:
        """Return what a charged draw is multiplied with on its way to the upload, at least."""
        return 1.0

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

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return the paper's own epsilon of a run, which is no claim; None where it has none."""
        return None

    @property
    def secure_sum(self) -> bool:
        """Whether the agents mask their uploads: for methods with the key alone."""
        return False

    @property
    def value_bits(self) -> str:
        """How uploads are coded: as they are, but for halves with `ValueBits`."""
        return NONE

    # ------------------------------------------------------------------ derived

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        return read(cls, settings)

    def __post_init__(self) -> None:
        """Check every key (raises ``ConfigError``), and settle those that are automatic."""
        check_fields(self)
        if self.codes and self.secure_sum:
            raise ConfigError("value-bits: not with secure-sum, whose sums are of integers")
        object.__setattr__(self, "_without_moduli", settle(self))

    @property
    def without_moduli(self) -> Mapping[str, Scalar]:
        """Values, by key, of what was left open where no agent knows its problem's moduli."""
        found: Mapping[str, Scalar] = self.__dict__["_without_moduli"]
        return found

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
        agreed = agreed_on(new, upload, coded=self.codes)
        return Local({**new, **(hidden or {})}, sent, agreed)

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
        agreed = agreed_on(new, {VALUES: upload[VALUES]}, coded=self.codes)
        return Local({**new, **(hidden or {})}, encoded(data), agreed)

    # ------------------------------------------------------------------ coded uploads

    @cached_property
    def codes(self) -> bool:
        """Whether uploads are coded (`ValueBits`)."""
        return self.value_bits != NONE

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
        if self.value_bits != NOISE:
            return Coder(streams, bits=int(self.value_bits))
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
