"""Privacy-critical: the gradient of f_i in a local step: its rows, clipping and noise.

The program ``gradients``: every gradient that is taken is clipped, on each example or as a whole,
and noised before anything else sees it. One record moves a clipped mean by at most
`privet.kernel.bounded.clipped_sensitivity` (there is the proof), so each gradient is one use of the
mechanism, and whatever follows from several is their adaptive composition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat

import numpy as np

from ..bounded import (
    BoolArray,
    Clipped,
    ClippedTerms,
    Clipping,
    IntArray,
    Relation,
    clipped_terms,
    sampled_terms,
)
from ..errors import NoCertificateError, NoiseError, RecordsError
from ..events import Release
from ..facts import Facts
from ..perturb import Perturber
from ..records import FloatArray, Problem, RowIndex, can_clip, can_clip_batches
from ..streams import StackedStreams, Streams

Gradient = Callable[[FloatArray], FloatArray]
"""w -> the gradient of the next local step at w; what it returns is read only."""
_DRAWN_AT_ONCE = 1 << 16
"""Numbers of rows that are drawn at once, ahead of the steps that they are for."""


def require_model(x: FloatArray, problem: Problem) -> None:
    """Raise ``RecordsError`` for what is no model of the problem, or of each of a stack (N, d)."""
    expected = getattr(problem, "shape", (problem.dim,))
    if x.shape != expected:
        raise RecordsError(f"model has shape {x.shape}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradient of a local step: rows, clipping and noise.

    Attributes
    ----------
    batch_size : int
        Examples of a step, drawn afresh for each; 0 takes all.
    poisson : bool
        Whether each record takes part by a coin of its own, ``batch_size`` of them on average
        (`privet.kernel.sampled`).
    replace : bool
        Whether a batch is drawn with replacement.
    clip : float
        Gradient norm bound C, 0 for none.
    clipping : {"example", "batch"}
        The quantity that is clipped: every example's gradient, or that of the whole batch.
    relation : {"replace-one", "add-remove"}
        Neighbouring data that the sensitivity is stated for.
    batches, bands : int
        b of batches in turn, with a batch_size of 0, and how many steps in a row have correlated
        noise (`privet.kernel.cyclic`); 1 for other rows.
    noise_scale : float
        Deviation of the noise: what `release` charges, and what is added where nothing is charged.
    """

    batch_size: int = 0
    replace: bool = False
    clip: float = 0.0
    clipping: Clipping = "example"
    relation: Relation = "replace-one"
    noise_scale: float = 0.0
    poisson: bool = False
    batches: int = 1
    bands: int = 1

    def rate(self, facts: Facts) -> float:
        """Return q = batch size / n, the chance by which a record takes part; 1 for all."""
        return min(1.0, self.batch_size / facts.num_examples) if self.poisson else 1.0

    def sensitivity(self, facts: Facts) -> float:
        """Return how far one record can move a clipped gradient.

        Raises
        ------
        NoCertificateError
        """
        if self.batches > 1:
            return self._cyclic_sensitivity(facts)
        whole = not 0 < self.batch_size < facts.num_examples
        if self.poisson and not whole:
            return self._sampled_sensitivity(facts)
        if self.clipping == "example" and self.relation == "add-remove" and not whole:
            raise NoCertificateError(
                "relation = 'add-remove' needs batch = 'full': a sampled batch that loses a record "
                "holds another in its place"
            )
        return facts.sensitivity(
            self.clip,
            relation=self.relation,
            clipping=self.clipping,
            batch_size=None if whole else self.batch_size,
        )

    def _cyclic_sensitivity(self, facts: Facts) -> float:
        """Return how far one record moves the gradient of its batch, the smaller or the larger."""
        if self.relation != "replace-one":
            raise NoCertificateError(
                f"batch = 'cyclic' has no proof under relation = {self.relation!r}: a record that "
                "goes would move others to another batch, and an agent's records are in all"
            )
        count = facts.num_examples
        if count < self.batches:
            raise NoCertificateError(f"batches = {self.batches}: an agent has {count} examples")
        return max(
            facts.sensitivity(
                self.clip, relation=self.relation, clipping=self.clipping, batch_size=size
            )
            for size in (count // self.batches, -(-count // self.batches))
        )

    def _sampled_sensitivity(self, facts: Facts) -> float:
        """Return how far one record moves the sum over those that take part, divided by q D.

        The sum is computed as one over all n records, of which some count as zero.
        """
        if self.relation != "add-remove":
            raise NoCertificateError(
                f"batch = 'poisson' has no proof under relation = {self.relation!r}: use add-remove"
            )
        if self.clipping != "example":
            raise NoCertificateError(
                f"batch = 'poisson' has no proof with clipping = {self.clipping!r}, which bounds "
                "no record by itself: use example"
            )
        moved = facts.sensitivity(self.clip, relation=self.relation, in_place=True)
        return moved / self.rate(facts)

    def release(
        self, facts: Facts, *, count: int = 1, shared: bool = False, what: str = ""
    ) -> Release:
        """Return what ``count`` noised gradients are charged as: so many uses of the mechanism.

        Where noise is ``shared``, it is that of the masked sum of all agents (`Facts.agents`).

        Raises
        ------
        NoCertificateError
        """
        agents, colluders = facts.sharing(shared)
        return Release(
            "gaussian",
            scale=self.noise_scale,
            sensitivity=self.sensitivity(facts),
            count=count,
            relation=self.relation,
            what=what,
            agents=agents,
            colluders=colluders,
            sampling=self.rate(facts),
            batches=self.batches,
            bands=self.bands,
            program="gradients",
        )

    def oracle(
        self, problem: Problem, streams: Streams, noise: Perturber, steps: int = 1
    ) -> Gradient:
        """Return a function that gives one local step's gradient after the other, up to ``steps``.

        Privacy: where a mechanism is charged, every gradient is one of its draws, with the noise on
        the clipped data term and nothing else.
        """
        if noise.charged and (self.rate(noise.facts) < 1 or noise.release.sampling < 1):
            return self._sampled(problem, noise)
        if noise.charged and (self.batches > 1 or noise.cycle):
            return self._cyclic(problem, noise)
        rows = self.rows(problem, streams, steps)
        if noise.charged:
            return self._perturbed(problem, rows, noise)
        if self.noise_scale > 0:
            return lambda w: noise.unaccounted(
                self._clipped(problem, w, next(rows)), self.noise_scale
            ).astype(w.dtype, copy=False)
        if self.clip > 0 or self.batch_size > 0:
            return lambda w: self._clipped(problem, w, next(rows))
        return problem.gradient

    def clipped_sum(
        self, total: FloatArray, problem: Problem, noise: Perturber, unit: float = 1.0
    ) -> FloatArray:
        """Return a step's sum of clipped gradients as its gradient, noised (`Records.clipped_sum`).

        n and b count the examples that are held, of which there are no more than declared.
        """
        facts = noise.facts
        if self.rate(facts) < 1 or noise.release.sampling < 1:
            raise NoiseError("a batch of the caller's was summed, where records are to be sampled")
        if self.batches > 1 or noise.cycle:
            raise NoiseError("a batch of the caller's was summed, where they come in turn")
        count = min(problem.num_examples, facts.num_examples)
        size = min(self.batch_size or count, count)
        value = np.multiply(total, count / (facts.divisor * size), dtype=np.float64)
        value *= unit
        moved = replace(self, clipping="example").sensitivity(facts)
        noised: FloatArray = noise.perturb(Clipped(value, abs(unit) * moved, "l2"))
        noised /= unit
        return noised

    def size(self, held: Problem | Facts) -> int | None:
        """Return the number of examples of a step, None where it takes all."""
        if self.poisson and self.batch_size >= held.num_examples:
            return None
        return min(self.batch_size, held.num_examples) if self.batch_size > 0 else None

    def rows(self, problem: Problem, streams: Streams, steps: int) -> Iterator[RowIndex]:
        """Return the rows of one step after the other, at least ``steps``; None for all."""
        count, size = problem.num_examples, self.size(problem)
        if self.batches > 1:
            raise NoiseError(
                "batch = 'cyclic' was not charged as that: it needs clip, noise and one of the "
                "methods that noise every gradient"
            )
        if size is None:
            return repeat(None)
        if self.poisson:
            raise NoiseError(
                "batch = 'poisson' was not charged as that: it needs clip, noise and one of the "
                "methods that noise every gradient, else take batch = 'sample'"
            )
        if isinstance(streams, StackedStreams):
            every = [self.rows(problem, one, steps) for one in streams.each()]
            return map(np.stack, zip(*every, strict=True))
        rng = streams.open("batches")
        if self.replace:
            # One stream, whatever the number of steps that are drawn at once.
            block = min(steps, max(1, _DRAWN_AT_ONCE // size)), size
            return chain.from_iterable(rng.integers(count, size=block) for _ in repeat(None))
        return (rng.choice(count, size, replace=False, shuffle=False) for _ in repeat(None))

    def charged_terms(self, problem: Problem, noise: Perturber) -> ClippedTerms:
        """Return the clipped data term, with the sensitivity that public numbers give.

        Raises
        ------
        NoCertificateError
            As `sensitivity`.
        NoiseError
            For rows with replacement: whether one comes twice may depend on how many there are.
        """
        size = self.size(problem)
        if size is not None and self.replace:
            raise NoiseError("rows are drawn with replacement: no charge covers an example twice")
        return clipped_terms(
            problem,
            self.clip,
            clipping=self.clipping,
            batch_size=size,
            sensitivity=self.sensitivity(noise.facts),
        )

    def _clipped(self, problem: Problem, x: FloatArray, rows: RowIndex) -> FloatArray:
        if self.clip <= 0:
            return problem.gradient(x, rows)
        if self.clipping == "batch" and can_clip_batches(problem):
            return problem.batch_clipped_gradient(x, self.clip, rows)
        if self.clipping == "example" and can_clip(problem):
            return problem.clipped_gradient(x, self.clip, rows=rows)
        raise RecordsError(f"clip = {self.clip:g}: this problem cannot clip")

    def sampled_sum(
        self, count: int, sum_of: Callable[[BoolArray], FloatArray], noise: Perturber, unit: float
    ) -> FloatArray:
        """Return a step's gradient of sampled records, whose clipped sum ``sum_of`` gives."""
        rate = self._charged_rate(noise)
        total = sum_of(noise.coins(count))
        value = np.multiply(total, 1.0 / noise.facts.divisor, dtype=np.float64)
        value *= unit / rate
        moved = abs(unit) * self.sensitivity(noise.facts)
        noised: FloatArray = noise.perturb(Clipped(value, moved, "l2"))
        noised /= unit
        return noised

    def cyclic_sum(
        self, count: int, sum_of: Callable[[IntArray], FloatArray], noise: Perturber
    ) -> FloatArray:
        """Return a step's gradient of the batch whose turn it is, which ``sum_of`` gives."""
        rows, facts = noise.batch(count), noise.facts
        factor = count / (facts.divisor * len(rows))
        value = np.multiply(sum_of(rows), factor, dtype=np.float64)
        moved = replace(self, clipping="example").sensitivity(facts)
        noised: FloatArray = noise.perturb(Clipped(value, moved, "l2"))
        return noised

    def _charged_rate(self, noise: Perturber) -> float:
        """Return q, which must be the charged one (raises ``NoiseError``)."""
        rate = self.rate(noise.facts)
        if rate != noise.release.sampling:
            raise NoiseError(
                f"records take part with probability {rate:g}, {noise.release.sampling:g} was "
                "charged"
            )
        return rate

    def _sampled(self, problem: Problem, noise: Perturber) -> Gradient:
        rate, moved = self._charged_rate(noise), self.sensitivity(noise.facts)
        terms = sampled_terms(problem, self.clip, rate, self.batch_size, moved)

        def gradient(x: FloatArray) -> FloatArray:
            clipped, rest = terms(x, noise.coins(problem.num_examples))
            return _noised(clipped, rest, x, noise)

        return gradient

    def turn(self, problem: Problem, noise: Perturber) -> tuple[ClippedTerms, IntArray]:
        """Return the clipped data term of the next batch in turn, and its rows.

        Raises
        ------
        NoCertificateError
            As `sensitivity`.
        NoiseError
            As `Perturber.batch`.
        """
        rows = noise.batch(problem.num_examples)
        terms = clipped_terms(
            problem,
            self.clip,
            clipping=self.clipping,
            batch_size=len(rows),
            sensitivity=self.sensitivity(noise.facts),
        )
        return terms, rows

    def _cyclic(self, problem: Problem, noise: Perturber) -> Gradient:
        def gradient(x: FloatArray) -> FloatArray:
            terms, rows = self.turn(problem, noise)
            return _noised(*terms(x, rows), x, noise)

        return gradient

    def _perturbed(self, problem: Problem, rows: Iterator[RowIndex], noise: Perturber) -> Gradient:
        terms = self.charged_terms(problem, noise)

        def gradient(x: FloatArray) -> FloatArray:
            return _noised(*terms(x, next(rows)), x, noise)

        return gradient


def _noised(
    clipped: Clipped, rest: FloatArray | None, x: FloatArray, noise: Perturber
) -> FloatArray:
    slope: FloatArray = noise.perturb(clipped)
    if rest is not None:
        slope += noise.beside(rest)
    return slope if noise.shared else slope.astype(x.dtype, copy=False)
