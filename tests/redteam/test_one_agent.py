"""One agent lies at enrolment or in a reply: it is left out, and the run of the others goes on."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message

from privet.client_apps import client_app
from privet.core import RunError
from privet.core.errors import HopelessError
from privet.core.exits import EXIT_CODE
from privet.data import problem_from_context
from privet.data.meaning import Meaning
from privet.kernel import AgentLedger, Facts, Release, drawn_delta
from privet.kernel import agent_ledger as ledger_module
from privet.kernel.agent_ledger import MOST_RELEASES
from privet.problems import L2, BinaryLogistic, PooledL2
from privet.rounds import account as account_module
from privet.rounds import roster as roster_module
from privet.rounds.enrol import admission
from privet.rounds.failure import FailureCode
from privet.rounds.roster import MOST_EARLIER, EnrolledAgent, Question, Roster
from privet.rounds.session import REPEATS, Session
from privet.server_apps import read_config
from privet.server_apps.account import privacy_account
from privet.server_apps.report.statement import has_statement
from privet.sim.engine import InlineGrid
from privet.strategies import GFL, DPFedSGD, FedPLT, PrimalDualStrategy, PrivetResult
from privet.wire import ENROL, REFUSED, Layout
from privet.wire.contract import ENROL_AGAIN
from support.federations import app_of, logistic_agents

Change = Callable[[Any, Message], Message | None]
COUNT = 5


class Liar(InlineGrid):
    """Changes what one agent answers, of one kind of message."""

    liar, kind = "2", ENROL
    keys: dict[str, bytes]
    change: Change

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        name = str(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        enrols = message.metadata.message_type == ENROL
        if reply is None or not reply.has_content() or enrols != (self.kind == ENROL):
            return reply
        record: Any = reply.content["privet"]
        if enrols and name != self.liar:
            self.keys[name] = record.get("public-key", b"")
        return reply if name != self.liar else self.change(record, message) or reply


def grid(algorithm: str, change: Change, liar: str, kind: str = ENROL) -> Liar:
    nodes = [{"partition-id": place, "num-examples": 40} for place in range(COUNT)]
    made = Liar(app_of(logistic_agents(COUNT), algorithm), nodes)
    made.change, made.liar, made.kind, made.keys = change, liar, kind, {}
    return made


def setting(**fields: Any) -> Change:
    def change(record: Any, _: Message) -> None:
        for name, value in fields.items():
            record[name] = value

    return change


def private(**run: Any) -> DPFedSGD:
    return DPFedSGD(
        num_agents=COUNT, clip=1.0, noise_scale=1.0, step_size_base=0.1, patience=2.0, **run
    )


def plain(**run: Any) -> FedPLT:
    return FedPLT(num_agents=COUNT, patience=2.0, **run)


def play(
    strategy: PrimalDualStrategy, nodes: InlineGrid, arrays: dict[str, int] | None = None
) -> PrivetResult:
    start = {name: Array(np.zeros(size)) for name, size in (arrays or {"x": 4}).items()}
    return strategy.start(nodes, ArrayRecord(start), num_rounds=2, timeout=20.0)


def others(liar: str) -> list[tuple[str, ...]]:
    return [tuple(name for name in map(str, range(COUNT)) if name != liar)] * 2


@pytest.mark.parametrize("make", [private, plain])
@pytest.mark.parametrize("key", [bytes(32), bytes([1]) + bytes(31)], ids=["zero", "one"])
def test_a_public_key_of_low_order_is_turned_away(make: Any, key: bytes) -> None:
    strategy = make(secure_sum=True)
    nodes = grid(strategy.half.name, setting(**{"public-key": key}), "4")
    result = play(strategy, nodes)
    assert [done.participants for done in result.history] == others("4")
    assert "X25519 cannot use" in str(strategy.run.session.roster.rejected)


def test_a_copy_of_a_public_key_is_turned_away() -> None:
    strategy = private(secure_sum=True)

    def copy(record: Any, _: Message) -> None:
        record["public-key"] = nodes.keys["1"]

    nodes = grid("dp-fedsgd", copy, "4")
    result = play(strategy, nodes)
    assert [done.participants for done in result.history] == others("4")
    assert "gives the public key of agent 1" in str(strategy.run.session.roster.rejected)


@pytest.mark.parametrize("make", [private, plain])
@pytest.mark.parametrize("liar", ["0", "4"])
@pytest.mark.parametrize(
    "fields",
    [
        {"layout": '[["a",[3]]]', "dim": 3},
        {"layout": '[["a",[3]],["b",[1]]]', "buffers": '[["b",[1]]]'},
        {"layout": '[["a",[3]]]', "buffers": '[["b",[1]]]', "dim": 3},
    ],
    ids=["part", "both", "buffer"],
)
def test_a_layout_of_its_own_chooses_for_nobody_else(
    make: Any, liar: str, fields: dict[str, Any]
) -> None:
    strategy = make()
    nodes = grid(strategy.half.name, setting(**fields), liar)
    result = play(strategy, nodes, {"a": 3, "b": 1})
    assert [done.participants for done in result.history] == others(liar)


@pytest.mark.parametrize("code", [-3, -2, -1])
@pytest.mark.parametrize("make", [private, plain])
@pytest.mark.parametrize("masked", [False, True])
def test_an_error_code_of_the_coordinator_s_own_ends_no_run(
    make: Any, code: int, masked: bool
) -> None:
    strategy = make(secure_sum=masked)

    def stop(_: Any, message: Message) -> Message:
        return Message(Error(code, "stop"), reply_to=message)

    result = play(strategy, grid(strategy.half.name, stop, "2", kind="train"))
    assert result.status == "completed"
    for done in result.history:  # a masked sum that was tried again leaves one more agent out
        assert len(done.participants) >= COUNT - 1 - masked
        assert done.failures["2"].code is FailureCode.LOST


@pytest.mark.parametrize("unit", ["9", "x"])
def test_a_unit_that_is_not_there_ends_no_run(unit: str) -> None:
    strategy = GFL(num_agents=COUNT, units=2, graph="path", local_epochs=2)
    result = play(strategy, grid("gfl", setting(unit=unit), "2"))
    assert [done.participants for done in result.history] == others("2")


NUMBERS: dict[str, Callable[[Meaning], Meaning]] = {
    "rows": lambda own: replace(own, rows={"age": [60.0, 1.0, 9.0]}),
    "label": lambda own: replace(own, rows={"": [60.0, 1.0, 9.0]}),
    "scale": lambda own: replace(own, scale={"age": [5.0, 2.0]}),
}


def of_tables(tmp_path: Path, change: Callable[[Meaning], Meaning], liar: str) -> Liar:
    """Return a grid of three tables, of which one is stated as text, and changed."""
    schema = tmp_path / "schema.toml"
    columns = 'age = [0, 100]\ndose = [0, 10]\nflag = ["yes"]\ny = ["0", "1"]'
    schema.write_text(f"[columns]\n{columns}\n")
    rng, nodes = np.random.default_rng(0), []
    for place in range(3):
        rows = [f"{rng.integers(100)},{rng.integers(10)},yes,{rng.integers(2)}" for _ in range(60)]
        table = tmp_path / f"{place}.csv"
        table.write_text("\n".join(["age,dose,flag,y", *rows, ""]))
        nodes.append(
            {"partition-id": place, "num-partitions": 3, "dataset": "csv", "schema": str(schema),
             "data-path": str(table), "label-column": "y", "partition": "none"}
        )  # fmt: skip

    class States(Liar):
        def deliver(self, message: Message) -> Message | None:
            context = self.contexts[message.metadata.dst_node_id]

            def state(record: Any, _: Message) -> None:
                own: Any = problem_from_context(context)
                record["encoding"] = change(own.meaning).text

            self.change = state
            return super().deliver(message)

    made = States(client_app(None, problem_from_context), nodes)
    made.liar, made.keys = liar, {}
    return made


@pytest.mark.parametrize("liar", ["0", "2"])
@pytest.mark.parametrize("what", list(NUMBERS))
def test_numbers_of_rows_stand_in_for_nobody_s_digests(
    tmp_path: Path, what: str, liar: str
) -> None:
    made = of_tables(tmp_path, NUMBERS[what], liar)
    strategy = DPFedSGD(num_agents=3, clip=1.0, noise_scale=1.0, step_size_base=0.1)
    result = play(strategy, made, {"x": 3})
    honest = tuple(name for name in "012" if name != liar)
    assert [done.participants for done in result.history] == [honest] * 2
    assert "by numbers of its rows" in str(strategy.run.session.roster.rejected)


@pytest.mark.parametrize("liar", ["0", "2"])
@pytest.mark.parametrize(
    "facts",
    [{}, {"stated": True}, {"stated": 2}, {"width": 0}, {"width": 1}, {"width": 5}],
    ids=str,
)
def test_what_no_digest_holds_ends_no_private_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], liar: str
) -> None:
    """A text with the digests of all, but for facts that no digest holds."""
    monkeypatch.setattr(admission, "in_simulation", lambda grid: False)  # as between nodes

    def changed(own: Meaning) -> Meaning:
        columns = {name: dict(one) for name, one in own.columns.items()}
        columns["flag"] = {"categories": ["yes"], **facts}
        return replace(own, columns=columns)

    made = of_tables(tmp_path, changed, liar)
    strategy = DPFedSGD(num_agents=3, clip=1.0, noise_scale=1.0, step_size_base=0.1)
    result = play(strategy, made, {"x": 3})
    honest = {name for name in "012" if name != liar}
    assert all(honest <= set(done.participants) for done in result.history)
    assert len(result.history) == 2


def told(**about: Any) -> Change:
    """Return a change of what an upload says of its cost."""

    def change(record: Any, _: Message) -> None:
        record["about"] = json.dumps({**json.loads(record["about"]), **about})

    return change


def entry(**fields: Any) -> Change:
    """Return a change of the first release of an account."""

    def change(record: Any, _: Message) -> None:
        about = json.loads(record["about"])
        entries = json.loads(about["ledger"])
        entries[0].update(fields)
        record["about"] = json.dumps({**about, "ledger": json.dumps(entries)})

    return change


def targeted(**run: Any) -> DPFedSGD:
    return DPFedSGD(
        num_agents=COUNT, clip=1.0, target_epsilon=1.0, step_size_base=0.1, patience=2.0, **run
    )


def spent_by(**fields: Any) -> str:
    return AgentLedger.of([(Release("gaussian", **fields), 1)]).to_json()


def figures(result: PrivetResult) -> tuple[float, float]:
    assert result.privacy is not None
    assert result.privacy.private, result.privacy.reason
    return result.privacy.epsilon, result.privacy.drawn


OF_ACCOUNTS: dict[str, Change] = {
    "none": told(ledger=""),
    "empty": told(ledger="[]"),
    "none and no epsilon": told(ledger="", epsilon="inf"),
    "of another program": entry(what="custom program none: nobody can reconstruct a record"),
}
ABOVE: dict[str, Change] = {
    "200 times": entry(times=200),
    "a million times": entry(times=10**6),
    "a larger sensitivity": entry(sensitivity=1.0),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("what", [*OF_ACCOUNTS, *ABOVE])
def test_an_account_of_no_use_leaves_the_others_their_figures(what: str, masked: bool) -> None:
    honest = play(targeted(secure_sum=masked), grid("dp-fedsgd", lambda *_: None, "2"))
    change = {**OF_ACCOUNTS, **ABOVE}[what]
    strategy = targeted(secure_sum=masked)
    result = play(strategy, grid("dp-fedsgd", change, "2", "train"))
    assert figures(result) == figures(honest)
    assert [done.epsilon for done in result.history] == [done.epsilon for done in honest.history]
    assert result.privacy is not None
    assert (result.privacy.unbound, result.privacy.apart) == ((), ())
    assert result.privacy.agents["2"].messages == 1
    assert result.history[-1].participants == others("2")[0]
    # A sum that has its upload is not tried again, which would cost the others a release.
    assert ("2" in result.history[0].participants) == masked
    assert all("custom" not in one.what for one, _ in result.privacy.agents["2"].entries)


def test_an_account_that_lacks_what_it_held_is_not_kept() -> None:
    rounds: list[int] = []

    def shed(record: Any, _: Message) -> None:
        about = json.loads(record["about"])
        rounds.append(about["round"])
        entries = json.loads(about["ledger"])
        entries[0]["times"] = 1
        record["about"] = json.dumps({**about, "ledger": json.dumps(entries)})

    result = play(private(), grid("dp-fedsgd", shed, "2", "train"))
    assert rounds == [1, 2]
    assert [len(done.participants) for done in result.history] == [COUNT, COUNT - 1]
    assert result.privacy is not None
    assert result.privacy.agents["2"].messages == 2


@pytest.mark.parametrize("said", [1e300, 30.0, 0.0])
@pytest.mark.parametrize("masked", [False, True])
def test_the_history_has_the_epsilon_of_the_account(said: float, masked: bool) -> None:
    honest = play(private(secure_sum=masked), grid("dp-fedsgd", lambda *_: None, "2"))
    nodes = grid("dp-fedsgd", told(epsilon=said), "2", "train")
    result = play(private(secure_sum=masked), nodes)
    assert [done.epsilon for done in result.history] == pytest.approx(
        [done.epsilon for done in honest.history], rel=1e-12
    )
    assert figures(result) == figures(honest)


def test_lost_replies_by_settings_of_its_own_have_a_figure_of_their_own() -> None:
    """What an agent follows in place of the run's settings may cost more than the target."""
    more: dict[str, Any] = {"batch": "sample", "batch_size": 32}
    honest = play(targeted(**more), grid("dp-fedsgd", lambda *_: None, "2"))

    class Silent(Liar):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            context = self.contexts[message.metadata.dst_node_id]
            here = str(context.node_config["partition-id"]) == self.liar
            if here and message.metadata.message_type != ENROL:
                return Message(Error(1, "app failed"), reply_to=message)
            return reply

    nodes = [{"partition-id": place, "num-examples": 40} for place in range(COUNT)]
    made = Silent(app_of(logistic_agents(COUNT), "dp-fedsgd"), nodes)
    made.change, made.keys = setting(**{"own-settings": json.dumps({"batch-size": 1})}), {}
    result = play(targeted(**more), made)
    assert figures(result) == figures(honest)
    assert result.privacy is not None
    assert result.privacy.apart == ("2",)
    assert result.privacy.agents["2"].spent(1e-5) > 10
    assert "epsilon is not that of agent 2" in str(result.privacy)
    assert max(done.epsilon for done in result.history) <= 1


@pytest.mark.parametrize("make", [private, targeted])
def test_releases_of_a_run_that_has_just_begun_are_not_believed(make: Any) -> None:
    strategy = make()
    result = play(strategy, grid("dp-fedsgd", setting(ledger=spent_by(scale=1.0)), "2"))
    assert [done.participants for done in result.history] == others("2")
    assert "which never asked it" in str(strategy.run.session.roster.rejected)
    assert figures(result) == figures(play(make(), grid("dp-fedsgd", lambda *_: None, "2")))


@pytest.mark.parametrize("share", [0.9995, 5.0])
def test_what_one_agent_has_paid_ends_no_resumed_run(tmp_path: Path, share: float) -> None:
    target = 2.0
    place = tmp_path / "checkpoint.npz"
    start = ArrayRecord({"x": Array(np.zeros(4))})
    honest = grid("dp-fedsgd", lambda *_: None, "2")
    targeted().start(honest, start, num_rounds=2, timeout=20.0, checkpoint=place)
    low, high = 1e-3, 1e3
    for _ in range(60):  # the noise of a single release that costs so much
        scale = (low * high) ** 0.5
        spent = AgentLedger.from_json(spent_by(scale=scale)).spent(1e-5)
        low, high = (low, scale) if spent < share * target else (scale, high)
    nodes = grid("dp-fedsgd", setting(ledger=spent_by(scale=high)), "2")
    more = DPFedSGD(num_agents=COUNT, clip=1.0, target_epsilon=target, step_size_base=0.1)
    result = more.start(nodes, start, num_rounds=4, timeout=20.0, checkpoint=place, resume=place)
    every = tuple(map(str, range(COUNT)))
    assert [done.participants for done in result.history] == [every, every, *others("2")]
    assert figures(result)[0] == pytest.approx(target, rel=1e-6)
    assert result.privacy is not None
    assert result.privacy.apart == (("2",) if share > 1 else ())
    assert result.privacy.agents["2"].messages == 1
    assert "has paid" in more.run.session.roster.agents["2"].out


def facts_with(**numbers: Any) -> Change:
    def change(record: Any, _: Message) -> None:
        record["facts"] = json.dumps({**json.loads(record["facts"]), **numbers})
        if "num_examples" in numbers:
            record["num-examples"] = numbers["num_examples"]

    return change


@pytest.mark.parametrize(
    "numbers", [{"modulus": 0.0, "regularizer": "none"}, {"modulus": 1e50}], ids=["none", "huge"]
)
def test_numbers_without_a_contraction_end_no_geometric_run(numbers: dict[str, Any]) -> None:
    strategy = targeted(budget_schedule="geometric")
    result = play(strategy, grid("dp-fedsgd", facts_with(**numbers), "2"))
    assert [done.participants for done in result.history] == others("2")
    assert "no contraction is known" in str(strategy.run.session.roster.rejected)


@pytest.mark.parametrize(
    "numbers",
    [
        {"loss": "of-its-own"},
        *({"modulus": size} for size in (1e50, 1e150, 1e308)),
        *({"divisor": size} for size in (5e-324, 1e-300, 1e-50, 1e308)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "keys",
    [
        {"step_size": 0.1, "asynchronous": True, "max_uploads": 2},
        {"late_replies": "fold"},
        {"asynchronous": True, "max_uploads": 2, "local_solver": "noisy-gd", "local_epochs": 2}
        | {"clip": 1.0, "noise_variance": 1.0},
    ],
    ids=["asynchronous", "late", "private"],
)
def test_numbers_without_moduli_end_no_run_of_old_models(
    keys: dict[str, Any], numbers: dict[str, Any]
) -> None:
    strategy = plain(**{"row_norm": 1.0, "local_solver": "gd", **keys})
    nodes = grid("fed-plt", facts_with(**numbers), "2")
    start = ArrayRecord({"x": Array(np.zeros(4))})
    result = strategy.start(nodes, start, num_rounds=8, timeout=20.0)
    folded = {name for done in result.history for name in done.participants}
    assert {"0", "1", "3", "4"} <= folded
    assert np.abs(result.arrays["x"].numpy()).max() < 100


def test_one_agent_that_sets_the_noise_of_all_is_named(caplog: pytest.LogCaptureFixture) -> None:
    few = facts_with(num_examples=1, divisor=1.0)
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        play(targeted(), grid("dp-fedsgd", lambda *_: None, "2"))
        assert "alone sets the noise" not in caplog.text
        play(targeted(), grid("dp-fedsgd", few, "2"))
    (line,) = [one for one in caplog.messages if "alone sets the noise" in one]
    assert line.startswith("target-epsilon: agent 2 alone sets the noise of all agents")
    assert "noise-scale is 40 times what the others need" in line


class Nodes:
    """A grid of which some nodes never answer, and may be gone."""

    def __init__(self, *nodes: int) -> None:
        self.nodes: tuple[int, ...] = nodes
        self.asked: list[list[int]] = []

    def get_node_ids(self) -> tuple[int, ...]:
        return self.nodes

    def push_messages(self, messages: Any) -> list[str]:
        self.asked.append(sorted(one.metadata.dst_node_id for one in messages))
        return []

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return []

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        self.push_messages(list(messages))
        return []


QUESTION = Question("fed-plt", 1, "", lambda _: "", lambda _: None)


def test_a_node_that_comes_and_goes_and_never_answers_is_not_asked_each_time() -> None:
    here, nodes = Roster(), Nodes(1)
    for turn in range(20):
        nodes.nodes = () if turn % 2 else (1,)
        here.refresh(nodes, QUESTION, 0.01)  # type: ignore[arg-type]
    assert nodes.asked == [[1]]


def test_a_known_agent_that_is_silent_when_asked_again_is_paused() -> None:
    here, nodes = Roster(), Nodes(1)
    here.agents["a"] = EnrolledAgent(1, 20)
    for _ in range(20):
        here.doubtful.add("a")
        here.refresh(nodes, QUESTION, 0.01)  # type: ignore[arg-type]
    assert nodes.asked == [[1], [1]]
    assert here.doubtful == {"a"}


def test_new_nodes_that_never_answer_are_waited_for_less_each_time() -> None:
    here, waits = Roster(), []
    for turn in range(12):
        here.refresh(Nodes(turn + 1), QUESTION, 0.01)  # type: ignore[arg-type]
        waits.append(here.silences)
    assert waits == list(range(1, 13))
    assert admission.LEAST_ENROL_TIMEOUT < roster_module.ENROL_TIMEOUT / 8


def test_a_release_no_cheaper_than_was_asked_for_is_needed() -> None:
    """By what the agent itself stated, the run's settings before a resume included."""
    half = private().half
    facts = Facts(20, 20.0, 4)
    agent = EnrolledAgent(1, 20, facts=facts.to_json())
    asked = half.agent.release(facts, 1)
    fault = partial(account_module.upload_fault, enrolled=1)
    assert fault(half, agent, AgentLedger.of([(asked, 1)]).to_json(), 1) == ""
    other = half.with_settings({half.noise_key: 9.0})
    cheap = AgentLedger.of([(other.agent.release(facts, 1), 1)]).to_json()
    assert "lacks the release that was asked for" in fault(half, agent, cheap, 1)
    assert fault(half, agent, cheap, 1, (1.0, 9.0)) == ""


RATIOS = pytest.mark.parametrize("ratio", [0.9, 1.0])


def in_sums(ratio: float) -> tuple[Any, Facts]:
    """Return a run of shared noise whose rounds differ by a ratio, and its agents' numbers."""
    schedule: dict[str, Any] = {"budget_schedule": "geometric", "budget_ratio": ratio}
    shared = DPFedSGD(
        num_agents=COUNT, clip=1.0, noise_scale=5.0, secure_sum=True, noise_sharing=True,
        **(schedule if ratio != 1 else {}),
    )  # fmt: skip
    return shared.half, Facts(20, 20.0, 4, colluders=1)


@RATIOS
def test_every_release_of_a_sum_that_was_asked_for_is_enough(ratio: float) -> None:
    """Of any number of enrolled agents, in any round so far, with any noise of the run."""
    half, facts = in_sums(ratio)
    agent = EnrolledAgent(1, 20, facts=facts.to_json())

    def fault(*releases: Release, enrolled: int = COUNT) -> str:
        text = AgentLedger.of((one, 1) for one in releases).to_json()
        return account_module.upload_fault(half, agent, text, 9, (9.0,), enrolled=enrolled)

    other = half.with_settings({half.noise_key: 9.0})
    asked = {
        (each, size, number): one.agent.release(replace(facts, agents=size), number)
        for each, one in enumerate((half, other))
        for size in range(2, COUNT + 1)
        for number in range(1, 10)
    }
    for one in asked.values():
        assert fault(one) == ""
    # An attempt that was lost, in a sum with agents that enrolled later than what is resumed.
    larger = half.agent.release(replace(facts, agents=COUNT + 2), 9)
    assert fault(larger, asked[0, 4, 9]) == ""
    for size in range(2, COUNT + 1):
        least = min((one for key, one in asked.items() if key[1] == size), key=lambda o: o.loss)
        cheaper = replace(least, scale=least.scale * 1.001)
        assert fault(cheaper) == "it lacks the release that was asked for"
    assert fault(replace(larger, agents=100)) == (
        f"it names a sum of 100 agents, and {COUNT} have enrolled: "
        "it lacks the release that was asked for"
    )


@RATIOS
def test_what_was_asked_for_in_smaller_sums_is_no_reason_to_expect_it_again(ratio: float) -> None:
    half, facts = in_sums(ratio)

    def of(size: int, number: int) -> Release:
        return half.agent.release(replace(facts, agents=size), number)

    def expected(*releases: Release) -> Release | None:
        text = AgentLedger.of((one, 1) for one in releases).to_json()
        agent = EnrolledAgent(1, 20, facts=facts.to_json(), ledger=text)
        return account_module.expected_release(half, agent, 9, COUNT)

    before = [of(size, number) for size in range(2, COUNT + 1) for number in range(1, 10)]
    assert expected(*before) == of(COUNT, 9)
    more = replace(of(2, 4), sensitivity=10.0)
    assert expected(*before, more) == more


def test_numbers_that_an_agent_states_of_its_sums_make_no_release_cheaper() -> None:
    half, facts = in_sums(1.0)
    agent = EnrolledAgent(1, 20, facts=replace(facts, agents=1000).to_json())
    cheap = AgentLedger.of([(half.agent.release(replace(facts, agents=1000), 1), 1)]).to_json()
    assert "names a sum of 1000 agents" in account_module.upload_fault(
        half, agent, cheap, 1, enrolled=COUNT
    )


@pytest.mark.parametrize("masked", [False, True])
def test_an_account_without_room_ends_no_resumed_run(tmp_path: Path, masked: bool) -> None:
    """16,000 different releases that cost next to nothing: the run's further ones do not fit."""

    def fill(record: Any, _: Message) -> None:
        about = json.loads(record["about"])
        own = json.loads(about["ledger"])
        for one in own:
            one["scale"] *= 0.999999
        scale = own[0]["scale"] * 3000.0
        more = [
            (Release("gaussian", scale=scale * (1 + place / 1e5)), 1)
            for place in range(MOST_RELEASES - len(own))
        ]
        tiny = json.loads(AgentLedger.of(more).to_json())
        about["ledger"] = json.dumps(own + tiny, separators=(",", ":"))
        record["about"] = json.dumps(about)

    def run(change: Change, **start: Any) -> PrivetResult:
        strategy = DPFedSGD(
            num_agents=COUNT, clip=1.0, target_epsilon=1.0, step_size_base=0.1, patience=2.0,
            min_agents=2, secure_sum=masked,
        )  # fmt: skip
        nodes = grid("dp-fedsgd", change, "2", "train")
        zero = ArrayRecord({"x": Array(np.zeros(4))})
        place = tmp_path / "checkpoint.npz"
        return strategy.start(nodes, zero, num_rounds=4, timeout=20.0, checkpoint=place, **start)

    run(fill, should_stop=lambda done: done.round == 2)
    result = run(lambda *_: None, resume=tmp_path / "checkpoint.npz")
    assert [done.participants for done in result.history[2:]] == others("2")
    assert "epsilon 1" in str(result.privacy)


@pytest.mark.parametrize("regularizer", ["l2", ""], ids=["own", "none"])
def test_a_penalty_of_its_own_ends_no_run_of_another_c(regularizer: str) -> None:
    problems = [
        BinaryLogistic(one.features, one.labels, regularizer=PooledL2(0.01, 0))
        for one in logistic_agents(COUNT)
    ]

    nodes = [{"partition-id": place} for place in range(COUNT)]
    made = Liar(app_of(problems, "fed-plt"), nodes)
    made.liar, made.keys = "2", {}
    made.change = facts_with(regularizer=regularizer) if regularizer else setting(facts="")
    strategy = plain(penalty_c=2.0)
    result = play(strategy, made)
    assert [done.participants for done in result.history] == others("2")
    assert "which penalty-c = 2 cannot change" in str(strategy.run.session.roster.rejected)


@pytest.mark.parametrize("make", [private, plain])
@pytest.mark.parametrize("tied", ["", "{}", '{"c":"b"}'])
def test_ties_of_its_own_choose_for_nobody_else(make: Any, tied: str) -> None:
    class Ties(Liar):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if reply is not None and message.metadata.message_type == ENROL:
                record: Any = reply.content["privet"]
                place = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
                record["layout"] = '[["a",[3]],["b",[1]]]'
                record["tied"] = tied if str(place) == self.liar else '{"c":"a"}'
            return reply

    strategy = make(min_agents=2)
    nodes = [{"partition-id": place} for place in range(COUNT)]
    made = Ties(app_of(logistic_agents(COUNT), strategy.half.name), nodes)
    made.liar, made.keys, made.change = "0", {}, lambda *_: None
    result = play(strategy, made, {"a": 3, "b": 1, "c": 3})
    assert [done.participants for done in result.history] == others("0")


def dearest(own: dict[str, Any]) -> float:
    """Return the least noise of one more release at which the total delta is still below 1."""
    low, high = own["scale"] / 1000, own["scale"]
    for _ in range(60):
        middle = math.sqrt(low * high)
        more = {**own, "scale": middle}
        ledger = AgentLedger.from_json(json.dumps([own, more]))
        sound = 1e-5 + drawn_delta(ledger.entries, 4, ledger.spent(1e-5)) < 0.7
        low, high = (low, middle) if sound else (middle, high)
    return high


@pytest.mark.parametrize("masked", [False, True])
def test_a_dear_account_leaves_the_others_their_statement(masked: bool) -> None:
    """Without a target: at its epsilon the draws of the others would have a total delta of 1."""

    def dear(record: Any, message: Message) -> Message | None:
        if message.content["privet"]["round"] > 1:
            return Message(Error(REFUSED, "no"), reply_to=message)
        about = json.loads(record["about"])
        (own,) = json.loads(about["ledger"])
        about["ledger"] = json.dumps([own, {**own, "scale": dearest(own)}])
        record["about"] = json.dumps(about)
        return None

    strategy = private(secure_sum=masked, min_agents=2)
    nodes = grid("dp-fedsgd", dear, "2", "train")
    start = ArrayRecord({"x": Array(np.zeros(4))})
    result = strategy.start(nodes, start, num_rounds=12, timeout=20.0)
    assert result.privacy.apart == ("2",)
    assert result.privacy.delta + result.privacy.drawn < 1
    assert result.privacy.epsilon < 1


def test_an_account_that_is_as_asked_passes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of accounts that are compared as texts the full check refuses none."""
    facts = Facts(20, 20.0, 4, loss="logistic").to_json()
    full = partial(account_module.upload_fault, enrolled=1)
    passed = 0
    for target in (0.0, 2.0):
        half = DPFedSGD(clip=1.0, noise_scale=5.0, target_epsilon=target).half
        asked = half.agent.release(Facts.from_json(facts), 1)
        usual = AgentLedger.of([(asked, 2)])
        others = [
            replace(asked, scale=asked.scale * factor, count=asked.count + more)
            for factor in (0.5, 1.0, 2.0)
            for more in (0, 1)
        ]
        known = [usual, *(usual.record(one) for one in others), AgentLedger.of([(asked, 10**9)])]
        stated = [account.record(one) for account in known for one in others]
        stated += [account.record(asked).record(asked) for account in known] + known
        for account in known:
            agent = EnrolledAgent(0, facts=facts, ledger=account.to_json(), tag=1)
            for text in (one.to_json() for one in stated):
                if account_module._is_as_asked(half, agent, text, 2):
                    passed += 1
                    assert text == account.record(asked).to_json()
                    with monkeypatch.context() as patch:
                        patch.setattr(account_module, "_is_as_asked", lambda *given: False)
                        assert full(half, agent, text, 2, enrolled=5) == ""
    assert passed >= 2 * 8


@pytest.mark.parametrize("silent", [True, False])
def test_a_run_whose_other_nodes_are_silent_is_worth_another_try(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node is turned away; the others do not answer in time, or are turned away as well."""
    monkeypatch.setattr(admission, "ENROL_PATIENCE", 0.2)

    class Turned(InlineGrid):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            node = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
            if silent and node != 0:
                return None
            if reply is not None and reply.has_content():
                reply.content["privet"]["dim"] = 99
            return reply

    grid = Turned(app_of(logistic_agents(3), "dp-fedsgd"), 3)
    strategy = DPFedSGD(
        num_agents=3, clip=1.0, noise_scale=1.0, step_size_base=0.1, wait_timeout=0.2
    )
    with pytest.raises(RunError, match="agents could be enrolled, below min-agents") as caught:
        strategy.start(grid, ArrayRecord({"x": Array(np.zeros(4))}), num_rounds=2)
    assert isinstance(caught.value, HopelessError) is not silent


class Alone(Liar):
    """All other agents fail in every round."""

    def deliver(self, message: Message) -> Message | None:
        node = self.contexts[message.metadata.dst_node_id].node_config
        if message.metadata.message_type != ENROL and str(node["partition-id"]) != self.liar:
            return Message(Error(101, "it failed"), reply_to=message)
        return super().deliver(message)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "without accounted noise"),
        ({"local_solver": "noisy-gd", "clip": 1.0, "step_size": 0.1}, "proves nothing"),
    ],
)
def test_accounts_that_agents_state_make_no_run_private(
    keys: dict[str, Any], why: str, masked: bool
) -> None:
    release = Release("gaussian", 5.0, relation="replace-one", what="noised gradient")
    text = AgentLedger.of([(release, 1)]).to_json()
    state = told(epsilon=0.5, ledger=text)
    if masked:  # a sum has more than one agent
        nodes = grid("fed-plt", state, "2", "train")
    else:
        nodes = Alone(app_of(logistic_agents(COUNT), "fed-plt"), COUNT)
        nodes.change, nodes.liar, nodes.kind, nodes.keys = state, "2", "train", {}
    strategy = plain(**keys, min_agents=1, secure_sum=masked)
    result = play(strategy, nodes)
    assert any(done.participants for done in result.history)
    assert [done.epsilon for done in result.history] == [math.inf] * 2
    assert result.privacy is not None
    assert not result.privacy.private
    assert why in result.privacy.reason
    account = privacy_account(strategy, {"rows-per-person": 1})
    assert (account["private"], account["accounts"]) == (False, [])
    assert not has_statement(account, {EXIT_CODE: result.exit_code}, result.history)
    assert not any(agent.ledger for agent in strategy.run.session.roster.agents.values())


@pytest.mark.parametrize("facts", ["nonsense", "{}", Facts(40, 40.0, 3).to_json()])
@pytest.mark.parametrize("make", [plain, private, GFL])
def test_public_numbers_that_cannot_be_used_are_turned_away_in_every_run(
    make: Any, facts: str
) -> None:
    strategy = make() if make is not GFL else GFL(units=2, num_agents=COUNT, patience=2.0)
    result = play(strategy, grid(strategy.half.name, setting(facts=facts), "4"))
    assert [done.participants for done in result.history] == others("4")
    assert "public numbers" in str(strategy.run.session.roster.rejected)


@pytest.mark.parametrize("weight", [0.1, 50.0])
def test_numbers_of_one_agent_do_not_bound_the_links_of_all(weight: float) -> None:
    """A step of 0.5 on a penalty of 50 may spread two models; one agent says that it has none."""
    keys = {"algorithm": "gfl", "units": 2, "num-agents": COUNT, "step-size": 0.5, "clip": 0.5}
    config = read_config({**keys, "noise-variance": 4.0})
    agents = [
        BinaryLogistic(one.features, one.labels, regularizer=L2(weight))
        for one in logistic_agents(COUNT)
    ]

    def links(change: Change) -> float:
        nodes = Liar(app_of(agents, "gfl"), COUNT)
        nodes.change, nodes.keys = change, {}
        strategy = GFL.from_config(config)
        play(strategy, nodes)
        account = privacy_account(strategy, config)
        return float(account["accounts"][-1]["epsilon"])

    def deny(record: Any, _: Message) -> None:
        stated = {**json.loads(record["facts"]), "num_examples": 1, "divisor": 1.0}
        stated |= {"regularizer": "none", "modulus": 0.0, "penalty": 0.0}
        record["facts"], record["num-examples"] = json.dumps(stated), 1

    honest = links(lambda *_: None)
    assert links(deny) == honest
    assert math.isfinite(honest) == (weight == 0.1)


@pytest.mark.parametrize("text", ["nonsense", "[" * 10**4, spent_by(scale=1e-3), "{}"])
@pytest.mark.parametrize("keys", [{}, {"local_solver": "noisy-gd", "clip": 1.0, "step_size": 0.1}])
def test_accounts_are_not_read_in_a_run_without_noise(
    text: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(ledger_module, "_entries", lambda text: iter(read.append(text) or ()))
    strategy = plain(**keys)
    result = play(strategy, grid("fed-plt", setting(ledger=text), "2"))
    assert [len(done.participants) for done in result.history] == [COUNT] * 2
    assert text not in read
    assert not strategy.run.session.roster.agents["2"].accounts[0]


class Again(Liar):
    """One agent answers every task that it is to be enrolled again, and never says the same."""

    asked = 0

    def deliver(self, message: Message) -> Message | None:
        node = self.contexts[message.metadata.dst_node_id].node_config
        if message.metadata.message_type != ENROL and str(node["partition-id"]) == self.liar:
            self.asked += 1
            return Message(Error(ENROL_AGAIN, "other columns"), reply_to=message)
        return super().deliver(message)


def again(algorithm: str, change: Change) -> Again:
    nodes = Again(app_of(logistic_agents(COUNT), algorithm), COUNT)
    nodes.change, nodes.keys = change, {}
    return nodes


def long_account(number: int) -> str:
    return AgentLedger.of(
        (Release("gaussian", 1e4 + number + place / 64, relation="replace-one"), 1)
        for place in range(40)
    ).to_json()


def test_a_long_account_is_read_once_and_not_in_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries, read, enrolled = ledger_module._entries, [], []

    def counted(text: str) -> Any:
        read.append(text)
        return entries(text)

    def state(record: Any, _: Message) -> None:
        enrolled.append(1)
        if len(enrolled) > 1:  # the first is refused: nobody was asked yet
            record["ledger"] = long_account(len(enrolled))

    monkeypatch.setattr(ledger_module, "_entries", counted)
    nodes, strategy = again("dp-fedsgd", state), private()
    start = ArrayRecord({"x": Array(np.zeros(4))})
    result = strategy.start(nodes, start, num_rounds=8, timeout=20.0)
    assert [done.participants for done in result.history] == others("2") * 4
    assert nodes.asked == REPEATS
    stated = [long_account(number) for number in range(2, len(enrolled) + 1)]
    assert 1 <= len(stated) <= REPEATS
    assert [read.count(text) for text in stated[:-1]] == [1] * (len(stated) - 1)
    assert "came to nothing" in strategy.run.session.roster.agents["2"].out


def test_an_agent_of_a_run_without_noise_is_enrolled_again_as_often_as_it_asks() -> None:
    nodes, strategy = again("fed-plt", lambda *_: None), plain()
    strategy.start(nodes, ArrayRecord({"x": Array(np.zeros(4))}), num_rounds=8, timeout=20.0)
    assert nodes.asked == 8


@pytest.mark.parametrize("noised", [True, False])
def test_numbers_of_one_agent_that_change_all_the_time_are_not_all_kept(noised: bool) -> None:
    question = Question("dp-fedsgd", 1, "", lambda _: "", lambda _: None, fixed=noised)
    here = Roster({"a": EnrolledAgent(1, 20, facts="0")})
    lengths = []
    for turn in range(1, 31):
        here._place("a", EnrolledAgent(1, 20, facts=str(turn)), question)
        lengths.append(len(here.agents["a"].earlier))
    assert lengths == [min(turn, MOST_EARLIER) if noised else 0 for turn in range(1, 31)]
    assert here.agents["a"].facts == str(MOST_EARLIER if noised else 30)
    assert ("more than 8 times" in here.agents["a"].out) == noised
    # Numbers that were stated before are no change.
    here._place("a", EnrolledAgent(1, 20, facts="3"), question)
    assert here.agents["a"].out == ""
    assert len(here.agents["a"].earlier) == (MOST_EARLIER if noised else 0)


def test_accounts_of_former_nodes_are_one_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "MOST_RELEASES", 100)
    question = Question("dp-fedsgd", 1, "", lambda _: "", lambda _: None, fixed=True)
    here = Roster({"a": EnrolledAgent(1, 20)})
    alike = AgentLedger.of([(Release("gaussian", 1e4), 3)])
    for life in range(2, 10):  # the same releases are added up
        here.note_ledger("a", alike.to_json())
        before = AgentLedger.joined(here.agents["a"].accounts)
        here._place("a", EnrolledAgent(life, 20), question)
        (former,) = here.agents["a"].former
        assert AgentLedger.from_json(former).entries == ((alike.entries[0][0], 3 * (life - 1)),)
        assert here.agents["a"].spent(1e-5) == pytest.approx(before.spent(1e-5), rel=1e-12)
    for life in range(10, 20):  # others as long as there is room
        here.note_ledger("a", long_account(life))
        here._place("a", EnrolledAgent(life, 20), question)
        agent = here.agents["a"]
        held = [AgentLedger.joined([text]).entries for text in agent.former]
        assert sum(map(len, held)) == 1 + 40 * (life - 9)
        if agent.out:
            break
    assert life == 12
    assert "too many different releases" in here.agents["a"].out
    here._place("a", EnrolledAgent(50, 20), question)
    assert here.agents["a"].out == agent.out
    assert here.agents["a"].former == agent.former


def test_a_missing_account_of_a_former_node_is_not_forgotten() -> None:
    question = Question("dp-fedsgd", 1, "", lambda _: "", lambda _: None)
    here = Roster({"a": EnrolledAgent(1, 20, tag=1)})
    for life in range(2, 6):
        here._place("a", EnrolledAgent(life, 20), question)
        here.agents["a"].tag, here.agents["a"].ledger = 1, spent_by(scale=1e4) * (life % 2)
    here._place("a", EnrolledAgent(9, 20), question)
    assert here.agents["a"].former[0] == ""
    assert len(here.agents["a"].former) == 2


def with_rows(name: str, *numbers: float) -> Callable[[Meaning], Meaning]:
    """Return what states other numbers of a column's rows, or with an empty name of all columns."""

    def change(own: Meaning) -> Meaning:
        names = [name] if name else list(own.rows)
        return replace(own, rows={**own.rows, **dict.fromkeys(names, numbers)})

    return change


def plain_tables(tmp_path: Path, change: Callable[[Meaning], Meaning], liar: str) -> Liar:
    """Return a grid of three tables without a schema, of which one states other numbers."""
    contexts = of_tables(tmp_path, change, liar).contexts.values()
    nodes = [{k: v for k, v in one.node_config.items() if k != "schema"} for one in contexts]

    def state(record: Any, _: Message) -> None:
        own = Meaning.from_text(record["encoding"])
        record["encoding"] = change(own).text if own.rows else own.text  # then as all agreed

    made = Liar(client_app(None, problem_from_context), nodes)
    made.change, made.liar, made.keys = state, liar, {}
    return made


@pytest.mark.parametrize("liar", ["0", "2"])
@pytest.mark.parametrize(
    ("name", "numbers", "why"),
    [
        ("", (1e120, 50.0, 1e240), "states 1e+120 rows of column 'age', and enrols with "),
        ("age", (1e15, 50.0, 1e25), "states 1e+15 rows of column 'age', and enrols with "),
        ("dose", (3.5, 3.0, 1.0), "states a number of rows of column 'dose' that is not whole"),
        ("age", (1.0, 50.0, 1e200), "states a deviation of 1 rows of column 'age'"),
    ],
)
def test_a_site_that_states_more_rows_than_it_has_scales_nobody_s_numbers(
    tmp_path: Path, liar: str, name: str, numbers: tuple[float, ...], why: str
) -> None:
    strategy = FedPLT(num_agents=3, patience=2.0)
    result = play(strategy, plain_tables(tmp_path, with_rows(name, *numbers), liar), {"x": 4})
    honest = tuple(one for one in "012" if one != liar)
    assert [done.participants for done in result.history] == [honest] * 2
    (line,) = set(strategy.run.session.roster.rejected.values())
    assert line.startswith(f"agent {liar}: {why}")
    agreed = strategy.run.session.encoding.meaning
    assert agreed is not None
    assert 1 < agreed.scale["age"][1] < 100


def test_a_number_of_examples_that_no_site_has_is_turned_away() -> None:
    strategy = plain()
    facts = replace(Facts(1 << 41, 1.0, 4), divisor=float(1 << 41)).to_json()
    fields = {"num-examples": 1 << 41, "facts": facts}
    result = play(strategy, grid("fed-plt", setting(**fields), "4"))
    assert [done.participants for done in result.history] == others("4")
    assert "2199023255552 examples are stated, expected 2^40" in str(
        strategy.run.session.roster.rejected
    )


def test_a_site_that_alone_changes_the_scaling_is_named_in_the_history(tmp_path: Path) -> None:
    """What it states could be so: that is for a person to judge."""
    strategy = FedPLT(num_agents=3, patience=2.0)
    result = play(
        strategy, plain_tables(tmp_path, with_rows("age", 40.0, 50.0, 1e14), "2"), {"x": 4}
    )
    assert [done.participants for done in result.history] == [("0", "1", "2")] * 2
    (line,) = [note for note in result.history[0].notes if note.startswith("column age")]
    assert "'2'" in line
    assert not [note for note in result.history[1].notes if "column age" in note]


def test_the_usual_numbers_are_those_that_agents_state_now() -> None:
    """One that enrols again with other numbers changes them, at an equal number of agents."""
    numbers = Facts(40, 40.0, 4, loss="logistic", regularizer="l2")
    texts = [replace(numbers, modulus=one).to_json() for one in (0.5, 2.0, 2.0)]
    roster = Roster(
        {str(place): EnrolledAgent(place, 40, facts=text) for place, text in enumerate(texts)}
    )
    session = Session(
        "a", Layout.of_floats(start := ArrayRecord({"x": Array(np.zeros(4))})), start, None, roster
    )
    large = replace(numbers, modulus=3.0).to_json()
    assert session.usual(large)[1].modulus == 2.0
    assert session.usual(texts[0]) == (Facts.from_json(texts[0]),) * 2
    question = Question("fed-plt", 1, "a", lambda _: "", lambda _: None)
    for place in (1, 2):
        now = EnrolledAgent(place, 40, facts=replace(numbers, modulus=0.25).to_json())
        roster._place(str(place), now, question)
    assert session.usual(large)[1].modulus == 0.25
    roster._place("3", EnrolledAgent(3, 40, facts=large), question)
    assert session.usual(large)[1].modulus == 0.25
