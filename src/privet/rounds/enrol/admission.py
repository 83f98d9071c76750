"""Enrolment: agents are asked for their names, and those that fit get a place in the run.

Before round 1 all connected nodes are asked (`enrol_connected`), before every further round those
that have come since (`enrol_newcomers`). An agent that fits has a row in the state from then on; a
node that takes the place of another one begins with the row of a newcomer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from privet.core import ConfigError, RunError
from privet.core.errors import HopelessError, listed, one_line
from privet.wire import sort_names
from privet.wire.contract import encode_settings, means_privacy

from ..account import expected_release, is_above_target, with_lost
from ..calibration import spent_of
from ..gaps import UNKNOWN, Gaps
from ..half import ServerHalf, grouped
from ..options import RunOptions
from ..roster import (
    ENROL_PATIENCE,
    ENROL_TIMEOUT,
    LEAST_ENROL_TIMEOUT,
    Question,
    in_simulation,
    recovery_of,
)
from ..session import Session
from ..together import WorksTogether, by_message
from .fitness import uncertified_agents, unfit
from .waiting import wait_for_nodes

log = logging.getLogger("flwr.privet")


def question(half: ServerHalf[Any], options: RunOptions, session: Session) -> Question:
    """Return the enrolment question that every node answers before it takes part."""
    masked, private = half.masked, means_privacy(half.settings())
    return Question(
        half.name,
        half.version,
        session.experiment,
        partial(unfit, half, options, session),
        session.adopt,
        quiet=private or masked,
        secure_sum=masked,
        fixed=private,
        encoding=session.encoding.text,
        row_norm=session.row_norm,
        open=not session.settled,
        settings=encode_settings(half.settings()) if half.agent.reads_tables else "",
        accounts=half.agent.private or half.terms.target_epsilon > 0,
    )


# ------------------------------------------------------------------ before the first round


def enrol_connected(
    half: ServerHalf[Any],
    options: RunOptions,
    session: Session,
    grid: Grid,
    stopping: threading.Event,
    patience: float = 0.0,
) -> None:
    """Enrol the connected agents; wait ``patience`` for enough, or until ``stopping`` is set.

    Raises
    ------
    RunError
        If fewer than ``min_agents`` are enrolled.
    """
    roster = session.roster
    roster.recovery = recovery_of(options.recover_by_name, grid)
    if half.masked and roster.recovery == "no" and not half.restarts:
        # An agent's past uploads are in the sums, from which a server cannot remove them.
        roster.recovery = "node-key"
    end = time.monotonic() + patience
    wait = max(options.wait_timeout, ENROL_PATIENCE)
    roster.enrol_all(grid, question(half, options, session), wait)
    if not session.settled:
        others = session.agree(in_simulation(grid))
        roster.settle(grid, others, question(half, options, session), wait)
    while len(roster.agents) < options.min_agents and time.monotonic() < end:
        if stopping.wait(min(1.0, patience)):
            break
        roster.refresh(grid, question(half, options, session), ENROL_TIMEOUT)
    roster.silences = 0
    _require_enough(options, session)
    if isinstance(grid, WorksTogether) and (why := by_message(half)):
        log.info("agents work one by one, by message: %s", why)


def turn_away_uncertified(half: ServerHalf[Any], options: RunOptions, session: Session) -> None:
    """Turn away agents of whose releases nothing is proven (raises ``RunError`` if too few)."""
    for name, why in uncertified_agents(half, options, session).items():
        session.roster.turn_away(name, why)
    _require_enough(options, session)


def _require_enough(options: RunOptions, session: Session) -> None:
    """Raise ``RunError`` where fewer agents than ``min_agents`` are enrolled."""
    roster = session.roster
    if len(roster.agents) < options.min_agents:
        reasons = listed(roster.rejected.values()) or ("" if roster.agents else "none answered")
        # Where all are turned away, others will not come by themselves; one that is silent may.
        silent = roster.online - roster.rejected.keys()
        kind = RunError if silent or not roster.rejected else HopelessError
        raise kind(
            f"{len(roster.agents)} agents could be enrolled, below min-agents = "
            f"{options.min_agents}{reasons and f': {reasons}'}"
        )


def start_state(half: ServerHalf[Any], session: Session, state: Any = None) -> None:
    """Begin the session's state with a row for every agent that is enrolled.

    ``state`` replaces the half's own starting state.

    Raises
    ------
    ConfigError
        If the settings do not fit the model.
    """
    roster = session.roster
    if state is None:
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # reported as divergence
                state = half.initialise(session.start, len(roster.agents))
        except ValueError as error:  # as groups of h
            raise ConfigError(one_line(str(error))) from None
    session.state, session.gaps = state, Gaps(len(roster.agents))
    roster.pop_restarted()  # everyone starts now
    for name in roster.names:
        _place(half, session, name)


# ------------------------------------------------------------------ before a further round


def enrol_newcomers(
    half: ServerHalf[Any], options: RunOptions, session: Session, grid: Grid
) -> list[str]:
    """Enrol nodes that connected since the last round, and return the new names.

    An agent whose node's ledger file holds more than the run's account of it is left out if that
    passes the target.
    """
    roster = session.roster
    if least := options.min_available_nodes:
        wait_for_nodes(grid, least, least, options.wait_timeout)
    # Where nodes come and go and never answer, the others wait for them less each time.
    patience = max(ENROL_TIMEOUT / 2.0**roster.silences, LEAST_ENROL_TIMEOUT)
    timeout = min(patience, options.round_timeout)
    new = roster.refresh(grid, question(half, options, session), timeout)
    take_in(half, session, new)
    for name in sort_names(roster.join_stated(half.terms.delta)):
        spent = roster.agents[name].spent(half.terms.delta)
        if is_above_target(half, spent):
            roster.leave_out(name, spent_of(spent, half.terms.target_epsilon))
    return new


def take_in(half: ServerHalf[Any], session: Session, new: Iterable[str]) -> None:
    """Admit newcomers, and reset the rows of agents whose place another node took."""
    if session.roster.stating:
        _compare_ledgers(session)
    for name in new:
        admit(half, session, name)
    for name in session.roster.pop_restarted():
        renew(half, session, name)


def _compare_ledgers(session: Session) -> None:
    """Name the agents whose ledger file is shorter than the run's record; the record counts."""
    folded = Counter(name for done in session.history for name in done.participants)
    if older := session.roster.shorter(folded):
        session.remark(
            "the ledger files of these agents hold fewer releases than this run has folded of "
            "theirs, as an older copy does; the run's account counts: "
            f"{listed(sort_names(older))}"
        )


def admit(half: ServerHalf[Any], session: Session, name: str) -> None:
    """Insert a newcomer into the state."""
    position = session.roster.positions[name]
    session.roster.changes.everything = True
    session.state = half.admit(session.state, position, session.start)
    session.gaps.insert(position)
    _begin_row(half, session, name)


def renew(half: ServerHalf[Any], session: Session, name: str) -> None:
    """Reset the row of an agent whose place another node took: it starts as a newcomer.

    The task of the node that is gone is withdrawn, and counts as released under this name. A server
    of sums has no rows.
    """
    position = session.roster.positions[name]
    session.roster.changes.everything = True
    task, agent = session.tasks.pop(name, None), session.roster.agents[name]
    if task is not None:
        release = expected_release(half, agent, task.version, 1, session.noises)
        if release is not None:
            agent.former = (*agent.former, with_lost("", release))
    if not half.masked:
        session.state = half.renew(session.state, position, session.start)
    session.gaps.forget(position)
    _begin_row(half, session, name)


def _begin_row(half: ServerHalf[Any], session: Session, name: str) -> None:
    """Complete a newcomer's row; nothing is known of its part of the residual."""
    session.steps.place(half, session.state)
    session.state.residual = UNKNOWN
    _place(half, session, name)


def _place(half: ServerHalf[Any], session: Session, name: str) -> None:
    """Put an agent into its unit, if the half divides the agents into units."""
    units = grouped(half)
    if units is not None:
        position, unit = session.roster.positions[name], session.roster.agents[name].unit
        session.state = units.place(session.state, position, name, unit)


# ------------------------------------------------------------------ before another try


def enrol_keyless(
    half: ServerHalf[Any],
    options: RunOptions,
    session: Session,
    grid: Grid,
    names: Iterable[str],
) -> None:
    """List the connected nodes anew, and ask agents that lost their key of a secure sum for one."""
    roster = session.roster
    roster.online = frozenset(grid.get_node_ids())
    lost = [
        name
        for name in names
        if half.masked and roster.connected(name) and not roster.agents[name].public_key
    ]
    timeout = min(ENROL_TIMEOUT, options.round_timeout)
    roster.ask_again(grid, lost, question(half, options, session), timeout)
