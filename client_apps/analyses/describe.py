"""The description of a table: the agent half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet.core.key import setting
from privet.problems.analyses.analysis import Analysis
from privet.problems.analyses.description import Describe

from .half import AnalysisAgent


@dataclass(frozen=True)
class Agent(AnalysisAgent):
    """Agent half of a description: counts and sums of each column."""

    name: ClassVar[str] = "describe"

    only: str = setting("", "columns to describe, separated by commas; empty: all")

    def _analysis(self) -> Analysis[Any]:
        return Describe(self.only)
