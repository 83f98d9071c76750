"""The generalised linear model of several sites' rows: the agent half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet.analyses.analysis import Analysis
from privet.analyses.family import FAMILIES
from privet.analyses.glm import Glm
from privet.core.key import setting

from .half import AnalysisAgent


@dataclass(frozen=True)
class Agent(AnalysisAgent):
    """Agent half of a generalised linear model: sums of score, information and likelihood."""

    name: ClassVar[str] = "glm"
    topic: ClassVar[str] = "Analyses"

    family: str = setting(
        "binomial", "distribution of the outcome, with its canonical link", choices=FAMILIES
    )
    formula: str = setting(
        "",
        "outcome and terms, such as died ~ age + C(smoker, ref='never') + sex:bmi + log(crp); "
        "where it may be empty, all other columns",
    )
    exposure_column: str = setting(
        "", "column whose logarithm is added to the linear predictor; empty: none"
    )
    offset_column: str = setting(
        "", "column that is added to the linear predictor as it is; empty: none"
    )
    weight_column: str = setting(
        "",
        "column of weights: the variance of a row's outcome is divided by its weight; empty: none",
    )
    firth: bool = setting(
        False, "add Firth's penalty, which gives separated outcomes finite estimates"
    )

    def _analysis(self) -> Analysis[Any]:
        return Glm(
            self.family,
            self.formula,
            self.exposure_column,
            self.offset_column,
            self.weight_column,
            self.firth,
        )
