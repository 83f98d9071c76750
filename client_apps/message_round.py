"""Privacy-critical: the round of an agent that is asked by message, a block of one row.

The order is that of `privet.kernel.round`; here is what each of its steps does with a message and
with the agent's state in its context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from flwr.app import Context, Message, RecordDict

from privet.kernel import Facts, Problem, Records
from privet.kernel.door import Held
from privet.kernel.round import Ended, Round, View
from privet.wire import RECORD, Update, unpack
from privet.wire.contract import Instruction, need_state_record, read_instruction, update_record
from privet.wire.dense import digest, joined_digest
from privet.wire.payload import to_payload
from privet.wire.records import record_dict

from .guard import (
    Guard,
    NoiseFactory,
    Received,
    Spent,
    is_private,
    node_rules,
    require_buffers,
    require_tame,
    require_vectors,
)
from .half import Half, Local, Streams
from .masking import MaskFactory, Masking, plan_masking, require_agreement
from .measures import METRICS, broadcast_model, measures
from .state import LARGE, AgentState, keep_state, read_state, write_state
from .terms import MEAN_EXAMPLES


class Host(Protocol):
    """Who makes a node's problem and knows its halves: a `Participant`."""

    noise_factory: NoiseFactory | None
    mask_factory: MaskFactory | None
    train_metrics: bool

    def half(self, asked: Instruction, context: Context) -> Half:
        """Return the half that is asked for."""
        ...

    def settings(self, asked: Instruction) -> Mapping[str, Any]:
        """Return what is asked with."""
        ...

    def prepared_problem(
        self, half: Half, context: Context, mean: float = 0.0
    ) -> tuple[Held, Facts]:
        """Return the problem to work on and its public numbers."""
        ...

    def broadcast(self, asked: Instruction, private: bool) -> Mapping[str, Any]:
        """Return what all agents were sent."""
        ...


class MessageRound(Round[Local, RecordDict]):
    """One agent's round.

    Attributes
    ----------
    asked : Instruction
    half : Half
    problem, facts
        What is worked on, and its public numbers; once it is open.
    spent : Spent
        What the reply costs; once it is open.
    """

    def __init__(self, participant: Host, message: Message, context: Context, name: str) -> None:
        self._participant, self._context, self._name = participant, context, name
        self.asked = asked = read_instruction(message.content)
        self.worker = self.half = participant.half(asked, context)
        self.settings = participant.settings(asked)
        self._rules = node_rules(context)
        self._guard = Guard(
            *(context, self._rules, self.settings, name, asked.round),
            *(participant.noise_factory, asked.experiment),
        )
        self.masking: Masking | None = None
        self.problem: Problem
        self.facts: Facts
        self.spent: Spent

    def screen(self) -> None:
        self._guard.screen(self.half)

    def receive(self) -> None:
        asked, half, context = self.asked, self.half, self._context
        held = read_state(context)
        if self._rules.limited and not held.covered:
            # Of rounds whose noise was not charged or can be predicted: it must not meet any
            # that is charged.
            held = AgentState(ledger=held.ledger)
        mean = self.settings.get(MEAN_EXAMPLES, 0.0)
        self._prepared, self.facts = self._participant.prepared_problem(half, context, mean)
        self.problem = self._prepared.problem
        broadcast = self._participant.broadcast(asked, half.private)
        require_buffers(broadcast, getattr(self.problem, "buffers", None))
        base, self._public = _base_state(asked, held), asked.recovery is not None
        if base is not None and self._public:
            require_buffers(base, None)  # those of an agent are never sent back to it
        if base is None:
            if asked.tag:
                self._ask_for_state()
            base, self._public = dict(half.restart(broadcast, self.facts)), True
        self._held, self._broadcast, self._base = held, broadcast, Received(base)
        self._plan_masking()

    def _plan_masking(self) -> None:
        masked = bool(self.settings.get("secure-sum", False))
        require_agreement(self._context, self.asked, masked)
        if not masked:
            return
        self.masking = plan_masking(
            *(self._context, self.asked, self._name, self._participant.mask_factory),
            shared=self.half.noise_sharing,
        )
        if self.masking is None:
            self._ask_for_state()
        else:
            self.facts = self.masking.facts(self.facts)

    def _ask_for_state(self) -> None:
        raise Ended(RecordDict({RECORD: need_state_record(self._name)}))

    def check(self) -> None:
        if self.half.private:
            require_tame(self._base.values())
            for arrays in (self._broadcast, self._base):
                require_vectors(arrays, self.problem)

    def charge(self) -> None:
        asked, held = self.asked, self._held
        self.spent = self._guard.charge(self.half, self.facts, held.ledger, asked.ledger)
        if sum(map(len, held.states)) > LARGE:  # what is refused costs no state
            self._held = held.only(asked.experiment, asked.tag)
            keep_state(self._context, self._held)

    def grant(self) -> list[View]:
        records = Records(self._prepared, self.spent.noise)
        streams = Streams(int(self.settings.get("seed", 0)), self._name, self.asked.round)
        return [View(self._base, self._broadcast, records, streams)]

    def seal(self, done: list[Local]) -> RecordDict:
        """Return the upload, masked where a sum is asked for.

        Each of the vectors, as large as the model, goes as soon as it is packed.
        """
        local = done.pop()
        asked, half, spent, masking = self.asked, self.half, self.spent, self.masking
        agreed = 0 if masking else joined_digest(map(digest, local.agreed))
        self._new = self._held.follow(
            asked.experiment,
            asked.tag,
            asked.recovery or self._base,
            asked.round,
            local.state,
            spent.ledger,
            spent.covered and (self._public or self._held.covered),
        )
        upload = local.upload
        del local
        reply = Update(
            agent=self._name,
            round=asked.round,
            num_examples=self.facts.num_examples,
            digest=agreed,
            payload=masking.payload(upload) if masking else to_payload(upload),
            epsilon=spent.epsilon,
            delta=spent.delta,
            note=_note(spent, masking, asked.round),
            ledger=spent.ledger,
        )
        content = record_dict({RECORD: update_record(asked.protocol, asked.version, reply)})
        told = self._participant.train_metrics and not masking
        if told and not (half.private or is_private(self._context)):
            problem = self.problem
            content[METRICS] = measures(problem, broadcast_model(self._broadcast, problem))
        return content

    def keep(self) -> None:
        if self.masking:
            self.masking.keep(self._context)
        write_state(self._context, self._new)


def _note(spent: Spent, masking: Masking | None, round_: int) -> str:
    """Return what the server's log should say of an upload."""
    if spent.note or masking is None or masking.source.private:
        return spent.note
    return "not private: masks are given" if round_ == 1 else ""


def _base_state(asked: Instruction, held: AgentState) -> dict[str, Any] | None:
    """Return the state to go on from: the one sent along, else the one held under the tag."""
    if asked.recovery is not None:
        return unpack(asked.recovery)
    return held.at(asked.experiment, asked.tag)
