"""What a node kept from before it had a budget, and what it sent without being heard."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from privet.agents.state import AgentState
from privet.client_apps import client_app
from privet.kernel import AgentLedger, Facts, Release, Told
from privet.rounds.account import privacy_of
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedSGD, FedPLT, PrimalDualStrategy
from privet.wire import pack
from privet.wire.contract import (
    agent_record,
    encode_settings,
    is_need_state,
    read_update,
    shared_record,
)
from redteam.harness import SETTINGS, Node, problem, read_answer
from support.federations import zeros

OPEN = {"max_epsilon": None, "delta": None, "ledger_path": None}
QUIET = {"noise_variance": 0.0, "clip": 0.0, "local_solver": "gd", "row_norm": 0.0}
TRIED = {"noise_seed": 3}


@pytest.mark.parametrize("before", [QUIET, TRIED], ids=["un-noised", "seeded"])
@pytest.mark.parametrize("accounted", [False, True])
@pytest.mark.parametrize("then", [False, True], ids=["at once", "by way of a noised round"])
def test_state_of_rounds_that_were_not_charged_is_not_gone_on_from(
    before: dict[str, Any], accounted: bool, then: bool, tmp_path: Path
) -> None:
    """A budget set later: the x_i of those rounds would stand under next to no noise.

    Nor is it after a round whose noise was charged but which went on from them.
    """
    kept = str(tmp_path / "state.npz")
    free = Node(tmp_path, problem(), **OPEN, state_path=kept)
    if accounted:  # an account of another experiment vouches for nothing
        assert free.train("dp-fedsgd", experiment="old").refusal is None
    assert free.train("fed-plt", experiment="one", **before).refusal is None

    def go_on(node: Node, tag: int, **changes: Any) -> Message:
        settings, y = {**SETTINGS["fed-plt"], **changes}, {"y": np.zeros(node.dim)}
        shared = shared_record("fed-plt", 1, "one", tag + 1, encode_settings(settings), y)
        return node.send(RecordDict({"privet": shared, "privet.agent": agent_record(tag)}))

    if then:
        reply = go_on(free, 1)
        assert reply.has_content()
        assert not is_need_state(reply.content)

    node = Node(tmp_path, problem(), max_epsilon=1e3, state_path=kept)
    small = {"step-size": 1e-6, "clip": 1e-4, "noise-variance": 2e-8}
    reply = go_on(node, 2 if then else 1, **small)
    assert reply.has_content()
    assert is_need_state(reply.content)
    assert not node.charges


def test_a_message_does_not_replace_the_agents_own_account(tmp_path: Path) -> None:
    """An empty account sent along would let the run pass its target one reply at a time."""
    node = Node(tmp_path, problem(), max_epsilon=1e3)
    first = node.train("dp-fedsgd")
    shared = shared_record(
        "dp-fedsgd", 1, "e", 2, encode_settings(SETTINGS["dp-fedsgd"]), {"x": np.zeros(node.dim)}
    )
    own = agent_record(1, ledger=AgentLedger().to_json())
    reply = node.send(RecordDict({"privet": shared, "privet.agent": own}))
    assert read_answer(reply, "dp-fedsgd", 2).epsilon > first.epsilon > 0


def test_enrolment_names_no_experiment_but_the_one_that_asks(tmp_path: Path) -> None:
    node = Node(tmp_path, problem(), max_epsilon=1e3)
    assert node.train("dp-fedsgd", experiment="secret").refusal is None
    assert "secret" not in str(node.enrol("dp-fedsgd", experiment="other"))


def test_an_experiment_has_a_short_name(tmp_path: Path) -> None:
    """A node keeps it for good, with its state."""
    node = Node(tmp_path, problem(), max_epsilon=1e3)
    long = "e" * 201
    for ask in (node.enrol, node.send_train):
        assert ask("fed-plt", experiment=long).error.reason == f"agent me: {Told.MESSAGE}"
        assert "name of more than 200 bytes" in node.said
    assert not node.charges


class Deaf(InlineGrid):
    """Loses the replies of some nodes."""

    lost: frozenset[int] = frozenset()

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        return None if message.metadata.dst_node_id in self.lost else reply


SUMMED = FedPLT(local_solver="noisy-gd", clip=1.0, row_norm=1.0, noise_variance=1.0,
                num_agents=5, round_timeout=0.5, secure_sum=True)  # fmt: skip


@pytest.mark.parametrize(
    "strategy", [DPFedSGD(num_agents=5, clip=1.0, noise_scale=0.5, round_timeout=0.2), SUMMED],
    ids=["in clear", "masked"],
)  # fmt: skip
@pytest.mark.usefixtures("clock")
def test_a_reply_that_is_lost_counts_until_the_agent_speaks(strategy: PrimalDualStrategy) -> None:
    """Its upload may have been seen; the agent's own account then takes the place of ours."""
    grid = Deaf(client_app(strategy.algorithm, lambda context: problem()), 5)
    session = strategy.begin(grid, zeros(4))
    spent = []
    for number in (1, 2, 3):
        grid.lost = frozenset(sorted(grid.get_node_ids())[:1] if number == 2 else ())
        strategy.play_round(grid, number)
        spent.append(AgentLedger.from_json(session.roster.agents["0"].ledger).messages)
    assert spent == [1, 2, 3]


def test_the_first_lost_reply_of_an_agent_with_steps_of_its_own_counts_them() -> None:
    """Seven noised steps of its own stand against the run's two, though it has said nothing yet."""
    ledgers = []
    for lost in (False, True):
        strategy = FedPLT(local_solver="noisy-gd", clip=1.0, row_norm=1.0, noise_variance=1.0,
                          local_epochs=2, num_agents=2, round_timeout=0.2)  # fmt: skip
        app = client_app("fed-plt", lambda context: problem(), settings={"local-epochs": 7})
        grid = Deaf(app, 2)
        session = strategy.begin(grid, zeros(4))
        grid.lost = frozenset(sorted(grid.get_node_ids())[:1] if lost else ())
        strategy.play_round(grid, 1)
        assert session.history[-1].participants == (("1",) if lost else ("0", "1"))
        ledgers.append(session.roster.agents["0"].ledger)
    assert ledgers[0] == ledgers[1]
    own = strategy.half.with_settings({"local-epochs": 7}).agent
    facts = Facts.from_json(session.roster.agents["0"].facts)
    assert AgentLedger.from_json(ledgers[1]).entries == ((own.release(facts, 1), 1),)
    assert own.release(facts, 1) != strategy.half.agent.release(facts, 1)


FOREIGN = Release("gaussian", scale=100.0, sensitivity=1e-3, relation="add-remove")


@pytest.mark.parametrize(
    "said",
    [
        {"own": '{"relation":"add-remove","noise-scale":0.01}'},
        {"ledger": AgentLedger().record(FOREIGN).to_json()},
    ],
    ids=["own settings", "own account"],
)
def test_an_account_that_cannot_be_composed_ends_no_run(said: dict[str, str]) -> None:
    """An agent says what it likes, and does not answer: its share of the account is unreadable."""
    strategy = DPFedSGD(num_agents=3, clip=1.0, noise_scale=0.5, round_timeout=0.2, min_agents=1)
    grid = Deaf(client_app("dp-fedsgd", lambda context: problem()), 3)
    session = strategy.begin(grid, zeros(4))
    strategy.play_round(grid, 1)
    agents = session.roster.agents
    agents["0"] = replace(agents["0"], **said)  # type: ignore[arg-type]
    grid.lost = frozenset(sorted(grid.get_node_ids())[:1])
    for number in (2, 3):
        strategy.play_round(grid, number)
        assert session.history[-1].participants == ("1", "2")
    if "own" in said:  # no operator can set these: what was lost counts as the run has it
        assert AgentLedger.from_json(agents["0"].ledger).messages == 3
    else:
        assert agents["0"].spent(1e-5) == math.inf
        assert not privacy_of(strategy.half, session).private


def test_a_state_that_was_sent_is_what_is_kept_of_its_round() -> None:
    """One that is held of that round may be of noise that can be predicted."""
    held = AgentState("e", (1, 2), (pack({"x": np.zeros(2)}), pack({"x": np.ones(2)})))
    sent = pack({"x": np.full(2, 7.0)})
    new = held.follow("e", 2, sent, 3, {"x": np.zeros(2)}, "", fully_charged=True)
    assert new.states[0] == sent
    assert held.follow("e", 2, {}, 3, {}, "", fully_charged=False).states[0] == held.states[1]


def of_run(node: Node, experiment: str, ledger: str = "", **changes: Any) -> Any:
    """Return the update, or the error, to a first message of a run with an account."""
    keys = {key.replace("_", "-"): value for key, value in changes.items()}
    said = encode_settings({**SETTINGS["dp-fedsgd"], "noise-scale": 5.0, **keys})
    shared = shared_record("dp-fedsgd", 1, experiment, 1, said, {"x": np.zeros(4)})
    own = agent_record(0, pack({}), ledger)
    reply = node.send(RecordDict({"privet": shared, "privet.agent": own}))
    return (
        reply.error.reason if reply.has_error() else read_update(reply.content, "dp-fedsgd", 1, 1)
    )


LIES = {
    "without noise": Release("none"),
    "of Laplace noise": Release("laplace", 1e-3, norm="l1"),
    "under another relation": Release("gaussian", 1.0, relation="add-remove"),
}


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("lie", LIES)
def test_an_account_belongs_to_its_run(lie: str, restarted: bool, tmp_path: Path) -> None:
    """The next coordinator is told nothing of it, and pays for no lie of this one."""

    def node() -> Node:
        return Node(tmp_path, problem(), state_path=str(tmp_path / "state"))

    alone = of_run(Node(tmp_path, problem(), **OPEN), "alone")
    first = node()
    of_run(first, "lying", AgentLedger.of([(LIES[lie], 1)]).to_json())
    of_run(first, "earlier", noise_scale=3.0)
    before = first.charges
    assert before >= 1
    second = node() if restarted else first
    update = of_run(second, "honest", target_epsilon=alone.epsilon * 1.01)
    assert update.epsilon == alone.epsilon
    assert update.ledger == alone.ledger
    assert second.charges == before + 1  # the node's own file adds all of them up


def test_a_node_that_was_private_in_an_earlier_run_stays_so(tmp_path: Path) -> None:
    """One without limits, in a run without noise after it, and after a restart."""

    def node() -> Node:
        return Node(tmp_path, problem(), state_path=str(tmp_path / "state"), **OPEN)

    assert not node().evaluate().has_error()
    of_run(node(), "private")
    plain = of_run(node(), "plain", clip=0.0, noise_scale=0.0)
    assert plain.ledger == ""
    for _ in range(2):
        assert str(Told.EVALUATION) in node().evaluate().error.reason
        of_run(node(), "plain", clip=0.0, noise_scale=0.0)


@pytest.mark.parametrize("name", ["encoded", "loop.personal", "buffers", "x"])
def test_a_state_that_was_sent_is_no_larger_than_a_model_needs(name: str, tmp_path: Path) -> None:
    """A node keeps it, and reads it with every message, also of other runs."""
    path = tmp_path / "state.npz"
    node = Node(tmp_path, problem(), state_path=str(path))
    assert not node.send_train("dp-fedsgd").has_error()
    before, kept = node.written, path.read_bytes()
    large = {name: np.zeros(1 << 20, np.uint8)}
    reply = node.send_train("dp-fedsgd", experiment="h", state=large)
    assert reply.error.reason == f"agent me: {Told.MESSAGE}"
    assert "the state that was sent has 10" in node.said
    free = {"clip": 0.0, "noise_scale": 0.0}
    assert node.send_train("dp-fedsgd", experiment="h", state=large, **free).has_error()
    assert (node.written, path.read_bytes()) == (before, kept)


@pytest.mark.parametrize("fault", ["no folder", "full"])
def test_a_node_that_cannot_write_its_state_is_not_charged(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "states"
    node = Node(tmp_path, problem(), state_path=str(folder / "state.npz"))
    if fault == "full":
        folder.mkdir()
        disk = os.statvfs(tmp_path)
        full = os.statvfs_result((*disk[:4], 1, *disk[5:]))
        monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    reply = node.send_train("dp-fedsgd")
    assert reply.error.reason == f"agent me: {Told.STATE}"
    assert f"state-path {folder / 'state.npz'} cannot be written: No s" in node.said
    assert node.written == b""
    if fault == "full":
        assert list(folder.iterdir()) == []
    monkeypatch.undo()
    folder.mkdir(exist_ok=True)
    assert not node.send_train("dp-fedsgd").has_error()
