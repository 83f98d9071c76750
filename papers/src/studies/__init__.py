"""The papers' tables, figures and theorems by one command, ``privet reproduce``; and replays.

A case is data, `runner.play` runs it on the in-process engine, a study turns the results into rows
with one of three verdicts, and `pages` writes them down.
"""

from .study import Case, Curve, Options, Outcome, Panel, Row, Setting, Study, Verdict

__all__ = [
    "Case",
    "Curve",
    "Options",
    "Outcome",
    "Panel",
    "Row",
    "Setting",
    "Study",
    "Verdict",
]
