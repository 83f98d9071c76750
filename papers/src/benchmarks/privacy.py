"""What privacy costs beside the arithmetic: its noise, its messages, its ledger."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.app import Array, ArrayRecord

from privet.kernel import LedgerFile, Release, SystemNoise
from privet.problems import L2, BinaryLogistic
from privet.sim.inline import grid_of
from privet.strategies import FedPLT

from .figure import Figure, Show, best_seconds

SCALE = 1.3
SIZES = (1_000_000, 10_000, 1_000, 5)
GOAL = 1.5
"""Draws on a grid over numpy's, the time of the byte stream taken off, at the largest size."""
AGENTS, EXAMPLES = 20, 250
PRIVATE = {"local_solver": "noisy-gd", "clip": 1.0, "row_norm": 3.0, "noise_variance": 0.01}
LINES, CHARGE_MS = 100_000, 10.0


def bench_privacy(show: Show, *, quick: bool = False) -> None:
    """Measure the parts in turn."""
    _noise(show, quick=quick)
    _messages(show, quick=quick)
    _ledger(show, quick=quick)


def _noise(show: Show, *, quick: bool) -> None:
    """Time draws rounded to a grid over numpy's draws and over the AES stream alone."""
    for size in SIZES:
        case = f"{size} draws"
        for kind, plain in (("gaussian", "normal"), ("laplace", "laplace")):
            # The spacing of a message of this size whose sensitivity is its scale.
            norm = size if kind == "laplace" else math.sqrt(size)
            spacing = 2.0 ** math.floor(math.log2(SCALE / (8192 * norm)))
            steps = {
                "grid": partial(_on_grid, getattr(SystemNoise(), kind), size, spacing),
                "numpy": partial(getattr(np.random.default_rng(), plain), 0.0, SCALE, size),
                "stream": partial(_stream, 8 * size),
            }
            calls = max(1, min(20, 20_000 // size))
            best = _in_turns(steps, calls, 3 if quick else 60)
            for name, seconds in best.items():
                show(Figure("privacy", case, f"{kind}, {name}, us", seconds * 1e6))
            own, numpys, stream = best.values()
            goal = GOAL if size == SIZES[0] else None
            name = f"{kind}: (grid - AES) / numpy"
            show(Figure("privacy", case, name, (own - stream) / numpys, goal, at_least=False))
            show(Figure("privacy", case, f"{kind}: grid / numpy", own / numpys))


def _messages(show: Show, *, quick: bool) -> None:
    """Time Fed-PLT's rounds with charged noise in every local step over those without."""
    for dim in (5, 100):
        steps = {"private": _rounds(dim, PRIVATE), "un-noised": _rounds(dim, {})}
        best = _in_turns(steps, 1 if quick else 10, 2 if quick else 20)
        for name, seconds in best.items():
            us = seconds / AGENTS * 1e6
            show(Figure("privacy", f"message, d = {dim}", f"fed-plt, {name}, us", us))
        show(
            Figure(
                "privacy",
                f"message, d = {dim}",
                "fed-plt: private / un-noised",
                best["private"] / best["un-noised"],
            )
        )


def _rounds(dim: int, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """Return what plays one more round of a small federation on the in-process engine."""
    rng = np.random.default_rng(0)
    problems = [
        BinaryLogistic(
            rng.standard_normal((EXAMPLES, dim)),
            rng.choice([-1, 1], EXAMPLES),
            regularizer=L2(0.05),
        )
        for _ in range(AGENTS)
    ]
    grid = grid_of("fed-plt", problems, engine="inline")
    strategy = FedPLT(num_agents=AGENTS, local_epochs=5, rho=1.0, **settings)
    strategy.begin(grid, ArrayRecord({"x": Array(np.zeros(dim))}))
    numbers = itertools.count(1)
    return lambda: strategy.play_round(grid, next(numbers))


def _ledger(show: Show, *, quick: bool) -> None:
    """Time a charge to a node's ledger file, on the disk, when it is new and when it is long."""
    release = Release("gaussian", scale=100.0, sensitivity=1.0)
    with tempfile.TemporaryDirectory() as folder:
        ledger = LedgerFile(Path(folder).resolve() / "ledger.jsonl")
        charge = partial(ledger.charge, release, 1e-5, None, "run 1 round 1 agent 0")
        times = {}
        for lines in (1, 1_000 if quick else LINES):
            with mock.patch("os.fsync"):  # what is on the disk before does not matter
                while ledger.spent(1e-5).messages < lines:
                    _repeat(charge, lines - ledger.spent(1e-5).messages)
            times[lines] = best_seconds(charge, 10)
            goal = CHARGE_MS if lines > 1 else None
            name = "charge with fsync, ms"
            case = f"ledger of {lines} lines"
            show(Figure("privacy", case, name, times[lines] * 1e3, goal, at_least=False))
        short, long = times.values()
        show(Figure("privacy", "ledger", "a charge when long / when new", long / short))


def _on_grid(draw: Callable[[int, float], Any], size: int, spacing: float) -> Any:
    draws = draw(size, SCALE)
    draws *= 1 / spacing
    return np.rint(draws, out=draws)


def _stream(count: int) -> bytes:
    """Return the bytes a draw is made of, from a fresh key."""
    cipher = Cipher(algorithms.AES256(bytes(32)), modes.CTR(bytes(16)))
    return cipher.encryptor().update(bytes(count))


def _in_turns(steps: Mapping[str, Callable[[], Any]], calls: int, turns: int) -> dict[str, float]:
    """Return each step's shortest time for one call; they take turns on the same machine."""
    best = dict.fromkeys(steps, math.inf)
    for _ in range(turns):
        for name, step in steps.items():
            best[name] = min(best[name], best_seconds(partial(_repeat, step, calls), 1) / calls)
    return best


def _repeat(step: Callable[[], Any], calls: int) -> None:
    for _ in range(calls):
        step()
