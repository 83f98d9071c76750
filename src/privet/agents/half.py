"""The derived part of an algorithm's agent half; its author writes a `Method`.

``agents/base.py`` binds any `Half` to Flower once, for all algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from flwr.app import Context

from privet.core import ConfigError
from privet.core.key import Scalar, check_fields, read, settle
from privet.kernel import Facts, NoCertificateError, Problem, Records, Release
from privet.kernel.programs.steps import LocalTask, Walk
from privet.kernel.streams import Streams
from privet.wire.payload import encoded
from privet.wire.ring import Overflow

from .inputs import Arrays, Vector
from .loop_defaults import Loops
from .method import Local, Method, agreed_on
from .sparsifiers import VALUES, Choice, choose, sparse_arrays
from .terms import BudgetSchedule
from .value_bits import NOISE, NOISE_STEPS, NONE, Coder, ValueBits

STEPS = ("step-size", "step-size-base")
"""Keys of local step sizes."""
_LOCAL_STEPS = ("local_epochs", "max_local_steps", "local_updates")
"""Fields of a half that are its number of local steps in a round."""


@dataclass(frozen=True)
class Half(Method):
    """The mathematics of an agent, without Flower: `Method` lists what its author defines.

    This class adds eleven names that few methods override, and the rest, which is derived for all
    of them and which nobody overrides. An author's own ``local_update`` ends with ``conclude``.
    """

    reads_tables: ClassVar[bool] = False
    """Whether the half is an analysis, whose `of_table` makes a problem of the agent's table."""
    repeats: ClassVar[bool] = False
    """Whether two rounds may ask for the same numbers, as an analysis that begins again does: in a
    run of secure sums an agent that left then stays away, and none leaves or joins alone."""
    noise_settings: ClassVar[Mapping[str, Any]] = {}
    """Run-config keys that the noise needs in addition to ``noise_key``."""
    steady: ClassVar[bool] = False
    """Whether every private round costs the same, so that its release is computed once."""

    def of_table(self, table: Any, context: Context) -> Problem:
        """Return the problem that an analysis makes of an agent's table."""
        raise NotImplementedError(f"{self.name} reads no table")

    @property
    def noise_ratio(self) -> float:
        """Factor from round to round of the noise that `noised_release` states for round 1.

        With `BudgetSchedule` among the keys; 0 before it is resolved.
        """
        if isinstance(self, BudgetSchedule) and self.budget_schedule != "constant":
            return self.budget_ratio
        return 1.0

    def noise_gain(self, round_: int) -> float:
        """Return a lower bound of the factor by which a charged draw enters the upload."""
        return 1.0

    @property
    def noise_sharing(self) -> bool:
        """Whether the noise hides a record only in the masked sum of many agents' uploads.

        Only for halves whose uploads are made of what is broadcast and of noised vectors.
        """
        return False

    def overflow(self, broadcast: Arrays) -> Overflow:
        """Return what becomes of numbers of a masked upload that no secure sum takes.

        By default they are refused: a model that is too large has diverged.
        """
        return "refuse"

    @property
    def dropouts(self) -> int:
        """Number of agents whose noise a masked sum may lack, as planned."""
        return 0

    def gradient_told(
        self, state: Arrays, broadcast: Arrays, upload: Arrays
    ) -> tuple[Vector, Vector] | None:
        """Return a point and the gradient of f_i there, of steps without end; None where unknown.

        Entry by entry as `follow`, of rows (N, d) of several agents with their states; it is what
        anybody with these arrays can compute. By default None.
        """
        return None

    @property
    def model_step(self) -> float:
        """c of the model's step, c times the mean move (`reference`) of a round of all agents.

        Where the server half does more than that (`ServerHalf.steps_by_mean`) its sign alone
        counts. 0 where the model follows no mean of moves, or another broadcast array, as by
        default.
        """
        return 0.0

    def steps_of_round(self, seed: int, round_: int) -> int:
        """Return the number of local steps of a round, which a node's ``max-steps`` bounds.

        A half whose number is drawn states the draw: seed and round are the coordinator's choice,
        so that their mean bounds nothing. By default that of the half's keys.
        """
        return self._local_steps

    @cached_property
    def _local_steps(self) -> int:
        return max(int(getattr(self, name, 0)) for name in _LOCAL_STEPS)

    def upload_bound(self, facts: Facts, state: Arrays, broadcast: Arrays, round_: int) -> float:
        """Return a bound on the l2 norm of a private upload in clear, by public numbers alone.

        An honest upload, before it is coded, passes it with a chance of less than 1e-12. Infinite
        where none is known, as by default.

        Parameters
        ----------
        state, broadcast : mapping of str to array (d,)
            What the server knows of the agent's state, and what it sent.
        """
        return math.inf

    def as_printed(self, facts: Facts, rounds: int, delta: float) -> float | None:
        """Return the paper's own epsilon of a run, which is no claim; None where it has none."""
        return None

    @property
    def bounds_uploads(self) -> bool:
        """Whether the server refuses uploads of a norm above `upload_bound`, or, where that is
        infinite, near the largest number of their dtype."""
        return self.private

    @property
    def asks_noise(self) -> bool:
        """Of an analysis: whether its sums are to be noised; the scale may still be open."""
        return self.private

    @property
    def pools_baseline(self) -> bool:
        """Of an analysis: whether it sums over those at risk at each time of an event."""
        return False

    @property
    def secure_sum(self) -> bool:
        """Whether the agents mask their uploads: for methods with the key alone."""
        return False

    # ------------------------------------------------------------------ derived

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the half for a message's parameters (raises ``ConfigError``)."""
        return read(cls, settings)

    def __post_init__(self) -> None:
        """Check every key (raises ``ConfigError``), and resolve those that are automatic."""
        check_fields(self)
        if self.codes and self.secure_sum:
            raise ConfigError("value-bits: not with secure-sum, whose sums are of integers")
        object.__setattr__(self, "_without_moduli", settle(self))

    @property
    def without_moduli(self) -> Mapping[str, Scalar]:
        """Values of the automatic keys where no agent knows its problem's moduli."""
        values: Mapping[str, Scalar] = self.__dict__["_without_moduli"]
        return values

    def around_loops(self, loops: Loops) -> Mapping[str, Scalar]:
        """Return the values of open keys where agents state the step of their training loops.

        By default those for unknown moduli, with the stated step where the step is open.
        """
        values = dict(self.without_moduli)
        values.update({key: loops.step for key in STEPS if key in values})
        return values

    def noise_growth(self, round_: int) -> float:
        """Return the noise of a round over that of round 1.

        Raises
        ------
        NoCertificateError
            If the ratio is automatic and not resolved yet.
        """
        ratio = self.noise_ratio
        if not ratio:
            raise NoCertificateError("budget-ratio = auto: the ratio is not resolved yet")
        return ratio ** (round_ - 1)

    def release(self, facts: Facts, round_: int) -> Release:
        """Return the release of a round's upload, the only definition of a round's cost.

        The node's ledger, the calibration to a target, the account of a run and the planner all
        call it. The mechanism is "none" where the upload is not noised and bounded. Cached by
        facts, and by round unless ``steady``.

        Raises
        ------
        NoCertificateError
            If no sensitivity is proven for this configuration.
        """
        if not self.private:
            return self._un_noised
        key = (facts, 1 if self._alike else round_)
        release = self._releases.get(key)
        if release is None:
            if len(self._releases) >= _MOST_RELEASES:
                self._releases.clear()
            release = self._of_ratio_1(facts, round_)
            if self.noise_ratio != 1:
                release = replace(release, scale=release.scale * self.noise_growth(round_))
            self._releases[key] = release
        return release

    def _of_ratio_1(self, facts: Facts, round_: int) -> Release:
        """Return the release as if its noise did not change, computed once if it is ``steady``."""
        if not self.steady:
            return self.noised_release(facts, round_)
        whole = self._releases.get((facts, 0))
        if whole is None:
            whole = self._releases[facts, 0] = self.noised_release(facts, 1)
        return whole

    @cached_property
    def _alike(self) -> bool:
        return self.steady and self.noise_ratio == 1

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Do one round's local work, taking exactly the draws of the round's release.

        By default the task, the built-in solver's walk, and `finished`.
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
        """Return the outcome of a walk: the upload of ``finish``, coded, and the new state."""
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
        """Code an upload where ``value-bits`` is set, and return it with the state that follows.

        Parameters
        ----------
        hidden : mapping of str to array, optional
            State that the agent alone keeps; it is lost with the agent's state.
        gain : float
            Factor by which a charged draw entered the upload; 0 takes ``noise_gain``.
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
        """As ``conclude``, for some coordinates of one vector (d,), which a sparsifier chooses.

        ``follow`` is given the numbers that were sent as ``values`` (k,), and their coordinates as
        ``places`` (k,) unless all were sent; the reference of a coded vector is called ``values``
        as well.
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
        return isinstance(self, ValueBits) and self.value_bits != NONE

    def coder(self, streams: Streams, records: Records, gain: float = 1.0) -> Coder | None:
        """Return the coder of the round's upload; None where it is not coded.

        ``gain`` is the factor by which a charged draw enters the upload.

        Raises
        ------
        ConfigError
            If the step is to be tied to a noise and none is charged.
        """
        if not (isinstance(self, ValueBits) and self.codes):
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
