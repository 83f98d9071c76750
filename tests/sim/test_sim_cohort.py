"""The cohort engine: agents that work together leave what they leave alone, to the bit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MessageType

from privet.agents.guard import is_private
from privet.agents.masking import new_keys
from privet.agents.state import PRIVATE_RECORD, AgentState, read_state, write_state
from privet.client_apps import client_app
from privet.client_apps.rivals.led import Agent as LED
from privet.core import RunError, algorithm
from privet.kernel import AgentLedger, Problem, Release
from privet.problems import L2, BinaryLogistic
from privet.rounds.roster import Question, Roster
from privet.sim.cohort import CohortGrid
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, Fraction, PrivetResult
from privet.testing import logistic_federation
from privet.testing.subject import Subject
from privet.wire import ENROL, unpack
from privet.wire.contract import encode_settings, shared_record
from support.federations import app_of

DIM = 3
LEDGER = AgentLedger().record(Release("gaussian", 1.0, 1.0)).to_json()
LOCAL: Mapping[str, Mapping[str, Any]] = {
    "fed-plt": {"local_epochs": 3},
    "fed-plt agd": {"local_epochs": 3, "local_solver": "agd"},
    "fed-plt sgd": {"local_solver": "sgd", "batch_size": 4, "step_size": 0.1},
    "fed-plt noise": {"local_solver": "noisy-gd", "noise_variance": 0.1, "noise_seed": 4},
    "fed-split": {"local_epochs": 3},
    "fed-pd": {"local_epochs": 3},
    "fed-lin": {"local_epochs": 3},
    "five-gcs": {"local_epochs": 3, "local_solver": "agd"},
    "led": {"local_epochs": 3},
    "tamuna": {"local_epochs": 3},
    "fed-buff": {"local_epochs": 3},
    "fed-async": {"local_epochs": 3, "fed_async_rho": 0.5},
    "area": {},
    "fed-dyn": {"max_local_steps": 3},
    "scaffold": {"max_local_steps": 3, "batch": "sample", "batch_size": 4},
    "dp-fedsgd": {},
    "scaffold noise": {"noise_scale": 0.1, "noise_seed": 4, "batch": "sample", "batch_size": 4},
    "dp-fedsgd noise": {"noise_scale": 0.1, "noise_seed": 4},
    "scaffold clip": {"clip": 0.5, "batch": "sample", "batch_size": 4},
    "dp-iadmm": {"rho": 2.0, "local_updates": 3},
    "dp-iadmm noise": {"rho": 2.0, "epsilon": 1.0, "clip": 1.0, "noise_seed": 4},
    "dp-iadmm laplace": {"epsilon": 1.0, "clip": 1.0, "noise_seed": 4, "mechanism": "laplace"},
    "dp-iadmm output": {
        "epsilon": 1.0,
        "clip": 1.0,
        "noise_seed": 4,
        "perturbation": "output",
        "local_updates": 2,
        "set": "box",
        "set_radius": 0.2,
    },
    "dp-iadmm ball": {"set": "l2", "set_radius": 0.2},
    "fed-pdm": {"max_local_steps": 3},
    "fed-pdm public": {"dual": "public", "clip": 1.0, "noise_scale": 0.2, "noise_seed": 4},
    "fed-pdm sparse": {"sparsifier": "rand-k", "uplink_k": 2, "dual": "public"},
    "gfl": {"local_epochs": 3, "units": 3},
    "gfl clip": {"local_epochs": 3, "units": 3, "clip": 0.5, "batch": "sample", "batch_size": 4},
    "fed-dyn clip": {"clip": 0.5, "clipping": "batch"},
}


class Counting(CohortGrid):
    """A cohort engine that counts the training messages that it brings to its nodes."""

    sent: int = 0
    asked: int = 0
    """Enrolment questions."""

    def deliver(self, message: Message) -> Message | None:
        self.sent += message.metadata.message_type == MessageType.TRAIN
        self.asked += message.metadata.message_type == ENROL
        return super().deliver(message)


def federation(counts: Sequence[int] = (12, 12, 7, 12, 7, 12, 7, 7, 12)) -> list[Problem]:
    rng = np.random.default_rng(5)
    return [
        BinaryLogistic(
            rng.standard_normal((n, DIM)),
            np.where(rng.random(n) < 0.5, -1, 1),
            regularizer=L2(0.1),
        )
        for n in counts
    ]


def nodes_of(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    return [{"partition-id": i, "num-partitions": len(problems)} for i in range(len(problems))]


def play(
    kind: type[InlineGrid],
    name: str,
    problems: Sequence[Problem],
    *,
    rounds: int = 4,
    nodes: Sequence[Mapping[str, Any]] = (),
    run: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[PrivetResult, Any]:
    app = app_of(problems, name)
    grid = kind(app, list(nodes) or nodes_of(problems))
    strategy = algorithm(name).load_strategy()(num_agents=len(problems), seed=3, **settings)
    start = ArrayRecord({"x": Array(np.full(DIM, 0.5))})
    return strategy.start(grid, start, num_rounds=rounds, **(run or {})), grid


def states(grid: InlineGrid) -> list[AgentState]:
    """Return the agents' states but for the name of the run, which is drawn anew."""
    return [read_state(context)._replace(experiment="") for context in grid.contexts.values()]


def require_same(found: PrivetResult, expected: PrivetResult) -> None:
    for name, model in expected.models.items():
        assert found.models[name]["x"].numpy().tobytes() == model["x"].numpy().tobytes()
    ours, theirs = (
        [repr(replace(done, seconds=0.0)) for done in result.history]
        for result in (found, expected)
    )
    assert ours == theirs


@pytest.mark.parametrize("title", LOCAL)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_all_work_together_and_leave_the_same_bits(title: str, share: float) -> None:
    name, settings = title.split(maxsplit=1)[0], dict(LOCAL[title])
    if share < 1:
        settings["participation"] = Fraction(share)
    problems = federation()
    alone, inline = play(InlineGrid, name, problems, **settings)
    together, cohort = play(Counting, name, problems, **settings)
    require_same(together, alone)
    assert states(cohort) == states(inline) or share < 1
    if title == "fed-pdm":  # nobody but the agent knows how its private dual begins
        assert cohort.sent == len(problems)
    else:
        assert cohort.sent == 0


def test_blocks_of_a_large_group_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.agents.cohort.BLOCK_BYTES", 20 * 12 * DIM * 8)
    problems = federation([12] * 45)
    alone, _ = play(InlineGrid, "fed-plt", problems, rounds=2, local_epochs=1)
    together, grid = play(Counting, "fed-plt", problems, rounds=2, local_epochs=1)
    require_same(together, alone)
    assert grid.sent == 0


def test_those_who_cannot_are_asked_by_message_in_the_same_round(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    problems = federation()
    rng = np.random.default_rng(0)
    problems[4] = BinaryLogistic(rng.standard_normal((1, DIM)), [1])  # alone of its shape
    nodes = [dict(node) for node in nodes_of(problems)]
    nodes[2]["state-path"] = str(tmp_path / "state.npz")
    nodes[3]["local-epochs"] = 2  # of its own
    alone, _ = play(InlineGrid, "fed-plt", problems, nodes=nodes, local_epochs=3)
    (tmp_path / "state.npz").unlink()
    with caplog.at_level(logging.INFO, "flwr.privet"):
        together, grid = play(Counting, "fed-plt", problems, nodes=nodes, local_epochs=3)
    require_same(together, alone)
    # Of the others, three are in no stack.
    assert grid.sent == 4
    assert caplog.text.count("1 of 9 agents work one by one, by message") == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"secure_sum": True}, "uploads are masked"), ({"value_bits": "8"}, "a code is one agent's")],
    ids=str,
)
def test_a_run_by_message_says_so_in_one_line(
    caplog: pytest.LogCaptureFixture, settings: dict[str, Any], why: str
) -> None:
    with caplog.at_level(logging.INFO, "flwr.privet"):
        _, grid = play(Counting, "fed-plt", federation(), rounds=3, **settings)
    assert grid.sent == 3 * 9
    assert caplog.text.count(f"agents work one by one, by message: {why}") == 1


def test_a_node_with_rules_refuses_as_ever(tmp_path: Path) -> None:
    problems = federation()
    nodes = [dict(node) for node in nodes_of(problems)]
    nodes[1].update({"max-clip": 1.0})
    alone, _ = play(InlineGrid, "led", problems, nodes=nodes)
    together, _ = play(Counting, "led", problems, nodes=nodes)
    require_same(together, alone)
    assert "1" in together.history[0].failures


@pytest.mark.parametrize("name", ["fed-plt", "five-gcs"])
def test_an_upload_that_cannot_be_folded_is_named(name: str) -> None:
    """Numbers that overflow in one agent alone, whose step is far too long."""
    problems = federation([12] * 8)
    rng = np.random.default_rng(1)
    problems[5] = BinaryLogistic(rng.standard_normal((12, DIM)), [1] * 12, regularizer=L2(1e50))
    with np.errstate(all="ignore"):
        alone, _ = play(InlineGrid, name, problems, rounds=3, step_size=1e10)
        together, _ = play(Counting, name, problems, rounds=3, step_size=1e10)
    assert any(done.failures for done in alone.history)
    require_same(together, alone)


@pytest.mark.parametrize("name", ["fed-dyn", "dp-fedsgd"])
def test_models_of_one_number_are_added_in_the_same_order(name: str) -> None:
    Subject(name, problems=logistic_federation(23, dim=1)).play()


def test_uploads_of_several_blocks_may_differ_in_length() -> None:
    settings = {"sparsifier": "top-k", "alpha-u": 0.3}
    subject = Subject("fed-pdm", settings, problems=logistic_federation(6, dim=60))
    nodes = [{**node, "local-epochs": 1 + i} for i, node in enumerate(subject.nodes())]
    played = subject.play(nodes=nodes)
    assert not any(played.failures)


def test_a_node_whose_release_cannot_be_worked_out_costs_its_own_rounds_only() -> None:
    """Its own moduli make the best step a division by zero."""
    noised = {"local_solver": "noisy-gd", "clip": 1.0, "noise_variance": 0.1, "row_norm": 4.0}
    nodes = [dict(node) for node in nodes_of(federation())]
    nodes[1].update({"smoothness": 1.0, "strong-convexity": -3.0})
    played = [
        play(kind, "fed-plt", federation(), nodes=nodes, rho=1.0, noise_seed=4, **noised)[0]
        for kind in (InlineGrid, CohortGrid)
    ]
    require_same(played[1], played[0])
    assert [sorted(done.failures) for done in played[0].history] == [["1"]] * 4


@pytest.mark.parametrize("kind", [InlineGrid, CohortGrid])
def test_a_broadcast_that_private_agents_refuse_ends_the_round_by_their_word(kind: Any) -> None:
    subject = Subject("dp-fedsgd", {"clip": 1.0, "noise-scale": 1.0, "noise-seed": 1})
    grid = kind(subject.app(), subject.nodes())
    far = ArrayRecord({"x": Array(np.full(4, 1e101))})
    with pytest.raises(RunError, match=r"0 of 6 agents replied.* too large or not finite"):
        subject.strategy().start(grid, far, num_rounds=1)


def test_noise_of_the_system_is_every_agents_own_and_another_in_every_run() -> None:
    problems = federation([12] * 8)
    noise = {"local_solver": "noisy-gd", "noise_variance": 0.1, "step_size": 0.5}
    (one, grid), (other, _) = (
        play(Counting, "fed-plt", problems, rounds=1, local_epochs=1, **noise) for _ in range(2)
    )
    quiet, plain = play(Counting, "fed-plt", problems, rounds=1, local_epochs=1, step_size=0.5)
    assert grid.sent == 0
    assert not np.array_equal(one.arrays["x"].numpy(), other.arrays["x"].numpy())
    drawn = [
        unpack(noised.state["privet.state"]["states"][1])["x"]  # type: ignore[index,arg-type]
        - unpack(alone.state["privet.state"]["states"][1])["x"]  # type: ignore[index,arg-type]
        for noised, alone in zip(grid.contexts.values(), plain.contexts.values(), strict=True)
    ]
    # Of variance 2 gamma tau^2 = 0.1 each: none is zero, no two are the same.
    assert len(np.unique(drawn)) == 8 * DIM
    assert 0.1 < np.std(drawn) < 1.0
    assert not getattr(quiet.privacy, "private", True)


def private_run(seed: int) -> tuple[str, dict[str, Any]]:
    """Return a private run: an algorithm that can be, and settings drawn at random."""
    rng = np.random.default_rng(seed)
    name = ("fed-plt", "dp-fedsgd", "scaffold", "fed-dyn")[seed % 4]
    settings: dict[str, Any] = {"noise_seed": seed, "clip": float(rng.choice([0.2, 2.0]))}
    if name == "fed-plt":
        settings |= {"local_solver": "noisy-gd", "row_norm": 4.0, "noise_variance": 0.3}
        settings["local_epochs"] = int(rng.integers(1, 5))
        settings["step_size"] = float(rng.choice([0.0, 0.05]))
    else:
        settings["noise_scale"] = 0.4
        if rng.random() < 0.5:
            settings |= {"batch": "sample", "batch_size": 4}
        if rng.random() < 0.3:
            settings["clipping"] = "batch"
        if name != "dp-fedsgd":
            settings["max_local_steps"] = int(rng.integers(1, 4))
    if rng.random() < 0.5:
        settings["participation"] = Fraction(0.6)
    if name in ("fed-plt", "dp-fedsgd") and rng.random() < 0.5:
        settings |= {"budget_schedule": "geometric", "budget_ratio": 0.9}
    return name, settings


@pytest.mark.parametrize("seed", range(24))
def test_private_agents_leave_the_same_bits_and_accounts(seed: int) -> None:
    name, settings = private_run(seed)
    problems = federation()
    alone, inline = play(InlineGrid, name, problems, **settings)
    together, cohort = play(Counting, name, problems, **settings)
    require_same(together, alone)
    assert together.privacy == alone.privacy
    assert states(cohort) == states(inline)
    assert all(state.ledger for state in states(cohort) if state.rounds)
    assert cohort.sent == 0


@pytest.mark.parametrize("name", ["fed-plt", "dp-fedsgd"])
def test_accounts_of_the_systems_noise_are_those_of_messages(name: str, tmp_path: Path) -> None:
    """Beside a node with a budget, which is asked by message and runs out of it."""
    problems = federation([7] * 9)
    settings: dict[str, Any] = {"clip": 1.0, "noise_scale": 0.5}
    if name == "fed-plt":
        settings = {"local_solver": "noisy-gd", "clip": 1.0, "row_norm": 4.0, "noise_variance": 0.3}
    lines, results, grids = [], [], []
    for kind in (InlineGrid, Counting):
        ledger = tmp_path / f"{kind.__name__}.jsonl"
        nodes = [dict(node) for node in nodes_of(problems)]
        limit = {"max-epsilon": 4.2, "delta": 1e-5, "ledger-path": str(ledger)}
        nodes[2].update(limit)
        result, grid = play(kind, name, problems, nodes=nodes, **settings)
        results.append(result)
        grids.append(grid)
        lines.append([entry.split('"time"')[0] for entry in ledger.read_text().splitlines()])
    alone, together = results
    assert together.privacy == alone.privacy
    assert together.privacy is not None
    assert together.privacy.private
    for ours, theirs in zip(together.history, alone.history, strict=True):
        assert ours.participants == theirs.participants
        assert ours.failures == theirs.failures
        assert (ours.epsilon, ours.notes) == (theirs.epsilon, theirs.notes)
    assert any("2" in done.failures for done in together.history)
    assert len(lines[0]) == len(lines[1]) > 0
    own, others = states(grids[1]), states(grids[0])
    assert [one.ledger for one in own] == [one.ledger for one in others]
    assert [one.fully_charged for one in own] == [one.fully_charged for one in others]
    assert grids[1].sent == 4
    assert together.arrays["x"].numpy().tobytes() != alone.arrays["x"].numpy().tobytes()
    if name == "fed-plt":  # no two agents, and no two runs, have the same noise
        assert len({one.states for one in (*own, *others)}) == 2 * len(problems)


def test_agents_that_would_pass_the_target_refuse_by_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some have spent in this run before, on the same nodes."""
    monkeypatch.setattr("uuid.uuid4", lambda: UUID(int=1))
    problems = federation([12] * 8)
    app = app_of(problems, "dp-fedsgd")
    start = ArrayRecord({"x": Array(np.full(DIM, 0.5))})
    kind = algorithm("dp-fedsgd").load_strategy()
    results, grids = [], []
    for engine in (InlineGrid, Counting):
        grid = engine(app, nodes_of(problems))
        for context in list(grid.contexts.values())[:3]:
            write_state(context, AgentState(UUID(int=1).hex, ledger=LEDGER))
        strategy = kind(
            num_agents=8, seed=3, clip=1.0, noise_scale=0.4, noise_seed=5, target_epsilon=5.0
        )
        results.append(strategy.start(grid, start, num_rounds=5))
        grids.append(grid)
    require_same(results[1], results[0])
    assert states(grids[1]) == states(grids[0])
    failed = [set(done.failures) for done in results[1].history]
    assert {"0", "1", "2"} in failed
    assert set() in failed or failed[0] == {"0", "1", "2"}
    assert 0 < grids[1].sent < 8 * 5


@pytest.mark.parametrize("first", [InlineGrid, CohortGrid])
@pytest.mark.parametrize("second", [InlineGrid, CohortGrid])
def test_a_run_goes_on_on_either_engine(
    first: type[InlineGrid], second: type[InlineGrid], tmp_path: Path
) -> None:
    problems, settings = federation(), {"participation": Fraction(0.6)}
    whole, _ = play(InlineGrid, "fed-plt", problems, rounds=6, **settings)
    file = tmp_path / "checkpoint.npz"
    play(first, "fed-plt", problems, rounds=3, run={"checkpoint": file}, **settings)
    resumed, _ = play(second, "fed-plt", problems, rounds=6, run={"resume": file}, **settings)
    require_same(resumed, whole)


def test_two_runs_on_one_grid_begin_anew() -> None:
    problems = federation()
    app = app_of(problems, "led")
    start = ArrayRecord({"x": Array(np.full(DIM, 0.5))})
    grid = Counting(app, nodes_of(problems))
    kind = algorithm("led").load_strategy()
    results = [
        kind(num_agents=len(problems), seed=3).start(grid, start, num_rounds=3) for _ in range(2)
    ]
    require_same(*results)
    assert grid.sent == 0


def test_a_half_that_is_not_of_rows_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that takes a norm of what may be rows."""
    finish = LED.finish

    def not_by_rows(self: LED, state: Any, broadcast: Any, task: Any, walk: Any) -> Any:
        upload = finish(self, state, broadcast, task, walk)
        return {"x": upload["x"] * np.linalg.norm(walk.end)}

    monkeypatch.setattr(LED, "finish", not_by_rows)
    problems = federation()
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        _, grid = play(Counting, "led", problems, rounds=1)
    assert grid.sent == len(problems)
    assert "agents work one by one: x has other bits" in caplog.text


@pytest.mark.parametrize("engine", [InlineGrid, CohortGrid])
def test_the_account_of_another_run_on_the_grid_counts_in_none_and_keeps_the_node_private(
    engine: type[InlineGrid],
) -> None:
    problems = federation([12] * 5)
    grid = engine(app_of(problems), nodes_of(problems))
    start = ArrayRecord({"x": Array(np.full(DIM, 0.5))})
    first, *others = grid.contexts.values()
    for _ in range(2):
        write_state(first, AgentState("another", ledger=LEDGER))
        FedPLT(num_agents=5, seed=3).start(grid, start, num_rounds=2)
        assert {read_state(context).ledger for context in grid.contexts.values()} == {""}
        assert is_private(first)
        assert not any(map(is_private, others))


def test_an_agent_enrolled_for_a_secure_sum_is_not_asked_in_the_clear_together() -> None:
    problems = federation([12] * 5)
    app = app_of(problems)
    grid = CohortGrid(app, nodes_of(problems))
    contexts = grid.contexts
    for context in contexts.values():
        new_keys(context, "e")
    settings = encode_settings({"seed": 3, "local-epochs": 1, "step-size": 0.1})
    states = {"x": np.zeros(DIM), "z": np.zeros(DIM)}
    told = shared_record("fed-plt", 1, "e", 1, settings, {"y": np.zeros(DIM)})
    tags = np.zeros(5, np.int64)
    assert grid.train_together(told, list(contexts), tags, states, {}, 1.0).done == []


@pytest.mark.parametrize(
    ("terms", "by_message"), [({}, 2), ({"quiet": True}, 2), ({"secure_sum": True}, 8)]
)
def test_agents_enrol_together_as_they_do_by_message(
    terms: Mapping[str, Any], by_message: int
) -> None:
    """Those that refuse or fail say so by message, and a key of a secure sum leaves by message."""
    problems = federation()
    nodes = nodes_of(problems)
    nodes[2]["max-epsilon"] = 1.0  # without a ledger
    nodes[3]["agent"] = "3\n"

    def problem(context: Context) -> Problem:
        if context.node_config["partition-id"] == 4:
            raise ValueError("no data here")
        return problems[int(context.node_config["partition-id"])]

    found = []
    for kind in (InlineGrid, Counting):
        grid, roster = kind(client_app("fed-plt", problem), nodes), Roster()
        grid.online.discard(max(grid.online))
        question = Question("fed-plt", 1, "run", lambda _: "", lambda _: None, **terms)
        new = roster.refresh(grid, question, 60.0)
        for agent in roster.agents.values():
            assert bool(agent.public_key) == question.secure_sum
            agent.public_key = b""  # which is drawn anew
        enrolled = [PRIVATE_RECORD in context.state for context in grid.contexts.values()]
        found.append((new, roster.agents, roster.rejected, roster.take_notes(), enrolled))
    assert found[0] == found[1]
    assert found[0][0] == ["0", "1", "5", "6", "7"]
    assert isinstance(grid, Counting)
    assert grid.asked == by_message
