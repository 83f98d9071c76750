"""Privacy-critical: the local work of many agents of one process, done together.

An agent's round is cheap beside the messages that it takes. Agents whose problems are of one
`stack_key` and who are asked the same thing are kept as a block: their states are rows of tables,
their local work one call of their half on these rows, and neither an instruction nor an upload is
a message of its own. Everything that `Participant` promises of a message holds for a row: it is
screened and charged by the same `Guard`, once for all rows of one account, and its noise is that of
the release that was charged. Who is refused, and nobody else, is asked by message and says so
itself. Nobody is in a block whose node has rules or a state file, nor in a run that masks its
uploads.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from privet.privacy import Facts, NoCertificateError
from privet.privacy.perturb import Perturbers
from privet.problems import LinearModel, Problem
from privet.problems.stacks import Stack, stack_key
from privet.wire import AGENT_RECORD, RECORD, pack
from privet.wire.contract import Instruction, agent_record, read_instruction
from privet.wire.dense import digests
from privet.wire.errors import one_line
from privet.wire.records import record_dict

from .base import Participant, agent_name
from .guard import Guard, Spent, checked_settings, node_rules, require_tame, require_vectors
from .half import Arrays, Half, Local, Vector
from .inputs import StackedStreams
from .masking import require_agreement
from .state import AgentState, read_state, state_path, write_state

log = logging.getLogger("flwr.privet")

BLOCK_BYTES = 1 << 19
"""Bytes of a block's features: its local steps find them in the cache."""
FEWEST = 4
"""Agents below which a block gains nothing."""
MOST_ROWS = 2048
"""Agents of a block at most."""
MOST_DRAWS = 1 << 22
"""Draws of charged noise that a block holds at most."""

Places = NDArray[np.intp]
Tags = NDArray[np.int64]


class Trained(NamedTuple):
    """What agents of a block would have sent, one row each.

    Attributes
    ----------
    places : array (k,) of int
        Which of the agents that were asked.
    upload : dict of str to array (k, d)
    digests : array (k,) of uint64
    num_examples : array (k,) of int
    spent : list of Spent
        What each has cost; agents of one account share it.
    """

    places: Places
    upload: dict[str, Vector]
    digests: NDArray[np.uint64]
    num_examples: NDArray[np.int64]
    spent: list[Spent]


class Cohort:
    """The agents of one process that can work together.

    Parameters
    ----------
    participant : Participant
        Who handles their messages.
    contexts : mapping of node id to Context
        A state is in its context, or in a block until ``release``.
    """

    def __init__(self, participant: Participant, contexts: Mapping[int, Context]) -> None:
        self._participant, self._contexts = participant, contexts
        self._blocks: list[_Block] = []
        self._where: dict[int, tuple[int, int] | None] = {}
        self._run = ("", "", "")
        self._alone: set[Half] = set()

    def train(
        self,
        shared: ConfigRecord,
        nodes: Sequence[int],
        tags: Tags,
        states: Mapping[str, Vector] | None,
    ) -> list[Trained]:
        """Do a round's local work of those of these agents who can do it together.

        Parameters
        ----------
        shared : ConfigRecord
            What all are told.
        nodes : sequence of int
        tags : array of int
            The round of the upload last accepted from each.
        states : mapping of str to array (k, d) or (d,), optional
            What they go on from; None for what they hold after the round of their tag.
        """
        asked = read_instruction(record_dict({RECORD: shared, AGENT_RECORD: agent_record(0)}))
        if asked.roster:
            return []
        self._place(asked, nodes)
        where = [self._where[node] or (-1, 0) for node in nodes]
        block, rows = np.array(where, np.intp).reshape(-1, 2).T
        done = []
        verified: set[Half] = set()
        for number in np.unique(block[block >= 0]).tolist():
            one = self._blocks[number]
            if one.half in self._alone:
                continue
            places = np.flatnonzero(block == number)
            given = None
            if states is not None:
                given = {k: v[places] if v.ndim > 1 else v for k, v in states.items()}
            broadcast = self._participant.broadcast(asked, private=one.half.private)
            try:
                trained = one.train(
                    asked,
                    places,
                    rows[places],
                    tags[places],
                    given,
                    broadcast,
                    verify=one.half not in verified,
                )
            except Exception as error:  # each agent then says itself what is wrong
                log.warning("%s: agents work one by one: %s", asked.protocol, one_line(str(error)))
                self._alone.add(one.half)
                continue
            if trained is not None:
                verified.add(one.half)
                done.append(trained)
        return done

    def release(self, nodes: Iterable[int] | None = None, *, keep: bool = False) -> None:
        """Put states back into the contexts, all of them or those of some nodes.

        They are read from there again unless they are kept as well.
        """
        for node in self._where if nodes is None else nodes:
            where = self._where.get(node)
            if where is not None:
                self._blocks[where[0]].release([where[1]], keep=keep)

    # ------------------------------------------------------------------ blocks

    def _place(self, asked: Instruction, nodes: Sequence[int]) -> None:
        """Give every agent its place in a block, or None if it is to be asked by message."""
        # Of every run anew: another one may have left an agent a ledger.
        run = (asked.experiment, asked.protocol, asked.settings)
        if run != self._run:
            self.release()
            self._blocks, self._where, self._run = [], {}, run
        asked_now = set(nodes)
        if self._where.keys() >= asked_now:
            return
        # Those as well that are asked in a later round: blocks are to be large.
        known = self._participant.has_problem
        new = [
            node
            for node, context in self._contexts.items()
            if node not in self._where and (known(context) or node in asked_now)
        ]
        settings = checked_settings(asked.settings)
        groups: dict[Hashable, list[_Member]] = {}
        for node in new:
            self._where[node] = None
            member = self._member(asked, settings, node)
            if member is not None:
                half = member.half
                told = member.facts if half.private else None  # agents that are charged the same
                key = (id(half), told, stack_key(member.problem))
                groups.setdefault(key, []).append(member)
        for group in groups.values():
            if len(group) < FEWEST:
                continue
            size = cast("LinearModel[Any]", group[0].problem).features.nbytes
            rows = min(MOST_ROWS, max(1, BLOCK_BYTES // size))
            if draws := _draws(group[0], asked.round):
                rows = min(rows, max(1, MOST_DRAWS // draws))
            for start in range(0, len(group), rows):
                self._add(group[start : start + rows])
        alone = sum(self._where[node] is None for node in new)
        if alone:
            log.info("%d of %d agents work one by one, by message", alone, len(new))

    def _add(self, members: list[_Member]) -> None:
        block = _Block(members, self._run[0], checked_settings(self._run[2]))
        if not block.stack.agrees():
            return
        for row, member in enumerate(members):
            self._where[member.node] = (len(self._blocks), row)
        self._blocks.append(block)

    def _member(self, asked: Instruction, settings: Mapping[str, Any], node: int) -> _Member | None:
        context = self._contexts.get(node)
        try:
            if context is None or state_path(context) is not None:
                return None
            rules, name = node_rules(context), agent_name(context)
            if rules.limited or settings.get("secure-sum", False):
                return None
            require_agreement(context, asked, masked=False)
            half, problem, facts = self._participant.prepared(asked, context)
            Guard(context, rules, settings, name, asked.round).screen(half)
        except Exception:  # which the agent says itself when it is asked by message
            return None
        if not half.stacks or stack_key(problem) is None:
            return None
        return _Member(node, name, context, half, problem, facts)


def _draws(member: _Member, round_: int) -> int:
    """Return how many draws of charged noise an agent takes at once."""
    try:
        charged = member.half.release(member.facts, round_).draws * member.facts.dim
    except NoCertificateError:  # a refusal, or noise that is seeded
        return 0
    return min(charged, MOST_DRAWS)


class _DiffersError(Exception):
    """A half does not give on rows what it gives alone."""


class _Member(NamedTuple):
    node: int
    name: str
    context: Context
    half: Half
    problem: Problem
    facts: Facts


class _Block:
    """Agents of one half and one stack, and their states: rows of tables."""

    def __init__(
        self, members: Sequence[_Member], experiment: str, settings: Mapping[str, Any]
    ) -> None:
        self.members = members
        self._settings = settings
        self.half = members[0].half
        self.stack = Stack([member.problem for member in members])
        self._names = tuple(member.name for member in members)
        self._num_examples = np.array([member.facts.num_examples for member in members])
        self._experiment = experiment
        self._here = np.zeros(len(members), bool)
        # Of the last round that each agent took part in, and of what it went on from then.
        self._now: dict[str, Vector] = {}
        self._before: dict[str, Vector] = {}
        self._tags = np.zeros((2, len(members)), np.int64)
        # The account of each, and whether every round since it began was charged.
        self._ledgers = [""] * len(members)
        self._covered = np.zeros(len(members), bool)

    def train(
        self,
        asked: Instruction,
        places: Places,
        rows: Places,
        tags: Tags,
        states: Mapping[str, Vector] | None,
        broadcast: Mapping[str, Vector],
        *,
        verify: bool,
    ) -> Trained | None:
        """Do the local work of some rows and keep their new states.

        Raises
        ------
        _DiffersError
            If the first row, where it is to be verified, is not what its agent gives alone.
        """
        held = self._held(rows, tags) if states is None else self._accounts(rows)
        charged = self._charged(asked.round, rows)
        held &= [one is not None for one in charged]
        if not held.any():
            return None
        spent = cast("list[Spent]", charged)
        if not held.all():
            places, rows, tags = places[held], rows[held], tags[held]
            spent = [spent[place] for place in np.flatnonzero(held).tolist()]
            if states is not None:
                states = {k: v[held] if v.ndim > 1 else v for k, v in states.items()}
        whole = len(rows) == len(self.members) and bool((np.diff(rows) == 1).all())
        shape = (len(rows), self.stack.dim)

        def stacked(array: Vector) -> Vector:
            return np.broadcast_to(array, shape) if array.shape == shape[1:] else array

        if states is not None:
            base = {name: np.array(stacked(array)) for name, array in states.items()}
        elif whole:
            base = self._now
        else:
            base = {name: table[rows] for name, table in self._now.items()}
        first, problem = self.members[rows[0]], self.stack.models[rows[0]]
        own = {name: array[0] for name, array in base.items()}
        if self.half.private:
            require_tame(base.values())
            for arrays in (broadcast, own):
                require_vectors(arrays, problem)
        streams = StackedStreams(
            int(self._settings.get("seed", 0)),
            "",
            asked.round,
            self._names if whole else tuple(self._names[row] for row in rows.tolist()),
        )
        guard = self._guard(asked.round)
        noise = Perturbers(
            spent[0].noise.release,
            len(rows),
            lambda: [guard._replace(agent=name).source() for name in streams.agents],
            first.facts,
        )
        local = self.half.local_update(
            base,
            {name: stacked(array) for name, array in broadcast.items()},
            cast(Any, self.stack if whole else self.stack.take(rows.tolist())),
            streams,
            noise,
        )
        noise.settle()
        if verify:
            stream = streams.each()[0]
            alone = self.half.local_update(own, broadcast, problem, stream, noise.first())
            _require_same(local, alone, len(rows))
        self._keep(rows, whole, asked.round, tags, base, local.state)
        begun = states is not None  # from what the server knows
        self._covered[rows] = spent[0].covered and (begun | self._covered[rows])
        for row, one in zip(rows.tolist(), spent, strict=True):
            self._ledgers[row] = one.ledger
        return Trained(
            places,
            dict(local.upload),
            digests(local.agreed),
            self._num_examples[rows],
            spent,
        )

    def release(self, rows: Iterable[int], *, keep: bool = False) -> None:
        """Write the states of rows into their contexts; the rows hold them no more, or still."""
        for row in rows:
            if not self._here[row]:
                continue
            self._here[row] = keep
            now, before = self._tags[:, row].tolist()
            if now != before:  # else it came from there
                states = tuple(
                    pack({name: table[row] for name, table in tables.items()})
                    for tables in (self._before, self._now)
                )
                account = self._ledgers[row], bool(self._covered[row])
                state = AgentState(self._experiment, (before, now), states, *account)
                write_state(self.members[row].context, state)

    def _guard(self, round_: int) -> Guard:
        """Return what stands before a round: the same for all, but for the name of the agent."""
        first = self.members[0]
        return Guard(first.context, node_rules(first.context), self._settings, first.name, round_)

    def _charged(self, round_: int, rows: Places) -> list[Spent | None]:
        """Charge a reply of each row; None where that is refused, which each says by message.

        Nothing is written before the work is done, and no rule of a node is asked: those who have
        any are not here.
        """
        guard, facts = self._guard(round_), self.members[0].facts
        found: dict[str, Spent | None] = {}
        texts = [self._ledgers[row] for row in rows.tolist()]
        for text in dict.fromkeys(texts):
            try:
                found[text] = guard.charge(self.half, facts, text)
            except Exception:
                found[text] = None
        return [found[text] for text in texts]

    def _accounts(self, rows: Places) -> NDArray[np.bool_]:
        """Bring the accounts of rows that begin here; return that all of them can."""
        for row in rows[~self._here[rows]].tolist():
            kept = read_state(self.members[row].context)
            self._ledgers[row], self._covered[row] = kept.ledger, kept.covered
        return np.ones(len(rows), bool)

    def _held(self, rows: Places, tags: Tags) -> NDArray[np.bool_]:
        """Bring the states after these rounds into the tables; return which rows have one."""
        self.release(rows[self._here[rows] & (self._tags[0, rows] != tags)].tolist())
        held = self._here[rows].copy()
        for place in np.flatnonzero(~held).tolist():
            row, tag = int(rows[place]), int(tags[place])
            kept = read_state(self.members[row].context)
            self._ledgers[row], self._covered[row] = kept.ledger, kept.covered
            state = kept.at(self._experiment, tag)
            if state is None:
                continue
            if not self._here.any():
                self._now = self._tables(state)
            if state.keys() != self._now.keys():
                continue
            for name, array in state.items():
                self._now[name][row] = array
            self._here[row] = held[place] = True
            self._tags[:, row] = tag
        return held

    def _keep(
        self, rows: Places, whole: bool, round_: int, tags: Tags, base: Arrays, new: Arrays
    ) -> None:
        """Keep the states of a round and what it began with, in arrays of the block's own."""
        if whole:
            self._now = {name: _own(array, base) for name, array in new.items()}
            self._before = dict(base)
        else:
            if (new.keys(), base.keys()) != (self._now.keys(), self._before.keys()):
                others = np.setdiff1d(np.flatnonzero(self._here), rows)
                self.release(others.tolist())
                self._now, self._before = (
                    self._tables({name: array[0] for name, array in arrays.items()})
                    for arrays in (new, base)
                )
            for tables, arrays in ((self._before, base), (self._now, new)):
                for name, array in arrays.items():
                    tables[name][rows] = array
        self._tags[0, rows], self._tags[1, rows] = round_, tags
        self._here[rows] = True

    def _tables(self, state: Arrays) -> dict[str, Vector]:
        """Return empty tables for the states of all members, like this one."""
        count = len(self.members)
        return {name: np.zeros((count, *a.shape), a.dtype) for name, a in state.items()}


def _own(array: Vector, base: Arrays) -> Vector:
    """Return an array that may be written into without changing what a round began with."""
    shared = any(np.may_share_memory(array, before) for before in base.values())
    return array.copy() if shared or not array.flags.writeable else array


def _require_same(together: Local, alone: Local, count: int) -> None:
    """Raise `_DiffersError` unless the first of ``count`` rows has the bits of the one alone."""
    for rows, one in (
        (together.state, alone.state),
        (together.upload, alone.upload),
        ({"agreed": together.agreed}, {"agreed": alone.agreed}),
    ):
        if rows.keys() != one.keys():
            raise _DiffersError("arrays of other names")
        for name, array in one.items():
            stack = rows[name]
            if stack.shape != (count, *array.shape) or stack.dtype != array.dtype:
                raise _DiffersError(f"{name} is of shape {stack.shape} {stack.dtype}")
            if stack[0].tobytes() != array.tobytes():
                raise _DiffersError(f"{name} has other bits")
