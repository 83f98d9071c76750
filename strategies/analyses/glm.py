"""The generalised linear model of several sites' rows, as a Flower Strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from privet.analyses.glm_begun import BegunModel
from privet.analyses.glm_result import GlmResult
from privet.client_apps.analyses.glm import Agent
from privet.core import ConfigError
from privet.core.key import Config, setting

from .base import AnalysisServer, AnalysisStrategy


@dataclass(frozen=True)
class Server(AnalysisServer):
    """Server half of a generalised linear model."""

    agent: Agent = field(default_factory=Agent)
    begun: BegunModel | None = field(default=None, kw_only=True, compare=False)

    def analysed(self) -> Any:
        found: Any = super().analysed()
        return found if self.begun is None else found.begun_at(self.begun)


@dataclass(frozen=True)
class RunKeys:
    """The run-config keys about other runs, which the coordinator alone reads."""

    topic: ClassVar[str] = "Analyses"

    start_run: str = setting(
        "",
        "run folder or model.npz of an unpenalised model, such as that of fed-plt, at which the "
        "regression's steps begin; formula may then be empty; absolute, or relative on the command "
        "line; empty: none",
        path=(),
    )
    nested_run: str = setting(
        "",
        "run folder or table.json of a smaller regression of the same rows, against which the "
        "likelihood is tested; absolute, or relative on the command line; empty: none",
        path=(),
    )


class GLM(AnalysisStrategy):
    """The regression table of the pooled rows: logistic, Poisson or Gaussian.

    Newton's method on the sums of the sites' scores and information matrices, which ends where the
    pooled rows' estimate is (`privet.analyses.glm`).

    Who is summed when some are absent: the sites of a round; if others reply than before, the
    analysis begins again with them.
    Privacy: none; sums are un-noised. With ``secure-sum`` the server sees sums over sites alone.
    """

    algorithm: ClassVar[str] = Agent.name
    settings: ClassVar[tuple[type, ...]] = (Agent, RunKeys)
    server_half: ClassVar[Any] = Server
    positional = ("formula",)

    def _set_up(self, config: Config, arguments: Mapping[str, Any]) -> None:
        super()._set_up(config, arguments)
        if arguments.get("start_run"):
            raise ConfigError(
                "start_run: privet run and flwr run read a run's folder; in Python give begin_at "
                "what privet.server_apps.regression_start.begun_model returns of it"
            )
        if arguments.get("nested_run"):
            raise ConfigError(
                "nested_run: in Python give a result's compare_lr_test the smaller one"
            )

    def begin_at(self, model: BegunModel) -> None:
        """Have Newton's steps begin at another method's model."""
        half: Any = self.half
        self.half = replace(half, begun=model)

    @staticmethod
    def fitted(table: Mapping[str, Any]) -> GlmResult:
        """Return the table as a `GlmResult`."""
        return GlmResult(table)
