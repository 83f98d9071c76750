"""Secure sums when agents drop out, lose keys or states, or are asked for what they must not do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from privet.agents.masking import MASK_RECORD, MaskState
from privet.core import RunError
from privet.kernel import AgentLedger, Told
from privet.problems import minimize
from privet.rounds.collect.masked import MOST_ATTEMPTS
from privet.sim.engine import InlineGrid
from privet.strategies import Failure, FailureCode, FedPDM, FedPLT, Schedule
from privet.wire import REFUSED, ring
from privet.wire.rosters import with_roster
from support.federations import (
    FaultyGrid,
    app_of,
    logistic_agents,
    lose_reply,
    lose_state,
    model,
    position,
    zeros,
)
from support.masked import (
    COUNT,
    MAKE,
    Recorder,
    grid_for,
    payload_of,
    play,
    recorded,
    ridge_agents,
    start_at,
)
from support.told import own_log, refused

pytestmark = pytest.mark.usefixtures("clock")

# ------------------------------------------------------------------ dropouts


def fails(grid: FaultyGrid, message: Message, agent: int) -> Message:
    return Message(Error(101, f"agent {agent}: disk full"), reply_to=message)


def declines(grid: FaultyGrid, message: Message, agent: int) -> Message:
    return Message(Error(REFUSED, f"agent {agent}: budget is spent"), reply_to=message)


def garbles(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
    reply = grid.normally(message)
    assert reply is not None
    payload = bytearray(reply.content["privet"]["payload"])  # type: ignore[arg-type]
    payload[-1] ^= 1
    reply.content["privet"]["payload"] = bytes(payload)
    return reply


def unmasks(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
    """Upload zeros in good form: the masks of the others do not cancel."""
    reply = grid.normally(message)
    assert reply is not None
    words = ring.from_bytes(reply.content["privet"]["payload"])  # type: ignore[arg-type]
    plain = ring.Words(words.layout, np.zeros_like(words.words))
    reply.content["privet"]["payload"] = plain.to_bytes()
    return reply


@pytest.mark.parametrize(
    ("reaction", "reason"),
    [
        (lose_reply, "no reply within"),
        (fails, "disk full"),
        (garbles, "wrong checksum"),
        (declines, "budget is spent"),
    ],
)
@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm", "fed-pdm"])
def test_a_dropout_is_repeated_without_two_agents(name: str, reaction: Any, reason: str) -> None:
    """The run is the one in which the dropped agent and the one left out were merely absent."""
    faults = {(2, 4): reaction}
    result, strategy, grid = recorded(name, faults, rounds=4, round_timeout=0.2)
    done = result.history[3]
    assert reason in done.failures["2"].text
    (left_out,) = set(done.failures) - {"2"}
    assert "left out" in done.failures[left_out].text
    assert len(done.participants) == COUNT - 2
    assert any("attempt 1 failed: agent 2" in note for note in done.notes)
    gone = {"2", left_out}
    schedule = Schedule((*[tuple("01234")] * 3, tuple(n for n in "01234" if n not in gone)))
    absent, _, _ = play(name, secure_sum=True, participation=schedule, rounds=4)
    assert np.array_equal(model(result), model(absent))
    # Whoever uploaded twice used another mask, and the payloads look unrelated.
    twice = [payload_of(c) for a, m, c in grid.seen if a not in map(int, gone)][-2 * (COUNT - 2) :]
    assert len({words.words.tobytes() for words in twice}) == 2 * (COUNT - 2)
    assert strategy.session.roster.agents["2"].tag == 3


def test_a_group_that_is_too_large_for_its_nodes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.rounds.collect.masked.MOST_MEMBERS", 3)
    line = "a secure sum has at most 3 agents, its group has 4"
    with pytest.raises(RunError, match=line):
        recorded("fed-plt", {}, count=4, rounds=1, round_timeout=0.2, patience=0)


def test_too_few_left_ends_the_run_by_min_agents_and_names_all() -> None:
    with pytest.raises(RunError) as caught:
        recorded("fed-plt", {(1, 2): lose_reply}, count=4, rounds=4, round_timeout=0.2, patience=0)
    text = str(caught.value)
    assert "round 2: 0 of 4 agents replied, below min-agents = 1" in text
    assert "agent 1: no reply within" in text
    assert "a secure sum needs 3 agents, its group had 2 left" in text
    assert "left out" in text
    assert "agents 0, 3: a secure sum needs 3" in text


def test_an_agent_that_declined_is_not_asked_again() -> None:
    result, _, grid = recorded("fed-plt", {(2, 2): declines}, rounds=5)
    assert (
        "2" in result.history[4].participants or "declined" in result.history[4].failures["2"].text
    )
    later = [m for a, m, _ in grid.seen if a == 2 and m.content["privet"]["round"] > 2]
    assert later == []
    assert [len(done.participants) for done in result.history] == [5, 3, 4, 4, 4]
    assert "budget is spent" in result.history[4].failures["2"].text


def test_masks_that_do_not_cancel_spoil_no_model() -> None:
    with pytest.raises(RunError, match="masks of its group did not cancel"):
        recorded("fed-plt", {(3, 2): unmasks}, rounds=3)


def test_a_group_that_fails_leaves_the_others_alone() -> None:
    """GFL: unit 0 loses an agent and has too few left; unit 1 goes on."""
    nodes = [{"partition-id": i, "unit": str(i // 3)} for i in range(6)]
    problems = ridge_agents(6)
    app = app_of(problems, "gfl")
    grid = FaultyGrid(app, 6, {(1, 2): lose_reply})
    for context, node in zip(grid.contexts.values(), nodes, strict=True):
        context.node_config["unit"] = node["unit"]
    result, _, _ = play("gfl", grid=grid, units=2, secure_sum=True, rounds=3, round_timeout=0.2)
    done = result.history[1]
    assert done.participants == ("3", "4", "5")
    assert set(done.failures) == {"0", "1", "2"}
    assert any("unit 0 had no upload" in note for note in done.notes)
    assert result.history[2].participants == tuple("012345")


def test_attempts_are_bounded() -> None:
    """Agents drop one after the other; after MOST_ATTEMPTS attempts the round is given up."""
    dropped: list[int] = []

    class Crumbling(Recorder):
        def deliver(self, message: Message) -> Message | None:
            record = message.content.get("privet")
            if record is None or record.get("round") != 2:
                return super().deliver(message)
            agent = position(self.contexts[message.metadata.dst_node_id])
            attempt = int(record["attempt"])
            if len(dropped) < attempt:
                dropped.append(agent)
                super().deliver(message)
                return fails(self, message, agent)
            return super().deliver(message)

    count = 20
    problems = ridge_agents(count)
    app = app_of(problems)
    grid = Crumbling(app, count, {})
    with pytest.raises(
        RunError, match=r"round 2: 0 of 20 agents replied.*agents 4, 5, 6 and 10 more: its"
    ):
        play("fed-plt", grid=grid, secure_sum=True, rounds=2)
    attempts = {m.content["privet"]["attempt"] for _, m, _ in grid.seen[count:]}
    assert attempts == set(range(1, MOST_ATTEMPTS + 1))
    rosters = []
    for _, m, _ in grid.seen[count:]:
        names = frozenset(json.loads(m.content["privet"]["names"]))
        if names not in rosters:
            rosters.append(names)
    assert [len(names) for names in rosters] == [20, 18, 16, 14]
    assert all(later < earlier for earlier, later in pairwise(rosters))


def test_every_attempt_is_charged_and_masks_buy_nothing() -> None:
    """Without a dropout the account is that of the plain run; with one, an attempt more."""
    problems = logistic_agents(COUNT)

    def run(faults: Any, masked: bool) -> Any:
        app = app_of(problems, "fed-pdm")
        strategy = FedPDM(
            preset="private",
            noise_scale=0.5,
            num_agents=COUNT,
            round_timeout=0.2,
            secure_sum=masked,
        )
        result = strategy.start(FaultyGrid(app, COUNT, faults), zeros(4), num_rounds=3)
        agents = strategy.session.roster.agents  # type: ignore[union-attr]
        ledgers = {name: AgentLedger.from_json(agent.ledger) for name, agent in agents.items()}
        return result, {name: ledger.messages for name, ledger in ledgers.items()}

    plain, masked = run({}, False), run({}, True)
    assert plain[1] == masked[1] == dict.fromkeys("01234", 3)
    assert 0 < masked[0].history[-1].epsilon == plain[0].history[-1].epsilon < np.inf
    faulty, messages = run({(2, 2): lose_reply}, True)
    done = faulty.history[1]
    assert {messages[name] for name in done.participants} == {4}
    assert {messages[name] for name in done.failures} == {3}
    assert faulty.history[-1].epsilon > plain[0].history[-1].epsilon


# ------------------------------------------------------------------ lost keys and states


def test_fed_plt_agent_that_lost_its_state_is_out_with_a_reason() -> None:
    result, _, _ = recorded("fed-plt", {(2, 3): lose_state}, rounds=5)
    reason = "lost its state of round 2"
    assert all(reason in done.failures["2"].text for done in result.history[2:])
    assert "out of the run (state-path" in result.history[4].failures["2"].text
    assert [len(done.participants) for done in result.history] == [5, 5, 3, 4, 4]


def test_fed_pdm_agent_that_lost_its_dual_begins_again() -> None:
    result, _, _ = recorded("fed-pdm", {(2, 3): lose_state}, rounds=5)
    assert [len(done.participants) for done in result.history] == [5] * 5
    assert any(
        "agent 2 lost its state of round 2: it starts again" in n for n in result.history[2].notes
    )


def test_state_path_brings_a_lost_agent_back_with_new_keys(tmp_path: Path) -> None:
    problems = ridge_agents()
    app = app_of(problems)
    nodes = [{"partition-id": i, "state-path": str(tmp_path / f"{i}.npz")} for i in range(COUNT)]

    class Restarting(FaultyGrid):
        def __init__(self) -> None:
            InlineGrid.__init__(self, app, nodes)
            self.faults = {(2, 3): lose_state}

    masked, _, _ = play("fed-plt", grid=Restarting(), secure_sum=True, rounds=6)
    assert [len(done.participants) for done in masked.history] == [5] * 6
    steady, _, _ = play("fed-plt", secure_sum=True, rounds=6)
    assert np.array_equal(model(masked), model(steady))


@pytest.mark.parametrize("name", ["fed-plt", "fed-pdm"])
def test_another_node_of_a_lost_ones_name_is_sent_nothing_of_it(name: str) -> None:
    """FedPDM's begins anew; a server of Fed-PLT cannot take the lost one's part back out."""
    problems = ridge_agents(COUNT)
    grid = Recorder(app_of(problems, name), COUNT, {})

    def replaced(done: Any, strategy: Any) -> None:
        if done.round == 2:
            agents = strategy.session.roster.agents
            agents["2"].ledger = '["of the lost node"]'
            lost = agents["2"].node
            grid.contexts[9] = replace(grid.contexts.pop(lost), node_id=9, state=RecordDict())
            grid.online.symmetric_difference_update({lost, 9})

    start = {"observers": [replaced]}
    options = {"secure_sum": True, "recover_by_name": "no", "rounds": 4, "start": start}
    result, _, _ = play(name, grid=grid, **options)
    to_it = [m.content["privet.agent"] for _, m, _ in grid.seen if m.metadata.dst_node_id == 9]
    assert not any("ledger" in own or own["tag"] == 2 for own in to_it)
    if name == "fed-pdm":
        assert any("starts from scratch" in note for note in result.history[2].notes)
        assert [len(done.participants) for done in result.history] == [5] * 4
        assert [own["tag"] for own in to_it] == [0, 3]
    else:
        assert result.history[2].notes[0].endswith("turned away")
        assert [done.failures for done in result.history[2:]] == [
            {"2": Failure(FailureCode.NOT_CONNECTED, "not connected")}
        ] * 2
        assert to_it == []


def test_newcomers_join_with_a_key_of_their_own() -> None:
    grid = grid_for("fed-plt")
    late = max(grid.contexts)
    grid.online.discard(late)

    def arrive(done: Any, strategy: Any) -> None:
        if done.round == 3:
            grid.online.add(late)

    options = {"num_agents": 4, "secure_sum": True, "rounds": 300, "start": {"observers": [arrive]}}
    result, strategy, _ = play("fed-plt", grid=grid, **options)
    assert [len(d.participants) for d in result.history[:5]] == [4, 4, 4, 5, 5]
    assert np.linalg.norm(model(result) - minimize(ridge_agents()).x) < 1e-11
    assert len({agent.public_key for agent in strategy.session.roster.agents.values()}) == COUNT


@pytest.mark.parametrize("name", list(MAKE))
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole, _, _ = play(name, secure_sum=True, rounds=6)
    path = tmp_path / "checkpoint.npz"
    _, first, _ = play(name, secure_sum=True, rounds=3, start={"checkpoint": path})
    resumed, second, _ = play(name, secure_sum=True, rounds=6, start={"resume": path})
    assert np.array_equal(model(resumed), model(whole))
    before, after = (s.session.roster.agents["0"].public_key for s in (first, second))
    assert before != after
    with pytest.raises(RunError, match="secure-sum true -> false"):
        play(name, rounds=6, start={"resume": path})


def test_an_agent_without_a_key_is_asked_for_one_before_the_next_round() -> None:
    """Flower's own loop knows no second attempt: the unit misses one round, no more."""
    problems = ridge_agents(6)
    app = app_of(problems, "gfl")
    grid = FaultyGrid(app, 6, {(1, 2): lose_state})
    strategy = MAKE["gfl"](num_agents=6, units=2, secure_sum=True)
    taken: list[tuple[str, ...]] = []
    arrays: Any = start_at(0.3)
    for number in (1, 2, 3):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        taken.append(strategy.session.history[-1].participants)
    assert taken == [tuple("012345"), tuple("345"), tuple("012345")]
    assert "does not hold its key" in strategy.session.history[1].failures["1"].text
    assert "lacks those of 1" in strategy.session.history[1].failures["0"].text


def test_flowers_own_loop_can_drive_a_round_without_retries() -> None:
    strategy = FedPLT(num_agents=COUNT, secure_sum=True)
    grid = grid_for("fed-plt", faults={(2, 2): fails})
    arrays: Any = start_at(0.3)
    for number in (1, 2, 3):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        if number == 2:
            with pytest.raises(RunError, match="its upload was not used: the sum lacks those of 2"):
                strategy.aggregate_train(number, replies)
            continue
        arrays, metrics = strategy.aggregate_train(number, replies)
        assert metrics is not None
        assert metrics["participants"] == COUNT


# ------------------------------------------------------------------ what agents insist on


def tampered(change: Callable[[dict[str, Any]], None]) -> Any:
    """Return a reaction that delivers a message whose roster was changed on the way."""

    def react(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
        shared = dict(message.content["privet"])
        names = json.loads(shared["names"])
        keys = [shared["keys"][32 * i : 32 * i + 32] for i in range(len(names))]
        fields = {"roster": dict(zip(names, keys, strict=True)), "attempt": shared["attempt"]}
        change(fields)
        attempt = fields.get("attempt", 1)
        record = with_roster(message.content["privet"], attempt, fields["roster"])
        if "attempt" not in fields:
            del record["attempt"]
        message.content["privet"] = record
        return grid.normally(message)

    return react


def my_key(fields: dict[str, Any]) -> None:
    fields["roster"]["2"] = bytes(range(32))


def low_order(fields: dict[str, Any]) -> None:
    fields["roster"]["4"] = bytes([1, *[0] * 31])


def two_only(fields: dict[str, Any]) -> None:
    fields["roster"] = {name: fields["roster"][name] for name in ("2", "3")}


def without_me(fields: dict[str, Any]) -> None:
    del fields["roster"]["2"]


def same_key_twice(fields: dict[str, Any]) -> None:
    fields["roster"]["0"] = fields["roster"]["1"]


def no_attempt(fields: dict[str, Any]) -> None:
    del fields["attempt"]


def attempt_0(fields: dict[str, Any]) -> None:
    fields["attempt"] = 0


@pytest.mark.parametrize(
    ("change", "reason", "told"),
    [
        (my_key, "public key that is not its own", Told.ROSTER),
        (low_order, "agent 4 is not usable", Told.ROSTER),
        (two_only, "needs at least 3", Told.ROSTER),
        (without_me, "agent 2 is not on the roster", Told.ROSTER),
        (same_key_twice, "one public key", Told.ROSTER),
        (no_attempt, "do not go together", Told.SUM_TERMS),
        (attempt_0, "'attempt' is 0, expected 1 to", Told.MESSAGE),
    ],
)
def test_hostile_rosters_get_no_upload_and_cost_nothing(
    change: Any, reason: str, told: Told
) -> None:
    with own_log() as said:
        result, _, _ = recorded("fed-plt", {(2, 2): tampered(change)}, rounds=3)
    assert result.history[1].failures["2"].text == f"agent 2: {told}"
    assert reason in said.text
    assert result.history[2].participants == tuple("01234")


def instruct(grid: Any, strategy: Any, agent: str, **fields: Any) -> Message:
    """Send one training message of a round of our own to an agent and return its reply."""
    session = strategy.session
    shared = dict(strategy.run.opened.broadcast.shared[""])
    shared.update({k: v for k, v in fields.items() if k in shared})
    names = fields.get("roster", list("01234"))
    keys = {name: session.roster.agents[name].public_key for name in names}
    record = with_roster(ConfigRecord(shared), fields["attempt"], keys)
    own = ConfigRecord({"tag": session.roster.agents[agent].tag})
    node = session.roster.agents[agent].node
    content = RecordDict({"privet": record, "privet.agent": own})
    (reply,) = grid.send_and_receive([Message(content, node, "train")])
    return reply


def test_a_mask_is_used_once_and_no_agent_is_told_from_two_rosters() -> None:
    _, strategy, grid = play("fed-plt", secure_sum=True, rounds=3)

    def said(**fields: Any) -> str:
        reply = instruct(grid, strategy, "0", **fields)
        return reply.error.reason if reply.has_error() else "uploads"

    assert "a mask is used once" in said(round=3, attempt=1)
    assert "a mask is used once" in said(round=2, attempt=9)
    assert said(round=4, attempt=1) == "uploads"
    assert "one agent as the difference of two sums" in said(
        round=4, attempt=2, roster=list("0123")
    )
    assert "a mask is used once" in said(round=4, attempt=1, roster=list("012"))
    assert said(round=4, attempt=2, roster=list("012")) == "uploads"
    assert "one agent as the difference" in said(round=4, attempt=3, roster=list("01234"))
    assert said(round=4, attempt=3, roster=list("012")) == "uploads"
    assert said(round=5, attempt=1, roster=list("0124")) == "uploads"


@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm"])
def test_a_refused_message_costs_a_large_model_no_state(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round's own, once more: nobody else holds what the agent answered with."""
    monkeypatch.setattr("privet.agents.base.LARGE", 0)
    refusals = []

    def twice(grid: FaultyGrid, message: Message, agent: int) -> Message | None:
        reply, again = grid.normally(message), grid.normally(message)
        assert again is not None
        refusals.append(again.error.reason)
        return reply

    result, _, _ = recorded(name, {(2, 2): twice}, rounds=4)
    assert ["a mask is used once" in said for said in refusals] == [True]
    assert not any(done.failures for done in result.history)


def test_an_agent_of_a_secure_sum_sends_nothing_in_the_clear() -> None:
    _, strategy, grid = play("fed-plt", secure_sum=True, rounds=2)
    shared = dict(strategy.run.opened.broadcast.shared[""])
    settings = json.loads(shared["settings"])
    assert settings.pop("secure-sum") is True
    clear = {k: v for k, v in shared.items() if k not in ("attempt", "names", "keys")}
    clear["settings"] = json.dumps(settings)
    clear["round"] = 3
    agent = strategy.session.roster.agents["1"]
    for record, reason in (
        (clear, "asked for an upload in the clear"),
        ({**clear, "settings": shared["settings"]}, "do not go together"),
    ):
        content = RecordDict(
            {"privet": ConfigRecord(record), "privet.agent": ConfigRecord({"tag": agent.tag})}
        )
        (reply,) = grid.send_and_receive([Message(content, agent.node, "train")])
        assert reply.has_error()
        assert reason in reply.error.reason


def test_keys_are_fresh_for_every_enrolment_and_stay_with_the_agent() -> None:
    _, strategy, grid = play("fed-plt", secure_sum=True, rounds=1)
    for context in grid.contexts.values():
        state = MaskState.from_record(context.state[MASK_RECORD])
        name = str(position(context))
        assert strategy.session.roster.agents[name].public_key == state.keys.public
        assert (state.round, state.attempt) == (1, 1)
    _, again, _ = play("fed-plt", grid=grid, secure_sum=True, rounds=1)
    old, new = (s.session.roster.agents for s in (strategy, again))
    assert all(old[name].public_key != new[name].public_key for name in old)


def test_an_upload_that_does_not_fit_names_the_limit_and_no_number() -> None:
    problems = ridge_agents()
    app = app_of(problems)
    grid = InlineGrid(app, COUNT)
    strategy = FedPLT(num_agents=COUNT, secure_sum=True)
    with refused(Told.OVERFLOW, r"at most 1.67772e\+06 in magnitude with 5 agents"):
        strategy.start(grid, start_at(1e9), num_rounds=1)
