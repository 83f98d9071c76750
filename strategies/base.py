"""One Flower Strategy for every primal-dual algorithm: messages, failures, state.

A round works through ``configure_train`` and ``aggregate_train`` alone, so that Flower's own loop
and wrappers can drive it; ``start`` (in ``loop.py``) adds the deadline, the second try for agents
that lost their state, checkpoints and early stopping.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from privet.wire import (
    AGENT_RECORD,
    RECORD,
    ConfigError,
    Layout,
    PrivetError,
    RunError,
    Update,
    UploadError,
    WireError,
    content_bytes,
    pack,
    stream,
)
from privet.wire.contract import (
    agent_record,
    encode_settings,
    is_need_state,
    read_update,
    shared_record,
)
from privet.wire.errors import one_line

from .exchange import Reply, owner_by_message, sort_replies
from .half import Arrays, ServerHalf
from .history import Round
from .loop import Observer, PrivetResult, run_loop
from .metrics import average_metrics
from .participation import All, Participation
from .roster import ENROL_PATIENCE, ENROL_TIMEOUT, Question, Roster, wait_for_nodes

log = logging.getLogger("flwr.privet")

Monitor = Callable[[int, Mapping[str, NDArray[Any]]], Mapping[str, float]]


@dataclass
class Session:
    """The state of one run on the server."""

    experiment: str
    layout: Layout
    start: NDArray[Any]
    state: Any
    roster: Roster
    round: int = 0
    history: list[Round] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """The history as JSON, as far as it is in a checkpoint."""


@dataclass
class Pending:
    """A round that was sent out: the shared record, the messages, and what came of it."""

    round: int
    shared: ConfigRecord
    messages: dict[str, Message]
    asked: tuple[str, ...]
    bytes_down: int
    bytes_up: int = 0
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


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
        ``(half, roster) -> half``, called once before round 1 when the agents are known, e.g. to
        calibrate noise to their declared numbers of examples.
    """

    algorithm: ClassVar[str] = ""
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
        prepare: Callable[[Any, Roster], Any] | None = None,
    ) -> None:
        if min_agents < 1:
            raise ConfigError(f"min-agents = {min_agents!r}: must be >= 1")
        self.half = half
        self.num_agents = num_agents
        self.min_agents = min_agents
        self.participation: Participation = participation or All()
        self.seed = seed
        self.wait_timeout = wait_timeout
        self.round_timeout = round_timeout
        self.fraction_evaluate = fraction_evaluate
        self.monitor = monitor
        self.prepare = prepare
        self.session: Session | None = None
        self.pending: Pending | None = None

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
            self.half = self.prepare(self.half, session.roster)
        if state is None:
            state = self.half.initialise(session.start, len(session.roster.agents))
        session.state = state
        self.session = session
        return session

    def enrol(self, grid: Grid, arrays: ArrayRecord, experiment: str) -> Session:
        """Wait for the agents and return a session that knows them (raises ``RunError``)."""
        wait_for_nodes(grid, self.num_agents, self.min_agents, self.wait_timeout)
        layout = Layout.of(arrays)
        session = Session(experiment, layout, layout.flatten(arrays), None, Roster())
        patience = max(self.wait_timeout, ENROL_PATIENCE)
        session.roster.enrol_all(grid, self._question(session), patience)
        if len(session.roster.agents) < self.min_agents:
            reasons = "; ".join(session.roster.rejected.values()) or "none answered"
            raise RunError(
                f"{len(session.roster.agents)} agents could be enrolled, below min-agents = "
                f"{self.min_agents}: {reasons}"
            )
        return session

    @property
    def _private(self) -> bool:
        return float(self.half.settings().get("clip", 0.0)) > 0

    def _question(self, session: Session) -> Question:
        return Question(
            self.half.name,
            self.half.version,
            session.experiment,
            session.layout.dim,
            str(session.layout.dtype),
            quiet=self._private,
        )

    def _enrol_newcomers(self, grid: Grid, session: Session) -> list[str]:
        patience = min(ENROL_TIMEOUT, self.round_timeout)
        new = session.roster.refresh(grid, self._question(session), patience)
        for name in new:
            position = session.roster.names.index(name)
            session.state = self.half.admit(session.state, position, session.start)
        return new

    # ------------------------------------------------------------------ Flower's round interface

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Begin a round: enrol newcomers, choose participants, build their messages."""
        if self.session is None:
            self.begin(grid, arrays)
            newcomers: list[str] = []
        else:
            newcomers = self._enrol_newcomers(grid, self.session)
        session = self._session()
        notes = [f"agent {name} joined" for name in newcomers]
        chosen = self.participation.select(server_round, session.roster.names, self.seed)
        present = [name for name in chosen if session.roster.connected(name)]
        session.state, broadcast = self.half.broadcast(session.state)
        settings = {**self.half.settings(), "seed": self.seed}
        shared = shared_record(
            self.half.name,
            self.half.version,
            session.experiment,
            server_round,
            encode_settings(settings),
            broadcast,
        )
        pending = Pending(server_round, shared, {}, tuple(chosen), 0, notes=notes)
        pending.absent = {name: "not connected" for name in chosen if name not in present}
        self.pending = pending
        return list(self.messages_for(present, force=False).values())

    def messages_for(self, names: Iterable[str], *, force: bool) -> dict[str, Message]:
        """Build and remember the messages of this round for some agents.

        An agent whose node does not hold the state last accepted is sent it (``force`` sends it in
        any case), with the account of its releases, which it would else begin anew; where the half
        does not hold that state either, the agent starts again by its own rule.
        """
        session, pending = self._session(), self._pending()
        position = {name: i for i, name in enumerate(session.roster.names)}
        base = len(pending.shared["payload"])  # type: ignore[arg-type]
        records: dict[tuple[int, bytes | None, str], ConfigRecord] = {}
        built: dict[str, Message] = {}
        for name in names:
            agent = session.roster.agents[name]
            recovery, ledger = None, ""
            if force or agent.tag == 0 or agent.tag not in agent.held:
                recovery = self.half.recovery(session.state, position[name])
                ledger = agent.ledger
            packed = None if recovery is None else pack(recovery)
            tag = 0 if force and packed is None else agent.tag
            if tag != agent.tag:
                pending.notes.append(
                    f"agent {name} lost its state of round {agent.tag}: it starts again"
                )
            own = records.get((tag, packed, ledger))
            if own is None:  # one object on the wire for all agents that are sent the same
                own = agent_record(tag, packed, ledger)
                records[tag, packed, ledger] = own
            if packed is not None:
                pending.bytes_down += len(packed)
                if agent.tag:
                    pending.notes.append(self.recovered(name, agent.tag))
            content = RecordDict({RECORD: pending.shared, AGENT_RECORD: own})
            built[name] = Message(content, agent.node, MessageType.TRAIN)
            pending.bytes_down += base
        pending.messages.update(built)
        return built

    def recovered(self, name: str, tag: int) -> str:
        """Return the note on an agent that was sent its state."""
        return f"agent {name} was sent its state of round {tag}"

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End a round: fold the good uploads, name the others, return the last model."""
        owners = owner_by_message(self._pending().messages)
        by_agent = sort_replies(owners, list(replies))
        self.fold_round(by_agent)
        session = self._session()
        done = session.history[-1]
        models = self.half.models(session.state)
        metrics = MetricRecord({"participants": len(done.participants), "residual": done.residual})
        return session.layout.restore(models["last"]), metrics

    def fold_round(self, replies: Mapping[str, Reply]) -> Round:
        """Accept or drop each reply, fold the accepted ones, and record the round.

        Raises
        ------
        RunError
            If fewer uploads than ``min_agents`` (or than were asked) could be folded.
        """
        session, pending = self._session(), self._pending()
        names = session.roster.names
        position = {name: i for i, name in enumerate(names)}
        failures = dict(pending.absent)
        uploads: dict[int, Arrays] = {}
        updates: dict[str, Update] = {}
        epsilon = 0.0
        for name in names:
            if name not in pending.messages:
                continue
            reply = replies.get(name, Reply(None, "no reply"))
            try:
                folded, update = self._accept(name, position[name], reply, pending)
            except Exception as error:  # whatever an agent sends costs that agent's reply only
                known = isinstance(error, PrivetError)
                why = str(error) if known else f"reply cannot be used ({error!r})"
                failures[name] = one_line(why)
                log.warning(
                    "round %d: agent %s dropped: %s",
                    pending.round,
                    name,
                    failures[name],
                    exc_info=not known,
                )
                continue
            uploads[position[name]] = folded
            updates[name] = update
            epsilon = max(epsilon, update.epsilon)
        for name, reason in pending.absent.items():
            log.warning("round %d: agent %s absent: %s", pending.round, name, reason)
        self._require(len(uploads), pending, failures)
        session.state = self.half.fold(session.state, uploads)
        for name, update in updates.items():
            session.roster.accepted(name, update)
        before = session.history[-1].epsilon if session.history else 0.0
        done = Round(
            round=pending.round,
            participants=tuple(names[index] for index in uploads),
            failures=failures,
            notes=tuple(pending.notes),
            residual=self.half.residual(session.state),
            bytes_up=pending.bytes_up,
            bytes_down=pending.bytes_down,
            epsilon=max(before, epsilon),
        )
        session.history.append(done)
        session.round = pending.round
        return done

    def _accept(
        self, name: str, position: int, reply: Reply, pending: Pending
    ) -> tuple[Arrays, Update]:
        """Return what is folded of one reply, and the reply as read."""
        session = self._session()
        if reply.content is None:
            raise UploadError(reply.reason)
        pending.bytes_up += content_bytes(reply.content)
        if is_need_state(reply.content):
            agent = session.roster.agents[name]
            kept = self.half.recovery(session.state, position) is not None
            tag = agent.tag if kept else 0
            session.roster.agents[name] = replace(agent, held=(), tag=tag)
            raise UploadError("does not hold its state; the next message takes care of it")
        update = read_update(reply.content, self.half.name, self.half.version, pending.round)
        if update.ledger:  # what left the agent counts, also where it cannot be folded
            agent = session.roster.agents[name]
            session.roster.agents[name] = replace(agent, ledger=update.ledger)
        folded, agreed = self.half.accept(session.state, position, update.arrays())
        if update.digest != agreed:
            agent = session.roster.agents[name]
            session.roster.agents[name] = replace(agent, held=())
            raise WireError("digest differs: agent and server do not hold the same state")
        if update.note:
            pending.notes.append(f"agent {name}: {one_line(update.note)}")
        return folded, update

    def _require(self, folded: int, pending: Pending, failures: Mapping[str, str]) -> None:
        if folded >= min(self.min_agents, len(pending.asked)):
            return
        reasons = "; ".join(f"agent {name}: {why}" for name, why in failures.items())
        raise RunError(
            f"round {pending.round}: {folded} of {len(pending.asked)} agents replied, below "
            f"min-agents = {self.min_agents}: {reasons}"
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask a share of the agents to evaluate the model, as FedAvg does.

        Nobody is asked in a private run: the answer would be an un-noised release, also of an agent
        that has not taken part yet.
        """
        if self.fraction_evaluate <= 0 or self.session is None or self._private:
            return []
        roster = self.session.roster
        names = [name for name in roster.names if roster.connected(name)]
        count = min(len(names), max(1, round(self.fraction_evaluate * len(names))))
        rng = stream(self.seed, "evaluation", round_=server_round)
        chosen = sorted(rng.choice(len(names), size=count, replace=False))
        content = RecordDict(
            {"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})}
        )
        return [
            Message(content, roster.agents[names[i]].node, MessageType.EVALUATE) for i in chosen
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the agents' metrics, weighted by their numbers of examples."""
        return average_metrics([reply.content for reply in replies if reply.has_content()])

    def summary(self) -> None:
        """Log the algorithm, its parameters and who takes part."""
        log.info("\t├──> Algorithm: %s (protocol version %d)", self.half.name, self.half.version)
        for name, value in self.half.settings().items():
            log.info("\t│\t├── %s: %s", name, value)
        log.info("\t└──> Participation: %s", self.participation)

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
