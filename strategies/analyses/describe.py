"""The description of several sites' tables, as a Flower Strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from privet.agents.terms import PrivacyTerms
from privet.client_apps.analyses.describe import Agent

from .base import AnalysisServer
from .noised import NoisedStrategy


@dataclass(frozen=True)
class Server(AnalysisServer):
    """Server half of a description."""

    agent: Agent = field(default_factory=Agent)


class Describe(NoisedStrategy):
    """Counts, missing values, means, deviations, quantiles and categories of all columns.

    Who is summed when some are absent: the sites that reply; one that is away the whole time is
    named in the table.
    Privacy: un-noised, unless ``target_epsilon`` or ``noise_scale`` is above 0: then one noised sum
    is all that leaves a site, a Gaussian release of its ledger's, of the columns whose ranges and
    categories a public schema states. With ``secure_sum`` the server sees sums over sites alone.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent, PrivacyTerms)
    server_half: ClassVar[Any] = Server
