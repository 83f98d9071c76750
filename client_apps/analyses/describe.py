"""The description of a table: the agent half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet.analyses.analysis import Analysis
from privet.analyses.description import DescribeAnalysis
from privet.core import ConfigError
from privet.core.key import setting

from .noised import NoisedAgent


@dataclass(frozen=True)
class Agent(NoisedAgent):
    """Agent half of a description: counts and sums of each column, or one noised sum."""

    name: ClassVar[str] = "describe"
    topic: ClassVar[str] = "Analyses"
    what: ClassVar[str] = "noised sums of a description"

    only: str = setting("", "columns to describe, separated by commas; empty: all")
    by: str = setting(
        "", "column by whose groups the others are described as well, as in a table 1; empty: none"
    )

    def _analysis(self) -> Analysis[Any]:
        if self.asks_noise and self.by:
            raise ConfigError("by: a noised description has no groups: leave it out")
        return DescribeAnalysis(self.only, self.by)
