"""Cox's model over several sites' rows, as a Flower Strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from privet.analyses.cox_result import CoxResult
from privet.client_apps.analyses.cox import Agent

from .base import AnalysisServer, AnalysisStrategy


@dataclass(frozen=True)
class Server(AnalysisServer):
    """Server half of a Cox model."""

    agent: Agent = field(default_factory=Agent)


class Cox(AnalysisStrategy):
    """The Cox model of the pooled rows, stratified by site.

    Newton's method on the sum of the sites' partial likelihoods, which ends where the pooled rows'
    estimate with strata = site is (`privet.analyses.cox`).

    Who is summed when some are absent: the sites of a round; if others reply than before, the
    analysis begins again with them.
    Privacy: none; sums are un-noised. With ``secure-sum`` the server sees sums over sites alone.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent,)
    server_half: ClassVar[Any] = Server
    no_noise: ClassVar[str] = (
        "a record is in the risk sets of all earlier events, so no bound of what it moves is proved"
    )

    @staticmethod
    def fitted(table: Mapping[str, Any]) -> CoxResult:
        """Return the table as a `CoxResult`."""
        return CoxResult(table)
