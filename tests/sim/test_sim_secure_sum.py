"""Runs with a secure sum: the iterates of the plain run, what leaves an agent, replays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from privet.client_apps import client_app
from privet.core import RunError
from privet.kernel import GivenMasks
from privet.problems import minimize
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, Fraction, Schedule
from privet.testing.runs import agent_states
from privet.wire import ring
from support.federations import app_of, model, position, zeros
from support.masked import (
    COUNT,
    DIM,
    MAKE,
    ROUNDS,
    grid_for,
    payload_of,
    play,
    recorded,
    ridge_agents,
    start_at,
)

HALF_UNIT = 2.0**-41
"""Largest error of a number that is rounded to a multiple of 2^-40."""
ROUNDING = {"fed-plt": 1.6e-11, "dp-iadmm": 3.1e-11, "fed-pdm": 3.8e-12, "gfl": 9.5e-12}
"""How far that error in every number, carried on by the rounds, may move a model."""


# ------------------------------------------------------------------ the same iterates


@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm", "fed-pdm"])
def test_masked_run_with_absent_agents_is_the_plain_one(name: str) -> None:
    schedule = Schedule((tuple("01234"), tuple("0234"), tuple("123"), tuple("034")))
    plain, _, _ = play(name, participation=schedule)
    masked, _, _ = play(name, participation=schedule, secure_sum=True)
    # The rounds that agents miss carry errors no further than twice the rounds they are in.
    assert np.linalg.norm(model(masked) - model(plain)) <= 2 * ROUNDING[name]
    assert [d.participants for d in masked.history] == [d.participants for d in plain.history]


@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm"])
def test_the_server_holds_exactly_the_mean_of_what_the_agents_hold(name: str) -> None:
    participation = Fraction(0.6)
    _, strategy, grid = play(name, secure_sum=True, participation=participation, rounds=40)
    held = agent_states(grid)
    own = strategy.session.state
    if name == "fed-plt":
        total = np.add.reduce([states["z"] for states in held.values()])
        assert np.allclose(own.total, total, rtol=0, atol=1e-13)
        return
    mean = np.mean([states["z"] - states["lam"] / 2.0 for states in held.values()], axis=0)
    assert np.allclose(own.mean, mean, rtol=0, atol=40 * HALF_UNIT)


def test_fed_plt_with_a_secure_sum_converges_to_the_optimum() -> None:
    optimum = minimize(ridge_agents()).x
    result, strategy, _ = play("fed-plt", secure_sum=True, rounds=400, participation=Fraction(0.6))
    assert np.linalg.norm(model(result) - optimum) < 1e-11
    assert np.isnan(strategy.half.residual(strategy.session.state))  # of three agents of five
    assert "mean" not in result.models


def test_dp_iadmm_averages_are_those_of_the_plain_run() -> None:
    plain, _, _ = play("dp-iadmm", local_updates=3)
    masked, _, _ = play("dp-iadmm", local_updates=3, secure_sum=True)
    assert plain.models.keys() == {*masked.models, "mean"}  # which no sum tells
    for name, found in masked.models.items():
        assert np.allclose(found["x"].numpy(), plain.models[name]["x"].numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", list(MAKE))
def test_a_float32_run_stays_in_float32(name: str) -> None:
    problems = ridge_agents(dtype="f4")
    grid = InlineGrid(app_of(problems, name), COUNT)
    found = []
    for masked in (False, True):
        strategy = MAKE[name](num_agents=COUNT, secure_sum=masked)
        result = strategy.start(grid, start_at(0.3, "f4"), num_rounds=ROUNDS)
        assert model(result).dtype == np.float32
        found.append(model(result))
    assert np.allclose(found[0], found[1], rtol=0, atol=ROUNDS * 2.0**-20)


def test_rand_k_sends_the_same_coordinates_of_all() -> None:
    """Half of the coordinates a round: the rest of x0 is 0, as nobody sent it."""
    sets = []

    def watch(done: Any, strategy: Any) -> None:
        sets.append(tuple(np.flatnonzero(strategy.session.state.center)))

    options = {"sparsifier": "rand-k", "uplink_k": 2, "secure_sum": True, "seed": 4}
    play("fed-pdm", **options, start={"observers": [watch]}, rounds=20)
    assert {len(places) for places in sets} == {2}
    assert len(set(sets)) == 3
    again: list[Any] = sets.copy()
    sets.clear()
    play("fed-pdm", **options, start={"observers": [watch]}, rounds=20)
    assert sets == again
    sets.clear()
    play("fed-pdm", **{**options, "seed": 5}, start={"observers": [watch]}, rounds=20)
    assert sets != again


def test_gfl_units_are_summed_apart() -> None:
    """Two units of three agents: each psi_p is the mean of its own."""
    nodes = [{"partition-id": i, "unit": str(i // 3)} for i in range(6)]
    problems = ridge_agents(6)
    found = []
    for masked in (False, True):
        app = app_of(problems, "gfl")
        grid = InlineGrid(app, nodes)
        _, strategy, _ = play("gfl", grid=grid, units=2, secure_sum=masked, rounds=4)
        found.append(strategy.session.state)
    gap = np.abs(found[1].psi - found[0].psi).max()
    assert 0 < gap <= 4 * DIM**0.5 * HALF_UNIT
    assert np.abs(found[0].psi[0] - found[0].psi[1]).max() > 1e-3


# ------------------------------------------------------------------ what leaves an agent


@pytest.mark.parametrize("name", list(MAKE))
def test_no_upload_alone_can_be_decoded_and_all_but_one_cannot(name: str) -> None:
    """Only the sum of all uploads holds numbers of the size of a model."""
    _, _, grid = recorded(name, rounds=3)
    uploads = [payload_of(content) for _, message, content in grid.seen[:COUNT]]
    for some in ([0], [1, 3], [0, 1, 2, 3], [1, 2, 3, 4]):
        total = ring.Words(uploads[0].layout, np.zeros_like(uploads[0].words))
        for index in some:
            ring.add(total, uploads[index])
        found = np.concatenate([array.ravel() for array in ring.decode(total).values()])
        # Of 2^24 values 10 are as small: one number is in 1e5 runs, two are in 1e10.
        assert np.count_nonzero(np.abs(found) < 1.0 + len(some)) <= 1
    total = ring.Words(uploads[0].layout, np.zeros_like(uploads[0].words))
    for upload in uploads:
        ring.add(total, upload)
    decoded = ring.decode(total)
    assert decoded.pop(ring.MEMBERS) == COUNT
    assert all(np.all(np.abs(array) < 100) for array in decoded.values())


def test_replies_carry_no_digest_and_the_roster_is_one_record_for_all() -> None:
    _, _, grid = recorded("fed-plt", rounds=1)
    about = [json.loads(content["privet"]["about"]) for _, _, content in grid.seen]
    assert {entry["digest"] for entry in about} == {0}
    assert {entry["num-examples"] for entry in about} == {8}
    shared = [message.content["privet"] for _, message, _ in grid.seen]
    assert all(record is shared[0] for record in shared)
    assert shared[0]["attempt"] == 1
    assert json.loads(shared[0]["names"]) == ["0", "1", "2", "3", "4"]


def test_agents_do_not_evaluate_and_are_not_asked_to() -> None:
    _, strategy, grid = play("fed-plt", secure_sum=True, rounds=1, fraction_evaluate=1.0)
    assert strategy.configure_evaluate(1, start_at(0.0), ConfigRecord(), grid) == []
    node = next(iter(grid.contexts))
    message = Message(RecordDict({"arrays": start_at(0.0)}), node, "evaluate")
    (reply,) = grid.send_and_receive([message])
    assert reply.has_error()
    assert "declines evaluation" in reply.error.reason


# ------------------------------------------------------------------ given masks


def test_given_masks_replay_with_two_agents_and_are_marked() -> None:
    problems = ridge_agents(2)

    def source(agent: str, round_: int) -> GivenMasks:
        mask = {"x": np.round(np.random.default_rng(round_).standard_normal(DIM), 4)}
        return GivenMasks({("0", "1"): ring.encode(mask, 2).words})

    app = app_of(problems, "gfl", mask_factory=source)
    strategy = MAKE["gfl"](secure_sum=True)
    strategy.options = replace(strategy.options, num_agents=2, least_roster=2)
    masked = strategy.start(InlineGrid(app, 2), start_at(0.3), num_rounds=4)
    plain, _, _ = play("gfl", grid=grid_for("gfl", 2), rounds=4)
    assert np.linalg.norm(model(masked) - model(plain)) <= 4 * DIM**0.5 * HALF_UNIT
    notes = [note for note in masked.history[0].notes if "masks are given" in note]
    assert len(notes) == 2


def test_a_node_with_a_budget_refuses_given_masks(tmp_path: Path) -> None:
    problems = ridge_agents(3)
    budget = {"max-epsilon": 5.0, "delta": 1e-5, "ledger-path": str(tmp_path / "ledger.jsonl")}
    nodes = [{"partition-id": i, **(budget if i == 0 else {})} for i in range(3)]
    app = client_app(
        "fed-plt",
        lambda context: problems[position(context)],
        mask_factory=lambda agent, round_: GivenMasks({}),
    )
    noisy: dict[str, Any] = {"local_solver": "noisy-gd", "clip": 1.0, "noise_variance": 1.0}
    strategy = FedPLT(num_agents=3, secure_sum=True, row_norm=2.0, **noisy)
    with pytest.raises(RunError, match="masks of the secure sum are handed in from outside"):
        strategy.start(InlineGrid(app, nodes), zeros(DIM), num_rounds=1)
    assert not (tmp_path / "ledger.jsonl").exists()  # nothing was charged for
