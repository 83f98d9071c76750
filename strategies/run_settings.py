"""The run-config keys that every strategy takes, as constructor arguments of the same names."""

from __future__ import annotations

from dataclasses import dataclass

from privet.client_apps.terms import MessageTerms
from privet.wire.key import check_fields, same, setting


@dataclass(frozen=True)
class RunSettings:
    """How a run waits, seeds, sums and recovers; the fields are the run-config keys."""

    num_agents: int = setting(10, "agents to wait for; 0 takes those that are there", low=0)
    min_agents: int = setting(1, "fewer replies than this end the run", low=1)
    wait_timeout: float = setting(60.0, "seconds to wait for the agents", low=0)
    round_timeout: float = setting(
        600.0, "seconds to wait for the replies of a round", low=0, open_low=True
    )
    seed: int = same(MessageTerms, "seed")
    secure_sum: bool = same(MessageTerms, "secure_sum")
    recover_by_name: str = setting(
        "auto",
        "who goes on for an agent whose node is gone: the next node of its name (yes), that node "
        "but anew (no), nobody else (node-key); auto: yes in simulation, else no",
        choices=("auto", "yes", "no", "node-key"),
    )

    def __post_init__(self) -> None:
        check_fields(self)
