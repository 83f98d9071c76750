"""Sums that open without the agents that dropped out, against sums of plain ring elements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.kernel import Binding, KeyPair, MaskError, key_pair
from privet.kernel.masks import LEAST_MEMBERS
from privet.kernel.survivors import (
    MOST_CHECKED,
    SEALED_BYTES,
    SEED_BYTES,
    SHARE_BYTES,
    Boxes,
    DoubleMasks,
    SharedSum,
    SumSecrets,
    by_shares,
    keys_statement,
    open_sum,
    pair_keys_of,
    require_threshold,
    share_to_give,
)

Words = NDArray[np.uint64]
SIZE = 70


@dataclass(frozen=True)
class Agents:
    """The agents of one sum with all that they hold; nothing here checks what they are asked."""

    shared: SharedSum
    run: Mapping[str, KeyPair]
    secrets: Mapping[str, SumSecrets]
    shares: Mapping[str, Mapping[str, bytes]]
    plain: Mapping[str, Words]

    @classmethod
    def of(cls, count: int, threshold: int, attempt: int = 1) -> Agents:
        names = [f"site-{place}" for place in range(count)]
        run = {name: key_pair() for name in names}
        secrets = {name: SumSecrets.fresh() for name in names}
        roster = tuple((name, keys.public) for name, keys in run.items())
        binding = Binding("run", 1, attempt, roster, bytes(32))
        keys = tuple(secrets[name].public for name in names)
        shared = SharedSum(binding, threshold, keys)
        shares: dict[str, dict[str, bytes]] = {name: {} for name in names}
        for name in names:
            each = secrets[name].shares(threshold, count)
            for taker, share in zip(names, each, strict=True):
                shares[taker][name] = share
        rng = np.random.default_rng(count)
        words = {name: rng.integers(0, 2**64, SIZE, np.uint64, endpoint=False) for name in names}
        return cls(shared, run, secrets, shares, words)

    def upload(self, name: str) -> Words:
        words = self.plain[name].copy()
        DoubleMasks(self.shared, self.secrets[name]).apply(words, name, self.shared.binding)
        return words

    def own(self, givers: Collection[str]) -> dict[str, bytes]:
        return {name: self.secrets[name].own for name in givers}

    def given(
        self, givers: Collection[str], survivors: Collection[str]
    ) -> dict[str, dict[str, bytes]]:
        """What these agents give for a list."""
        return {
            giver: {
                name: share_to_give(self.shares[giver][name], survives=name in survivors)
                for name in self.shared.names
                if name != giver
            }
            for giver in givers
        }


def summed(words: Sequence[Words]) -> Words:
    total = np.zeros(SIZE, np.uint64)
    for one in words:
        total += one
    return total


@pytest.mark.parametrize(("count", "threshold"), [(3, 3), (4, 3), (5, 4), (6, 4), (7, 5)])
def test_the_sum_of_every_set_of_survivors_is_exact(count: int, threshold: int) -> None:
    agents = Agents.of(count, threshold)
    names = agents.shared.names
    uploads = {name: agents.upload(name) for name in names}
    for size in range(threshold, count + 1):
        for survivors in combinations(names, size):
            givers = survivors[-threshold:]
            total = summed([uploads[name] for name in survivors])
            open_sum(
                total, agents.shared, survivors, agents.given(givers, survivors), agents.own(givers)
            )
            assert np.array_equal(total, summed([agents.plain[name] for name in survivors]))


def test_any_threshold_of_the_survivors_open_the_same_sum() -> None:
    agents = Agents.of(6, 4)
    survivors = agents.shared.names[:5]
    for givers in combinations(survivors, 4):
        total = summed([agents.upload(name) for name in survivors])
        open_sum(
            total, agents.shared, survivors, agents.given(givers, survivors), agents.own(givers)
        )
        assert np.array_equal(total, summed([agents.plain[name] for name in survivors]))


def test_fewer_shares_than_the_threshold_are_refused_and_do_not_open_it() -> None:
    agents = Agents.of(5, 4)
    survivors = agents.shared.names
    total = summed([agents.upload(name) for name in survivors])
    given = agents.given(survivors[:3], survivors)
    own = agents.own(survivors[:3])
    with pytest.raises(MaskError, match="3 agents gave a share of agent site-3"):
        open_sum(total.copy(), agents.shared, survivors, given, own)
    lower = SharedSum(agents.shared.run, 3, agents.shared.keys)
    open_sum(total, lower, survivors, given, own)  # as if three were enough: another mask
    assert not np.any(total == summed([agents.plain[name] for name in survivors]))


def test_a_share_that_is_another_s_opens_nothing() -> None:
    agents = Agents.of(5, 4)
    survivors = agents.shared.names[:4]
    given = agents.given(survivors, survivors)
    given[survivors[0]]["site-4"] = given[survivors[0]]["site-3"]
    with pytest.raises(MaskError, match="the shares of agent site-4 do not give its key"):
        open_sum(np.zeros(SIZE, np.uint64), agents.shared, survivors, given, agents.own(survivors))


@pytest.mark.parametrize("wrong", [(0,), (4,), (1, 3)])
def test_others_hold_what_an_agent_says_wrongly_of_its_own_mask(wrong: tuple[int, ...]) -> None:
    agents = Agents.of(6, 4)
    survivors, liars = agents.shared.names[:5], [agents.shared.names[one] for one in wrong]
    given = agents.given(survivors, survivors)
    own = {**agents.own(survivors), **dict.fromkeys(liars, bytes(16))}
    total = summed([agents.upload(name) for name in survivors])
    open_sum(total, agents.shared, survivors, given, own)
    plain = summed([agents.plain[name] for name in survivors])
    assert not np.any(total == plain)
    assert by_shares(total, agents.shared, given, own) == liars
    assert np.array_equal(total, plain)
    assert by_shares(total, agents.shared, given, agents.own(survivors)) == []
    few = {name: given[name] for name in survivors[:4]}
    assert by_shares(total, agents.shared, few, own) == [one for one in liars if one not in few]
    assert 44 * 23**2 < MOST_CHECKED < 46 * 24**2


def test_a_late_upload_stays_masked() -> None:
    """Its key is found and all pairwise masks are taken off it; its own is shared by nobody."""
    agents = Agents.of(5, 4)
    survivors = agents.shared.names[:4]
    late = agents.upload("site-4")
    given = agents.given(survivors, survivors)
    found = SumSecrets(bytes(SEED_BYTES), agents.secrets["site-4"].pair, bytes(32))
    taken_off = DoubleMasks(agents.shared, found)
    assert pair_keys_of(found.pair).public == agents.shared.keys[4][:32]
    pairs, own = np.zeros(SIZE, np.uint64), np.zeros(SIZE, np.uint64)
    taken_off.apply(pairs, "site-4", agents.shared.binding)
    nobody = Agents(agents.shared, agents.run, {"site-4": found}, {}, {"site-4": own})
    assert np.array_equal(nobody.upload("site-4"), pairs)
    assert not np.any(late - pairs == agents.plain["site-4"])
    both = agents.shares["site-0"]["site-4"]
    assert given["site-0"]["site-4"] == both[SEED_BYTES:SHARE_BYTES]
    assert all(both[:SEED_BYTES] not in shares.values() for shares in given.values())


def test_shares_are_read_by_the_agent_they_are_for() -> None:
    agents = Agents.of(4, 3)
    run, public = agents.shared.run, agents.shared.keys[0]
    shares = {name: agents.shares[name]["site-0"] for name in run.names}
    sealed = Boxes(agents.run["site-0"], run).sealed(public, run.names, list(shares.values()))
    assert [len(one) for one in sealed] == [SEALED_BYTES] * 4
    assert sealed[0] == bytes(SEALED_BYTES)  # its own it keeps
    for place, name in enumerate(run.names[1:], 1):
        mine = Boxes(agents.run[name], run)
        assert mine.opened("site-0", public, sealed[place]) == shares[name]
        assert mine.opened("site-0", public, sealed[1 + place % 3]) is None
        assert mine.opened("site-1", public, sealed[place]) is None or name == "site-1"
        assert mine.opened("site-0", agents.shared.keys[1], sealed[place]) is None
        other = Boxes(agents.run[name], Binding("run", 1, 2, run.roster, run.task))
        assert other.opened("site-0", public, sealed[place]) is None
        turned = sealed[place][:-1] + bytes([sealed[place][-1] ^ 1])
        assert mine.opened("site-0", public, turned) is None


def test_an_unusable_key_is_given_no_shares() -> None:
    run = {"a": key_pair(), "b": key_pair()}
    roster = (("a", run["a"].public), ("b", bytes(32)), ("c", run["b"].public))
    with pytest.raises(MaskError, match="not usable with X25519"):
        Boxes(run["a"], Binding("run", 1, 1, roster)).sealed(bytes(64), "b", [bytes(SHARE_BYTES)])


# ---------------------------------------------------------------------- thresholds and lists


def test_the_threshold_is_the_least_with_which_two_lists_cannot_be_signed() -> None:
    """By brute force: c sign anything, every other agent one list."""
    for count, colluders in product(range(LEAST_MEMBERS, 9), range(1, 4)):
        for threshold in range(1, count + 2):
            honest = max(count - colluders, 0)
            helpers = min(colluders, count)
            # Of the honest agents k sign the first list, and the others the second.
            two = any(
                helpers + k >= threshold and helpers + honest - k >= threshold
                for k in range(honest + 1)
            )
            try:
                require_threshold(threshold, count, colluders)
            except MaskError:
                continue
            assert not two, (count, colluders, threshold)
            assert LEAST_MEMBERS <= threshold <= count
            assert threshold > colluders  # or the coordinator's own shares find a secret


def test_the_least_threshold_is_taken_and_the_one_below_is_not() -> None:
    for count, colluders in product(range(5, 20), range(1, 4)):
        least = (count + colluders) // 2 + 1
        require_threshold(least, count, colluders)
        with pytest.raises(MaskError, match=f"it is {least} to {count}"):
            require_threshold(least - 1, count, colluders)
    with pytest.raises(MaskError, match="no number of them is enough"):
        require_threshold(4, 4, 4)


def test_a_list_is_signed_by_enough_of_those_on_it() -> None:
    agents = Agents.of(5, 4)
    shared, survivors = agents.shared, agents.shared.names[:4]
    said = shared.said(survivors)
    signed = [agents.secrets[name].sign(said) for name in shared.names]
    shared.require_signed("site-0", survivors, signed)
    with pytest.raises(MaskError, match="3 of those listed have signed"):
        shared.require_signed(
            "site-0", survivors, [bytes(64), *signed[1:]]
        )  # one is not on the list
    with pytest.raises(MaskError, match="0 of those listed have signed"):
        shared.require_signed("site-0", shared.names, signed)  # another list
    swapped = [signed[1], signed[0], *signed[2:]]
    with pytest.raises(MaskError, match="2 of those listed have signed"):
        shared.require_signed("site-0", survivors, swapped)


def test_what_is_signed_is_of_one_sum_alone() -> None:
    one = Agents.of(4, 3).shared
    run, keys = one.run, one.keys
    roster = (run.roster[1], run.roster[0], *run.roster[2:])
    others = [
        SharedSum(Binding("ru", 1, 1, run.roster, run.task), 3, keys),
        SharedSum(Binding("run", 2, 1, run.roster, run.task), 3, keys),
        SharedSum(Binding("run", 1, 2, run.roster, run.task), 3, keys),
        SharedSum(Binding("run", 1, 1, run.roster, bytes(31) + b"\x01"), 3, keys),
        SharedSum(run, 4, keys),
        SharedSum(run, 3, (keys[1], keys[0], *keys[2:])),
        SharedSum(Binding("run", 1, 1, roster, run.task), 3, keys),  # places are shares'
    ]
    survivors = one.names[:3]
    said = [each.said(survivors) for each in (one, *others)]
    said += [one.said(one.names), one.said(one.names[1:])]
    said += [keys_statement(run, 3, keys[0]), keys_statement(run, 4, keys[0])]
    said += [keys_statement(run, 3, keys[1]), keys_statement(others[2].run, 3, keys[0])]
    assert len(set(said)) == len(said)


def test_lists_that_are_none() -> None:
    shared = Agents.of(4, 3).shared
    assert shared.listed(b"\x01\x00\x01\x01") == ("site-0", "site-2", "site-3")
    for marks in (b"", b"\x01" * 3, b"\x01" * 5, b"\x01\x02\x01\x01"):
        with pytest.raises(MaskError, match="none of this sum's agents"):
            shared.listed(marks)
    with pytest.raises(MaskError, match="site-0 is not on the list"):
        shared.require_survivors("site-0", shared.names[1:])
    with pytest.raises(MaskError, match="2 are listed, and sum-threshold is 3"):
        shared.require_survivors("site-0", shared.names[:2])


def test_masks_of_a_sum_are_of_no_other() -> None:
    one, other = Agents.of(4, 3), Agents.of(4, 3, attempt=2)
    masks = DoubleMasks(one.shared, one.secrets["site-0"])
    with pytest.raises(MaskError, match="of another sum"):
        masks.apply(np.zeros(SIZE, np.uint64), "site-0", other.shared.binding)
    assert masks.private
    assert "secret" not in repr(one.secrets["site-0"]).lower().replace("sumsecrets", "")


# ---------------------------------------------------------------------- what a coordinator learns


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_choice_of_one_list_finds_both_secrets_of_an_agent(data: st.DataObject) -> None:
    """Honest agents give shares for one list that t have signed, the others all that they hold."""
    count = data.draw(st.integers(4, 9))
    colluders = data.draw(st.integers(1, 2))
    thresholds = range((count + colluders) // 2 + 1, count + 1)
    threshold = data.draw(st.sampled_from(thresholds)) if thresholds else 0
    if threshold < LEAST_MEMBERS:
        return
    require_threshold(threshold, count, colluders)
    names = range(count)
    helpers = set(range(colluders))
    # Each honest agent signs one of three lists that the coordinator has made up.
    lists = [data.draw(st.sets(st.sampled_from(names), min_size=threshold)) for _ in range(3)]
    signs = {name: data.draw(st.integers(0, 2)) for name in names if name not in helpers}
    own: dict[int, set[int]] = {name: set(helpers) for name in names}
    pair: dict[int, set[int]] = {name: set(helpers) for name in names}
    for place, listed in enumerate(lists):
        signed = {n for n in listed if n in helpers or signs[n] == place}
        if len(signed) < threshold:
            continue
        for giver in signed - helpers:
            for name in names:
                (own if name in listed else pair)[name].add(giver)
    for name in names:
        assert not (len(own[name]) >= threshold and len(pair[name]) >= threshold)
