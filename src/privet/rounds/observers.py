"""Observers: the callbacks of a run, called after every round, which may end it.

Everything that is not the algorithm is an observer: evaluation, early stopping, checkpoints, a
progress bar. After every round they are called one after the other, in their order.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from privet.agents.state_tables import StateTable
from privet.core import ConfigError, RunError
from privet.core.errors import one_line

from .account import TARGET
from .calibration import SPENT_AFTER
from .collect.outcome import TargetSpentError, TooFewError
from .exchange import EngineGrid, send
from .hooks import Monitor
from .keep.chain import Chain
from .keep.checkpoint import (
    Checkpoint,
    HistoryFile,
    Saved,
    history_beside,
    load,
    save,
)
from .keep.journal import Journal
from .nearness import ENOUGH, estimated_error, nearness
from .roster import Changes
from .run import Run
from .session import Round
from .stop import Stop

log = logging.getLogger("flwr.privet")

OWN_FIELDS = ("loss", "accuracy", "stationarity")
"""Numbers of a monitor that have a field of their own in a round's record."""
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Observer:
    """Callbacks of a run; a subclass writes the methods that it needs."""

    def on_begin(self, run: Run) -> None:
        """Look at a run before its first round, or the first after a resume."""

    def on_round(self, run: Run, done: Round) -> str | None:
        """Look at a finished round; a text, as a `Stop`, is the reason to end the run with it.

        ``run.stopped`` is the reason where it is known already that the round is the last.
        """
        return None

    def on_skip(self, run: Run, missed: Round) -> None:
        """Look at a round that others have played and this run skips."""

    def on_failure(self, run: Run, few: TooFewError) -> str | None:
        """Look at a round that failed for good; a text ends the run with it, without the error."""
        return None

    def on_try(self, run: Run) -> None:
        """Look at a round that failed, before it is tried again."""

    def on_end(self, run: Run) -> None:
        """Look at a run that came to its end; not called for one that failed."""

    def on_abort(self, run: Run) -> None:
        """Look at a run that any error or an interrupt ends."""


def observe(
    run: Run, observers: Iterable[Observer], last_round: int, play: Callable[[int], object]
) -> None:
    """Play the rounds of a run up to the last, unless an observer ends it before.

    Parameters
    ----------
    play : callable
        Plays the round of this number.
    """
    observers = tuple(observers)
    for observer in observers:
        observer.on_begin(run)

    def before_try() -> None:
        for observer in observers:
            observer.on_try(run)

    run.before_try = before_try
    try:
        _play_all(run, observers, last_round, play)
    except BaseException:
        for observer in observers:
            observer.on_abort(run)
        raise
    for observer in observers:
        observer.on_end(run)


def _play_all(
    run: Run, observers: tuple[Observer, ...], last_round: int, play: Callable[[int], object]
) -> None:
    """Play rounds until the last one, or until an observer or a failure ends the run."""
    while run.session.round < last_round:
        number = run.half.next_round(run.session.round + 1, last_round)
        for missed in run.session.skip_to(number):
            for observer in observers:
                observer.on_skip(run, missed)
        try:
            play(number)
        except TooFewError as few:
            reasons = [observer.on_failure(run, few) for observer in observers]
            if run.stopping.is_set():  # while it waited to try again
                reasons.append(Stop.REQUEST)
            if not any(reasons):
                raise
            run.stopped = next(filter(None, reasons))
            break
        asked_to = Stop.REQUEST if run.stopping.is_set() else ""
        run.stopped = Stop.ROUNDS if number == last_round else asked_to
        for observer in observers:
            run.stopped = observer.on_round(run, run.session.history[-1]) or run.stopped
        if run.stopped:
            break


def due(run: Run, done: Round, every: int) -> bool:
    """Whether something done every so many rounds (0: at the end only) is due."""
    return bool(run.stopped) or (every > 0 and done.round % every == 0)


class Monitoring(Observer):
    """Writes the numbers of a monitor into the rounds' records, and the time that took."""

    def __init__(self, monitor: Monitor, every: int) -> None:
        self.monitor, self.every = monitor, every

    def on_begin(self, run: Run) -> None:
        """Measure the start, except where a run is resumed."""
        if run.session.round == 0:
            session = run.session
            session.initial = replace(session.initial, **self._measure(0, run, session.initial))

    def on_round(self, run: Run, done: Round) -> str | None:
        """Measure the models of a round that is due."""
        if not due(run, done, self.every):
            return None
        begun = time.monotonic()
        measured = self._measure(done.round, run, done)
        run.session.amend(**measured, seconds=done.seconds + time.monotonic() - begun)
        return None

    def _measure(self, number: int, run: Run, done: Round) -> dict[str, Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = dict(self.monitor(number, run.models()))
        others = {name: value for name, value in numbers.items() if name not in OWN_FIELDS}
        return {
            **{name: numbers.get(name, np.nan) for name in OWN_FIELDS},
            "measures": {**others, **done.measures},
        }


class Tolerance(Observer):
    """Ends a run whose stationarity (its residual where that is not measured) is small enough.

    It looks every so many rounds, those in which the stationarity is measured. An unknown residual
    ends no run.
    """

    def __init__(self, tolerance: float, every: int) -> None:
        self.tolerance, self.every = tolerance, every

    def on_round(self, run: Run, done: Round) -> str | None:
        """Compare a round that is due with the tolerance."""
        measure = done.residual if np.isnan(done.stationarity) else done.stationarity
        if not due(run, done, self.every) or not measure <= self.tolerance:
            return None
        log.info("stopping after round %d: tolerance %g reached", done.round, self.tolerance)
        return Stop.TOLERANCE


class Nearness(Observer):
    """Logs at the end how far the pooled optimum is, where the algorithm estimates that.

    With ``ends`` it ends the run once the estimated error is at most `ENOUGH`.
    """

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def on_round(self, run: Run, done: Round) -> str | None:
        """Compare the estimate with what is enough."""
        enough = estimated_error([done]) <= ENOUGH
        return Stop.TOLERANCE if self.ends and enough else None

    def on_end(self, run: Run) -> None:
        """Log it, with what to change where the optimum is not reached."""
        if said := nearness(run.session.history):
            log.info("pooled optimum: %s", said)


class RoundLog(Observer):
    """Logs every round as Flower's own strategies do."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_round(self, run: Run, done: Round) -> str | None:
        """Log the number of replies, and the measures."""
        log.info("")
        log.info("[ROUND %d/%d]", done.round, self.last)
        failed = len(done.failures)
        log.info("aggregate_train: %d results and %d failures", len(done.participants), failed)
        residual = "unknown" if math.isnan(done.residual) else done.residual
        numbers = {name: getattr(done, name) for name in OWN_FIELDS}
        measured = {name: value for name, value in numbers.items() if not math.isnan(value)}
        log.info(
            "\t└──> MetricRecord: %s", {"residual": residual, **measured, **(run.metrics or {})}
        )
        return None


class UploadsOver(Observer):
    """Ends a run in which every agent has sent as many uploads as it may."""

    def on_round(self, run: Run, done: Round) -> str | None:
        """Ask the collector."""
        return Stop.UPLOADS if run.collector.is_over(run.session) else None


class TargetSpent(Observer):
    """Ends a run before a round that too few agents can pay, as repeated attempts cost more."""

    def on_failure(self, run: Run, few: TooFewError) -> str | None:
        """Look at why it failed; the model is that of the round before."""
        if not isinstance(few, TargetSpentError):
            return None
        log.warning("%s", few)
        target, done = run.half.terms.target_epsilon, run.session.round
        log.warning(SPENT_AFTER, TARGET, target, done, run.options.rounds)
        return Stop.BUDGET


class StopWhen(Observer):
    """Ends a run when a function of a round's record returns true."""

    def __init__(self, should_stop: Callable[[Round], bool]) -> None:
        self.should_stop = should_stop

    def on_round(self, run: Run, done: Round) -> str | None:
        """Call the function."""
        return Stop.SHOULD_STOP if self.should_stop(done) else None


class TrainMetrics(Observer):
    """Writes the metrics that came with the uploads into the rounds' records."""

    def on_round(self, run: Run, done: Round) -> str | None:
        """Write those of a round that has some."""
        if run.metrics:
            run.session.amend(train_metrics_clientapp=dict(run.metrics))
        return None


class ServerEvaluation(Observer):
    """Calls Flower's ``evaluate_fn`` with the model, by round; round 0 is the start."""

    def __init__(self, evaluate: Evaluate, every: int) -> None:
        self.evaluate, self.every = evaluate, every

    def on_begin(self, run: Run) -> None:
        """Evaluate the starting model, except where a run is resumed."""
        session = run.session
        if session.round == 0 and (metrics := self.evaluate(0, run.arrays)):
            session.initial = replace(session.initial, **_evaluated(session.initial, metrics))

    def on_round(self, run: Run, done: Round) -> str | None:
        """Evaluate the model of a round that is due."""
        if due(run, done, self.every) and (metrics := self.evaluate(done.round, run.arrays)):
            run.session.amend(**_evaluated(done, metrics))
        return None


class FederatedEvaluation(Observer):
    """Has the agents that the strategy chooses evaluate the model that a round ends with."""

    def __init__(
        self,
        strategy: Strategy,
        grid: Grid,
        config: ConfigRecord,
    ) -> None:
        self.strategy, self.grid, self.config = strategy, grid, config

    def on_round(self, run: Run, done: Round) -> str | None:
        """Send the model out and keep the aggregated answers."""
        messages = list(
            self.strategy.configure_evaluate(done.round, run.arrays, self.config, self.grid)
        )
        if messages:
            by_number = {str(number): message for number, message in enumerate(messages)}
            replies = send(self.grid, by_number, run.options.round_timeout).replies
            metrics = self.strategy.aggregate_evaluate(done.round, replies)
            if metrics:
                own_fields = _own_fields(done, metrics)
                run.session.amend(evaluate_metrics_clientapp=dict(metrics), **own_fields)
        return None


class Checkpoints(Observer):
    """Writes the history, and the run's checkpoint every so many rounds (0: never) and at its end.

    A write that fails does not end the run: it is noted in the log and the history, and
    ``run.saved`` has the round to which a resume would go back.
    """

    def __init__(self, path: Path, every: int, grid: Grid) -> None:
        self.path, self.every, self.grid = path, every, grid
        self.history, self.chain = HistoryFile(history_beside(path)), Chain(path)
        self._round = self._last = 0

    def on_begin(self, run: Run) -> None:
        """Begin the history; write a checkpoint where the folder has none.

        So no message leaves before there is one, and a resume tells a checkpoint that was lost from
        one that was never there. It is whole, apart from the chain.

        Raises
        ------
        RunError
            If the history cannot be written, or the first checkpoint of a private run.
        """
        try:
            self.history.begin(run.session.history)
        except OSError as error:
            raise RunError(f"{self.history.path} cannot be written: {error.strerror}") from None
        self._round = self._last = run.session.round
        run.saved = Saved(self._round)
        run.session.saved_states = self.saved_states
        if run.session.round == 0 or not self.path.exists():
            self._try(run, lambda: save(self.path, self._with_history(run.snapshot(self.grid))))
            if run.private and run.saved.error:
                raise RunError(
                    f"{self.path} cannot be written: {run.saved.error}; a private run asks no "
                    "agent whose cost it could forget"
                )

    def on_round(self, run: Run, done: Round) -> str | None:
        """Write the round, and the checkpoint of one that is due."""
        self._append(done)
        if due(run, done, self.every):
            self._write(run)
            if run.journal is not None and run.saved.round == done.round:
                self._mark(run.journal, done.round)
        return None

    def saved_states(self) -> list[StateTable]:
        """Return the agents' states of the newest checkpoint; none where it cannot be read."""
        try:
            return load(self.path).node_states
        except (RunError, ConfigError) as error:
            log.debug("%s: %s", self.path, error)
            return []

    def _mark(self, journal: Journal, round_: int) -> None:
        """Record that the checkpoint has the cost of every request so far, as no round is open.

        Without that line a resume distinguishes the requests by their rounds.
        """
        try:
            journal.saved(round_, self.chain.name)
        except OSError as error:
            log.warning("%s: %s", journal.path, error.strerror)

    def on_skip(self, run: Run, missed: Round) -> None:
        """Write the line of a skipped round."""
        self._append(missed)

    def on_end(self, run: Run) -> None:
        """Write the checkpoint if a later observer has ended the run."""
        if self._round < run.session.round:
            self._write(run)
            if run.journal is not None and run.saved.round == run.session.round:
                self._mark(run.journal, run.saved.round)

    def on_abort(self, run: Run) -> None:
        """Write the checkpoint of the last finished round; no failure here hides the cause.

        An interrupt may come while uploads are folded into the state, perhaps in place: then the
        previous checkpoint stays.
        """
        if run.folding or self._round >= run.session.round:
            return
        try:
            if self._last < run.session.round:  # an earlier observer failed
                self._append(run.session.history[-1])
            self._write(run)
        except Exception as error:
            log.warning("%s: not written: %s", self.path, one_line(repr(error)))

    def _append(self, done: Round) -> None:
        """Write a round's line; one that cannot be written waits for the next."""
        self._last = done.round
        try:
            self.history.append(done)
        except OSError as error:
            log.warning(
                "%s: round %d waits to be written (%s)", self.history.path, done.round, error
            )

    def _write(self, run: Run) -> None:
        """Write the checkpoint; a failure is logged and leaves the previous one."""
        self._try(run, lambda: self._save(run))

    def _try(self, run: Run, write: Callable[[], object]) -> None:
        self._round = run.session.round
        try:
            self.history.flush(durable=True)
            write()
        except OSError as error:
            before = run.saved
            run.saved = Saved(before.round, before.failures + 1, one_line(str(error)))
            line = f"checkpoint of round {self._round} not written ({run.saved.error})"
            line += f": the one of round {before.round} is kept"
            run.session.remarks.append(line)
            log.warning("%s: %s", self.path, line)
        else:
            run.saved = Saved(self._round, run.saved.failures)
            if run.private:
                run.session.roster.note_saved(run.session.roster.agents)

    def _with_history(self, checkpoint: Checkpoint) -> Checkpoint:
        manifest = {**checkpoint.manifest, "history": self.history.digest}
        return replace(checkpoint, manifest=manifest)

    def _save(self, run: Run) -> None:
        """Write what changed since the last checkpoint, or all of it (raises ``OSError``)."""
        roster = run.session.roster
        changed = self.chain.changed(roster)
        checkpoint = self._with_history(run.snapshot(self.grid, changed))
        self.chain.write(checkpoint, changed)
        left: set[str] = set()
        if isinstance(self.grid, EngineGrid):  # its agents' states may not have been at hand
            names = roster.agents.keys() if changed is None else changed
            if sum(len(table.names) for table in checkpoint.node_states) < len(names):
                held = {name for table in checkpoint.node_states for name in table.names}
                left = {name for name in names - held if roster.agents[name].tag}
        roster.changes = Changes(left, everything=False)


def _evaluated(done: Round, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a round's record that ``evaluate_fn`` changes."""
    return {"evaluate_metrics_serverapp": dict(metrics), **_own_fields(done, metrics)}


def _own_fields(done: Round, metrics: Mapping[str, object]) -> dict[str, float]:
    """Return the fields of a record that metrics fill in where nothing else was measured."""
    return {
        name: value
        for name in OWN_FIELDS
        if math.isnan(getattr(done, name)) and not math.isnan(value := number(metrics.get(name)))
    }


def number(value: object) -> float:
    """Return a metric as a float, NaN where it is none."""
    return float(value) if isinstance(value, int | float) else math.nan
