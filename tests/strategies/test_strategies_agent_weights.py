"""Agents weighted by their examples: every method reaches the optimum of the pooled data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message

from privet.client_apps import LoopParticipant, client_app
from privet.core import ConfigError, RunError, algorithm
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import (
    DPIADMM,
    LED,
    DPFedSGD,
    FedDyn,
    FedLin,
    FedPD,
    FedPDM,
    FedPLT,
    FiveGCS,
    Scaffold,
    Tamuna,
)
from support.federations import app_of

DIM, SIZES = 3, (4, 6, 9, 14, 27)
TOLERANCE = 1e-22
RNG = np.random.default_rng(5)
ROWS = [RNG.standard_normal((size, DIM)) for size in SIZES]
TARGETS = [RNG.standard_normal(size) + place for place, size in enumerate(SIZES)]
START = ArrayRecord({"x": Array(np.zeros(DIM))})
STEPS: Any = {"step_size_base": 0.02, "step_size_rule": "constant", "max_local_steps": 4}
STRATEGIES: dict[str, Any] = {
    "fed-plt": lambda **run: FedPLT(rho=0.5, returned_model="y", **run),
    "fed-pdm": lambda **run: FedPDM(rho=2.0, **{**STEPS, "max_local_steps": 10}, **run),
    "fed-dyn": lambda **run: FedDyn(fed_dyn_alpha=2.0, **{**STEPS, "max_local_steps": 10}, **run),
    "scaffold": lambda **run: Scaffold(**STEPS, **run),
    "fed-pd": lambda **run: FedPD(rho=0.5, **run),
    "fed-lin": lambda **run: FedLin(step_size=0.02, local_epochs=4, **run),
    "led": lambda **run: LED(step_size=0.02, local_epochs=4, **run),
    "tamuna": lambda **run: Tamuna(step_size=0.02, local_epochs=4, **run),
    "five-gcs": lambda **run: FiveGCS(rho=0.5, server_step_size=0.3, **run),
    "dp-fedsgd": lambda **run: DPFedSGD(
        momentum=0.0, step_size_base=0.1, step_size_rule="constant", **run
    ),
}


def optimum(shares: Any) -> Any:
    """Solve grad sum_i share_i (mean square of agent i) + 0.1 x / 2 each = 0."""
    left, right = 0.1 * len(SIZES) * np.eye(DIM), np.zeros(DIM)
    for share, rows, targets in zip(shares, ROWS, TARGETS, strict=True):
        left += 2 * share * rows.T @ rows / len(rows)
        right += 2 * share * rows.T @ targets / len(rows)
    return np.linalg.solve(left, right)


EQUAL, WEIGHTED = optimum(np.ones(5)), optimum(np.array(SIZES) / np.mean(SIZES))


def played(name: str, rounds: int, tolerance: float = 0.0, **run: Any) -> Any:
    problems = [
        RidgeRegression(rows, targets, regularizer=L2(0.1))
        for rows, targets in zip(ROWS, TARGETS, strict=True)
    ]
    app = app_of(problems, name)
    strategy = STRATEGIES[name](num_agents=5, **run)
    result = strategy.start(InlineGrid(app, 5), START, num_rounds=rounds, tolerance=tolerance)
    return result.arrays["x"].numpy()


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_limit_is_the_optimum_of_the_pooled_data(name: str) -> None:
    assert np.linalg.norm(WEIGHTED - EQUAL) > 0.1
    found = played(name, 400, TOLERANCE, agent_weights="examples")
    assert np.allclose(found, WEIGHTED, rtol=0, atol=1e-6)
    assert np.allclose(played(name, 400, TOLERANCE), EQUAL, rtol=0, atol=1e-6)


def loop(name: str, weights: str, scale: bool, rounds: int = 30) -> Any:
    """Train with a loop of one's own, which may multiply its gradients itself."""
    model = {"x": np.zeros(DIM)}

    def place(context: Context) -> int:
        return int(context.node_config["partition-id"])

    taking_part = LoopParticipant(name, model, lambda context: SIZES[place(context)])
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = place(context)
        with taking_part.round(message, context, model) as local:
            for _ in range(local.steps):
                apart = ROWS[own] @ model["x"] - TARGETS[own]
                slope = 2 * ROWS[own].T @ apart / SIZES[own] + 0.1 * model["x"]
                gradients = {"x": slope * (SIZES[own] / np.mean(SIZES) if scale else 1.0)}
                local.correct(model, gradients)
                model["x"] = model["x"] - local.step_size * gradients["x"]
        return local.reply()

    strategy = STRATEGIES[name](num_agents=5, agent_weights=weights)
    result = strategy.start(InlineGrid(app, 5), START, num_rounds=rounds)
    return result.arrays["x"].numpy()


@pytest.mark.parametrize("name", ["fed-dyn", "scaffold"])
def test_correct_multiplies_the_gradients_of_a_loop(name: str) -> None:
    found = loop(name, "examples", scale=False)
    assert np.allclose(found, loop(name, "equal", scale=True), rtol=0, atol=1e-12)
    assert not np.allclose(found, loop(name, "equal", scale=False), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [("fed-dyn", {"agent_weights": "examples"}), ("fed-dyn", {}), ("fed-plt", {})],
)
def test_a_loop_without_correct_is_told(name: str, options: dict[str, Any]) -> None:
    model = {"x": np.zeros(DIM)}
    taking_part = LoopParticipant(name, model, lambda context: 7 + int(context.node_id % 2))
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with taking_part.round(message, context, model) as local:
            model["x"] = model["x"] - 0.1
        return local.reply()

    kind = algorithm(name).load_strategy()
    strategy = kind(num_agents=2, min_agents=2, patience=0.0, **options)
    nodes = [{"partition-id": 0}, {"partition-id": 1}]
    whole = (
        rf"{name} needs a call of correct\(\) in every local step, this loop made none: call it "
        r"before each step, or open the round with hook = True and step with a torch optimizer of "
        r"this model's parameters"
    )
    with pytest.raises(RunError, match=whole):
        strategy.start(InlineGrid(app, nodes), START, num_rounds=1)


def test_a_run_goes_on_with_the_weights_that_it_began_with(tmp_path: Any) -> None:
    whole = played("scaffold", 6, agent_weights="examples")
    problems = [RidgeRegression(r, t, regularizer=L2(0.1)) for r, t in zip(ROWS, TARGETS)]  # noqa: B905
    app = client_app("scaffold", lambda c: problems[int(c.node_config["partition-id"])])
    grid, path = InlineGrid(app, 5), tmp_path / "half.npz"
    made = STRATEGIES["scaffold"](num_agents=5, agent_weights="examples")
    made.start(grid, START, num_rounds=3, checkpoint=path)
    again = STRATEGIES["scaffold"](num_agents=5, agent_weights="examples")
    found = again.start(grid, START, num_rounds=6, resume=path).arrays["x"].numpy()
    assert np.array_equal(found, whole)
    other = STRATEGIES["scaffold"](num_agents=5)
    with pytest.raises(RunError, match="agent-weights"):
        other.start(grid, START, num_rounds=6, resume=path)


def test_where_weights_have_no_meaning_is_one_line() -> None:
    with pytest.raises(ConfigError, match="expected equal or examples"):
        FedDyn(agent_weights="sizes")
    with pytest.raises(ConfigError, match="not in a run that clips or adds noise"):
        FedDyn(agent_weights="examples", clip=1.0, noise_scale=1.0)
    with pytest.raises(ConfigError, match="dp-iadmm counts examples alike already"):
        DPIADMM(agent_weights="examples")
