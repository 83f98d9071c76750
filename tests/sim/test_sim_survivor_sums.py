"""Secure sums that open without the agents that drop out: the coordinator's side, whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from privet.client_apps import client_app
from privet.core import ConfigError, RunError, WireError
from privet.kernel.neighbours import least_threshold
from privet.rounds.keep.rosters import take_over
from privet.sim.engine import InlineGrid
from privet.sim.trusting import trusting_nodes
from privet.strategies import DPFedSGD
from privet.wire import FAILED, REFUSED
from privet.wire.survivors import SEED, read_keys
from support.federations import position
from support.masked import MAKE, ROUNDS, grid_for, play, ridge_agents, start_at

pytestmark = pytest.mark.usefixtures("clock")

Fate = Callable[["DroppingGrid", Message], Message | None]
KINDS = ("sum-keys", "upload", "survivors", "shares")
MANY = 102
"""More agents than each shares masks with all the others of; `SEED` is one question more."""


class DroppingGrid(InlineGrid):
    """Nodes, and what becomes of a message by agent, kind and round; counts what was asked."""

    def __init__(
        self,
        name: str,
        count: int = 5,
        fates: Mapping[tuple[int, str, int], Fate] | None = None,
        folder: Path | None = None,
    ) -> None:
        problems = ridge_agents(count)
        app = client_app(name, lambda context: problems[position(context)])
        super().__init__(app, count if folder is None else pinned(folder, count))
        self.fates = dict(fates or {})
        self.asked: list[tuple[int, str, int]] = []

    def deliver(self, message: Message) -> Message | None:
        record: Any = message.content.get("privet")
        kind = record.get("kind", "upload" if "payload" in record else "")
        if kind not in (*KINDS, SEED):
            return super().deliver(message)
        agent = position(self.contexts[message.metadata.dst_node_id])
        self.asked.append((agent, kind, record["round"]))
        fate = self.fates.pop((agent, kind, record["round"]), None)
        return super().deliver(message) if fate is None else fate(self, message)

    def times(self, kind: str, round_: int = 0) -> int:
        return sum(asked[1] == kind and round_ in (0, asked[2]) for asked in self.asked)


def pinned(folder: Path, count: int, least: int = 2) -> list[dict[str, Any]]:
    """The configs of nodes that know each other's keys, and trust no sum with their noise."""
    return [
        {
            **{key: value for key, value in one.items() if not key.startswith("trust")},
            **{key: one[key] for key in ("trust-key", "trust-peers")},
            "least-trusted": least,
        }
        for one in trusting_nodes(folder, map(str, range(count)), 0)
    ]


def lost(grid: DroppingGrid, message: Message) -> None:
    """The node is gone before it has read the message."""


def late(grid: DroppingGrid, message: Message) -> None:
    """The node has done its work, and its reply does not come."""
    InlineGrid.deliver(grid, message)


def fails(code: int = FAILED) -> Fate:
    return lambda grid, message: Message(Error(code, "agent: cannot"), reply_to=message)


def final(result: Any) -> np.ndarray[Any, Any]:
    return np.asarray(result.arrays["x"].numpy())


@pytest.mark.parametrize("name", sorted(MAKE))
def test_a_sum_that_nobody_drops_out_of_is_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    plain, _, _ = play(name, secure_sum=True, rounds=4)
    for folder in (None, tmp_path):
        grid = DroppingGrid(name, folder=folder)
        shared, _, _ = play(name, grid=grid, secure_sum=True, sum_threshold=4, rounds=4)
        assert np.array_equal(final(shared), final(plain))
        assert [grid.times(kind) for kind in KINDS] == [5 * 4] * 4  # three more exchanges


def test_without_a_threshold_nothing_more_is_asked_or_sent() -> None:
    grid = DroppingGrid("fed-pdm")
    play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=0)
    assert {kind for _, kind, _ in grid.asked} == {"upload"}


@pytest.mark.parametrize("fate", [lost, late, fails()], ids=["lost", "late", "error"])
@pytest.mark.parametrize("gone", [gone for k in (1, 2) for gone in combinations(range(6), k)])
def test_the_sum_of_those_who_replied(gone: tuple[int, ...], fate: Fate) -> None:
    """It is the sum of a round that the others were not on the roster of, with one upload each."""
    fates = {(agent, "upload", 1): fate for agent in gone}
    grid = DroppingGrid("fed-pdm", 6, fates)
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=1)
    absent = DroppingGrid("fed-pdm", 6, {(agent, "sum-keys", 1): fails() for agent in gone})
    expected, _, _ = play("fed-pdm", grid=absent, secure_sum=True, sum_threshold=4, rounds=1)
    assert np.array_equal(final(result), final(expected))
    (done,) = result.history
    left = [str(agent) for agent in range(6) if agent not in gone]
    assert list(done.participants) == left == list(expected.history[0].participants)
    assert set(done.failures) == {str(agent) for agent in gone}
    assert grid.times("upload") == 6


@pytest.mark.parametrize("kind", ["survivors", "shares"])
@pytest.mark.parametrize("fate", [lost, late, fails()], ids=["lost", "late", "error"])
def test_agents_that_end_after_their_upload_are_in_the_sum(kind: str, fate: Fate) -> None:
    grid = DroppingGrid("fed-plt", 6, {(2, kind, 2): fate, (4, kind, 2): fate})
    result, _, _ = play("fed-plt", grid=grid, secure_sum=True, sum_threshold=4)
    plain, _, _ = play("fed-plt", grid=grid_for("fed-plt", 6), secure_sum=True)
    assert np.array_equal(final(result), final(plain))
    assert [len(done.participants) for done in result.history] == [6] * ROUNDS
    assert not any(done.failures for done in result.history)


def test_fewer_than_the_threshold_open_nothing() -> None:
    """One line, no second upload; the round is tried again as any that too few replied to."""
    fates: dict[tuple[int, str, int], Fate] = {(at, "upload", 1): fails() for at in (0, 1, 2)}
    grid = DroppingGrid("fed-pdm", 6, fates)
    with pytest.raises(RunError, match="sum-threshold = 4: 3 agents are left to open the sum"):
        play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=1, patience=0.0)
    assert [grid.times(kind) for kind in KINDS] == [6, 6, 0, 0]


@pytest.mark.parametrize("kind", ["survivors", "shares"])
def test_fewer_than_the_threshold_answer(kind: str) -> None:
    fates: dict[tuple[int, str, int], Fate] = {(at, kind, 1): fails() for at in (0, 1, 2)}
    grid = DroppingGrid("fed-pdm", 6, fates)
    with pytest.raises(RunError, match="sum-threshold = 4: 3 agents are left to open the sum"):
        play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=1, patience=0.0)
    assert grid.times("upload") == 6


@pytest.mark.parametrize("gone", [1, 2, 3])
@pytest.mark.parametrize("kind", ["upload", "survivors", "shares"])
def test_another_try_of_the_round_gives_no_agent_away(kind: str, gone: int) -> None:
    """Agents refuse a roster or a list that lacks one agent: a second try succeeds all the same."""
    fates: dict[tuple[int, str, int], Fate] = {(at, kind, 1): lost for at in range(8 - gone)}
    grid = DroppingGrid("fed-pdm", 8, fates)
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=5, rounds=1)
    (done,) = result.history
    assert len(done.participants) >= 5


def test_a_list_is_short_of_another_agent_where_one_would_be_given_away(tmp_path: Path) -> None:
    """The first try's sum may still be opened: the second is not over all of it but one."""
    fates: dict[tuple[int, str, int], Fate] = {(at, "shares", 1): lost for at in range(8)}
    grid = DroppingGrid("fed-pdm", 8, fates, folder=tmp_path)
    again: list[int] = []

    def one_more(grid: DroppingGrid, message: Message) -> Message | None:
        grid.fates[0, "upload", 1] = lost  # of the second attempt
        again.append(1)
        return InlineGrid.deliver(grid, message)

    grid.fates[0, "upload", 1] = one_more
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=5, rounds=1)
    (done,) = result.history
    assert again == [1]
    assert len(done.participants) == 6
    assert "0" not in done.participants
    spared = [why.text for name, why in done.failures.items() if name != "0"]
    assert spared == ["left out: two sums of a round may not differ by one agent"]


def test_a_list_that_too_few_signed_ends_no_round() -> None:
    """Who came back is not asked: those who have signed the list would refuse the roster."""
    fates: dict[tuple[int, str, int], Fate] = {(at, "survivors", 1): late for at in range(4)}
    fates[7, "upload", 1] = lost
    grid = DroppingGrid("fed-pdm", 8, fates)
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=5, rounds=1)
    (done,) = result.history
    assert 5 <= len(done.participants) <= 6
    assert "7" not in done.participants
    assert grid.times("upload") == 8 + len(done.participants)


def test_a_resume_opens_no_list_that_lacks_one_of_an_earlier_one(tmp_path: Path) -> None:
    """What is on disk of a sum is its roster, and then the list that was opened."""
    file, lines = tmp_path / "checkpoint.npz", []
    play(
        "fed-plt", grid=DroppingGrid("fed-plt", 8, {(7, "upload", 2): lost}), secure_sum=True,
        sum_threshold=5, rounds=3, start={"checkpoint": file},
    )  # fmt: skip
    *written, _ = (tmp_path / "rosters.jsonl").read_text().splitlines()
    for line in written:
        number, _, names = json.loads(line)
        lines.append((number, len(names)))
    assert lines == [(1, 8), (1, 8), (2, 8), (2, 7), (3, 8), (3, 8)]
    assert [(one.round, len(one.names)) for one in take_over(file, None, len(lines))] == lines


def play_many(grid: DroppingGrid, rounds: int = 1) -> Any:
    threshold = least_threshold(MANY, 1)
    options: dict[str, Any] = {"secure_sum": True, "sum_threshold": threshold, "patience": 0.0}
    result, _, _ = play("fed-pdm", grid=grid, rounds=rounds, **options)
    return result


def test_many_agents_that_drop_out_anywhere() -> None:
    """With one upload of each agent the sum of those whose uploads came, to the bit."""
    fates: dict[tuple[int, str, int], Fate] = {
        **{(agent, "upload", 1): lost for agent in (3, 50)},
        (51, "upload", 1): late,
        **{(agent, "survivors", 1): lost for agent in (0, 7)},
        **{(agent, "shares", 1): late for agent in (8, 9)},
        **{(agent, SEED, 1): fails() for agent in (10, 101)},
    }
    grid = DroppingGrid("fed-pdm", MANY, fates)
    result = play_many(grid)
    gone = {"3", "50", "51"}
    (done,) = result.history
    assert set(done.failures) == gone
    assert set(done.participants) == {str(agent) for agent in range(MANY)} - gone
    assert [grid.times(kind) for kind in (*KINDS, SEED)] == [
        MANY,
        MANY,
        MANY - 3,
        MANY - 5,
        MANY - 7,
    ]
    absent = DroppingGrid("fed-pdm", MANY, {(int(one), "upload", 1): fails() for one in gone})
    expected, _, _ = play("fed-pdm", grid=absent, rounds=1, secure_sum=True)
    assert np.array_equal(final(result), final(expected))


@pytest.mark.slow
def test_many_agents_of_whom_nobody_drops_out_and_the_same_to_the_bit(tmp_path: Path) -> None:
    plain, _, _ = play("fed-pdm", grid=grid_for("fed-pdm", MANY), secure_sum=True, rounds=2)
    for folder in (None, tmp_path):
        grid = DroppingGrid("fed-pdm", MANY, folder=folder)
        assert np.array_equal(final(play_many(grid, 2)), final(plain))
        assert [grid.times(kind) for kind in (*KINDS, SEED)] == [2 * MANY] * 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["upload", "survivors", "shares"])
def test_of_many_agents_too_few_are_left(kind: str) -> None:
    fates: dict[tuple[int, str, int], Fate] = {(at, kind, 1): fails() for at in range(70)}
    grid = DroppingGrid("fed-pdm", MANY, fates)
    with pytest.raises(RunError, match=r"32 agents are left to open the sum|gave a share of agent"):
        play_many(grid)
    assert grid.times("upload") == MANY


@pytest.mark.slow
def test_another_try_of_many_after_lists_alone() -> None:
    """A list that too few have signed opens nothing: the round may have another sum."""
    fates: dict[tuple[int, str, int], Fate] = {(at, "survivors", 1): late for at in range(70)}
    grid = DroppingGrid("fed-pdm", MANY, fates)
    threshold = least_threshold(MANY, 1)
    result, _, _ = play("fed-pdm", grid=grid, rounds=1, secure_sum=True, sum_threshold=threshold)
    (done,) = result.history
    assert len(done.participants) == MANY


def test_agents_without_keys_of_the_sum_are_left_out_before_any_upload() -> None:
    grid = DroppingGrid("fed-pdm", 6, {(2, "sum-keys", 2): fails(REFUSED)})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=3)
    assert [len(done.participants) for done in result.history] == [6, 5, 5]
    assert grid.times("upload", 2) == 5


def test_a_node_that_lost_its_keys_drops_out_of_one_sum() -> None:
    def forgets(grid: DroppingGrid, message: Message) -> Message | None:
        grid.contexts[message.metadata.dst_node_id].state.clear()
        return InlineGrid.deliver(grid, message)

    grid = DroppingGrid("fed-pdm", 6, {(2, "upload", 2): forgets})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=3)
    assert [len(done.participants) for done in result.history] == [6, 5, 6]


@pytest.mark.parametrize(
    ("threshold", "count", "line"),
    [
        (3, 5, "of 5 agents of whom 1 may help the coordinator, it is 4 to 5"),
        (6, 5, "sum-threshold = 6: above num-agents = 5"),
    ],
)
def test_a_threshold_that_is_none(threshold: int, count: int, line: str) -> None:
    grid = DroppingGrid("fed-pdm", count)
    with pytest.raises((RunError, ConfigError), match=line):
        play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=threshold, rounds=1)
    assert grid.times("upload") == 0


def test_shared_noise_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="sum-threshold = 4: not with noise-sharing"):
        DPFedSGD(
            clip=1.0,
            noise_scale=0.5,
            num_agents=5,
            sum_threshold=4,
            secure_sum=True,
            noise_sharing=True,
        )


def test_shares_that_are_wrong_open_nothing() -> None:
    def wrong(grid: DroppingGrid, message: Message) -> Message | None:
        reply = InlineGrid.deliver(grid, message)
        assert reply is not None
        record: Any = reply.content["privet"]
        record["shares"], record["own"] = bytes(len(record["shares"])), bytes(16)
        return reply

    grid = DroppingGrid("fed-pdm", 6, {(0, "shares", 1): wrong})
    with pytest.raises(RunError, match="masks of its group did not cancel"):
        play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=1, patience=0.0)


def changed(**fields: Any) -> Fate:
    """The node answers, and its reply has zeros in place of these fields."""

    def fate(grid: DroppingGrid, message: Message) -> Message | None:
        reply = InlineGrid.deliver(grid, message)
        assert reply is not None
        record: Any = reply.content["privet"]
        for field in fields:
            record[field] = bytes(len(record[field]))
        return reply

    return fate


SEALS, SHARES, OWN = changed(sealed=0), changed(shares=0), changed(own=0)


@pytest.mark.parametrize("agent", [0, 3, 5])
def test_an_own_seed_that_is_wrong_is_found_by_shares(agent: int) -> None:
    """Also of the agent that answers first; the sum is that of honest ones, asked for once."""
    grid = DroppingGrid("fed-pdm", 6, {(agent, "shares", 1): OWN, (1, "upload", 1): lost})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=1)
    honest = DroppingGrid("fed-pdm", 6, {(1, "upload", 1): lost})
    expected, _, _ = play("fed-pdm", grid=honest, secure_sum=True, sum_threshold=4, rounds=1)
    assert np.array_equal(final(result), final(expected))
    assert f"agent {agent}: its own seed is not that of its shares" in result.history[0].notes
    assert grid.times("upload") == 6


class OneByOne(DroppingGrid):
    """Replies come one after the other, in the order of the agents, as over a network."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for one in message_ids:
            if found := list(super().pull_messages([one])):
                return found
        return []


def test_a_signature_that_is_none_takes_no_place() -> None:
    """Agent 0 answers first, and four signatures are enough."""
    grid = OneByOne("fed-pdm", 6, {(0, "survivors", 1): changed(signature=0)})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=1)
    plain, _, _ = play("fed-pdm", grid=grid_for("fed-pdm", 6), secure_sum=True, rounds=1)
    assert np.array_equal(final(result), final(plain))


@pytest.mark.parametrize("first", [0, 1])
def test_shares_that_come_one_by_one_cost_one_more_attempt(first: int) -> None:
    """With no more answers than needed; the second sum lacks two of the roster and of the list."""
    fates = {(7, "upload", 1): fails(), (first, "shares", 1): SHARES}
    grid = OneByOne("fed-pdm", 8, fates)
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=5, rounds=1)
    (done,) = result.history
    assert len(done.participants) == 5
    assert done.failures["7"].text == "the shares of agent 7 do not give its key"


@pytest.mark.parametrize("kind", ["seals zeros", "gives zeros"])
def test_shares_that_give_no_secret_cost_one_more_attempt(kind: str) -> None:
    """Agent 5 is not there: it has sealed zeros, or agent 0 gives zeros for its shares."""
    how = {(5, "sum-keys", 1): SEALS} if kind == "seals zeros" else {(0, "shares", 1): SHARES}
    grid = DroppingGrid("fed-pdm", 6, {(5, "upload", 1): fails(), **how})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=2)
    first, second = result.history
    assert list(first.participants) == ["0", "1", "2", "3", "4"]
    assert list(first.failures) == ["5"]
    assert "agent 5" in first.failures["5"].text
    assert len(second.participants) == 6
    assert [grid.times("upload", at) for at in (1, 2)] == [11, 6]


LOW_ORDER = {"zero": bytes(32), "one": bytes([1]) + bytes(31)}


@pytest.mark.parametrize("key", LOW_ORDER)
def test_a_key_of_the_sum_that_cannot_be_used_costs_its_agent_alone(key: str) -> None:
    """The others would refuse the roster, and say no name."""

    def gives(grid: DroppingGrid, message: Message) -> Message | None:
        reply = InlineGrid.deliver(grid, message)
        record: Any = reply.content["privet"] if reply is not None else {}
        record["keys"] = LOW_ORDER[key] + record["keys"][32:]
        return reply

    grid = DroppingGrid("fed-pdm", 6, {(5, "sum-keys", 1): gives})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=4, rounds=1)
    (done,) = result.history
    assert list(done.participants) == ["0", "1", "2", "3", "4"]
    assert "X25519 cannot use" in done.failures["5"].text
    assert grid.times("upload") == 5


def test_two_agents_with_one_key_of_the_sum_are_left_out() -> None:
    given: list[bytes] = []

    def gives(grid: DroppingGrid, message: Message) -> Message | None:
        reply = InlineGrid.deliver(grid, message)
        record: Any = reply.content["privet"] if reply is not None else {}
        given.append(record["keys"])
        record["keys"] = given[0]
        return reply

    grid = DroppingGrid("fed-pdm", 7, {(at, "sum-keys", 1): gives for at in (2, 6)})
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=5, rounds=1)
    (done,) = result.history
    assert list(done.participants) == ["0", "1", "3", "4", "5"]
    assert all("another agent gives" in done.failures[name].text for name in ("2", "6"))
    assert grid.times("upload") == 5


def test_an_agent_whose_shares_spoil_two_sums_of_a_private_run_is_left_out() -> None:
    fates: dict[tuple[int, str, int], Fate] = {
        (5, kind, at): fate
        for at in range(1, 6)
        for kind, fate in (("sum-keys", SEALS), ("upload", fails()))
    }
    grid = DroppingGrid("dp-fedsgd", 6, fates)
    strategy = DPFedSGD(
        clip=1.0, noise_scale=1.0, step_size_base=0.1, num_agents=6, min_agents=4, secure_sum=True,
        sum_threshold=4,
    )  # fmt: skip
    result = strategy.start(grid, start_at(0.3), num_rounds=4)
    assert [len(done.participants) for done in result.history] == [5] * 4
    assert [grid.times("upload", at) for at in range(1, 5)] == [11, 11, 5, 5]
    assert "2 secure sums lacked its upload" in strategy.run.session.roster.agents["5"].out


@pytest.mark.parametrize("signing", [True, False])
def test_a_sum_after_a_spoilt_one_gives_no_agent_away(signing: bool, tmp_path: Path) -> None:
    """It is over the list again; where some agent compares with the roster, it lacks two of it."""
    fates = {(7, "sum-keys", 1): SEALS, (7, "upload", 1): fails()}
    if not signing:
        fates[2, "survivors", 1] = lost
    grid = DroppingGrid("fed-pdm", 8, fates, folder=tmp_path)
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=5, rounds=1)
    (done,) = result.history
    assert len(done.participants) == (7 if signing else 5)
    assert "7" not in done.participants
    uploads = [agent for agent, kind, _ in grid.asked if kind == "upload"]
    assert sorted(uploads[8:]) == sorted(map(int, done.participants))


def test_who_drops_out_of_the_sum_after_a_spoilt_one_is_not_given_away() -> None:
    """The first list could be opened: the second lacks two of it."""

    def of_the_second(grid: DroppingGrid, message: Message) -> Message | None:
        grid.fates[0, "upload", 1] = lost
        return InlineGrid.deliver(grid, message)

    fates = {(7, "sum-keys", 1): SEALS, (7, "upload", 1): fails(), (0, "upload", 1): of_the_second}
    grid = DroppingGrid("fed-pdm", 8, fates)
    result, _, _ = play("fed-pdm", grid=grid, secure_sum=True, sum_threshold=5, rounds=1)
    (done,) = result.history
    assert len(done.participants) == 5
    assert not {"0", "7"} & set(done.participants)
    assert grid.times("upload") == 8 + 7


@pytest.mark.parametrize("more", [0, 1])
def test_an_agent_of_many_that_says_it_drew_itself_is_not_read(more: int) -> None:
    """Its holders would not be those for whom it has sealed shares, and the run would end."""
    places = {str(place): place for place in range(MANY)}
    marks = [0, *[1] * 64, *[0] * 37]
    fields = {"keys": bytes(64), "signature": b"", "sealed": bytes(64 * 48)}

    def read(drawn: list[int]) -> Any:
        said = {"kind": "sum-keys", "agent": "0", "drawn": bytes(drawn), **fields}
        return read_keys(RecordDict({"privet": ConfigRecord(said)}), "privet", "0", places)

    assert read(marks).drawn == bytes(marks)
    with pytest.raises(WireError, match=r"has drawn itself|65 agents are drawn"):
        read([1, more, *marks[2:]])


@pytest.mark.slow
def test_many_agents_whose_shares_are_given_have_no_further_attempt() -> None:
    fates = {(5, "sum-keys", 1): SEALS, (5, "upload", 1): fails()}
    grid = DroppingGrid("fed-pdm", MANY, fates)
    with pytest.raises(RunError, match="0 agents gave a share of agent 5"):
        play_many(grid)
    assert grid.times("upload") == MANY


def test_flowers_own_loop_has_no_exchange_after_the_uploads() -> None:
    grid = DroppingGrid("fed-pdm")
    strategy = MAKE["fed-pdm"](num_agents=5, secure_sum=True, sum_threshold=4)
    messages = strategy.configure_train(1, start_at(0.3), ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    with pytest.raises(RunError, match="which only this library's rounds have"):
        strategy.aggregate_train(1, replies)
    assert isinstance(start_at(0.3), ArrayRecord)
