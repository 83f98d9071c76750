"""The round loop that every algorithm runs on.

Wait and enrol, then per round: choose, send, collect until the deadline, send the state to agents
that lost it, drop what is malformed, fold, evaluate, record, checkpoint, stop early.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from privet.wire import WireError
from privet.wire.contract import is_need_state

from .exchange import Reply, exchange
from .half import summing
from .history import Round
from .resume import restore, write_checkpoint
from .round import Pending
from .secure_sum import PendingSums, play_sums

if TYPE_CHECKING:
    from .base import PrimalDualStrategy

log = logging.getLogger("flwr.privet")

OWN_FIELDS = ("loss", "accuracy", "stationarity")
"""What of a monitor's numbers has a field of its own in a round's record."""

Observer = Callable[[Round, "PrimalDualStrategy"], None]
"""Called after every round; what it raises ends the run."""


@dataclass
class PrivetResult(Result):
    """Flower's result with everything else a primal-dual run knows.

    Attributes
    ----------
    models : dict of str to ArrayRecord
        Besides ``"last"`` (= ``arrays``), e.g. the mean of the agents' models.
    history : list of Round
        One entry per round, those before a resume included.
    stopped : str
        Why the run ended: ``"rounds"`` or ``"tolerance"``.
    """

    models: dict[str, ArrayRecord] = field(default_factory=dict)
    history: list[Round] = field(default_factory=list)
    stopped: str = "rounds"


def run_loop(
    strategy: PrimalDualStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    *,
    evaluate_config: ConfigRecord,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    resume: Path | None,
    checkpoint: Path | None,
    checkpoint_every: int,
    evaluate_every: int,
    tolerance: float,
    observers: tuple[Observer, ...],
    initial_state: Any,
) -> PrivetResult:
    """Run up to round ``num_rounds`` and return the result.

    Parameters
    ----------
    initial_arrays : ArrayRecord
        The starting model; its names, shapes and dtypes are those of the result.
    num_rounds : int
        Number of the last round, also when resuming.
    resume : Path, optional
        Run folder or checkpoint to go on from. Bit-identical to an uninterrupted run wherever the
        agents' states survive or the server's tables determine them.
    checkpoint : Path, optional
        File to write after every ``checkpoint_every`` rounds (0: only at the end) and at the end.
    evaluate_every : int
        Rounds between calls of the monitor; the last round is always evaluated.
    tolerance : float
        Stop when the monitor's ``stationarity`` (the squared fixed-point residual where there is
        no monitor) is at most this, looked at in the rounds it is measured; 0 never stops.
    observers : tuple of callables
        Called with every finished round.
    initial_state
        Replaces the algorithm's own state before round 1.

    Raises
    ------
    RunError
        If too few agents came, or a round fell below ``min_agents``.
    """
    log.info("Starting %s:", type(strategy).__name__)
    strategy.summary()
    if resume is not None:
        session = restore(strategy, grid, initial_arrays, resume)
    else:
        session = strategy.begin(grid, initial_arrays, state=initial_state)
    result = PrivetResult()
    if evaluate_fn is not None and session.round == 0:
        _record(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, initial_arrays))
    for number in range(session.round + 1, num_rounds + 1):
        last = number == num_rounds
        evaluate = last or number % evaluate_every == 0
        done = play_round(strategy, grid, number, evaluate=evaluate)
        _record(result.train_metrics_clientapp, number, strategy.train_metrics)
        measured = evaluate or strategy.monitor is None
        stop = tolerance > 0 and measured and _measure(done) <= tolerance
        arrays = session.layout.restore(strategy.half.models(session.state)["last"])
        if evaluate_fn is not None and (evaluate or stop):
            _record(result.evaluate_metrics_serverapp, number, evaluate_fn(number, arrays))
        _federated_evaluation(strategy, grid, number, arrays, evaluate_config, result)
        if checkpoint is not None and (
            last or stop or (checkpoint_every and number % checkpoint_every == 0)
        ):
            write_checkpoint(strategy, grid, checkpoint)
        for observer in observers:
            observer(done, strategy)
        if stop:
            result.stopped = "tolerance"
            log.info("stopped after round %d: tolerance %g reached", number, tolerance)
            break
    result.history = session.history
    result.models = {
        name: session.layout.restore(model)
        for name, model in strategy.half.models(session.state).items()
    }
    result.arrays = result.models["last"]
    return result


def play_round(strategy: PrimalDualStrategy, grid: Grid, number: int, *, evaluate: bool) -> Round:
    """Play one round to its end and return its record."""
    begin = time.monotonic()
    session = strategy.session
    assert session is not None
    strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
    pending = strategy.pending
    assert pending is not None
    deadline = begin + strategy.round_timeout
    masked = summing(strategy.half)
    if masked is not None and isinstance(pending, PendingSums):
        play_sums(strategy, masked, pending, grid, deadline)
        done = strategy.fold_round({})
    else:
        done = strategy.fold_round(_collect(strategy, pending, grid, deadline))
    numbers = strategy.measure(number) if evaluate else {}
    done = replace(
        done,
        loss=numbers.get("loss", np.nan),
        accuracy=numbers.get("accuracy", np.nan),
        stationarity=numbers.get("stationarity", np.nan),
        measures={**done.measures, **{k: v for k, v in numbers.items() if k not in OWN_FIELDS}},
        seconds=time.monotonic() - begin,
    )
    session.history[-1] = done
    return done


def _collect(
    strategy: PrimalDualStrategy, pending: Pending, grid: Grid, deadline: float
) -> dict[str, Reply]:
    """Send a round out and return the replies; agents that lost their state get a second try."""
    replies = exchange(grid, pending.messages, strategy.round_timeout)
    lost = [name for name, reply in replies.items() if needs_state(reply)]
    if lost:
        again = strategy.messages_for(lost, force=True)
        left = max(1.0, deadline - time.monotonic())
        replies.update(exchange(grid, again, left))
    return replies


def needs_state(reply: Reply) -> bool:
    """Whether an agent answered that it does not hold the state it was asked to go on from."""
    try:
        return reply.content is not None and is_need_state(reply.content)
    except WireError:
        return False


def _measure(done: Round) -> float:
    return done.residual if np.isnan(done.stationarity) else done.stationarity


def _record(into: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        into[number] = metrics


def _federated_evaluation(
    strategy: PrimalDualStrategy,
    grid: Grid,
    number: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    result: PrivetResult,
) -> None:
    messages = strategy.configure_evaluate(number, arrays, config, grid)
    if not messages:
        return
    replies = grid.send_and_receive(messages, timeout=strategy.round_timeout)
    _record(result.evaluate_metrics_clientapp, number, strategy.aggregate_evaluate(number, replies))


__all__ = [
    "Observer",
    "PrivetResult",
    "play_round",
    "run_loop",
]
