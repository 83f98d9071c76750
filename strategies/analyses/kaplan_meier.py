"""Curves of survival over several sites' rows, as a Flower Strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from privet.agents.terms import PrivacyTerms
from privet.analyses.kaplan_meier_result import KaplanMeierResult
from privet.client_apps.analyses.kaplan_meier import Agent

from .base import AnalysisServer
from .noised import NoisedStrategy


@dataclass(frozen=True)
class Server(AnalysisServer):
    """Server half of Kaplan-Meier curves."""

    agent: Agent = field(default_factory=Agent)


class KaplanMeier(NoisedStrategy):
    """Kaplan-Meier curves by group, numbers at risk, medians, and log-rank tests.

    Who is summed when some are absent: the sites of a round; if others reply than before, the
    analysis begins again with them.
    Privacy: un-noised, unless ``target_epsilon`` or ``noise_scale`` is above 0: then one noised sum
    of counts on the grid up to ``horizon`` is all that leaves a site, a Gaussian release of its
    ledger's, of groups that a public schema states. With ``secure_sum`` the server sees sums over
    sites alone.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent, PrivacyTerms)
    server_half: ClassVar[Any] = Server

    @staticmethod
    def fitted(table: Mapping[str, Any]) -> KaplanMeierResult:
        """Return the table as a `KaplanMeierResult`."""
        return KaplanMeierResult(table)
