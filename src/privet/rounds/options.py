"""The options of a run: run-config keys and arguments that every algorithm's strategy takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from privet.agents.terms import MessageTerms
from privet.core import ConfigError
from privet.core.key import check_fields, same, setting
from privet.data import DataSettings
from privet.wire.rosters import LEAST_ROSTER

from .asynchrony import AsynchronySettings
from .participation import All, Fraction, Participation
from .robust import RobustSettings, require_most_right
from .server_steps import ServerStepSettings
from .speeds import SpeedSettings

MOST_AGENTS = 10_000_000
"""Agents of a run: of more, their names alone would fill a machine's memory."""


@dataclass(frozen=True)
class RunSettings(RobustSettings, ServerStepSettings, SpeedSettings, AsynchronySettings):
    """The settings of a run's waiting, seeds, sums and recovery; the fields are run-config keys."""

    topic: ClassVar[str] = "The run"

    num_agents: int = setting(
        10,
        "number of agents to wait for; auto starts with those already connected",
        low=0,
        high=MOST_AGENTS,
        words={"auto": 0},
    )
    min_agents: int = setting(
        1, "a round with fewer replies than this fails", low=1, operational=True
    )
    patience: float = setting(
        600.0,
        "seconds for which a failed round is retried; 0 ends the run at once",
        low=0,
        operational=True,
    )
    wait_timeout: float = setting(
        60.0, "seconds to wait for num-agents to connect", low=0, operational=True
    )
    round_timeout: float = setting(
        600.0,
        "seconds to wait for the replies of a round",
        low=0,
        open_low=True,
        operational=True,
    )
    seed: int = same(MessageTerms, "seed")
    secure_sum: bool = same(MessageTerms, "secure_sum")
    sum_threshold: int = same(MessageTerms, "sum_threshold")
    recover_by_name: str = setting(
        "auto",
        "who continues for an agent whose node is gone: the next node of its name (yes), that node "
        "from scratch (no), nobody else (node-key); auto: yes in simulation, else no",
        choices=("auto", "yes", "no", "node-key"),
        operational=True,
    )
    penalty_c: float = same(DataSettings, "penalty_c", needs={})
    on_divergence: str = setting(
        "warn",
        "if the residual or the loss blows up: go on, or end the run",
        choices=("warn", "stop"),
        operational=True,
    )

    def __post_init__(self) -> None:
        """Check every key, and refuse contradictions (raises ``ConfigError``)."""
        check_fields(self)
        if 0 < self.num_agents < self.min_agents:
            raise ConfigError(
                f"min-agents = {self.min_agents}: above num-agents = {self.num_agents}, so that "
                "every round would fail"
            )


@dataclass(frozen=True)
class RunOptions(RunSettings):
    """All options of a run: the settings, and further arguments of ``PrimalDualStrategy``.

    Attributes
    ----------
    min_available_nodes : int
        Nodes that must be connected before a round begins; 0 waits for none.
    agent_weights : str
        "equal", or "examples": agent i then counts n_i / mean n times.
    least_roster : int
        The least number of agents on the roster of a secure sum; lower only to replay given masks.
    rounds : int, optional
        The last round, as given to ``start``.
    folder : Path, optional
        The directory of tables and uploads that are too large for memory; None: all in memory.
    local_steps : str
        The run-config key of an agent's number of local steps.
    config : mapping
        The run-config keys that determine what is computed; a resume compares them.
    encoding : str
        What the columns of the coordinator's own data mean, as the text of a
        `privet.data.meaning.Meaning`; the agents' are put into its form. Empty where it has none.
    doubtful : bool
        Whether the log has doubts about the coordinator's own data.
    unattended : bool
        Whether a run is resumed with nobody having looked at it: agents of a private run whose last
        tasks came to nothing are then not asked again.
    """

    num_agents: int = 0
    participation: Participation = field(default_factory=All)
    min_available_nodes: int = 0
    agent_weights: str = "equal"
    least_roster: int = LEAST_ROSTER
    rounds: int | None = None
    folder: Path | None = None
    local_steps: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    encoding: str = ""
    doubtful: bool = False
    unattended: bool = False

    @property
    def wanted_nodes(self) -> int:
        """Number of nodes to wait for before the first round; 0: those that are connected."""
        return max(self.num_agents, self.min_available_nodes)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_most_right(self, self.num_agents, self.min_agents, self.participation)
        if not (self.secure_sum and self.num_agents):
            return
        if self.sum_threshold > self.num_agents:
            raise ConfigError(
                f"sum-threshold = {self.sum_threshold}: above num-agents = {self.num_agents}"
            )
        needed = f"a secure sum needs {self.least_roster} agents"
        if self.num_agents < self.least_roster:
            raise ConfigError(f"num-agents = {self.num_agents}: {needed}")
        if isinstance(self.participation, Fraction):
            chosen = self.participation.count(self.num_agents)
            if chosen < self.least_roster:
                raise ConfigError(f"participation: {chosen} agents in a round: {needed}")
