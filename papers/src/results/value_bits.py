"""Accuracy against bytes with uploads of a few bits a number: the page docs/results/value-bits.md.

    python -m results.value_bits docs/results mnist.npz

Softmax regression on 10,000 digits (d = 7,850, float32) through the real messages of the in-process
engine. Every finished run is a line of the ``.jsonl``; a command that was interrupted goes on where
it was. It ends with finding, tables and pictures of the page.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

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
from privet.testing.subject import logistic_federation
from privet.wire import content_bytes
from privet.wire.value_coding import decode_values, encode_values
from results.dots import Interval, Panel, draw, interval
from results.marked import fill
from results.themes import themed
from studies.rule import BETTER, UNDECIDED, WORSE, better_or_worse
from studies.runs import Runs
from studies.statistics import Estimate, difference

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
WIDTHS = {"0": "uncoded", "8": "8 bits", "4": "4 bits", "noise": "as coarse as the noise"}


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
    count = 10 if private else AGENTS
    dtype = method if method == "float64" else "float32"
    federation = federation_of(data_path, count, seed, dtype)
    start = ArrayRecord({"x": Array(np.zeros(federation.dim, dtype))})
    begun = time.perf_counter()
    if method == "fed-avg":
        arrays, up, uploads = _fed_avg(federation, start, share, int(bits), seed)
    else:
        sparse = "rand-k" if private else "top-k"
        own = PRIVATE if private else {**LOCAL, "rho": 1.0, "step_size_base": 0.3}
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
    return {
        "accuracy": federation.evaluate(arrays["x"].numpy())["accuracy"],
        "bytes": up / uploads,
        "seconds": round(time.perf_counter() - begun, 1),
    }


class _Counting(InlineGrid):
    """Counts the bytes of replies."""

    received = answers = 0

    def deliver(self, message: Any) -> Any:
        reply = super().deliver(message)
        if reply is not None:
            self.received += content_bytes(reply.content)
            self.answers += 1
        return reply


def _fed_avg(
    federation: Federation, start: ArrayRecord, share: float, bits: int, seed: int
) -> tuple[ArrayRecord, int, int]:
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
    return result.arrays, grid.received, grid.answers


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


def limit_rows() -> list[str]:
    """Return the table of exact methods: the mean gradient at the end, by width."""
    rows = ["| | uncoded, float64 | 32 | 16 | 8 | 4 bits |", "|---|---|---|---|---|---|"]
    for name in ("fed-plt", "fed-split", "fed-pd", "led", "tamuna", "fed-lin", "five-gcs"):
        widths = ("0", "32", "16", "8", "4")
        slopes = (slope_of(name, 60, **{"value-bits": bits}) for bits in widths)
        rows.append(f"| {name} | {' | '.join(f'{slope:.2e}' for slope in slopes)} |")
    return rows


def slope_of(name: str, rounds: int, **settings: Any) -> float:
    """Return the norm of the agents' summed gradients at the end of a run."""
    problems = logistic_federation(6, examples=30, dim=60)
    config = {"algorithm": name, "num-agents": len(problems), "seed": 3, **settings}
    strategy = algorithm(name).load_strategy().from_config(read_config(config))
    start = ArrayRecord({"x": Array(np.zeros(60))})
    result = strategy.start(grid_of(name, problems), start, num_rounds=rounds, log_rounds=False)
    x = result.arrays["x"].numpy()
    return float(np.linalg.norm(sum(one.gradient(x) for one in problems)))


@dataclass(frozen=True)
class Upload:
    """Runs of a method at one value of value-bits.

    Attributes
    ----------
    size, share : float
        Bytes of an upload, also as a share of the uncoded one.
    accuracy : Estimate
        In %.
    gap : Estimate
        Points above the uncoded runs of the same seeds.
    """

    size: float
    share: float
    accuracy: Estimate
    gap: Estimate


Uploads = Mapping[str, Mapping[str, Upload]]


def measured(runs: Runs) -> Uploads:
    """Return what was measured by method and value-bits; plays what is missing."""
    return {
        title: _uploads(
            {
                bits: [runs(method=method, share=share, bits=bits, seed=seed) for seed in SEEDS]
                for bits in widths
            }
        )
        for title, (method, share, widths) in METHODS.items()
    }


def _uploads(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Upload]:
    sizes = {bits: float(np.mean([one["bytes"] for one in own])) for bits, own in found.items()}
    scores = {bits: [100 * one["accuracy"] for one in own] for bits, own in found.items()}
    return {
        bits: Upload(
            sizes[bits],
            sizes[bits] / sizes["0"],
            Estimate.of(scores[bits]),
            difference(scores[bits], scores["0"]),
        )
        for bits in found
    }


LEVEL, UNRESOLVED = "level", "unresolved"
MARGIN = 0.5
"""Points of accuracy within which coded uploads count as level."""


def finding(found: Uploads) -> list[str]:
    """Return what each value of value-bits makes of the bytes, and of the accuracy."""
    lines = []
    for bits, name in WIDTHS.items():
        own = {title: widths[bits] for title, widths in found.items() if bits in widths}
        if bits == "0" or not own:
            continue
        shares = [f"{100 * one.share:.0f} %" for one in _ends(own, key=lambda one: one.share)]
        gaps = [f"{one.gap.mean:+.2f}" for one in _ends(own, key=lambda one: one.gap.mean)]
        words = {title: _word(one.gap) for title, one in own.items()}
        counts = [
            f"{word} in {list(words.values()).count(word)}"
            for word in (LEVEL, BETTER, WORSE)
            if word in words.values()
        ]
        open_ones = [f"{title} ({own[title].gap})" for title in words if words[title] == UNRESOLVED]
        if open_ones:
            counts.append(f"{UNRESOLVED} in {'; '.join(open_ones)}")
        lines.append(
            f"- `value-bits = {bits}` ({name}): {' to '.join(shares)} of the bytes; accuracy "
            f"{' to '.join(gaps)} points, {', '.join(counts)}."
        )
    head = (
        f"**Uploads of a few bits a number, against uncoded ones, in {len(found)} settings of "
        f"FedAvg and FedPDM; level is an interval within {MARGIN:g} points:**"
    )
    return [head, "", *lines]


def _word(gap: Estimate) -> str:
    """Return what a difference shows: a wide interval around 0 shows nothing."""
    if max(abs(gap.low), abs(gap.high)) < MARGIN:
        return LEVEL
    return {UNDECIDED: UNRESOLVED}.get(found := better_or_worse(gap.low, gap.high), found)


def _ends(own: Mapping[str, Upload], key: Callable[[Upload], float]) -> list[Upload]:
    """Return the least and the largest, once where there is one."""
    ordered = sorted(own.values(), key=key)
    return [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered


def upload_rows(found: Uploads) -> list[str]:
    """Return the table of coded uploads."""
    head = ("method", "value-bits", "bytes of an upload", "share", "accuracy, %")
    rows = [f"| {' | '.join(head)} | against uncoded, points |", "|---" * 6 + "|"]
    for title, widths in found.items():
        for bits, one in widths.items():
            gap, width = ("", "none") if bits == "0" else (f"{one.gap}", bits)
            cells = (title, width, f"{one.size:,.0f}", f"{one.share:.3f}", f"{one.accuracy}", gap)
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def picture(found: Uploads, figure: Any) -> None:
    """Draw bytes and accuracy of the methods by the value of value-bits."""
    names = [name for bits, name in WIDTHS.items() if bits != "0"]
    sizes: dict[str, list[Interval | None]] = {name: [] for name in names}
    gaps: dict[str, list[Interval | None]] = {name: [] for name in names}
    for widths in found.values():
        for bits, name in WIDTHS.items():
            if bits == "0":
                continue
            one = widths.get(bits)
            sizes[name].append(None if one is None else (one.share,) * 3)
            gaps[name].append(None if one is None else interval(one.gap))
    panels = [
        Panel("Bytes of an upload", "share of the uncoded", sizes, equal=1.0),
        Panel("Accuracy", "points above uncoded", gaps, equal=0.0),
    ]
    draw(list(found), panels, figure, alike=False)


def main() -> None:
    """Play what is missing, and write the page's parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("data_path", type=Path, help="MNIST's file")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    file = arguments.results / "value-bits.jsonl"
    runs, page = Runs(file, partial(play, arguments.data_path)), file.with_suffix(".md")
    found = measured(runs)
    fill(page, "finding", finding(found))
    fill(page, "uploads", upload_rows(found))
    target = arguments.results.parent / "images" / "value-bits"
    themed(target, (9.0, 3.4), partial(picture, found))
    fill(page, "limit", limit_rows())
    fill(page, "normal vectors", normal_rows())


if __name__ == "__main__":
    main()
