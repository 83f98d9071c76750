"""Runs that are played once: their results are lines of a file, and what is there is not played."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def missing(**run: Any) -> dict[str, Any]:
    """Play nothing (raises ``LookupError``)."""
    raise LookupError(run)


class Runs:
    """Results of a function of keyword arguments, kept in a file of one JSON object a line."""

    def __init__(self, file: Path, play: Callable[..., dict[str, Any]] = missing) -> None:
        self.file, self.play = file, play
        lines = file.read_text().splitlines() if file.exists() else []
        self.found = {self._key(done["run"]): done for done in map(json.loads, lines)}

    @staticmethod
    def _key(run: dict[str, Any]) -> str:
        return json.dumps(run, sort_keys=True)

    def has(self, **run: Any) -> bool:
        """Return whether a run is in the file."""
        return self._key(run) in self.found

    def __call__(self, **run: Any) -> dict[str, Any]:
        """Return a run's results, played if they are not in the file."""
        key = self._key(run)
        if key not in self.found:
            self.found[key] = done = {"run": run, **self.play(**run)}
            with self.file.open("a") as file:
                file.write(json.dumps(done) + "\n")
            print(done, flush=True)
        return self.found[key]


def suite(
    about: str, sizes: Iterable[str], tasks: Iterable[str], methods: Iterable[str]
) -> argparse.ArgumentParser:
    """Return the command line of runs of methods on tasks, and of the page that is written."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("results", type=Path, help="docs/results")
    parser.add_argument("folder", type=Path, help="of the data")
    parser.add_argument("--size", choices=list(sizes), default="full")
    parser.add_argument("--task", choices=list(tasks), action="append", help="one task alone")
    parser.add_argument("--method", choices=list(methods), action="append", help="one alone")
    parser.add_argument("--write", action="store_true", help="play nothing, write what is there")
    return parser
