"""One run of an algorithm on the server: `Run` begins or resumes it and plays its rounds.

A round has six steps. The strategy (or Flower's own loop) calls `Run.open_round` for the first
three, `Run.collect` for the fourth and `Run.close_round` for the last two:

1. Enrol: `Run._enrol_newcomers` asks nodes that have connected since the last round for their
   agents' names (`Roster.refresh`), and `ServerHalf.admit` inserts every new agent into the state.
2. Broadcast: `Run._choose` draws the participants and creates the round (`Pending.begin`);
   `Outgoing.broadcast` has `ServerHalf.broadcast` begin it and encodes the arrays for all.
3. Ask: `Run._ask` has the collector select the participants that can be asked now, and
   `Outgoing.messages_for` builds their messages. A grid that computes many agents at once has
   done so by then (`Pending.work_together`), without messages.
4. Collect: `Run.collect` writes the request into the journal of a private run, sends the messages
   and waits for replies; the collector's ``retry`` names agents to be asked once more.
5. Fold: the collector's ``close`` checks every reply, `ServerHalf.accept` every upload in clear,
   and `ServerHalf.fold` (of sums: ``fold_sums``) combines the uploads into the next state.
6. Record: `Outcome.record` adds the round's `Round` to the history of the `Session`.

The collector is a `ClearUploads`, a `MaskedSums` where uploads are masked, or a `Tasks` where a
round does not wait for all replies.

What else happens on the way:

* An upload in clear is decoded, accepted, and the digest of what its agent holds from then on is
  compared with the one in the reply (`run/clear.py`, ``accepted``). A large one is as soon as it
  arrives. A reply that fails is dropped with a `Failure`, and its agent keeps the state of before.
* An agent that is known not to hold the state last accepted is sent it with its message; one that
  replies that it lacks it is asked once more in the same round, with it (``retry``).
  `EnrolledAgent.tag` is the round last accepted, set by `Roster.accepted`; `EnrolledAgent.held`
  are those its node holds.
* The agent charges its own ledger before it computes. `Outcome.note_cost` takes over what a reply
  states, also of uploads that are not folded; `Outcome.note_lost` counts replies that never came.
* If too few uploads can be folded, `Outcome.require` raises `TooFewError`; the strategy's
  ``play_round`` has `Run.try_again` return the messages of another try, or the run ends.
* Evaluation, checkpoints and the line on the disk are those of observers (`run/observers.py`),
  after the round; `Run.amend` puts what they measure into its record.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from privet.agents.state_tables import StateTable
from privet.agents.terms import ARRIVAL_TIMES, ENCODING, MEAN_EXAMPLES, POOLED_WEIGHT
from privet.core import ConfigError, PrivetError, RunError
from privet.core.errors import HopelessError, one_line
from privet.core.key import keys_of, read, shown, values_of
from privet.core.library import LIBRARY_VERSION, library_version
from privet.data.agreement import Agreement
from privet.wire import sort_names
from privet.wire.contract import decode_settings, encode_settings, means_privacy
from privet.wire.payload import BUFFERS

from .account import (
    TARGET,
    account_fault,
    count_lost,
    expected_release,
    keep_unclaimed,
    with_lost,
)
from .asynchrony import AsynchronySettings
from .calibration import calibrated
from .collect.clear import ClearUploads
from .collect.collector import Collector
from .collect.masked import MaskedSums
from .collect.outcome import TooFewError
from .collect.round import Pending
from .collect.tasks import Tasks
from .enrol.admission import (
    enrol_connected,
    enrol_keyless,
    enrol_newcomers,
    question,
    start_state,
    take_in,
    turn_away_uncertified,
)
from .enrol.fitness import leave_out, row_norm_of, uncertified_agents, unreadable_agents
from .enrol.penalties import require_open_penalties
from .enrol.waiting import wait_for_nodes, wait_for_return
from .exchange import EngineGrid, Reply
from .gaps import SAVED, Gaps
from .half import Arrays, ServerHalf, Turn, Vector
from .keep.checkpoint import Checkpoint
from .keep.journal import Journal, Request
from .open_settings import log_misfits, with_open_settings
from .options import RunOptions
from .roster import (
    EnrolledAgent,
    columns,
    from_columns,
)
from .server_steps import SAVED as STEPS_SAVED
from .server_steps import ServerStepSettings
from .session import Round, Session
from .speeds import SpeedSettings
from .task import charged, restored, saved
from .together import working_together

log = logging.getLogger("flwr.privet")


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of a run's checkpoints: the round of the last one (0: none) and the failures.

    ``error`` says why the last attempt failed; it is empty if that one was written.
    """

    round: int = 0
    failures: int = 0
    error: str = ""


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
    saved: Saved = Saved()
    beside: Mapping[str, ConfigRecord] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)
    before_try: Callable[[], object] = field(default=bool)
    folding: bool = False
    journal: Journal | None = None
    requested: dict[str, Any] = field(init=False)
    _requests: int = field(init=False, default=0)
    _pending: Pending | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.half = replace(self.half, folder=self.options.folder)
        self.collector = collector_of(self.half, self.options)
        self.session.leader = self.options.encoding
        self.session.row_norm = row_norm_of(self.half)
        self.session.steps.settings = read(ServerStepSettings, values_of(self.options))
        self.requested = {
            **dict(self.options.config),
            **values_of(self.half),
            "h": _stable_repr(getattr(self.half, "h", None)),
            **self.half.settings(),
            "participation": _stable_repr(self.options.participation),
            **_when_folded(self.options),
            "seed": self.options.seed,
            **values_of(self.session.steps.settings),
            "secure-sum": self.collector.masked,
            "agent-weights": self.options.agent_weights,
        }

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
        try:
            run = cls(half, options, Session.of(str(saved.manifest["experiment"]), arrays))
            agents = run._restore(saved)
            if isinstance(grid, EngineGrid):
                if saved.node_states:
                    grid.restore_node_states(saved.node_states)
                run.session.tasks = restored(saved.manifest.get("tasks", []), saved.tasks)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, PrivetError):
                raise
            why = one_line(repr(error))
            raise HopelessError(f"resume: the checkpoint is damaged ({why})") from None
        session, roster = run.session, run.session.roster
        run.stopping = stopping or run.stopping
        least = max(options.min_agents, options.min_available_nodes)
        wait = options.wait_timeout, options.patience
        wait_for_return(grid, agents, options.wanted_nodes, least, *wait, run.stopping)
        roster.holders = {name: agent.node for name, agent in agents.items()}
        enrol_connected(run.half, options, session, grid, run.stopping, options.patience)
        # Those that have not come back stay in the roster, absent.
        take_in(run.half, session, roster.merge(agents, question(run.half, options, session)))
        keep_unclaimed(run.half, session)
        leave_out(session, unreadable_agents(run.half, options, session))
        if run.private and options.unattended:
            session.note_fruitless(session.history)
        run.half = with_open_settings(run.half, options, session)
        log_misfits(run.half, options, session)
        if run.private:
            put_back = saved.node_states if isinstance(grid, EngineGrid) else []
            lost = [*saved.requests, *run._lost_tasks(saved)]
            if key := run.half.noise_key:
                sent = (decode_settings(request.settings) for request in saved.requests)
                session.noises.update(float(settings[key]) for settings in sent)
            fault = partial(account_fault, run.half)
            with charged(session.tasks, run.half.name, run.half.version, roster, fault):
                changed = count_lost(run.half, roster, lost, put_back, session.noises)
            asked = [request.round for request in saved.requests]
            session.state = run.half.resumed(session.state, asked)
            for name in (name for request in saved.requests for name in request.names):
                if name in roster.agents:
                    roster.agents[name].tasks += 1  # those of the checkpoint are counted already
            if isinstance(grid, EngineGrid) and changed:
                grid.restore_node_states(changed)
        leave_out(session, uncertified_agents(run.half, options, session))
        # After the merge: absent agents count as well.
        run.half, run.last_round = calibrated(run.half, session, options)
        # Of noise that was not set before.
        leave_out(session, uncertified_agents(run.half, options, session))
        run.arrays = session.restore(run.model)
        log.info("resumed after round %d with %d agents", session.round, len(roster.agents))
        if options.rounds is not None and session.round >= options.rounds:
            log.info("no round is left up to %d: ask for more rounds to go on", options.rounds)
        return run

    def _restore(self, saved: Checkpoint) -> dict[str, EnrolledAgent]:
        """Take over round, history and state of a checkpoint; return its agents.

        Raises
        ------
        RunError
            If they belong to another run, or do not fit together.
        """
        manifest, session = saved.manifest, self.session
        self._check(manifest)
        session.round, session.history = int(manifest["round"]), saved.history
        if "initial" in manifest:
            session.initial = Round.from_dict(manifest["initial"])
        session.settings_before = dict(manifest["settings"])
        session.rounds_before = int(manifest.get("rounds") or 0)
        if self.half.noise_key:
            before = float(manifest["settings"][self.half.noise_key])
            session.noises = {before, *map(float, manifest.get("noises", ()))}
        session.mean_examples = float(manifest.get(MEAN_EXAMPLES, 0.0))
        session.pooled_weight = float(manifest.get(POOLED_WEIGHT, 0.0))
        session.encoding = Agreement(str(manifest.get("encoding", "")))
        session.encoding_sent = str(manifest.get("encoding-sent", ""))
        session.settled = bool(session.encoding.text)
        session.fix_arrays(
            manifest.get("trained", session.layout.names), manifest.get("buffers", ())
        )
        session.tied = manifest.get("tied")
        session.uploads = int(manifest.get("uploads", 0))
        session.clock = float(manifest.get("clock", 0.0))
        arrays = dict(saved.arrays)
        session.statistics = arrays.pop(BUFFERS, None)
        self.half = self.half.with_settings(
            {key: manifest["settings"][key] for key in self.half.settings() if key != TARGET}
        ).variant()
        gaps = {name: arrays.pop(name) for name in list(arrays) if name.startswith(SAVED)}
        stepped = {name: arrays.pop(name) for name in list(arrays) if name.startswith(STEPS_SAVED)}
        session.state = self.half.load(arrays)
        session.steps.load(stepped, session.start)
        session.steps.place(self.half, session.state)
        model, start = self.model, session.start
        if (model.shape, model.dtype) != (start.shape, start.dtype):
            raise RunError(
                f"resume: the checkpoint's model has {model.size} parameters in {model.dtype}, "
                f"this run's {start.size} in {start.dtype}"
            )
        agents = from_columns(manifest["agents"])
        session.gaps = Gaps.load(gaps, len(agents))
        for name, row in self.half.rows(start).items():
            count = 0 if self.half.masked else len(agents)
            table, shape = saved.arrays.get(name), (count, *np.shape(row))
            if table is not None and table.shape != shape:
                raise RunError(
                    f"resume: the checkpoint's table {name} has shape {table.shape}, not {shape}"
                )
        return agents

    def _lost_tasks(self, saved: Checkpoint) -> Iterator[Request]:
        """Yield the requests of tasks that agents had at a checkpoint and whose result is lost."""
        settings = encode_settings(self.half.settings())
        for entry in saved.manifest.get("tasks", ()):
            name, version = str(entry["agent"]), int(entry["version"])
            if name not in self.session.tasks:
                yield Request(version, (name,), 1, settings)

    def _check(self, manifest: Mapping[str, Any]) -> None:
        """Raise ``RunError`` if a checkpoint is of a run that computes something else."""
        half = self.half
        protocol, version = manifest["protocol"], manifest["version"]
        if (protocol, version) != (half.name, half.version):
            raise HopelessError(
                f"resume: the checkpoint is of {protocol} version {version}, "
                f"this run of {half.name} version {half.version}"
            )
        before, now = manifest["asked"], self.requested
        changes = {
            key: f"{key} {shown(before[key])} -> {shown(now[key])}"
            for key in now
            if key in before and before[key] != now[key]
        }
        if target := changes.pop(TARGET, ""):  # the noise of the rounds that are left follows it
            self.session.remark(f"resume: {target}")
        if changes:
            raise HopelessError(
                f"resume: the checkpoint is of another run: {', '.join(changes.values())}; ask "
                "for what it was, or begin a new run"
            )
        if (library := manifest[LIBRARY_VERSION]) != library_version():
            self.session.remark(f"resume: {LIBRARY_VERSION} {library} -> {library_version()}")

    def snapshot(self, grid: Grid, changed: Collection[str] | None = None) -> Checkpoint:
        """Return all that a resume needs except the history.

        With ``changed`` that is, of what there is for every agent, what these agents have of it.
        """
        session, half = self.session, self.half
        roster = session.roster
        names = roster.names if changed is None else sort_names(changed)
        places = (
            None if changed is None else np.array([roster.positions[n] for n in names], np.intp)
        )
        manifest: dict[str, Any] = {
            "protocol": half.name,
            "version": half.version,
            "experiment": session.experiment,
            "round": session.round,
            "rounds": self.options.rounds,
            "epsilon": session.history[-1].epsilon if session.history else 0.0,
            "journal": self.journal.mark if self.journal else "",
            "initial": session.initial.to_dict(),
            "asked": self.requested,
            "settings": dict(half.settings()),
            **({"noises": sorted(session.noises)} if session.noises else {}),
            **({MEAN_EXAMPLES: session.mean_examples} if session.mean_examples else {}),
            **({POOLED_WEIGHT: session.pooled_weight} if session.pooled_weight else {}),
            **({"encoding": session.encoding.text} if session.encoding.text else {}),
            **({"encoding-sent": session.encoding_sent} if session.encoding_sent else {}),
            "trained": session.layout.names,
            "buffers": session.buffers.names if session.buffers else (),
            "tied": session.tied,
            LIBRARY_VERSION: library_version(),
            "agents": columns({name: roster.agents[name] for name in names}),
        }
        node_states: list[StateTable] = []
        if isinstance(grid, EngineGrid):
            held = map(roster.agents.__getitem__, names)
            node_states += grid.node_states({agent.node: agent.tag for agent in held})
            if sum(len(table.names) for table in node_states) < len(names):
                there = {name for table in node_states for name in table.names}
                node_states += session.saved_of(set(names) - there)
        arrays = {
            **half.dump(session.state, places),
            **session.buffers_sent,
            **session.gaps.dump(places),
            **session.steps.dump(),
        }
        tasks: dict[str, bytes] = {}
        if isinstance(self.collector, Tasks):
            unfinished = self.collector.unfinished(session)
            entries, tasks = saved(unfinished, half.name, half.version)
            manifest |= {"tasks": entries, "uploads": session.uploads, "clock": session.clock}
        return Checkpoint(manifest, arrays, node_states, tasks)

    # ------------------------------------------------------------------ agents

    @property
    def private(self) -> bool:
        """Whether the agents' settings ask for privacy."""
        return means_privacy(self.half.settings())

    # ------------------------------------------------------------------ rounds

    @property
    def pending(self) -> Pending:
        """The round under way, or the last one (raises ``RunError`` before the first)."""
        if self._pending is None:
            raise RunError("no round is under way: call configure_train() first")
        return self._pending

    @property
    def failed_tries(self) -> int:
        """The number of failed tries of the round under way."""
        pending = self._pending
        return 0 if pending is None or pending.outcome.folded else len(pending.outcome.failed)

    @property
    def failed(self) -> Pending | None:
        """The round under way if it could not be folded, else None."""
        return self._pending if self._pending and self._pending.outcome.failures else None

    def open_round(self, number: int, grid: Grid) -> list[Message]:
        """Begin a round: enrol newcomers, choose participants, and return the messages to send.

        These are steps 1 to 3. `collect` sends the messages and waits; `close_round` folds the
        uploads and records the round.
        """
        begun = time.monotonic()
        newcomers = enrol_newcomers(self.half, self.options, self.session, grid)
        waited = time.monotonic() - begun
        self._pending = self._choose(number, newcomers)
        if isinstance(grid, EngineGrid):  # it may have waited for processes to start
            self._pending.used = waited
        return self._ask(self._pending, grid)

    def _choose(self, number: int, newcomers: Iterable[str]) -> Pending:
        """Choose the participants, and encode the broadcast for them."""
        failed, options, session = self._pending, self.options, self.session
        chosen = self.collector.choose(options, session, number)
        session.roster.changes.names.update(chosen)
        session.roster.compare_libraries(library_version())
        settings = encode_settings(self._settings_sent())
        turn = Turn(number, options.seed, self.collector.sweep(session))
        pending = Pending.begin(
            self.half, options, session, turn, tuple(chosen), settings, self.beside
        )
        pending.outgoing.notes += session.remarks
        session.remarks.clear()
        pending.outgoing.notes += [f"agent {name} joined" for name in newcomers]
        if failed is not None and not failed.outcome.folded:
            pending.carry_over(failed)
        return pending

    def _settings_sent(self) -> dict[str, Any]:
        """Return the settings that the agents are sent in a round."""
        settings, session = {**self.half.settings(), "seed": self.options.seed}, self.session
        if self.options.agent_weights == "examples":
            agents = session.roster.agents
            counts = [agents[name].num_examples for name in session.roster.names]
            session.mean_examples = session.mean_examples or sum(counts) / len(counts)
        if session.mean_examples:
            settings[MEAN_EXAMPLES] = session.mean_examples
        if session.pooled_weight:
            settings[POOLED_WEIGHT] = session.pooled_weight
        if self.options.folds_old:
            settings[ARRIVAL_TIMES] = True
        if session.encoding_sent:
            settings[ENCODING] = session.encoding_sent
        return settings

    def _ask(self, pending: Pending, grid: Grid) -> list[Message]:
        """Return the messages of a round to the agents that the grid does not compute at once."""
        names = self.collector.open(pending)
        if working_together(self.half, grid) is None:
            remaining = names
        else:
            request = self._journal_request(names)
            pending.outcome.ask(names, 1)
            remaining = pending.work_together(grid, names)
            others = set(remaining)
            for name in others:
                pending.outcome.settle(name)
            asked = [name for name in names if name not in others]
            self._journal_request(asked, request)
            self._note_spent(asked)
        return list(pending.outgoing.messages_for(remaining).values())

    def collect(self, grid: Grid, messages: Iterable[Message]) -> list[Message]:
        """Send messages of the round and return all replies, those of retries included."""
        pending = self.pending
        names = {id(message): name for name, message in pending.outgoing.messages.items()}
        to_send: dict[str, Message] = {}
        for message in messages:
            if id(message) not in names:
                raise RunError(f"round {pending.round}: a message that is not one of the round's")
            to_send[names[id(message)]] = message

        def asking(names: Collection[str]) -> None:
            self._journal_request(names)
            pending.outcome.ask(names, max(1, len(names)) if self.collector.masked else 1)
            self._note_spent(names)

        asked = question(self.half, self.options, self.session)
        return self.collector.collect(pending, grid, to_send, asked, asking)

    def _note_spent(self, names: Iterable[str]) -> None:
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
            self.journal.add(request, Request(self.pending.round, recipients, agents, settings))
        return request

    def try_again(self, few: TooFewError, grid: Grid) -> list[Message]:
        """Pause after a failed try of the round, and return the messages of the next try.

        An agent whose upload in clear was accepted is not asked again, nor is one of a private run
        whose task came to nothing (`Pending.in_vain`).

        Raises
        ------
        TooFewError
            The given one, if the run's patience is over or there is no agent to wait for.
        InVainError
            If each agent was charged for a task, and no upload of the run was ever folded.
        """
        pending = self.pending
        pause = pending.pause(time.monotonic())
        if not pause or self.stopping.is_set():
            ended = pending.explained(few)
            self.session.spent.clear()  # who plays a further round decides so
            raise ended
        log.warning("%s; tried again in %.3g s", few, pause)
        if not self.stopping.wait(pause):
            self.before_try()
        if self.stopping.is_set():
            raise few
        pending.begin_again()
        enrol_keyless(self.half, self.options, self.session, grid, pending.chosen)
        names = self.collector.reopen(pending)
        if names is None:
            return self.open_round(pending.round, grid)
        return list(pending.outgoing.messages_for(names).values())

    def close_round(self, replies: Mapping[str, Reply]) -> Round:
        """Accept or drop each reply, fold the accepted ones, and record the round.

        Raises
        ------
        TooFewError
            If fewer uploads than ``min_agents`` (or than agents were chosen) could be folded.
        RunError
            If the round is folded already.
        """
        pending = self.pending
        if pending.outcome.folded:
            raise RunError(f"round {pending.round}: its uploads have been combined already")
        self.folding = True
        try:
            done = self.collector.close(pending, replies)
        except TooFewError:
            self.folding = False
            pending.outcome.unanswered.clear()
            raise
        self.folding = False
        pending.outcome.unanswered.clear()
        if done.participants:
            self.session.note_gain()
        if self.private:
            self.session.note_fruitless([done])
        pending.outgoing.end()
        self.arrays = ArrayRecord()  # freed before the next model is built
        self.arrays = self.session.restore(self.model)
        return done

    def count_unfinished(self) -> None:
        """Count as releases what agents were asked for at a run's end and nobody reads.

        These are the tasks that agents still have, and the requests of a round that was cut off:
        while its uploads were folded, a server may have sent what it made of them to others.
        """
        if self.folding:
            self.session.state = self.half.resumed(self.session.state, [self.pending.round])
        roster, noises = self.session.roster, self.session.noises
        tasks = self.collector.unfinished(self.session)
        left = [(name, task.version, 1) for name, task in tasks.items()]
        if self._pending is not None:
            asked = self._pending.outcome.unanswered.items()
            round_ = self._pending.round
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
    if half.masked:
        return MaskedSums()
    if options.asynchronous or options.late_replies == "fold" or options.speeds:
        return Tasks(options)
    return ClearUploads()


def _when_folded(options: RunOptions) -> dict[str, Any]:
    """Return the keys that say when uploads are folded; the cap of uploads may change."""
    keys = {**keys_of(AsynchronySettings), **keys_of(SpeedSettings)}
    values = {key.name: getattr(options, field) for field, key in keys.items()}
    return {name: value for name, value in values.items() if name != "max-uploads"}


def _stable_repr(part: Any) -> str:
    """Return the repr of a part in one line, without addresses: the same in every process."""
    return one_line(re.sub(r" at 0x[0-9a-f]+", "", repr(part)))
