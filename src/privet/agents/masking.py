"""Privacy-critical: an agent's side of the secure sum: keys, conditions and masked upload.

Keys live in Flower's context of the run and nowhere else: an agent that loses them gives new ones
when it is enrolled again. A mask is used once, or two uploads under it would reveal their
difference; so the agent remembers the last round and attempt it uploaded for. Where its operator
has pinned keys of others, a file remembers it too, however the process ends
(`privet.kernel.trust`).

Two sums of which one agent is in the first alone give its upload as their difference, where the
others' are the same. They are within a round. Of an analysis they are in any round that asks at the
same point, as when it begins again without a site: there the rule is over all rounds of a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from privet.core import WireError
from privet.kernel import (
    Binding,
    BudgetRefused,
    Facts,
    KeyPair,
    MaskError,
    MaskSource,
    PairwiseMasks,
    Told,
    Trust,
    key_pair,
)
from privet.kernel.analysis_rules import is_chain
from privet.kernel.events import SHARED_GRID
from privet.kernel.masks import require_roster, statement
from privet.kernel.trust import known_by
from privet.wire import ring
from privet.wire.contract import (
    CONTRACT_VERSION,
    LAST_ATTEMPT,
    LAST_ROUND,
    Instruction,
    read_experiment,
    read_number,
)
from privet.wire.flower_internals import held_by
from privet.wire.records import config_record, read_field
from privet.wire.rosters import parse_roster

from .guard import node_rules
from .state import LARGE

MASK_RECORD = "privet.masks"
EARLIER_RECORD = "privet.sums"
"""By experiment, the last sum that an agent was in when it made new keys."""
MOST_EXPERIMENTS = 8

MaskFactory = Callable[[str, int], MaskSource]
"""``(agent, round) -> source`` in place of the key agreement; for replays."""


@dataclass(frozen=True, slots=True)
class MaskState:
    """The keys for one experiment, and the last roster an upload was masked for.

    ``repeated`` is the last one of a sum that other rounds may ask for again (`Half.repeats`): sums
    of another kind in between, as of a training after an analysis, do not make it forgotten.
    """

    experiment: str
    keys: KeyPair
    round: int = 0
    attempt: int = 0
    names: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    def to_record(self) -> ConfigRecord:
        """Return the state as a record for Flower's context."""
        return config_record(
            {
                "experiment": self.experiment,
                "private": self.keys.private,
                "public": self.keys.public,
                "used": [self.round, self.attempt],
                "names": json.dumps(self.names),
                "repeated": json.dumps(self.repeated),
            }
        )

    @classmethod
    def from_record(cls, record: ConfigRecord) -> MaskState:
        """Return the state of ``to_record``."""
        used: list[int] = record["used"]  # type: ignore[assignment]
        keys = KeyPair(record["private"], record["public"])  # type: ignore[arg-type]
        names, repeated = (tuple(json.loads(str(record[key]))) for key in ("names", "repeated"))
        return cls(str(record["experiment"]), keys, used[0], used[1], names, repeated)


def new_keys(context: Context, experiment: str) -> bytes:
    """Make a key pair for an experiment, replacing an older one, and return the public key.

    The sum that the agent was in last stays known, of this experiment and of others: new keys make
    its difference no other.

    Raises
    ------
    MaskError
        If the run of Flower has asked for sums of more than `MOST_EXPERIMENTS` experiments.
    """
    record, made = context.state.get(MASK_RECORD), MaskState(experiment, key_pair())
    earlier: dict[str, Any] = dict(held_by(context.state).get(EARLIER_RECORD) or {})
    if isinstance(record, ConfigRecord):
        last = MaskState.from_record(record)
        if last.names:
            known = [last.round, last.attempt, last.names, last.repeated]
            earlier[last.experiment] = json.dumps(known)
    if len(earlier) > MOST_EXPERIMENTS:
        raise MaskError(f"secure sum: of more than {MOST_EXPERIMENTS} experiments in one run")
    if earlier:
        context.state[EARLIER_RECORD] = ConfigRecord(earlier)
    if experiment in earlier:
        round_, attempt, *rosters = json.loads(earlier[experiment])
        names, repeated = map(tuple, rosters)
        made = MaskState(experiment, made.keys, round_, attempt, names, repeated)
    context.state[MASK_RECORD] = made.to_record()
    return made.keys.public


def read_keys(context: Context, experiment: str) -> MaskState | None:
    """Return the keys for an experiment, None where there are none or they were replaced."""
    record = context.state.get(MASK_RECORD)
    if not isinstance(record, ConfigRecord):
        return None
    state = MaskState.from_record(record)
    return state if state.experiment == experiment else None


@dataclass(frozen=True, slots=True)
class Masking:
    """The mask of one upload.

    ``shared`` says whether all the other agents are peers that the node trusts to add their share
    of the noise, ``overflow`` what becomes of numbers that are too large for the sum, ``pinned``
    whether the node's operator has pinned keys of peers, ``repeats`` whether other rounds may ask
    for the same.
    """

    agent: str
    binding: Binding
    source: MaskSource
    state: MaskState
    shared: bool = False
    overflow: ring.Overflow = "refuse"
    pinned: bool = False
    repeats: bool = False

    def bounded(self, overflow: ring.Overflow, *, noised: bool) -> Masking:
        """Return the masking of an upload whose numbers may be too large for the sum.

        A refusal says so of the agent's own numbers, which pinned keys are to hide from a
        coordinator that chooses the model. They wrap then; noised ones may be told.
        """
        if overflow == "refuse" and self.pinned and not noised:
            overflow = "wrap"
        return replace(self, overflow=overflow)

    def facts(self, facts: Facts) -> Facts:
        """Return an agent's public numbers as those of one in this sum."""
        return replace(facts, agents=len(self.binding.roster)) if self.shared else facts

    def payload(self, upload: Mapping[str, NDArray[np.floating]]) -> bytes:
        """Return an upload as it is sent: rounded to the ring and masked.

        Privacy: uniformly random to everybody who lacks the keys of another agent of the roster.

        Raises
        ------
        WireError
            If a number is too large to be summed.
        MaskError
            If the upload must not be summed with this roster.
        """
        every = {**upload, ring.MEMBERS: np.ones(())}
        words = ring.encode(every, len(self.binding.roster), self.overflow)
        self.source.apply(words.words, self.agent, self.binding)
        return words.to_bytes()

    def keep(self, context: Context) -> None:
        """Record that this mask is used; to be called before the reply is sent."""
        names = self.binding.names
        used = replace(
            self.state,
            round=self.binding.round,
            attempt=self.binding.attempt,
            names=names,
            repeated=names if self.repeats else self.state.repeated,
        )
        context.state[MASK_RECORD] = used.to_record()


def plan_masking(
    context: Context,
    instruction: Instruction,
    agent: str,
    factory: MaskFactory | None,
    *,
    shared: bool = False,
    repeats: bool = False,
) -> Masking | None:
    """Return the masking of the upload, None where this agent has lost its keys.

    Nothing is computed or charged before this has returned. Where the node's operator has pinned
    keys, ``least-trusted`` agents of the roster are such peers, and all of these have signed it.
    Where noise is shared and the node trusts peers to add theirs, every agent of the roster must be
    one of them. ``repeats`` says that other rounds may ask for the same (`Half.repeats`).

    Raises
    ------
    MaskError
        If a mask would be used twice, or the roster gives the upload away, or is not signed.
    BudgetRefused
        If the masks are not generated by the agent and its operator set a budget or
        ``least-trusted``, or the node's pinned keys, or the file of used masks, cannot be used.
    """
    state = read_keys(context, instruction.experiment)
    if state is None:
        return None
    binding = bound(instruction, SHARED_GRID if shared else 0.0)
    rules = node_rules(context)
    trust = rules.trust(agent) if factory is None else None
    require_fresh(state, binding, repeats=repeats, known=known_by(trust, agent))
    shares = shared and trust is not None and trust.colluders >= 0
    source: MaskSource = PairwiseMasks(state.keys)
    if factory is not None:
        if rules.limited or rules.least_trusted:
            raise BudgetRefused(Told.GIVEN_MASKS)
        source = factory(agent, instruction.round)
    if trust is not None:  # before any key agreement is computed
        least = len(binding.names) - 1 if shares else rules.least_trusted
        trust.require_peers(agent, binding.names, least)
        said = statement(bound(instruction))
        trust.require_signed(binding.names, [said] * len(binding.names), instruction.signed)
    source.require(agent, binding)
    if trust is not None:
        use_once(trust, state, binding)
    pinned = trust is not None
    return Masking(agent, binding, source, state, shared=shares, pinned=pinned, repeats=repeats)


def sign_roster(context: Context, question: ConfigRecord, agent: str) -> bytes:
    """Return the signature (64 bytes) of a roster, before an upload is asked for: once an attempt.

    Nothing is computed from the data or charged. The task is signed as the digest that the
    coordinator gives; the upload is masked only for a task that has it.

    Privacy: the signature is of what the coordinator has sent, and depends on no record.

    Raises
    ------
    WireError, MaskError
        If the roster is no such, lacks pinned peers, or one of this attempt was signed before.
    BudgetRefused
        If the node has pinned no keys, or they cannot be used.
    """
    trust = node_rules(context).trust(agent)
    if question.get("contract") != CONTRACT_VERSION or trust is None:
        raise WireError("is asked to sign a roster, and its operator has pinned no keys")
    state, binding = asked_for(context, question, agent)
    trust.require_peers(agent, binding.names, node_rules(context).least_trusted)
    use_once(trust, state, binding, Told.SIGNED_BEFORE)
    return trust.sign(statement(binding))


def asked_for(context: Context, question: ConfigRecord, agent: str) -> tuple[MaskState, Binding]:
    """Return the keys, and the sum that a question before its upload is of.

    Raises
    ------
    WireError, MaskError
        If the question is of a run without keys here, or its roster is none.
    """
    binding = Binding(
        read_experiment(question),
        read_number(question, "round", LAST_ROUND),
        read_number(question, "attempt", LAST_ATTEMPT),
        parse_roster(read_field(question, "names", str), read_field(question, "keys", bytes)),
        read_field(question, "task", bytes),
    )
    state = read_keys(context, binding.experiment)
    if state is None or len(binding.task) != hashlib.sha256().digest_size:
        raise WireError("is asked to sign a roster of a run that it holds no key of")
    require_roster(binding.roster, agent, state.keys.public)
    return state, binding


def bound(instruction: Instruction, grid: float = 0.0) -> Binding:
    """Return the sum that an instruction asks for an upload to; ``grid`` as in `task_digest`."""
    sent = instruction.protocol, instruction.version, instruction.settings, instruction.payload
    asked = instruction.experiment, instruction.round, instruction.attempt, instruction.roster
    return Binding(*asked, task_digest(*sent, grid))


def use_once(
    trust: Trust, state: MaskState, binding: Binding, again: Told = Told.MASKED_BEFORE
) -> None:
    """Write down what is done for an attempt: each thing once, whatever else is forgotten.

    Raises
    ------
    MaskError
        With ``again`` if it was done before.
    BudgetRefused
        If it cannot be written down.
    """
    what = [] if again is Told.MASKED_BEFORE else [again.name]
    named = json.dumps([*what, state.keys.public.hex(), binding.round, binding.attempt]).encode()
    try:
        trust.use(hashlib.sha256(named).digest(), again)
    except OSError as error:
        raise BudgetRefused(Told.MASKS) from error


def task_digest(
    protocol: str, version: int, settings: str, payload: bytes, grid: float = 0.0
) -> bytes:
    """Return the digest that binds a mask to its whole instruction.

    Agents that were sent different tasks, or different settings of the noise, share no mask; nor do
    those that add shares of noise on different grids, the cell relative to the scale (0 where noise
    is not shared). An agent that forgets what it uploaded uses no mask for another value.
    """
    digest = _digest if len(payload) <= LARGE else _digest.__wrapped__
    return digest(protocol, version, settings, payload, grid)


@lru_cache(maxsize=4)  # agents of one process are sent the same
def _digest(protocol: str, version: int, settings: str, payload: bytes, grid: float) -> bytes:
    head = json.dumps([protocol, version, settings, *([grid] if grid else [])]).encode()
    made = hashlib.sha256(len(head).to_bytes(8, "big") + head)
    made.update(payload)
    return made.digest()


def require_fresh(
    state: MaskState,
    binding: Binding,
    *,
    repeats: bool,
    known: Collection[str] | None = None,
) -> None:
    """Refuse a mask that was used, and a roster whose sum would reveal an agent's upload.

    Between two attempts at one round agents may only leave, and never exactly one: the difference
    of the sums would be its upload, should the first sum be completed after all. Where rounds
    repeat each other, so it is between any two rosters. These are a chain, S_1 over S_2 over ...,
    and its sums span those of S_i without S_(i+1), of two agents or more each, and of the last. Of
    ``known`` agents, whose keys are pinned, so it is without the others, whose part a coordinator
    that made them up takes off each sum.
    """
    now, last = (binding.round, binding.attempt), (state.round, state.attempt)
    if now <= last:
        raise MaskError(
            f"secure sum: asked for round {now[0]} attempt {now[1]} after round {last[0]} "
            f"attempt {last[1]}; a mask is used once",
            Told.MASK_ONCE,
        )
    for before in (summed_before(state, binding.round), state.repeated if repeats else ()):
        if before:
            require_chain(before, binding.names, binding.round, binding.attempt, known)


def summed_before(state: MaskState, round_: int) -> tuple[str, ...]:
    """Return the names of the sum before in this round; () for none."""
    return state.names if round_ == state.round else ()


def require_chain(
    before: Collection[str],
    here: Collection[str],
    round_: int,
    attempt: int,
    known: Collection[str] | None = None,
) -> None:
    """Refuse a sum over ``here`` after one over ``before`` that may not follow it (`is_chain`).

    Raises
    ------
    MaskError
    """
    if not is_chain(before, here, known):
        raise MaskError(
            f"secure sum: attempt {attempt} at round {round_} would reveal the upload of one agent "
            "as the difference of two sums",
            Told.DIFFERENCE,
        )


def require_agreement(context: Context, instruction: Instruction, masked: bool) -> None:
    """Refuse an instruction that leaves open whether the upload is to be masked.

    Raises
    ------
    WireError, MaskError
    """
    if masked != (instruction.attempt > 0):
        raise WireError(Told.SUM_TERMS)
    if not masked and read_keys(context, instruction.experiment) is not None:
        raise MaskError(Told.IN_THE_CLEAR)
