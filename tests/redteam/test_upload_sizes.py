"""Uploads that clip and noise cannot explain cost their agent alone; honest ones all pass."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.kernel import Facts, norm_bound
from privet.sim.engine import InlineGrid
from privet.strategies import DPFedAvg, DPFedSGD
from privet.wire import pack
from privet.wire.dense import digest, joined_digest
from support.federations import app_of, logistic_agents

MAKE: dict[str, Any] = {
    "dp-fedsgd": lambda **o: DPFedSGD(**{"step_size_base": 0.1, **o}),
    "dp-fedavg": lambda **o: DPFedAvg(**{"step_size_base": 0.1, "max_local_steps": 3, **o}),
}
ARRAY = {"dp-fedsgd": "g", "dp-fedavg": "u"}


class Poisoning(InlineGrid):
    """A grid whose agent 1 sends a constant vector, with the digest that belongs to it."""

    def __init__(self, name: str, value: float | None) -> None:
        super().__init__(app_of(logistic_agents(4), name), 4)
        self.name, self.value = name, value

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        agent = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if message.metadata.message_type == "train" and agent == 1 and self.value is not None:
            record: Any = reply.content["privet"]  # type: ignore[union-attr]
            sent = np.full(4, self.value)
            about = {"digest": int(joined_digest([digest(sent)]))}
            record["about"] = json.dumps({**json.loads(record["about"]), **about})
            record["payload"] = pack({ARRAY[self.name]: sent})
        return reply


def played(grid: InlineGrid, name: str, rounds: int = 6, **keys: Any) -> Any:
    given = {"clip": 1.0, "noise_scale": 1.0, "min_agents": 3, "num_agents": 4, "patience": 0.0}
    strategy = MAKE[name](**{**given, **keys})
    start = ArrayRecord({"x": Array(np.zeros(4))})
    return strategy.start(grid, start, rounds, log_rounds=False)


@pytest.mark.parametrize("value", [1e3, 1e30, 1e90, 1e153, 1e160, 1e300, -1e40])
@pytest.mark.parametrize("name", MAKE)
def test_an_absurd_upload_costs_its_agent_alone(name: str, value: float) -> None:
    result = played(Poisoning(name, value), name)
    assert (result.status, len(result.history)) == ("completed", 6)
    assert all(done.participants == ("0", "2", "3") for done in result.history)
    assert all("upload" in done.failures["1"].text for done in result.history)
    assert result.privacy.private
    assert np.isfinite(result.arrays["x"].numpy()).all()


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(MAKE)),
    noise=st.sampled_from([1e-4, 1.0, 1e3]),
    clip=st.sampled_from([1e-3, 1.0, 50.0]),
    step=st.sampled_from([1e-3, 0.1, 10.0]),
    batch=st.sampled_from(["full", "sample", "poisson"]),
    ratio=st.sampled_from([0.5, 0.8, 1.0]),
)
def test_no_honest_upload_is_dropped(
    name: str, noise: float, clip: float, step: float, batch: str, ratio: float
) -> None:
    keys: dict[str, Any] = {"clip": clip, "noise_scale": noise * clip, "step_size_base": step}
    if name == "dp-fedsgd" and batch == "poisson":
        keys |= {"relation": "add-remove", "batch": batch, "batch_size": 3}
    elif batch == "sample":
        keys |= {"batch": batch, "batch_size": 3}
    if ratio != 1.0:
        keys |= {"budget_schedule": "geometric", "budget_ratio": ratio}
    rules = {"num-examples": 40, "relation": keys.get("relation", "replace-one")}
    nodes = [{"partition-id": agent, **rules} for agent in range(4)]
    result = played(InlineGrid(app_of(logistic_agents(4), name), nodes), name, 5, **keys)
    assert all(len(done.participants) == 4 for done in result.history)


@pytest.mark.parametrize("dim", [1, 7, 1000])
@pytest.mark.parametrize("name", MAKE)
def test_the_bound_is_beyond_all_draws_and_not_far(name: str, dim: int) -> None:
    """Against the law of the norm: its square is chi-squared of d degrees, beside the value."""
    from scipy.stats import chi2

    half = MAKE[name](clip=2.0, noise_scale=3.0).half.agent
    facts = Facts(50, 50.0, dim, loss="binary-logistic")
    release = half.release(facts, 1)
    most = half.upload_bound(facts, {"x": np.zeros(dim)}, 1)
    assert most == norm_bound(release, dim, 2.0)
    noise = (most - 2.0) / release.scale
    assert chi2.sf(noise**2, dim) < 1e-12
    assert most <= 1.01 * (2.0 + release.scale * (math.sqrt(dim) + 9.1))


def test_a_problem_of_an_unknown_term_is_held_by_the_grid_alone() -> None:
    half = MAKE["dp-fedsgd"](clip=1.0, noise_scale=1.0).half.agent
    most = half.upload_bound(Facts(50, 50.0, 4), {"x": np.zeros(4)}, 1)
    assert 1e6 < most < 1e12


@pytest.mark.parametrize("name", MAKE)
def test_un_noised_uploads_have_no_bound(name: str) -> None:
    half = MAKE[name]().half.agent
    assert half.upload_bound(Facts(50, 50.0, 4), {"x": np.zeros(4)}, 1) == math.inf
