"""One DP-IADMM iteration on MNIST-sized problems, against what it cannot do without.

Ten agents of 1000 x 784 examples and ten classes, clipped gradients, system noise, account and
messages on the in-process engine, and the same without noise; beside them, in the same process,
the two matrix products alone, a bare float32 loop, and the float64 script one would write first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.core.threads import pin_blas_threads
from privet.kernel import stream
from privet.problems import L2, MultinomialLogistic
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from privet.strategies import DPIADMM

from .figure import Figure, Show, best_seconds

AGENTS, ROWS, FEATURES, CLASSES = 10, 1000, 784, 10
CLIP, EPSILON, RHO, DECAY, DEVIATION = 0.5, 0.5, 12.0, 2e-7, 1e-3
FLOOR_GOAL, SCRIPT_GOAL = 1.25, 0.7
ROW = 10

Arrays = list[NDArray[Any]]
Step = Callable[[], Arrays]
"""One iteration of all agents; returns their z_p."""


def bench_iadmm(show: Show, *, quick: bool = False) -> None:
    """Time one iteration of all agents, interleaved with the loops it is compared with."""
    quiet()
    pin_blas_threads()
    rng = stream(0, "bench")
    images = [rng.random((ROWS, FEATURES), np.float32) for _ in range(AGENTS)]
    labels = [rng.integers(0, CLASSES, ROWS) for _ in range(AGENTS)]
    steps = {
        "privet, private, float32, inline": library(images, labels),
        "privet, un-noised, float32, inline": library(images, labels, noisy=False),
        "the two GEMMs, float32": products(images),
        "bare numpy loop, float32": bare_loop(images, labels),
        "numpy script, float64": script([rows.astype(float) for rows in images], labels),
    }
    best = _in_turns(steps, 2 if quick else 20)
    case = f"{AGENTS} agents of {ROWS} x {FEATURES}, {CLASSES} classes, E = 1"
    for name, seconds in best.items():
        show(Figure("iadmm", case, f"{name}, ms an iteration", seconds * 1e3))
    private, plain, floor, loop, first = best.values()
    for name, own in (("private", private), ("un-noised", plain)):
        over = ("GEMMs", floor, FLOOR_GOAL), ("float64 script", first, SCRIPT_GOAL)
        for other, seconds, goal in over:
            figure = f"privet, {name} / {other}"
            show(Figure("iadmm", case, figure, own / seconds, goal, at_least=False))
    show(Figure("iadmm", case, "privet, private / bare numpy loop", private / loop))


def _in_turns(steps: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Return the shortest time of each step, in rows of its own kind as in a run.

    The rows take turns, so that all steps meet the same machine.
    """
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(turns):
        for name, step in steps.items():
            best[name] = min(best[name], best_seconds(step, ROW))
    return best


def library(images: Arrays, labels: Arrays, *, noisy: bool = True) -> Step:
    """Return a round of the Strategy and the ClientApps: clip, noise, account, messages."""
    total = sum(map(len, images))
    problems = [
        MultinomialLogistic(rows, own, CLASSES, regularizer=L2(DECAY), divisor=total)
        for rows, own in zip(images, labels, strict=True)
    ]
    grid = grid_of("dp-iadmm", problems)
    strategy = DPIADMM(
        epsilon=EPSILON,
        rho=RHO,
        clip=CLIP,
        num_agents=len(images),
        perturbation="objective" if noisy else "none",
    )
    start = np.zeros((images[0].shape[1], CLASSES), images[0].dtype)
    session = strategy.begin(grid, ArrayRecord({"x": Array(start)}))

    def step() -> Arrays:
        strategy.play_round(grid, session.round + 1)
        return session.state.z.reshape(len(images), *start.shape)  # type: ignore[no-any-return]

    return step


def products(images: Arrays) -> Callable[[], None]:
    """Return the scores and the pull-back of every agent, nothing else."""
    model = np.full((images[0].shape[1], CLASSES), 0.01, np.float32)
    residuals = np.full((len(images[0]), CLASSES), 0.01, np.float32)

    def step() -> None:
        for rows in images:
            rows.dot(model)
            rows.T.dot(residuals)

    return step


def bare_loop(images: Arrays, labels: Arrays, *, deviation: float = DEVIATION) -> Step:
    """Return the same iteration in bare float32 numpy: no messages, no account, numpy's noise."""
    rng = np.random.default_rng(0)
    kind = np.float32
    shape = (images[0].shape[1], CLASSES)
    agents, total = len(images), sum(map(len, images))
    z = np.zeros((agents, *shape), kind)
    lam = np.zeros_like(z)
    limits = [kind(CLIP) / np.linalg.norm(rows, axis=1) for rows in images]
    t = 0

    def step() -> Arrays:
        nonlocal t
        t += 1
        w = (z.sum(axis=0) - lam.sum(axis=0) / kind(RHO)) / kind(agents)
        near, shrink = kind(t**0.5), kind(1 / (RHO + t**0.5))
        for p, rows in enumerate(images):
            scores = np.ascontiguousarray(rows.dot(z[p]).T)
            scores -= scores.max(axis=0)
            np.exp(scores, scores)
            scores /= scores.sum(axis=0)
            scores[labels[p], np.arange(len(rows))] -= 1
            norms = np.sqrt(np.einsum("kn,kn->n", scores, scores))
            scores *= limits[p] / np.maximum(norms, limits[p])
            slope = rows.T.dot(scores.T)
            slope *= kind(1 / total)
            slope += z[p] * kind(DECAY)
            slope += rng.standard_normal(shape, kind) * kind(deviation)
            z[p] = (kind(RHO) * w + lam[p] - slope + z[p] * near) * shrink
            lam[p] += kind(RHO) * (w - z[p])
        return list(z)

    return step


def script(images: Arrays, labels: Arrays, *, deviation: float = DEVIATION) -> Step:
    """Return the iteration as the paper's formulas read, in numpy's default float64."""
    rng = np.random.default_rng(0)
    agents, total = len(images), sum(map(len, images))
    one_hot = [np.eye(CLASSES)[own] for own in labels]
    lengths = [np.linalg.norm(rows, axis=1) for rows in images]
    z = [np.zeros((images[0].shape[1], CLASSES)) for _ in images]
    lam = [np.zeros_like(own) for own in z]
    t = 0

    def step() -> Arrays:
        nonlocal t
        t += 1
        eta = 1 / np.sqrt(t)
        w = sum(z[p] - lam[p] / RHO for p in range(agents)) / agents
        for p in range(agents):
            scores = images[p] @ z[p]
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            residuals = scores / scores.sum(axis=1, keepdims=True) - one_hot[p]
            norms = np.linalg.norm(residuals, axis=1) * lengths[p]
            residuals = residuals * np.minimum(1, CLIP / norms)[:, None]
            gradient = images[p].T @ residuals / total + DECAY * z[p]
            noise = rng.normal(0, deviation, z[p].shape)
            z[p] = (RHO * w + lam[p] - noise - gradient + z[p] / eta) / (RHO + 1 / eta)
            lam[p] = lam[p] + RHO * (w - z[p])
        return z

    return step
