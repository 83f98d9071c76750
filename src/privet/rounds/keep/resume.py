"""Privacy-critical: the way back into a run from its checkpoint, and what it charges.

A resume takes over the state between two rounds, enrols the agents that are there, and counts what
agents were asked for since as released. It goes on only if it requests what the run did: whatever
determines what is computed, as the user gave it (`requested`).
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from privet.agents.state_tables import StateTable, with_ledgers
from privet.agents.terms import MEAN_EXAMPLES, POOLED_WEIGHT
from privet.core import PrivetError, RunError
from privet.core.errors import HopelessError, listed, one_line
from privet.core.key import keys_of, read, shown, values_of
from privet.core.library import LIBRARY_VERSION, library_version
from privet.data.agreement import Agreement
from privet.wire import sort_names
from privet.wire.contract import decode_settings, encode_settings, means_privacy
from privet.wire.payload import BUFFERS

from ..account import TARGET, expected_release, keep_unclaimed, upload_fault, with_lost
from ..asynchrony import AsynchronySettings
from ..calibration import calibrated
from ..enrol.admission import enrol_connected, question, take_in
from ..enrol.fitness import leave_out, uncertified_agents, unreadable_agents
from ..enrol.waiting import wait_for_return
from ..exchange import EngineGrid
from ..gaps import SAVED, Gaps
from ..half import ServerHalf
from ..open_settings import log_misfits, with_open_settings
from ..options import RunOptions
from ..robust import RobustSettings
from ..roster import EnrolledAgent, Roster, from_columns
from ..server_steps import SAVED as STEPS_SAVED
from ..server_steps import ServerStepSettings
from ..session import Round, Session
from ..speeds import SpeedSettings
from ..task import charged, restored
from .checkpoint import Checkpoint
from .journal import Request

log = logging.getLogger("flwr.privet")


def requested(half: ServerHalf[Any], options: RunOptions) -> dict[str, Any]:
    """Return the configuration that determines what is computed, by name.

    It is to be that of the user's half: before open settings are resolved or noise is calibrated.
    """
    return {
        **dict(options.config),
        **values_of(half),
        "h": _stable_repr(getattr(half, "h", None)),
        **half.settings(),
        "participation": _stable_repr(options.participation),
        **_when_folded(options),
        "seed": options.seed,
        **values_of(read(ServerStepSettings, values_of(options))),
        **values_of(read(RobustSettings, values_of(options))),
        "secure-sum": half.masked,
        "agent-weights": options.agent_weights,
    }


def _when_folded(options: RunOptions) -> dict[str, Any]:
    """Return the keys that say when uploads are folded; the cap of uploads may change."""
    keys = {**keys_of(AsynchronySettings), **keys_of(SpeedSettings)}
    values = {key.name: getattr(options, field) for field, key in keys.items()}
    return {name: value for name, value in values.items() if name != "max-uploads"}


def _stable_repr(part: Any) -> str:
    """Return the repr of a part in one line, without addresses: the same in every process."""
    return one_line(re.sub(r" at 0x[0-9a-f]+", "", repr(part)))


def session_of(saved: Checkpoint, arrays: ArrayRecord) -> Session:
    """Return the session of a checkpoint's run, without its state (raises ``HopelessError``)."""
    with _as_damage():
        return Session.of(str(saved.manifest["experiment"]), arrays)


def resumed(
    half: ServerHalf[Any],
    options: RunOptions,
    session: Session,
    grid: Grid,
    saved: Checkpoint,
    asked: Mapping[str, Any],
    stopping: threading.Event,
) -> tuple[ServerHalf[Any], int | None]:
    """Restore a session, and enrol the agents that are there now.

    Agents that are missing after ``wait_timeout`` are absent. While fewer than ``min_agents`` are
    there, it waits as long as there is ``patience``; ``stopping`` ends the wait.

    Parameters
    ----------
    session : Session
        As ``session_of`` returns it; it has the state of the checkpoint afterwards.
    asked : mapping
        What is ``requested`` now.

    Returns
    -------
    ServerHalf, int or None
        The half to go on with, and the last round, as `calibrated` returns them.

    Raises
    ------
    RunError
        If the checkpoint is damaged or of a run that computes something else, or if too few agents
        came back.
    """
    with _as_damage():
        half, agents = _restored(half, session, saved, asked)
        session.roster.note_saved(agents)
        asked_since = _add_asked(agents, saved.requests)
        if isinstance(grid, EngineGrid):
            if saved.node_states:
                grid.restore_node_states(saved.node_states)
            session.tasks = restored(saved.manifest.get("tasks", []), saved.tasks)
    _enrol_again(half, options, session, grid, agents, asked_since, stopping)
    half = with_open_settings(half, options, session)
    log_misfits(half, options, session)
    if means_privacy(half.settings()):
        _charge_lost(half, session, grid, saved)
    leave_out(session, uncertified_agents(half, options, session))
    half, last = calibrated(half, session, options)  # of absent agents as well
    # Of noise that was not set before.
    leave_out(session, uncertified_agents(half, options, session))
    log.info("resumed after round %d with %d agents", session.round, len(session.roster.agents))
    if options.rounds is not None and session.round >= options.rounds:
        log.info("no round is left up to %d: ask for more rounds to go on", options.rounds)
    return half, last


@contextmanager
def _as_damage() -> Iterator[None]:
    """Report what a manifest lacks, or has of another kind, as a damaged checkpoint."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, PrivetError):
            raise
        why = one_line(repr(error))
        raise HopelessError(f"resume: the checkpoint is damaged ({why})") from None


def _restored(
    half: ServerHalf[Any], session: Session, saved: Checkpoint, asked: Mapping[str, Any]
) -> tuple[ServerHalf[Any], dict[str, EnrolledAgent]]:
    """Take over round, history and state of a checkpoint; return the half and its agents.

    Raises
    ------
    RunError
        If they belong to another run, or do not fit together.
    """
    manifest = saved.manifest
    _require_same(half, session, manifest, asked)
    session.round, session.history = int(manifest["round"]), saved.history
    if "initial" in manifest:
        session.initial = Round.from_dict(manifest["initial"])
    session.settings_before = dict(manifest["settings"])
    session.rounds_before = int(manifest.get("rounds") or 0)
    if half.noise_key:
        before = float(manifest["settings"][half.noise_key])
        session.noises = {before, *map(float, manifest.get("noises", ()))}
    session.mean_examples = float(manifest.get(MEAN_EXAMPLES, 0.0))
    session.pooled_weight = float(manifest.get(POOLED_WEIGHT, 0.0))
    session.encoding = Agreement(str(manifest.get("encoding", "")))
    session.encoding_sent = str(manifest.get("encoding-sent", ""))
    session.settled = bool(session.encoding.text)
    session.fix_arrays(manifest.get("trained", session.layout.names), manifest.get("buffers", ()))
    session.tied = manifest.get("tied")
    session.uploads = int(manifest.get("uploads", 0))
    session.clock = float(manifest.get("clock", 0.0))
    arrays = dict(saved.arrays)
    session.statistics = arrays.pop(BUFFERS, None)
    half = half.with_settings(
        {key: manifest["settings"][key] for key in half.settings() if key != TARGET}
    ).variant()
    gaps = {name: arrays.pop(name) for name in list(arrays) if name.startswith(SAVED)}
    stepped = {name: arrays.pop(name) for name in list(arrays) if name.startswith(STEPS_SAVED)}
    session.state = half.load(arrays)
    session.steps.load(stepped, session.start)
    session.steps.place(half, session.state)
    model, start = half.model(session.state), session.start
    if (model.shape, model.dtype) != (start.shape, start.dtype):
        raise RunError(
            f"resume: the checkpoint's model has {model.size} parameters in {model.dtype}, "
            f"this run's {start.size} in {start.dtype}"
        )
    agents = from_columns(manifest["agents"])
    session.gaps = Gaps.load(gaps, len(agents))
    for name, row in half.rows(start).items():
        count = 0 if half.masked else len(agents)
        table, shape = saved.arrays.get(name), (count, *np.shape(row))
        if table is not None and table.shape != shape:
            raise RunError(
                f"resume: the checkpoint's table {name} has shape {table.shape}, not {shape}"
            )
    return half, agents


def require_protocol(half: ServerHalf[Any], manifest: Mapping[str, Any]) -> None:
    """Raise ``HopelessError`` if a checkpoint's manifest is of another algorithm, or version of it.

    This can be said before the run has begun anything.
    """
    protocol, version = manifest.get("protocol"), manifest.get("version")
    if (protocol, version) != (half.name, half.version):
        instead = "" if protocol == half.name else f": set algorithm = {protocol}"
        raise HopelessError(
            f"resume: the checkpoint is of {protocol} version {version}, "
            f"this run of {half.name} version {half.version}{instead}"
        )


def _require_same(
    half: ServerHalf[Any], session: Session, manifest: Mapping[str, Any], asked: Mapping[str, Any]
) -> None:
    """Raise ``RunError`` if a checkpoint is of a run that computes something else.

    Changes that are permitted are noted in the history.
    """
    require_protocol(half, manifest)
    if new := sorted(half.settings().keys() - manifest["settings"].keys()):
        raise HopelessError(
            f"resume: the checkpoint was written before there was {', '.join(new)}, and no default "
            "says what it did without: resume with the version that wrote it, or keep its model, "
            "model.npz beside it, for a new run"
        )
    before = manifest["asked"]
    changes = {
        key: f"{key} {shown(before[key])} -> {shown(asked[key])}"
        for key in asked
        if key in before and before[key] != asked[key]
    }
    if target := changes.pop(TARGET, ""):  # the noise of the rounds that are left follows it
        session.remark(f"resume: {target}")
    if changes:
        raise HopelessError(
            f"resume: the checkpoint is of another run: {', '.join(changes.values())}; ask "
            "for what it was, or begin a new run"
        )
    if (library := manifest[LIBRARY_VERSION]) != library_version():
        session.remark(f"resume: {LIBRARY_VERSION} {library} -> {library_version()}")


def _add_asked(agents: dict[str, EnrolledAgent], requests: Iterable[Request]) -> list[str]:
    """Add what the journal has of agents to those of a checkpoint; return the names of new ones.

    They enrolled, or stated other public numbers, after the checkpoint and were asked then.

    Raises
    ------
    HopelessError
        If nothing is known of an agent that was asked.
    """
    new = []
    for request in requests:
        for name, agent in (from_columns(request.enrolled) if request.enrolled else {}).items():
            if name not in agents:
                agents[name] = agent
                new.append(name)
            elif (stated := (agent.facts, agent.own)) not in agents[name].terms:
                agents[name].earlier += (stated,)
        if unknown := set(request.names) - agents.keys():
            names = listed(sort_names(unknown))
            raise HopelessError(
                f"resume: round {request.round} asked agents {names}, of whom neither the "
                "checkpoint nor the journal has the public numbers: what they have spent is not "
                "known"
            )
    return new


def _enrol_again(
    half: ServerHalf[Any],
    options: RunOptions,
    session: Session,
    grid: Grid,
    agents: Mapping[str, EnrolledAgent],
    asked_since: Iterable[str],
    stopping: threading.Event,
) -> None:
    """Wait for the agents of a checkpoint, and give those that are there their places.

    Those that have not come back stay in the roster, absent (raises ``RunError`` for too few).
    ``asked_since`` are the names of those of whom the checkpoint's state has nothing.
    """
    roster = session.roster
    least = max(options.min_agents, options.min_available_nodes)
    wait = options.wait_timeout, options.patience
    wait_for_return(grid, agents, options.wanted_nodes, least, *wait, stopping)
    roster.holders = {name: agent.node for name, agent in agents.items()}
    enrol_connected(half, options, session, grid, stopping, options.patience)
    new = roster.merge(agents, question(half, options, session))
    take_in(half, session, sort_names({*new, *asked_since}))
    keep_unclaimed(half, session)
    leave_out(session, unreadable_agents(half, options, session))
    if means_privacy(half.settings()) and options.unattended:
        session.note_fruitless(session.history)


def _charge_lost(half: ServerHalf[Any], session: Session, grid: Grid, saved: Checkpoint) -> None:
    """Count what agents of a private run were asked for since a checkpoint as released."""
    roster = session.roster
    put_back = saved.node_states if isinstance(grid, EngineGrid) else []
    lost = [*saved.requests, *_lost_tasks(half, session, saved)]
    if key := half.noise_key:
        sent = (decode_settings(request.settings) for request in saved.requests)
        session.noises.update(float(settings[key]) for settings in sent)

    def fault(agent: EnrolledAgent, ledger: str, version: int) -> str:
        enrolled = len(roster.agents)
        return upload_fault(half, agent, ledger, version, session.noises, enrolled=enrolled)

    with charged(session.tasks, half.name, half.version, roster, fault):
        changed = count_lost(half, roster, lost, put_back, session.noises)
    session.state = half.resumed(session.state, [request.round for request in saved.requests])
    for name in (name for request in saved.requests for name in request.names):
        roster.agents[name].tasks += 1  # those of the checkpoint are counted already
    if isinstance(grid, EngineGrid) and changed:
        grid.restore_node_states(changed)


def _lost_tasks(half: ServerHalf[Any], session: Session, saved: Checkpoint) -> Iterator[Request]:
    """Yield the requests of tasks that agents had at a checkpoint and whose result is lost.

    A task whose reply is known to be lost counts now, although it ends later: the account that is
    put back must hold it. `Task.counted` keeps it from counting twice.
    """
    settings = encode_settings(half.settings())
    for entry in saved.manifest.get("tasks", ()):
        name, version = str(entry["agent"]), int(entry["version"])
        task = session.tasks.get(name)
        if task is None or task.is_lost:
            yield Request(version, (name,), 1, settings)
        if task is not None:
            task.counted = task.is_lost


def count_lost(
    half: ServerHalf[Any],
    roster: Roster,
    requests: Iterable[Request],
    node_states: Sequence[StateTable],
    noises: Collection[float] = (),
) -> list[StateTable]:
    """Count the requests after a checkpoint as uploads that left and were lost.

    An agent that has kept its state reports them itself, and its next account replaces this one; an
    agent that has lost it is sent this one. If a node's ledger file holds more, that counts.
    ``node_states`` are states of the checkpoint that the engine has put back, which lack these
    uploads: returned are those that changed. ``noises`` are those that the run has asked for.
    """
    lost: set[str] = set()
    for request in requests:
        then = half.with_settings(decode_settings(request.settings))
        for name in request.names:
            agent = roster.agents[name]
            release = expected_release(then, agent, request.round, request.agents, noises)
            if release is not None:
                lost.add(name)
                roster.note_ledger(name, with_lost(agent.ledger, release))
    stated = roster.join_stated(half.terms.delta)
    if lost:
        agents = listed(sort_names(lost))
        log.warning("resume: lost uploads of agents %s count as released", agents)
    if stated:
        agents = listed(sort_names(stated))
        log.warning("resume: the ledgers of agents %s hold more than the checkpoint", agents)
    return with_ledgers(node_states, {name: roster.agents[name].ledger for name in lost | stated})
