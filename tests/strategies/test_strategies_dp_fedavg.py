"""DP-FedAvg: uploads that are clipped and noised as a whole, and what the server makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from privet.agents.adapters import CallableProblem
from privet.client_apps.local_sgd import local_sgd_app
from privet.core import algorithm
from privet.kernel import Facts, gaussian_epsilon
from privet.kernel.programs.update import ClippedUpdate
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of, run_inline
from privet.testing import Check, CheckFailed, checks, logistic_federation
from support.cli import privet
from support.federations import position, zeros

CONSTANT = {"step_size_rule": "constant", "max_local_steps": 5}
Patch = pytest.MonkeyPatch


def every(**options: Any) -> tuple[Check, ...]:
    return checks("dp-fedavg", **options)


def model(problems: Any, rounds: int, **keys: Any) -> Any:
    own = {key.replace("_", "-"): value for key, value in keys.items()}
    config = read_config({"algorithm": "dp-fedavg", "num-agents": len(problems), **own})
    strategy = algorithm("dp-fedavg").load_strategy().from_config(config)
    grid = grid_of("dp-fedavg", problems, engine="inline")
    return strategy.start(grid, zeros(problems[0].dim), num_rounds=rounds)


FLOWERS: dict[str, Any] = {
    "fedavg": (FedAvg, {}, {}),
    "fedavgm": (
        FedAvgM,
        {"server_learning_rate": 0.5, "server_momentum": 0.6},
        {"server_optimizer": "momentum", "server_learning_rate": 0.5, "server_momentum": 0.6},
    ),
    "fedadam": (
        FedAdam,
        {"eta": 0.05, "tau": 1e-2},
        {"server_optimizer": "adam", "server_learning_rate": 0.05, "server_tau": 1e-2},
    ),
}


@pytest.mark.parametrize("name", FLOWERS)
@pytest.mark.parametrize("clip", [0.0, 1e3], ids=["no clip", "never hit"])
def test_without_noise_it_is_flowers_own(name: str, clip: float) -> None:
    """With the same local steps; the mean of the differences rounds unlike that of the models."""
    problems, count = logistic_federation(), 6
    local: Any = {"step_size_base": 0.4, "max_local_steps": 3}
    flower, theirs, ours = FLOWERS[name]
    app = local_sgd_app(lambda context: problems[position(context)], **local)
    everybody = {"fraction_evaluate": 0.0, "min_train_nodes": count, "min_available_nodes": count}
    expected = flower(**everybody, **theirs).start(InlineGrid(app, count), zeros(4), num_rounds=12)
    found = model(problems, 12, clip=clip, **local, **ours).arrays["x"].numpy()
    assert np.abs(found).max() > 0.1
    assert np.abs(found - expected.arrays["x"].numpy()).max() < 1e-12


def test_shared_noise_is_that_of_the_masked_sum(tmp_path: Path) -> None:
    """Of N agents of whom t collude, N - t shares hide the update: sqrt(N - t) times less noise."""
    run = {
        "algorithm": "dp-fedavg", "dataset": "synthetic", "examples-per-agent": 40,
        "num-agents": 6, "num-server-rounds": 3, "clip": 0.5, "secure-sum": True,
        "output-dir": str(tmp_path),
    }  # fmt: skip
    shared = run_inline({**run, "noise-sharing": True, "noise-scale": 1.0}, "a", colluders=2)
    alone = run_inline({**run, "noise-scale": 2.0}, "b")
    (one, other) = (done.result.history[-1].epsilon for done in (shared, alone))
    assert 0 < one == pytest.approx(other, rel=1e-3)


def test_a_round_costs_one_gaussian_of_twice_the_clip() -> None:
    half = algorithm("dp-fedavg").load_agent()(clip=0.5, noise_scale=2.0)
    release = half.release(Facts(40, 40.0, 7), 1)
    assert (release.sensitivity, release.scale, release.draws) == (1.0, 2.0, 1)


def test_problems_that_cannot_clip_take_part() -> None:
    def problem(target: float) -> CallableProblem:
        return CallableProblem(
            lambda x: float((x - target) @ (x - target)) / 2, lambda x: x - target, 2, 5
        )

    keys = {**CONSTANT, "clip": 1.0, "noise_scale": 0.1, "step_size_base": 0.5}
    result = model([problem(target) for target in (1.0, 2.0)], 4, **keys)
    assert not any(done.failures for done in result.history)
    epsilon = result.history[-1].epsilon
    ideal = gaussian_epsilon(2 * 2.0 / 0.1, 1e-5)  # mu = 2 C sqrt(rounds) / sigma
    assert ideal <= epsilon <= 1.001 * ideal


def test_it_is_planned_and_calibrated(tmp_path: Path) -> None:
    data = {"dataset": "synthetic", "examples-per-agent": 40, "num-agents": 3, "partition": "iid"}
    run = {**data, "algorithm": "dp-fedavg", "clip": 1.0, "target-epsilon": 2.0}
    words = [f"{key}={value}" for key, value in {**run, "num-server-rounds": 5}.items()]
    said = [
        privet(*call, *words, "--json")
        for call in (("account",), ("run", f"output-dir={tmp_path}"))
    ]
    assert not any(code for code, _, _ in said), said
    planned, done = (json.loads(out.splitlines()[-1]) for _, out, _ in said)
    account = json.loads((Path(done["run-folder"]) / "privacy.json").read_text())
    assert 1.9 < planned["epsilon"] <= 2.0
    assert account["accounts"][0]["epsilon"] == pytest.approx(planned["epsilon"], rel=1e-6)


# ------------------------------------------------------------------ wrong forms of it


def half_of_what_it_costs_is_charged(patch: Patch) -> None:
    patch.setattr(ClippedUpdate, "sensitivity", property(lambda self: self.clip))


def the_upload_has_a_trace_of_the_gradient(patch: Patch) -> None:
    half = algorithm("dp-fedavg").load_agent()
    original = half.local_update

    def local_update(self: Any, state: Any, broadcast: Any, records: Any, streams: Any) -> Any:
        local = original(self, state, broadcast, records, streams)
        trace = 1e-9 * records._problem.gradient(broadcast["x"])
        return local._replace(upload={"u": local.upload["u"] + trace})

    patch.setattr(half, "local_update", local_update)


WRONG: dict[Callable[[Patch], None], str] = {
    half_of_what_it_costs_is_charged: "an_agent_moves_no_more_than_is_charged",
    the_upload_has_a_trace_of_the_gradient: "uploads_tell_only_what_was_noised",
}


@pytest.mark.parametrize("breaks", WRONG, ids=lambda breaks: breaks.__name__)
def test_a_wrong_one_is_caught(breaks: Callable[[Patch], None], monkeypatch: Patch) -> None:
    breaks(monkeypatch)
    (check,) = (one for one in every(private={"clip": 0.01}) if one.name == WRONG[breaks])
    with pytest.raises(CheckFailed, match=f"dp-fedavg-{WRONG[breaks]}: "):
        check()
