"""The generalised linear model of several sites' rows, as a Flower Strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from privet.analyses.glm_result import GlmResult
from privet.client_apps.analyses.glm import Agent

from .base import AnalysisServer, AnalysisStrategy


@dataclass(frozen=True)
class Server(AnalysisServer):
    """Server half of a generalised linear model."""

    agent: Agent = field(default_factory=Agent)


class GLM(AnalysisStrategy):
    """The regression table of the pooled rows: logistic, Poisson or Gaussian.

    Newton's method on the sums of the sites' scores and information matrices, which ends where the
    pooled rows' estimate is (`privet.analyses.glm`).

    Who is summed when some are absent: the sites of a round; if others reply than before, the
    analysis begins again with them.
    Privacy: none; sums are un-noised. With ``secure-sum`` the server sees sums over sites alone.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent,)
    server_half: ClassVar[Any] = Server
    positional = ("formula",)

    @staticmethod
    def fitted(table: Mapping[str, Any]) -> GlmResult:
        """Return the table as a `GlmResult`."""
        return GlmResult(table)
