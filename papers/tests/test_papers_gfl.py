"""Graph federated learning through the real Strategy, ClientApp and messages."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.core import RunError
from privet.kernel import stream
from privet.problems import L2, RidgeRegression
from privet.sim.engine import InlineGrid
from privet.strategies import GFL, PrivetResult, Schedule
from privet.strategies.gfl.graph import graph_edges, metropolis
from privet.strategies.gfl.mixing import LocalMixer
from studies.replays import replay_file
from support.federations import FaultyGrid, app_of, lose_reply, zeros
from support.paths import golden

Array = NDArray[Any]
UNITS, EACH, DIM = 3, 3, 2
AGENTS = UNITS * EACH
RNG = np.random.default_rng(4)
DATA = [(RNG.standard_normal((8, DIM)), RNG.standard_normal(8)) for _ in range(AGENTS)]
PROBLEMS = [RidgeRegression(u, d, regularizer=L2(0.2)) for u, d in DATA]
SETTINGS: dict[str, Any] = {
    "units": UNITS,
    "graph": "path",
    "step_size": 0.3,
    "local_epochs": 2,
    "batch": "sample",
    "batch_size": 3,
    "participants": 2,
    "noise_variance": 0.1,
    "noise_seed": 9,
    "mechanism": "laplace",
    "seed": 5,
    "num_agents": AGENTS,
}


def app() -> Any:
    return app_of(PROBLEMS, "gfl")


def train(
    rounds: int,
    grid: InlineGrid | None = None,
    start: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[PrivetResult, GFL]:
    strategy = GFL(**{**SETTINGS, **options})
    grid = grid or InlineGrid(app(), AGENTS)
    return strategy.start(grid, zeros(DIM), num_rounds=rounds, **(start or {})), strategy


def by_hand(rounds: int, kind: str) -> tuple[Array, list[tuple[str, ...]]]:
    """Eqs. (6)-(8) and (47) once more, from the named streams alone."""
    weights = metropolis(graph_edges("path", UNITS), UNITS)
    scale = np.sqrt(0.1 / 2)
    w = np.zeros((UNITS, DIM))
    took_part = []
    for number in range(1, rounds + 1):
        psi = np.zeros_like(w)
        names: list[int] = []
        for p in range(UNITS):
            drawn = stream(5, "participation", str(p), number).choice(EACH, 2, replace=False)
            for agent in sorted(EACH * p + drawn):
                names.append(int(agent))
                u, d = DATA[agent]
                x = w[p]
                for rows in stream(5, "batches", str(agent), number).integers(8, size=(2, 3)):
                    slope = 2 * u[rows].T @ (u[rows] @ x - d[rows]) / 3 + 0.2 * x
                    x = x - 0.15 * slope
                psi[p] += x / 2
        g = np.zeros((UNITS, UNITS, DIM))  # g[p, m] on the message from m to p
        for m in range(UNITS):
            rng = stream(9, "gfl noise", str(m), number)
            others = [p for p in range(UNITS) if p != m and weights[p, m] > 0]
            if kind == "homomorphic":
                own = rng.laplace(0, scale, DIM)
                g[others, m] = own
                g[m, m] = -(1 - weights[m, m]) / weights[m, m] * own
            elif kind == "random":
                g[others, m] = rng.laplace(0, scale, (len(others), DIM))
        w = np.einsum("pm,pmd->pd", weights, psi[None] + g)
        took_part.append(tuple(map(str, names)))
    return w, took_part


@pytest.mark.parametrize("kind", ["none", "random", "homomorphic"])
def test_a_run_is_the_papers_recursion(kind: str) -> None:
    result, strategy = train(5, perturbation=kind)
    wanted, took_part = by_hand(5, kind)
    assert strategy.session is not None
    np.testing.assert_allclose(strategy.session.state.models, wanted, rtol=0, atol=1e-13)
    assert [done.participants for done in result.history] == took_part
    np.testing.assert_allclose(result.models["unit-2"]["x"].numpy(), wanted[2], rtol=0, atol=1e-13)
    np.testing.assert_allclose(result.arrays["x"].numpy(), wanted.mean(axis=0), atol=1e-13)
    noise = [done.measures["centroid-noise"] for done in result.history]
    assert (min(noise) > 1e-3) if kind == "random" else (max(noise) < 1e-15)
    gaps = wanted - wanted.mean(axis=0)
    assert result.history[-1].measures["disagreement"] == pytest.approx(np.sum(gaps**2) / UNITS)


def test_units_come_from_the_node_config() -> None:
    units = "120201012"
    nodes = [
        {"partition-id": i, "unit": unit if i % 2 else int(unit)} for i, unit in enumerate(units)
    ]
    _, strategy = train(1, InlineGrid(app(), nodes))
    assert strategy.units_of() == list(units)
    nodes[3]["unit"] = "7"
    result, strategy = train(1, InlineGrid(app(), nodes))
    assert strategy.units_of()[3] == "none"
    assert "3" not in result.history[0].participants


def test_a_resumed_run_with_closing_exchanges_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, straight = train(6, closing_rounds=2)
    path = tmp_path / "checkpoint.npz"
    train(3, start={"checkpoint": path}, closing_rounds=2)
    again, resumed = train(6, start={"resume": path}, closing_rounds=2)
    assert straight.session is not None
    assert resumed.session is not None
    for name in ("models", "psi", "members"):
        one, other = (getattr(s.session.state, name) for s in (straight, resumed))
        assert np.array_equal(one, other)
    assert [d.participants for d in again.history] == [d.participants for d in whole.history]
    assert [d.measures for d in again.history] == [d.measures for d in whole.history]


def test_a_lost_reply_leaves_its_unit_to_the_others() -> None:
    _, took_part = by_hand(1, "none")
    lost = int(took_part[0][2])  # of unit 1
    grid = FaultyGrid(app(), AGENTS, {(lost, 1): lose_reply})
    patience: dict[str, Any] = {"perturbation": "none", "round_timeout": 0.5}
    result, _strategy = train(2, grid, **patience)
    assert list(result.history[0].failures) == [str(lost)]
    wanted, _ = train(
        1,
        perturbation="none",
        participants=0,
        participation=Schedule((tuple(n for n in took_part[0] if n != str(lost)),)),
    )
    again = train(1, FaultyGrid(app(), AGENTS, {(lost, 1): lose_reply}), **patience)[0]
    for name in ("unit-0", "unit-1", "unit-2"):
        one, other = (r.models[name]["x"].numpy() for r in (again, wanted))
        assert np.array_equal(one, other)
    assert len(result.history[1].participants) == 2 * UNITS


def test_a_unit_that_nobody_reports_to_is_named() -> None:
    schedule = Schedule((("0", "6"),))
    result, strategy = train(2, perturbation="none", participants=0, participation=schedule)
    for done in result.history:
        assert "unit 1 had no upload: it continues with its own model" in done.notes
    assert strategy.session is not None
    weights = metropolis(graph_edges("path", UNITS), UNITS)
    state = strategy.session.state
    before, _ = train(1, perturbation="none", participants=0, participation=schedule)
    assert np.array_equal(state.psi[1], before.models["unit-1"]["x"].numpy())
    np.testing.assert_allclose(state.models, weights @ state.psi, atol=1e-15)


def test_a_cut_link_leaves_no_noise_in_the_centroid() -> None:
    weights = metropolis(graph_edges("complete", UNITS), UNITS)
    mixer = LocalMixer(weights, {2: [(1, 0)], 3: [(0, 1), (0, 2)]})
    result, _ = train(4, mixer=mixer)
    assert max(done.measures["centroid-noise"] for done in result.history) < 1e-15
    assert [len(done.notes) for done in result.history] == [0, 1, 2, 0]
    assert result.history[1].notes == ("edge 0-1 failed: both units dropped it",)


def test_closing_exchanges_recover_the_centroid() -> None:
    _, plain = train(6)
    closed, strategy = train(6, closing_rounds=40)
    assert plain.session is not None
    assert strategy.session is not None
    center = plain.session.state.models.mean(axis=0)
    assert np.linalg.norm(plain.session.state.models - center) > 0.05
    for unit in range(UNITS):
        model = closed.models[f"unit-{unit}"]["x"].numpy()
        np.testing.assert_allclose(model, center, rtol=0, atol=1e-6)


def test_divergence_ends_the_run_in_one_line() -> None:
    with pytest.raises(RunError, match=r"too large|not finite"):
        train(400, perturbation="none", step_size=1e6, local_epochs=1)


# ------------------------------------------------------------------ worked instances


@pytest.mark.parametrize("name", ["gfl-none.json", "gfl-homomorphic.json"])
def test_worked_instances(name: str) -> None:
    for path in golden(name):
        assert replay_file(path).max_abs_error <= 1e-9


def instance(kind: str, *, active: list[list[int]] | None = None) -> dict[str, Any]:
    """An instance of two units of two agents on given batches, computed here from the paper."""
    rng = np.random.default_rng(12)
    units, each, rounds, dim = 2, 2, 3, 2
    features = rng.standard_normal((units, each, 4, dim))
    targets = rng.standard_normal((units, each, 4))
    epochs = [[1, 2], [2, 1]]
    weights = np.array([[0.6, 0.4], [0.4, 0.6]])
    shared = rng.standard_normal((rounds, units, dim))
    links = rng.standard_normal((rounds, units, units, dim))
    batches = [
        [[rng.integers(4, size=(epochs[p][k], 3)).tolist() for k in range(each)] for p in (0, 1)]
        for _ in range(rounds)
    ]
    w = np.tile([0.5, -0.5], (units, 1))
    found = []
    for t in range(rounds):
        psi = w.copy()
        for p in range(units):
            models = []
            for k in range(each):
                if active is not None and each * p + k not in active[t]:
                    continue
                x = w[p]
                for rows in batches[t][p][k]:
                    u, d = features[p, k][rows], targets[p, k][rows]
                    x = x - 0.2 / epochs[p][k] * (2 * u.T @ (u @ x - d) / 3 + 0.2 * x)
                models.append(x)
            if models:
                psi[p] = np.mean(models, axis=0)
        w = weights @ psi
        if kind == "random":
            w = w + np.stack([weights[p, 1 - p] * links[t, p, 1 - p] for p in (0, 1)])
        elif kind == "homomorphic":
            w = w + (weights - np.eye(units)) @ shared[t]
        found.append({"psi": psi.tolist(), "w": w.tolist(), "centroid": w.mean(axis=0).tolist()})
    return {
        "format": 1,
        "algorithm": "gfl",
        "compare": ["psi", "w", "centroid"],
        "problem": {
            "kind": "ridge",
            "features": features.tolist(),
            "targets": targets.tolist(),
            "rho": 0.1,
        },
        "config": {
            "units": units,
            "agents-per-unit": each,
            "step-size": 0.2,
            "noise-variance": 1.0,
            "perturbation": kind,
            "combination-matrix": weights.tolist(),
            "local-epochs": epochs,
        },
        "init": {"w": [0.5, -0.5]},
        "participation": active,
        "noise": {"server": shared.tolist(), "link": links.tolist()},
        "batches": batches,
        "rounds": found,
    }


@pytest.mark.parametrize("kind", ["none", "random", "homomorphic"])
@pytest.mark.parametrize("active", [None, [[0, 3], [1], [0, 1, 2, 3]]])
def test_other_instances(kind: str, active: Any, tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(instance(kind, active=active)))
    found = replay_file(path)
    assert (found.algorithm, found.rounds) == ("gfl", 3)
    assert found.max_abs_error <= 1e-12


def shift(name: str) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        spec["rounds"][2][name][0][1] += 1e-6

    return change


def other_noise(spec: dict[str, Any]) -> None:
    spec["noise"]["link"][1][0][1][0] += 1e-6


def other_batch(spec: dict[str, Any]) -> None:
    batch = spec["batches"][0][1][0][1]
    batch[0] = (batch[0] + 1) % 4


@pytest.mark.parametrize("change", [shift("psi"), shift("w"), other_noise, other_batch])
def test_a_replay_notices_differences(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    spec = copy.deepcopy(instance("random"))
    change(spec)
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(spec))
    assert replay_file(path).max_abs_error > 1e-8
