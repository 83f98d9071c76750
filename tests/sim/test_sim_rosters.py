"""Names belong to nodes: what becomes of a second node that says an enrolled name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from privet.client_apps import client_app
from privet.core import ConfigError
from privet.kernel import AgentLedger
from privet.problems import BinaryLogistic, make_h, minimize
from privet.rounds.enrol.admission import admit, renew
from privet.rounds.roster import recovery_of
from privet.server_apps import execute, read_config
from privet.server_apps.account import privacy_account
from privet.sim.engine import InlineGrid
from privet.sim.inline import configured_app
from privet.strategies import (
    DPIADMM,
    GFL,
    LED,
    DPFedSGD,
    Failure,
    FailureCode,
    FedDyn,
    FedLin,
    FedPD,
    FedPDM,
    FedPLT,
    FedSplit,
    FiveGCS,
    PrimalDualStrategy,
    Scaffold,
    Tamuna,
)
from privet.wire import AGENT_RECORD, ENROL, unpack
from support.federations import logistic_agents, model, zeros

PROBLEMS = logistic_agents(3)
OTHER = 5000


class Watched(InlineGrid):
    """An engine that keeps what every node is sent; its nodes have the problems by position."""

    def __init__(self, algorithm: str = "fed-plt", problems: list[Any] = PROBLEMS) -> None:
        self.problems = list(problems)
        app = client_app(algorithm, lambda context: self.problems[_number(context)])
        super().__init__(app, len(problems))
        self.sent: list[tuple[int, str, RecordDict]] = []

    def deliver(self, message: Message) -> Message | None:
        about = message.metadata
        self.sent.append((about.dst_node_id, about.message_type, message.content))
        return super().deliver(message)

    def to(self, node: int, kind: str = "train") -> list[RecordDict]:
        """Return what a node was sent."""
        return [content for to, type_, content in self.sent if (to, type_) == (node, kind)]


def _number(context: Context) -> int:
    return int(context.node_config["partition-id"])


def join(grid: InlineGrid, node: int, config: Mapping[str, Any]) -> None:
    """Connect another node."""
    grid.contexts[node] = Context(
        run_id=grid.run.run_id,
        node_id=node,
        node_config=dict(config),
        state=RecordDict(),
        run_config={},
    )
    grid.online.add(node)


def begun(rounds: int = 2, **options: Any) -> tuple[Watched, FedPLT]:
    """Return a run of three agents after some rounds."""
    grid = Watched()
    strategy = FedPLT(**{"rho": 1.0, "local_epochs": 3, "num_agents": 3, **options})
    strategy.start(grid, zeros(4), num_rounds=rounds)
    return grid, strategy


def undisturbed(rounds: int) -> float:
    """Return the residual of a run in which nothing happens; equal ones mean equal models."""
    _, strategy = begun(rounds)
    assert strategy.session is not None
    return strategy.session.history[-1].residual


def told(content: RecordDict) -> tuple[int, dict[str, Any] | None, str]:
    """Return tag, recovery and account of a message."""
    own = content[AGENT_RECORD]
    assert isinstance(own, ConfigRecord)
    packed = own.get("recovery")
    state = unpack(packed) if isinstance(packed, bytes) else None
    return int(own["tag"]), state, str(own.get("ledger", ""))  # type: ignore[arg-type]


def turned_away(name: str, node: int, holder: int) -> str:
    return f"agent {name}: node {node} claims this name, which node {holder} holds: turned away"


# ------------------------------------------------------------------ while the holder is there


@pytest.mark.parametrize("recovery", ["auto", "yes", "no", "node-key"])
def test_an_impostor_is_turned_away_while_the_holder_is_online(recovery: str, caplog: Any) -> None:
    grid, strategy = begun(recover_by_name=recovery)
    join(grid, OTHER, {"agent": "0", "partition-id": 1})
    done = [strategy.play_round(grid, number) for number in (3, 4, 5)]
    assert grid.to(OTHER) == []  # no state, no recovery, no account: no message at all
    assert len(grid.to(OTHER, ENROL)) == 1  # nor is it asked again while the holder lives
    assert strategy.session is not None
    assert strategy.session.roster.agents["0"].node == 1000
    assert [one.participants for one in done] == [("0", "1", "2")] * 3
    assert [one.notes for one in done] == [(turned_away("0", OTHER, 1000),), (), ()]
    assert turned_away("0", OTHER, 1000) in caplog.text
    assert done[-1].residual == undisturbed(5)


def test_of_two_that_enrol_together_one_has_the_name(tmp_path: Path) -> None:
    """The line is in the run folder's history."""
    config = {"num-agents": 3, "num-server-rounds": 2, "output-dir": str(tmp_path)}
    grid = InlineGrid(configured_app(), 3, config)
    join(grid, OTHER, {"agent": "0", "partition-id": 1, "num-partitions": 3})
    finished = execute(grid, read_config(config), "run")
    lines = (finished.folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["notes"] for line in lines] == [[turned_away("0", OTHER, 1000)], []]
    assert turned_away("0", OTHER, 1000) in (finished.folder / "report.html").read_text()
    assert [done.participants for done in finished.result.history] == [("0", "1", "2")] * 2


def test_a_node_has_one_name_for_a_run() -> None:
    grid, strategy = begun()
    grid.contexts[1001].node_config["agent"] = "0"
    assert strategy.session is not None
    strategy.session.roster.doubtful.add("1")
    done = strategy.play_round(grid, 3)
    assert done.notes == ("node turned away: agent 1: its node 1001 now says it is 0",)
    assert strategy.session.roster.agents["0"].node == 1000


# ------------------------------------------------------------------ when it is gone


def test_the_next_node_goes_on_where_the_run_recovers_by_name() -> None:
    grid, strategy = begun(recover_by_name="yes")
    join(grid, OTHER, {"partition-id": 0})
    strategy.play_round(grid, 3)
    grid.online.discard(1000)
    done = strategy.play_round(grid, 4)
    assert done.participants == ("0", "1", "2")
    assert done.notes == ("agent 0 was sent its state of round 3",)
    assert strategy.play_round(grid, 5).residual == undisturbed(5)


def test_the_next_node_begins_anew_where_it_does_not() -> None:
    grid, strategy = begun(recover_by_name="no")
    join(grid, OTHER, {"partition-id": 0})
    strategy.play_round(grid, 3)
    grid.online.discard(1000)
    done = strategy.play_round(grid, 4)
    assert done.participants == ("0", "1", "2")
    assert done.notes == (
        f"agent 0: node {OTHER} takes the place of a lost one and starts from scratch",
    )
    (first,) = grid.to(OTHER)
    tag, state, ledger = told(first)
    assert (tag, ledger) == (0, "")
    assert state is not None
    assert {name: value.any() for name, value in state.items()} == {"x": False, "z": False}
    grid.online.add(1000)  # the name is the other's now
    done = strategy.play_round(grid, 5)
    assert done.notes == (turned_away("0", 1000, OTHER),)
    assert done.participants == ("0", "1", "2")
    for number in range(6, 300):
        strategy.play_round(grid, number)
    assert strategy.session is not None
    last = strategy.half.models(strategy.session.state)["last"]
    assert np.allclose(last, minimize(PROBLEMS).x, atol=1e-8)


def test_the_name_of_a_node_with_a_key_is_nobody_elses() -> None:
    grid, strategy = begun(recover_by_name="node-key")
    join(grid, OTHER, {"partition-id": 0})
    grid.online.discard(1000)
    rounds = [strategy.play_round(grid, number) for number in (3, 4)]
    assert [done.failures for done in rounds] == [
        {"0": Failure(FailureCode.NOT_CONNECTED, "not connected")}
    ] * 2
    assert (len(grid.to(OTHER)), len(grid.to(OTHER, ENROL))) == (0, 1)
    grid.online.add(1000)
    grid.contexts[1000].state.clear()  # restarted with its key: the same id, an empty memory
    done = strategy.play_round(grid, 5)
    assert done.notes == ("agent 0 was sent its state of round 2",)
    assert done.participants == ("0", "1", "2")


STRATEGIES: dict[type[PrimalDualStrategy], dict[str, Any]] = {
    FedPLT: {"rho": 1.0, "local_epochs": 3},
    DPIADMM: {},
    FedPDM: {"dual": "public"},
    FedDyn: {"step_size_base": 0.3, "step_size_rule": "constant"},
    Scaffold: {"step_size_base": 0.3, "step_size_rule": "constant"},
    DPFedSGD: {},
    GFL: {"units": 1},
    FedPD: {"rho": 1.2, "step_size": 0.4, "local_epochs": 3},
    FedLin: {"step_size": 0.3, "local_epochs": 4},
    LED: {"step_size": 0.3, "dual_step_size": 0.25, "local_epochs": 3},
    Tamuna: {"step_size": 0.3, "local_epochs": 3},
    FiveGCS: {"rho": 1.1, "step_size": 0.4, "server_step_size": 0.7, "local_epochs": 3},
    FedSplit: {"rho": 1.2, "step_size": 0.4, "local_epochs": 3},
}
EXACT = [FedPLT, FedDyn, Scaffold, FedPD, FedLin, LED, Tamuna, FiveGCS]


@pytest.mark.parametrize("kind", list(STRATEGIES))
def test_who_begins_anew_is_sent_what_a_newcomer_is(kind: type[PrimalDualStrategy]) -> None:
    grid = Watched(kind.algorithm)
    strategy = kind(**STRATEGIES[kind], num_agents=3)  # type: ignore[call-arg]
    strategy.start(grid, zeros(4), num_rounds=3)
    session = strategy.session
    assert session is not None
    renew(strategy.run.half, session, "1")
    session.roster.agents["3"] = replace(session.roster.agents["1"], node=9)
    admit(strategy.run.half, session, "3")
    assert math.isnan(strategy.half.residual(session.state))
    assert session.gaps.unknown() == [1, 3]
    renewed, newcomer = (strategy.half.recovery(session.state, i) for i in (1, 3))
    assert renewed is not None
    assert newcomer is not None
    assert {k: v.tobytes() for k, v in renewed.items()} == {
        k: v.tobytes() for k, v in newcomer.items()
    }


@pytest.mark.parametrize("kind", EXACT)
def test_exact_methods_reach_the_optimum_although_an_agent_began_anew(
    kind: type[PrimalDualStrategy],
) -> None:
    grid = Watched(kind.algorithm)
    strategy = kind(**STRATEGIES[kind], num_agents=3, recover_by_name="no")  # type: ignore[call-arg]

    def replaced(done: Any, _: Any) -> None:
        if done.round == 7:
            grid.online.discard(1001)
            join(grid, OTHER, {"partition-id": 1})

    result = strategy.start(grid, zeros(4), num_rounds=600, tolerance=1e-24, observers=[replaced])
    assert "starts from scratch" in result.history[7].notes[0]
    assert len(result.history[-1].participants) == 3
    best = minimize(PROBLEMS, make_h("zero")).x
    assert np.linalg.norm(model(result) - best) < 1e-8


def test_the_account_of_the_lost_node_counts_and_is_not_handed_on() -> None:
    grid = Watched("fed-pdm")
    strategy = FedPDM(preset="private", noise_scale=0.5, num_agents=3, recover_by_name="no")
    strategy.start(grid, zeros(4), num_rounds=2)
    join(grid, OTHER, {"partition-id": 0})
    grid.online.discard(1000)
    for number in (3, 4, 5):
        strategy.play_round(grid, number)
    assert [told(content)[2] for content in grid.to(OTHER)] == ["", "", ""]
    assert strategy.session is not None
    agent = strategy.session.roster.agents["0"]
    assert [AgentLedger.from_json(text).messages for text in agent.accounts] == [2, 3]
    config = {
        "algorithm": "fed-pdm", "noise-seed": -1, "sensitivity": "", "delta": 1e-5, "relation": "",
    }  # fmt: skip
    account = privacy_account(strategy, config)
    assert account["private"]
    paid = [account["agents"][name]["epsilon"] for name in "012"]
    assert paid[0] == pytest.approx(paid[1], rel=1e-9)  # five messages each
    assert paid[1] == paid[2]


# ------------------------------------------------------------------ the number of examples


def smaller(problem: BinaryLogistic, rows: int = 12) -> BinaryLogistic:
    return BinaryLogistic(
        problem.features[:rows], problem.labels[:rows], regularizer=problem.regularizer
    )


def forget(grid: Watched, node: int, number: int) -> None:
    """Restart a node, with its key, over fewer examples."""
    grid.problems[number] = smaller(PROBLEMS[number])
    join(grid, node, {"partition-id": number})
    grid.contexts[node].run_id += 1  # the ClientApp keeps a problem for a run and a node


def test_an_upload_of_another_number_is_refused_and_then_enrolled_anew() -> None:
    grid, strategy = begun()
    forget(grid, 1001, 1)
    first, second = (strategy.play_round(grid, number) for number in (3, 4))
    assert first.failures == {
        "1": Failure(FailureCode.DROPPED, "upload of 12 examples by an agent enrolled with 20")
    }
    assert second.failures == {}
    assert second.notes[0] == "agent 1: 12 examples, before 20"
    assert strategy.session is not None
    assert strategy.session.roster.agents["1"].num_examples == 12


def test_in_a_private_run_the_number_stays() -> None:
    grid, strategy = begun(clip=1.0)
    forget(grid, 1001, 1)
    rounds = [strategy.play_round(grid, number) for number in (3, 4, 5)]
    line = "agent 1: 12 examples, before 20: a private run keeps the number"
    assert rounds[0].failures == {
        "1": Failure(FailureCode.DROPPED, "upload of 12 examples by an agent enrolled with 20")
    }
    assert rounds[1].notes == (f"node turned away: {line}",)
    assert [done.failures for done in rounds[1:]] == [{"1": Failure(FailureCode.OUT, line)}] * 2
    assert len(grid.to(1001)) == 4  # two rounds, the refused one and its second try with the state


def test_who_takes_a_place_with_another_number_is_noted_or_refused() -> None:
    for private in (False, True):
        grid, strategy = begun(recover_by_name="yes", clip=float(private))
        grid.online.discard(1001)
        grid.problems[1] = smaller(PROBLEMS[1])
        join(grid, OTHER, {"partition-id": 1})
        done = strategy.play_round(grid, 3)
        change = "agent 1: 12 examples, before 20"
        if private:
            assert done.notes == (f"node turned away: {change}: a private run keeps the number",)
            assert done.failures == {"1": Failure(FailureCode.NOT_CONNECTED, "not connected")}
            assert grid.to(OTHER) == []
        else:
            assert done.notes == (change, "agent 1 was sent its state of round 2")


# ------------------------------------------------------------------ resumed runs


class Renumbered(Watched):
    """The same agents on nodes of other ids."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts.clear()
        self.online.clear()
        for number in range(3):
            join(self, OTHER + number, {"partition-id": number})


def resumed(path: Path, grid: Watched, **options: Any) -> FedPLT:
    strategy = FedPLT(**{"rho": 1.0, "local_epochs": 3, "num_agents": 3, **options})
    file = path if options.get("clip") else None  # as a private run needs one
    strategy.start(grid, zeros(4), num_rounds=4, resume=path, checkpoint=file)
    return strategy


def saved(path: Path, **options: Any) -> Path:
    grid = Watched()
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=3, **options)
    strategy.start(grid, zeros(4), num_rounds=3, checkpoint=path)
    return path


def test_nodes_of_the_checkpoint_go_on_and_others_by_the_runs_rule(tmp_path: Path) -> None:
    path = saved(tmp_path / "checkpoint.npz")
    kept = resumed(path, Watched(), recover_by_name="no").session
    recovered = resumed(path, Renumbered(), recover_by_name="yes").session
    anew, grid = resumed(path, Renumbered(), recover_by_name="no").session, Renumbered()
    assert kept is not None
    assert recovered is not None
    assert anew is not None
    assert kept.history[3].residual == recovered.history[3].residual
    assert [note.rpartition(" ")[2] for note in anew.history[3].notes] == ["scratch"] * 3
    assert not np.array_equal(anew.state.x, kept.state.x)
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=3, recover_by_name="node-key", patience=0)
    with pytest.raises(Exception, match="agents replied"):
        strategy.start(grid, zeros(4), num_rounds=4, resume=path)
    assert all(grid.to(OTHER + number) == [] for number in range(3))


def test_a_resumed_run_begun_anew_sends_nothing_of_the_checkpoint(tmp_path: Path) -> None:
    grid = Renumbered()
    resumed(saved(tmp_path / "checkpoint.npz"), grid, recover_by_name="no")
    for number in range(3):
        tag, state, ledger = told(grid.to(OTHER + number)[0])
        assert state is not None
        assert (tag, ledger, state["x"].any(), state["z"].any()) == (0, "", False, False)


def test_a_node_that_changed_its_name_between_runs_has_one_place(tmp_path: Path) -> None:
    path = saved(tmp_path / "checkpoint.npz")
    grid = Watched()
    for node, other in ((1000, "1"), (1001, "0")):
        grid.contexts[node].node_config["agent"] = other
    session = resumed(path, grid, recover_by_name="no").session
    assert session is not None
    assert {name: agent.node for name, agent in session.roster.agents.items()} == {
        "0": 1001, "1": 1000, "2": 1002,
    }  # fmt: skip
    assert sum("starts from scratch" in note for note in session.history[3].notes) == 2


@pytest.mark.parametrize("private", [False, True])
def test_resume_compares_the_numbers_of_examples(tmp_path: Path, private: bool) -> None:
    path = saved(tmp_path / "checkpoint.npz", clip=float(private))
    grid = Watched(problems=[PROBLEMS[0], smaller(PROBLEMS[1]), PROBLEMS[2]])
    session = resumed(path, grid, clip=float(private)).session
    assert session is not None
    change = "agent 1: 12 examples, before 20"
    if private:
        refused = f"{change}: a private run keeps the number"
        assert session.history[3].notes[0] == f"node turned away: {refused}"
        assert session.history[3].failures == {"1": Failure(FailureCode.OUT, refused)}
    else:
        assert session.history[3].notes[0] == change
        assert session.roster.agents["1"].num_examples == 12


def test_a_checkpoint_keeps_facts_and_former_accounts(tmp_path: Path) -> None:
    grid = Watched()
    strategy = FedPLT(rho=1.0, local_epochs=3, num_agents=3)
    path = tmp_path / "checkpoint.npz"

    def note(done: Any, strategy: Any) -> None:
        agents = strategy.session.roster.agents
        agents["1"].facts, agents["1"].former = '{"a": 1}', ("[]", "")

    strategy.start(
        grid, zeros(4), num_rounds=2, checkpoint=path, checkpoint_every=1, observers=[note]
    )
    grid = Watched()
    grid.online.discard(1001)
    session = resumed(path, grid, num_agents=2).session
    assert session is not None
    assert session.roster.agents["1"].facts == '{"a": 1}'
    assert session.roster.agents["1"].former == ("[]", "")


# ------------------------------------------------------------------ what "auto" means


def test_auto_is_yes_in_simulation_and_no_elsewhere() -> None:
    grids: dict[str, Grid] = {
        "own engine": Watched(),
        "Flower's simulation": InMemoryGrid.__new__(InMemoryGrid),
        "deployment": HttpGrid.__new__(HttpGrid),
    }
    found = {name: recovery_of("auto", grid) for name, grid in grids.items()}
    assert found == {"own engine": "yes", "Flower's simulation": "yes", "deployment": "no"}
    assert recovery_of("node-key", Watched()) == "node-key"
    with pytest.raises(ConfigError, match="recover-by-name"):
        FedPLT(recover_by_name="true")
