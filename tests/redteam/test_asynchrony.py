"""Private asynchronous runs: every task that an agent computed is charged, whatever happens."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from privet.core import RunError
from privet.rounds.collect.tasks import Tasks
from privet.rounds.keep.checkpoint import load
from privet.server_apps.account import privacy_account
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT
from support.federations import app_of, logistic_agents, zeros
from support.late_grid import GONE, LateGrid

pytestmark = pytest.mark.usefixtures("clock")

AGENTS = 3
PROBLEMS = logistic_agents(AGENTS)
PRIVATE: dict[str, Any] = {
    "asynchronous": True,
    "buffer": 1,
    "num_agents": AGENTS,
    "max_uploads": 9,
    "local_solver": "noisy-gd",
    "local_epochs": 2,
    "clip": 1.0,
    "row_norm": 9.0,
    "noise_variance": 1e-2,
    "patience": 0.0,
}


def fed_plt(**options: Any) -> FedPLT:
    return FedPLT(**{**PRIVATE, **options})


def play(strategy: FedPLT, grid: Any, rounds: int, **start: Any) -> Any:
    return strategy.start(grid, zeros(4), num_rounds=rounds, log_rounds=False, **start)


def seconds(agent: int, number: int) -> float:
    return 5.0 + 7.0 * agent


def stated(strategy: FedPLT) -> dict[str, int]:
    """Return how many releases of each agent ``privacy.json`` would state."""
    agents = privacy_account(strategy, {})["agents"]
    return {
        name: sum(release["times"] for release in one["releases"]) for name, one in agents.items()
    }


def steps_of(strategy: FedPLT, name: str) -> set[int]:
    """Return of how many steps the releases are that a run states of an agent."""
    agents = privacy_account(strategy, {})["agents"]
    return {release["steps"] for release in agents[name]["releases"]}


def computed(grid: LateGrid) -> dict[str, int]:
    return {str(agent): count for agent, count in grid.computed.items()}


class Stopped(Exception):
    pass


class Breaks(LateGrid):
    """A grid that fails once this many train replies have been fetched in all."""

    breaks_at = 0
    came = 0

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        self.came += sum(reply.metadata.message_type == "train" for reply in replies)
        if self.breaks_at and self.came >= self.breaks_at:
            raise Stopped
        return replies


# ---------------------------------------------------------------------- runs that are cut off


def test_a_run_that_fails_states_the_tasks_that_were_out() -> None:
    grid = Breaks(PROBLEMS, seconds)
    grid.breaks_at = 4
    strategy = fed_plt()
    with pytest.raises(Stopped):
        play(strategy, grid, 20)
    assert stated(strategy) == computed(grid)


def test_a_reply_that_came_in_a_round_that_was_cut_off_counts_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent never answers again to say so itself."""
    grid, check = LateGrid(PROBLEMS, seconds), Tasks._check
    old: list[str] = []

    def fail(tasks: Tasks, opened: Any) -> bool:
        old.extend(name for name, task in tasks.ended.items() if task.version < opened.number)
        if old and opened.number > 1:
            raise Stopped
        return check(tasks, opened)

    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "_check", fail)
        where = {"checkpoint": tmp_path / "checkpoint.npz", "checkpoint_every": 0}
        with pytest.raises(Stopped):
            play(fed_plt(), grid, 20, **where)
    later = LateGrid(PROBLEMS, lambda agent, number: 500.0 if str(agent) in old else 5.0)
    strategy = fed_plt()
    last = load(tmp_path).manifest["round"] + 2
    play(strategy, later, last, resume=load(tmp_path), checkpoint=tmp_path / "checkpoint.npz")
    said, agents = stated(strategy), list(map(int, old))
    assert agents
    assert all(said[str(one)] >= grid.computed[one] + later.computed[one] for one in agents)


# ---------------------------------------------------------------------- what a lost task costs


def test_the_task_of_a_node_that_was_replaced_costs_what_that_node_took() -> None:
    """It took fifty steps by its operator's setting; the node that has its place takes two."""
    grid = LateGrid(PROBLEMS, lambda agent, number: 5.0 if agent else 500.0)
    (victim,) = (context for node, context in grid.inner.contexts.items() if not grid.agents[node])
    victim.node_config["local-epochs"] = 50

    def replace(done: Any, _: Any) -> None:
        if done.round == 2:
            grid.kill(0)
            victim.node_config["local-epochs"] = 2
            grid.start_again(0)

    strategy = fed_plt(recover_by_name="no")
    play(strategy, grid, 6, observers=[replace])
    assert 50 in steps_of(strategy, "0")


def test_the_lost_task_before_a_resume_costs_what_its_operator_had_set(tmp_path: Path) -> None:
    grid = LateGrid(PROBLEMS, lambda agent, number: 5.0 if agent else 500.0)
    (own,) = (context for node, context in grid.inner.contexts.items() if not grid.agents[node])
    own.node_config["local-epochs"] = 50
    play(fed_plt(), grid, 3, checkpoint=tmp_path / "checkpoint.npz")
    later = LateGrid(PROBLEMS, lambda agent, number: 5.0 if agent else 500.0)
    strategy = fed_plt()
    play(strategy, later, 5, resume=load(tmp_path), checkpoint=tmp_path / "checkpoint.npz")
    assert 50 in steps_of(strategy, "0")


def test_a_resume_with_no_round_left_states_what_was_out(tmp_path: Path) -> None:
    """Simulated agents have done their tasks, and nobody folds them any more."""

    def resumed(**start: Any) -> dict[str, int]:
        grid, strategy = InlineGrid(app_of(PROBLEMS), AGENTS), fed_plt(speeds="stragglers")
        play(strategy, grid, 3, **start)
        return stated(strategy)

    file = tmp_path / "checkpoint.npz"
    before = resumed(checkpoint=file)
    after = resumed(resume=load(tmp_path), checkpoint=file)
    assert all(after[name] >= count for name, count in before.items())


# ---------------------------------------------------------------------- replies of no use


class Garbles(LateGrid):
    """An agent's replies to messages of rounds speak another version of the protocol."""

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            agent, kind = self.agents[reply.metadata.src_node_id], reply.metadata.message_type
            if reply.has_content() and (agent, kind) == (2, "train"):
                record = reply.content["privet"]
                about = json.loads(record["about"])
                record["about"] = json.dumps({**about, "version": about["version"] + 1})
        return replies


@pytest.mark.parametrize("share", [{}, {"asynchronous": False, "late_replies": "fold"}])
def test_a_late_reply_that_is_no_upload_costs_what_its_agent_was_asked_for(
    share: dict[str, Any],
) -> None:
    """It may come in a later round than its request, and its agent has computed."""
    grid = Garbles(PROBLEMS, seconds)
    strategy = fed_plt(**share, **({"round_timeout": 9.0, "buffer": 0} if share else {}))
    play(strategy, grid, 6)
    assert grid.computed[2] > 0
    assert stated(strategy).get("2", 0) == grid.computed[2]


class Faulty(InlineGrid):
    """Counts the messages of rounds to agent 2, and changes its replies to them."""

    asked = 0

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        if kind == "train" and self.contexts[node].node_config["partition-id"] == 2:
            self.asked += 1
            return self.changed(message, reply)
        return reply

    def changed(self, message: Message, reply: Message | None) -> Message | None:
        raise NotImplementedError


class Forgets(Faulty):
    """The agent states an account without releases from its second reply on."""

    def changed(self, message: Message, reply: Message | None) -> Message | None:
        if self.asked > 1 and reply is not None and reply.has_content():
            record = reply.content["privet"]
            about = json.loads(record["about"])
            record["about"] = json.dumps({**about, "ledger": "[]"})
        return reply


class Loses(Faulty):
    """Every second reply is lost, and the agent's state with it; it has computed."""

    def changed(self, message: Message, reply: Message | None) -> Message | None:
        if self.asked % 2 == 0:
            self.contexts[message.metadata.dst_node_id].state = RecordDict()
            return Message(Error(GONE, "gone"), reply_to=message)
        return reply


def asked_and_stated(kind: type[Faulty], file: Path, *ends: int, every: int = 1) -> tuple[int, int]:
    """Play a run up to each of these rounds, and go on; return the messages to agent 2, and its
    releases."""
    asked = 0
    nodes = [{"partition-id": one, "num-partitions": AGENTS} for one in range(AGENTS)]
    for rounds in ends:
        grid, strategy = kind(app_of(PROBLEMS), nodes), fed_plt(speeds="stragglers")
        grid.asked = asked
        resume = {"resume": file} if asked else {}
        with suppress(RunError):
            play(strategy, grid, rounds, checkpoint=file, checkpoint_every=every, **resume)
        asked = grid.asked
    return asked, stated(strategy)["2"]


@pytest.mark.parametrize("last", [2, 3, 4, 5, 6])
def test_a_resume_takes_no_account_of_a_task_that_lacks_what_was_stated_before(
    tmp_path: Path, last: int
) -> None:
    """A reply that is still to come at a checkpoint is judged as one that comes now."""
    asked, counted = asked_and_stated(Forgets, tmp_path / "checkpoint.npz", last, 12)
    assert asked > 1
    assert counted >= asked


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("last", range(2, 9))
def test_a_reply_that_is_known_to_be_lost_counts_once_over_a_resume(
    tmp_path: Path, last: int, every: int
) -> None:
    """Its task ends later; the agent's state, which is put back, holds it from the resume on."""
    asked, counted = asked_and_stated(Loses, tmp_path / "checkpoint.npz", last, 14, every=every)
    assert asked > 2
    assert counted == asked
