"""Per-example clipping without per-example gradients, against the plain gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from privet.problems import BinaryLogistic, MultinomialLogistic, RidgeRegression
from privet.wire import stream
from privet.wire.threads import pin_blas_threads

from .figure import Figure, Show, best_seconds

GOAL = 1.3


def bench_clipping(show: Show, *, quick: bool = False) -> None:
    """Time the clipped gradient of each loss over its plain gradient, l2 and l1."""
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
        plain = best_seconds(partial(_loop, problem.gradient, x, calls), repeats)
        for norm in ("l2", "l1"):
            clip = partial(problem.clipped_gradient, clip=0.1, norm=norm)
            clipped = best_seconds(partial(_loop, clip, x, calls), repeats)
            name = f"clipped ({norm}) / plain gradient"
            show(Figure("clipping", case, name, clipped / plain, GOAL, at_least=False))


def _loop(gradient: Any, x: Any, calls: int) -> None:
    for _ in range(calls):
        gradient(x)
