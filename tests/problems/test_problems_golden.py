"""Worked instances of the four algorithms, iterated here with nothing but this package."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from privet.problems import (
    BinaryLogistic,
    MultinomialLogistic,
    OneClassLogistic,
    RidgeRegression,
    make_h,
    make_regularizer,
    make_set,
    minimize,
    soft_threshold,
)
from support.paths import golden

CLOSE = {"rtol": 0.0, "atol": 1e-12}


def load(name: str) -> dict[str, Any]:
    (path,) = golden(name)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def binary_problems(spec):
    regularizer = make_regularizer(spec["regularizer"], spec["weight"])
    return [
        BinaryLogistic(a, b, regularizer=regularizer)
        for a, b in zip(spec["features"], spec["labels"], strict=True)
    ]


@pytest.mark.parametrize(
    "name", ["l2-gd-full-l1", "l2-gd-full-zero", "l2-gd-partial-zero", "nc-gd-full-zero"]
)
def test_fed_plt(name):
    data = load(f"fed-plt-{name}.json")
    config, problems = data["config"], binary_problems(data["problem"])
    h = make_h(config["h"], **{"h-weight": config["h-weight"]})
    rho, gamma = config["rho"], config["step-size"]
    x, z = np.array(data["init"]["x"]), np.array(data["init"]["z"])
    for active, known in zip(data["participation"], data["rounds"], strict=True):
        y = h.prox(z.mean(axis=0), rho / len(problems))
        for i in active:
            v = 2.0 * y - z[i]
            for _ in range(config["local-epochs"]):
                x[i] = x[i] - gamma * (problems[i].gradient(x[i]) + (x[i] - v) / rho)
            z[i] += 2.0 * (x[i] - y)
        np.testing.assert_allclose(y, known["y"], **CLOSE)
        np.testing.assert_allclose(x, known["x"], **CLOSE)
        np.testing.assert_allclose(z, known["z"], **CLOSE)


def test_fed_plt_moduli():
    data = load("fed-plt-l2-gd-full-zero.json")
    config, problems = data["config"], binary_problems(data["problem"])
    moduli = [problem.moduli for problem in problems]
    assert all(m.strong_convexity == config["strong-convexity"] for m in moduli)
    assert max(m.smoothness for m in moduli) == pytest.approx(config["smoothness"], rel=1e-12)


@pytest.mark.parametrize(
    "name", ["E1-none-nonsmooth", "E1-noise-nonsmooth-box0p15", "E3-none-strong-a0p2"]
)
def test_dp_iadmm(name):
    data = load(f"dp-iadmm-{name}.json")
    config, spec = data["config"], data["problem"]
    agents, total = len(spec["labels"]), sum(map(len, spec["labels"]))
    problems = [
        MultinomialLogistic(
            a,
            b,
            spec["classes"],
            regularizer=make_regularizer("l2", 2.0 * config["beta"] / agents),
            divisor=total,
        )
        for a, b in zip(spec["features"], spec["labels"], strict=True)
    ]
    w_set = make_set(config["set"], config["set-radius"])
    z, lam = (np.array(data["init"][key]).reshape(agents, -1) for key in ("z", "lam"))
    inner = z.copy()
    for t, known in enumerate(data["rounds"]):
        rho, eta = known["rho"], known["eta"]
        w = np.mean(z - lam / rho, axis=0)
        path = []
        for e in range(config["local-updates"]):
            for p, problem in enumerate(problems):
                xi = np.array(data["noise"][t][e][p]).ravel() if data["noise"] else 0.0
                slope = problem.gradient(inner[p])
                ahead = rho * w + lam[p] - xi - slope + inner[p] / eta
                inner[p] = w_set.project(ahead / (rho + 1.0 / eta))
            path.append(inner.copy())
        z = np.mean(path, axis=0)
        lam = lam + rho * (w - z)
        for key, ours in (("w", w), ("z", z), ("lam", lam), ("z_inner_last", inner)):
            np.testing.assert_allclose(ours.ravel(), np.ravel(known[key]), **CLOSE)


def test_fed_pdm():
    data = load("fed-pdm-dense-full-part-none.json")
    config, spec = data["config"], data["problem"]
    regularizer = make_regularizer("nonconvex", spec["beta"])
    problems = [
        OneClassLogistic(a, b, spec["classes"], regularizer=regularizer)
        for a, b in zip(spec["features"], spec["labels"], strict=True)
    ]
    rho, x0 = config["rho"], np.array(data["init"]["x0"])
    lam = np.zeros((len(problems), x0.size))
    for known in data["rounds"]:
        uploads = []
        for i, problem in enumerate(problems):
            x = x0.copy()
            for _ in range(config["max-local-steps"]):
                v = problem.gradient(x) - lam[i] + rho * (x - x0)
                x = x - known["eta"] * v
                if v @ v <= config["nu"]:
                    break
            lam[i] += rho * (x0 - x)
            uploads.append(x - lam[i] / rho)
        x0 = soft_threshold(np.mean(uploads, axis=0), config["h-weight"] / rho)
        np.testing.assert_allclose(x0, known["x0"], **CLOSE)
        np.testing.assert_allclose(lam, known["lam"], **CLOSE)


def test_gfl_mini_batches_and_optimum():
    data = load("gfl-none.json")
    config, spec = data["config"], data["problem"]
    regularizer = make_regularizer("l2", 2.0 * spec["rho"])
    problems = [
        [RidgeRegression(a, t, regularizer=regularizer) for a, t in zip(*unit, strict=True)]
        for unit in zip(spec["features"], spec["targets"], strict=True)
    ]
    matrix = np.array(config["combination-matrix"])
    w = np.tile(data["init"]["w"], (config["units"], 1))
    for batches, known in zip(data["batches"], data["rounds"], strict=True):
        psi = np.zeros_like(w)
        for p, unit in enumerate(problems):
            for k, problem in enumerate(unit):
                x = w[p].copy()
                for rows in batches[p][k]:
                    step = config["step-size"] / config["local-epochs"][p][k]
                    x -= step * problem.gradient(x, np.array(rows))
                psi[p] += x / len(unit)
        w = matrix @ psi
        np.testing.assert_allclose(psi, known["psi"], **CLOSE)
        np.testing.assert_allclose(w, known["w"], **CLOSE)
    optimum = minimize([problem for unit in problems for problem in unit])
    np.testing.assert_allclose(optimum.x, data["optimum"], atol=1e-10)
