"""The description of several sites' tables, as a Flower Strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from privet.agents.terms import PrivacyTerms
from privet.analyses.noised_description import NoisedLayout
from privet.client_apps.analyses.describe import CLIP, Agent
from privet.client_apps.analyses.half import AnalysisAgent
from privet.core import ConfigError
from privet.core.key import Config
from privet.data.agreement import Agreement
from privet.data.analysed import AnalysedTable, NoisedTable, noised_layout
from privet.rounds.account import privacy_of
from privet.rounds.half import HalfState, ServerHalf, Turn, Vector
from privet.rounds.uploads import Sums

from .base import AnalysisServer, AnalysisStrategy

_NEEDS_SCHEMA = (
    "a noised description is of the columns that a public schema states: give schema, to the "
    "coordinator and to every site"
)


@dataclass(frozen=True)
class Server(AnalysisServer):
    """Server half of a description."""

    agent: Agent = field(default_factory=Agent)


@dataclass(slots=True)
class NoisedState(HalfState):
    """The noised sum x (k,), and whose it is."""

    x: Vector
    positions: Vector = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class NoisedServer(ServerHalf[NoisedState]):
    """Server half of a noised description, which is one round."""

    state = NoisedState

    agent: Agent = field(default_factory=lambda: Agent(noised=True))
    layout: NoisedLayout | None = field(default=None, kw_only=True, compare=False)

    def informed(self, encoding: Agreement) -> ServerHalf[NoisedState]:
        if encoding.meaning is None:
            raise ConfigError(_NEEDS_SCHEMA)
        return replace(self, layout=noised_layout(encoding.meaning))

    def fold_sums(self, state: NoisedState, sums: Sums, turn: Turn) -> NoisedState:
        """Take the noised sum over the sites."""
        if not sums.positions:
            return state
        positions = np.array(sums.positions, np.float64)
        return NoisedState(sums.total("x"), positions, residual=0.0)

    def ended(self, state: NoisedState) -> bool:
        """Return whether there is a sum."""
        return len(state.positions) > 0

    def table(self, state: NoisedState) -> dict[str, Any]:
        """Return the table of the noised sum."""
        if self.layout is None:
            raise ConfigError(_NEEDS_SCHEMA)
        deviation = self.agent.noise_scale * math.sqrt(len(state.positions))
        return self.layout.table(state.x, deviation)


class Describe(AnalysisStrategy):
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

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> ServerHalf[Any]:
        noised = config.get("target-epsilon", 0.0) > 0 or config.get("noise-scale", 0.0) > 0
        if not noised:
            return super().half_of(config)
        if config.get("secure-sum"):
            raise ConfigError("secure-sum: a noised description is sent in the clear")
        agent = Agent.from_settings({**config, "noised": True})
        return NoisedServer.from_config(agent, config)

    def _set_up(self, config: Config, arguments: Mapping[str, Any]) -> None:
        super()._set_up(Config({**config, "clip": CLIP}), arguments)

    def _problem_of(self, agent: AnalysisAgent, table: Any) -> AnalysedTable:
        if isinstance(self.half, NoisedServer):
            return NoisedTable(agent.analysis, table)
        return super()._problem_of(agent, table)

    def table(self) -> dict[str, Any]:
        """Return the table, of a noised description with what it cost each site at most."""
        found = super().table()
        privacy = privacy_of(self.run.half, self.run.session) if found.get("noised") else None
        if privacy is not None and math.isfinite(privacy.epsilon):
            found |= {"epsilon": privacy.epsilon, "delta": privacy.delta}
        return found

    @property
    def length(self) -> int:
        if not isinstance(self.half, NoisedServer):
            return super().length
        if self.columns is None or not (width := noised_layout(self.columns).width):
            raise ConfigError(_NEEDS_SCHEMA)
        return width

    @property
    def most_rounds(self) -> int:
        return 1 if isinstance(self.half, NoisedServer) else super().most_rounds
