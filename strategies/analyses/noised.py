"""Analyses that have a form by one noised sum: their server half and strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privet.analyses.analysis import NoisedSums
from privet.analyses.frame import AnalysisError
from privet.client_apps.analyses.half import AnalysisAgent
from privet.client_apps.analyses.noised import CLIP, NoisedAgent
from privet.core import ConfigError
from privet.core.key import Config
from privet.data.agreement import Agreement
from privet.data.analysed import AnalysedTable, NoisedTable, noised_sums
from privet.data.meaning import Meaning
from privet.rounds.account import privacy_of
from privet.rounds.half import HalfState, ServerHalf, Turn, Vector
from privet.rounds.uploads import Sums

from .base import AnalysisStrategy

_NEEDS_SCHEMA = (
    "a noised sum is of the columns that a public schema states: give schema, to the coordinator "
    "and to every site"
)


@dataclass(slots=True)
class NoisedState(HalfState):
    """The noised sum x (k,), and whose it is."""

    x: Vector
    positions: Vector = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class NoisedServer(ServerHalf[NoisedState]):
    """Server half of an analysis by a noised sum, which is one round."""

    state = NoisedState

    agent: NoisedAgent
    sums: NoisedSums | None = field(default=None, kw_only=True, compare=False)

    def informed(self, encoding: Agreement) -> ServerHalf[NoisedState]:
        if encoding.meaning is None:
            raise ConfigError(_NEEDS_SCHEMA)
        return replace(self, sums=sums_of(encoding.meaning, self.agent))

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
        if self.sums is None:
            raise ConfigError(_NEEDS_SCHEMA)
        deviation = self.agent.noise_scale * math.sqrt(len(state.positions))
        return self.sums.table(state.x, deviation)


def sums_of(meaning: Meaning, agent: AnalysisAgent) -> NoisedSums:
    """Return the noised sum of an agent's analysis (raises ``ConfigError``)."""
    try:
        return noised_sums(meaning, agent.analysis)
    except AnalysisError as error:
        raise ConfigError(str(error)) from None


class NoisedStrategy(AnalysisStrategy):
    """An analysis that is one noised sum where ``target_epsilon`` or ``noise_scale`` is above 0."""

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> ServerHalf[Any]:
        noised = config.get("target-epsilon", 0.0) > 0 or config.get("noise-scale", 0.0) > 0
        if not noised:
            return super().half_of(config)
        if config.get("secure-sum"):
            raise ConfigError(f"secure-sum: a noised {cls.algorithm} is sent in the clear")
        agent = cls.settings[0].from_settings({**config, "noised": True})  # type: ignore[attr-defined]
        return NoisedServer.from_config(agent, config)

    def _set_up(self, config: Config, arguments: Mapping[str, Any]) -> None:
        super()._set_up(Config({**config, "clip": CLIP}), arguments)

    def _problem_of(self, agent: AnalysisAgent, table: Any) -> AnalysedTable:
        if isinstance(self.half, NoisedServer):
            made = NoisedTable(agent.analysis, agent.prepared(table))
            if made.table.dependence:
                raise ConfigError(f"a noised {self.algorithm} refuses it: {made.table.dependence}")
            return made
        return super()._problem_of(agent, table)

    def table(self) -> dict[str, Any]:
        """Return the table, of a noised sum with what it cost each site at most."""
        found = super().table()
        privacy = privacy_of(self.run.half, self.run.session) if found.get("noised") else None
        if privacy is not None and math.isfinite(privacy.epsilon):
            found |= {"epsilon": privacy.epsilon, "delta": privacy.delta}
        return found

    @property
    def length(self) -> int:
        if not isinstance(self.half, NoisedServer):
            return super().length
        if self.columns is None or not (width := sums_of(self.columns, self.half.agent).width):
            raise ConfigError(_NEEDS_SCHEMA)
        return width

    @property
    def most_rounds(self) -> int:
        return 1 if isinstance(self.half, NoisedServer) else super().most_rounds
