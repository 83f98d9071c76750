"""Analyses of tables over several sites: what a site sums, and the step that the sums make.

Pure functions of arrays, which know no message: a description of columns, regressions, Cox models,
curves of survival. `Analysis` says what one is; `privet.strategies.analyses` has them as Flower
Strategies.
"""

from .analysis import Analysis
from .cox_result import CoxResult
from .frame import AnalysisError, Factor, Frame
from .glm_result import GlmResult
from .kaplan_meier_result import KaplanMeierResult

__all__ = [
    "Analysis",
    "AnalysisError",
    "CoxResult",
    "Factor",
    "Frame",
    "GlmResult",
    "KaplanMeierResult",
]
