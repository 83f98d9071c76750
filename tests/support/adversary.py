"""Adversarial search over neighbouring data sets, through the agent halves that run.

Nothing is assumed of how a half computes. What it hands to the noise is recorded on one data set;
on its neighbour every noised value is set to what was released on the first. The adversary of a
composition sees just that: given equal releases so far, how far apart are the next values?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.client_apps import Half, Local, Streams
from privet.kernel import Clipped, Facts, Perturber, Release
from privet.problems import (
    L2,
    BinaryLogistic,
    LinearModel,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
    public_facts,
)
from privet.sim.residuals import Silence as ZeroNoise
from support.opened import held, opened

Array = NDArray[np.float64]
CLASSES = 2


def climb(
    score: Callable[[Array], float],
    size: int,
    *,
    seed: int,
    population: int = 80,
    generations: int = 15,
) -> float:
    """Maximise `score` by an evolution strategy on R^size and return the best value found."""
    rng = np.random.default_rng(seed)
    parents = rng.standard_normal((population, size)) * 10.0 ** rng.uniform(-1, 1, (population, 1))
    values = np.array([score(row) for row in parents])
    for _ in range(generations):
        order = np.argsort(-values)[: population // 8]
        chosen = parents[order[rng.integers(0, order.size, population)]]
        partners = parents[order[rng.integers(0, order.size, population)]]
        mixed = np.where(rng.random((population, size)) < 0.8, chosen, partners)
        scales = 10.0 ** rng.uniform(-3, 0.7, (population, 1))
        mask = rng.random((population, size)) < rng.uniform(0.1, 1, (population, 1))
        children = mixed + mask * scales * rng.standard_normal((population, size))
        parents = np.concatenate([parents[order], children])
        values = np.concatenate([values[order], [score(row) for row in children]])
    return float(values.max())


def stretched(parameters: Array) -> Array:
    """Map R to numbers of any magnitude up to about 1e3, keeping signs."""
    return np.sinh(np.clip(2.0 * parameters, -8.0, 8.0))


class SomeNoise(ZeroNoise):
    """A noise source that draws the same numbers every time."""

    def gaussian(self, size: Any, scale: float, dtype: Any = np.float64) -> NDArray[Any]:
        """Return multiples of the scale from -2 to 2."""
        return np.resize(np.array([-2.0, 1.0, 0.3, 1.7, -0.6], dtype) * scale, size)

    laplace = gaussian


class Recording(Perturber):
    """Adds the noise it should, and keeps what was handed to it and what it gave back."""

    __slots__ = ("handed", "released")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.handed: list[Array] = []
        self.released: list[Array] = []

    def perturb(self, clipped: Clipped) -> Array:
        """Return the noised value."""
        self.handed.append(np.array(clipped.value))
        self.released.append(super().perturb(clipped))
        return self.released[-1].copy()


class Replaying(Recording):
    """Takes its draws such that what it gives back is what another run gave back."""

    __slots__ = ("script",)

    def follow(self, other: Recording) -> Replaying:
        """Release from now on what another run released."""
        self.script: Iterator[Array] = iter(other.released)
        return self

    def perturb(self, clipped: Clipped) -> Array:
        """Return the other run's value."""
        super().perturb(clipped)
        return next(self.script).copy()


@dataclass(frozen=True)
class Case:
    """A half, its loss, and what its inputs are called.

    Attributes
    ----------
    state, broadcast : tuples of str
        Names of the vectors of length d, which the search chooses.
    fixed : mapping
        The rest of the broadcast.
    finish : callable
        Last change of (state, broadcast), such as encoding a vector.
    bounded : bool
        Whether features are of size 1, where larger ones would all be cut to ``row-norm``.
    seed : int
        Of the mini-batches.
    """

    half: Half
    loss: str = "ridge"
    state: tuple[str, ...] = ()
    broadcast: tuple[str, ...] = ("x",)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[dict[str, Any], dict[str, Any]], None] = lambda state, broadcast: None
    examples: int = 2
    weight: float = 0.0
    relation: str = "replace-one"
    dtype: str = "float64"
    bounded: bool = False
    width: int = 2
    seed: int = 3

    @property
    def dim(self) -> int:
        """Length of the model."""
        return self.width * (1 if self.loss in ("ridge", "logistic") else CLASSES)

    @property
    def size(self) -> int:
        """Number of parameters of the search."""
        return self._records * (self.width + 1) + self.dim * (len(self.state) + len(self.broadcast))

    @property
    def _records(self) -> int:
        """How many records there are in a pair of neighbours."""
        return self.examples * 2 if self.relation == "replace-agent" else self.examples + 1

    @cached_property
    def charge(self) -> tuple[Facts, Release]:
        """The public numbers, which are those of all candidates, and what a round costs."""
        facts = public_facts(self.decode(np.zeros(self.size))[0])
        return facts, self.half.release(facts, 1)

    def decode(
        self, parameters: Array
    ) -> tuple[LinearModel, LinearModel, dict[str, Any], dict[str, Any]]:
        """Return neighbouring problems, divided by one declared number, and public inputs."""
        used = self._records * (self.width + 1)
        records = parameters[:used].reshape(self._records, self.width + 1)
        features = records[:, :-1] if self.bounded else stretched(records[:, :-1])
        targets = stretched(records[:, -1])
        first = np.arange(self.examples)
        if self.relation == "replace-one":
            second = np.concatenate([[self.examples], first[1:]])
        elif self.relation == "replace-agent":
            second = self.examples + first
        else:
            second = first[1:]
        pair = [
            held(self.half, self._problem(features[rows], targets[rows]))
            for rows in (first, second)
        ]
        vectors = iter(stretched(parameters[used:]).reshape(-1, self.dim).astype(self.dtype))
        state = {name: next(vectors) for name in self.state}
        broadcast: dict[str, Any] = {name: next(vectors) for name in self.broadcast}
        broadcast.update(self.fixed)
        self.finish(state, broadcast)
        return pair[0], pair[1], state, broadcast  # type: ignore[return-value]

    def _problem(self, features: Array, targets: Array) -> LinearModel:
        options = {"regularizer": L2(self.weight) if self.weight else None}
        features = features.astype(self.dtype)
        if self.loss == "ridge":
            problem: LinearModel = RidgeRegression(features, targets, **options)
        elif self.loss == "logistic":
            problem = BinaryLogistic(features, np.where(targets > 0, 1.0, -1.0), **options)
        elif self.loss == "one-class-logistic":
            problem = OneClassLogistic(features, _labels(targets), CLASSES, **options)
        else:
            problem = MultinomialLogistic(features, _labels(targets), CLASSES, **options)
        return problem.with_divisor(float(self.examples))

    def played(self, problem: LinearModel, inputs: Any, noise: Perturber) -> Local:
        """Return one round of the half."""
        local = self.half.local_update(
            *inputs, opened(self.half, problem, noise), Streams(self.seed, "0", 1)
        )
        noise.settle()
        return local

    def adaptive_gap(self, parameters: Array) -> float:
        """Return the largest change of a value handed to the noise over what is charged for it.

        All that leaves and all that stays must be a function of the released values: equal
        releases leave uploads and states equal to the bit (``AssertionError``).
        """
        one, two, state, broadcast = self.decode(parameters)
        facts, release = self.charge
        assert public_facts(one) == facts
        drawn = Recording(release, SomeNoise(), facts, given=True)
        equal = Replaying(release, ZeroNoise(), facts, given=True).follow(drawn)
        ends = [
            self.played(problem, (state, broadcast), noise)
            for problem, noise in ((one, drawn), (two, equal))
        ]
        for kept in ("state", "upload"):
            left, right = (getattr(end, kept) for end in ends)
            assert left.keys() == right.keys()
            assert all(np.array_equal(left[name], right[name]) for name in left)
        order = 1 if release.norm == "l1" else 2
        pairs = zip(drawn.handed, equal.handed, strict=True)
        return max(float(np.linalg.norm(a - b, order)) for a, b in pairs) / release.sensitivity

    def silent_gap(self, parameters: Array, name: str) -> float:
        """Return the change of an upload when no noise is drawn, as a number."""
        one, two, state, broadcast = self.decode(parameters)
        facts, release = self.charge
        ends = [
            self.played(
                problem, (state, broadcast), Perturber(release, ZeroNoise(), facts, given=True)
            ).upload[name]
            for problem in (one, two)
        ]
        order = 1 if release.norm == "l1" else 2
        return float(np.linalg.norm(np.subtract(*ends, dtype=np.float64), order))


def _labels(targets: Array) -> NDArray[np.intp]:
    return np.mod(np.floor(targets), CLASSES).astype(np.intp)
