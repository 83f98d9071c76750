"""Cox's model, stratified by site: the agent half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet.analyses.analysis import Analysis
from privet.analyses.cox import CoxAnalysis
from privet.core.key import same, setting
from privet.data.frames import FrameSettings

from .glm import Agent as GlmAgent
from .survival_times import SurvivalTimes


@dataclass(frozen=True)
class Agent(SurvivalTimes):
    """Agent half of a Cox model: sums of score and information of the site's own risk sets."""

    name: ClassVar[str] = "cox"
    topic: ClassVar[str] = "Analyses"

    formula: str = same(GlmAgent, "formula")
    ties: str = setting("efron", "how deaths at one time are counted", choices=("efron", "breslow"))
    weight_column: str = same(GlmAgent, "weight_column")
    firth: bool = same(GlmAgent, "firth")
    id_column: str = same(FrameSettings, "id_column")

    def _analysis(self) -> Analysis[Any]:
        return CoxAnalysis(
            *self.times,
            self.entry_column,
            "" if self.start_column else self.event_level,
            self.formula,
            self.ties,
            self.weight_column,
            self.strata_column,
            self.id_column,
            self.firth,
        )
