"""``python -m peers.play NAME WORK MODEL``: play the work, save the model, print what it cost."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np

from .work import Work

PACKAGES = {"decent-bench": "decent_bench", "fedjax": "fedjax", "fluke-fl": "fluke", "pfl": "pfl"}
"""Names of the peers, with the modules that they install and that play them here."""


def main(name: str, work: str, model: str) -> None:
    """Print the peer's version and the least processor seconds of a round after the first."""
    marks: list[float] = []
    player = import_module(f".{PACKAGES[name]}", __package__)
    gc.disable()
    end = player.play(Work.load(Path(work)), lambda: marks.append(time.process_time()))
    np.save(model, np.asarray(end, np.float64).ravel())
    seconds = min(after - before for before, after in itertools.pairwise(marks))
    print(json.dumps({"version": version(name), "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
