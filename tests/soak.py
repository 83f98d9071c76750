"""A long run in process: time a round, memory and files are to stay as they are.

PYTHONPATH=tests .venv/bin/python -m soak --rounds 20000 --agents 50
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from chaos import resident

from privet.rounds.keep.checkpoint import HistoryFile
from privet.sim.inline import run_inline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--agents", type=int, default=50)
    given = parser.parse_args()
    looks = sorted({given.rounds * share // 20 for share in (1, 2, 5, 10, 15, 20)})
    append, last = HistoryFile.append, [0, time.process_time()]
    print("| round | CPU a round | resident | checkpoint | history |", flush=True)
    print("| --- | --- | --- | --- | --- |", flush=True)

    def look(self: HistoryFile, done: object) -> None:
        append(self, done)  # type: ignore[arg-type]
        if (number := done.round) not in looks:  # type: ignore[attr-defined]
            return
        spent, begun = time.process_time(), last[1]
        each = (spent - begun) / (number - last[0])
        last[:] = [number, spent]
        files = (self.path.with_name("checkpoint.npz"), self.path)
        sizes = [file.stat().st_size / 1e3 for file in files]
        print(
            f"| {number:,} | {1e3 * each:.1f} ms | {resident(os.getpid())} MB "
            f"| {sizes[0]:,.0f} kB | {sizes[1]:,.0f} kB |",
            flush=True,
        )

    HistoryFile.append = look  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        keys = {"dataset": "synthetic", "examples-per-agent": 20, "local-epochs": 2}
        run_inline(
            {
                **keys, "num-agents": given.agents, "num-server-rounds": given.rounds,
                "checkpoint-every": 100, "evaluate-every": 1000, "output-dir": str(Path(folder)),
            },
            "soak",
        )  # fmt: skip


if __name__ == "__main__":
    main()
