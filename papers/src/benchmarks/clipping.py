"""Per-example clipping without per-example gradients, against the plain gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from privet.core.threads import pin_blas_threads
from privet.kernel import clipped_term, stream
from privet.problems import BinaryLogistic, MultinomialLogistic, RidgeRegression

from .figure import Figure, Show, best_seconds

GOAL = 1.3


def bench_clipping(show: Show, *, quick: bool = False) -> None:
    """Time the clipped gradient and, in float32, the clipped term over the plain gradient."""
    pin_blas_threads()
    rng = stream(0, "bench")
    rows = rng.standard_normal((1000, 50))
    images = rng.random((1000, 784)).astype("f4")
    cases: dict[str, Any] = {
        "logistic 1000 x 50": BinaryLogistic(rows, np.where(rng.random(1000) < 0.5, -1, 1)),
        "ridge 1000 x 50": RidgeRegression(rows, rng.standard_normal(1000)),
        "multinomial 1000 x 784 x 10 float32": MultinomialLogistic(
            images, rng.integers(0, 10, 1000), 10
        ),
    }
    repeats, calls = (3, 20) if quick else (15, 100)
    for case, problem in cases.items():
        x = (0.1 * rng.standard_normal(problem.dim)).astype(problem.dtype)
        timed = {"plain": problem.gradient}
        for norm in ("l2", "l1"):
            timed[f"clipped ({norm})"] = partial(problem.clipped_gradient, clip=0.1, norm=norm)
            if problem.dtype == np.float32:
                timed[f"clipped term ({norm})"] = partial(
                    clipped_term, problem, clip=0.1, norm=norm
                )
        best = dict.fromkeys(timed, float("inf"))
        # In turn, so that a machine that slows down meanwhile slows all of them.
        for _ in range(repeats):
            for name, function in timed.items():
                best[name] = min(best[name], best_seconds(partial(_loop, function, x, calls), 1))
        for name in list(timed)[1:]:
            ratio = best[name] / best["plain"]
            show(Figure("clipping", case, f"{name} / plain gradient", ratio, GOAL, at_least=False))


def _loop(gradient: Any, x: Any, calls: int) -> None:
    for _ in range(calls):
        gradient(x)
