"""Privacy-critical: the local work of many agents of one process, in batches.

An agent's round is cheap compared with the messages that it takes. Agents with the same instruction
are kept as a block: their states are rows of tables, and no instruction or upload is a separate
message. Where the half takes rows and the problems share a `stack_key`, the local work of a block
is one call of its half; in other blocks it is one call per agent. Everything that `Participant`
promises of a message holds for a row: it is screened and charged by the same `Guard`, once for all
rows of one account, and its noise is that of the release that was charged. An agent whose release
is refused, and no other, leaves the block and is asked by message. Nodes with rules or a state
file, agents with a large model, and runs that mask their uploads are never batched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from privet.core import mapped
from privet.core.errors import one_line
from privet.core.files import state_path
from privet.kernel import Facts, NoiseSource, Perturber, Problem, Records, Release
from privet.kernel.door import Held
from privet.kernel.perturb import Perturbers, perturbers
from privet.kernel.round import AgentRound, Ended, View
from privet.kernel.streams import StackedStreams, Streams
from privet.problems import LinearModel
from privet.problems.stacks import Stack, stack_key
from privet.wire import AGENT_RECORD, RECORD, Enrolment
from privet.wire.contract import Instruction, agent_record, read_instruction
from privet.wire.dense import digests, joined_digest
from privet.wire.records import record_dict

from .base import Participant, agent_name
from .guard import Guard, ReplyCharge, checked_settings, node_rules, require_tame, require_vectors
from .half import Arrays, Half, Local, Vector
from .inputs import starting_rows
from .masking import require_agreement
from .pace import require_fixed_time
from .state import PRIVATE_RECORD, AgentState, read_state, write_state
from .state_tables import StateTable

log = logging.getLogger("flwr.privet")

BLOCK_BYTES = 1 << 22
"""Bytes of a block's features: its local steps find them in the cache (the third level's)."""
FEWEST = 4
"""Agents below which a stack gains nothing."""
LARGEST_MODEL = 1 << 18
"""Bytes of a model above which messages cost little beside the work."""
MOST_ROWS = 2048
"""Agents of a block at most."""
MOST_DRAWS = 1 << 22
"""Draws of charged noise that a block holds at most."""

Places = NDArray[np.intp]
Tags = NDArray[np.int64]


class ReplyCost(NamedTuple):
    """The cost that a reply states: the total so far at delta, a remark, the account."""

    epsilon: float
    delta: float
    note: str
    ledger: str


class Trained(NamedTuple):
    """The uploads of a block's agents, one row each.

    Attributes
    ----------
    places : array (k,) of int
        Positions among the chosen agents.
    upload : dict of str to array (k, d)
    digests : array (k,) of uint64
    num_examples : array (k,) of int
    costs : list of Cost
        Cost of each upload; agents of one account share the object.
    """

    places: Places
    upload: dict[str, Vector]
    digests: NDArray[np.uint64]
    num_examples: NDArray[np.int64]
    costs: list[ReplyCost]


class Cohort:
    """The agents of one process that can be batched.

    Parameters
    ----------
    participant : Participant
        Handles the agents' messages.
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
        per_agent: Mapping[str, Vector],
    ) -> list[Trained]:
        """Do a round's local work for those of these agents that can be batched.

        Parameters
        ----------
        shared : ConfigRecord
            The record that all agents are sent.
        nodes : sequence of int
        tags : array of int
            The round of the upload last accepted from each.
        states : mapping of str to array (k, d) or (d,), optional
            The states that the agents start from; None for those they hold after the round of
            their tag.
        per_agent : mapping of str to array (k, d)
            Arrays for each agent alone, in addition to the broadcast; may be empty.
        """
        instruction = read_instruction(record_dict({RECORD: shared, AGENT_RECORD: agent_record(0)}))
        if instruction.roster:
            return []
        self._place(instruction, nodes)
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
                given = starting_rows(states, places)
            try:
                broadcast = self._participant.broadcast(instruction, private=one.half.private)
                round_ = _BlockRound(
                    one,
                    instruction,
                    places,
                    rows[places],
                    tags[places],
                    given,
                    broadcast,
                    row_of(per_agent, places),
                    verify=one.half not in verified,
                )
                trained = round_.play()
            except Ended:  # no agent holds the requested state, or none may be charged
                continue
            except Exception as error:  # asked by message, each agent reports its own error
                reason = one_line(str(error))
                log.warning("%s: agents work one by one: %s", instruction.protocol, reason)
                self._alone.add(one.half)
                continue
            done.append(trained)
            if one.stack is not None:
                verified.add(one.half)
        return done

    def enrol(self, question: ConfigRecord, nodes: Iterable[int]) -> dict[int, Enrolment]:
        """Return the answers to the enrolment question of those of these agents that have one.

        An agent that refuses, or fails, says so when it is asked by message. The keys of a secure
        sum are drawn for a message alone.
        """
        answers: dict[int, Enrolment] = {}
        if question.get("secure-sum"):
            return answers
        self.release(nodes)
        for node in nodes:
            with suppress(Exception):
                answers[node] = self._participant.enrolment(question, self._contexts[node])
        return answers

    def release(self, nodes: Iterable[int] | None = None) -> None:
        """Move states back into the contexts, all of them or those of some nodes."""
        for node in self._where if nodes is None else nodes:
            where = self._where.get(node)
            if where is not None:
                self._blocks[where[0]].release([where[1]])

    def forget(self, nodes: Iterable[int]) -> None:
        """Free the problems of nodes that leave; the blocks are formed anew in the next round."""
        self.release()
        self._blocks, self._where = [], {}
        for node in nodes:
            if (context := self._contexts.get(node)) is not None:
                self._participant.forget(context)

    def states(
        self, accepted: Mapping[int, int] | None = None
    ) -> tuple[list[StateTable], set[int]]:
        """Return the states that are not in the contexts, and the nodes that hold them.

        The arrays are the blocks' own, which the next round changes. With ``accepted``, by node the
        round of the upload accepted last, they are those of these nodes, and none from before that
        round where the agent has done no more.
        """
        groups: dict[tuple[Any, ...], list[tuple[_Block, Places]]] = {}
        here: set[int] = set()
        for block, rows, tags in self._newest(accepted):
            here.update(block.nodes[rows].tolist())
            for count, some in block.held(rows, tags):
                groups.setdefault(block.layout(count), []).append((block, some))
        return [_table(parts, count) for (count, *_), parts in groups.items()], here

    def _newest(
        self, accepted: Mapping[int, int] | None
    ) -> Iterator[tuple[_Block, Places, Tags | None]]:
        """Yield blocks with their ``newest`` rows, of some nodes with the rounds ``accepted``."""
        if accepted is None:
            yield from ((block, block.newest(), None) for block in self._blocks)
            return
        if 2 * len(accepted) > len(self._where):
            for block in self._blocks:
                rows = block.newest()
                each = [accepted.get(node, -1) for node in block.nodes[rows].tolist()]
                tags = np.array(each, np.int64)
                yield block, rows[tags >= 0], tags[tags >= 0]
            return
        found: dict[int, list[tuple[int, int]]] = {}
        for node, tag in accepted.items():
            where = self._where.get(node)
            if where is not None:
                found.setdefault(where[0], []).append((where[1], tag))
        for number, some in sorted(found.items()):
            block = self._blocks[number]
            rows, tags = np.array(sorted(some), np.int64).T
            newest = block.is_newest(rows)
            yield block, rows[newest], tags[newest]

    # ------------------------------------------------------------------ blocks

    def _place(self, instruction: Instruction, nodes: Sequence[int]) -> None:
        """Assign every agent a place in a block, or None if it is to be asked by message."""
        # Repeated for every run: another one may have left an agent a ledger.
        run = (instruction.experiment, instruction.protocol, instruction.settings)
        if run != self._run:
            self.release()
            self._blocks, self._where, self._run = [], {}, run
        chosen = set(nodes)
        if self._where.keys() >= chosen:
            return
        # Agents that a later round may choose are placed as well: blocks should be large.
        known = self._participant.has_problem
        new = [
            node
            for node, context in self._contexts.items()
            if node not in self._where and (known(context) or node in chosen)
        ]
        settings = checked_settings(instruction.settings)
        groups: dict[tuple[int, Facts | None, Hashable], list[_Member]] = {}
        for node in new:
            self._where[node] = None
            member = self._member(instruction, settings, node)
            if member is not None:
                half = member.half
                charged = member.facts if half.private else None  # equal facts, equal charges
                shape = stack_key(member.problem) if half.stacks else None
                groups.setdefault((id(half), charged, shape), []).append(member)
        separate: dict[Hashable, list[_Member]] = {}
        for (kind, charged, shape), group in groups.items():
            if shape is None or len(group) < FEWEST:
                for member in group:
                    vector = member.problem.dim, np.dtype(member.problem.dtype)
                    separate.setdefault((kind, charged, vector), []).append(member)
                continue
            size = cast("LinearModel[Any]", group[0].problem).features.nbytes
            for some in _parts(group, BLOCK_BYTES // size, instruction.round):
                stack = Stack([member.problem for member in some])
                if stack.agrees():
                    stack.share()
                    self._add(some, stack)
                else:
                    self._add(some, None)
        for group in separate.values():
            for some in _parts(group, MOST_ROWS, instruction.round):
                self._add(some, None)
        alone = sum(self._where[node] is None for node in new)
        if alone:
            log.info("%d of %d agents work one by one, by message", alone, len(new))

    def _add(self, members: list[_Member], stack: Stack | None) -> None:
        block = _Block(members, stack, self._run[0], checked_settings(self._run[2]))
        for row, member in enumerate(members):
            self._where[member.node] = (len(self._blocks), row)
        self._blocks.append(block)

    def _member(
        self, instruction: Instruction, settings: Mapping[str, Any], node: int
    ) -> _Member | None:
        context = self._contexts.get(node)
        try:
            if context is None or state_path(context.node_config) is not None:
                return None
            rules, name = node_rules(context), agent_name(context)
            if rules.limited or any((rules.min_seconds_between, rules.reply_seconds)):
                return None
            if settings.get("secure-sum", False):
                return None
            require_agreement(context, instruction, masked=False)
            half, held, facts = self._participant.prepared(instruction, context)
            if getattr(half, "batch", "") == "cyclic":  # each stands at a batch of its own
                return None
            Guard(context, rules, settings, name, instruction.round).screen(half)
            require_fixed_time(held.problem, settings, half.private, 0.0)
        except Exception:  # asked by message, the agent reports it
            return None
        if held.problem.dim * np.dtype(held.problem.dtype).itemsize > LARGEST_MODEL:
            return None
        return _Member(node, name, context, half, held, facts)


def _parts(group: list[_Member], most: int, round_: int) -> Iterator[list[_Member]]:
    """Yield the members of one block after the other, at most ``most`` in each."""
    first = group[0]
    try:
        draws = first.half.release(first.facts, round_).draws * first.facts.dim
    except Exception:  # a refusal, which each agent reports by message, or seeded noise
        draws = 0
    rows = max(1, min(most, MOST_ROWS, MOST_DRAWS // max(1, draws)))
    for start in range(0, len(group), rows):
        yield group[start : start + rows]


class _DiffersError(Exception):
    """A half computes on rows something else than on one agent alone."""


class _Member(NamedTuple):
    node: int
    name: str
    context: Context
    half: Half
    held: Held
    facts: Facts

    @property
    def problem(self) -> Problem:
        return self.held.problem


class _Block:
    """Agents of one half, their stack if they form one, and their states as rows of tables."""

    def __init__(
        self,
        members: Sequence[_Member],
        stack: Stack | None,
        experiment: str,
        settings: Mapping[str, Any],
    ) -> None:
        self.members = members
        self.nodes = np.array([member.node for member in members])
        self._settings = settings
        self.seed = int(settings.get("seed", 0))
        self.half = members[0].half
        self.stack = stack
        self.num_examples = np.array([member.facts.num_examples for member in members])
        self.experiment = experiment
        self._here = np.zeros(len(members), bool)
        # States after the last round that each agent took part in, and those it started from.
        self.now: dict[str, Vector] = {}
        self._before: dict[str, Vector] = {}
        self._tags = np.zeros((2, len(members)), np.int64)
        # The account of each agent, and whether every round since it began was charged.
        self._ledgers = [""] * len(members)
        self._fully_charged = np.zeros(len(members), bool)

    def newest(self) -> Places:
        """Return the rows whose agents' states are here, and not as they were read in contexts."""
        return np.flatnonzero(self.is_newest(slice(None)))

    def is_newest(self, rows: Places | slice) -> NDArray[np.bool_]:
        """Return which of these rows are among the ``newest``."""
        newest: NDArray[np.bool_] = self._here[rows] & (self._tags[0, rows] != self._tags[1, rows])
        return newest

    def held(self, rows: Places, tags: Tags | None = None) -> Iterator[tuple[int, Places]]:
        """Yield how many states to return of some of the ``newest`` rows, and of which.

        One of those that hold one after the round of their tag, and none after a later one.
        """
        alone = np.zeros(len(rows), bool) if tags is None else self._tags[0, rows] == tags
        for count, which in ((2, ~alone), (1, alone)):
            if which.any():
                yield count, rows[which]

    def layout(self, count: int) -> tuple[Any, ...]:
        """Return ``count``, and what blocks whose last states can be one table have in common."""
        arrays = [
            (slot, name, array.dtype, array.shape[1:])
            for slot, each in enumerate(self.slots(count))
            for name, array in each.items()
        ]
        own = any(dtype.hasobject for _, _, dtype, _ in arrays)  # rows of several shapes
        return count, *arrays, id(self) if own else 0

    def slots(self, count: int) -> list[Arrays]:
        """Return the tables of the last one or two states."""
        both: list[Arrays] = [self._before, self.now]
        return both[-count:]

    def about(self, rows: Places, count: int) -> tuple[list[str], Tags, list[str], Any]:
        """Return the names of rows, the rounds of their last states, accounts, fully charged."""
        return (
            [self.members[row].name for row in rows.tolist()],
            self._tags[::-1, rows][-count:],
            [self._ledgers[row] for row in rows.tolist()],
            self._fully_charged[rows],
        )

    def release(self, rows: Iterable[int]) -> None:
        """Move the states of rows into their contexts."""
        for row in rows:
            is_newest = self._here[row] and self._tags[0, row] != self._tags[1, row]
            self._here[row] = False
            if is_newest:
                ((_, state),) = _table([(self, np.array([row]))], 2).rows()
                write_state(self.members[row].context, state)

    def guard(self, round_: int) -> Guard:
        """Return the guard of a round, the same for all agents except for the agent's name."""
        first = self.members[0]
        return Guard(first.context, node_rules(first.context), self._settings, first.name, round_)

    def charged(self, round_: int, rows: Places) -> list[ReplyCharge | None]:
        """Charge a reply of each row; None where it is refused, which the agent reports by message.

        Nothing is written before the work is done, and no rules of a node are checked: agents with
        rules are never in a block.
        """
        guard, facts = self.guard(round_), self.members[0].facts
        spent: dict[str, ReplyCharge | None] = {}
        texts = [self._ledgers[row] for row in rows.tolist()]
        for text in dict.fromkeys(texts):
            try:
                spent[text] = guard.charge(self.half, facts, text)
            except Exception:
                spent[text] = None
        return [spent[text] for text in texts]

    def load_accounts(self, rows: Places) -> None:
        """Load the accounts of rows that are new in the block."""
        for row in rows[~self._here[rows]].tolist():
            kept = self._kept(row)
            self._ledgers[row], self._fully_charged[row] = kept.ledger, kept.fully_charged

    def _kept(self, row: int) -> AgentState:
        """Return what a row's context holds of this run; that of another leaves it private."""
        context = self.members[row].context
        kept = read_state(context).of(self.experiment)
        if kept.private:
            context.state[PRIVATE_RECORD] = ConfigRecord()
        return kept

    def load_states(self, rows: Places, tags: Tags) -> NDArray[np.bool_]:
        """Load the states after these rounds into the tables; return which rows have one."""
        self.release(rows[self._here[rows] & (self._tags[0, rows] != tags)].tolist())
        held = self._here[rows].copy()
        for place in np.flatnonzero(~held).tolist():
            row, tag = int(rows[place]), int(tags[place])
            kept = self._kept(row)
            self._ledgers[row], self._fully_charged[row] = kept.ledger, kept.fully_charged
            state = kept.at(self.experiment, tag)
            if state is None:
                continue
            if not self._here.any():
                self.now = self._tables(state)
            if state.keys() != self.now.keys():
                continue
            for name, array in state.items():
                self.now[name][row] = array
            self._here[row] = held[place] = True
            self._tags[:, row] = tag
        return held

    def covers(self, rows: Places) -> bool:
        """Whether these are all agents of the block, in their order."""
        return len(rows) == len(self.members) and bool((np.diff(rows) == 1).all())

    def keep(
        self,
        rows: Places,
        round_: int,
        tags: Tags,
        base: Arrays,
        new: Arrays,
        spent: Sequence[ReplyCharge],
        *,
        known: bool,
    ) -> None:
        """Keep the states before and after a round, and the accounts, in the block's own arrays.

        ``known`` says whether the server sent the states that the round started from.
        """
        self._fully_charged[rows] = spent[0].fully_charged and (known | self._fully_charged[rows])
        for row, one in zip(rows.tolist(), spent, strict=True):
            self._ledgers[row] = one.ledger
        if self.covers(rows):
            self.now = {name: _writable(array, base) for name, array in new.items()}
            self._before = dict(base)
        else:
            if (new.keys(), base.keys()) != (self.now.keys(), self._before.keys()):
                others = np.setdiff1d(np.flatnonzero(self._here), rows)
                self.release(others.tolist())
                self.now, self._before = (
                    self._tables({name: array[0] for name, array in arrays.items()})
                    for arrays in (new, base)
                )
            for tables, arrays in ((self._before, base), (self.now, new)):
                for name, array in arrays.items():
                    tables[name][rows] = array
        self._tags[0, rows], self._tags[1, rows] = round_, tags
        self._here[rows] = True

    def _tables(self, state: Arrays) -> dict[str, Vector]:
        """Return empty tables for the states of all members, shaped like this one."""
        count = len(self.members)
        return {name: mapped.zeros((count, *a.shape), a.dtype) for name, a in state.items()}


def _table(parts: Sequence[tuple[_Block, Places]], count: int) -> StateTable:
    """Return the last one or two states of rows of blocks of one layout."""
    names, rounds, ledgers, charged = zip(*(b.about(rows, count) for b, rows in parts), strict=True)
    if len(parts) == 1 and parts[0][0].covers(parts[0][1]):
        states = parts[0][0].slots(count)
    else:
        states = [_gathered(parts, count, slot) for slot in range(count)]
    return StateTable(
        parts[0][0].experiment,
        [*chain.from_iterable(names)],
        np.concatenate(rounds, axis=1),
        tuple(states),
        [*chain.from_iterable(ledgers)],
        np.concatenate(charged),
    )


def _gathered(parts: Sequence[tuple[_Block, Places]], count: int, slot: int) -> Arrays:
    """Return the rows of some blocks' tables as one table each."""
    size = sum(len(rows) for _, rows in parts)
    result: dict[str, Vector] = {}
    for name, array in parts[0][0].slots(count)[slot].items():
        result[name] = np.empty((size, *array.shape[1:]), array.dtype)
        begin = 0
        for block, rows in parts:
            end = begin + len(rows)
            result[name][begin:end] = block.slots(count)[slot][name][rows]
            begin = end
    return result


class _BlockRound(AgentRound[Local, Trained]):
    """The round of some rows of a block.

    Parameters
    ----------
    block : _Block
    instruction : Instruction
    places, rows : array (k,) of int
        Positions among the chosen agents, and in the block.
    tags : array (k,) of int
    states : mapping of str to array, optional
        The states that the rows start from, where they were sent.
    broadcast, per_agent : mapping of str to array
        Arrays sent to all agents, and a row for each agent alone.
    verify : bool
        Whether to compare the first row of a stack with the same agent alone.
    """

    def __init__(
        self,
        block: _Block,
        instruction: Instruction,
        places: Places,
        rows: Places,
        tags: Tags,
        states: Mapping[str, Vector] | None,
        broadcast: Mapping[str, Vector],
        per_agent: Mapping[str, Vector],
        *,
        verify: bool,
    ) -> None:
        self._block, self._round, self._verify = block, instruction.round, verify
        self.worker = block.half
        self._places, self._rows, self._tags = places, rows, tags
        self._states, self._broadcast, self._per_agent = states, broadcast, per_agent
        self._guard = block.guard(instruction.round)
        self._base: dict[str, Vector] = {}

    def screen(self) -> None:
        self._guard.screen(self._block.half)

    def receive(self) -> None:
        block = self._block
        if self._states is None:
            self._narrow(block.load_states(self._rows, self._tags))
            every = block.covers(self._rows)
            self._base = block.now if every else row_of(block.now, self._rows)
        else:
            block.load_accounts(self._rows)
            shape = len(self._rows), block.members[0].problem.dim
            self._base = {n: np.array(_rows(array, shape)) for n, array in self._states.items()}

    def _narrow(self, which: NDArray[np.bool_]) -> None:
        """Continue with some of the rows (raises ``Ended`` where there are none)."""
        if not which.any():
            raise Ended(None)
        if not which.all():
            self._places, self._rows = self._places[which], self._rows[which]
            self._tags, self._per_agent = self._tags[which], row_of(self._per_agent, which)
            self._base = row_of(self._base, which)

    def check(self) -> None:
        block = self._block
        if block.half.private:
            require_tame([*self._base.values(), *self._per_agent.values()])
        for arrays in (self._broadcast, row_of(self._per_agent, 0), row_of(self._base, 0)):
            require_vectors(arrays, block.members[self._rows[0]].problem, block.half.private)

    def charge(self) -> None:
        """Charge every row; a row that is refused is asked by message, and reports it there."""
        spent = self._block.charged(self._round, self._rows)
        self._narrow(np.array([one is not None for one in spent]))
        self._spent = [one for one in spent if one is not None]

    def grant(self) -> list[View]:
        block, rows = self._block, self._rows.tolist()
        members = [block.members[row] for row in rows]
        release = self._spent[0].noise.release

        def sources() -> list[NoiseSource]:
            return [self._guard._replace(agent=one.name).source() for one in members]

        if block.stack is not None:
            stack = block.stack if block.covers(self._rows) else block.stack.take(rows)
            return [self._stacked(stack, members, sources, release)]
        noises = perturbers(release, sources(), [m.facts for m in members])
        return [
            self._alone(place, one, one.problem, noise)
            for place, (one, noise) in enumerate(zip(members, noises, strict=True))
        ]

    def _stacked(
        self,
        stack: Stack,
        members: Sequence[_Member],
        sources: Callable[[], Sequence[NoiseSource]],
        release: Release,
    ) -> View:
        """Return the view of all rows as one stack."""
        first = members[0]
        noise = Perturbers(release, len(members), sources, first.facts)
        names = tuple(one.name for one in members)
        self._first = stack.models[0], noise
        sent = {name: _rows(array, stack.shape) for name, array in self._broadcast.items()}
        records = Records(first.held._replace(problem=cast(Any, stack)), noise)
        streams = StackedStreams(self._block.seed, "", self._round, names)
        return View(self._base, {**sent, **self._per_agent}, records, streams)

    def _alone(self, place: int, one: _Member, problem: Problem, noise: Perturber) -> View:
        """Return the view of one row."""
        return View(
            row_of(self._base, place),
            {**self._broadcast, **row_of(self._per_agent, place)},
            Records(one.held._replace(problem=problem), noise),
            Streams(self._block.seed, one.name, self._round),
        )

    def seal(self, done: list[Local]) -> Trained:
        """Return the uploads.

        Raises
        ------
        _DiffersError
            If the first row of a stack, where it is to be verified, differs from the result of its
            agent alone.
        """
        block = self._block
        local = done[0] if block.stack is not None else _joined(done)
        done.clear()
        if block.stack is not None and self._verify:
            problem, noise = self._first
            view = self._alone(0, block.members[self._rows[0]], problem, noise.first())
            _require_same(local, block.half.local_update(*view), len(self._rows))
        self._new = local.state
        distinct = {id(one): one for one in self._spent}
        costs = {
            key: ReplyCost(one.epsilon, one.delta, one.note, one.ledger)
            for key, one in distinct.items()
        }
        return Trained(
            self._places,
            dict(local.upload),
            joined_digest(map(digests, local.agreed)),
            block.num_examples[self._rows],
            [costs[id(one)] for one in self._spent],
        )

    def keep(self) -> None:
        self._block.keep(
            *(self._rows, self._round, self._tags, self._base, self._new, self._spent),
            known=self._states is not None,
        )


def _joined(each: Sequence[Local]) -> Local:
    """Return the results of single agents as rows."""
    first = each[0]
    return Local(
        {name: _stacked([one.state[name] for one in each]) for name in first.state},
        {name: _stacked([one.upload[name] for one in each]) for name in first.upload},
        tuple(map(_stacked, zip(*(one.agreed for one in each), strict=True))),
    )


def _stacked(arrays: Sequence[Vector]) -> Vector:
    """Return arrays as rows, or in an array of objects where they are of several shapes."""
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    rows = np.empty(len(arrays), object)
    rows[:] = arrays
    return rows


def row_of(arrays: Arrays, row: Any) -> dict[str, Vector]:
    """Return the arrays of one agent, or the rows of some."""
    return {name: array[row] for name, array in arrays.items()}


def _rows(array: Vector, shape: tuple[int, int]) -> Vector:
    """Return an array shared by several agents as a row for each; others as they are."""
    return np.broadcast_to(array, shape) if array.shape == shape[1:] else array


def _writable(array: Vector, base: Arrays) -> Vector:
    """Return an array that may be written into without changing the base of a round."""
    shared = any(np.may_share_memory(array, before) for before in base.values())
    return array.copy() if shared or not array.flags.writeable else array


def _numbered(arrays: Iterable[Vector]) -> dict[str, Vector]:
    return {f"agreed {number}": array for number, array in enumerate(arrays)}


def _require_same(together: Local, alone: Local, count: int) -> None:
    """Raise `_DiffersError` unless the first of ``count`` rows has the bits of the one alone."""
    for rows, one in (
        (together.state, alone.state),
        (together.upload, alone.upload),
        (_numbered(together.agreed), _numbered(alone.agreed)),
    ):
        if rows.keys() != one.keys():
            raise _DiffersError("arrays of other names")
        for name, array in one.items():
            stack = rows[name]
            if stack.shape != (count, *array.shape) or stack.dtype != array.dtype:
                raise _DiffersError(f"{name} is of shape {stack.shape} {stack.dtype}")
            if stack[0].tobytes() != array.tobytes():
                raise _DiffersError(f"{name} has other bits")
