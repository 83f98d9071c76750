"""Secure sums that open without the agents that dropped out, on the server.

Before their uploads the agents of a group draw keys for the sum (`prepare`, in place of a signature
alone). Once uploads have come, or the time for them is over, the server states one list of the
agents whose uploads it has; they sign it, and those that are left give shares, by which the masks
of the sum are found (`privet.kernel.survivors`). No agent uploads again, and an upload that is not
on the list is not used.

Where the shares of one agent do not give the secret that a sum needs of it, the others are asked,
and charged, again without it (`SpoiltError`). Where the seed that an agent gives of its own mask is
wrong, shares find the right one.

Where fewer than ``sum-threshold`` agents are left there is no sum, and what they were charged
stands: the round is tried again as one with too few replies is. Two sums of a round may not differ
by exactly one agent (`MaskedSums`): then a list lacks another agent, drawn by the run's seed, whose
upload came.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from privet.core.errors import WireError, one_line
from privet.kernel import MaskError
from privet.kernel.masks import Binding, is_usable
from privet.kernel.neighbours import MOST_COMPLETE
from privet.kernel.survivors import (
    LEAST_COLLUDERS,
    NeighbourSum,
    SharedSum,
    SpoiltError,
    by_shares,
    open_sum,
    require_threshold,
)
from privet.kernel.trust import KEY_BYTES, SIGNATURE_BYTES, is_signed
from privet.wire import Update, ring
from privet.wire.rosters import read_signature, with_signatures
from privet.wire.survivors import (
    SumKeys,
    keys_question,
    of_neighbours,
    read_keys,
    read_seed,
    read_shares,
    seed_question,
    shares_question,
    survivors_question,
    with_keys,
)

from ..exchange import Reply
from ..failure import Failure, FailureCode
from ..roster import ENROL_TIMEOUT, Question
from .ask import messages_for
from .masked import MOST_ATTEMPTS, UNCANCELLED, Attempt, MaskedSums, ask, task_of
from .round import OpenRound

NO_SHARES = (
    "sum-threshold: a sum is opened by exchanges after the uploads, which only this library's "
    "rounds have (Strategy.start, privet run)"
)
ONE_KEY = Failure(FailureCode.DROPPED, "gives the public key of the sum that another agent gives")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the agents of an attempt have agreed on, and by giver the shares that it sealed."""

    shared: SharedSum
    sealed: Mapping[str, Sequence[bytes]]


def _told(summed: NeighbourSum, name: str, signed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what an agent alone is told of a sum of many before its upload."""
    others = summed.neighbours(name)
    none = bytes(SIGNATURE_BYTES)
    return of_neighbours(
        [summed.key_of(other) for other in others],
        [signed.get(other, none) for other in others] if signed else [],
        summed.marks(summed.givers(name)),
    )


def _read_keys(
    content: RecordDict, record: str, name: str, *, places: Mapping[str, int], given: Counter[bytes]
) -> SumKeys:
    """Return an agent's keys of a sum, and count its public one; others refuse what is no such."""
    answer = read_keys(content, record, name, places)
    public = answer.public[:KEY_BYTES]
    if not is_usable(public):
        raise WireError("gives a public key of the sum that X25519 cannot use")
    given[public] += 1
    return answer


def _read_signed(
    content: RecordDict, record: str, name: str, *, summed: SharedSum, said: bytes
) -> bytes:
    """Return an agent's signature of a list; another one would take the place of an honest one."""
    signature = read_signature(content, record, name)
    if not is_signed(summed.key_of(name)[KEY_BYTES:], said, signature):
        raise WireError("its signature is not of the list of survivors")
    return signature


@dataclass
class SurvivorSums(MaskedSums):
    """Collects sums that the agents who are left open.

    Attributes
    ----------
    threshold : int
        t, the agents that open one.
    prepared
        By group, what the agents of its attempt have agreed on.
    """

    threshold: int = 0
    prepared: dict[str, Prepared] = field(default_factory=dict)

    def prepare(
        self, opened: OpenRound, grid: Grid, group: str, attempt: Attempt
    ) -> dict[str, Failure]:
        """Have the agents of a roster draw keys for its sum; return why some do not."""
        names, shared = attempt.names, opened.broadcast.shared[group]
        try:
            require_threshold(self.threshold, len(names), LEAST_COLLUDERS)
        except MaskError as error:
            return dict.fromkeys(names, Failure(FailureCode.LEFT_OUT, str(error)))
        question = keys_question(shared, task_of(shared), self.threshold)
        places, given = {name: place for place, name in enumerate(names)}, Counter[bytes]()
        read = partial(_read_keys, places=places, given=given)
        drawn, failures = ask(opened, grid, dict.fromkeys(names, question), read)
        for name, one in drawn.items():
            if given[one.public[:KEY_BYTES]] > 1:
                failures[name] = ONE_KEY
        if failures:
            return failures
        keys = tuple(drawn[name].public for name in names)
        roster = tuple((name, opened.session.roster.agents[name].public_key) for name in names)
        run = opened.session.experiment, opened.number, attempt.number, roster
        summed = SharedSum(Binding(*run, task_of(shared)), self.threshold, keys)
        signed = {name: one.signature for name, one in drawn.items() if one.signature}
        if len(names) > MOST_COMPLETE:
            whom = {name: summed.listed(drawn[name].drawn) for name in names}
            summed = NeighbourSum(summed.run, self.threshold, keys, whom)
            for name in names:
                opened.broadcast.per_sum[name] = _told(summed, name, signed)
        else:
            signatures = with_signatures(shared, signed) if signed else shared
            opened.broadcast.shared[group] = with_keys(signatures, keys)
            for name in names:
                opened.broadcast.per_sum.pop(name, None)
        self.prepared[group] = Prepared(summed, {name: drawn[name].sealed for name in names})
        return {}

    def retry(
        self, opened: OpenRound, replies: Sequence[Message], grid: Grid, question: Question
    ) -> dict[str, Message]:
        """Open the sums of the uploads that came.

        Nobody is asked for another, but where the shares of one agent spoil a sum: then the group
        is asked again without it, as where an upload is missing from a sum without a threshold.
        """
        by_agent = opened.sort(replies)
        failed: list[str] = []
        spoilt: dict[str, Attempt] = {}
        for group, attempt in list(self.attempts.items()):
            if attempt.failures or attempt.why:  # it has ended, and another was asked again
                continue
            total, updates, failures = self.added(opened, attempt, by_agent)
            failed += failures
            ended = replace(attempt, failures=failures)
            if total is not None:
                try:
                    ended = self._opened(opened, grid, group, ended, total, updates)
                except SpoiltError as error:
                    ended = self._spoilt(opened, ended, error)
                    # Of many agents, who has given shares takes part in no further attempt.
                    if len(ended.names) <= MOST_COMPLETE:
                        spoilt[group] = ended
            if group in self.attempts:
                self.attempts[group] = self.last[group] = ended
        left = max(opened.deadline - time.monotonic(), 0.0)
        lost = self.renew_keys(opened, grid, question, failed, min(ENROL_TIMEOUT, left / 2))
        if not spoilt or opened.tally.tries == MOST_ATTEMPTS or left <= 0:
            return {}
        others, self.attempts = self.attempts, spoilt
        names = self.agree(opened, grid, self._next_attempts(opened, lost))
        self.attempts = others | self.attempts
        return messages_for(opened, names)

    def _spoilt(self, opened: OpenRound, attempt: Attempt, error: SpoiltError) -> Attempt:
        """Return an attempt that the shares of one agent have spoilt, and count it against it."""
        text = one_line(str(error))
        opened.tally.notes.append(f"secure sum, attempt {attempt.number} failed: {text}")
        self._note_spoiled(opened, error.name)
        why = Failure(FailureCode.DROPPED, text)
        return replace(attempt, failures={**attempt.failures, error.name: why}, why=text)

    def _opened(
        self,
        opened: OpenRound,
        grid: Grid,
        group: str,
        attempt: Attempt,
        total: ring.Words,
        updates: dict[str, Update],
    ) -> Attempt:
        """Have the agents whose uploads came open their sum; return the attempt if they do not."""
        failures = dict(attempt.failures)
        listed = list(updates)
        known = [set(before) for before in self.stated[group][:-1]]  # the last is this roster
        while spared := self.spare(opened, group, attempt.number, listed, known):
            mine = ring.from_bytes(updates.pop(spared).payload)
            np.subtract(total.words, mine.words, out=total.words)
        if (left := len(listed)) < self.threshold:
            return replace(attempt, why=self._too_few(left))
        self.state(opened, group, tuple(listed))
        prepared, shared = self.prepared[group], opened.broadcast.shared[group]
        summed, sealed = prepared.shared, prepared.sealed
        marks, names = summed.marks(listed), summed.names
        question = survivors_question(shared, marks)
        asked = dict.fromkeys(listed, question)
        # Of many agents each needs signatures of its own holders.
        enough = self.threshold if len(names) <= MOST_COMPLETE else len(listed)
        read_signed = partial(_read_signed, summed=summed, said=summed.said(listed))
        signed, gone = ask(opened, grid, asked, read_signed, enough)
        failures |= gone
        if len(signed) < self.threshold:
            return replace(attempt, failures=failures, why=self._too_few(len(signed)))
        questions: dict[str, ConfigRecord] = {}
        for name in listed:
            holders, givers = summed.holders(name), summed.givers(name)
            if name in gone or sum(holder in signed for holder in holders) < self.threshold:
                continue
            every = [signed.get(holder, bytes(SIGNATURE_BYTES)) for holder in holders]
            boxes = [sealed[giver][summed.holders(giver).index(name)] for giver in givers]
            questions[name] = shares_question(shared, marks, every, boxes)
        read = partial(read_shares, givers=summed.givers)
        given, silent = ask(opened, grid, questions, read, min(enough, len(questions)))
        failures |= silent
        if len(given) < self.threshold:
            return replace(attempt, failures=failures, why=self._too_few(len(given)))
        shares = {name: one.shares for name, one in given.items()}
        own = {name: one.own for name, one in given.items() if one.own}
        if isinstance(summed, NeighbourSum):
            gave = {name: one.gave for name, one in given.items()}
            own = self._seeds(opened, grid, shared, summed, gave)
        try:
            open_sum(total.words, summed, listed, shares, own)
        except SpoiltError:
            if len(signed) == len(listed):  # nobody of the list compares with the roster any more
                self.stated[group] = [*self.stated[group][:-2], tuple(listed)]
            raise
        if not self.complete(opened, group, total, updates):
            wrong = by_shares(total.words, summed, shares, own)
            if not (wrong and self.complete(opened, group, total, updates)):
                return replace(attempt, failures=dict.fromkeys(names, UNCANCELLED))
            for name in wrong:
                opened.tally.notes.append(f"agent {name}: its own seed is not that of its shares")
        opened.tally.absent |= attempt.failures
        return attempt

    def _seeds(
        self,
        opened: OpenRound,
        grid: Grid,
        shared: ConfigRecord,
        summed: NeighbourSum,
        gave: Mapping[str, bytes],
    ) -> dict[str, bytes]:
        """Ask those of many agents who gave shares for the seeds of their own masks.

        Those of others, and of who does not answer, are found by shares.
        """
        questions: dict[str, ConfigRecord] = {}
        for name in gave:
            holders = summed.holders(name)
            if sum(holder in gave for holder in holders) >= self.threshold:
                signed = [gave.get(holder, bytes(SIGNATURE_BYTES)) for holder in holders]
                questions[name] = seed_question(shared, signed)
        own, _ = ask(opened, grid, questions, read_seed)
        return own

    def _too_few(self, left: int) -> str:
        return f"sum-threshold = {self.threshold}: {left} agents are left to open the sum"

    def _decode_sums(self, opened: OpenRound, replies: Mapping[str, Reply]) -> None:
        """Note why a group has no sum where a loop has asked for uploads alone."""
        for group, attempt in list(self.attempts.items()):
            if not (attempt.failures or attempt.why):
                self.added(opened, attempt, replies)
                why = Failure(FailureCode.LEFT_OUT, NO_SHARES)
                failures = dict.fromkeys(attempt.names, why)
                self.attempts[group] = replace(attempt, failures=failures)
