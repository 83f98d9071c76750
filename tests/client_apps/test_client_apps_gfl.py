"""GFL's agent half: local steps, batches, clipping, and agents with a budget."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Context

from privet.client_apps import Streams, client_app
from privet.client_apps.gfl import Agent
from privet.core import ConfigError, RunError
from privet.kernel import SystemNoise, stream
from privet.problems import L2, BinaryLogistic, RidgeRegression, public_facts
from privet.sim.engine import InlineGrid
from privet.strategies import GFL
from support.federations import zeros
from support.opened import opened
from support.perturbers import perturber

RNG = np.random.default_rng(0)
FEATURES, TARGETS = RNG.standard_normal((12, 3)), RNG.standard_normal(12)
RIDGE = RidgeRegression(FEATURES, TARGETS, regularizer=L2(0.2))
LABELS = np.where(TARGETS > 0, 1.0, -1.0)
LOGISTIC = BinaryLogistic(FEATURES, LABELS, regularizer=L2(0.06))
W = np.array([0.3, -0.2, 0.5])


def work(agent: Agent, problem: Any = RIDGE, w: Any = W, round_: int = 1) -> Any:
    local = agent.local_update(
        {}, {"w": w}, opened(agent, problem, perturber(agent, problem)), Streams(7, "5", round_)
    )
    assert local.state == {}
    assert local.agreed[0] is local.upload["x"]
    return local.upload["x"]


def ridge_slope(w: Any, rows: Any) -> Any:
    """Gradient of mean (d - u'w)^2 + 0.1 ||w||^2, with the factor 2 of the paper's loss."""
    u, d = FEATURES[rows], TARGETS[rows]
    return 2 * u.T @ (u @ w - d) / len(u) + 2 * 0.1 * w


def test_full_steps_divide_mu_by_the_epochs() -> None:
    w = W
    for _ in range(4):
        w = w - 0.7 / 4 * ridge_slope(w, range(12))
    np.testing.assert_allclose(work(Agent(step_size=0.7, local_epochs=4)), w, rtol=1e-13)


def test_batches_are_drawn_with_replacement_from_the_agents_stream() -> None:
    agent = Agent(step_size=0.7, local_epochs=2, batch="sample", batch_size=40)
    # No more than the agent has; some come twice.
    drawn = stream(7, "batches", "5", 3).integers(12, size=(2, 12))
    assert any(len(set(batch)) < 12 for batch in drawn.tolist())
    w = W
    for batch in drawn:
        w = w - 0.35 * ridge_slope(w, batch)
    np.testing.assert_allclose(work(agent, round_=3), w, rtol=1e-13)
    assert not np.allclose(work(agent, round_=4), w)


def test_logistic_steps_follow_the_gradient() -> None:
    slope = np.zeros(3)
    for axis in range(3):
        step = np.zeros(3)
        step[axis] = 1e-6
        slope[axis] = (LOGISTIC.value(W + step) - LOGISTIC.value(W - step)) / 2e-6
    found = work(Agent(step_size=0.5, local_epochs=1), LOGISTIC)
    np.testing.assert_allclose(found, W - 0.5 * slope, rtol=0, atol=1e-9)


@pytest.mark.parametrize("clipping", ["example", "batch"])
@pytest.mark.parametrize("batch", ["full", "sample"])
def test_clipping_bounds_the_move_by_mu_b(clipping: str, batch: str) -> None:
    plain = RidgeRegression(100 * FEATURES, TARGETS)
    agent = Agent(
        step_size=0.7, local_epochs=5, clip=0.1, clipping=clipping, batch=batch, batch_size=4
    )
    moved = float(np.linalg.norm(work(agent, plain) - W))
    assert 0 < moved <= 0.7 * 0.1 * (1 + 1e-12)
    free = Agent(step_size=1e-4, local_epochs=5, clip=1e9, clipping=clipping)
    np.testing.assert_allclose(work(free), work(Agent(step_size=1e-4, local_epochs=5)), rtol=1e-13)


@pytest.mark.parametrize("broadcast", [{}, {"w": np.zeros(2)}, {"w": np.zeros(3, "f4")}])
def test_broadcasts_that_cannot_be_used(broadcast: dict[str, Any]) -> None:
    records = opened(Agent(), RIDGE, perturber(Agent(), RIDGE))
    with pytest.raises(ConfigError, match="no model w"):
        Agent().local_update({}, broadcast, records, Streams(0, "0", 1))


def test_settings_and_release() -> None:
    agent = Agent.from_settings({"step-size": 0.3, "local-epochs": 2, "perturbation": "random"})
    assert (agent.step_size, agent.local_epochs, agent.private) == (0.3, 2, False)
    assert agent.release(RIDGE, 1).mechanism == "none"
    assert agent.restart({}, public_facts(RIDGE)) == {}


def test_a_node_with_a_budget_refuses(tmp_path: Path) -> None:
    def problem(context: Context) -> Any:
        return RIDGE

    budget = {"max-epsilon": 1e6, "ledger-path": str(tmp_path / "ledger.jsonl"), "delta": 1e-5}
    nodes = [{"partition-id": i, **(budget if i == 2 else {})} for i in range(4)]
    grid = InlineGrid(client_app("gfl", problem), nodes)
    strategy = GFL(
        units=2, num_agents=4, clip=1.0, noise_variance=1.0, noise=SystemNoise(), min_agents=1
    )
    result = strategy.start(grid, zeros(3), num_rounds=2)
    for done in result.history:
        assert done.participants == ("0", "1", "3")
        assert "agent 2: " in done.failures["2"].text
        assert done.epsilon == float("inf")
    alone = GFL(units=1, num_agents=1, clip=1.0, min_agents=1)
    with pytest.raises(RunError, match="0 of 1 agents replied"):
        alone.start(InlineGrid(client_app("gfl", problem), nodes[2:3]), zeros(3), num_rounds=1)


@pytest.mark.parametrize(("count", "size"), [(1, 3), (12, 5), (3000, 1), (2**20 + 1, 70_001)])
def test_rows_of_many_steps_are_those_of_one_draw_in_blocks(count: int, size: int) -> None:
    class Counted:
        num_examples = count

    steps = 5 if size > 1000 else 100_000 // size
    gradients = Agent(batch="sample", batch_size=min(size, count)).gradients
    rows = gradients.rows(cast(Any, Counted()), Streams(7, "5", 1), steps)
    found = np.stack(list(islice(rows, steps)))
    expected = Streams(7, "5", 1).open("batches").integers(count, size=found.shape)
    assert np.array_equal(found, expected)


def test_the_memory_of_a_message_does_not_grow_with_its_steps() -> None:
    class Counted:
        num_examples = 1000

    gradients = Agent(batch="sample", batch_size=1000).gradients
    tracemalloc.start()
    next(gradients.rows(cast(Any, Counted()), Streams(7, "5", 1), 10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21  # all at once, 8e7 bytes
