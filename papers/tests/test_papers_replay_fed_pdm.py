"""Worked instances of FedPDM: those beside the repository, and others computed here in plain
Python that exercise the stopping rule, ties, other penalties and given noise."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.replays import replay_file
from support.paths import golden


def test_worked_instances_are_reproduced() -> None:
    for path in golden("fed-pdm-*.json"):
        found = replay_file(path)
        assert found.rounds == 5
        assert found.max_abs_error <= 1e-9


def largest(vector: list[float], k: int) -> list[int]:
    """Return the k largest in descending order, ties to the smaller index."""
    return sorted(range(len(vector)), key=lambda j: (-abs(vector[j]), j))[:k]


def gradient(kind: str, x: list[float], features: Any, labels: Any, beta: float) -> list[float]:
    """Return the gradient of the one-class loss (41) or of softmax regression, entry by entry."""
    columns = len(features[0])
    classes = len(x) // columns
    total = [2 * beta * value / (1 + value * value) ** 2 for value in x]
    for row, label in zip(features, labels, strict=True):
        if kind == "one-class-logistic":
            margin = sum(x[label * columns + j] * row[j] for j in range(columns))
            for j in range(columns):
                total[label * columns + j] -= row[j] / (1 + math.exp(margin)) / len(labels)
            continue
        scores = [sum(x[j * classes + c] * row[j] for j in range(columns)) for c in range(classes)]
        norm = sum(math.exp(score) for score in scores)
        for c in range(classes):
            share = math.exp(scores[c]) / norm - (c == label)
            for j in range(columns):
                total[j * classes + c] += share * row[j] / len(labels)
    return total


H_KEYS: dict[str, dict[str, float]] = {
    "l1": {"h-weight": 0.05},
    "box": {"h-radius": 0.3},
    "zero": {},
}


def prox(h: str, value: float, weight: float, step: float) -> float:
    if h == "l1":
        return math.copysign(max(abs(value) - weight * step, 0.0), value)
    if h == "box":
        return min(max(value, -0.3), 0.3)
    return value


def solve(instance: dict[str, Any]) -> list[dict[str, Any]]:
    """Run BSDP-FedPDM with loops only."""
    config, problem = instance["config"], instance["problem"]
    agents, dim = len(problem["features"]), len(instance["init"]["x0"])
    rho, x0 = config["rho"], list(instance["init"]["x0"])
    lam = [[0.0] * dim for _ in range(agents)]
    rounds = []
    for t in range(ROUNDS):
        eta = config["step-size-base"]
        eta /= 1.0 if config["step-size-rule"] == "constant" else math.sqrt(1 + t)
        center = [0.0] * dim
        for j in largest(x0, config["downlink-k"]):
            center[j] = x0[j]
        sums, counts = [0.0] * dim, [0] * dim
        active = (
            range(agents) if instance["participation"] is None else instance["participation"][t]
        )
        for i in active:
            x = list(center)
            for _ in range(config["max-local-steps"]):
                g = gradient(
                    problem["kind"],
                    x,
                    problem["features"][i],
                    problem["labels"][i],
                    problem["beta"],
                )
                v = [g[j] - lam[i][j] + rho * (x[j] - center[j]) for j in range(dim)]
                x = [x[j] - eta * v[j] for j in range(dim)]
                if sum(value * value for value in v) <= config["nu"]:
                    break
            lam[i] = [lam[i][j] + rho * (center[j] - x[j]) for j in range(dim)]
            y = [x[j] - lam[i][j] / rho for j in range(dim)]
            for r, j in enumerate(largest(y, config["uplink-k"])):
                noise = 0.0 if instance["noise"] is None else instance["noise"][t][i][r]
                sums[j] += y[j] + noise
                counts[j] += 1
        x0 = [
            prox(config["h"], sums[j] / counts[j], config.get("h-weight", 0.0), 1 / rho)
            if counts[j]
            else 0.0
            for j in range(dim)
        ]
        rounds.append({"x0": x0, "lam": [list(row) for row in lam]})
    return rounds


ROUNDS = 6


def make(kind: str, h: str, rule: str, uplink: int, noisy: bool, partial: bool) -> dict[str, Any]:
    rng = np.random.default_rng(len(kind) + uplink)
    columns, classes, agents = 4, 3, 5
    features = [rng.standard_normal((n, columns)).round(3).tolist() for n in (3, 5, 4, 2, 6)]
    labels = [rng.integers(0, classes, len(rows)).tolist() for rows in features]
    x0 = [0.5, -0.5, 0.5, 0.0, 0.0, 0.0, 0.25, -0.25, 0.25, 0.5, 0.0, 0.1]  # ties at the start
    instance: dict[str, Any] = {
        "format": 1,
        "algorithm": "fed-pdm",
        "compare": ["x0", "lam"],
        "problem": {
            "kind": kind,
            "features": features,
            "labels": labels,
            "classes": classes,
            "beta": 0.1,
        },
        "config": {
            "rho": 2.5,
            "step-size-base": 0.2,
            "step-size-rule": rule,
            "h": h,
            **H_KEYS[h],
            "sparsifier": "top-k",
            "uplink-k": uplink,
            "downlink-k": 5,
            "max-local-steps": 6,
            "nu": 0.02,
            "batch": "full",
        },
        "init": {"x0": x0},
        "participation": [[0, 1, 4], [2], [1, 2, 3, 4], [0], [3, 4], [0, 2]] if partial else None,
        "noise": rng.normal(0, 0.1, (ROUNDS, agents, uplink)).round(4).tolist() if noisy else None,
    }
    instance["rounds"] = solve(instance)
    return instance


@pytest.mark.parametrize(
    ("kind", "h", "rule", "uplink", "noisy", "partial"),
    [
        ("one-class-logistic", "l1", "base/sqrt(1+t), t from 0", 5, False, True),
        ("one-class-logistic", "zero", "constant", 12, True, False),
        ("multinomial", "box", "inverse-sqrt", 7, True, True),
        ("multinomial", "l1", "constant", 1, False, False),
    ],
)
def test_instances_computed_with_loops_are_reproduced(
    kind: str, h: str, rule: str, uplink: int, noisy: bool, partial: bool, tmp_path: Path
) -> None:
    instance = make(kind, h, rule, uplink, noisy, partial)
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(instance))
    assert replay_file(path).max_abs_error <= 1e-9
    # A replay that cannot fail shows nothing: a wrong number is found.
    instance["rounds"][3]["x0"][0] += 1e-6
    path.write_text(json.dumps(instance))
    assert replay_file(path).max_abs_error == pytest.approx(1e-6, rel=1e-3)
