"""Accuracy against bytes with uploads of a few bits a number: the page docs/results/value-bits.md.

    PYTHONPATH=papers python -m results.value_bits docs/results mnist.npz

Softmax regression on 10,000 digits (d = 7,850, float32) through the real messages of the in-process
engine. Every finished run is a line of the ``.jsonl``; a command that was interrupted goes on where
it was. It ends with the tables of the page.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import time
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from scipy.stats import norm

from privet.client_apps import sparse_mod
from privet.client_apps.local_sgd import local_sgd_app
from privet.core import algorithm
from privet.data import Federation, federation_from_config
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.sim.inline import grid_of
from privet.strategies import FedPDM, SparseUplink
from privet.strategies.rivals import control_variates
from privet.testing.subject import logistic_federation
from privet.wire import content_bytes
from privet.wire.value_coding import decode_values, encode_values
from results.marked import fill
from results.resumable import Runs
from studies.statistics import Estimate

AGENTS, FRACTION, ROUNDS, SEEDS = 100, 0.3, 50, range(1, 6)
LOCAL: Mapping[str, Any] = {"batch": "sample", "batch_size": 10, "max_local_steps": 10}
PRIVATE: Mapping[str, Any] = {
    "clip": 1.0,
    "target_epsilon": 8.0,
    "preset": "private",
    "step_size_base": 1.0,
    "rho": 0.5,
}
METHODS: Mapping[str, tuple[str, float, tuple[str, ...]]] = {
    "FedAvg": ("fed-avg", 1.0, ("0", "8", "4")),
    "FedAvg, SparseUplink .1": ("fed-avg", 0.1, ("0", "8", "4")),
    "FedPDM": ("fed-pdm", 1.0, ("0", "8", "4")),
    "FedPDM, top-k .1": ("fed-pdm", 0.1, ("0", "8", "4")),
    "FedPDM, top-k .1, float64": ("float64", 0.1, ("0", "8", "4")),
    "FedPDM, private": ("private", 1.0, ("0", "8", "4", "noise")),
    "FedPDM, private, rand-k .1": ("private", 0.1, ("0", "8", "4", "noise")),
}
"""Title to method, share of the coordinates, and the values of value-bits."""
DOWN: Mapping[str, tuple[str, float, tuple[str, ...]]] = {
    "FedAvg": ("down fed-avg", 1.0, ("0", "8")),
    "FedAvg, SparseUplink .1": ("down fed-avg", 0.1, ("0", "8")),
    "FedPDM, 30% in a round": ("down part", 1.0, ("0", "8", "4")),
    "FedPDM, all in every round": ("both", 1.0, ("0", "8", "4")),
    "FedPDM, all, top-k .1 up, .25 down": ("down sparse", 0.1, ("0", "8", "4")),
}
"""The same of the table of both directions; FedAvg's broadcasts are Flower's."""
STEPS: Mapping[str, Any] = {"step-size-base": 0.2, "step-size-rule": "constant"}
EXACT: Mapping[str, Mapping[str, Any]] = {
    "fed-plt": {},
    "fed-pd": {},
    "led": {},
    "tamuna": {},
    "fed-lin": {},
    "five-gcs": {},
    "scaffold": STEPS,
    "fed-pdm": {**STEPS, "dual": "public", "aggregation": "table"},
}
"""Methods whose limit is exact also where agents are absent, and settings with which it is."""
BOTH_WAYS = {method for method, _, _ in DOWN.values()}


@lru_cache
def federation_of(data_path: Path, count: int, seed: int, dtype: str) -> Federation:
    """Return the digits, dealt to so many agents."""
    config = {
        "algorithm": "fed-pdm",
        "dataset": "mnist",
        "data-path": str(data_path.absolute()),
        "num-agents": count,
        "partition": "label",
        "classes-per-agent": 4,
        "dtype": dtype,
        "regularizer-weight": 1e-4,
        "seed": seed,
    }
    return federation_from_config(read_config(config), count)


def play(data_path: Path, *, method: str, share: float, bits: str, seed: int) -> dict[str, Any]:
    """Return accuracy, bytes of an upload and seconds of one run."""
    private = method == "private"
    count = 10 if private or method in ("both", "down sparse") else AGENTS
    dtype = method if method == "float64" else "float32"
    federation = federation_of(data_path, count, seed, dtype)
    start = ArrayRecord({"x": Array(np.zeros(federation.dim, dtype))})
    begun, more = time.perf_counter(), {}
    if method.endswith("fed-avg"):
        arrays, up, down, uploads = _fed_avg(federation, start, share, int(bits), seed)
    else:
        sparse = "rand-k" if private else "top-k"
        own = PRIVATE if private else {**LOCAL, "rho": 1.0, "step_size_base": 0.3}
        if method in BOTH_WAYS:
            own = {**own, "broadcast_bits": bits, "dual": "public"}
        if method == "down sparse":
            own = {**own, "alpha_d": 0.25}
        strategy = FedPDM(
            **own,
            sparsifier="none" if share == 1.0 else sparse,
            alpha_u=share,
            value_bits=bits,
            seed=seed,
            num_agents=count,
            **({"fraction_train": FRACTION} if count == AGENTS else {}),
        )
        grid = grid_of("fed-pdm", federation.problems)
        result = strategy.start(grid, start, num_rounds=ROUNDS, log_rounds=False)
        arrays = result.arrays
        up = sum(done.bytes_up for done in result.history)
        uploads = sum(len(done.participants) for done in result.history)
        down = sum(done.bytes_down for done in result.history)
    if method in BOTH_WAYS:
        more["down"] = down / uploads
    return {
        "accuracy": federation.evaluate(arrays["x"].numpy())["accuracy"],
        "bytes": up / uploads,
        **more,
        "seconds": round(time.perf_counter() - begun, 1),
    }


class _Counting(InlineGrid):
    """Counts the bytes of messages and replies."""

    sent = received = answers = 0

    def deliver(self, message: Any) -> Any:
        reply = super().deliver(message)
        if reply is not None:
            self.sent += content_bytes(message.content)
            self.received += content_bytes(reply.content)
            self.answers += 1
        return reply


def _fed_avg(
    federation: Federation, start: ArrayRecord, share: float, bits: int, seed: int
) -> tuple[ArrayRecord, int, int, int]:
    """Run Flower's FedAvg; a dense change is coded by the same mod."""
    plain = share == 1.0 and not bits
    random.seed(seed)  # Flower samples nodes with the global generator
    app = local_sgd_app(
        lambda context: federation.problems[int(context.node_config["partition-id"])],
        mods=None if plain else [sparse_mod(share, value_bits=bits, seed=seed)],
        seed=seed,
        step_size_base=0.7,
        **LOCAL,
    )
    grid = _Counting(app, AGENTS)
    flower = FedAvg(fraction_train=FRACTION, fraction_evaluate=0.0, min_available_nodes=AGENTS)
    strategy = flower if plain else SparseUplink(flower)
    result = strategy.start(grid, start, num_rounds=ROUNDS)
    return result.arrays, grid.received, grid.sent, grid.answers


def lloyd_max(bits: int) -> float:
    """Return the distortion of the best scalar quantiser of N(0, 1) with 2^bits levels."""
    levels = norm.ppf((np.arange(2**bits) + 0.5) / 2**bits)
    for _ in range(3000):
        edges = np.r_[-np.inf, (levels[1:] + levels[:-1]) / 2, np.inf]
        mass = np.diff(norm.cdf(edges))
        levels = -np.diff(norm.pdf(edges)) / mass
    return float(1.0 - mass @ levels**2)


def normal_rows(dim: int = 1 << 20) -> list[str]:
    """Return the table of the comparison on normal vectors."""
    values = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    ours = "our bits at that error | bits and error at value-bits of as many"
    rows = [f"| bits of EDEN | its error | {ours} |", "|---|---|---|---|"]
    for bits in (1, 2, 3, 4):
        distortion = lloyd_max(bits)
        theirs = 1.0 / (1.0 - distortion) - 1.0
        cells = []
        for how in ({"bits": bits}, {"step": math.sqrt(12.0 * theirs)}):
            coded = encode_values(values, 1, **how)  # type: ignore[arg-type]
            assert coded is not None
            back = decode_values(coded.data, dim, values.dtype)
            error = float(np.sum((back - values) ** 2.0)) / float(np.sum(values**2.0))
            cells += [f"{8 * len(coded.data) / dim:.2f}", f"{error:.4f}"]
        rows.append(f"| {bits} | {theirs:.4f} | {cells[2]} | {cells[0]}: {cells[1]} |")
    return rows


def both_rows(runs: Runs) -> list[str]:
    """Return the table of messages that are coded both ways."""
    rows = ["| method | bits | up | down | accuracy, % |", "|---|---|---|---|---|"]
    for title, (method, share, widths) in DOWN.items():
        for bits in widths:
            found = [runs(method=method, share=share, bits=bits, seed=seed) for seed in SEEDS]
            up, down = (np.mean([one[key] for one in found]) for key in ("bytes", "down"))
            score = Estimate.of([100 * one["accuracy"] for one in found])
            width = "none" if bits == "0" else bits
            rows.append(f"| {title} | {width} | {up:,.0f} | {down:,.0f} | {score} |")
    return rows


def limit_rows() -> list[str]:
    """Return the table of exact methods: the mean gradient at the end, by width."""
    rows = ["| | uncoded, float64 | 32 | 16 | 8 | 4 bits |", "|---|---|---|---|---|---|"]
    for name in ("fed-plt", "fed-split", "fed-pd", "led", "tamuna", "fed-lin", "five-gcs"):
        widths = ("0", "32", "16", "8", "4")
        slopes = (slope_of(name, 60, **{"value-bits": bits}) for bits in widths)
        rows.append(f"| {name} | {' | '.join(f'{slope:.2e}' for slope in slopes)} |")
    return rows


def slope_of(name: str, rounds: int = 100, **settings: Any) -> float:
    """Return the norm of the agents' summed gradients at the end of a run."""
    problems = logistic_federation(6, examples=30, dim=60)
    config = {"algorithm": name, "num-agents": len(problems), "seed": 3, **settings}
    strategy = algorithm(name).load_strategy().from_config(read_config(config))
    start = ArrayRecord({"x": Array(np.zeros(60))})
    result = strategy.start(grid_of(name, problems), start, num_rounds=rounds, log_rounds=False)
    x = result.arrays["x"].numpy()
    return float(np.linalg.norm(sum(one.gradient(x) for one in problems)))


def limit_rows_both_ways() -> list[str]:
    """Return the table of exact methods with both directions coded; what would not be exact."""
    half = {"participation": "fraction", "fraction": 0.5}
    coded = [{"value-bits": bits, "broadcast-bits": bits} for bits in ("0", "8", "4")]
    runs = (*coded, half, {**half, **coded[1]})
    rows = ["| | uncoded | 8 bits | 4 bits | half, uncoded | half, 8 bits |", "|---" * 6 + "|"]
    for name, own in EXACT.items():
        cells = " | ".join(f"{slope_of(name, **own, **run):.2e}" for run in runs)
        rows.append(f"| {name} | {cells} |")
    with patch.object(control_variates, "column_sums", lambda table: np.zeros_like(table[0])):
        unmended = slope_of("led", **coded[1])
    with patch.object(control_variates.ControlledServer, "own", _own_coded):
        kicked = slope_of("led", **half, **coded[1])
    return [
        *rows,
        "",
        "LED and TAMUNA feed the error of x back to their control variates: without that LED ends",
        f"at {unmended:.1e}. And the h_i of an agent that was away is sent in full: coded with 8",
        f"bits, by itself, LED with half of the agents ends at {kicked:.1e}.",
    ]


def _own_coded(self: Any, state: Any, position: int, turn: Any) -> dict[str, Any]:
    """Do as `ControlledServer.own`, with h_i in eight bits and no reference."""
    if state.knows[position] != control_variates.BEHIND:
        return {}
    coded = encode_values(state.h[position].copy(), 1000 * turn.number + position, bits=8)
    if coded is not None:
        state.h[position] = coded.values
    return {"h": state.h[position].copy()}


def upload_rows(runs: Runs) -> list[str]:
    """Return the table of coded uploads."""
    head = ("method", "value-bits", "bytes of an upload", "share", "accuracy, %")
    rows = [f"| {' | '.join(head)} | against uncoded, points |", "|---" * 6 + "|"]
    for title, (method, share, widths) in METHODS.items():
        found = {
            bits: [runs(method=method, share=share, bits=bits, seed=seed) for seed in SEEDS]
            for bits in widths
        }
        plain = found["0"]
        for bits, some in found.items():
            size = float(np.mean([one["bytes"] for one in some]))
            whole = float(np.mean([one["bytes"] for one in plain]))
            score = Estimate.of([100 * one["accuracy"] for one in some])
            gaps = [
                100 * (one["accuracy"] - other["accuracy"])
                for one, other in zip(some, plain, strict=True)
            ]
            gap = "" if bits == "0" else f"{Estimate.of(gaps)}"
            width = "none" if bits == "0" else bits
            rows.append(
                f"| {title} | {width} | {size:,.0f} | {size / whole:.3f} | {score} | {gap} |"
            )
    return rows


def main() -> None:
    """Play what is missing, and fill the tables of the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("data_path", type=Path, help="MNIST's file")
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    file = arguments.results / "value-bits.jsonl"
    runs, page = Runs(file, partial(play, arguments.data_path)), file.with_suffix(".md")
    fill(page, "uploads", upload_rows(runs))
    fill(page, "both ways", both_rows(runs))
    fill(page, "limit", limit_rows())
    fill(page, "limit both ways", limit_rows_both_ways())
    fill(page, "normal vectors", normal_rows())


if __name__ == "__main__":
    main()
