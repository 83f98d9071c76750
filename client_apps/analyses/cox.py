"""Cox's model, stratified by site: the agent half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet.analyses.analysis import Analysis
from privet.analyses.cox import CoxAnalysis
from privet.analyses.pooled_cox import PooledCox
from privet.core import ConfigError
from privet.core.key import same, setting
from privet.data.frames import FrameSettings

from .glm import Agent as GlmAgent
from .kaplan_meier import Agent as CurvesAgent
from .survival_times import SurvivalTimes


@dataclass(frozen=True)
class Agent(SurvivalTimes):
    """Agent half of a Cox model: sums of score and information of the site's own risk sets."""

    name: ClassVar[str] = "cox"
    topic: ClassVar[str] = "Analyses"

    formula: str = same(GlmAgent, "formula")
    ties: str = setting("efron", "how deaths at one time are counted", choices=("efron", "breslow"))
    baseline: str = setting(
        "site",
        "whose baseline hazard: each site its own, or pooled, one for all, by sums over those at "
        "risk at each time of death",
        choices=("site", "pooled"),
    )
    time_unit: float = same(CurvesAgent, "time_unit", needs={"baseline": "pooled"})
    weight_column: str = same(GlmAgent, "weight_column")
    firth: bool = same(GlmAgent, "firth")
    id_column: str = same(FrameSettings, "id_column")

    @property
    def pools_baseline(self) -> bool:
        """Whether it sums over those at risk at each time of an event."""
        return self.baseline == "pooled"

    def _analysis(self) -> Analysis[Any]:
        event_level = "" if self.start_column else self.event_level
        if self.baseline == "site":
            return CoxAnalysis(
                *(*self.times, self.entry_column, event_level, self.formula, self.ties),
                *(self.weight_column, self.strata_column, self.id_column, self.firth),
            )
        for key, value in (("strata-column", self.strata_column), ("firth", self.firth)):
            if value:
                raise ConfigError(f"{key}: not with baseline = pooled")
        return PooledCox(
            *(*self.times, self.entry_column, event_level, self.formula, self.ties),
            *(self.weight_column, self.id_column, self.time_unit),
        )
