"""Calibration: the total it was asked for, reached from below and not wastefully."""

from __future__ import annotations

import math
from typing import Any

import pytest

from privet.core import ConfigError
from privet.core.registry import BUILT_IN
from privet.kernel import Release, Totals, epsilon_of, gaussian_scale
from privet.rounds.calibration import smallest_noise
from privet.server_apps import read_config
from privet.server_apps.planning import Planned, plan_account

DELTA = 1e-5


def gaussian_cost(count: int) -> Any:
    """Cost of `count` Gaussians of sensitivity 1."""

    def cost(scale: float) -> float:
        return epsilon_of([(Release("gaussian", scale=scale), count)], DELTA)

    return cost


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("count", [1, 300])
def test_gaussian_noise_is_the_analytic_one(epsilon: float, count: int) -> None:
    """`count` Gaussians are one Gaussian of sqrt(count) times the sensitivity, up to the grid."""
    found = smallest_noise(gaussian_cost(count), epsilon)
    analytic = gaussian_scale(epsilon, DELTA) * math.sqrt(count)
    assert 1.0 <= found / analytic <= 1 + 2.0**-12 + 1e-8


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_smallest_noise_whatever_its_size_and_the_shape(unit: float, power: float) -> None:
    """cost = (3 unit / noise)^power has the closed form 3 unit target^(-1/power)."""
    found = smallest_noise(lambda noise: (3.0 * unit / noise) ** power, 0.25)
    assert (3.0 * unit / found) ** power <= 0.25
    assert found == pytest.approx(3.0 * unit * 0.25 ** (-1 / power), rel=1e-7)


def test_a_cost_with_jumps_is_met_from_below() -> None:
    """Discretised costs are stairs: the answer lies on the right side of one."""

    def stairs(noise: float) -> float:
        return math.ceil(100 / noise) / 10

    found = smallest_noise(stairs, 1.05, exact=False)
    assert stairs(found) <= 1.05 < stairs(found * (1 - 1e-3))


def test_an_infinite_cost_is_passed_over() -> None:
    found = smallest_noise(lambda noise: math.inf if noise < 50 else 60 / noise, 1.0)
    assert found == pytest.approx(60.0, rel=1e-6)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_next_smaller_noise_would_not_do(mechanism: str) -> None:
    norm: Any = "l1" if mechanism == "laplace" else "l2"

    def cost(scale: float) -> float:
        release = Release(mechanism, scale=scale, norm=norm, count=200)  # type: ignore[arg-type]
        return epsilon_of([(release, 1)], DELTA)

    exact = mechanism == "gaussian"
    found = smallest_noise(cost, 3.0, exact=exact)
    assert cost(found) <= 3.0 < cost(found * (1 - (1e-6 if exact else 2e-2)))


@pytest.mark.parametrize(
    ("cost", "target", "reason"),
    [
        (lambda noise: 2.0 + 1 / noise, 1.9, "no noise brings the total down"),
        (lambda noise: math.inf, 2.0, "no noise brings the total down"),
        (lambda noise: 0.0, 2.0, "no noise is needed"),
        (lambda noise: 1 / noise, 0.0, "target"),
        (lambda noise: 1 / noise, math.nan, "target"),
    ],
)
def test_what_no_noise_can_meet_is_refused(cost: Any, target: float, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        smallest_noise(cost, target)


# ---------------------------------------------------------------------- of whole runs

COMMON = {"num-agents": 3, "num-server-rounds": 20, "clip": 0.5}
PLT = {"algorithm": "fed-plt", "local-solver": "noisy-gd", "rho": 2.0, "step-size": 0.2,
       "local-epochs": 4}  # fmt: skip
PDM = {"algorithm": "fed-pdm", "dual": "public", "rho": 0.5, "batch": "full"}
SCHEDULE = {"participation": "schedule", "schedule": "0,1;0;2;1,2"}
RUNS: dict[str, dict[str, Any]] = {  # beside those that redteam/test_budget.py plays
    "dp-fedsgd-batch-clip": {"algorithm": "dp-fedsgd", "clipping": "batch"},
    "dp-fedsgd-float32": {"algorithm": "dp-fedsgd", "dtype": "float32", **SCHEDULE},
    "dp-fedavg": {"algorithm": "dp-fedavg", **SCHEDULE},
    "scaffold": {"algorithm": "scaffold", "max-local-steps": 5, **SCHEDULE},
    "fed-dyn": {
        "algorithm": "fed-dyn", "max-local-steps": 3, "participation": "balanced",
        "fraction": 0.4},
    "fed-plt-multinomial": {**PLT, "row-norm": 1.0, "loss": "multinomial-logistic"},
    "fed-plt-partial": {
        **PLT, "row-norm": 1.0, "participation": "probability",
        "probability": "0=0.5,1=0.9"},
    "dp-iadmm-strongly-convex": {
        "algorithm": "dp-iadmm", "eta-rule": "strongly-convex", "strong-convexity": 0.2},
    "fed-pdm-decreasing-steps": {**PDM, "max-local-steps": 1, "step-size-base": 0.5},
    "fed-pdm-batch-clip": {
        **PDM, "max-local-steps": 6, "clipping": "batch", "step-size-rule": "constant",
        "step-size-base": 0.2, **SCHEDULE},
    "fed-pdm-rand-k": {
        **PDM, "max-local-steps": 4, "row-norm": 1.0, "loss": "binary-logistic",
        "sparsifier": "rand-k", "alpha-u": 0.5},
}  # fmt: skip


def plan(run: dict[str, Any], **more: Any) -> Planned:
    changes = {key.replace("_", "-"): value for key, value in more.items()}
    config = read_config({**COMMON, **run, **changes})
    return plan_account(config, {"num-examples": 200, "dim": 6})


@pytest.mark.parametrize("name", RUNS)
def test_every_private_algorithm_meets_its_target_from_below_and_closely(name: str) -> None:
    target = 0.7
    planned = plan(RUNS[name], target_epsilon=target)
    assert planned.account["private"]
    found = planned.account["accounts"][0]["epsilon"]
    closeness = 0.98 if planned.account["accounts"][0]["method"] == "pld" else 0.999
    assert closeness * target <= found <= target
    # The account of the run with that noise is the same figure, by another way.
    ((key, noise),) = planned.noise.items()
    again = plan(RUNS[name], **{key: noise})
    assert again.account["accounts"][0]["epsilon"] == pytest.approx(found, rel=1e-12)
    # And the releases it lists add up to it.
    for agent in planned.account["agents"].values():
        entries = [dict(entry) for entry in agent["releases"]]
        times = [int(entry.pop("times")) for entry in entries]
        totals = Totals()
        for entry, count in zip(entries, times, strict=True):
            totals = totals.add(Release.from_dict(entry), count)
        assert totals.epsilon(DELTA) == pytest.approx(agent["epsilon"], rel=1e-12)
        assert agent["epsilon"] <= target
        assert sum(times) <= 20


def test_every_algorithm_with_noise_is_calibrated() -> None:
    private = {each.name for each in BUILT_IN if getattr(each.load_agent(), "noise_key", "")}
    assert private == {run["algorithm"] for run in RUNS.values()}


def test_who_takes_part_less_often_needs_less_noise() -> None:
    """The agent that takes part most decides; every participation counts in full."""
    often, seldom = (
        plan({"algorithm": "dp-fedsgd"}, target_epsilon=1.0, **more).noise["noise-scale"]
        for more in ({}, {"participation": "schedule", "schedule": "0;1;2"})
    )
    # 7 of 20 rounds: mu grows with the root of their number, and with 1 / noise.
    assert seldom / often == pytest.approx(math.sqrt(7 / 20), rel=1e-3)


def test_more_examples_need_less_noise() -> None:
    config = read_config({**COMMON, "algorithm": "dp-fedsgd", "target-epsilon": 1.0})
    few, many = (
        plan_account(config, {"num-examples": count}).noise["noise-scale"] for count in (100, 400)
    )
    assert few / many == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"algorithm": "fed-avg-nothing"}, "algorithm"),
        (
            {"algorithm": "fed-split"},
            "fed-split does not use it",
        ),
        ({"algorithm": "dp-fedsgd", "clip": 0.0}, "needs clip"),
        ({**PLT, "local-solver": "gd"}, "noisy-gd"),
        ({**PLT, "local-solver": "noisy-gd"}, "row-norm"),
        ({**PDM, "dual": "private"}, "private dual"),
        ({**PDM, "sparsifier": "top-k", "alpha-u": 0.5}, "top-k"),
        ({**PDM, "max-local-steps": 3}, "smoothness is public"),
        ({"algorithm": "dp-iadmm", "perturbation": "none"}, "no noise"),
    ],
)
def test_what_cannot_be_calibrated_says_why(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        plan({"loss": "binary-logistic", **change}, target_epsilon=1.0)
    assert "\n" not in str(caught.value)
