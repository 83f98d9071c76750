"""The description of several sites' tables, as a Flower Strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from privet.client_apps.analyses.describe import Agent

from .base import AnalysisServer, AnalysisStrategy


@dataclass(frozen=True)
class Server(AnalysisServer):
    """Server half of a description."""

    agent: Agent = field(default_factory=Agent)


class Describe(AnalysisStrategy):
    """Counts, missing values, means, deviations, quantiles and categories of all columns.

    Who is summed when some are absent: the sites that reply; one that is away the whole time is
    named in the table.
    Privacy: none; sums are un-noised. With ``secure-sum`` the server sees sums over sites alone.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent,)
    server_half: ClassVar[Any] = Server
