"""DP-FedAvg around training loops of one's own: any loop, whose whole update is clipped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from privet.client_apps import LoopParticipant, client_app, initial_arrays
from privet.core import RunError
from privet.problems import RidgeRegression
from privet.sim.engine import InlineGrid
from privet.sim.trusting import trusting_nodes
from privet.strategies import DPFedAvg

AGENTS, ROWS, DIM = 4, 10, 3
rng = np.random.default_rng(5)
PROBLEMS = [
    RidgeRegression(rng.standard_normal((ROWS, DIM)), rng.standard_normal(ROWS))
    for _ in range(AGENTS)
]
STEPS: dict[str, Any] = {
    "step_size_base": 0.1, "step_size_rule": "constant", "max_local_steps": 3,
}  # fmt: skip
SILENT = 1e-9
"""A noise that hides nothing, so that what is under it can be looked at."""


def problem(context: Context) -> RidgeRegression:
    return PROBLEMS[int(context.node_config["partition-id"])]


Loop = Callable[[Any, Any, Context], None]


def app_of(loop: Loop, **reply: Any) -> Any:
    taking_part = LoopParticipant(None, lambda: {"w": np.zeros(DIM)}, lambda context: ROWS)
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights = {"w": np.zeros(DIM)}
        with taking_part.round(message, context, weights) as local:
            loop(local, weights, context)
        return local.reply(**reply)

    return app


def gradient_steps(local: Any, weights: Any, context: Context) -> None:
    for _ in range(local.steps):
        weights["w"] = weights["w"] - local.step_size * problem(context).gradient(weights["w"])


def strategy(**keys: Any) -> DPFedAvg:
    return DPFedAvg(num_agents=AGENTS, **{**STEPS, **keys})


def run(app: Any, nodes: Any = AGENTS, rounds: int = 3, **keys: Any) -> Any:
    grid, start = InlineGrid(app, nodes), initial_arrays({"w": np.zeros(DIM)})
    return strategy(**keys).start(grid, start, num_rounds=rounds)


def final(result: Any) -> Any:
    return next(iter(result.arrays.values())).numpy()


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"clip": 0.05},
        {"clip": 0.05, "noise_scale": 0.3, "noise_seed": 4},
        {"clip": 0.05, "noise_scale": 0.3, "noise_seed": 4, "relation": "replace-agent"},
        {
            "clip": 0.05, "noise_scale": 0.3, "noise_seed": 4, "secure_sum": True,
            "noise_sharing": True, "dropouts": 1,
        },
    ],
    ids=["plain", "clip", "noise", "agents", "shared"],
)  # fmt: skip
def test_a_loop_of_gradient_steps_is_the_built_in_update(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    relation = {"relation": "replace-agent"} if "relation" in keys else {}
    nodes: list[dict[str, Any]] = [{"partition-id": i, **relation} for i in range(AGENTS)]
    if "noise_sharing" in keys:
        own_keys = trusting_nodes(tmp_path, map(str, range(AGENTS)), 1)
        nodes = [{**node, **trust} for node, trust in zip(nodes, own_keys, strict=True)]
    own = run(app_of(gradient_steps), nodes, **keys)
    built_in = run(client_app("dp-fedavg", problem), nodes, **keys)
    assert np.abs(final(built_in)).max() > 0.01
    assert np.abs(final(own) - final(built_in)).max() < 1e-12


def test_its_account_is_that_of_the_built_in_update() -> None:
    keys: dict[str, Any] = {"clip": 0.05, "noise_scale": 0.3}  # seeded noise has no account
    own, built_in = (
        [done.epsilon for done in run(app, **keys).history]
        for app in (app_of(gradient_steps), client_app("dp-fedavg", problem))
    )
    assert own == built_in
    assert 0 < own[0] < own[-1] < math.inf


@pytest.mark.parametrize("end", [1e30, np.nan, np.inf, 0.0])
def test_no_end_of_a_loop_moves_further_than_the_clip(end: float) -> None:
    def wild(local: Any, weights: Any, context: Context) -> None:
        weights["w"] = np.full(DIM, end)

    found = final(run(app_of(wild), rounds=1, clip=0.2, noise_scale=SILENT, noise_seed=1))
    expected = 0.2 if end == 1e30 else 0.0
    assert np.linalg.norm(found) == pytest.approx(expected, abs=1e-6)


def test_a_ledger_has_one_release_a_round_whatever_the_loop_does(tmp_path: Path) -> None:
    def one_step_more(local: Any, weights: Any, context: Context) -> None:
        for _ in range(2):
            gradient_steps(local, weights, context)

    nodes = [
        {"partition-id": i, "ledger-path": str(tmp_path / f"{i}.jsonl"), "max-epsilon": 50.0,
         "delta": 1e-5}
        for i in range(AGENTS)
    ]  # fmt: skip
    run(app_of(one_step_more), nodes, clip=0.2, noise_scale=0.5)
    lines = [json.loads(line) for line in (tmp_path / "0.jsonl").read_text().splitlines()]
    assert [line["release"]["sensitivity"] for line in lines] == [0.4] * 3


def test_what_a_private_run_refuses() -> None:
    private: dict[str, Any] = {"clip": 0.2, "noise_scale": 0.5, "noise_seed": 1}

    def private_step(local: Any, weights: Any, context: Context) -> None:
        local.private_step(None, None)

    said = r"dp-fedavg clips the whole update, and no gradient: train without private_step\(\)"
    with pytest.raises(RunError, match=said):
        run(app_of(private_step), clip=0.0)
    metrics = {"metrics": {"loss": 1.0}}
    with pytest.raises(RunError, match="of a private agent would be an un-noised release"):
        run(app_of(gradient_steps, **metrics), rounds=1, **private)
    with pytest.raises(RunError, match="a custom training loop needs a clip with its noise"):
        run(app_of(gradient_steps), rounds=1, noise_scale=0.5)


def test_optimizers_go_on_in_a_private_run() -> None:
    """Their state is of gradients without noise, and stays at the agent."""
    torch = pytest.importorskip("torch")
    moments: list[float] = []
    taking_part = LoopParticipant(
        None, lambda: torch.nn.Linear(DIM, 1), lambda context: ROWS, keep_optimizer=True
    )
    app = taking_part.app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = torch.nn.Linear(DIM, 1)
        with taking_part.round(message, context, model) as local:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model(torch.ones(1, DIM)).square().sum().backward()
            optimizer.step()
            moments.append(float(optimizer.state[model.bias]["momentum_buffer"][0]))
        return local.reply()

    start = initial_arrays(torch.nn.Linear(DIM, 1))
    keys: dict[str, Any] = {"clip": 1e-3, "noise_scale": SILENT, "noise_seed": 1}
    DPFedAvg(num_agents=1, **STEPS, **keys).start(InlineGrid(app, 1), start, num_rounds=2)
    assert moments[1] == pytest.approx(1.9 * moments[0], rel=0.05)  # the model hardly moved
