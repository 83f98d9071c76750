"""What ``privet tune`` prints: the settings of a search with their figures, the best first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privet.kernel import Moduli


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search: a summary line, and settings with their figures, the best first.

    ``use`` is a command that runs the best settings, or empty if none is good.
    """

    summary: str
    moduli: Moduli | None
    rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    use: str = ""

    def show(self, top: int, json_lines: bool) -> None:
        """Print the first rows, as a table or as JSON."""
        from rich.box import HORIZONTALS
        from rich.table import Table

        from privet.core.terminal import console
        from privet.server_apps.run_folder import to_json

        if json_lines:
            for settings, figures in self.rows[:top]:
                print(json.dumps(to_json({**settings, **figures}), allow_nan=False))
            return
        if self.moduli is not None:
            low, high = self.moduli.strong_convexity, self.moduli.smoothness
            print(f"strong convexity {low:.4g}, smoothness {high:.4g}")
        print(self.summary)
        # Without vertical lines, so that a key and its value stay on one line of 80 columns.
        table = Table(box=HORIZONTALS, show_lines=True, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("settings", overflow="fold")
        for name in self.rows[0][1]:
            table.add_column(name, justify="right", overflow="fold")
        for settings, figures in self.rows[:top]:
            chosen = "\n".join(f"{key} {_cell(value)}" for key, value in settings.items())
            table.add_row(chosen, *map(_cell, figures.values()))
        console().print(table)
        if self.use:
            print(self.use)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
