"""Analyses of tables over several sites, as Flower Strategies."""

from .base import AnalysisResult, AnalysisStrategy
from .cox import Cox
from .describe import Describe
from .glm import GLM
from .kaplan_meier import KaplanMeier

__all__ = ["GLM", "AnalysisResult", "AnalysisStrategy", "Cox", "Describe", "KaplanMeier"]
