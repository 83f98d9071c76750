"""Privacy-critical: an agent's side of a secure sum that opens without those that dropped out.

Before its upload an agent draws keys for the sum, and shares out what opens them; after it, it
signs one list of survivors and gives its shares once (`privet.kernel.survivors`). What it drew is
in Flower's context of the run, until it has given its shares or draws keys for another sum. That a
list was signed, and shares given, is written down first; where the node's operator has pinned keys,
in a file (`privet.kernel.trust`), so that a node that was killed does neither again.

A list counts as the roster of its sum where sums are compared: the next one may not be without
exactly one agent of it, nor the list without exactly one agent of the sum before. Of a sum of many,
where lists of several agents may differ, shares close the round: who has given any takes part in no
further attempt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Context, RecordDict

from privet.core import WireError
from privet.kernel import MaskError, Told, Trust
from privet.kernel.masks import Binding
from privet.kernel.neighbours import MOST_COMPLETE
from privet.kernel.survivors import (
    LEAST_COLLUDERS,
    OTHER_KEYS,
    SEALED_BYTES,
    SUM_KEY_BYTES,
    Boxes,
    DoubleMasks,
    NeighbourSum,
    SharedSum,
    SumSecrets,
    begun,
    keys_statement,
    require_threshold,
    share_to_give,
)
from privet.kernel.trust import SIGNATURE_BYTES, known_by
from privet.wire import RECORD
from privet.wire.contract import CONTRACT_VERSION, LAST_ATTEMPT, Instruction, read_experiment
from privet.wire.flower_internals import held_by
from privet.wire.records import config_record, read_field, record_dict
from privet.wire.rosters import parse_roster, signature_record, split
from privet.wire.survivors import (
    SEED,
    SHARES,
    SUM_KEYS,
    SURVIVORS,
    THRESHOLD,
    SumKeys,
    keys_record,
    seed_record,
    shares_record,
)

from .guard import node_rules
from .masking import (
    MASK_RECORD,
    MaskFactory,
    Masking,
    MaskState,
    asked_for,
    bound,
    read_keys,
    require_chain,
    require_fresh,
    summed_before,
    use_once,
)

SUM_RECORD = "privet.sum"
CLOSED = LAST_ATTEMPT + 1
"""Stands for the last attempt at a round of which an agent has given shares of a sum of many."""


@dataclass(frozen=True, slots=True)
class SumState:
    """The sum that an agent has drawn keys for last.

    Attributes
    ----------
    agent : str
    shared : SharedSum
        Without ``keys`` until the upload.
    secrets : SumSecrets
    before : tuple of str
        The sum before that this one is compared with.
    marks : bytes
        The list that was signed, empty before.
    gave : bool
        Whether shares were given.
    """

    agent: str
    shared: SharedSum
    secrets: SumSecrets
    before: tuple[str, ...] = ()
    marks: bytes = b""
    gave: bool = False

    def to_record(self) -> ConfigRecord:
        """Return the state as a record for Flower's context."""
        run, secrets = self.shared.run, self.secrets
        return config_record(
            {
                "experiment": run.experiment,
                "sum": [run.round, run.attempt, self.shared.threshold],
                "names": json.dumps(run.names),
                "roster": b"".join([key for _, key in run.roster]),
                "task": run.task,
                **self._known(),
                "secrets": secrets.own + secrets.pair + secrets.signing,
                "before": json.dumps(self.before),
                "marks": self.marks,
                "gave": self.gave,
            }
        )

    def _known(self) -> dict[str, bytes]:
        """Return what is known of keys and neighbours, by the fields of the message for uploads."""
        shared, me = self.shared, self.agent
        told = [shared.key_of(name) for name in shared.neighbours(me)] if shared.keys else []
        known = {"keys": b"".join(told)}
        if isinstance(shared, NeighbourSum):
            known["drawn"] = shared.marks(shared.holders(me))
            known["choosers"] = shared.marks(shared.givers(me))
        return known

    @classmethod
    def read(cls, context: Context, state: MaskState | None) -> SumState | None:
        """Return the state for the keys of a run, None where there is none."""
        record = context.state.get(SUM_RECORD)
        if not isinstance(record, ConfigRecord) or state is None:
            return None
        held: Mapping[str, Any] = held_by(record)
        roster, keys = parse_roster(held["names"], held["roster"]), held["keys"]
        round_, attempt, threshold = held["sum"]
        run = Binding(held["experiment"], round_, attempt, roster, held["task"])
        agent = next((name for name, key in roster if key == state.keys.public), "")
        if run.experiment != state.experiment or not agent:
            return None  # of keys that were replaced
        own, pair, signing = (
            held["secrets"][start:end] for start, end in ((0, 16), (16, 32), (32, 64))
        )
        secrets = SumSecrets(own, pair, signing)
        shared = SharedSum(run, threshold)
        if drawn := held.get("drawn"):
            shared = NeighbourSum(run, threshold, (), {agent: shared.listed(drawn)})
        if keys:
            each = split(keys, SUM_KEY_BYTES, len(keys) // SUM_KEY_BYTES, "keys")
            shared = shared.told(agent, secrets.public, each, held.get("choosers", b""))
        before = tuple(json.loads(held["before"]))
        return cls(agent, shared, secrets, before, held["marks"], held["gave"])

    def keep(self, context: Context) -> None:
        """Store it; to be called before a reply is sent."""
        context.state[SUM_RECORD] = self.to_record()


@dataclass(frozen=True, slots=True)
class SharedMasking(Masking):
    """The mask of one upload to such a sum."""

    sum: SumState | None = None

    def keep(self, context: Context) -> None:
        """Record that this mask is used; to be called before the reply is sent."""
        super(SharedMasking, self).keep(context)
        if self.sum is not None:
            self.sum.keep(context)


def answered(context: Context, question: ConfigRecord, agent: str) -> RecordDict | None:
    """Return the answer to a question of such a sum, None for any other.

    Privacy: public keys and sealed shares of fresh random numbers, a signature of what was sent,
    and shares of these numbers; nothing depends on a record. What they open is one sum of at least
    ``sum-threshold`` uploads, of many agents one over more than half of them.

    Raises
    ------
    WireError, MaskError
        If the question is none that is answered.
    BudgetRefused
        If the node's pinned keys, or the file of what it has signed, cannot be used.
    """
    kind = question.get("kind")
    if kind not in (SUM_KEYS, SURVIVORS, SHARES, SEED):
        return None
    if question.get("contract") != CONTRACT_VERSION:
        raise WireError(f"question for {kind} is of another version of the contract")
    if kind == SUM_KEYS:
        return record_dict({RECORD: keys_record(agent, _draw(context, question, agent))})
    if kind == SEED:
        return record_dict({RECORD: seed_record(agent, _give_seed(context, question, agent))})
    state, known, survivors = _stated(context, question, agent)
    if kind == SURVIVORS:
        signature = _sign(context, agent, state, known, survivors)
        return record_dict({RECORD: signature_record(agent, signature)})
    given = _give(context, question, agent, state, known, survivors)
    if isinstance(known.shared, NeighbourSum):
        gave = known.secrets.sign(known.shared.gave)
        return record_dict({RECORD: shares_record(agent, b"", given, gave)})
    return record_dict({RECORD: shares_record(agent, known.secrets.own, given)})


def _draw(context: Context, question: ConfigRecord, agent: str) -> SumKeys:
    """Draw keys for a sum, and share out what opens them: once an attempt."""
    state, run = asked_for(context, question, agent)
    threshold, trust = read_field(question, THRESHOLD, int), node_rules(context).trust(agent)
    _require_pinned(context, trust, agent, run.names, threshold)
    if (run.round, CLOSED) == (state.round, state.attempt):
        raise MaskError(
            f"secure sum: this agent has given its shares of a sum of round {run.round}, and of "
            f"more than {MOST_COMPLETE} agents a round has one",
            Told.SHARED_BEFORE,
        )
    known = SumState.read(context, state)
    last = (state.round, state.attempt)
    if known is not None:
        last = max(last, (known.shared.run.round, known.shared.run.attempt))
    if (run.round, run.attempt) <= last:
        raise MaskError(
            f"secure sum: asked for keys of round {run.round} attempt {run.attempt} after round "
            f"{last[0]} attempt {last[1]}; they are drawn once",
            Told.MASK_ONCE,
        )
    if trust is not None:
        use_once(trust, state, run, Told.SIGNED_BEFORE)
    secrets, shared = SumSecrets.fresh(), begun(run, threshold, agent)
    holders, public = shared.holders(agent), secrets.public
    shares = secrets.shares(threshold, len(holders))
    sealed = Boxes(state.keys, run).sealed(public, holders, shares)
    SumState(agent, shared, secrets).keep(context)
    signature = trust.sign(keys_statement(run, threshold, public)) if trust is not None else b""
    drawn = shared.marks(holders) if isinstance(shared, NeighbourSum) else b""
    return SumKeys(public, signature, tuple(sealed), drawn)


def _require_pinned(
    context: Context, trust: Trust | None, agent: str, names: Sequence[str], threshold: int
) -> None:
    """Refuse a roster with too few pinned peers, or too many others for its threshold.

    Whoever is no pinned peer counts as in league with the coordinator where keys are pinned.
    """
    colluders = LEAST_COLLUDERS
    if trust is not None:
        trust.require_peers(agent, names, node_rules(context).least_trusted)
        strangers = sum(name != agent and name not in trust.peers for name in names)
        colluders = max(colluders, trust.colluders) + strangers
    require_threshold(threshold, len(names), colluders)
    if len(names) > MOST_COMPLETE:  # what is opened is over more than half of the others
        least, hidden = node_rules(context).least_trusted, (len(names) - colluders) // 2
        if hidden < least:
            raise MaskError(
                f"roster: a sum of {len(names)} agents of whom {colluders} may help the "
                f"coordinator hides an agent among {hidden} others, and this node takes part in "
                f"one with {least}"
            )


def plan_shared(
    context: Context,
    instruction: Instruction,
    agent: str,
    factory: MaskFactory | None,
    threshold: int,
    *,
    shared: bool,
    repeats: bool,
) -> Masking | None:
    """Return the masking of an upload to such a sum, as `plan_masking` that of any other.

    Raises
    ------
    MaskError
        As `plan_masking`; also if this agent has drawn no keys for this sum, or others than those
        in the message, or noise is shared or masks are given.
    BudgetRefused
        As `plan_masking`.
    """
    state = read_keys(context, instruction.experiment)
    if state is None:
        return None
    if shared or repeats or factory is not None:
        what = "noise-sharing" if shared else "masks that are handed in from outside"
        # What an analysis' file knows of a sum is its roster, and not the list that was opened.
        what = "an analysis, whose sums cost nothing to ask for again" if repeats else what
        raise MaskError(f"sum-threshold = {threshold}: not with {what}")
    run = bound(instruction)
    trust = node_rules(context).trust(agent)
    require_fresh(state, run, repeats=False, known=known_by(trust, agent))
    known = SumState.read(context, state)
    if (
        known is None
        or known.agent != agent
        or (known.shared.run, known.shared.threshold) != (run, threshold)
    ):
        raise MaskError(OTHER_KEYS)
    keys = instruction.sum_keys
    summed = known.shared.told(agent, known.secrets.public, keys, instruction.choosers)
    _require_pinned(context, trust, agent, run.names, threshold)
    if trust is not None:
        said = [keys_statement(run, threshold, key) for key in keys]
        trust.require_signed(summed.neighbours(agent), said, instruction.signed)
    source = DoubleMasks(summed, known.secrets)
    source.require(agent, summed.binding)
    if trust is not None:
        use_once(trust, state, run)
    before = summed_before(state, run.round)
    kept = replace(known, shared=summed, before=before)
    pinned = trust is not None
    return SharedMasking(agent, summed.binding, source, state, pinned=pinned, sum=kept)


def _asked_of(context: Context, question: ConfigRecord) -> tuple[MaskState | None, SumState | None]:
    """Return this agent's keys, and the sum that it has masked an upload to, if asked about it.

    It is None once the agent has masked one to a later sum, of whatever kind: a list of the earlier
    one could have exactly one agent more than that.
    """
    state = read_keys(context, read_experiment(question))
    known = SumState.read(context, state)
    if state is None or known is None or not known.shared.keys:
        return state, None
    asked = read_field(question, "round", int), read_field(question, "attempt", int)
    run, last = known.shared.run, (state.round, state.attempt)
    is_last = last in ((run.round, run.attempt), (run.round, CLOSED))
    return state, known if is_last and asked == (run.round, run.attempt) else None


def _stated(
    context: Context, question: ConfigRecord, agent: str
) -> tuple[MaskState, SumState, tuple[str, ...]]:
    """Return this agent's sum of an attempt, and the survivors whose list is one to be opened."""
    state, known = _asked_of(context, question)
    if state is None or known is None or known.gave:
        round_, attempt = (read_field(question, key, int) for key in ("round", "attempt"))
        raise MaskError(
            f"survivors: this agent has masked no upload of round {round_} attempt {attempt}, "
            "or one of a later sum since, or has given its shares of that sum"
        )
    marks = read_field(question, "marks", bytes)
    survivors = known.shared.listed(marks)
    known.shared.require_survivors(agent, survivors)
    rules = node_rules(context)
    if (trust := rules.trust(agent)) is not None:
        trust.require_peers(agent, survivors, rules.least_trusted)
    if known.before:
        asked = known.shared.run.round, known.shared.run.attempt
        require_chain(known.before, survivors, *asked, known_by(trust, agent))
    if known.marks not in (b"", marks):
        raise MaskError(Told.OTHER_LIST)
    return state, known, survivors


def _sign(
    context: Context,
    agent: str,
    state: MaskState,
    known: SumState,
    survivors: tuple[str, ...],
) -> bytes:
    """Return the signature of a list of survivors, one for each sum."""
    if known.marks:
        raise MaskError(Told.OTHER_LIST)
    if (trust := node_rules(context).trust(agent)) is not None:
        use_once(trust, state, known.shared.run, Told.OTHER_LIST)
    _note(context, state, known, survivors)
    return known.secrets.sign(known.shared.said(survivors))


def _give(
    context: Context,
    question: ConfigRecord,
    agent: str,
    state: MaskState,
    known: SumState,
    survivors: tuple[str, ...],
) -> list[bytes | None]:
    """Return one share of each other agent: of its own mask if it is listed, else of its key."""
    shared = known.shared
    holders, givers = shared.holders(agent), shared.givers(agent)
    signed = read_field(question, "signed", bytes)
    sealed = read_field(question, "sealed", bytes)
    signatures = split(signed, SIGNATURE_BYTES, len(holders), "signatures")
    boxes = split(sealed, SEALED_BYTES, len(givers), "sealed shares")
    shared.require_signed(agent, survivors, signatures)
    if (trust := node_rules(context).trust(agent)) is not None:
        use_once(trust, state, shared.run, Told.SHARED_BEFORE)
    many = isinstance(shared, NeighbourSum)
    if many or not known.marks:  # or it has signed the list
        _note(context, state, known, survivors, closes=many)
    if not many:
        del context.state[SUM_RECORD]  # it answers no more for this sum
    given: list[bytes | None] = []
    opener, listed = Boxes(state.keys, shared.run), set(survivors)
    for name, box in zip(givers, boxes, strict=True):
        shares = opener.opened(name, shared.key_of(name), box) if name != agent else None
        given.append(shares and share_to_give(shares, survives=name in listed))
    return given


def _give_seed(context: Context, question: ConfigRecord, agent: str) -> bytes:
    """Return the seed of this agent's own mask, of a sum of many, once its holders gave shares."""
    _, known = _asked_of(context, question)
    if known is None or not known.gave or not isinstance(known.shared, NeighbourSum):
        raise MaskError("survivors: this agent has given no shares of that sum, or its seed")
    holders, signed = known.shared.holders(agent), read_field(question, "signed", bytes)
    signatures = split(signed, SIGNATURE_BYTES, len(holders), "signatures")
    known.shared.require_given(agent, signatures)
    del context.state[SUM_RECORD]  # it answers no more for this sum
    return known.secrets.own


def _note(
    context: Context,
    state: MaskState,
    known: SumState,
    survivors: tuple[str, ...],
    *,
    closes: bool = False,
) -> None:
    """Store the list: it is the roster that the next sum is compared with, or closes the round."""
    attempt = CLOSED if closes else state.attempt
    context.state[MASK_RECORD] = replace(state, names=survivors, attempt=attempt).to_record()
    replace(known, marks=known.shared.marks(survivors), gave=closes).keep(context)
