"""Sums of many agents, who have drawn their neighbours: exact, and one sum whatever is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.kernel import Binding, KeyPair, MaskError, key_pair
from privet.kernel.neighbours import MOST_COMPLETE, NEIGHBOURS, draw, least_threshold
from privet.kernel.survivors import (
    SEED_BYTES,
    SHARE_BYTES,
    DoubleMasks,
    NeighbourSum,
    SharedSum,
    SumSecrets,
    begun,
    open_sum,
    pair_keys_of,
    require_threshold,
    share_to_give,
)

Words = NDArray[np.uint64]
COUNT, SIZE = 104, 20
THRESHOLD = least_threshold(COUNT, 1)


@dataclass(frozen=True)
class Many:
    """The agents of one sum with all that they hold; nothing here checks what they are asked."""

    all: NeighbourSum
    secrets: Mapping[str, SumSecrets]
    shares: Mapping[str, Mapping[str, bytes]]
    plain: Mapping[str, Words]

    @classmethod
    def fresh(cls) -> Many:
        names = [f"site-{place}" for place in range(COUNT)]
        run: dict[str, KeyPair] = {name: key_pair() for name in names}
        secrets = {name: SumSecrets.fresh() for name in names}
        roster = tuple((name, keys.public) for name, keys in run.items())
        binding = Binding("run", 1, 1, roster, bytes(32))
        drawn = {name: begun(binding, THRESHOLD, name).holders(name) for name in names}
        keys = tuple(secrets[name].public for name in names)
        shares: dict[str, dict[str, bytes]] = {name: {} for name in names}
        for name in names:
            each = secrets[name].shares(THRESHOLD, NEIGHBOURS)
            for holder, share in zip(drawn[name], each, strict=True):
                shares[holder][name] = share
        rng = np.random.default_rng(0)
        words = {name: rng.integers(0, 2**64, SIZE, np.uint64, endpoint=False) for name in names}
        return cls(NeighbourSum(binding, THRESHOLD, keys, drawn), secrets, shares, words)

    def seen(self, name: str) -> SharedSum:
        """Return the sum as one agent knows it."""
        own = NeighbourSum(self.all.run, THRESHOLD, (), {name: self.all.holders(name)})
        keys = [self.all.key_of(other) for other in self.all.neighbours(name)]
        choosers = self.all.marks(self.all.givers(name))
        return own.told(name, self.secrets[name].public, keys, choosers)

    def upload(self, name: str) -> Words:
        words, seen = self.plain[name].copy(), self.seen(name)
        DoubleMasks(seen, self.secrets[name]).apply(words, name, seen.binding)
        return words

    def given(
        self, holders: Collection[str], survivors: Collection[str]
    ) -> dict[str, dict[str, bytes]]:
        return {
            holder: {
                name: share_to_give(shares, survives=name in survivors)
                for name, shares in self.shares[holder].items()
            }
            for holder in holders
        }


@pytest.fixture(scope="module")
def many() -> Many:
    return Many.fresh()


def summed(words: Collection[Words]) -> Words:
    total = np.zeros(SIZE, np.uint64)
    for one in words:
        total += one
    return total


@pytest.mark.parametrize("gone", [0, 1, 7, 20])
def test_the_sum_of_those_left_is_exact(many: Many, gone: int) -> None:
    """With seeds of some, and the others' and the keys of those that are gone by shares."""
    rng = np.random.default_rng(gone)
    names = many.all.names
    left = [names[place] for place in sorted(rng.permutation(COUNT)[gone:])]
    holders = left[3:]  # three more that say nothing
    total = summed([many.upload(name) for name in left])
    own = {name: many.secrets[name].own for name in holders}
    open_sum(total, many.all, left, many.given(holders, left), own)
    assert np.array_equal(total, summed([many.plain[name] for name in left]))


def test_a_mask_is_of_neighbours_alone_and_the_same_on_either_side(many: Many) -> None:
    name = many.all.names[5]
    seen = many.seen(name)
    mine = seen.mask_keys(name, pair_keys_of(many.secrets[name].pair))
    assert set(mine) == set(many.all.holders(name)) | set(many.all.givers(name))
    assert NEIGHBOURS <= len(mine) < COUNT - 1
    for other, key in mine.items():
        theirs = many.seen(other).mask_keys(other, pair_keys_of(many.secrets[other].pair))
        assert theirs[name] == key


def test_too_few_holders_left_open_nothing(many: Many) -> None:
    name, left = many.all.names[0], many.all.names[1:]
    holders = [one for one in left if one not in many.all.holders(name)[: NEIGHBOURS // 2]]
    total = summed([many.upload(name) for name in left])
    own = {one: many.secrets[one].own for one in left}
    with pytest.raises(MaskError, match=f"32 agents gave a share of agent {name}, and sum-thresh"):
        open_sum(total, many.all, left, many.given(holders, left), own)


def test_a_late_upload_keeps_its_own_mask(many: Many) -> None:
    name = many.all.names[9]
    late, seen = many.upload(name), many.seen(name)
    found = SumSecrets(bytes(SEED_BYTES), many.secrets[name].pair, bytes(32))
    pairs = np.zeros(SIZE, np.uint64)
    DoubleMasks(seen, found).apply(pairs, name, seen.binding)
    assert not np.any(late - pairs == many.plain[name])


def test_what_an_agent_is_told_is_refused_where_it_is_none(many: Many) -> None:
    name = many.all.names[2]
    own = NeighbourSum(many.all.run, THRESHOLD, (), {name: many.all.holders(name)})
    keys = [many.all.key_of(other) for other in many.all.neighbours(name)]
    choosers, public = many.all.marks(many.all.givers(name)), many.secrets[name].public
    own.told(name, public, keys, choosers)
    for changed in (b"", choosers[1:], b"\x02" + choosers[1:]):
        with pytest.raises(MaskError, match="is none of this sum's agents"):
            own.told(name, public, keys, changed)
    with pytest.raises(MaskError, match="are said to have drawn this one"):
        own.told(name, public, keys, many.all.marks([name]))
    for some in (keys[1:], [*keys, keys[0]], []):
        with pytest.raises(MaskError, match="no keys for this sum, or other ones"):
            own.told(name, public, some, choosers)
    twice = own.told(name, public, [keys[1], *keys[1:]], choosers)
    with pytest.raises(MaskError, match="two neighbours are said to have one public key"):
        twice.require_usable(name, pair_keys_of(many.secrets[name].pair))
    bad = own.told(name, public, [bytes(64), *keys[1:]], choosers)
    with pytest.raises(MaskError, match="is not usable with X25519"):
        bad.require_usable(name, pair_keys_of(many.secrets[name].pair))
    with pytest.raises(MaskError, match="no keys for this sum, or other ones"):
        own.told(name, public, keys, choosers).require_usable(name, pair_keys_of(bytes(16)))


def test_the_sum_of_an_agent_is_of_its_terms_alone(many: Many) -> None:
    """Agents with other terms share no mask: what a mask is bound to differs."""
    one = many.all
    run = one.run
    others = [
        replace(one, threshold=THRESHOLD + 1),
        replace(one, run=replace(run, round=2)),
        replace(one, run=replace(run, attempt=2)),
        replace(one, run=replace(run, task=bytes(31) + b"\x01")),
        replace(one, run=replace(run, roster=run.roster[::-1])),
        SharedSum(run, THRESHOLD, one.keys),
    ]
    assert len({each.digest for each in (one, *others)}) == len(others) + 1
    assert len({each.gave for each in (one, *others)}) == len(others) + 1
    assert one.gave != one.said(one.names)


def test_signatures_count_of_holders_alone(many: Many) -> None:
    name = many.all.names[0]
    seen, survivors = many.seen(name), many.all.names
    said = seen.said(survivors)
    signed = [many.secrets[one].sign(said) for one in seen.holders(name)]
    gave = [many.secrets[one].sign(seen.gave) for one in seen.holders(name)]
    few, none = THRESHOLD - 1, bytes(64)
    seen.require_signed(name, survivors, signed)
    seen.require_given(name, gave)
    others = [one for one in survivors if one not in seen.holders(name)]
    strange = [many.secrets[others[place % len(others)]] for place in range(NEIGHBOURS - few)]
    with pytest.raises(MaskError, match=f"{few} of those listed have signed"):
        seen.require_signed(name, survivors, signed[:few] + [o.sign(said) for o in strange])
    with pytest.raises(MaskError, match="0 of those listed have signed"):
        seen.require_signed(name, survivors, gave)
    with pytest.raises(MaskError, match=f"{few} of those who hold shares of this agent have giv"):
        seen.require_given(name, gave[:few] + [none] * (NEIGHBOURS - few))
    with pytest.raises(MaskError, match="0 of those who hold shares of this agent have given"):
        seen.require_given(name, signed)


@pytest.mark.parametrize(("colluders", "hides"), [(1, True), (20, True), (75, True), (80, False)])
def test_thresholds_of_many(colluders: int, hides: bool) -> None:
    count = MOST_COMPLETE + 1
    least = least_threshold(count, colluders)
    line = f"it is {least} to {NEIGHBOURS}" if hides else "no number of them is enough"
    for threshold in (0, least - 1, NEIGHBOURS + 1, 2**20):
        with pytest.raises(MaskError, match=f"of {NEIGHBOURS} neighbours each of {count} agents"):
            require_threshold(threshold, count, colluders)
        with pytest.raises(MaskError, match=line):
            require_threshold(threshold, count, colluders)
    if hides:
        require_threshold(least, count, colluders)
        require_threshold(NEIGHBOURS, count, colluders)


# ---------------------------------------------------------------------- what a coordinator learns

Told = Callable[[int], frozenset[int]]


@dataclass(frozen=True)
class Learned:
    """Of which agents a coordinator has found the seed, and the key."""

    seeds: frozenset[int]
    keys: frozenset[int]


@dataclass(frozen=True)
class Graph:
    """Whom each drew; the last ``colluders`` agents do and say whatever the coordinator wants."""

    drawn: tuple[frozenset[int], ...]
    colluders: int
    threshold: int

    @classmethod
    def of(cls, count: int, colluders: int) -> Graph:
        drawn = tuple(frozenset(draw(count, place)) for place in range(count))
        return cls(drawn, colluders, least_threshold(count, colluders))

    @property
    def honest(self) -> range:
        return range(len(self.drawn) - self.colluders)

    @property
    def helpers(self) -> frozenset[int]:
        return frozenset(range(len(self.drawn))) - frozenset(self.honest)

    def learned(self, told: Told, *, early: bool = False) -> Learned:
        """Play the honest agents' rules for the list that each is told.

        ``early``: as if an agent gave its own seed with its shares, for signatures alone.
        """
        t, helpers = self.threshold, self.helpers
        lists = {one: told(one) for one in self.honest}
        signers: dict[frozenset[int], frozenset[int]] = {}
        for one, listed in lists.items():
            if one in listed:
                signers[listed] = signers.get(listed, frozenset()) | {one}
        gave = {
            one
            for one, listed in lists.items()
            if one in listed and len(self.drawn[one] & listed & (signers[listed] | helpers)) >= t
        }
        seeds, keys = set(), set()
        for one in self.honest:
            of_seed = sum(h in helpers or (h in gave and one in lists[h]) for h in self.drawn[one])
            of_key = sum(
                h in helpers or (h in gave and one not in lists[h]) for h in self.drawn[one]
            )
            own = one in gave and (early or len(self.drawn[one] & (gave | helpers)) >= t)
            if own or of_seed >= t:
                seeds.add(one)
            if of_key >= t:
                keys.add(one)
        return Learned(frozenset(seeds), frozenset(keys))

    def opened(self, learned: Learned) -> list[set[int]]:
        """Return the sets of honest agents of which the coordinator can find the sum of uploads.

        Masks of pairs are left between those whose keys it has not: it needs all that hang
        together, and their seeds.
        """
        rest = set(self.honest) - learned.keys
        found: list[set[int]] = []
        while rest:
            part, grown = set(), [rest.pop()]
            while grown:
                one = grown.pop()
                part.add(one)
                near = {o for o in rest if o in self.drawn[one] or one in self.drawn[o]}
                rest -= near
                grown += near
            if part <= learned.seeds:
                found.append(part)
        bare = [{one} for one in learned.seeds & learned.keys]
        return [*found, *bare]


def isolating(graph: Graph, victim: int, chosen: int) -> Told:
    """Tell a victim and some of its holders one list; all others one without its neighbours."""
    holders = sorted(graph.drawn[victim] & frozenset(graph.honest))[:chosen]
    near = graph.drawn[victim] | {o for o in graph.honest if victim in graph.drawn[o]} | {victim}
    mine = frozenset({victim, *holders}) | graph.helpers
    others = (frozenset(range(len(graph.drawn))) - near) | graph.helpers
    return lambda one: mine if one in mine else others


def require_one_large_sum(graph: Graph, learned: Learned) -> None:
    assert not learned.seeds & learned.keys
    opened = graph.opened(learned)
    assert len(opened) <= 1
    assert all(len(part) > len(graph.honest) / 2 for part in opened)


@pytest.mark.parametrize(("count", "colluders"), [(110, 1), (400, 1), (1000, 1), (1000, 50)])
def test_no_victim_is_isolated(count: int, colluders: int) -> None:
    graph = Graph.of(count, colluders)
    early = 0
    for victim in range(5):
        told = isolating(graph, victim, graph.threshold)
        require_one_large_sum(graph, graph.learned(told))
        early += {victim} in graph.opened(graph.learned(told, early=True))
    # Where agents are many, seeds that are given for signatures alone are an upload that is read.
    assert early == 5 or (count, colluders) != (1000, 1)


@pytest.mark.parametrize(("count", "colluders"), [(101, 1), (101, 40), (300, 30), (1000, 100)])
def test_whatever_lists_are_told_one_sum_of_more_than_half_is_opened(
    count: int, colluders: int
) -> None:
    graph = Graph.of(count, colluders)
    rng = np.random.default_rng(count + colluders)
    opened = 0
    for _ in range(60 if count < 1000 else 12):
        # Two to four lists, each of some of the agents; told at random, or to those on them.
        number = int(rng.integers(1, 5))
        parts = [rng.random(count) < rng.choice([0.55, 0.8, 0.95, 1.0]) for _ in range(number)]
        lists = [frozenset(np.flatnonzero(part).tolist()) | graph.helpers for part in parts]
        weights = rng.dirichlet(np.full(number, 0.3))
        which = rng.choice(number, count, p=weights)
        learned = graph.learned(lambda one: lists[which[one]])  # noqa: B023
        require_one_large_sum(graph, learned)
        opened += len(graph.opened(learned))
    assert opened > 0  # or nothing was at stake


def test_halves_are_not_opened_by_lists_of_their_own() -> None:
    """A split of the agents by whom they drew most, as greedy as it goes."""
    graph = Graph.of(200, 1)
    half = set(range(100))
    for _ in range(10):  # who has more holders on the other side changes it
        inside = {one: len(graph.drawn[one] & half) for one in graph.honest}
        half = set(sorted(graph.honest, key=lambda one: -inside[one])[:100])
    lists = [frozenset(half) | graph.helpers, frozenset(range(200)) - half | graph.helpers]
    learned = graph.learned(lambda one: lists[one not in half])
    require_one_large_sum(graph, learned)


def test_shares_are_of_the_size_that_travels(many: Many) -> None:
    holder = many.all.holders(many.all.names[0])[0]
    assert {len(one) for one in many.shares[holder].values()} == {SHARE_BYTES}
