"""Privacy-critical: the round of an agent that is asked by message, a block of one row.

The order is that of `privet.kernel.round`; this module defines its steps for a message and the
agent's state in its context.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from flwr.app import Context, Message, RecordDict

from privet.kernel import Facts, Problem, Records
from privet.kernel.door import Held
from privet.kernel.round import AgentRound, Ended, View
from privet.wire import RECORD, Update, unpack
from privet.wire.contract import Instruction, need_state_record, read_instruction, update_record
from privet.wire.dense import digest, joined_digest
from privet.wire.payload import to_payload
from privet.wire.records import apart, record_dict
from privet.wire.survivors import THRESHOLD

from .cycles import keep_cycle
from .guard import (
    Guard,
    NoiseFactory,
    Received,
    ReplyCharge,
    is_private,
    node_rules,
    require_buffers,
    require_none_of_loop,
    require_small,
    require_tame,
    require_vectors,
)
from .half import Half, Local, Streams
from .masking import MaskFactory, Masking, plan_masking, require_agreement
from .measures import METRICS, broadcast_model, measures
from .own_moves import Shown, note, shown
from .pace import Pace, require_fixed_time
from .state import LARGE, AgentState, keep_state, read_state, require_room, write_state
from .survivors import plan_shared
from .terms import WHOLE_SUM

_MORE_OF_A_STATE = 1 << 16
"""Bytes of a state, and of its account, beside its arrays."""


class Host(Protocol):
    """Builds a node's problem and its halves: a `Participant`."""

    noise_factory: NoiseFactory | None
    mask_factory: MaskFactory | None
    train_metrics: bool
    reply_seconds: float

    def half(self, instruction: Instruction, context: Context) -> Half:
        """Return the half that an instruction names."""
        ...

    def settings(self, instruction: Instruction) -> Mapping[str, Any]:
        """Return an instruction's checked settings."""
        ...

    def prepared_problem(
        self, half: Half, context: Context, settings: Mapping[str, Any] = ...
    ) -> tuple[Held, Facts]:
        """Return the problem to work on and its public numbers."""
        ...

    def require_encoding(self, instruction: Instruction, context: Context) -> None:
        """Refuse a message of a run whose agents have agreed on another encoding."""
        ...

    def broadcast(self, instruction: Instruction, private: bool) -> Mapping[str, Any]:
        """Return the decoded broadcast."""
        ...


class MessageRound(AgentRound[Local, RecordDict]):
    """One agent's round.

    Attributes
    ----------
    instruction : Instruction
    half : Half
    problem, facts
        The problem of the round and its public numbers, once the round is open.
    spent : Spent
        The cost of the reply, once the round is open.
    """

    def __init__(self, participant: Host, message: Message, context: Context, name: str) -> None:
        self._participant, self._context, self._name = participant, context, name
        self.instruction = instruction = read_instruction(message.content)
        self.worker = self.half = participant.half(instruction, context)
        self.settings = participant.settings(instruction)
        self._message, self._rules = message, node_rules(context)
        self._pace = Pace(self._rules, context)
        self._guard = Guard(
            *(context, self._rules, self.settings, name, instruction.round),
            *(participant.noise_factory, instruction.experiment),
            tuple(name for name, _ in instruction.roster),
        )
        self.masking: Masking | None = None
        self._shown: Shown | None = None
        self.problem: Problem
        self.facts: Facts
        self.spent: ReplyCharge

    def screen(self) -> None:
        self._guard.screen(self.half)

    def receive(self) -> None:
        instruction, half, context = self.instruction, self.half, self._context
        stored = read_state(context)
        self._stored = sum(map(len, stored.states))
        held = stored.of(instruction.experiment)
        if self._rules.limited and not held.fully_charged:
            # The state comes from rounds whose noise was not charged or can be predicted: it must
            # not meet noise that is charged.
            held = held._replace(rounds=(), states=())
        prepared = self._participant.prepared_problem(half, context, self.settings)
        self._prepared, self.facts = prepared
        self._participant.require_encoding(instruction, context)
        self.problem = self._prepared.problem
        broadcast = self._participant.broadcast(instruction, half.private)
        require_buffers(broadcast, getattr(self.problem, "buffers", None))
        require_vectors(broadcast, self.problem, half.private)
        if instruction.recovery is not None:
            require_small(instruction.recovery, self.problem)
        base, self._public = _base_state(instruction, held), instruction.recovery is not None
        if base is not None and self._public:
            require_buffers(base, None)  # an agent's buffers are never sent back to it
            require_none_of_loop(base)
        if base is None:
            if instruction.tag:
                self._ask_for_state()
            base, self._public = dict(half.restart(broadcast, self.facts)), True
        require_vectors(base, self.problem, half.private)
        self._held, self._broadcast, self._base = held, broadcast, Received(base)
        self._plan_masking()

    def _plan_masking(self) -> None:
        masked = bool(self.settings.get("secure-sum", False))
        require_agreement(self._context, self.instruction, masked)
        if not masked:
            return
        threshold = int(self.settings.get(THRESHOLD, 0))
        plan = partial(plan_shared, threshold=threshold) if threshold else plan_masking
        self.masking = plan(
            *(self._context, self.instruction, self._name, self._participant.mask_factory),
            shared=self.half.noise_sharing,
            repeats=self.half.repeats,
        )
        if self.masking is None:
            self._ask_for_state()
        else:
            self.facts = self.masking.facts(self.facts)

    def _ask_for_state(self) -> None:
        raise Ended(RecordDict({RECORD: need_state_record(self._name)}))

    def check(self) -> None:
        seconds = self._rules.reply_seconds or self._participant.reply_seconds
        private = self.half.private or self._rules.limited
        limited = self._rules.limited
        require_fixed_time(self.problem, self.settings, private, seconds, limited=limited)
        if self.half.private:
            require_tame(self._base.values())

    def charge(self) -> None:
        instruction, held = self.instruction, self._held
        # Two states are kept: that which it starts from, and the new one.
        size = sum(array.nbytes for array in self._base.values()) + _MORE_OF_A_STATE
        require_room(self._context, 2 * size)
        with self._pace.turn(self._message):
            accounts = held.ledger, instruction.ledger
            count = getattr(self.problem, "num_examples", None)
            self.spent = self._guard.charge(self.half, self.facts, *accounts, count)
        if self._stored > LARGE:  # a refused reply costs no state
            self._held = held.only(instruction.experiment, instruction.tag)
            keep_state(self._context, self._held)

    def grant(self) -> list[View]:
        records = Records(self._prepared, self.spent.noise)
        streams = Streams(int(self.settings.get("seed", 0)), self._name, self.instruction.round)
        return [View(self._base, self._broadcast, records, streams)]

    def seal(self, done: list[Local]) -> RecordDict:
        """Return the upload, masked in a run of secure sums.

        Each of the vectors, as large as the model, is freed as soon as it is packed.
        """
        local = done.pop()
        instruction, half, spent, masking = self.instruction, self.half, self.spent, self.masking
        agreed = 0 if masking else joined_digest(map(digest, local.agreed))
        self._new = self._held.follow(
            instruction.experiment,
            instruction.tag,
            instruction.recovery or self._base,
            instruction.round,
            local.state,
            spent.ledger,
            spent.fully_charged and (self._public or self._held.fully_charged),
        )
        upload = local.upload
        del local
        if masking:
            masking = masking.bounded(half.overflow(self._broadcast), noised=half.private)
            self._shown = shown(half, self._broadcast, upload)
        reply = Update(
            agent=self._name,
            round=instruction.round,
            num_examples=self.facts.num_examples,
            digest=agreed,
            payload=masking.payload(upload) if masking else to_payload(upload),
            epsilon=spent.epsilon,
            delta=spent.delta,
            note=_note(spent, masking, instruction.round),
            ledger=spent.ledger,
            head=spent.head,
        )
        record = update_record(instruction.protocol, instruction.version, reply)
        content = apart(record_dict({RECORD: record}))
        with_metrics = self._participant.train_metrics and not masking
        if with_metrics and not (half.private or is_private(self._context)):
            problem = self.problem
            content[METRICS] = measures(problem, broadcast_model(self._broadcast, problem))
        return content

    def keep(self) -> None:
        if self.masking:
            self.masking.keep(self._context)
            whole = int(self.settings.get(WHOLE_SUM, 0))
            note(self._context, self._name, self.instruction, self._shown, whole)
        keep_cycle(self._context, self.spent.noise.cycle, self.spent.head)
        write_state(self._context, self._new)
        self._pace.note()


def _note(spent: ReplyCharge, masking: Masking | None, round_: int) -> str:
    """Return the note on an upload for the server's log."""
    if spent.note or masking is None or masking.source.private:
        return spent.note
    return "not private: masks are given" if round_ == 1 else ""


def _base_state(instruction: Instruction, held: AgentState) -> dict[str, Any] | None:
    """Return the state to start from: the one in the message, else the one held under the tag."""
    if instruction.recovery is not None:
        return unpack(instruction.recovery)
    return held.at(instruction.experiment, instruction.tag)
