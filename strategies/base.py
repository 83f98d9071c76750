"""One Flower Strategy for every primal-dual algorithm: messages, failures, state.

A round works through ``configure_train`` and ``aggregate_train`` alone, so that Flower's own loop
and wrappers can drive it (but those for privacy, which would protect nothing); ``start`` (in
``loop.py``) adds the deadline, the second try for agents that lost their state, checkpoints and
early stopping.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from privet.wire import ConfigError, Layout, RunError
from privet.wire.contract import means_privacy
from privet.wire.errors import listed
from privet.wire.keys import key
from privet.wire.rosters import LEAST_ROSTER

from .arrivals import wait_for_nodes
from .exchange import Reply, owner_by_message, sort_replies
from .flower_options import FlowerArguments, FlowerOptions
from .flower_wrappers import refuse_wrappers
from .half import FoldingHalf, ServerHalf, summing
from .history import Round
from .loop import Observer, PrivetResult, run_loop
from .participation import All, Participation
from .question import Question
from .recovery import recovery_of
from .roster import ENROL_PATIENCE, ENROL_TIMEOUT, Roster
from .round import (
    Pending,
    Session,
    admit,
    close_round,
    messages_for,
    open_round,
    place_all,
    renew,
)
from .secure_sum import PendingSums, close_sums, open_sums, settle

log = logging.getLogger("flwr.privet")

RUN_ARGUMENTS = (
    "num-agents",
    "min-agents",
    "seed",
    "wait-timeout",
    "round-timeout",
    "recover-by-name",
)
"""Run-config keys that are arguments of every strategy, with underscores."""

Monitor = Callable[[int, Mapping[str, NDArray[Any]]], Mapping[str, float]]


class PrimalDualStrategy(Strategy):
    """Binds an algorithm's server half to Flower.

    Parameters
    ----------
    half : ServerHalf
        The algorithm's mathematics and parameters.
    num_agents : int
        Agents to wait for before round 1; 0 takes those that are there.
    min_agents : int
        Fewer folded replies than this (or than were asked, if that is less) end the run.
    participation : Participation, optional
        Who takes part in a round; all by default.
    seed : int
        Seed of participation and of the agents' mini-batches.
    wait_timeout, round_timeout : float
        Seconds to wait for the agents, and for the replies of one round.
    fraction_evaluate : float
        Share of the agents asked for a federated evaluation after each round, as in FedAvg; 0 asks
        none. Agents in a private run decline: an evaluation is an un-noised release.
    monitor : callable, optional
        ``(round, models) -> {"loss": ..., "accuracy": ..., "stationarity": ...}`` on the server.
    prepare : callable, optional
        ``(half, session) -> half``, called before round 1 and after a resume, when the agents are
        known, e.g. to calibrate noise to their public numbers.
    secure_sum : bool
        Whether the agents mask their uploads so that the server sees sums of them only.
    recover_by_name : {"auto", "yes", "no", "node-key"}
        What becomes of a name whose node is gone. ``"yes"``: the next node that says it goes on
        with the agent's state and account. ``"no"``: that node begins anew and is sent nothing of
        what was before. ``"node-key"``: the name stays with its node to the end, for nodes that
        authenticate and so come back as the same node. ``"auto"``: yes in simulation, else no.
    flower
        FedAvg's other arguments, as in `FlowerArguments`.
    """

    algorithm: ClassVar[str] = ""
    no_secure_sum: ClassVar[str] = "its server needs every agent's upload"
    """Why the algorithm cannot do with sums, where it cannot."""
    least_roster: int = LEAST_ROSTER
    """Agents on the roster of a secure sum, at least; fewer only to replay given masks."""
    h_over_mean: ClassVar[bool] = False
    """Whether h is weighed against the mean of the f_i in place of their sum."""

    def __init__(
        self,
        half: ServerHalf[Any],
        *,
        num_agents: int = 0,
        min_agents: int = 1,
        participation: Participation | None = None,
        seed: int = 0,
        wait_timeout: float = 60.0,
        round_timeout: float = 600.0,
        fraction_evaluate: float = 0.0,
        monitor: Monitor | None = None,
        prepare: Callable[[Any, Session], Any] | None = None,
        secure_sum: bool = False,
        recover_by_name: str = "auto",
        **flower: Unpack[FlowerArguments],
    ) -> None:
        if min_agents < 1:
            raise ConfigError(f"min-agents = {min_agents!r}: must be >= 1")
        if secure_sum and not summing(half):
            raise ConfigError(f"secure-sum = true: not with {half.name}: {self.no_secure_sum}")
        self.recover_by_name = str(key("recover-by-name").check(recover_by_name))
        self.half = half
        self.num_agents = num_agents
        self.min_agents = min_agents
        self.flower = FlowerOptions(**flower)
        self.participation: Participation = self.flower.participation(participation) or All()
        self.seed = seed
        self.wait_timeout = wait_timeout
        self.round_timeout = round_timeout
        self.fraction_evaluate = fraction_evaluate
        self.monitor = monitor
        self.prepare = prepare
        self.session: Session | None = None
        self.pending: Pending | None = None
        self.train_metrics: MetricRecord | None = None

    # ------------------------------------------------------------------ beginning a run

    def begin(self, grid: Grid, arrays: ArrayRecord, *, state: Any = None) -> Session:
        """Wait for the agents, enrol them and set up the state before round 1.

        ``state`` replaces the half's own starting state, e.g. with one start per agent.

        Raises
        ------
        RunError
            If too few agents came, or too few could be enrolled.
        """
        session = self.enrol(grid, arrays, uuid.uuid4().hex)
        if self.prepare is not None:
            self.half = self.prepare(self.half, session)
        if state is None:
            state = self.half.initialise(session.start, len(session.roster.agents))
        session.roster.take_anew()  # they begin with all the others
        session.state = place_all(self.half, state, session.roster)
        self.session = session
        return session

    def enrol(self, grid: Grid, arrays: ArrayRecord, experiment: str) -> Session:
        """Wait for the agents and return a session that knows them (raises ``RunError``)."""
        wanted = max(self.num_agents, self.flower.min_available_nodes)
        wait_for_nodes(grid, wanted, self.min_agents, self.wait_timeout)
        layout = Layout.of(arrays)
        recovery, masked = recovery_of(self.recover_by_name, grid), summing(self.half)
        if recovery == "no" and masked is not None and not masked.restarts:
            recovery = "node-key"  # nobody can begin anew: what is in the sum stays in it
        roster = Roster(recovery=recovery)
        session = Session(experiment, layout, layout.flatten(arrays), None, roster)
        patience = max(self.wait_timeout, ENROL_PATIENCE)
        session.roster.enrol_all(grid, self.question(session), patience)
        if len(session.roster.agents) < self.min_agents:
            reasons = listed(session.roster.rejected.values()) or "none answered"
            raise RunError(
                f"{len(session.roster.agents)} agents could be enrolled, below min-agents = "
                f"{self.min_agents}: {reasons}"
            )
        return session

    @property
    def _private(self) -> bool:
        return means_privacy(self.half.settings())

    def question(self, session: Session) -> Question:
        """Return what every node is asked before it takes part."""
        masked = summing(self.half)
        return Question(
            self.half.name,
            self.half.version,
            session.experiment,
            session.layout.dim,
            session.layout.dtype,
            quiet=self._private or masked is not None,
            secure_sum=masked is not None,
            fixed=self._private or self.prepare is not None,
        )

    def _enrol_newcomers(self, grid: Grid, session: Session) -> list[str]:
        if least := self.flower.min_available_nodes:
            wait_for_nodes(grid, least, least, self.wait_timeout)
        patience = min(ENROL_TIMEOUT, self.round_timeout)
        new = session.roster.refresh(grid, self.question(session), patience)
        for name in new:
            admit(self.half, session, name)
        for name in session.roster.take_anew():
            renew(self.half, session, name)
        return new

    # ------------------------------------------------------------------ Flower's round interface

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Begin a round: enrol newcomers, choose participants, build their messages."""
        refuse_wrappers(self)
        if self.session is None:
            self.begin(grid, arrays)
            newcomers: list[str] = []
        else:
            newcomers = self._enrol_newcomers(grid, self.session)
        session = self._session()
        chosen = self.participation.select(server_round, session.roster.names, self.seed)
        self.pending = open_round(self.half, session, server_round, chosen, self.seed)
        self.pending.notes += [f"agent {name} joined" for name in newcomers]
        masked = summing(self.half)
        if masked is not None:
            self.pending = open_sums(masked, session, self.pending, self.least_roster)
        present = [name for name in chosen if name not in self.pending.absent]
        return list(self.messages_for(present).values())

    def messages_for(self, names: Iterable[str], *, force: bool = False) -> dict[str, Message]:
        """Build and remember the messages of this round for some agents.

        ``force`` sends every agent its state, whether or not its node is known to hold it.
        """
        return messages_for(
            self.half, self._session(), self._pending(), names, self.recovered, force=force
        )

    def recovered(self, name: str, tag: int) -> str:
        """Return the note on an agent that was sent its state."""
        return f"agent {name} was sent its state of round {tag}"

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End a round: fold the good uploads, name the others, return the last model."""
        refuse_wrappers(self)
        owners = owner_by_message(self._pending().messages)
        by_agent = sort_replies(owners, list(replies))
        self.fold_round(by_agent)
        session = self._session()
        done = session.history[-1]
        models = self.half.models(session.state)
        metrics = MetricRecord({"participants": len(done.participants), "residual": done.residual})
        metrics.update(self.train_metrics or {})
        return session.layout.restore(models["last"]), metrics

    def fold_round(self, replies: Mapping[str, Reply]) -> Round:
        """Accept or drop each reply, fold the accepted ones, and record the round.

        Raises
        ------
        RunError
            If fewer uploads than ``min_agents`` (or than were asked) could be folded, or the round
            is folded already.
        """
        session, pending = self._session(), self._pending()
        if pending.folded:
            raise RunError(f"round {pending.round}: its uploads are folded already")
        masked = summing(self.half)
        if masked is not None and isinstance(pending, PendingSums):
            settle(masked, session, pending, replies)
            return close_sums(masked, session, pending, self.min_agents)
        half = cast("FoldingHalf[Any]", self.half)
        done = close_round(half, session, pending, replies, self.min_agents)
        accepted = (replies[name].content for name in done.participants)
        self.train_metrics = self.flower.train_metrics(c for c in accepted if c is not None)
        return done

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask a share of the agents to evaluate the model, as FedAvg does.

        Nobody is asked in a private run or one of secure sums: the answer would be an un-noised
        release, also of an agent that has not taken part yet.
        """
        if self.fraction_evaluate <= 0 or self.session is None:
            return []
        if self._private or summing(self.half):
            return []
        chosen = self.flower.evaluators(
            self.fraction_evaluate, server_round, self.session.roster, self.seed
        )
        content = self.flower.evaluation(arrays, {**config, "server-round": server_round})
        return [Message(content, node, MessageType.EVALUATE) for node in chosen]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the agents' metrics, weighted by their numbers of examples."""
        contents = (reply.content for reply in replies if reply.has_content())
        return self.flower.evaluate_metrics(contents)

    def summary(self) -> None:
        """Log the algorithm, its parameters and who takes part."""
        refuse_wrappers(self)
        log.info("\t├──> Algorithm: %s (protocol version %d)", self.half.name, self.half.version)
        for name, value in self.half.settings().items():
            log.info("\t│\t├── %s: %s", name, value)
        log.info("\t└──> Participation: %s", self.participation)
        if summing(self.half):
            log.info("\t└──> Secure sum: the server sees sums over groups of agents only")

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
        resume: str | Path | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        evaluate_every: int = 1,
        tolerance: float = 0.0,
        observers: Iterable[Observer] = (),
        initial_state: Any = None,
    ) -> PrivetResult:
        """Run the algorithm; see ``privet.strategies.loop.run_loop`` for the arguments.

        ``timeout`` replaces ``round_timeout``. ``train_config`` is there because Flower's own
        strategies have it; the agents are sent the algorithm's parameters and nothing else.
        """
        if timeout is not None:
            self.round_timeout = timeout
        return run_loop(
            self,
            grid,
            initial_arrays,
            num_rounds,
            evaluate_config=evaluate_config or ConfigRecord(),
            evaluate_fn=evaluate_fn,
            resume=Path(resume) if resume else None,
            checkpoint=Path(checkpoint) if checkpoint else None,
            checkpoint_every=checkpoint_every,
            evaluate_every=evaluate_every,
            tolerance=tolerance,
            observers=tuple(observers),
            initial_state=initial_state,
        )

    def measure(self, round_: int) -> dict[str, float]:
        """Return the monitor's numbers for the current models (empty without a monitor)."""
        if self.monitor is None:
            return {}
        with np.errstate(over="ignore", invalid="ignore"):
            return dict(self.monitor(round_, self.half.models(self._session().state)))

    def _session(self) -> Session:
        if self.session is None:
            raise RunError("the run has not begun: call start() or configure_train() first")
        return self.session

    def _pending(self) -> Pending:
        if self.pending is None:
            raise RunError("no round is under way: call configure_train() first")
        return self.pending
