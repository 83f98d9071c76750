"""A coordinator that lies to the nodes of a sum of more than 100, each with pinned keys.

Each node knows the neighbours that it has drawn, and who has drawn it. All messages are the
coordinator's own; each attempt gets a text of the closed list, and is one line at the node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from privet.agents.survivors import SUM_RECORD
from privet.kernel import Told, key_pair
from privet.kernel.neighbours import NEIGHBOURS, least_threshold
from privet.kernel.survivors import SEALED_BYTES, NeighbourSum, SumSecrets, open_sum
from privet.sim.engine import InlineGrid
from privet.wire.rosters import read_signature, with_signatures
from privet.wire.survivors import (
    GivenShares,
    SumKeys,
    of_neighbours,
    read_seed,
    read_shares,
    seed_question,
    shares_question,
    survivors_question,
)
from redteam.test_lying_survivors import NONE, Teller
from redteam.test_shared_noise import DIM, Words

COUNT = 101
THRESHOLD = least_threshold(COUNT, 1)
EVERY = tuple(map(str, range(COUNT)))
TOLD = {"settings": {"sum-threshold": THRESHOLD}}


class Many(Teller):
    """A coordinator of nodes "0", "1", ... of whom each has pinned the keys of all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, COUNT, 30)
        self.record = self.shared(self.keys, **TOLD)

    def begin(self, **told: Any) -> None:
        self.record = self.shared(self.keys, **{**TOLD, **told})
        self.drawn: dict[str, SumKeys] = {}

    def draw(
        self, name: str, record: ConfigRecord | None = None, threshold: int = THRESHOLD
    ) -> SumKeys | str:
        return super().draw(name, record, threshold)

    def draw_all(self) -> ConfigRecord:
        for name in self.names(self.record):
            drawn = self.draw(name)
            assert not isinstance(drawn, str), self.said
            self.drawn[name] = drawn
        return self.record

    @property
    def sum(self) -> NeighbourSum:
        run = replace(super().sum, threshold=THRESHOLD)
        names = run.names
        drawn = {name: run.listed(self.drawn[name].drawn) for name in names}
        return NeighbourSum(run.run, THRESHOLD, run.keys, drawn)

    def of(
        self,
        name: str,
        keys: Mapping[str, bytes] | None = None,
        choosers: Collection[str] | None = None,
        **changes: Any,
    ) -> ConfigRecord:
        """Return the record that asks a node for its upload."""
        summed = self.sum
        others = summed.neighbours(name)
        if choosers is not None:
            drew = [one for one in summed.names if one in choosers]
            drawn = {**dict.fromkeys(drew, (name,)), name: summed.holders(name)}
            others = NeighbourSum(summed.run, THRESHOLD, (), drawn).neighbours(name)
        told = of_neighbours(
            [(keys or {}).get(other, summed.key_of(other)) for other in others],
            [self.drawn[other].signature for other in others],
            summed.marks(summed.givers(name) if choosers is None else choosers),
        )
        return ConfigRecord({**self.record, **told, **changes})

    def uploaded(self, names: Collection[str] = EVERY) -> dict[str, Words]:
        self.draw_all()
        uploads: dict[str, Words] = {}
        for name in names:
            words = self.upload(name, self.of(name))
            assert not isinstance(words, str), self.said
            uploads[name] = words
        return uploads

    def sign_list(self, name: str, listed: Collection[str], **changes: Any) -> bytes | str:
        question = survivors_question(self.record, self.sum.marks(listed))
        answer = self.question(name, ConfigRecord({**question, **changes}))
        return answer if isinstance(answer, str) else read_signature(answer, "privet", name)

    def ask_shares(
        self, name: str, listed: Collection[str], signed: Mapping[str, bytes], **changes: Any
    ) -> GivenShares | str:
        summed = self.sum
        givers = summed.givers(name)
        sealed = [self.drawn[one].sealed[summed.holders(one).index(name)] for one in givers]
        every = [signed.get(one, NONE) for one in summed.holders(name)]
        question = shares_question(self.record, summed.marks(listed), every, sealed)
        answer = self.question(name, ConfigRecord({**question, **changes}))
        if isinstance(answer, str):
            return answer
        return read_shares(answer, "privet", name, summed.givers)

    def ask_seed(self, name: str, gave: Mapping[str, bytes], **changes: Any) -> bytes | str:
        every = [gave.get(one, NONE) for one in self.sum.holders(name)]
        answer = self.question(name, ConfigRecord({**seed_question(self.record, every), **changes}))
        return answer if isinstance(answer, str) else read_seed(answer, "privet", name)


@pytest.fixture
def many(tmp_path: Path) -> Many:
    return Many(tmp_path)


@pytest.mark.slow
def test_the_sum_and_then_nothing_more(many: Many) -> None:
    """An honest coordinator opens it; and what it asks besides, before and after, it is refused."""
    gone = ("7", "30", "99")
    left = tuple(name for name in EVERY if name not in gone)
    uploads = many.uploaded([*left, "7"])  # the last comes late
    signed = many.signatures_of(left)
    summed = many.sum
    first = left[0]
    # Before it is certain that its own keys stay hidden, it gives nothing.
    few = {one: signed[one] for one in summed.holders(first) if one in signed}
    few = dict(list(few.items())[: THRESHOLD - 1])
    others = {one: signed[one] for one in left if one not in summed.holders(first)}
    line = f"{THRESHOLD - 1} of those listed have signed this list"
    many.declined(many.ask_shares(first, left, {**few, **others}), first, Told.ROSTER, line)
    many.declined(many.ask_seed(first, {}), first, Told.ROSTER, "has given no shares of that sum")
    answer = many.ask_shares(first, EVERY, signed)
    many.declined(answer, first, Told.OTHER_LIST, "signed a list of survivors of this sum")
    given: dict[str, GivenShares] = {}
    for name in left:
        answer = many.ask_shares(name, left, signed)
        assert isinstance(answer, GivenShares), many.said
        assert answer.own == b""
        assert set(answer.shares) == set(summed.givers(name))
        given[name] = answer
    many.declined(many.ask_shares(first, left, signed), first, Told.ROSTER, "has given its shares")
    gave = {name: one.gave for name, one in given.items()}
    few = {one: gave[one] for one in summed.holders(first) if one in gave}
    few = dict(list(few.items())[: THRESHOLD - 1])
    line = f"{THRESHOLD - 1} of those who hold shares of this agent have given theirs"
    many.declined(many.ask_seed(first, few), first, Told.ROSTER, line)
    many.declined(many.ask_seed(first, signed), first, Told.ROSTER, "0 of those who hold shares")
    own = {}
    for name in left[:-4]:
        seed = many.ask_seed(name, gave)
        assert isinstance(seed, bytes), many.said
        own[name] = seed
    many.declined(many.ask_seed(first, gave), first, Told.ROSTER, "has given no shares of that sum")
    # The sum of those on the list is opened, and the late upload is not.
    total = np.add.reduce([uploads[name] for name in left])
    shares = {name: one.shares for name, one in given.items()}
    open_sum(total, summed, left, shares, own)
    assert int(total.view(np.int64)[DIM]) == len(left) * 2**40
    assert [len(many.charged(name)) for name in EVERY] == [
        int(name in left or name == "7") for name in EVERY
    ]
    # Who has given shares is in no further attempt of the round; another round is another sum.
    many.begin(attempt=2)
    line = "given its shares of a sum of round 1, and of more than 100 agents a round has one"
    many.declined(many.draw(first), first, Told.SHARED_BEFORE, line)
    assert isinstance(many.draw(gone[0]), SumKeys), many.said
    # Nor in one without sum-threshold, whatever its number.
    for attempt, told in ((2, Told.MASK_ONCE), (2**53 - 1, Told.MASK_ONCE), (2**53, Told.MESSAGE)):
        many.record = many.shared(many.keys, attempt=attempt)
        signed = many.signatures(many.record)
        plain = with_signatures(many.record, {name: signed.get(name, NONE) for name in EVERY})
        assert many.upload(first, plain) == f"agent {first}: {told}", many.said
    many.begin(round_=2)
    assert isinstance(many.draw(first), SumKeys), many.said


def test_a_victim_and_its_holders_are_told_another_list(many: Many) -> None:
    """Its holders sign the list that it has; but theirs have not, and its seed it keeps."""
    many.uploaded()
    summed, victim = many.sum, "0"
    holders = summed.holders(victim)[:THRESHOLD]
    mine = tuple(name for name in EVERY if name in (victim, *holders))
    signed = {name: many.sign_list(name, mine) for name in mine}
    assert isinstance(many.ask_shares(victim, mine, signed), GivenShares)  # type: ignore[arg-type]
    gave: dict[str, bytes] = {}
    for name in holders:
        answer = many.ask_shares(name, mine, signed)  # type: ignore[arg-type]
        if isinstance(answer, GivenShares):
            gave[name] = answer.gave
        else:
            line = "of those listed have signed this list, and sum-threshold is"
            many.declined(answer, name, Told.ROSTER, line)
    assert len(gave) < THRESHOLD
    forged = {name: SumSecrets.fresh().sign(summed.gave) for name in holders}
    line = f"{len(gave)} of those who hold shares of this agent have given theirs"
    many.declined(many.ask_seed(victim, {**forged, **gave}), victim, Told.ROSTER, line)


def test_lies_before_the_upload(many: Many) -> None:
    many.draw_all()
    summed, name = many.sum, "3"
    (peer, *_), (giver, *_) = summed.holders(name), summed.givers(name)
    mine = SumSecrets.fresh().public
    for other in (peer, giver):
        answer = many.upload(name, many.of(name, {other: mine}))
        many.declined(answer, name, Told.UNSIGNED, f"agent {other} has not signed these keys")
    told = many.of(name)
    for changes, line in (
        ({"choosers": b"\x01" * COUNT}, "are said to have drawn this one"),
        ({"choosers": b"\x01" * (COUNT - 1)}, "is none of this sum's agents"),
        ({"choosers": b"", "sum-keys": b"", "signed": b""}, "is none of this sum's agents"),
        ({"sum-keys": b"", "signed": b""}, "no keys for this sum, or other ones"),
        ({"round": 2}, "no keys for this sum, or other ones"),
    ):
        answer = many.upload(name, ConfigRecord({**told, **changes}))
        many.declined(answer, name, Told.ROSTER, line)
    assert many.charged(name) == []
    # One that says to have drawn it, and has not, only keeps the sum closed.
    stranger = next(one for one in EVERY if one not in (*summed.neighbours(name), name))
    words = many.upload(name, many.of(name, choosers=(*summed.givers(name), stranger)))
    assert not isinstance(words, str), many.said


@pytest.mark.parametrize("threshold", [0, THRESHOLD - 1, NEIGHBOURS + 1, COUNT, 2**20])
def test_a_threshold_that_lets_a_few_be_opened(many: Many, threshold: int) -> None:
    answer = many.draw("0", threshold=threshold)
    line = "of 64 neighbours each of 101 agents of whom 1 may help the coordinator, it is {} to 64"
    many.declined(answer, "0", Told.ROSTER, line.format(THRESHOLD))


def test_invented_agents_count_as_the_coordinator_s_own(many: Many) -> None:
    invented = {f"ward-{place}": key_pair().public for place in range(60)}
    known = {name: many.keys[name] for name in EVERY[:60]}
    answer = many.draw("0", many.shared({**known, **invented}, **TOLD), 64)
    line = "hides an agent among 29 others, and this node takes part in one with 30"
    many.declined(answer, "0", Told.ROSTER, line)
    answer = many.draw("0", many.shared({**known, **invented}, **TOLD))
    many.declined(answer, "0", Told.ROSTER, "of 120 agents of whom 61 may help the coordinator")


@pytest.mark.slow
def test_a_node_that_forgot_draws_and_signs_nothing_twice(many: Many) -> None:
    many.uploaded()
    context = many.grid.contexts[many.nodes[0]]
    before = dict(context.state.items())
    signed = many.signatures_of(EVERY)
    context.state[SUM_RECORD] = before[SUM_RECORD]
    answer = many.sign_list("0", EVERY[:-1])
    many.declined(answer, "0", Told.OTHER_LIST, "signed a list of survivors of this sum")
    assert isinstance(many.ask_shares("0", EVERY, signed), GivenShares)
    context.state[SUM_RECORD] = before[SUM_RECORD]
    answer = many.ask_shares("0", EVERY, signed)
    many.declined(answer, "0", Told.SHARED_BEFORE, "given its shares of this sum before")
    many.declined(many.ask_seed("0", {}), "0", Told.ROSTER, "has given no shares of that sum")


@pytest.mark.slow
def test_fields_of_no_form(many: Many) -> None:
    many.uploaded()
    signed = many.signatures_of(EVERY)
    for changes in ({"sealed": NONE[:SEALED_BYTES]}, {"sealed": b""}, {"marks": b""}):
        assert isinstance(many.ask_shares("0", EVERY, signed, **changes), str)
    answer = many.ask_shares("0", EVERY, signed)
    assert isinstance(answer, GivenShares), many.said
    assert isinstance(many.ask_seed("0", {}, signed=b"short"), str)


def test_nodes_without_peers_of_all_names(tmp_path: Path) -> None:
    """A neighbour without a pinned key is no reason to refuse; it counts as the coordinator's."""
    many = Many(tmp_path)
    peers = Path(many.configs[0]["trust-peers"])
    lines = [line for line in peers.read_text().splitlines(True) if not line.startswith('"100"')]
    own = tmp_path / "peers-of-0.toml"
    own.write_text("".join(lines))
    many.configs[0] = {**many.configs[0], "trust-peers": str(own)}
    many.grid = InlineGrid(many.app, many.configs)
    many.enrol()
    many.begin()
    answer = many.draw("0")
    least = least_threshold(COUNT, 2)
    many.declined(answer, "0", Told.ROSTER, f"of whom 2 may help the coordinator, it is {least}")
