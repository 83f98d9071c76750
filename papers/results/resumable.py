"""Runs that are played once: their results are lines of a file, and what is there is not played."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Runs:
    """Results of a function of keyword arguments, kept in a file of one JSON object a line."""

    def __init__(self, file: Path, play: Callable[..., dict[str, Any]]) -> None:
        self.file, self.play = file, play
        lines = file.read_text().splitlines() if file.exists() else []
        self.found = {self._key(done["run"]): done for done in map(json.loads, lines)}

    @staticmethod
    def _key(run: dict[str, Any]) -> str:
        return json.dumps(run, sort_keys=True)

    def __call__(self, **run: Any) -> dict[str, Any]:
        """Return a run's results, played if they are not in the file."""
        key = self._key(run)
        if key not in self.found:
            self.found[key] = done = {"run": run, **self.play(**run)}
            with self.file.open("a") as file:
                file.write(json.dumps(done) + "\n")
            print(done, flush=True)
        return self.found[key]
