"""Uploads in clear: the server reads every agent's and folds those it accepts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from privet.core import RunError
from privet.wire import sort_names
from privet.wire.contract import is_need_state

from ..exchange import EngineGrid, Reply
from ..roster import Question
from .accept import accept_reply, accept_rows, fold_accepted, of_together
from .ask import messages_for
from .collector import Collector
from .outcome import Folded, require
from .round import OpenRound

log = logging.getLogger("flwr.privet")

LEAST_TIMEOUT = 1.0
"""Seconds a second try has at least, however late the first replies were."""


class ClearUploads(Collector):
    """Collects uploads one by one; agents that lost their state get a second try with it."""

    def open(self, opened: OpenRound) -> list[str]:
        """Begin a round and return the agents to ask: the chosen ones that are not absent."""
        return [name for name in opened.chosen if name not in opened.tally.absent]

    def reopen(self, opened: OpenRound) -> list[str] | None:
        """Begin another try and return the agents to ask: those without an accepted upload.

        None if the round must be opened again, with newly enrolled nodes: if no upload was accepted
        so far (which loses nothing), or if too few agents are left and there are such nodes.
        """
        roster, uploads = opened.session.roster, opened.tally.uploads
        waiting = [name for name in opened.chosen if name not in uploads]
        opened.note_absent(waiting)
        here = [name for name in waiting if name not in opened.tally.absent]
        enough = min(opened.options.min_agents, len(opened.chosen))
        if not uploads or (len(uploads) + len(here) < enough and roster.has_strangers):
            return None
        return here

    def timeout(self, opened: OpenRound) -> float:
        """Return what is left of the round's timeout; a second at least, however late it is."""
        if opened.tally.tries == 0:
            whole = opened.options.round_timeout
            return min(whole, max(LEAST_TIMEOUT, whole - opened.tally.used))
        return max(LEAST_TIMEOUT, opened.deadline - time.monotonic())

    def retry(
        self, opened: OpenRound, replies: Sequence[Message], grid: Grid, question: Question
    ) -> dict[str, Message]:
        """Return messages, with their state, to the agents that replied that they do not hold it.

        No messages end the collecting. ``replies`` are all that came in this round.
        """
        if opened.tally.tries > 1:
            return {}
        need_state = [one for one in replies if one.has_content() and is_need_state(one.content)]
        if not need_state:
            return {}
        lost = opened.sort(need_state)
        return self.with_states(
            opened, grid, list(filter(lost.__contains__, opened.tally.messages))
        )

    def with_states(
        self, opened: OpenRound, grid: Grid, names: Sequence[str]
    ) -> dict[str, Message]:
        """Return messages to agents that lost their state, with it where the server knows it.

        What simulated agents alone knew is put back from the newest checkpoint, if that has it
        after the round that was accepted last; the account that goes with it is the run's, which
        holds lost replies too. Others start again by their half's rule.
        """
        session, half = opened.session, opened.half
        places, agents = session.roster.positions, session.roster.agents
        unknown = {
            name
            for name in names
            if half.recovery_of(session.state, places[name], session.start) is None
        }
        back: set[str] = set()
        if unknown and isinstance(grid, EngineGrid):
            tables = session.saved_of(unknown)
            back = {name for table in tables for name in table.names}
            try:
                grid.restore_node_states(tables)
            except RunError as error:
                log.warning("round %d: %s", opened.number, error)
                back = set()
        opened.tally.notes += [
            f"agent {name} was given its state of round {agents[name].tag} from the checkpoint"
            for name in names
            if name in back
        ]
        sent = messages_for(opened, [name for name in names if name in back])
        others = [name for name in names if name not in back]
        return sent | messages_for(opened, others, force=True)

    def take(self, opened: OpenRound, name: str, reply: Message) -> bool:
        """Accept or drop a reply as it comes."""
        known = name in opened.session.roster.positions
        if not known or not reply.has_content() or is_need_state(reply.content):
            return False
        with np.errstate(over="ignore", invalid="ignore"):  # of uploads that are refused then
            accept_reply(opened, name, Reply(reply.content), opened.tally.refused)
        return True

    def fold(self, opened: OpenRound, replies: Mapping[str, Reply]) -> Folded:
        """Accept or drop each reply, and fold the accepted ones.

        Raises
        ------
        TooFewError
            If fewer uploads than ``min_agents`` (or than agents were chosen) could be folded;
            accepted uploads stay in the round's tally for another try.
        """
        tally, places = opened.tally, opened.session.roster.positions
        failed = dict(tally.refused)
        together, tally.together = tally.together, []
        asked = {*tally.messages, *tally.missing, *replies} & places.keys()
        with np.errstate(over="ignore", invalid="ignore"):  # of uploads that are refused then
            for one in together:
                sent = opened.broadcast.sent_to_each(one.names)
                versions = [opened.number] * len(one.names)
                accept_rows(opened, of_together(opened, one, sent, versions), failed)
            for name in sorted(asked, key=places.__getitem__):
                if not (name in tally.absent or name in failed or name in tally.uploads):
                    accept_reply(opened, name, opened.reply(name, replies), failed)
        failures = {**tally.absent, **{name: failed[name] for name in sort_names(failed)}}
        for name, reason in tally.absent.items():
            opened.session.complain(opened.number, name, f"absent: {reason}")
        require(opened, len(tally.uploads), failures)
        opened.forget_messages()
        return Folded(fold_accepted(opened), failures)
