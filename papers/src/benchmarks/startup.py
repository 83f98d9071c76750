"""Processor seconds of the command before it does anything, beside those of Flower's command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .figure import Figure, Show

HELP_GOAL, RUN_GOAL, TRIES = 0.3, 1.5, 5

BEFORE_ROUND_1 = """
import os, sys, time
from privet.rounds.flower.base import PrimalDualStrategy

def begun(self, grid, number):
    print(time.process_time(), flush=True)
    os._exit(0)

PrimalDualStrategy.play_round = begun
from privet.cli.main import main
main(["run", "output-dir=" + sys.argv[1]])
"""


def bench_startup(show: Show, *, quick: bool = False) -> None:
    """Take the least of some tries, as other work on the machine only adds."""
    tries = 1 if quick else TRIES
    folder = Path(sys.executable).parent
    for words, goal in (
        (("flwr", "--help"), None),
        (("privet", "--help"), HELP_GOAL),
        (("privet", "keys"), HELP_GOAL),
    ):
        seconds = min(_spent([str(folder / words[0]), *words[1:]]) for _ in range(tries))
        show(Figure("startup", " ".join(words), "CPU seconds", seconds, goal, at_least=False))
    with TemporaryDirectory() as runs:
        command = [sys.executable, "-c", BEFORE_ROUND_1, runs]
        seconds = min(float(_output(command).split()[-1]) for _ in range(tries))
    case = "privet run, to round 1"
    show(Figure("startup", case, "CPU seconds", seconds, RUN_GOAL, at_least=False))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _spent(command: Sequence[str]) -> float:
    """Return the processor seconds of a command and what it starts."""
    before = os.times()
    _output(command)
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system
