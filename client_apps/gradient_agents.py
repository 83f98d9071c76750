"""Base of agent halves that take local gradient steps: batches, clipping, noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property
from typing import Any, ClassVar

from privet.agents.half import Half, Streams, Vector
from privet.agents.upload_bounds import data_term
from privet.core import ConfigError
from privet.core.key import LARGEST, SMALLEST, setting
from privet.kernel import (
    RELATIONS,
    Clipping,
    Facts,
    Relation,
    Release,
    norm_bound,
)
from privet.kernel.cyclic import MOST_BANDS
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.steps import MOST_STEPS, LocalTask

from .step_rules import require_rounds, step_in, step_rounds, step_rule


def noise(default: float, doc: str, *, word: str = "none") -> Any:
    """Declare a key for the size of a noise, with a word for 0."""
    words = {word: 0}
    return setting(default, doc, low=0, words=words, floor=SMALLEST, high=LARGEST, topic="Privacy")


@dataclass(frozen=True)
class ClippedGradients(Half):
    """Batches and clipping; the fields are the run-config keys of the same names."""

    topic: ClassVar[str] = "Local steps"

    batch: str = setting(
        "full", "examples in a step: all or batch-size", choices=("full", "sample")
    )
    batch_size: int = setting(
        32,
        "examples in a step, with batch = poisson on average",
        low=1,
        needs={"batch": ("sample", "poisson")},
    )
    clip: float = setting(
        0.0,
        "norm bound of a gradient, or of an update where that is clipped",
        low=0,
        words={"none": 0},
        floor=SMALLEST,
        high=LARGEST,
        topic="Privacy",
    )
    clipping: Clipping = setting(
        "example",
        "what is clipped: each example's gradient or the whole batch's",
        choices=("example", "batch"),
        needs={"clip": None},
        topic="Privacy",
    )
    relation: Relation = setting(
        "replace-one",
        "which change of the data epsilon is about: a record replaced, or added or removed, or all "
        "records of an agent replaced",
        choices=RELATIONS,
        topic="Privacy",
    )

    @cached_property
    def gradients(self) -> Gradients:
        """The gradient of a local step: on all rows or a batch, clipped as configured."""
        return self._gradients()

    def _gradients(self, *, replace: bool = False, noise_scale: float = 0.0) -> Gradients:
        return Gradients(
            self.batch_size if self.batch in ("sample", "poisson") else 0,
            replace,
            self.clip,
            self.clipping,
            self.relation,
            noise_scale,
            self.batch == "poisson",
        )


@dataclass(frozen=True)
class GradientAgent(ClippedGradients):
    """Settings of local gradient steps; the fields are the run-config keys of the same names."""

    topic: ClassVar[str] = "Local steps"
    noise_key: ClassVar[str] = "noise-scale"

    step_size_base: float = setting(
        0.0,
        "local step size of the first round",
        low=SMALLEST,
        high=LARGEST,
        automatic=(0.04, 0.1),
    )
    step_size_rule: str = step_rule("auto", ("inverse-sqrt", "constant"))
    step_size_rounds: int = step_rounds()
    noise_scale: float = noise(0.0, "standard deviation of the noise")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rounds(self.step_size_rule, self.step_size_rounds)

    @property
    def steps(self) -> int:
        """Gradients of a round: one, unless a subclass takes more."""
        return 1

    @property
    def private(self) -> bool:
        """Whether noised and clipped; without a clip the noise proves nothing."""
        return self.noise_scale > 0 and self.clip > 0

    def step_size(self, round_: int) -> float:
        """Return eta_t of a round counted from 1 (t from 0)."""
        size: float = step_in(
            self.step_size_base, self.step_size_rule, self.step_size_rounds, round_
        )
        return size

    def local_task(
        self,
        start: Vector,
        streams: Streams,
        *,
        center: Vector | None = None,
        rho: float = math.inf,
        shift: Vector | None = None,
        tolerance: float = 0.0,
    ) -> LocalTask:
        """Return a task of Q gradient steps of the round's size."""
        return LocalTask(
            start,
            self.step_size(streams.round),
            self.steps,
            center,
            rho,
            shift,
            gradients=self.gradients,
            tolerance=tolerance,
            needs=self.needs,
        )


@dataclass(frozen=True)
class InTurnAgent(GradientAgent):
    """Agents whose batches may come in turn, with noise in bands (`privet.kernel.cyclic`)."""

    batches: int = setting(
        0,
        "batches that an agent's examples are put in with batch = cyclic; auto takes noise-bands",
        low=0,
        words={"auto": 0},
        needs={"batch": "cyclic"},
        topic="Local steps",
    )
    noise_bands: int = setting(
        1,
        "steps in a row whose noise is correlated so that sums over steps have less of it, at most "
        "batches; 1 for independent noise",
        low=1,
        high=MOST_BANDS,
        needs={"batch": "cyclic"},
        topic="Privacy",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch == "cyclic" and (why := self.no_turns()):
            raise ConfigError(f"batch = 'cyclic' {why}")

    def no_turns(self) -> str:
        """Return what batches in turn have no proof for here, or need; empty if nothing."""
        if self._batches < 2:
            return "needs batches, 2 or more: with one a step takes all, which is batch = full"
        if self.noise_bands > self._batches:
            return (
                f"noise-bands = {self.noise_bands} is more than batches = {self._batches}: within "
                "the bands a record would take part twice, which costs more than is charged"
            )
        if self.relation != "replace-one":
            return (
                f"has no proof under relation = {self.relation!r}: use replace-one; poisson goes "
                "with add-remove"
            )
        if not self.clip > 0:
            return "is charged by cycles of batches and needs clip and noise: use sample without"
        if self.noise_sharing:
            return "has no proof with noise-sharing, whose sums change with the roster"
        if self.noise_ratio != 1:
            return "needs the same noise in all rounds: use budget-schedule = constant"
        return ""

    @property
    def _batches(self) -> int:
        return (self.batches or self.noise_bands) if self.batch == "cyclic" else 1

    def _gradients(self, *, replace: bool = False, noise_scale: float = 0.0) -> Gradients:
        every = super()._gradients(replace=replace, noise_scale=noise_scale)
        return changed(every, batches=self._batches, bands=self.noise_bands)


@dataclass(frozen=True)
class NoisyStepsAgent(InTurnAgent):
    """Agents that add noise to every local gradient; whatever follows is post-processing.

    Privacy: with ``noise_scale`` > 0 the mean gradient of each of the Q steps is a Gaussian
    release of sensitivity 2C/b (replace-one), so a message counts as Q of them. This is how
    M. Noble, A. Bellet, A. Dieuleveut, "Differentially Private Federated Learning on Heterogeneous
    Data" (2022), make SCAFFOLD private: control variates made of noised gradients cost nothing.
    """

    steady: ClassVar[bool] = True

    batch: str = setting(
        "full",
        "examples in a step: all, batch-size, poisson: each by a coin that nobody sees, which is "
        "charged for less (relation add-remove), or cyclic: batches in turn, each example in one "
        "step of so many",
        choices=("full", "sample", "poisson", "cyclic"),
        topic="Local steps",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch != "poisson":
            return
        if self.relation != "add-remove":
            raise ConfigError(
                f"batch = 'poisson' has no proof under relation = {self.relation!r}: use "
                "relation = 'add-remove', or batch = 'sample'"
            )
        if self.clipping != "example":
            raise ConfigError(
                f"batch = 'poisson' has no proof with clipping = {self.clipping!r}, which bounds "
                "no record by itself: use clipping = 'example', or batch = 'sample'"
            )
        if not self.clip > 0:
            raise ConfigError(
                "batch = 'poisson' samples for privacy and needs clip and noise: use batch = "
                "'sample' without"
            )

    @property
    def stacks(self) -> bool:
        # Every agent tosses coins of its own, or stands at a batch of its own.
        return self.batch not in ("poisson", "cyclic")

    @cached_property
    def gradients(self) -> Gradients:
        """The gradient of a local step, clipped, with noise on its data term."""
        return self._gradients(noise_scale=self.noise_scale)

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return the release of one round: Q uses of the Gaussian mechanism."""
        what = f"{self.name} noised local gradients"
        return self.gradients.release(facts, count=self.steps, shared=self.noise_sharing, what=what)

    def slope_bound(self, facts: Facts, round_: int) -> float:
        """Return an upper bound of the norm of a noised gradient without the regulariser's part.

        As `Half.upload_bound` of the round's upload: all of its draws together pass it with a
        chance of less than 1e-12.
        """
        largest = data_term(facts, self.clip, self.gradients.rate(facts))
        return norm_bound(self.release(facts, round_), facts.dim, largest)


@dataclass(frozen=True)
class SeveralStepsAgent(NoisyStepsAgent):
    """Agents of several noised steps in a round."""

    max_local_steps: int = setting(
        10, "local steps in a round (Q)", low=1, high=MOST_STEPS, topic="Local steps"
    )

    @property
    def steps(self) -> int:
        """Q."""
        return self.max_local_steps
