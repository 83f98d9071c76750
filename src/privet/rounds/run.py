"""One run of an algorithm on the server: `Run` begins or resumes it and plays its rounds.

A round has six steps, in three calls of `PrimalDualStrategy.play_round`:

    messages = run.open_round(number, grid)  # 1 enrol, 2 broadcast, 3 ask: in `configure_train`
    replies = run.collect(grid, messages)  # 4 collect
    run.close_round(by_agent)  # 5 fold, 6 record: in `aggregate_train`

Where too few uploads can be folded, `Run.try_again` returns the messages of a further try, and it
goes on with the fourth. Flower's own loop makes the first call and the last, and sends the messages
itself: without retries, further tries and the journal.

1. Enrol: `enrol_newcomers` asks nodes that have connected since the last round for their agents'
   names (`Roster.refresh`), and `ServerHalf.admit` inserts every new agent into the state.
2. Broadcast: `Run._broadcast` draws the participants and creates the round (`OpenRound.begin`);
   `collect/broadcast.py` has `ServerHalf.broadcast` begin it and encodes the arrays for all.
3. Ask: `Run._ask` has the collector select the participants that can be asked now, and
   `messages_for` builds their messages (`collect/ask.py`); the roster of a secure sum is put into
   the broadcast here, and signed by nodes that pin keys (`Collector.agree`). A grid that computes
   many agents at once (`work_together`) does so now, without messages: their request is written
   into the journal first.
4. Collect: the collector's ``collect`` has the request written into the journal of a private run,
   sends the messages and waits for replies; its ``retry`` names agents to be asked once more.
5. Fold: what was not checked as it came is checked now, `ServerHalf.accept` every upload in clear
   (`collect/accept.py`), and `ServerHalf.fold` (of sums: ``fold_sums``) combines the uploads into
   the next state. `Tasks` checks all of them in the fourth step.
6. Record: `collect/outcome.py` adds the round's `Round` to the history of the `Session`.

Before the first round `Run.begin` enrols the agents (`enrol/`), resolves what was left open
(`open_settings.py`) and sets the noise (`calibration.py`); `Run.resume` takes a checkpoint's run up
again, and `Run.snapshot` is what a checkpoint holds (`keep/`).

The collector is a `ClearUploads`, a `MaskedSums` where uploads are masked (a `SurvivorSums` with
``sum-threshold``), or a `Tasks` where a round does not wait for all replies, and where simulated
agents have speeds.

What else happens on the way:

* An upload in clear is decoded, accepted, and the digest of what its agent holds from then on is
  compared with the one in the reply (``accepted``). A large one is as soon as it arrives. The
  results of agents that worked together are checked as one block, and row by row if that is
  refused. A reply that fails is dropped: the round's record has a `Failure` of its agent, and its
  bytes and cost all the same. The server's row of that agent stays as it was; the node holds the
  state of before and the new one, and goes on from the one that its next message names.
* A reply that comes after its round's timeout is never read, and is charged as a lost one. `Tasks`
  folds it in the round in which it comes, unless its task was withdrawn before.
* If an upload of a secure sum is missing, nobody's upload of that attempt can be used: the others
  are asked, and charged, again, without that agent and one more drawn by the seed
  (`collect/masked.py`). So a sum survives a loss with five agents or more. With ``sum-threshold``
  those who are left open the sum without it, and nobody is asked again unless an agent's shares
  are wrong (`collect/survivors.py`).
* An agent that is known not to hold the state last accepted is sent it with its message; one that
  replies that it lacks it is asked once more in the same round, with it (``retry``).
  `EnrolledAgent.tag` is the round in which it was folded last, set by `Roster.note_folded`;
  `EnrolledAgent.held` are the rounds whose states its node is known to hold.
* The agent charges its own ledger before it computes. ``read_cost`` takes over what a reply states,
  also of uploads that are not folded, and charges what was asked for where that cannot be read;
  ``note_lost`` counts replies that never came (`collect/costs.py`).
* An agent is asked no more if the account that it states cannot be kept, and in a private run if
  `REPEATS` of its tasks in a row came to nothing.
* If too few uploads can be folded, ``require`` raises `TooFewError`. Another try is worth it while
  an agent may answer better: one that was late, lost or away, or that is sent its state next time.
* Evaluation, checkpoints and the line on the disk are those of observers (`observers.py`),
  after the round; `Session.amend` puts what they measure into its record.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from privet.core import ConfigError, RunError
from privet.core.key import read, values_of
from privet.core.library import library_version
from privet.wire.contract import encode_settings, means_privacy

from .account import (
    expected_release,
    with_lost,
)
from .calibration import calibrated
from .collect.ask import messages_for, work_together
from .collect.clear import ClearUploads
from .collect.collector import Collector
from .collect.masked import MaskedSums
from .collect.outcome import TooFewError, explained, pause, record
from .collect.round import OpenRound
from .collect.survivors import SurvivorSums
from .collect.tasks import Tasks
from .enrol.admission import (
    enrol_connected,
    enrol_keyless,
    enrol_newcomers,
    question,
    start_state,
    turn_away_uncertified,
)
from .enrol.fitness import row_norm_of
from .enrol.penalties import require_open_penalties
from .enrol.waiting import wait_for_nodes
from .exchange import EngineGrid, Reply
from .half import Arrays, ServerHalf, Turn, Vector
from .keep.checkpoint import Checkpoint, Saved
from .keep.journal import Journal, Request
from .keep.resume import requested, resumed, session_of
from .keep.snapshot import snapshot
from .open_settings import log_misfits, with_open_settings
from .options import RunOptions
from .robust import RobustSettings
from .server_steps import ServerStepSettings
from .session import Round, Session
from .together import WorksTogether, by_message

log = logging.getLogger("flwr.privet")


@dataclass
class Run:
    """A run that has begun; create one with ``begin`` or ``resume``.

    Attributes
    ----------
    half : ServerHalf
        The server half, with its noise calibrated.
    options : RunOptions
    session : Session
    arrays : ArrayRecord
        The last model, under the user's names.
    metrics : MetricRecord or None
        The metrics that came with the uploads of the last round, aggregated.
    usual_train_loss, usual_loss : float
        The second largest of the losses that came with the uploads of the last round, and of those
        of the agents' last evaluation; an only one, and NaN where there are none.
    last_round : int, optional
        The last round that its target pays for, of those that were asked for; None if it is not
        known.
    stopped : str
        Why the run ends with the last round: a `Stop` or an observer's text; empty while it runs.
    diverged : str
        The first quantity that diverged; empty while none has.
    no_better : str
        The last loss and the start's while the run is no better than its start, else empty.
    collector : Collector
        Collects the uploads of a round: in clear, as they come, or as masked sums.
    saved : Saved
        The state of its checkpoints.
    stopping : threading.Event
        Set to end the run after the round under way.
    before_try : callable
        Called before a round that failed is tried again.
    folding : bool
        Whether uploads are being folded: the state is then between two rounds.
    journal : Journal, optional
        The log of a private run's requests, written before messages leave.
    requested : dict of str to scalar
        The configuration that determines what is computed, by name, as the user gave it: before
        open settings were resolved or noise calibrated. A resume must request the same.
    """

    half: ServerHalf[Any]
    options: RunOptions
    session: Session
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    metrics: MetricRecord | None = None
    usual_train_loss: float = math.nan
    usual_loss: float = math.nan
    last_round: int | None = None
    stopped: str = ""
    diverged: str = ""
    no_better: str = ""
    collector: Collector = field(init=False)
    saved: Saved = field(default_factory=Saved)
    beside: Mapping[str, ConfigRecord] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)
    before_try: Callable[[], object] = field(default=bool)
    folding: bool = False
    journal: Journal | None = None
    requested: dict[str, Any] = field(init=False)
    _requests: int = field(init=False, default=0)
    _opened: OpenRound | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.half = replace(self.half, folder=self.options.folder)
        self.collector = collector_of(self.half, self.options)
        self.session.leader = self.options.encoding
        self.session.row_norm = row_norm_of(self.half)
        self.session.steps.settings = read(ServerStepSettings, values_of(self.options))
        self.session.robust.settings = read(RobustSettings, values_of(self.options))
        self.requested = requested(self.half, self.options)

    # ------------------------------------------------------------------ beginning

    @classmethod
    def begin(
        cls,
        half: ServerHalf[Any],
        options: RunOptions,
        grid: Grid,
        arrays: ArrayRecord,
        *,
        state: Any = None,
    ) -> Self:
        """Wait for the agents, enrol them and set up the state before round 1.

        ``state`` replaces the half's own starting state, e.g. with one start per agent.

        Raises
        ------
        RunError
            If too few agents came, or too few could be enrolled.
        """
        _require_simulated(options, grid)
        run = cls(half, options, Session.of(uuid.uuid4().hex, arrays), arrays)
        session = run.session
        wait_for_nodes(grid, options.wanted_nodes, options.min_agents, options.wait_timeout)
        enrol_connected(run.half, options, session, grid, run.stopping)
        require_open_penalties(options, session)
        run.half = with_open_settings(run.half, options, session)
        log_misfits(run.half, options, session)
        turn_away_uncertified(run.half, options, session)
        run.half, run.last_round = calibrated(run.half, session, options)
        turn_away_uncertified(run.half, options, session)  # of noise that was not set before
        start_state(run.half, session, state)
        return run

    @classmethod
    def resume(
        cls,
        half: ServerHalf[Any],
        options: RunOptions,
        grid: Grid,
        arrays: ArrayRecord,
        saved: Checkpoint,
        stopping: threading.Event | None = None,
    ) -> Self:
        """Return the run of a checkpoint, with the agents that are there now.

        Agents that are missing after ``wait_timeout`` are absent. While fewer than ``min_agents``
        are there, the run waits as long as it has ``patience``; ``stopping`` ends the wait.

        Raises
        ------
        RunError
            If the checkpoint is damaged or of a run that computes something else, or if too few
            agents came back.
        """
        run = cls(half, options, session_of(saved, arrays), arrays)
        run.stopping = stopping or run.stopping
        run.half, run.last_round = resumed(
            run.half, options, run.session, grid, saved, run.requested, run.stopping
        )
        run.arrays = run.session.restore(run.model)
        return run

    def snapshot(self, grid: Grid, changed: Collection[str] | None = None) -> Checkpoint:
        """Return all that a resume needs except the history.

        With ``changed`` that is, of what there is for every agent, what these agents have of it.
        """
        in_tasks = isinstance(self.collector, Tasks)
        return snapshot(
            self.half,
            self.session,
            grid,
            self.requested,
            rounds=self.options.rounds,
            mark=self.journal.mark if self.journal else "",
            tasks=self.collector.unfinished(self.session) if in_tasks else None,
            changed=changed,
            more=self.collector.about(),
        )

    @property
    def private(self) -> bool:
        """Whether the agents' settings ask for privacy."""
        return means_privacy(self.half.settings())

    @property
    def opened(self) -> OpenRound:
        """The round under way, or the last one (raises ``RunError`` before the first)."""
        if self._opened is None:
            raise RunError("no round is under way: call configure_train() first")
        return self._opened

    @property
    def failed_tries(self) -> int:
        """The number of failed tries of the round under way."""
        tally = self._opened.tally if self._opened else None
        return 0 if tally is None or tally.ended else len(tally.failed_at)

    @property
    def failed(self) -> OpenRound | None:
        """The round under way if it could not be folded, else None."""
        opened = self._opened
        return opened if opened and opened.tally.failures and not opened.tally.ended else None

    def open_round(self, number: int, grid: Grid) -> list[Message]:
        """Begin a round: enrol newcomers, choose participants, and return the messages to send.

        These are steps 1 to 3. `collect` sends the messages and waits; `close_round` folds the
        uploads and records the round.
        """
        begun = time.monotonic()
        newcomers = enrol_newcomers(self.half, self.options, self.session, grid)
        waited = time.monotonic() - begun
        self._opened = self._broadcast(number, newcomers)
        if isinstance(grid, EngineGrid):  # it may have waited for processes to start
            self._opened.tally.used = waited
        return self._ask(grid)

    def _broadcast(self, number: int, newcomers: Iterable[str]) -> OpenRound:
        """Choose the participants, and encode the broadcast for them."""
        failed, options, session = self._opened, self.options, self.session
        chosen = self.collector.choose(options, session, number)
        session.roster.changes.names.update(chosen)
        session.roster.compare_libraries(library_version())
        turn = Turn(number, options.seed, self.collector.sweep(session))
        opened = OpenRound.begin(self.half, options, session, turn, tuple(chosen), self.beside)
        opened.tally.notes += session.remarks
        session.remarks.clear()
        opened.tally.notes += [f"agent {name} joined" for name in newcomers]
        if failed is not None and not failed.tally.ended:
            opened.carry_over(failed)
        return opened

    def _ask(self, grid: Grid) -> list[Message]:
        """Return the messages of a round to the agents that the grid does not compute at once."""
        opened = self.opened
        names = self.collector.agree(opened, grid, self.collector.open(opened))
        if isinstance(grid, WorksTogether) and not by_message(self.half):
            request = self._journal_request(names)
            opened.tally.ask(names, 1)
            remaining = work_together(opened, grid, names)
            others = set(remaining)
            for name in others:
                opened.tally.drop_newest_request(name)
            asked = [name for name in names if name not in others]
            self._journal_request(asked, request)
            if self.private:
                self.session.spent.update(asked)
            names = remaining
        return list(messages_for(opened, names).values())

    def collect(self, grid: Grid, messages: Iterable[Message]) -> list[Message]:
        """Send messages of the round and return all replies, those of retries included."""
        to_send = self.opened.by_agent(messages)
        asked = question(self.half, self.options, self.session)
        return self.collector.collect(self.opened, grid, to_send, asked, self._note_request)

    def _note_request(self, names: Collection[str]) -> None:
        """Note that agents are asked, before the messages leave: each may be charged from then."""
        self._journal_request(names)
        self.opened.tally.ask(names, max(1, len(names)) if self.collector.masked else 1)
        if self.private:
            self.session.spent.update(iter(names))

    def _journal_request(self, names: Iterable[str], request: int = 0) -> int:
        """Write a request, or a correction of request ``request``; return its number."""
        if not request:
            self._requests += 1
            request = self._requests
        if self.journal is not None:
            recipients = tuple(names)
            agents = max(1, len(recipients)) if self.collector.masked else 1
            settings = encode_settings(self.half.settings())
            enrolled = self.session.roster.unsaved(recipients)
            what = Request(self.opened.number, recipients, agents, settings, enrolled)
            self.journal.add(request, what)
        return request

    def try_again(self, few: TooFewError, grid: Grid) -> list[Message]:
        """Pause after a failed try of the round, and return the messages of the next try.

        An agent whose upload in clear was accepted is not asked again, unless the round is opened
        again for new nodes, as too few agents are left: the broadcast is another one then, and
        uploads that were accepted are lost, though charged. Nor is an agent of a private run whose
        task came to nothing (`OpenRound.in_vain`).

        Raises
        ------
        TooFewError
            The given one, if the run's patience is over or there is no agent to wait for.
        InVainError
            If each agent was charged for a task, and no upload of the run was ever folded.
        """
        opened = self.opened
        seconds = pause(opened, time.monotonic())
        if not seconds or self.stopping.is_set():
            ended = explained(opened, few)
            self.session.spent.clear()  # who plays a further round decides so
            raise ended
        log.warning("%s; tried again in %.3g s", few, seconds)
        if not self.stopping.wait(seconds):
            self.before_try()
        if self.stopping.is_set():
            raise few
        opened.begin_again()
        enrol_keyless(self.half, self.options, self.session, grid, opened.chosen)
        names = self.collector.reopen(opened)
        if names is None:
            return self.open_round(opened.number, grid)
        names = self.collector.agree(opened, grid, names)
        return list(messages_for(opened, names).values())

    def close_round(self, replies: Mapping[str, Reply]) -> Round:
        """Accept or drop each reply, fold the accepted ones, and record the round.

        Raises
        ------
        TooFewError
            If fewer uploads than ``min_agents`` (or than agents were chosen) could be folded.
        RunError
            If the round is folded already.
        """
        opened = self.opened
        if opened.tally.ended:
            raise RunError(f"round {opened.number}: its uploads have been combined already")
        self.folding = True
        try:
            folded = self.collector.fold(opened, replies)
            done = record(opened, folded)
        except TooFewError:
            self.folding = False
            opened.tally.unanswered.clear()
            raise
        self.folding = False
        opened.tally.unanswered.clear()
        if done.participants:
            self.session.note_gain()
        if self.private:
            self.session.note_fruitless([done])
        opened.broadcast.forget_arrays()
        self.arrays = ArrayRecord()  # freed before the next model is built
        self.arrays = self.session.restore(self.model)
        return done

    def count_unfinished(self) -> None:
        """Count as releases what agents were asked for at a run's end and nobody reads.

        These are the tasks that agents still have, and the requests of a round that was cut off:
        while its uploads were folded, a server may have sent what it made of them to others.
        """
        if self.folding:
            self.session.state = self.half.resumed(self.session.state, [self.opened.number])
        roster, noises = self.session.roster, self.session.noises
        tasks = self.collector.unfinished(self.session)
        left = [(name, task.version, 1) for name, task in tasks.items()]
        if self._opened is not None:
            asked = self._opened.tally.unanswered.items()
            round_ = self._opened.number
            left += [(n, round_, count) for n, sums in asked if n not in tasks for count in sums]
        for name, number, agents in left:
            agent = roster.agents[name]
            release = expected_release(self.half, agent, number, agents, noises)
            if release is not None:
                roster.note_ledger(name, with_lost(agent.ledger, release))

    @property
    def model(self) -> Vector:
        """The run's result so far (d,)."""
        return self.half.model(self.session.state)

    def models(self) -> Arrays:
        """Return the models (d,) by name; ``"last"`` is the run's result."""
        return self.half.models(self.session.state)


def _require_simulated(options: RunOptions, grid: Grid) -> None:
    """Refuse speeds where nodes take the time that they take (raises ``ConfigError``)."""
    if options.speeds and not isinstance(grid, EngineGrid):
        raise ConfigError(
            f"speeds = {options.speeds}: of agents that privet run simulates; nodes of Flower have "
            "their own"
        )


def collector_of(half: ServerHalf[Any], options: RunOptions) -> Collector:
    """Return what collects the uploads of a run."""
    if half.masked and options.sum_threshold:
        return SurvivorSums(threshold=options.sum_threshold)
    if half.masked:
        return MaskedSums()
    if options.asynchronous or options.late_replies == "fold" or options.speeds:
        return Tasks(options)
    return ClearUploads()
