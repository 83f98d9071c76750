"""Problems that misbehave when a file says so, in whatever process they are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from privet.problems import BinaryLogistic


class Trapped(BinaryLogistic):
    """Waits for the end of its process once the file ``trap`` exists, and says that it does."""

    def __init__(self, problem: BinaryLogistic, trap: Path) -> None:
        super().__init__(problem.features, problem.labels, regularizer=problem.regularizer)
        self.trap = trap

    @property
    def caught(self) -> Path:
        """The file that is there once the problem waits."""
        return self.trap.with_suffix(".caught")

    def gradient(self, x: Any, rows: Any = None) -> Any:
        """Return the gradient, unless the trap is set."""
        if self.trap.exists():
            self.caught.touch()
            time.sleep(60.0)
        return super().gradient(x, rows)
