"""One DP-IADMM iteration on MNIST-sized problems, against what it cannot do without.

Ten agents of 1000 x 784 examples and ten classes, clipped gradients, system noise, account and
messages on the in-process engine; beside it, in the same process, the two matrix products alone,
a bare float32 loop, and the float64 script one would write first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.client_apps import client_app
from privet.problems import L2, MultinomialLogistic
from privet.sim.engine import InlineGrid
from privet.sim.logs import quiet
from privet.strategies import DPIADMM
from privet.strategies.loop import play_round
from privet.wire import stream
from privet.wire.threads import pin_blas_threads

from .figure import Figure, Show

AGENTS, ROWS, FEATURES, CLASSES = 10, 1000, 784, 10
CLIP, EPSILON, RHO, BETA = 0.5, 0.5, 12.0, 1e-6
FLOOR_GOAL, SCRIPT_GOAL = 1.4, 0.7

Data = tuple[list[NDArray[Any]], list[NDArray[Any]]]


def bench_iadmm(show: Show, *, quick: bool = False) -> None:
    """Time one iteration of all agents, interleaved with the loops it is compared with."""
    quiet()
    pin_blas_threads()
    rng = stream(0, "bench")
    images = [rng.random((ROWS, FEATURES), np.float32) for _ in range(AGENTS)]
    labels = [rng.integers(0, CLASSES, ROWS) for _ in range(AGENTS)]
    steps = {
        "privet, float32, inline": _library(images, labels),
        "the two GEMMs, float32": _products(images),
        "bare numpy loop, float32": _bare_loop(images, labels),
        "numpy script, float64": _script([rows.astype(float) for rows in images], labels),
    }
    best = _interleaved(steps, 3 if quick else 12, 5 if quick else 20)
    case = f"{AGENTS} agents of {ROWS} x {FEATURES}, {CLASSES} classes, E = 1"
    for name, seconds in best.items():
        show(Figure("iadmm", case, f"{name}, ms an iteration", seconds * 1e3))
    own, floor, loop, script = best.values()
    show(Figure("iadmm", case, "privet / GEMMs", own / floor, FLOOR_GOAL, at_least=False))
    show(Figure("iadmm", case, "privet / bare numpy loop", own / loop))
    show(
        Figure("iadmm", case, "privet / float64 script", own / script, SCRIPT_GOAL, at_least=False)
    )


def _interleaved(steps: dict[str, Callable[[], None]], rounds: int, calls: int) -> dict[str, float]:
    """Return the shortest mean time of each step over blocks that take turns."""
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(calls):
                step()
            best[name] = min(best[name], (time.perf_counter() - begin) / calls)
    return best


def _library(images: list[NDArray[Any]], labels: list[NDArray[Any]]) -> Callable[[], None]:
    """Return a round of the Strategy and the ClientApps: clip, noise, account, messages."""
    problems = [
        MultinomialLogistic(
            rows, own, CLASSES, regularizer=L2(2 * BETA / AGENTS), divisor=AGENTS * ROWS
        )
        for rows, own in zip(images, labels, strict=True)
    ]
    app = client_app("dp-iadmm", lambda context: problems[int(context.node_config["partition-id"])])
    grid = InlineGrid(app, AGENTS)
    strategy = DPIADMM(epsilon=EPSILON, rho=RHO, clip=CLIP, num_agents=AGENTS)
    start = np.zeros((FEATURES, CLASSES), np.float32)
    session = strategy.begin(grid, ArrayRecord({"x": Array(start)}))

    def step() -> None:
        play_round(strategy, grid, session.round + 1, evaluate=False)

    return step


def _products(images: list[NDArray[Any]]) -> Callable[[], None]:
    """Return the scores and the pull-back of every agent, nothing else."""
    model = np.full((FEATURES, CLASSES), 0.01, np.float32)
    residuals = np.full((ROWS, CLASSES), 0.01, np.float32)

    def step() -> None:
        for rows in images:
            rows.dot(model)
            rows.T.dot(residuals)

    return step


def _bare_loop(images: list[NDArray[Any]], labels: list[NDArray[Any]]) -> Callable[[], None]:
    """Return the same iteration in bare float32 numpy: no messages, no account, numpy's noise."""
    rng = np.random.default_rng(0)
    shape = (FEATURES, CLASSES)
    z = np.zeros((AGENTS, *shape), np.float32)
    lam = np.zeros_like(z)
    limits = [np.float32(CLIP) / np.linalg.norm(rows, axis=1) for rows in images]
    every = np.arange(ROWS)
    t = 0

    def step() -> None:
        nonlocal t
        t += 1
        w = (z.sum(axis=0) - lam.sum(axis=0) / np.float32(RHO)) / np.float32(AGENTS)
        near = np.float32(t**0.5)
        shrink = np.float32(1 / (RHO + t**0.5))
        for p, rows in enumerate(images):
            scores = np.ascontiguousarray(rows.dot(z[p]).T)
            scores -= scores.max(axis=0)
            np.exp(scores, scores)
            scores /= scores.sum(axis=0)
            scores[labels[p], every] -= 1
            norms = np.sqrt(np.einsum("kn,kn->n", scores, scores))
            scores *= limits[p] / np.maximum(norms, limits[p])
            slope = rows.T.dot(scores.T)
            slope *= np.float32(1 / (AGENTS * ROWS))
            slope += z[p] * np.float32(2 * BETA / AGENTS)
            slope += rng.standard_normal(shape, np.float32) * np.float32(1e-3)
            z[p] = (np.float32(RHO) * w + lam[p] - slope + z[p] * near) * shrink
            lam[p] += np.float32(RHO) * (w - z[p])

    return step


def _script(images: list[NDArray[Any]], labels: list[NDArray[Any]]) -> Callable[[], None]:
    """Return the iteration as the paper's formulas read, in numpy's default float64."""
    rng = np.random.default_rng(0)
    total = AGENTS * ROWS
    one_hot = [np.eye(CLASSES)[own] for own in labels]
    lengths = [np.linalg.norm(rows, axis=1) for rows in images]
    z = [np.zeros((FEATURES, CLASSES)) for _ in range(AGENTS)]
    lam = [np.zeros((FEATURES, CLASSES)) for _ in range(AGENTS)]
    t = 0

    def step() -> None:
        nonlocal t
        t += 1
        eta = 1 / np.sqrt(t)
        w = sum(z[p] - lam[p] / RHO for p in range(AGENTS)) / AGENTS
        for p in range(AGENTS):
            scores = images[p] @ z[p]
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            residuals = scores / scores.sum(axis=1, keepdims=True) - one_hot[p]
            norms = np.linalg.norm(residuals, axis=1) * lengths[p]
            residuals = residuals * np.minimum(1, CLIP / norms)[:, None]
            gradient = images[p].T @ residuals / total + 2 * BETA / AGENTS * z[p]
            noise = rng.normal(0, 1e-3, z[p].shape)
            z[p] = (RHO * w + lam[p] - noise - gradient + z[p] / eta) / (RHO + 1 / eta)
            lam[p] = lam[p] + RHO * (w - z[p])

    return step
