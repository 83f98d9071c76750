"""Neighbouring data sets, what is charged for them, and records that leak on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from privet.agents.guard import prepared
from privet.core import algorithm
from privet.kernel import Clipped, Facts, NoiseError, Records, RecordsError, Release
from privet.kernel.door import Held
from privet.kernel.programs.drift import Drift
from privet.kernel.programs.gradients import Gradients
from privet.kernel.programs.inexact import Inexact
from privet.kernel.programs.steps import LocalTask, NoisySteps
from privet.kernel.programs.update import ClippedUpdate
from privet.kernel.streams import Streams
from privet.problems import (
    L2,
    BinaryLogistic,
    LinearModel,
    MultinomialLogistic,
    RidgeRegression,
    public_facts,
)
from privet.testing.subject import logistic_federation
from support.remote_records import Array, behind

COUNT, WIDTH = 5, 2
RECORDS = ("ordinary", "opposite", "huge", "largest", "tiny", "zero", "aligned")
"""What the record that is replaced, or removed, is like."""
STREAMS = Streams(3, "0", 1)


@lru_cache(maxsize=256)
def problem(loss: str, relation: str, dtype: str, record: str, side: int) -> LinearModel:
    """Return one of two neighbours, divided by the declared number of examples."""
    rng = np.random.default_rng(RECORDS.index(record))
    count = COUNT * 2 if relation == "replace-agent" else COUNT + 1
    features = rng.standard_normal((count, WIDTH))
    targets = rng.standard_normal(count)
    other = COUNT if relation == "replace-agent" else count - 1
    if record == "aligned":
        features[:], targets[:] = np.eye(WIDTH)[0], 0.0
    size = dict(zip(RECORDS[1:], (1e3, 1e30, 1e37, 1e-37, 0.0, 1.0), strict=True))
    if record != "ordinary":
        features[0], targets[0] = size[record], -size[record]
    if record in ("opposite", "aligned"):
        targets[0] *= 1e3
        features[other], targets[other] = features[0], -targets[0]
    if record == "opposite" and relation == "replace-agent":
        features[:], targets[:other], targets[other:] = features[0], targets[0], -targets[0]
    first = np.arange(COUNT)
    second = {
        "replace-one": np.append(COUNT, first[1:]),
        "replace-agent": COUNT + first,
        "add-remove": first[1:],
    }[relation]
    rows = second if side else first
    features, targets = features[rows].astype(dtype), targets[rows]
    found: LinearModel
    if loss == "ridge":
        found = RidgeRegression(features, targets.astype(dtype), regularizer=L2(0.3))
    elif loss == "logistic":
        found = BinaryLogistic(features, np.where(targets > 0, 1.0, -1.0))
    else:
        found = MultinomialLogistic(features, (targets > 0).astype(int), 2)
    return found.with_divisor(float(COUNT))


@dataclass(frozen=True)
class Charge:
    """A program, the data it is played on, and what is charged for it."""

    program: Any
    method: str
    loss: str = "ridge"
    dtype: str = "float64"
    row_norm: float = 0.0
    charged: Callable[[Any, Facts, float], Release] = field(
        default=lambda program, facts, row_norm: program.release(facts, count=3)
    )

    @property
    def relation(self) -> str:
        """The neighbours of the program."""
        found: str = getattr(self.program, "gradients", self.program).relation
        return found

    @cached_property
    def facts(self) -> Facts:
        """The public numbers of both neighbours."""
        return public_facts(problem(self.loss, self.relation, self.dtype, "ordinary", 0))

    @cached_property
    def release(self) -> Release:
        """What is charged for a round."""
        return self.charged(self.program, self.facts, self.row_norm)

    def vector(self, value: Any = 0.1) -> Array:
        """Return a vector of equal numbers."""
        return np.full(self.facts.dim, value, self.dtype)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Those of the request that the charge is for."""
        x, program = self.vector(), self.program
        if self.method == "gradient":
            return program, x, STREAMS
        if self.method == "drift":
            return program, x, self.vector(-0.2), STREAMS
        if self.method == "inexact":
            return program, x, self.vector(0.3), self.vector(-0.2), 1.5, 0.4
        if self.method == "update":
            return program, LocalTask(x, 0.1, 3), STREAMS
        if isinstance(program, Gradients):
            task = LocalTask(x, 0.1, 3, gradients=program, needs=("mean_gradient",))
        else:
            task = LocalTask(
                x, program.step_size, program.steps, self.vector(0.2), program.rho,
                solver="noisy-gd", gradients=program.gradients,
            )  # fmt: skip
        return task, STREAMS


def _alone(program: Any, facts: Facts, row_norm: float) -> Release:
    released: Release = program.release(facts, row_norm)
    return released


def _scaled(program: Any, facts: Facts, row_norm: float) -> Release:
    released: Release = program.release(facts, row_norm, 0.3)
    return released


def _updates(program: Any, facts: Facts, row_norm: float) -> Release:
    released: Release = program.release(facts, 0.3, "updates")
    return released


def _inner(program: Any, facts: Facts, row_norm: float) -> Release:
    released: Release = program.release(facts, row_norm, 0.3, 0.4)
    return released


_CLIPPED = Gradients(clip=0.8, noise_scale=0.3)
_BATCH = Gradients(clip=0.8, clipping="batch")
CHARGES: dict[str, Charge] = {
    "gradients": Charge(_CLIPPED, "gradient"),
    "gradients of the softmax": Charge(_CLIPPED, "walk", loss="multinomial"),
    "float32": Charge(_CLIPPED, "walk", loss="logistic", dtype="float32"),
    "mini-batches": Charge(
        Gradients(batch_size=2, clip=0.8, noise_scale=0.3), "walk", loss="logistic"
    ),
    "whole batches": Charge(Gradients(clip=0.8, clipping="batch", noise_scale=0.3), "gradient"),
    "add-remove": Charge(
        Gradients(clip=0.8, relation="add-remove", noise_scale=0.3), "gradient", loss="logistic"
    ),
    "replace-agent": Charge(
        Gradients(clip=0.8, relation="replace-agent", noise_scale=0.3), "gradient"
    ),
    "objective": Charge(
        Inexact(2, "box", 5.0, 0.8, "l1", perturbation="objective", mechanism="laplace"),
        "inexact",
        charged=_inner,
    ),
    "output": Charge(
        Inexact(3, "l2", 5.0, 0.8, perturbation="output"), "inexact", row_norm=1.0, charged=_inner
    ),
    "drift": Charge(
        Drift(0.5, 0.4, 4, Gradients(clip=0.8), "example"), "drift", row_norm=1.0, charged=_scaled
    ),
    "drift of whole batches": Charge(
        Drift(0.5, 0.4, 4, _BATCH, "batch"), "drift", loss="multinomial", charged=_scaled
    ),
    "noisy steps": Charge(
        NoisySteps(Gradients(clip=0.8), 0.2, 3, 0.1, 2.0), "walk", loss="multinomial", row_norm=1.0,
        charged=_alone,
    ),
    "hidden steps": Charge(
        NoisySteps(Gradients(clip=0.8), 0.2, 3, 0.1, 2.0), "walk", row_norm=1.0, charged=_alone
    ),
    "update": Charge(ClippedUpdate(0.8), "update", charged=_updates),
    "update of an agent": Charge(
        ClippedUpdate(0.8, "replace-agent"), "update", loss="logistic", charged=_updates
    ),
}  # fmt: skip


class UnNoised(Records):
    """Takes the draw, and answers without it."""

    __slots__ = ()

    def gradient(self, gradients: Gradients, x: Array, streams: Streams) -> Array:
        super().gradient(gradients, x, streams)
        found: Array = self._problem.gradient(x)
        return found


class Louder(Records):
    """Hands twice the value to the noise, at the value's own sensitivity."""

    __slots__ = ()

    def gradient(self, gradients: Gradients, x: Array, streams: Streams) -> Array:
        clipped, rest = gradients.charged_terms(self._problem, self._noise)(x)
        noised = self._noise.perturb(Clipped(2.0 * clipped.value, *clipped[1:]))
        return noised if rest is None else noised + rest


class Quoting(Records):
    """Says in an error how large the un-noised gradient is."""

    __slots__ = ()

    def gradient(self, gradients: Gradients, x: Array, streams: Streams) -> Array:
        if not np.isfinite(x).all():
            raise RecordsError(f"no gradient beside {self._problem.features[0, 0]:g}")  # type: ignore[attr-defined]
        return super().gradient(gradients, x, streams)


class Sparing(Records):
    """Adds the last draw again in place of the third."""

    __slots__ = ()

    def gradient(self, gradients: Gradients, x: Array, streams: Streams) -> Array:
        noise: Any = self._noise
        if noise.taken < 2:
            return super().gradient(gradients, x, streams)
        clipped, _ = gradients.charged_terms(self._problem, noise)(x)
        found: Array = clipped.value + noise.released[-1] - noise.handed[-1]
        return found


class Choosy(Records):
    """Refuses where a record is long."""

    __slots__ = ()

    def gradient(self, gradients: Gradients, x: Array, streams: Streams) -> Array:
        if np.abs(self._problem.features).max() > 10.0:  # type: ignore[attr-defined]
            raise NoiseError("no")
        return super().gradient(gradients, x, streams)


LEAKS: dict[str, type[Records]] = {
    kind.__name__: kind for kind in (UnNoised, Louder, Quoting, Sparing, Choosy)
}


def side(name: str, record: str, number: int, *, leak: str = "", **options: Any) -> Records:
    """Return the records of one neighbour, behind what is charged."""
    charge = CHARGES[name]
    own = problem(charge.loss, charge.relation, charge.dtype, record, number)
    if charge.row_norm:
        own = own.with_rows_within(charge.row_norm)
    kind = LEAKS.get(leak, Records)
    return behind(Held(own, charge.row_norm), charge.release, charge.facts, kind=kind, **options)


def of_algorithm(name: str, settings: dict[str, Any], round_: int) -> Records:
    """Return the first agent's records in a round of an algorithm's own half."""
    half = algorithm(name).load_agent().from_settings(settings)
    own = logistic_federation()[0]
    facts = public_facts(own)
    return behind(prepared(half, own, facts), half.release(facts, round_), facts, seed=round_)


__all__ = ["CHARGES", "LEAKS", "RECORDS", "Charge", "of_algorithm", "side"]
