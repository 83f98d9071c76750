"""DP-IADMM on the in-process engine: worked instances, faults, recovery, resume, accounts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.kernel import SeededNoise, gaussian_scale
from privet.problems import L2, MultinomialLogistic
from privet.sim.engine import InlineGrid
from privet.sim.inline import run_inline
from privet.strategies import DPIADMM, PrivetResult, Schedule
from studies import Case, Options, dp_iadmm, execute
from studies.catalogue import chosen
from studies.replays import load_instance, replay_file
from studies.replays.instance import build_problems
from studies.runs import Runs
from support.federations import FaultyGrid, app_of, lose_state
from support.paths import SHARED

GOLDEN = sorted((SHARED / "golden").glob("dp-iadmm-*.json"))
needs_golden = pytest.mark.skipif(not GOLDEN, reason="no worked instances beside the repository")
CLASSES, COLUMNS, AGENTS, ROUNDS = 3, 4, 3, 6


def softmax_agents(count: int = AGENTS, seed: int = 0) -> list[MultinomialLogistic]:
    """Agents of 8 examples whose loss is (2c)."""
    rng = np.random.default_rng(seed)
    return [
        MultinomialLogistic(
            rng.standard_normal((8, COLUMNS)),
            rng.integers(0, CLASSES, 8),
            CLASSES,
            regularizer=L2(0.02),
            divisor=8.0 * count,
        )
        for _ in range(count)
    ]


def train(
    problems: list[Any],
    rounds: int = ROUNDS,
    *,
    grid: InlineGrid | None = None,
    start: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[PrivetResult, DPIADMM]:
    """Run with seeded noise, so that two runs can be compared."""
    grid = grid or InlineGrid(app_of(problems, "dp-iadmm"), len(problems))
    settings: dict[str, Any] = {"epsilon": 5.0, "clip": 0.5, "noise_seed": 3, "rho_period": 2}
    strategy = DPIADMM(num_agents=len(problems), **{**settings, **options})
    zeros = ArrayRecord({"x": Array(np.zeros((COLUMNS, CLASSES)))})
    return strategy.start(grid, zeros, num_rounds=rounds, **(start or {})), strategy


def last(result: PrivetResult) -> bytes:
    return result.arrays["x"].numpy().tobytes()


# ------------------------------------------------------------------ worked instances


@needs_golden
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_worked_instances(path: Path) -> None:
    found = replay_file(path)
    assert found.rounds == len(load_instance(path).rounds)
    assert found.max_abs_error <= 1e-9


@needs_golden
def test_a_changed_instance_is_noticed(tmp_path: Path) -> None:
    raw = json.loads(GOLDEN[0].read_text())
    raw["rounds"][2]["lam"][1][0][0] += 1e-6
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(raw))
    assert replay_file(path).max_abs_error == pytest.approx(1e-6, rel=1e-3)


@needs_golden
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_papers_sensitivity_of_the_instances(path: Path) -> None:
    """delta_bar[0][p] of each round, at the inner iterate that the round starts from."""
    instance = load_instance(path)
    total = sum(len(labels) for labels in instance.problem["labels"])
    problems: list[Any] = build_problems(instance.problem, divisor=total)
    inner = np.asarray(instance.init["z"], float)
    for done in instance.rounds:
        for p, problem in enumerate(problems):
            _, found = problem.gradient_and_largest(inner[p].reshape(-1), "l1")
            assert found == pytest.approx(done["delta_bar"][0][p], abs=1e-12)
        inner = np.asarray(done["z_inner_last"], float)


def plain(
    features: list[NDArray[Any]],
    labels: list[NDArray[Any]],
    active: list[list[int]],
    noise: NDArray[Any],
    updates: int,
    beta: float,
) -> list[dict[str, NDArray[Any]]]:
    """Algorithm 1 from the paper's formulas, absent agents as they were."""
    agents, total = len(features), sum(len(own) for own in labels)
    z = np.zeros((agents, features[0].shape[1], CLASSES))
    lam, inner = np.zeros_like(z), np.zeros_like(z)
    rounds = []
    for t, present in enumerate(active, start=1):
        rho, eta = min(1e9, 2 * 1.2 ** (t // 2) + 5 / 0.8), 1 / math.sqrt(t)
        w = np.mean(z - lam / rho, axis=0)
        for p in present:
            steps = []
            for e in range(updates):
                scores = np.exp(features[p] @ inner[p])
                residual = scores / scores.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels[p]]
                slope = features[p].T @ residual / total + 2 * beta / agents * inner[p]
                top = rho * w + lam[p] - noise[t - 1, e, p] - slope + inner[p] / eta
                inner[p] = np.clip(top / (rho + 1 / eta), -0.2, 0.2)
                steps.append(inner[p].copy())
            z[p] = np.mean(steps, axis=0)
            lam[p] = lam[p] + rho * (w - z[p])
        rounds.append(
            {
                "rho": np.array(rho),
                "eta": np.array(eta),
                "w": w,
                "z": z.copy(),
                "lam": lam.copy(),
                "z_inner_last": inner.copy(),
            }
        )
    return rounds


def test_an_instance_of_our_own_with_absent_agents(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    features = [rng.standard_normal((n, COLUMNS)) for n in (3, 5, 4)]
    labels = [rng.integers(0, CLASSES, len(rows)) for rows in features]
    active = [[0, 1, 2], [0, 2], [1], [0, 1, 2]]
    noise = 0.1 * rng.standard_normal((4, 2, 3, COLUMNS, CLASSES))
    rounds = plain(features, labels, active, noise, 2, 0.03)
    path = tmp_path / "own.json"
    path.write_text(
        json.dumps(
            {
                "format": 1,
                "algorithm": "dp-iadmm",
                "compare": ["rho", "eta", "w", "z", "lam", "z_inner_last"],
                "problem": {
                    "kind": "multinomial",
                    "features": [rows.tolist() for rows in features],
                    "labels": [own.tolist() for own in labels],
                    "classes": CLASSES,
                },
                "config": {
                    "local-updates": 2,
                    "eta-rule": "nonsmooth",
                    "rho-period": 2,
                    "epsilon": 0.8,
                    "beta": 0.03,
                    "set": "box",
                    "set-radius": 0.2,
                },
                "init": {
                    "z": np.zeros((3, COLUMNS, CLASSES)).tolist(),
                    "lam": np.zeros((3, COLUMNS, CLASSES)).tolist(),
                },
                "participation": active,
                "noise": noise.tolist(),
                "rounds": [{k: v.tolist() for k, v in done.items()} for done in rounds],
            }
        )
    )
    assert replay_file(path).max_abs_error <= 1e-12


# ------------------------------------------------------------------ faults and recovery


def test_restarted_node_with_several_inner_steps_restarts_them_at_z_p() -> None:
    problems = softmax_agents()
    grid = FaultyGrid(app_of(problems, "dp-iadmm"), AGENTS, {(1, 4): lose_state})
    restarted, strategy = train(problems, grid=grid, local_updates=3)
    note = "agent 1 was sent its state of round 3; its inner iterate restarts at z_p"
    assert restarted.history[3].notes == (note,)
    assert last(restarted) != last(train(problems, local_updates=3)[0])
    assert strategy.session is not None
    sent = strategy.half.recovery_of(strategy.session.state, 1, np.empty(0))
    assert sent is not None
    assert sent["z"].tobytes() == strategy.session.state.z[1].tobytes()


def test_agents_that_are_not_drawn_are_named() -> None:
    problems = softmax_agents(12)
    schedule = Schedule((("0",), tuple(map(str, range(12)))))
    result, _ = train(problems, 2, participation=schedule)
    names = ", ".join(map(str, range(1, 11)))
    note = f"absent, counted with their old z_p and lam_p: {names} and 1 more"
    assert result.history[0].notes[-1] == note
    assert not any("absent" in text for text in result.history[1].notes)


def test_dual_is_never_sent() -> None:
    problems = softmax_agents()
    result, _ = train(problems)
    one = 8 * COLUMNS * CLASSES
    # one vector up and one down an agent, and what describes them
    assert result.history[-1].bytes_up < AGENTS * (one + 600)
    assert result.history[-1].bytes_down < AGENTS * (one + 200)


# ------------------------------------------------------------------ data


def test_agent_that_lacks_a_class_takes_part() -> None:
    problems = softmax_agents()
    rows = np.random.default_rng(1).standard_normal((8, COLUMNS))
    problems[1] = MultinomialLogistic(rows, [0, 1] * 4, CLASSES, divisor=24.0)
    result, _ = train(problems)
    assert result.history[-1].participants == ("0", "1", "2")
    assert np.isfinite(result.arrays["x"].numpy()).all()


# ------------------------------------------------------------------ the account of a run


def account_of(folder: Path, **settings: Any) -> dict[str, Any]:
    raw = {
        "algorithm": "dp-iadmm",
        "num-server-rounds": 5,
        "num-agents": 4,
        "output-dir": str(folder),
        **settings,
    }
    run_inline(raw, "run")
    found: dict[str, Any] = json.loads((folder / "run" / "privacy.json").read_text())
    return found


def test_epsilon_per_release_composes(tmp_path: Path) -> None:
    found = account_of(tmp_path, clip=1.0, epsilon=0.01, mechanism="laplace", delta=1e-9)
    (entry, _) = found["accounts"]
    # Five pure 0.01 releases, each on a grid of 1/4096 of its noise, cost at most their sum, and at
    # so small a delta hardly less.
    assert 0.045 < entry["epsilon"] <= 0.05 * (1 + 2**-12)
    assert entry["as-printed"] == pytest.approx(0.01)


@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_seeded_output_noise_is_added_where_nothing_is_proven(scale: float) -> None:
    """Three inner steps without row-norm have no certificate; the draw is there all the same.

    From epsilon 5 it is 2C/I sigma(5, delta), else the scale that is given; times 1/(rho + 1/eta).
    2C/I comes with a margin of 2^-20 for the rounding of the sum, and 2^-12 for that to the grid.
    """
    problems, rho = softmax_agents(), 2.0
    options: dict[str, Any] = {"local_updates": 3, "rho": rho, "noise_scale": scale}
    (_, noisy), (_, plain) = (
        train(problems, 1, perturbation=kind, **options) for kind in ("output", "none")
    )
    assert noisy.session is not None
    assert plain.session is not None
    assert math.isinf(noisy.session.history[-1].epsilon)
    drawn = scale or (1 + 2.0**-12) * 2 * 0.5 / (8 * AGENTS) * gaussian_scale(5.0, 1e-5)
    for number in range(AGENTS):
        draw = SeededNoise(3, str(number), 1).gaussian((CLASSES * COLUMNS,), drawn)
        moved = noisy.session.state.z[number] - plain.session.state.z[number]
        np.testing.assert_allclose(moved, draw / (rho + 1.0), rtol=2.0**-19)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "without accounted noise"),
        ({"noise-scale": 0.1}, "a clip without noise, proves nothing"),
        ({"clip": 1.0, "epsilon": 1.0, "perturbation": "none"}, "proves nothing"),
        ({"clip": 1.0, "epsilon": 1.0, "noise-seed": 1}, "seeded"),
        (
            {"epsilon": 1.0, "mechanism": "laplace", "sensitivity": "paper"},
            "computed from the data",
        ),
    ],
)
def test_runs_that_are_not_private_say_so(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    found = account_of(tmp_path, **settings)
    assert found["private"] is False
    assert reason in found["reason"]
    assert found["accounts"] == []


def test_without_noise_the_optimum_is_reached() -> None:
    problems = softmax_agents()
    grid = InlineGrid(app_of(problems, "dp-iadmm"), AGENTS)
    strategy = DPIADMM(num_agents=AGENTS, eta_rule="smooth", rho=0.2, local_updates=2)
    zeros = ArrayRecord({"x": Array(np.zeros((COLUMNS, CLASSES)))})
    result = strategy.start(grid, zeros, num_rounds=2500, tolerance=1e-20, log_rounds=False)
    model = result.arrays["x"].numpy().reshape(-1)
    slope = sum(problem.gradient(model) for problem in problems)
    assert np.linalg.norm(slope) < 1e-9
    assert result.history[-1].residual <= 1e-20


def test_a_best_error_is_the_least_of_each_ten_runs_as_in_print() -> None:
    errors = [float(one) for one in range(25, 0, -1)]
    assert dp_iadmm.least_of_ten(errors) == [16.0, 6.0], "the last five are no ten"
    assert dp_iadmm.least_of_ten(errors[:4]) == [22.0]


# ------------------------------------------------------------------ the night's runs


def test_a_night_has_the_printed_horizon_and_all_digits_where_they_are(tmp_path: Path) -> None:
    (study,) = chosen(["dp-iadmm/figure-1"])
    few = study.cases(Options(data_path=tmp_path, night=True))
    (tmp_path / "mnist.npz").touch()
    many = study.cases(Options(data_path=tmp_path, night=True))
    assert {case.rounds for case in (*few, *many)} == {20_000}
    assert len(few) == len(study.cases(Options(data_path=tmp_path))), "no more seeds"
    (ten,), (sixty,) = (
        [case for case in own if case.label == "ObjP, epsilon 0.05" and case.seed == 0]
        for own in (few, many)
    )
    assert (ten.settings["epsilon"], sixty.settings["epsilon"]) == (pytest.approx(0.3), 0.05)
    assert "file" not in ten.workload
    assert sixty.workload["file"] == "mnist.npz"
    result = {"value": 9.0, "rounds": [200, 20_000], "examples": 60_000}
    assert dp_iadmm._open(dp_iadmm.MNIST_HALF, {"a": [result]}) == "", "as printed"
    short = {**result, "rounds": [100], "examples": 10_000}
    assert dp_iadmm._open(dp_iadmm.MNIST_HALF, {"a": [short]}) == (
        "10,000 digits in place of 60,000, and a shorter horizon"
    )


def test_an_estimate_is_rounds_times_seconds_of_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second to begin and half a second a round: 51 s of 100 rounds, three cases; one is kept."""
    monkeypatch.setattr(execute, "timed", lambda case: ({}, 1.0 + 0.5 * case.rounds))
    cases = [Case("a", seed, rounds=100, measure="x") for seed in range(4)]
    Runs(tmp_path / execute.CASES).keep(cases[0].key, {"key": cases[0].key, "result": {"value": 1}})
    ((label, count, seconds),) = execute.foreseen(cases, tmp_path)
    assert (label, count) == ("a", 3)
    assert seconds == pytest.approx(3 * 51.0)
