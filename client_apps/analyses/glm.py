"""The generalised linear model of several sites' rows: the agent half."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from privet.analyses.analysis import Analysis
from privet.analyses.evaluation import HELD_OUT, EvaluatedGlm
from privet.analyses.family import FAMILIES
from privet.analyses.glm import Glm
from privet.core.key import setting
from privet.data.analysed import as_table
from privet.data.frames import SiteTable
from privet.data.held_out import hold_out

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

    complete_cases: str = setting(
        "",
        "further columns, separated by commas, in which a row has to have a value, such as those "
        "of a larger model that is compared with nested-run; empty: none",
    )

    evaluate: bool = setting(
        False,
        "evaluate the model by sums: AUC with its bound, Brier's score, calibration; at nodes with "
        "min-cell in secure sums alone",
        needs={"family": "binomial"},
    )
    hold_out: bool = setting(
        False,
        "fit four fifths of the rows of each site, and evaluate the others",
        needs={"evaluate": True},
    )

    def prepared(self, table: Any, own: bool = False) -> SiteTable:
        found = as_table(table)
        if not self.hold_out:
            return found
        # Not of a seed that a coordinator chooses: fits of many choices differ by few rows.
        _, held = hold_out(found.frame.rows, 0, None, found.persons)
        marks = np.zeros(found.frame.rows)
        marks[held] = 1.0
        numbers = {**found.frame.numbers, HELD_OUT: marks}
        return found._replace(frame=replace(found.frame, numbers=numbers))

    def _analysis(self) -> Analysis[Any]:
        model = Glm(
            self.family,
            self.formula,
            self.exposure_column,
            self.offset_column,
            self.weight_column,
            self.firth,
            complete_cases=self.complete_cases,
        )
        return EvaluatedGlm(model, self.hold_out) if self.evaluate else model
