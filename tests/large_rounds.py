"""What rounds of very many agents cost: their pace, checkpoints, a resume, memory.

    PYTHONPATH=tests .venv/bin/python -m large_rounds --agents 100000 --dim 1000 --share 0.01
    PYTHONPATH=tests .venv/bin/python -m large_rounds --agents 1000000 --dim 10 --share 0.001

Fed-PLT in float32 on the cohort engine with a checkpoint in every round: at first some rounds, then
as many more of a second process that resumes. Every agent has two examples, views of one pool, and
the cohort's stacks hold them with their signs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from benchmarks.coordinator import peak_kilobytes
from privet.kernel import stream
from privet.problems import L2, BinaryLogistic
from privet.rounds.keep.checkpoint import parts_beside, read_manifest
from privet.rounds.observers import Checkpoints
from privet.sim.inline import grid_of
from privet.sim.logs import quiet
from privet.strategies import FedPLT, Fraction

EXAMPLES, POOL = 2, 20_000
Seconds = NDArray[np.float64]


class Looks:
    """The clock's and the processor's seconds before and after every checkpoint, and its bytes.

    Attributes
    ----------
    whole : list of bool
        Which of them hold all, and not what changed alone.
    folder : list of int
        Bytes of all files of checkpoints after each.
    """

    def __init__(self) -> None:
        self.begun: list[Seconds] = []
        self.ended: list[Seconds] = []
        self.sizes: list[int] = []
        self.whole: list[bool] = []
        self.folder: list[int] = []
        write = Checkpoints._write

        def timed(observer: Checkpoints, run: Any) -> None:
            self.begun.append(now())
            write(observer, run)
            self.ended.append(now())
            path = observer.path
            self.sizes.append(path.stat().st_size)
            self.whole.append(not read_manifest(path)["parts"])
            files = [*path.parent.glob("checkpoint*.npz"), *parts_beside(path).glob("*")]
            bytes_of = {file.stat().st_ino: file.stat().st_size for file in files}  # of links once
            self.folder.append(sum(bytes_of.values()))

        Checkpoints._write = timed  # type: ignore[method-assign]

    def mean(self, *, whole: bool) -> tuple[Seconds, float]:
        """Return the mean seconds and megabytes of the whole ones, or of the others."""
        which = [place for place, one in enumerate(self.whole) if one is whole]
        spent = np.subtract(self.ended, self.begun)[which]
        return spent.mean(axis=0), float(np.mean(np.array(self.sizes)[which])) / 1e6


def now() -> Seconds:
    return np.array([time.monotonic(), time.process_time()])


def said(seconds: Seconds) -> str:
    clock, processor = seconds.round(3).tolist()
    return f"{clock} s, {processor} s of the processor"


def problems(agents: int, dim: int) -> list[BinaryLogistic]:
    """Return the agents' problems, of two examples each from one pool."""
    rng = stream(0, "bench")
    features = rng.standard_normal((POOL, dim), dtype=np.float32)
    signs = np.where(rng.random(POOL) < 0.5, -1, 1)
    term = L2(0.5)
    begins = np.arange(agents) * EXAMPLES % (POOL - EXAMPLES)
    return [
        BinaryLogistic(features[at : at + EXAMPLES], signs[at : at + EXAMPLES], regularizer=term)
        for at in begins.tolist()
    ]


def play(given: argparse.Namespace, folder: Path, *, resume: bool) -> dict[str, Any]:
    """Play rounds, from the start or from the checkpoint of a folder; return what they cost."""
    quiet()
    idle, looks, begun = peak_kilobytes(), Looks(), now()
    grid = grid_of("fed-plt", problems(given.agents, given.dim), engine="cohort")
    made = now()
    strategy = FedPLT(num_agents=given.agents, participation=Fraction(given.share), local_epochs=5)
    result = strategy.start(
        grid,
        ArrayRecord({"x": Array(np.zeros(given.dim, np.float32))}),
        num_rounds=given.rounds * (2 if resume else 1),
        checkpoint=folder / "checkpoint.npz",
        checkpoint_every=1,
        log_rounds=False,
        **({"resume": folder} if resume else {}),
    )
    played = result.history[-given.rounds :]
    assert all(len(done.participants) == round(given.agents * given.share) for done in played)
    rounds = np.mean(np.subtract(looks.begun[1:], looks.ended[:-1]), axis=0)
    return {
        "agents and engine": said(made - begun),
        "resume" if resume else "enrolment": said(looks.begun[0] - made - rounds),
        "a round": said(rounds),
        "rounds a second": round(1 / rounds[0], 2),
        **{
            f"a checkpoint of {kind}": f"{said(spent)}, {size:.1f} MB"
            for kind, (spent, size) in (
                ("all", looks.mean(whole=True)),
                ("what changed", looks.mean(whole=False)),
            )
        },
        "all checkpoints on a round": round(
            float(np.subtract(looks.ended, looks.begun)[:, 1].mean() / rounds[1]), 3
        ),
        "files of checkpoints, MB at most": round(max(looks.folder) / 1e6, 1),
        "peak, MB": peak_kilobytes() // 1024,
        "of it idle, MB": idle // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=1000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", default="")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    if given.folder:
        print(json.dumps(play(given, Path(given.folder), resume=given.resume)), flush=True)
        return
    print(f"{given.agents:,} agents, d = {given.dim:,}, {given.share:g} of them a round, float32")
    with tempfile.TemporaryDirectory() as folder:
        for more in ([], ["--resume"]):
            command = [sys.executable, "-m", "large_rounds", *sys.argv[1:], "--folder", folder]
            done = subprocess.run([*command, *more], check=True, stdout=subprocess.PIPE, text=True)
            print("resumed:" if more else "from the start:")
            for name, value in json.loads(done.stdout.splitlines()[-1]).items():
                print(f"  {name}: {value}", flush=True)
    print("load:", *(f"{each:.1f}" for each in os.getloadavg()))


if __name__ == "__main__":
    main()
