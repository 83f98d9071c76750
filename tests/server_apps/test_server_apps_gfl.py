"""What is said of GFL's privacy, and that the bound behind it holds on neighbouring data."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.client_apps import Streams
from privet.client_apps.gfl import Agent, LinkRelease
from privet.kernel import (
    Facts,
    Perturber,
    Release,
    SeededNoise,
    SystemNoise,
    epsilon_of,
    gaussian_epsilon,
)
from privet.problems import L2, RidgeRegression, minimize
from privet.server_apps import read_config
from privet.server_apps.build import build_evaluation
from privet.sim.inline import run_inline
from privet.strategies import GFL
from privet.strategies.gfl.account import Links, Spending, gfl_account
from privet.strategies.gfl.graph import graph_edges, metropolis
from privet.strategies.gfl.measures import GflMeasures
from privet.strategies.gfl.mixing import LocalMixer
from support.opened import opened

RUN: dict[str, Any] = {
    "algorithm": "gfl",
    "dataset": "regression",
    "features": 2,
    "examples-per-agent": 20,
    "partition": "natural-id",
    "regularizer-weight": 0.2,
    "num-agents": 12,
    "units": 3,
    "participants": 2,
    "step-size": 0.5,
    "local-epochs": 2,
    "batch": "sample",
    "batch-size": 5,
    "num-server-rounds": 6,
}
NOISY = {**RUN, "noise-variance": 4.0, "clip": 0.5}


def run(raw: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    finished = run_inline({**raw, "output-dir": str(folder)}, "run")
    return finished, json.loads((finished.folder / "privacy.json").read_text())


def links(**more: Any) -> Links | None:
    facts = Facts(20, 20.0, 2, loss="ridge", regularizer="l2", modulus=0.2)
    return Links.of(read_config({**NOISY, **more}), facts)


def composed(bound: Links, rounds: int) -> float:
    """Return the epsilon of a unit's messages of all rounds, added up one by one."""
    releases = [bound.release(number) for number in range(1, rounds + 1)]
    return epsilon_of([(release, 1) for release in releases if release is not None], 1e-5)


def entries(privacy: Any) -> dict[str, Any]:
    return {entry["to"]: entry for entry in privacy["accounts"]}


def test_with_the_secure_sum_the_own_server_still_learns_sums(tmp_path: Path) -> None:
    raw = {**NOISY, "secure-sum": True, "participants": 3, "num-server-rounds": 2}
    finished, privacy = run(raw, tmp_path)
    assert len(finished.result.history[-1].participants) == 9
    assert privacy["private"] is False
    assert "sees sums of its agents' models" in privacy["reason"]
    assert entries(privacy)["coordinator"]["epsilon"] == "inf"
    assert entries(privacy)["links"]["epsilon"] != "inf"


def test_a_run_says_what_it_claims_towards_whom(tmp_path: Path) -> None:
    finished, privacy = run(NOISY, tmp_path)
    assert privacy["private"] is False
    assert "own server sees its agents' models" in privacy["reason"]
    assert "one process hosted all units" in privacy["reason"]
    found = entries(privacy)
    assert found["coordinator"]["epsilon"] == found["world"]["epsilon"] == "inf"
    bound = links()
    assert bound is not None
    wanted = composed(bound, 6)
    assert found["links"]["epsilon"] == pytest.approx(wanted, rel=1e-12)
    # sum of (2 mu B j / sigma)^2 over the rounds, up to the rounding that is charged as well
    loss = math.sqrt(sum((2 * 0.5 * 0.5 * j / 2.0) ** 2 for j in range(1, 7)))
    assert 1 <= wanted / gaussian_epsilon(loss, 1e-5) < 1.001
    assert "simulation" in " ".join(found["links"]["assumptions"])
    printed = math.sqrt(2) * 0.5 * 0.5 * 7 * 6 / 2.0
    assert found["links"]["as-printed"] == pytest.approx(printed)
    history = finished.result.history
    spent = [done.measures["epsilon-links"] for done in history]
    assert spent == sorted(spent)
    assert spent[-1] == found["links"]["epsilon"]
    assert all(math.isinf(done.epsilon) for done in history)
    page = (finished.folder / "report.html").read_text()
    for name in ("msd-centroid", "msd-units", "disagreement", "epsilon-links"):
        assert f'data-metric="{name}"' in page


def test_noise_that_is_given_bounds_nothing_towards_the_links() -> None:
    """Whoever gave it can predict it, whatever its variance."""
    config = read_config(NOISY)
    facts = Facts(20, 20.0, 2, loss="ridge", regularizer="l2", modulus=0.2)
    ours, given = (
        gfl_account(GFL.from_config(config, noise=source).server, config, 3, [(facts, {})])
        for source in (SystemNoise(), SeededNoise(1))
    )
    assert math.isfinite(entries(ours)["links"]["epsilon"])
    assert entries(given)["links"]["epsilon"] == math.inf
    assert entries(given)["links"]["assumptions"][0].startswith("the noise is supplied")


def test_the_links_cost_what_the_dearest_agent_s_do() -> None:
    """Each agent states its own numbers and settings: one without a bound costs all the claim."""
    config = read_config(NOISY)
    half = GFL.from_config(config).server
    usual = Facts(20, 20.0, 2, loss="ridge", regularizer="l2", modulus=0.2)
    free = replace(usual, num_examples=1, divisor=1.0, regularizer="none", modulus=0.0)
    steep = replace(usual, modulus=25.0)

    def epsilon(*stated: tuple[Facts, dict[str, Any]]) -> float:
        account = gfl_account(half, config, 3, stated if stated else None)
        return float(entries(account)["links"]["epsilon"])

    alone = epsilon((usual, {}))
    assert math.isfinite(alone)
    assert epsilon((free, {}), (usual, {})) == alone
    assert epsilon((free, {}), (steep, {})) == epsilon((steep, {}), (free, {})) == math.inf
    assert epsilon() == math.inf
    longer = {"step-size": 2 * config["step-size"]}
    twice = epsilon((usual, longer))
    assert twice > alone
    assert epsilon((usual, {}), (usual, longer), (usual, {"local-epochs": 5})) == twice
    assert epsilon((usual, {}), (usual, {"step-size": -1.0})) == math.inf


def test_a_repeated_round_is_one_release_more_on_the_links() -> None:
    config = read_config(NOISY)
    facts = Facts(20, 20.0, 2, loss="ridge", regularizer="l2", modulus=0.2)
    half = GFL.from_config(config).server
    once, more = (
        entries(gfl_account(half, config, 6, [(facts, {})], repeated))["links"]["epsilon"]
        for repeated in ((), (3, 3, 6))
    )
    bound = links()
    assert bound is not None
    assert once == pytest.approx(composed(bound, 6), rel=1e-12)
    counts = {1: 1, 2: 1, 3: 3, 4: 1, 5: 1, 6: 2}
    loss = math.sqrt(sum(n * (2 * 0.5 * 0.5 * j / 2.0) ** 2 for j, n in counts.items()))
    assert 1 <= more / gaussian_epsilon(loss, 1e-5) < 1.001


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_models_that_left_in_a_round_that_ends_the_run_are_counted(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units have sent each other their models of round 3 by then."""
    folder = tmp_path / "run"
    _, whole = run({**NOISY, "num-server-rounds": 3}, tmp_path / "whole")
    mix, left = LocalMixer.mix, []

    def until_round_3(self: LocalMixer, round_: int, *rest: Any, **options: Any) -> Any:
        done = mix(self, round_, *rest, **options)
        left.append(round_)
        if round_ == 3:
            raise error
        return done

    monkeypatch.setattr(LocalMixer, "mix", until_round_3)
    with pytest.raises(error):
        run_inline({**NOISY, "num-server-rounds": 5, "output-dir": str(tmp_path)}, "run")
    assert left == [1, 2, 3]
    account = json.loads((folder / "privacy.json").read_text())
    assert entries(account)["links"]["epsilon"] == entries(whole)["links"]["epsilon"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noise-variance": 0.0}, "no noise"),
        ({"noise-seed": 3}, "seeded"),
        ({"clip": 0.0}, "not clipped"),
        ({"closing-rounds": 2}, "closing exchanges"),
        ({"regularizer": "nonconvex"}, "no bound is proven"),
        ({"regularizer-weight": 5.0}, "no bound is proven"),
    ],
)
def test_where_nothing_is_claimed_towards_the_links(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    finished, privacy = run({**NOISY, **change, "num-server-rounds": 2}, tmp_path)
    entry = entries(privacy)["links"]
    assert entry["epsilon"] == "inf"
    assert said in entry["assumptions"][0]
    assert "epsilon-links" not in finished.result.history[-1].measures


def test_what_a_round_releases() -> None:
    plain = links()
    assert plain is not None
    first, fourth = plain.release(1), plain.release(4)
    assert first is not None
    assert fourth is not None
    assert (first.count, first.sensitivity, fourth.sensitivity) == (1, 0.5, 2.0)
    laplace = links(mechanism="laplace")
    assert laplace is not None
    first = laplace.release(1)
    assert first is not None
    assert first.sensitivity == pytest.approx(0.5 * math.sqrt(2))
    assert first.scale == pytest.approx(math.sqrt(2.0))
    star = links(perturbation="random", units=5, graph="star", **{"num-agents": 15})
    assert star is not None
    first = star.release(1)
    assert first is not None
    assert first.count == 4


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_spending_is_the_composition(mechanism: str) -> None:
    bound = links(mechanism=mechanism)
    assert bound is not None
    spending = Spending(bound, 1e-5)
    for rounds in (1, 2, 5, 9, 3):
        assert spending.after(rounds) == pytest.approx(composed(bound, rounds), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_sensitivity_holds_given_the_messages(seed: int) -> None:
    """Two data sets that differ in one record, the same messages: |psi_j - psi_j'| <= 2 mu B j.

    Given the messages M, eq. (47) is w = psi + ((A - I) M)_p for either data set. The replaced
    record is turned around, the worst case for clipped gradients: the bound is attained up to the
    small regulariser.
    """
    rng = np.random.default_rng(seed)
    mu, clip, rounds = 0.5, 0.3, 8
    weights = metropolis(graph_edges("ring", 4), 4)
    features = np.ones((1, 1)) * (1.0 + rng.random())
    agent = Agent(step_size=mu, local_epochs=3, clip=clip)
    bound = Links(agent, Facts(1, 1.0, 1, loss="ridge"), LinkRelease("gaussian", 1.0, 1))
    none = Perturber(Release("none"), SystemNoise(), bound.facts)
    targets = 50.0 * (1 + rng.random())
    one, other = (
        RidgeRegression(features, np.array([sign * targets]), regularizer=L2(0.01))
        for sign in (1, -1)
    )
    w = [np.zeros(1), np.zeros(1)]
    for number in range(1, rounds + 1):
        messages = rng.standard_normal((4, 1))
        psi = [
            agent.local_update(
                {}, {"w": w[i]}, opened(agent, p, none), Streams(0, "0", number)
            ).upload["x"]
            for i, p in enumerate((one, other))
        ]
        gap = float(np.linalg.norm(psi[0] - psi[1]))
        release = bound.release(number)
        assert release is not None
        limit = release.sensitivity
        assert 0.95 * limit <= gap <= limit * (1 + 1e-12)
        shift = (weights - np.eye(4))[2] @ messages
        w = [model + shift for model in psi]


def test_deviations() -> None:
    calls = []

    def optimum() -> Any:
        calls.append(1)
        return np.array([1.0, 0.0])

    measure = GflMeasures(optimum, units=2)
    models = {
        "last": np.array([1.0, 2.0]),
        "unit-0": np.array([0.0, 2.0]),
        "unit-1": np.array([2.0, 2.0]),
    }
    assert measure(1, models) == {"msd-centroid": 4.0, "msd-units": 5.0}
    measure(2, models)
    assert len(calls) == 1
    assert GflMeasures(lambda: None, units=2)(1, models) == {}


def test_a_server_of_one_unit_does_not_pass_its_model_off_as_the_centroid() -> None:
    """Where the run config has a `unit`, the only model here is that unit's own."""
    config = read_config({**RUN, "unit": "1"})
    evaluation = build_evaluation(config)
    best = minimize(evaluation.federation.problems).x
    own = np.array([1.0, -2.0])
    found = evaluation(1, {"last": own, "unit-1": own})
    assert "msd-centroid" not in found
    assert found["msd-units"] == pytest.approx(np.sum((own - best) ** 2), rel=1e-9)
    everybody = {f"unit-{p}": np.array([p, -2.0 * p]) for p in range(3)}
    found = build_evaluation(read_config(RUN))(1, {"last": own, **everybody})
    assert found["msd-centroid"] == pytest.approx(np.sum((own - best) ** 2), rel=1e-9)
