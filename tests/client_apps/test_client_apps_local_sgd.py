"""FedAvg and FedProx are Flower's own; the client is ours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedProx

from privet.client_apps.local_sgd import local_sgd_app
from privet.core import ConfigError
from privet.kernel import Release, epsilon_of
from privet.sim.engine import InlineGrid
from support.federations import logistic_agents, position, zeros

PROBLEMS = logistic_agents(4)
MARGIN = 1 + 2**-18
"""The rounding of a sum, which its sensitivity covers, in an epsilon."""
ALL = {"fraction_evaluate": 0.0, "min_train_nodes": 4, "min_available_nodes": 4}


def run(strategy: Any, rounds: int = 5, nodes: Any = 4, **settings: Any) -> Any:
    app = local_sgd_app(
        lambda context: PROBLEMS[position(context)],
        **{"step_size_base": 0.3, "max_local_steps": 3, **settings},
    )
    return strategy.start(InlineGrid(app, nodes), zeros(4), num_rounds=rounds)


@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_local_steps_and_plain_mean(mu: float) -> None:
    strategy = FedProx(proximal_mu=mu, **ALL) if mu else FedAvg(**ALL)
    found = run(strategy).arrays["x"].numpy()
    x = np.zeros(4)
    for number in range(1, 6):
        models = []
        for problem in PROBLEMS:
            w = x.copy()
            for _ in range(3):
                w = w - 0.3 / math.sqrt(number) * (problem.gradient(w) + mu * (w - x))
            models.append(w)
        x = np.mean(models, axis=0)
    assert np.abs(found - x).max() < 1e-12


def test_every_noised_step_is_accounted() -> None:
    strategy = FedAvg(**ALL)
    result = run(strategy, rounds=2, clip=0.5, noise_scale=0.2, delta=1e-4)
    rows = PROBLEMS[0].num_examples
    release = Release("gaussian", scale=0.2, sensitivity=2 * 0.5 / rows, count=2 * 3)
    metrics = result.train_metrics_clientapp[2]
    expected = epsilon_of([(release, 1)], 1e-4)
    assert expected <= metrics["epsilon"] <= expected * MARGIN


def test_a_budgeted_node_declines_to_train_without_noise(tmp_path: Any) -> None:
    nodes = [{"partition-id": i, "num-partitions": 4} for i in range(4)]
    nodes[2] |= {"max-epsilon": 1.0, "delta": 1e-5, "ledger-path": str(tmp_path / "ledger")}
    result = run(FedAvg(**ALL), rounds=1, nodes=nodes)
    models = []
    for i in (0, 1, 3):
        w = np.zeros(4)
        for _ in range(3):
            w = w - 0.3 * PROBLEMS[i].gradient(w)
        models.append(w)
    assert np.abs(result.arrays["x"].numpy() - np.mean(models, axis=0)).max() < 1e-12


@pytest.mark.parametrize(("mu", "charged"), [(0.5, 1), (math.inf, 0), (math.nan, 0), (1e300, 0)])
def test_a_weight_that_overflows_costs_a_private_agent_nothing(
    tmp_path: Any, mu: float, charged: int
) -> None:
    """Whether it makes a step infinite depends on the records: 0 times infinity does."""
    limits = {"max-epsilon": 9.0, "delta": 1e-5}
    nodes: Any = [{"partition-id": i, "num-partitions": 4} for i in range(4)]
    for node in nodes:
        node |= {**limits, "ledger-path": str(tmp_path / f"ledger-{node['partition-id']}")}
    result = run(FedProx(proximal_mu=mu, **ALL), 1, nodes, clip=0.5, noise_scale=9.0, delta=1e-5)
    assert len(result.train_metrics_clientapp) == charged
    assert len(list(tmp_path.iterdir())) >= charged * 4
    assert charged or not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"clip": 1.0, "noise_scal": 1.0}, "unknown setting 'noise-scal'; did you mean 'noise-"),
        ({"clipp": 1.0, "noise_scale": 1.0}, "unknown setting 'clipp'; did you mean 'clip'?"),
        ({"target_epsilo": 0.001}, "unknown setting 'target-epsilo'; did you mean 'target-eps"),
        ({"target_epsilon": float("nan")}, "target-epsilon = nan: must be none or > 0"),
        ({"delta": 0.9}, "delta = 0.9: must be > 0 and <= 0.5"),
        ({"noise_seed": True}, "noise-seed = True: expected none or a whole number"),
    ],
)
def test_settings_that_there_are_not_are_refused(settings: dict[str, Any], reason: str) -> None:
    """A misspelt noise would leave the agent un-noised."""
    with pytest.raises(ConfigError) as caught:
        local_sgd_app(lambda context: logistic_agents(1)[0], **settings)
    assert str(caught.value).startswith(reason)
