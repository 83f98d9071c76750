"""What an algorithm may say of itself beside its halves; nothing else may know its name.

Planner, tuner, evaluation and account ask the Strategy class here, of this library or of another
package. The agent half has hooks too: `privet.client_apps.half.Half`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from privet.datasets import Federation
from privet.privacy import Facts
from privet.problems import Moduli, ProximalFunction, Scaled, Zero
from privet.wire.key import read

from .cost import Cost
from .search import SearchAxis, Theory
from .shared_regularizer import RegularizerSettings

Vector = NDArray[Any]
Monitor = Callable[[int, Mapping[str, Vector]], Mapping[str, float]]
"""``(round, models) -> numbers by name``."""


class Evaluated(Protocol):
    """What a run's models are evaluated on: `privet.server_apps.evaluation.Evaluation`."""

    @property
    def federation(self) -> Federation:
        """All agents' problems, as a simulation sees them."""
        ...

    def optimum(self) -> Vector | None:
        """Return the centralised optimum, None where it cannot be had."""
        ...


class Hooks:
    """Attributes and methods of a Strategy class that tools ask for, with their defaults."""

    cost: ClassVar[Cost | None] = None
    """What an iteration costs; where None, an iteration is one exchange with every agent."""
    search: ClassVar[tuple[SearchAxis, ...]] = ()
    """Parameters that ``privet tune`` searches; the settings of one may be the unit of the next."""
    local_steps: ClassVar[str] = "local-epochs"
    """Run-config key of the number of local steps of a round, empty where there is none."""
    theory: ClassVar[type[Theory] | None] = None
    """What predicts convergence without a run, if anything does."""
    h_over_mean: ClassVar[bool] = False
    """Whether h is weighed against the mean of the f_i in place of their sum."""
    adds_noise: ClassVar[bool] = False
    """Whether the server itself draws privacy noise: ``from_config`` then takes ``noise``."""
    hosts_units: ClassVar[bool] = False
    """Whether servers may host one unit each: ``from_config`` then takes ``mixer``."""

    @classmethod
    def assumed(cls, moduli: Moduli) -> Mapping[str, Any]:
        """Return run-config keys that the method's paper assumes known, from the moduli."""
        return {}

    @classmethod
    def objective_h(cls, config: Mapping[str, Any]) -> ProximalFunction:
        """Return h of the objective sum_i f_i + h that a resolved run config minimises."""
        h = read(RegularizerSettings, config).make()
        if isinstance(h, Zero):
            return h
        return Scaled(h, float(config["num-agents"])) if cls.h_over_mean else h

    @classmethod
    def measures(cls, config: Mapping[str, Any], evaluated: Evaluated) -> tuple[Monitor, ...]:
        """Return what is measured after every round beside the numbers common to all."""
        return ()

    def account(
        self, config: Mapping[str, Any], facts: Callable[[], Facts | None]
    ) -> dict[str, Any] | None:
        """Return the account of the run where the noise is not the agents' own, else None.

        Parameters
        ----------
        config : mapping
            A resolved run config.
        facts : callable
            Returns the public numbers of the agent with the fewest examples, None where nobody
            says any.
        """
        return None


__all__ = ["Evaluated", "Hooks", "Monitor"]
