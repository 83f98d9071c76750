"""`AnalysisAgent`: the agent half of any analysis."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from flwr.app import Context

from privet.agents.guard import node_rules
from privet.agents.half import Arrays, Half, Local, Streams
from privet.agents.terms import MessageTerms
from privet.analyses.analysis import Analysis
from privet.analyses.frame import AnalysisError
from privet.core import ConfigError
from privet.core.key import same
from privet.data.analysed import AnalysedTable, as_table
from privet.data.context import agreed_encoding
from privet.data.frames import SiteTable
from privet.kernel import Problem, Records
from privet.wire.ring import Overflow


@dataclass(frozen=True)
class AnalysisAgent(Half):
    """It keeps no state, and sends sums over its records at the point that was broadcast.

    Privacy: none; every sum is un-noised, and is sent only by nodes whose rules let it. With
    ``secure-sum`` the server sees sums over the sites alone.
    """

    reads_tables: ClassVar[bool] = True
    repeats: ClassVar[bool] = True
    upload: ClassVar[str] = "sums"

    secure_sum: bool = same(MessageTerms, "secure_sum")

    @cached_property
    def analysis(self) -> Analysis[Any]:
        """The analysis of these settings (raises ``ConfigError``)."""
        made = self._analysis()
        try:
            made.columns  # noqa: B018 (it reads the formula, before any table is read)
        except AnalysisError as error:
            raise ConfigError(str(error)) from None
        return made

    @abstractmethod
    def _analysis(self) -> Analysis[Any]:
        """Return the analysis of these settings."""

    def prepared(self, table: Any, own: bool = False) -> SiteTable:
        """Return a table, or what stands for one, with the columns that are made of others.

        ``own`` says that it is the site's own, whose categories others do not know.

        Raises
        ------
        DataError
            If one of these cannot be used.
        """
        return as_table(table)

    def of_table(self, table: Any, context: Context) -> Problem:
        own = "data-path" in context.node_config
        return AnalysedTable(
            *(self.analysis, self.prepared(table, own), agreed_encoding(context)),
            own=own,
            rules=node_rules(context).analyses,
            masked=self.secure_sum,
        )

    def overflow(self, broadcast: Arrays) -> Overflow:
        """Return that sums wrap or are bounded: in which units they are is the coordinator's word.

        An upload that is refused where a sum is too large would say of the site's own sums, one
        question after the other, what they are.
        """
        return "clip" if self.analysis.saturates(broadcast) else "wrap"

    def local_update(
        self, state: Arrays, broadcast: Arrays, records: Records, streams: Streams
    ) -> Local:
        """Return the sums at the broadcast point, by name in order."""
        sums = dict(sorted(records.statistics(broadcast).items()))
        return self.conclude(state, broadcast, sums, records, streams)
