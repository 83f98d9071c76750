"""Whether a run blows up, and whether it has come to anything: what its numbers say of that."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .failure import overflowed
from .observers import Observer, number
from .outcome import TooFewError
from .run import Run
from .session import Round
from .stop import Stop

log = logging.getLogger("flwr.privet")

UPLOADS = "uploads that are not finite"
FIRST, GROWN, LASTING = 3, 30.0, 3
"""Rounds that say what is usual, the factor that is no more, and for how many rounds: networks that
train pass 10 times their first residuals, and 30 in a single round; one that collapses may pass 300
and be back at 30 after four."""
EXPLODED = 1e3
"""A loss that is so many times the start's has exploded, in whatever round; a residual, which is a
square, by the square of it."""
VANISHING = 1e-12
"""Below it numbers that grow are rounding errors, as of a run that begins at its optimum."""

JUDGED_FROM = 10
"""The round from which a run ought to be better than its start; a shorter one at its end."""
MARGIN = 0.02
"""Share of the first loss, and accuracy, beyond which better is better without doubt. A network
that collapses to a constant may end a little below a start of random weights."""
WORSE = 0.1
"""As a share of the first loss: by how much a run must be worse than a model that was trained for a
round already, as it may have all but arrived in that round."""


def remedy(keys: Sequence[str], *, diverged: bool = False, private: bool = False) -> str:
    """Return what to change of a run that diverged, or else is no better than its start.

    ``keys`` are those of the length of its local steps.
    """
    steps = " or ".join(keys)
    if diverged:
        return f"try a smaller {steps or 'step, or fewer of them'}"
    if private:
        smaller = " or ".join(("clip", *keys))
        return (
            "its noise may hide what it learns; try fewer rounds, a smaller "
            f"{smaller}, or a larger epsilon"
        )
    if not keys:
        return "unless the start was good already, look at its settings"
    return (
        f"unless the start was good already, try half of {steps}, or twice as much where the loss "
        "hardly moves"
    )


@dataclass
class Course:
    """Numbers of one kind as a run goes on.

    Attributes
    ----------
    name : str
    exploded : float
        How many times the start is too many at once.
    start, accuracy : float
        Of the starting model; NaN, the first that is added takes its place.
    late : bool
        Whether the start is of a model that has been trained for a round.
    usual : float
        The largest of the start and the first `FIRST`.
    best : float
        The least so far.
    grown : int
        For how many rounds it has been more than `GROWN` times the usual.
    recent : deque of pairs of floats
        The last of them, each with its accuracy.
    """

    name: str
    exploded: float = EXPLODED
    start: float = math.nan
    accuracy: float = math.nan
    late: bool = False
    usual: float = 0.0
    best: float = math.inf
    grown: int = 0
    count: int = 0
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2 * LASTING))

    def begin(self, start: float, accuracy: float) -> None:
        """Compare with this start, if it was measured."""
        if not math.isnan(start):
            self.start, self.accuracy, self.late = start, accuracy, False
            self.usual = start

    def add(self, value: float, accuracy: float = math.nan) -> bool:
        """Add what a round has, if it was measured; return whether it is far too much."""
        if math.isnan(value):
            return False
        if math.isnan(self.start):
            self.start, self.accuracy = value, accuracy
        exploded = value > self.exploded * self.start > VANISHING
        grown = self.count >= FIRST and value > GROWN * self.usual > VANISHING
        self.grown = self.grown + 1 if grown else 0
        self.count += 1
        if self.count <= FIRST:
            self.usual = max(self.usual, value)
        self.best = min(self.best, value)
        self.recent.append((value, accuracy))
        return exploded or self.grown >= LASTING

    @property
    def falls(self) -> bool:
        """Whether the last value is better than the start without doubt, and about the best."""
        if not self.recent:
            return False
        doubt, value = MARGIN * abs(self.start), self.recent[-1][0]
        return value < self.start - doubt and value <= self.best + doubt

    def is_no_better(self, *, noisy: bool) -> bool:
        """Whether the last values are no better than the start, nor their accuracy.

        The mean of the last `LASTING` is not below the start; or not by more than `MARGIN` of it,
        and has not fallen since the `LASTING` before, as that of a slow run does. In a noisy run
        the least of them stands for their mean.
        """
        recent = [value for value, _ in self.recent]
        last, before = recent[-LASTING:], recent[:-LASTING]
        if len(last) < LASTING or self._is_more_accurate:
            return False
        low = min(last) if noisy or self.late else sum(last) / LASTING
        if self.late:
            return low > self.start + WORSE * abs(self.start)
        flat = len(before) == LASTING and sum(last) >= sum(before)
        return low >= self.start - (MARGIN * abs(self.start) if flat else 0.0)

    @property
    def _is_more_accurate(self) -> bool:
        """Whether the mean accuracy of the last is better; False where it is not known."""
        last = [accuracy for _, accuracy in self.recent][-LASTING:]
        return sum(last) / len(last) > self.accuracy + (-MARGIN if self.late else MARGIN)


class Losses:
    """The course of a run's losses: those of its models, and those that its agents train with.

    The latter begin with the mean over the first round's local steps, or with the loss of the
    starting model itself, as the agents report it.
    """

    def __init__(self) -> None:
        self.evaluated, self.trained = Course("loss", late=True), Course("train loss")

    def begin(self, run: Run) -> None:
        """Take over what a run has measured before."""
        initial = run.session.initial
        self.evaluated.begin(initial.loss, initial.accuracy)
        for done in run.session.history:
            self.add(done)

    def add(self, done: Round) -> list[str]:
        """Add a round; return what of it is far too much."""
        train = done.train_metrics_clientapp
        loss, accuracy = (number(train.get(name)) for name in ("loss", "accuracy"))
        found = [self.evaluated] * self.evaluated.add(done.loss, done.accuracy)
        found += [self.trained] * self.trained.add(loss, accuracy)
        return [f"{one.name} {one.recent[-1][0]:.3g}" for one in found]

    @property
    def course(self) -> Course:
        """What is judged by: the models' losses, where there are any."""
        return self.evaluated if self.evaluated.recent else self.trained


class Divergence(Observer):
    """Says once that a run blows up, and ends it where that is asked for.

    It does where uploads, the residual or a loss are not finite; where a loss is `EXPLODED` times
    that of the start, or the root of the residual is; or where one of them has been `GROWN` times
    its largest of the start and the first `FIRST` rounds for `LASTING` rounds. A residual that
    grows while the loss falls is none of that: that of a slow run does. Nor is one that is NaN
    before uploads of ``exchanges`` rounds, of which an iteration consists, were folded.
    """

    def __init__(self, ends: bool, keys: Sequence[str], exchanges: int) -> None:
        self.ends, self.keys = ends, keys
        self.exchanges, self.folded = exchanges, 0
        self.losses = Losses()
        self.residuals = Course("residual", exploded=EXPLODED**2)

    def on_begin(self, run: Run) -> None:
        """Look at the rounds before a resume."""
        self.losses.begin(run)
        for done in run.session.history:
            self.residuals.add(done.residual)
            self.folded += bool(done.participants)

    def on_round(self, run: Run, done: Round) -> str | None:
        """Look at the round's numbers; those that were not measured are of no account."""
        self.folded += bool(done.participants)
        what = self._fault(done)
        return self._say(run, f"{what} in round {done.round}") if what else None

    def on_failure(self, run: Run, few: TooFewError) -> str | None:
        """Say so of a round that failed because uploads were not finite."""
        if not few.overflowed:
            return None
        return self._say(run, f"{UPLOADS} in round {run.session.round + 1}")

    def _say(self, run: Run, what: str) -> str | None:
        if run.diverged:
            return None
        run.diverged = what
        log.warning("this run diverges, %s: %s", what, remedy(self.keys, diverged=True))
        return Stop.DIVERGENCE if self.ends else None

    def _fault(self, done: Round) -> str:
        if overflowed(done.failures, len(done.participants) + len(done.failures)):
            return UPLOADS
        if math.isnan(done.residual) and self.folded >= self.exchanges:
            return f"residual {done.residual:g}"
        for name, value in _measured(done):
            if not math.isfinite(value):
                return f"{name} {value:g}"
        faults = self.losses.add(done)
        if self.residuals.add(done.residual) and not self.losses.course.falls:
            faults.append(f"residual {done.residual:.3g}")
        return faults[0] if faults else ""


def _measured(done: Round) -> Iterator[tuple[str, float]]:
    """Return the numbers of a round that must be finite, where they were measured."""
    for name, value in (("residual", done.residual), ("loss", done.loss)):
        if not math.isnan(value):
            yield name, value
    for name, metrics in (
        ("loss", done.evaluate_metrics_serverapp),
        ("loss", done.evaluate_metrics_clientapp),
        ("train loss", done.train_metrics_clientapp),
    ):
        if isinstance(metrics.get("loss"), float):
            yield name, number(metrics["loss"])


class NoBetter(Observer):
    """Says once that a run is no better than its start, and ends nothing.

    It looks from round `JUDGED_FROM` on, and at the end. ``run.no_better`` says it as long as it
    is so.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys, self.losses, self.warned = keys, Losses(), False

    def on_begin(self, run: Run) -> None:
        """Look at the rounds before a resume."""
        self.losses.begin(run)

    def on_round(self, run: Run, done: Round) -> str | None:
        """Compare the last losses with the start's."""
        self.losses.add(done)
        course, run.no_better = self.losses.course, ""
        arrived = done.residual <= VANISHING
        judged = run.stopped or done.round >= JUDGED_FROM
        if not judged or run.diverged or arrived or not course.is_no_better(noisy=run.private):
            return None
        value = course.recent[-1][0]
        start = "after the first round" if course.late else "at the start"
        run.no_better = (
            f"{course.name} {value:.4g} in round {done.round}, {course.start:.4g} {start}"
        )
        if not self.warned:
            hint = remedy(self.keys, private=run.private)
            log.warning("this run is no better than its start, %s: %s", run.no_better, hint)
        self.warned = True
        return None
