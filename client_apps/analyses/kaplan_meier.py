"""Curves of survival over several sites' rows: the agent half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet.analyses.analysis import Analysis
from privet.analyses.kaplan_meier import KaplanMeierAnalysis
from privet.core import ConfigError
from privet.core.key import setting

from .noised import NoisedAgent
from .survival_times import SurvivalTimes


@dataclass(frozen=True)
class Agent(SurvivalTimes, NoisedAgent):
    """Agent half of Kaplan-Meier curves: counts on a public grid of times, or one noised sum."""

    name: ClassVar[str] = "kaplan-meier"
    topic: ClassVar[str] = "Analyses"
    what: ClassVar[str] = "noised counts of survival curves"

    group_column: str = setting("", "column of groups, each with a curve; empty for one curve")
    time_unit: float = setting(
        1.0, "step of the grid of times, in the units of time-column", low=0, open_low=True
    )
    horizon: float = setting(
        0.0,
        "largest time, public, after which rows are censored; auto finds one",
        low=0,
        words={"auto": 0},
    )
    restriction: float = setting(
        0.0,
        "time until which the mean is taken; auto: the smallest of the groups' largest",
        low=0,
        words={"auto": 0},
    )

    def _analysis(self) -> Analysis[Any]:
        if self.asks_noise and (self.start_column or self.end_column or self.until):
            # One record's dates must not decide whether the others are summed.
            raise ConfigError(
                "start-column, end-column, until: noised curves take times from a column of "
                "numbers: write the durations into one, and set time-column"
            )
        return KaplanMeierAnalysis(
            *self.times,
            self.entry_column,
            "" if self.start_column else self.event_level,
            self.group_column,
            self.strata_column,
            self.time_unit,
            self.horizon,
            self.restriction,
        )
