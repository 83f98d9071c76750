"""Other libraries on the same work as ours, each in a process of its own.

Peers are no dependencies: the interpreters that have them are named, and one that nobody has is a
line. What a peer plays is in ``peers/``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privet.core import ConfigError
from privet.core.errors import said_of
from privet.kernel.records import FloatArray

from .figure import Figure, Show
from .peers.play import PACKAGES
from .peers.work import Work

TOLERANCE = 1e-3
"""Of a peer's decrease of the objective, relative to that of the same rounds played here.

A step more or less in a round is 1e-2 at least. A network in single precision, whose agents are
summed in another order, is 4e-4 off after three rounds; a convex problem 1e-7.
"""

_HAS = "import sys; from importlib.util import find_spec; sys.exit(find_spec(sys.argv[1]) is None)"


@dataclass(frozen=True)
class Played:
    """What a peer's process found: its version, processor seconds of a round, and its model."""

    version: str
    seconds: float
    model: FloatArray


class Peers:
    """The peers of a benchmark that one of the interpreters has; the others are a line each."""

    def __init__(self, names: Sequence[str], interpreters: Sequence[str]) -> None:
        self.interpreters: dict[str, str] = {}
        for name in names:
            found = next((each for each in interpreters if _has(each, PACKAGES[name])), None)
            if found is None:
                print(f"not installed: {name} (--peers names interpreters)", file=sys.stderr)
            else:
                self.interpreters[name] = found

    def play(self, work: Work, turns: int, own: Callable[[], object]) -> dict[str, Played]:
        """Let each play the work, in turns with ours; return the cheapest turn of each.

        One that fails is a line, and plays no more.
        """
        best: dict[str, Played] = {}
        with tempfile.TemporaryDirectory(prefix="privet-peers-") as folder:
            path = Path(folder, "work.npz")
            work.save(path)
            for _ in range(turns):
                own()
                for name, interpreter in list(self.interpreters.items()):
                    try:
                        played = play(name, interpreter, path)
                        if played.model.shape != work.start.shape:
                            raise RuntimeError(f"{name}: a model of shape {played.model.shape}")
                    except RuntimeError as error:
                        print(f"broken: {error}", file=sys.stderr)
                        del self.interpreters[name]
                        best.pop(name, None)
                        continue
                    if name not in best or played.seconds < best[name].seconds:
                        best[name] = played
        return best


def play(name: str, interpreter: str, work: Path) -> Played:
    """Play a work of `Work.save` with a peer.

    Raises
    ------
    RuntimeError
        If its process fails, with the last line of its errors, or what it leaves cannot be read.
    """
    model = work.with_name("model.npy")
    model.unlink(missing_ok=True)
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    done = subprocess.run(
        [interpreter, "-m", "peers.play", name, str(work), str(model)],
        cwd=Path(__file__).parent,
        env={**os.environ, **threads, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RuntimeError(f"{name} with {interpreter}: {why}")
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        return Played(found["version"], float(found["seconds"]), np.load(model))
    except (LookupError, ValueError, TypeError, OSError) as error:
        raise RuntimeError(f"{name} with {interpreter}: {said_of(error)}") from None


def show_difference(
    show: Show, bench: str, case: str, peer: str, objective: Sequence[float]
) -> None:
    """Show by how much a peer's objective differs: from (start, the peer's, the one expected)."""
    start, theirs, expected = objective
    off = abs(theirs - expected) / (start - expected)
    figure = f"{peer}, objective off by"
    show(Figure(bench, case, figure, off, TOLERANCE, at_least=False))


def _has(interpreter: str, module: str) -> bool:
    try:
        asked = subprocess.run([interpreter, "-c", _HAS, module], cwd="/", check=False)
    except OSError as error:
        raise ConfigError(f"--peers {interpreter}: {error.strerror}") from None
    return not asked.returncode
