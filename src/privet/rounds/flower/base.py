"""One Flower Strategy for every primal-dual algorithm: an adapter on top of a `Run`.

A round is driven through ``configure_train`` and ``aggregate_train`` alone, both by ``start`` and
by Flower's own loop and wrappers. Refused are wrappers for privacy, which would protect nothing,
and wrappers that change the model between two rounds, whose change would be lost. Between the two
calls ``start`` collects the replies itself: with the round's deadline, and with retries for agents
that lost their state and for secure sums.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from privet.core import ConfigError, RunError
from privet.core.key import Config, read
from privet.wire.contract import means_privacy
from privet.wire.records import record_dict

from .. import Observer, Round, Run, RunOptions, Session
from ..absences import Complaints, Lateness, unknown_residual
from ..account import PrivetResult, privacy_of
from ..asynchrony import require_asynchrony
from ..collect.outcome import OverflowedError, TooFewError
from ..divergence import Divergence, NoBetter
from ..exchange import EngineGrid
from ..half import ServerHalf, step_keys
from ..hooks import Encoded, Hooks, Monitor
from ..keep.checkpoint import Checkpoint, as_now, load
from ..keep.place import take_place
from ..late import late_agents
from ..nearness import estimated_error
from ..observers import (
    Checkpoints,
    FederatedEvaluation,
    Monitoring,
    Nearness,
    RoundLog,
    ServerEvaluation,
    StopWhen,
    TargetSpent,
    Tolerance,
    TrainMetrics,
    UploadsOver,
    observe,
)
from ..odd_sites import OddSites, odd_sites
from ..participation import All, Participation
from ..participation import from_config as participation_of
from ..robust import require_robust
from ..server_steps import ADAPTIVE
from ..session import METRICS
from ..shared_regularizer import RegularizerSettings
from ..stop import Stop
from ..views import History
from .configured import FOR_NOISE, Configured
from .options import FlowerOptions, usual_loss
from .wrappers import refuse_changed_model, refuse_wrappers

log = logging.getLogger("flwr.privet")


COUNTED = ("participants", "residual")
"""Numbers that `aggregate_train` adds to the agents' metrics; a round's record has them already."""
Watch = Callable[[Round, "PrimalDualStrategy"], object]
"""Called after every round in place of an `Observer`; an exception that it raises ends the run."""


def require_weights(half: ServerHalf[Any], agent_weights: str) -> None:
    """Refuse agent weights where they have no meaning (raises ``ConfigError``)."""
    if agent_weights not in ("equal", "examples"):
        raise ConfigError(f"agent_weights is {agent_weights!r}, expected equal or examples")
    if agent_weights == "equal":
        return
    settings = half.settings()
    if means_privacy(settings) or settings.get("target-epsilon"):
        raise ConfigError("agent_weights = 'examples': not in a run that clips or adds noise")
    if half.agent.divisor != "agent":
        raise ConfigError(f"agent_weights = 'examples': {half.name} counts examples alike already")


class PrimalDualStrategy(Hooks, Configured, Strategy):
    """Binds an algorithm's server half to Flower.

    Whoever sets its event ``stopping`` ends the run after the round under way.

    Parameters
    ----------
    arguments
        The algorithm's own, which are the run-config keys of its ``settings`` and its ``objects``,
        and what every strategy takes, as in `RunArguments`.

    Raises
    ------
    ConfigError
        For values out of range, and secure sums of an algorithm that cannot do with sums.
    TypeError
        For an unknown argument, with the nearest known one.
    """

    no_secure_sum: ClassVar[str] = "its server needs every agent's upload"
    """Why the algorithm cannot do with sums, where it cannot."""
    no_noise: ClassVar[str] = ""
    """Why there is no private form, where there is none and the reason is not plain."""
    no_asynchrony: ClassVar[str] = "its step is a mean over the agents of a round"
    """Why uploads cannot be folded with models of different ages; empty where they can."""

    def __init__(self, **arguments: Any) -> None:
        given = self.checked(arguments)
        self._set_up(self.resolved(given), arguments)

    @classmethod
    def from_config(cls, config: Config, **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for.

        ``options`` are arguments of the constructor, in place of what the config says.

        Raises
        ------
        ConfigError
            If values do not fit together.
        TypeError
            For a config that `privet.server_apps.read_config` has not returned.
        """
        if not isinstance(config, Config):
            raise TypeError("from_config takes what read_config returns of a run config")
        given = cls.checked(options)
        if "h" in cls.objects:
            options.setdefault("h", read(RegularizerSettings, config).make())
        options.setdefault("participation", participation_of(config))
        made = cls.__new__(cls)
        made._set_up(Config({**config, **given}), options)
        return made

    def _set_up(self, config: Config, arguments: Mapping[str, Any]) -> None:
        """Take a resolved config, and of the arguments those that are no run-config keys."""
        if config.get("target-epsilon", 0.0) > 0 and config["clip"] <= 0:
            raise ConfigError("target-epsilon needs clip > 0")
        objects = {n: arguments[n] for n in self.objects if arguments.get(n) is not None}
        self.half = self.half_of(config, **objects)
        if config.get("secure-sum") and not self.half.masked:
            raise ConfigError(f"secure-sum = true: not with {self.half.name}: {self.no_secure_sum}")
        flower = FlowerOptions.__dataclass_fields__.keys() & arguments.keys()
        self.flower = FlowerOptions(**{name: arguments[name] for name in flower})
        self.train_config = ConfigRecord()
        self.fraction_evaluate = arguments.get("fraction_evaluate", 0.0)
        self.monitor: Monitor | None = arguments.get("monitor")
        self.options = read(
            RunOptions,
            config,
            participation=self.flower.participation(arguments.get("participation")) or All(),
            min_available_nodes=self.flower.min_available_nodes,
            agent_weights=arguments.get("agent_weights", "equal"),
            local_steps=self.local_steps,
        )
        if (threshold := self.options.sum_threshold) and self.half.agent.repeats:
            raise ConfigError(
                f"sum-threshold = {threshold}: not with {self.half.name}, whose sums may be asked "
                "for again at no charge; leave it out"
            )
        if (threshold := self.options.sum_threshold) and self.half.agent.noise_sharing:
            raise ConfigError(
                f"sum-threshold = {threshold}: not with noise-sharing, whose agents are charged "
                "for the noise of a whole roster: dropouts plans for agents that are gone"
            )
        require_weights(self.half, self.options.agent_weights)
        steps = self.options.server_optimizer
        why = "" if steps == "none" else self.half.no_server_optimizer
        if steps in ADAPTIVE:
            why = why or self.half.no_adaptive_step
        if why:
            raise ConfigError(f"server-optimizer = {steps}: not with {self.half.name}: {why}")
        if self.options.robust != "none":
            self.half = require_robust(self.half, self.options, folds_old=self.options.folds_old)
        if self.options.folds_old:
            self.half = require_asynchrony(self.half, self.options, self.no_asynchrony)
            if self.fraction_evaluate > 0:
                raise ConfigError("fraction-evaluate: not in a run that does not wait for agents")
        elif self.options.speeds and self.half.masked:
            raise ConfigError("speeds: not with secure-sum, whose agents are asked together")
        self.stopping = threading.Event()
        self._run: Run | None = None

    @property
    def participation(self) -> Participation:
        """The rule that chooses the participants of a round."""
        return self.options.participation

    # ------------------------------------------------------------------ the run

    @property
    def run(self) -> Run:
        """The run that has begun (raises ``RunError`` before)."""
        if self._run is None:
            raise RunError("the run has not begun: call start() or configure_train() first")
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run = run
        run.stopping = self.stopping
        self.half = run.half

    @property
    def session(self) -> Session | None:
        """The run's state between its rounds; None before it has begun."""
        return None if self._run is None else self._run.session

    def varied(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy of this strategy with other values of some run-config keys, not begun."""
        other = copy.copy(self)
        other.half = self.half.with_settings(changes)
        other.stopping, other._run = threading.Event(), None
        return other

    def begin(self, grid: Grid, arrays: ArrayRecord, *, state: Any = None) -> Session:
        """Begin a run without playing a round; see `Run.begin`."""
        self.run = Run.begin(self.half, self.options, grid, arrays, state=state)
        return self.run.session

    def play_round(self, grid: Grid, number: int) -> Round:
        """Play one round of the run that has begun, and return its record.

        A round with too few replies is tried again while the run has ``patience``.
        """
        run = self.run
        messages = self.configure_train(number, run.arrays, self.train_config, grid)
        run.arrays = ArrayRecord()  # as large as the model, and in the messages
        while True:
            try:
                replies = run.collect(grid, messages)
                messages = []  # frees the arrays that were sent
                arrays, metrics = self.aggregate_train(number, replies)
                break
            except TooFewError as few:
                if isinstance(few, OverflowedError):
                    raise
                messages = run.try_again(few, grid)
        if arrays is not None:
            refuse_changed_model(self, arrays, run.arrays)
        extra = {name: value for name, value in (metrics or {}).items() if name not in COUNTED}
        run.metrics = MetricRecord(extra) if extra else None
        return run.session.history[-1]

    # ------------------------------------------------------------------ Flower's round interface

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Begin a round: enrol newcomers, choose participants, build their messages.

        The first round begins the run, from ``arrays``; later ones are to be given the model that
        the round before returned. ``config`` is sent as the record of ``configrecord_key``, with
        ``server-round``, as Flower's strategies send theirs; an empty one is not.
        """
        refuse_wrappers(self)
        if self._run is None:
            if self.options.folds_old:
                raise ConfigError(
                    "a run that does not wait for its agents plays its own rounds: call "
                    "strategy.start(grid, arrays, num_rounds)"
                )
            self.begin(grid, arrays)
        refuse_changed_model(self, arrays, self.run.arrays)
        self.run.beside = self.flower.beside(config, server_round)
        return self.run.open_round(server_round, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End a round: fold the accepted uploads, record the others, return the last model.

        Raises
        ------
        RunError
            If fewer uploads than ``min_agents`` (or than agents chosen) could be folded, or the
            round is folded already.
        """
        refuse_wrappers(self)
        run = self.run
        by_agent = run.opened.sort(replies)
        done = run.close_round(by_agent)
        if not (run.private or run.collector.masked):
            uploads = run.opened.tally.uploads
            extras = (uploads[name].extras for name in done.participants if name in uploads)
            measured = [record_dict(dict(each)) for each in extras if each]
            run.metrics = self.flower.train_metrics(measured)
            run.usual_train_loss = usual_loss(measured, self.flower.weighted_by_key)
        metrics = MetricRecord({"participants": len(done.participants)})
        if not math.isnan(done.residual):
            metrics["residual"] = done.residual
        metrics.update(run.metrics or {})
        return run.arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask a share of the agents to evaluate the model, as FedAvg does.

        No agent is asked in a private run or one of secure sums: the answer would be an un-noised
        release, also of an agent that has not taken part yet.
        """
        run = self._run
        if self.fraction_evaluate <= 0 or run is None or run.private or run.collector.masked:
            return []
        chosen = self.flower.evaluators(
            self.fraction_evaluate, server_round, run.session.roster, run.options.seed
        )
        content = self.flower.evaluation(arrays, {**config, "server-round": server_round})
        return [Message(content, node, MessageType.EVALUATE) for node in chosen]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the agents' metrics, weighted by their numbers of examples."""
        contents = [reply.content for reply in replies if reply.has_content()]
        self.run.usual_loss = usual_loss(contents, self.flower.weighted_by_key)
        return self.flower.evaluate_metrics(contents)

    def summary(self) -> None:
        """Log the algorithm, its parameters and the participation."""
        refuse_wrappers(self)
        log.info("\t├──> Algorithm: %s (protocol version %d)", self.half.name, self.half.version)
        settings = self.half.settings()
        private = means_privacy(settings)
        keys = {key.name: key for key in self.config_keys().values()}
        others = {} if private else self.half.agent.without_moduli
        for name, value in settings.items():
            unused = name in keys and keys[name].unused(settings)
            if value in (0, -1, "0", "") or unused or (name in FOR_NOISE and not private):
                continue  # off, or left to the library
            if others.get(name) == value and isinstance(value, str):
                continue  # chosen once the agents are known
            other = others.get(name, value)
            also = f", or {other} where no agent knows its moduli" if other != value else ""
            log.info("\t│\t├── %s: %s%s", name, value, also)
        log.info("\t└──> Participation: %s", self.participation)
        if self.half.masked:
            log.info("\t└──> Secure sum: the server sees sums over groups of agents only")

    # ------------------------------------------------------------------ a whole run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        resume: str | Path | Checkpoint | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        evaluate_every: int = 1,
        tolerance: float = 0.0,
        observers: Iterable[Observer | Watch] = (),
        initial_state: Any = None,
        should_stop: Callable[[Round], bool] | None = None,
        log_rounds: bool = True,
    ) -> PrivetResult:
        """Run up to round ``num_rounds`` and return the result.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The starting model; its names, shapes and dtypes are those of the result.
        num_rounds : int
            Number of the last round, also when resuming.
        timeout : float, optional
            Replaces ``round_timeout``.
        train_config : ConfigRecord, optional
            What the agents' own handlers find as ``message.content["config"]``, with
            ``server-round``, as with Flower's strategies. The algorithm does not read it: its step
            sizes and steps are the strategy's keys.
        evaluate_config, evaluate_fn
            As in Flower: what a federated evaluation is sent, and ``(round, arrays) -> metrics``,
            called with the start and with the model of every round that is evaluated.
        resume : Path or Checkpoint, optional
            Run folder, checkpoint file, or one that was read, to go on from. Bit-identical to an
            uninterrupted run wherever the agents' states survive or the server's tables determine
            them. A private run goes on in one place: what went on elsewhere, or is going on, is
            refused.
        checkpoint : Path, optional
            File to write after every ``checkpoint_every`` rounds (0: only at the end) and at the
            end. Tables that are too large for the memory are in its folder. A private run that
            goes on needs it, and no run begins over the file of a private one.
        evaluate_every : int
            Rounds between calls of the monitor; the last round is always evaluated.
        tolerance : float
            Stop when the monitor's ``stationarity`` (the squared fixed-point residual where there
            is no monitor) is at most this, looked at in the rounds it is measured; 0 never stops.
            A negative one, as the run config's ``auto``, stops once the model is the pooled optimum
            to six digits, by the estimate of algorithms that have one (`nearness.ENOUGH`).
            The residual is that of all agents, and unknown while one was never folded; of secure
            sums it is known in rounds of all agents alone. An unknown one does not stop the run.
        observers : iterable of Observer or callable
            Called after every finished round, last of all; a callable is given the round's record
            and the strategy.
        initial_state
            Replaces the algorithm's own state before round 1.
        should_stop : callable, optional
            Called with the record of every round; true ends the run.
        log_rounds : bool
            Whether every round is logged, as Flower's own strategies log theirs.

        Raises
        ------
        ConfigError
            If the ``checkpoint``, or the lack of one, would lose what a private run has spent.
        RunError
            If too few agents came, or a round stayed below ``min_agents`` for longer than
            ``patience``; if a private run went on elsewhere, or another process goes on with it.
        """
        log.info("Starting %s:", type(self).__name__)
        self.summary()
        self.train_config = ConfigRecord(dict(train_config or {}))
        options = replace(self.options, rounds=num_rounds)
        if timeout is not None:
            options = replace(options, round_timeout=timeout)
        if checkpoint:
            options = replace(options, folder=Path(checkpoint).parent)
        if isinstance(grid, EngineGrid):
            grid.serve(self.stopping, options.round_timeout)
        file = Path(checkpoint) if checkpoint else None
        self.run = run = self._begun(grid, initial_arrays, options, resume, file, initial_state)
        watching = [
            *self._measuring(grid, evaluate_every, tolerance, evaluate_fn, evaluate_config),
            *([Checkpoints(file, checkpoint_every, grid)] if file else []),
            *([RoundLog(num_rounds)] if log_rounds else []),
            UploadsOver(),
            TargetSpent(),
            *([StopWhen(should_stop)] if should_stop is not None else []),
            *map(self._observer, observers),
        ]

        def play(number: int) -> Round:
            return self.play_round(grid, number)

        last = num_rounds if run.last_round is None else run.last_round
        try:
            observe(run, watching, last, play)
        finally:
            run.count_unfinished()
        return _result(run, Stop.ROUNDS if last == num_rounds else Stop.BUDGET)

    def _begun(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        options: RunOptions,
        resume: str | Path | Checkpoint | None,
        checkpoint: Path | None,
        initial_state: Any,
    ) -> Run:
        """Return a run that has enrolled its agents, from its start or from a checkpoint."""
        saved = None
        if resume:
            saved = as_now(resume) if isinstance(resume, Checkpoint) else load(Path(resume))
            run = Run.resume(self.half, options, grid, initial_arrays, saved, self.stopping)
        else:
            run = Run.begin(self.half, options, grid, initial_arrays, state=initial_state)
        run.journal = take_place(saved, checkpoint, private=run.private)
        run.collector.remember(run.half, checkpoint, saved)
        if isinstance(self.monitor, Encoded):
            self.monitor.adopt(run.session.encoding)
        return run

    def _measuring(
        self,
        grid: Grid,
        evaluate_every: int,
        tolerance: float,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        evaluate_config: ConfigRecord | None,
    ) -> Iterator[Observer]:
        """Yield what measures a run, and ends it by what was measured; as `start` is asked for."""
        keys = step_keys(self.half)
        yield TrainMetrics()
        if self.monitor is not None:
            yield Monitoring(self.monitor, evaluate_every)
        if tolerance > 0:
            yield Tolerance(tolerance, evaluate_every if self.monitor else 1)
        yield Nearness(ends=tolerance < 0)
        if evaluate_fn is not None:
            yield ServerEvaluation(evaluate_fn, evaluate_every)
        yield FederatedEvaluation(self, grid, evaluate_config or ConfigRecord())
        yield Divergence(self.options.on_divergence != "warn", keys)
        yield Complaints()
        yield Lateness(self.local_steps)
        yield OddSites()
        yield NoBetter(keys)

    def _observer(self, given: Observer | Watch) -> Observer:
        return given if isinstance(given, Observer) else _Watching(given, self)


def _result(run: Run, in_full: Stop) -> PrivetResult:
    """Return the result of a run that has ended; ``in_full`` is the end of one that nobody stopped.

    The run keeps the last model alone.
    """
    result = PrivetResult(history=History(run.session.history))
    result.stopped = in_full if run.stopped in ("", Stop.ROUNDS) else run.stopped
    result.diverged, result.no_better = run.diverged, run.no_better
    result.estimated_error = estimated_error(result.history)
    result.late, result.residual_unknown = late_agents(result.history), unknown_residual(run)
    result.odd_sites = odd_sites(result.history)
    if result.residual_unknown:
        log.warning("the residual is unknown: %s", result.residual_unknown)
    for name in METRICS:
        for done in (run.session.initial, *result.history):
            if metrics := getattr(done, name):
                getattr(result, name)[done.round] = MetricRecord(metrics)
    run.arrays = ArrayRecord()  # the last round's goes before
    models = run.models()
    run.arrays = run.session.restore(models["last"])
    result.models = {
        name: run.arrays if model is models["last"] else run.session.restore(model)
        for name, model in models.items()
    }
    result.arrays = run.arrays
    result.privacy = privacy_of(run.half, run.session)
    return result


class _Watching(Observer):
    """Calls a function with the record of every round and the strategy."""

    def __init__(self, watch: Watch, strategy: PrimalDualStrategy) -> None:
        self.watch, self.strategy = watch, strategy

    def on_round(self, run: Run, done: Round) -> str | None:
        """Call the function; its result is ignored."""
        self.watch(done, self.strategy)
        return None
