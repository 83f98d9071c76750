"""Observers of a run's residuals and losses: does it diverge, and is it better than its start?"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from privet.core.errors import FruitlessError

from .collect.outcome import OverflowedError, TooFewError
from .failure import FailureCode, not_finite, overflowed
from .observers import Observer, number
from .run import Run
from .session import RECENT, Round
from .stop import Stop

log = logging.getLogger("flwr.privet")

DIVERGES = "this run diverges, "
"""Beginning of the note that the history has at the first round that diverges."""
UPLOADS = "uploads that are not finite"
FIRST, GROWN, LASTING = 3, 30.0, 3
"""The number of first rounds that set the usual level, the factor of it that is too large, and the
number of rounds for which it must last. Networks that train pass 10 times their first residuals,
and 30 in a single round; one that collapses may pass 300 and be back at 30 after four."""
FASTER = 8.0
"""The factor of the value at half the rounds that is too large as well. Where steps are short the
agents move steadily, and the residual, a square, grows fourfold as the rounds double."""
EXPLODED = 1e3
"""The factor of the start's loss from which a loss has exploded, in any round. For a residual,
which is a square, the square of it."""
VANISHING = 1e-12
"""Growth below this value is rounding error, e.g. in a run that begins at its optimum."""

JUDGED_FROM = 10
"""The round from which a run must be better than its start; a shorter run is judged at its end."""
MARGIN = 0.02
"""The improvement, as a share of the first loss or in accuracy, that is significant. A network that
collapses to a constant may end a little below a start of random weights."""
WORSE = 0.1
"""The increase, as a share of the first loss, that counts if the start was trained for a round
already, as the run may have almost converged in that round."""


_DATA = "look first at the doubts about its data, which the log and privet data name; else "


def how_diverged(notes: Iterable[str]) -> str:
    """Return how a run diverged by the notes of its rounds, "" where none says that it did."""
    said = (note.removeprefix(DIVERGES) for note in notes if note.startswith(DIVERGES))
    return next(said, "")


def remedy(
    keys: Sequence[str], *, diverged: bool = False, private: bool = False, doubtful: bool = False
) -> str:
    """Return a hint for a run that diverged, or else is no better than its start.

    ``keys`` are the run-config keys of the length of its local steps; ``doubtful`` says that the
    log has doubts about its data.
    """
    if doubtful:
        return _DATA + remedy(keys, diverged=diverged, private=private)
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
    """The course of one number over a run's rounds.

    Attributes
    ----------
    name : str
    exploded : float
        The factor of the start from which a single value is too large.
    start, accuracy : float
        The values of the starting model; NaN is replaced by the first value that is added.
    late : bool
        Whether the start is the value of a model that has been trained for a round.
    usual : float
        The largest of the start and the first `FIRST` values.
    best : float
        The least value so far.
    grown : int
        The number of rounds for which it has been more than `GROWN` times the usual, and `FASTER`
        times the value at half the rounds.
    recent : deque of pairs of floats
        The last values, each with its accuracy.
    values : list of float
        All values so far.
    """

    name: str
    exploded: float = EXPLODED
    start: float = math.nan
    accuracy: float = math.nan
    late: bool = False
    usual: float = 0.0
    best: float = math.inf
    grown: int = 0
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2 * LASTING))
    values: list[float] = field(default_factory=list)

    def begin(self, start: float, accuracy: float) -> None:
        """Compare with this start, if it was measured."""
        if not math.isnan(start):
            self.start, self.accuracy, self.late = start, accuracy, False
            self.usual = start

    def add(self, value: float, accuracy: float = math.nan) -> bool:
        """Add a round's value, if it was measured; return whether the course diverges."""
        if math.isnan(value):
            return False
        if math.isnan(self.start):
            self.start, self.accuracy = value, accuracy
        exploded = value > self.exploded * self.start > VANISHING
        before = len(self.values)
        grown = before >= FIRST and value > GROWN * self.usual > VANISHING
        grown = grown and value > FASTER * self.values[before // 2]
        self.grown = self.grown + 1 if grown else 0
        self.values.append(value)
        if before < FIRST:
            self.usual = max(self.usual, value)
        self.best = min(self.best, value)
        self.recent.append((value, accuracy))
        return exploded or self.grown >= LASTING

    @property
    def holds(self) -> bool:
        """Whether the last value is below the start, and about the best."""
        if not self.recent:
            return False
        value = self.recent[-1][0]
        return value < self.start and value <= self.best + MARGIN * abs(self.start)

    def is_no_better(self, *, noisy: bool) -> bool:
        """Whether the last values are no better than the start, nor their accuracy.

        The mean of the last `LASTING` is not below the start; or not by more than `MARGIN` of it,
        and has not fallen since the `LASTING` before, as that of a slow run does. In a noisy run
        the least of them replaces their mean.
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
        """Whether the mean accuracy of the last values is better; False if it is not known."""
        last = [accuracy for _, accuracy in self.recent][-LASTING:]
        return sum(last) / len(last) > self.accuracy + (-MARGIN if self.late else MARGIN)


class Losses:
    """The course of a run's losses: those of its models, and those that its agents train with.

    The latter begin with the mean over the first round's local steps, or with the loss of the
    starting model itself, as the agents report it.
    """

    def __init__(self) -> None:
        self.evaluated, self.trained = Course("loss", late=True), Course("train loss")
        self._of_agents = False

    def begin(self, run: Run) -> None:
        """Add the start and the rounds before a resume."""
        self.begin_at(run.session.initial)
        for done in run.session.history:
            self.add(done)

    def begin_at(self, initial: Round) -> None:
        """Add the start alone."""
        self.evaluated.begin(initial.loss, initial.accuracy)

    def add(
        self,
        done: Round,
        usual: float = math.nan,
        usual_train: float = math.nan,
        *,
        stated: bool = True,
    ) -> list[str]:
        """Add a round; return the names and values of its losses that diverge.

        Of a loss that agents state, their mean, no more than the second largest counts where that
        is given: one agent's word is no divergence. Without ``stated`` it is none at all.
        """
        train = done.train_metrics_clientapp
        loss, accuracy = (number(train.get(name)) for name in ("loss", "accuracy"))
        self._of_agents = done.evaluate_metrics_clientapp.get("loss") == done.loss
        evaluated = _least(done.loss, usual) if self._of_agents else done.loss
        loss = _least(loss, usual_train)
        of_models = self.evaluated.add(evaluated, done.accuracy)
        of_training = self.trained.add(loss, accuracy)
        diverging = [self.evaluated] * (of_models and (stated or not self._of_agents))
        diverging += [self.trained] * (of_training and stated)
        return [f"{one.name} {one.recent[-1][0]:.3g}" for one in diverging]

    @property
    def course(self) -> Course:
        """The losses that decide: those of the models, if there are any, else of the training."""
        return self.evaluated if self.evaluated.recent else self.trained

    @property
    def is_stated(self) -> bool:
        """Whether agents state the losses that decide."""
        return self._of_agents or (self.course is self.trained and bool(self.trained.recent))


def _least(mean: float, usual: float) -> float:
    return usual if usual < mean else mean  # a NaN is not known


class Courses:
    """The courses of a run's losses and residual; what diverges in one of them does in the run."""

    def __init__(self) -> None:
        self.losses = Losses()
        self.residuals = Course("residual", exploded=EXPLODED**2)

    def begin(self, run: Run) -> None:
        """Add the start and the rounds before a resume."""
        self.losses.begin(run)
        for done in run.session.history:
            self.residuals.add(done.residual)

    def add(
        self,
        done: Round,
        usual: float = math.nan,
        usual_train: float = math.nan,
        *,
        stated: bool = True,
    ) -> str:
        """Add a round, as `Losses.add`; return what diverges in it, "" where nothing does."""
        for name, value in _measured(done):
            if not math.isfinite(value):
                return f"{name} {value:g}"
        faults = self.losses.add(done, usual, usual_train, stated=stated)
        grows = self.residuals.add(done.residual) and not self.losses.course.holds
        if grows and (stated or not self.losses.is_stated):
            faults.append(f"residual {done.residual:.3g}")
        return faults[0] if faults else ""


def found_in(history: Sequence[Round], initial: Round) -> str:
    """Return how a run diverged by the record of its rounds, "" where it shows nothing of it.

    The numbers say so where no note does. Of losses that agents state the record has the mean
    alone, and one agent's word is no divergence: they say nothing unless they are not finite, and
    neither does a residual beside them. ``initial`` has the measures of the starting model.
    """
    if said := how_diverged(note for done in history for note in done.notes):
        return said
    courses, folded, last = Courses(), set[str](), dict[str, int]()
    courses.losses.begin_at(initial)
    for done in history:
        folded.update(done.participants)
        never = done.failures.keys() - folded
        last |= dict.fromkeys((n for n in not_finite(done.failures) if n not in never), done.round)
        lately = [name for name, number in last.items() if done.round - number <= RECENT]
        chosen = len(done.participants) + len(done.failures)
        uploads = overflowed(done.failures, chosen, never, lately)
        if fault := UPLOADS if uploads else courses.add(done, stated=False):
            return f"{fault} in round {done.round}"
    return ""


class Divergence(Observer):
    """Warns once that a run diverges, and ends it if ``ends``.

    A run diverges if half of the uploads, of two agents at least, the residual or a loss are not
    finite; if a loss, or the root of the residual, is `EXPLODED` times that of the start; or if one
    of them has been `GROWN` times its largest value of the start and the first `FIRST` rounds, and
    `FASTER` times that of half the rounds before, for `LASTING` rounds. A residual that grows while
    the loss is below its start does not count: that of a slow run does so. One that is unknown,
    NaN, says nothing.

    An agent whose uploads have not been finite since its first round, where others' are, has a line
    of its own: the fault is in its data, and ends nothing.
    """

    def __init__(self, ends: bool, keys: Sequence[str]) -> None:
        self.ends, self.keys = ends, keys
        self.courses = Courses()
        self._named: set[str] = set()

    def on_begin(self, run: Run) -> None:
        """Look at the rounds before a resume: a run that diverged in one of them has diverged.

        Raises
        ------
        FruitlessError
            If it has, and diverging ends it.
        """
        self.courses.begin(run)
        run.diverged = how_diverged(note for done in run.session.history for note in done.notes)
        if run.diverged and self.ends:
            raise FruitlessError(
                f"this run diverged, {run.diverged}, which ends it (on-divergence)"
            )

    def on_round(self, run: Run, done: Round) -> str | None:
        """Check the round's numbers; those that were not measured are ignored."""
        never_folded = run.session.roster.never_folded(done.failures)
        self._name_faulty(done, never_folded)
        fault = self._fault(run, done, never_folded)
        if not fault or run.diverged:
            return None
        said = f"{fault} in round {done.round}"
        run.session.amend(notes=(*done.notes, DIVERGES + said))
        return self._report(run, said)

    def on_failure(self, run: Run, few: TooFewError) -> str | None:
        """Report divergence if a round failed because uploads were not finite."""
        if not isinstance(few, OverflowedError) or run.diverged:
            return None
        return self._report(run, f"{UPLOADS} in round {run.session.round + 1}")

    def _report(self, run: Run, what: str) -> str | None:
        run.diverged = what
        hint = remedy(self.keys, diverged=True, doubtful=run.options.doubtful)
        log.warning("%s%s: %s", DIVERGES, what, hint)
        return Stop.DIVERGENCE if self.ends else None

    def _name_faulty(self, done: Round, never_folded: set[str]) -> None:
        """Warn of agents whose uploads have not been finite since their first round, once each."""
        for name in never_folded:
            if done.failures[name].code is FailureCode.NOT_FINITE and name not in self._named:
                self._named.add(name)
                log.warning(
                    "agent %s: not finite since its first round, as others are: look at its data",
                    name,
                )

    def _fault(self, run: Run, done: Round, never_folded: set[str]) -> str:
        chosen = len(done.participants) + len(done.failures)
        if run.session.overflowed(done.failures, chosen, never_folded):
            return UPLOADS
        return self.courses.add(done, run.usual_loss, run.usual_train_loss)


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
    """Warns once that a run is no better than its start; it does not end the run.

    It compares from round `JUDGED_FROM` on, and at the end. ``run.no_better`` is set while so.
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
            doubtful = run.options.doubtful
            hint = remedy(self.keys, private=run.private, doubtful=doubtful)
            log.warning("this run is no better than its start, %s: %s", run.no_better, hint)
        self.warned = True
        return None
