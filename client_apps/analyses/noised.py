"""`NoisedAgent`: the agent half of an analysis that has a form by one noised sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flwr.app import Context

from privet.agents.half import Arrays, Local, Streams
from privet.core.key import same, setting
from privet.data.analysed import NoisedTable
from privet.data.context import agreed_encoding
from privet.kernel import Facts, Problem, Records, Relation, Release
from privet.kernel.programs.statistics import Statistics

from ..gradient_agents import ClippedGradients, GradientAgent
from .half import AnalysisAgent

CLIP = 1.0
"""The l2 norm of what a record adds to the noised sum."""


@dataclass(frozen=True)
class NoisedAgent(AnalysisAgent):
    """It sends the analysis' sums, or one noised sum.

    Privacy: with ``noise_scale`` > 0 the upload is one Gaussian release: what a record adds is a
    vector without entries below 0 and of l2 norm at most 1, so that replacing one moves the sum by
    at most the root of 2 (`privet.kernel.programs.statistics`). Else it is un-noised.
    """

    noise_key: ClassVar[str] = "noise-scale"
    steady: ClassVar[bool] = True
    what: ClassVar[str] = ""
    """What the ledger calls the noised sum."""

    noised: bool = setting(
        False,
        "one noised sum over the columns of a schema; target-epsilon and noise-scale ask for it",
    )
    noise_scale: float = same(GradientAgent, "noise_scale")
    relation: Relation = same(ClippedGradients, "relation")

    @property
    def private(self) -> bool:
        """Whether the node adds noise to its sum."""
        return self.noise_scale > 0

    @property
    def asks_noise(self) -> bool:
        """Whether the sum is to be noised."""
        return self.noised or self.private

    @property
    def clip(self) -> float:
        """The norm that a record's summands are clipped to; 0 without noise."""
        return CLIP if self.private else 0.0

    @property
    def clipping(self) -> Any:
        return "update"

    @property
    def _program(self) -> Statistics:
        return Statistics(CLIP, self.relation)

    def noised_release(self, facts: Facts, round_: int) -> Release:
        """Return the release of the one sum."""
        return self._program.release(facts, self.noise_scale, self.what)

    def of_table(self, table: Any, context: Context) -> Problem:
        if self.asks_noise:
            analysis = self.analysis  # what settings alone refuse, before the table is used
            return NoisedTable(analysis, self.prepared(table), agreed_encoding(context))
        return super().of_table(table, context)

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Return the sums at the broadcast point, or the noised sum."""
        if not records.charged:
            return super().local_update(state, broadcast, records, streams)
        noised = records.noised_statistics(self._program, {})
        return self.conclude(state, broadcast, {"x": noised}, records, streams)
