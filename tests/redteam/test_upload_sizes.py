"""Uploads that clip and noise cannot explain cost their agent alone; honest ones all pass."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.agents.half import Half
from privet.kernel import Facts, norm_bound
from privet.problems import BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.strategies import (
    DPIADMM,
    GFL,
    DPFedAvg,
    DPFedSGD,
    FedDyn,
    FedPDM,
    FedPLT,
    Scaffold,
)
from privet.wire import ENROL, RECORD
from support.federations import app_of, logistic_agents

NOISED = {"clip": 1.0, "noise_scale": 1.0}
STEPS = {"step_size_base": 0.1, "max_local_steps": 3}
MAKE: dict[str, tuple[Any, dict[str, Any]]] = {
    "dp-fedsgd": (DPFedSGD, {"step_size_base": 0.1, **NOISED}),
    "dp-fedavg": (DPFedAvg, {**STEPS, **NOISED}),
    "scaffold": (Scaffold, {**STEPS, **NOISED}),
    "fed-dyn": (FedDyn, {**STEPS, **NOISED, "fed_dyn_alpha": 0.5}),
    "fed-pdm": (FedPDM, {"rho": 1.0, **STEPS, **NOISED, "max_local_steps": 1}),
    "fed-plt": (
        FedPLT,
        {"local_solver": "noisy-gd", "clip": 1.0, "noise_variance": 0.5, "row_norm": 2.0},
    ),
    "dp-iadmm": (DPIADMM, {"rho": 1.0, "local_updates": 3, **NOISED}),
}
"""Every private algorithm whose agents add noise to what they upload, and its usual keys here."""


class Poisoning(InlineGrid):
    """A grid whose agent 1 sends a constant vector, and goes on as if its steps had ended there.

    It states ``facts`` of its own when it enrols.
    """

    def __init__(self, app: Any, nodes: Any, value: float | None = None, agent: int = 1) -> None:
        super().__init__(app, nodes)
        self.value, self.agent, self.hostile = value, agent, False
        self.facts: dict[str, Any] = {}

    def deliver(self, message: Message) -> Message | None:
        agent = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        training = message.metadata.message_type == "train"
        self.hostile = training and agent == self.agent and self.value is not None
        try:
            reply = super().deliver(message)
        finally:
            self.hostile = False
        if reply is not None and message.metadata.message_type == ENROL and agent == self.agent:
            record: Any = reply.content[RECORD]
            record["facts"] = json.dumps({**json.loads(record["facts"]), **self.facts})
        return reply


def replacing(grid: Poisoning, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a half's method that concludes a round, of the grid's own vectors where it says so."""

    def concluded(
        half: Any, state: Any, broadcast: Any, upload: Any, *others: Any, **more: Any
    ) -> Any:
        if grid.hostile and isinstance(upload, dict):
            upload = {name: np.full_like(array, grid.value) for name, array in upload.items()}
        elif grid.hostile:
            upload = np.full_like(upload, grid.value)
        return method(half, state, broadcast, upload, *others, **more)

    return concluded


def played(
    name: str,
    rounds: int = 6,
    *,
    value: float | None = None,
    problems: Any = None,
    rules: Any = None,
    facts: Any = None,
    own: Any = None,
    **keys: Any,
) -> Any:
    patch = pytest.MonkeyPatch()
    nodes = [{"partition-id": agent, **(rules or {})} for agent in range(4)]
    nodes[1] |= own or {}
    grid = Poisoning(app_of(problems or logistic_agents(4), name), nodes, value)
    grid.facts = facts or {}
    for method in ("conclude", "conclude_sparse"):
        patch.setattr(Half, method, replacing(grid, getattr(Half, method)))
    given = {"min_agents": 3, "num_agents": 4, "patience": 0.0}
    kind, usual = MAKE[name]
    strategy = kind(**{**given, **usual, **keys})
    start = ArrayRecord({"x": Array(np.zeros(4))})
    try:
        return strategy.start(grid, start, rounds, log_rounds=False)
    finally:
        patch.undo()


def require_cost_of_agent_1(result: Any, rounds: int = 6) -> None:
    """Check that agent 1 was never folded, and the run of the others went on with its claim."""
    assert (result.status, len(result.history)) == ("completed", rounds)
    assert all(done.participants == ("0", "2", "3") for done in result.history)
    assert all("upload of norm" in done.failures["1"].text for done in result.history)
    assert result.privacy.private
    assert np.isfinite(result.arrays["x"].numpy()).all()


@pytest.mark.parametrize("value", [1e6, 1e30, 1e90, 1e150, -1e40])
@pytest.mark.parametrize("name", MAKE)
def test_an_absurd_upload_costs_its_agent_alone(name: str, value: float) -> None:
    require_cost_of_agent_1(played(name, value=value))


STATED: dict[str, dict[str, Any]] = {
    "penalty": {"penalty": 1e12},
    "modulus": {"modulus": 1e12},
    "loss": {"loss": "other"},
    "regularizer": {"regularizer": "nonconvex"},
}


@pytest.mark.parametrize("stated", STATED)
@pytest.mark.parametrize("name", ["dp-fedsgd", "dp-fedavg", "scaffold", "fed-dyn"])
def test_no_statement_of_one_agent_explains_its_absurd_upload(name: str, stated: str) -> None:
    require_cost_of_agent_1(played(name, value=1e6, facts=STATED[stated]))


@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm"])
def test_no_penalty_of_one_agent_explains_its_absurd_upload(name: str) -> None:
    require_cost_of_agent_1(played(name, value=1e6, facts=STATED["penalty"]))


def test_no_step_of_one_agent_explains_its_absurd_upload() -> None:
    """Its steps of 5 around rho = 3 grow fast, and 1e6 is what noise may become in ten of them."""
    require_cost_of_agent_1(played("fed-plt", value=1e5, own={"step-size": 5.0}))


@pytest.mark.parametrize("own", [1, 2, 10])
def test_agents_with_penalties_of_their_own_are_folded(own: int) -> None:
    """A step of a tenth, and penalties of up to 5 beside others of a hundredth."""
    problems = [*logistic_agents(3, weight=0.01), *logistic_agents(4, weight=own / 2)[3:]]
    result = played("scaffold", 8, problems=problems)
    assert all(len(done.participants) == 4 for done in result.history)


CODED = ("dp-fedsgd", "dp-fedavg", "scaffold", "fed-dyn", "fed-pdm", "fed-plt", "dp-iadmm")


@pytest.mark.parametrize("bits", ["4", "noise"])
@pytest.mark.parametrize("name", CODED)
def test_an_absurd_coded_upload_does_so_too(name: str, bits: str) -> None:
    agents = logistic_agents(4)
    require_cost_of_agent_1(played(name, value=1e30, problems=agents, value_bits=bits))


@pytest.mark.parametrize("sparsifier", ["rand-k", "public-top-k", "noisy-top-k"])
def test_an_absurd_sparse_upload_does_so_too(sparsifier: str) -> None:
    result = played("fed-pdm", value=1e30, sparsifier=sparsifier, uplink_k=2)
    require_cost_of_agent_1(result)


class OfTheUser(BinaryLogistic):
    """A loss of which the kernel knows nothing but its clip."""

    kind = "of-the-user"


@pytest.mark.parametrize("name", ["scaffold", "fed-dyn", "fed-plt", "dp-iadmm"])
def test_numbers_that_others_could_not_compute_with_are_dropped_where_no_bound_is_known(
    name: str,
) -> None:
    problems = [OfTheUser(a.features, a.labels) for a in logistic_agents(4)]
    keys = {"row_norm": 0.0, "step_size": 0.1} if name == "fed-plt" else {}
    result = played(name, value=1e97, problems=problems, **keys)
    require_cost_of_agent_1(result)


OPTIONS: dict[str, dict[str, Any]] = {
    "dp-fedsgd": {"batch": ["full", "sample", "poisson"]},
    "dp-fedavg": {"batch": ["full", "sample"], "max_local_steps": [1, 5]},
    "scaffold": {"batch": ["full", "sample", "poisson"], "max_local_steps": [1, 7]},
    "fed-dyn": {"batch": ["full", "sample", "poisson"], "max_local_steps": [1, 7]},
    "fed-pdm": {"sparsifier": ["none", "rand-k", "noisy-top-k"], "rho": [0.2, 1.0]},
    "fed-plt": {
        "local_epochs": [1, 5],
        "local_start": ["own", "model"],
        "relaxation": [0.5, 1.0],
        "rho": [0.3, 1.0, 3.0],
    },
    "dp-iadmm": {
        "local_updates": [1, 4],
        "perturbation": ["objective", "output"],
        "mechanism": ["gaussian", "laplace"],
        "set": ["none", "box", "l2"],
        "rho": [0.1, 1.0, 30.0],
    },
}
"""Values of keys beside the usual ones, of which every combination may be played."""
SCHEDULED = ("dp-fedsgd", "dp-fedavg", "fed-pdm", "fed-plt", "dp-iadmm")


@settings(max_examples=80, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(MAKE)))
def test_no_honest_upload_is_dropped(data: st.DataObject, name: str) -> None:
    keys = {key: data.draw(st.sampled_from(some), key) for key, some in OPTIONS[name].items()}
    noise = data.draw(st.sampled_from([1e-4, 1.0, 1e3]), "noise")
    clip = data.draw(st.sampled_from([1e-3, 1.0, 50.0]), "clip")
    size = (
        {"noise_variance": (noise * clip) ** 2}
        if name == "fed-plt"
        else {"noise_scale": noise * clip}
    )
    keys |= {"clip": clip, **size}
    if keys.get("batch") == "poisson":
        keys |= {"relation": "add-remove"}
    if keys.get("batch", "full") != "full":
        keys |= {"batch_size": 3}
    if keys.get("sparsifier", "none") != "none":
        keys |= {"uplink_k": 2}
    if keys.get("perturbation") == "output":
        keys |= {"set": "none", "row_norm": 2.0, "mechanism": "gaussian"}
    if data.draw(st.booleans(), "coded"):
        keys |= {"value_bits": data.draw(st.sampled_from(["4", "16", "noise"]), "bits")}
    if name in SCHEDULED and data.draw(st.booleans(), "geometric"):
        keys |= {"budget_schedule": "geometric", "budget_ratio": 0.7}
    rules = {"num-examples": 40, "relation": keys.get("relation", "replace-one")}
    weight = data.draw(st.sampled_from([0.0, 0.05, 0.9]), "weight")
    problems = logistic_agents(4, weight=weight)
    result = played(name, 5, problems=problems, rules=rules, **keys)
    dropped = [done.failures for done in result.history if done.failures]
    assert not dropped
    assert len(result.history) == 5


@pytest.mark.parametrize("dim", [1, 7, 1000])
@pytest.mark.parametrize("name", ["dp-fedsgd", "dp-fedavg"])
def test_the_bound_is_beyond_all_draws_and_not_far(name: str, dim: int) -> None:
    """Against the law of the norm: its square is chi-squared of d degrees, beside the value."""
    from scipy.stats import chi2

    half = MAKE[name][0](clip=2.0, noise_scale=3.0).half.agent
    facts = Facts(50, 50.0, dim, loss="binary-logistic")
    release = half.release(facts, 1)
    most = half.upload_bound(facts, {}, {"x": np.zeros(dim)}, 1)
    assert most == norm_bound(release, dim, 2.0)
    noise = (most - 2.0) / release.scale
    assert chi2.sf(noise**2, dim) < 1e-12 / 1e5
    assert most <= 1.01 * (2.0 + release.scale * (math.sqrt(dim) + 9.1))


@pytest.mark.parametrize("dim", [1, 3, 200])
def test_the_bound_of_laplace_noise_is_beyond_all_draws(dim: int) -> None:
    """Against the law of the sum of magnitudes, which is no less than the norm: a gamma's."""
    from scipy.stats import gamma

    half = DPIADMM(rho=1.0, mechanism="laplace", **NOISED).half.agent
    release = half.release(Facts(50, 50.0, dim, loss="binary-logistic"), 1)
    noise = norm_bound(release, dim, 0.0) / release.scale
    # For one coordinate that is the norm; else that of the largest, of which there are d.
    assert dim * math.exp(-noise / math.sqrt(dim)) < 1e-12 / 1e5
    assert dim > 1 or gamma.sf(noise, 1) < 1e-17


def test_a_problem_of_an_unknown_term_is_held_by_the_grid_alone() -> None:
    half = DPFedSGD(clip=1.0, noise_scale=1.0).half.agent
    most = half.upload_bound(Facts(50, 50.0, 4), {}, {"x": np.zeros(4)}, 1)
    assert 1e6 < most < 1e12


def test_a_model_of_a_unit_beyond_its_clip_costs_its_agent_alone() -> None:
    half = GFL(clip=1.0, step_size=0.5, local_epochs=5).half.agent
    facts = Facts(50, 50.0, 4, loss="binary-logistic", regularizer="l2", modulus=0.1)
    most = half.upload_bound(facts, {}, {"w": np.full(4, 3.0)}, 1)
    assert half.bounds_uploads
    assert 6.0 < most <= 6.0 + 0.5 + 0.5 * 0.1 * 6.5
