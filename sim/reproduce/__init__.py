"""Every table and figure of the papers by one command: ``privet reproduce``."""

from .study import Case, Curve, Entry, Options, Outcome, Panel, Result, Study

__all__ = ["Case", "Curve", "Entry", "Options", "Outcome", "Panel", "Result", "Study"]
