"""What an algorithm may say of itself beside its halves; nothing else may know its name.

Planner, tuner, evaluation and account ask the Strategy class here, of this library or of another
package. The agent half has hooks too: `privet.agents.half.Half`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from numpy.typing import NDArray

from privet.core.key import read
from privet.data import Federation
from privet.data.agreement import Agreement
from privet.kernel import Facts, Moduli, Zero
from privet.problems import ProximalFunction, Scaled

from .shared_regularizer import RegularizerSettings

Vector = NDArray[Any]
Monitor = Callable[[int, Mapping[str, Vector]], Mapping[str, float]]
"""``(round, models) -> numbers by name``; round 0 is the start."""
Stated = Sequence[tuple[Facts, Mapping[str, Any]]]
"""Public numbers of agents, each with the settings that it follows in place of the run's."""


@runtime_checkable
class Encoded(Protocol):
    """A monitor with data of its own, which are encoded as the agents of a run have agreed."""

    def adopt(self, encoding: Agreement) -> None:
        """Take over the encoding, before the first round."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """Per iteration of the method as its paper counts them, and per participating agent.

    Attributes
    ----------
    agent : int
        Vectors (d,) an agent keeps between rounds.
    coordinator : int
        Vectors the coordinator keeps of each agent. What an agent holds is mirrored here, so that
        a lost agent loses nothing; a coordinator that gave this up could do with fewer.
    shared : int
        Vectors the coordinator keeps besides.
    exchanges : int
        Messages to an agent and back: rounds of this library.
    extra_gradients : int
        Full local gradients besides the ``local-epochs`` of the local steps.
    up, down : int
        Vectors an agent sends and receives when all take part.
    """

    agent: int
    coordinator: int
    shared: int
    exchanges: int = 1
    extra_gradients: int = 0
    up: int = 1
    down: int = 1

    def gradients(self, local_epochs: int) -> int:
        """Return the local gradients of an iteration (TAMUNA: their mean)."""
        return local_epochs + self.extra_gradients


Unit = Literal["plain", "smoothness", "splitting", "curvature", "subproblem", "epochs"]


@dataclass(frozen=True, slots=True)
class SearchAxis:
    """A parameter that is searched: run-config key and range, on a logarithmic scale.

    Attributes
    ----------
    key : str
        Run-config key.
    low, high : float
        Ends of the range in the unit, > 0.
    unit : str
        With lambda and L the moduli of the f_i:

        ``plain``
            1.
        ``smoothness``
            1 / L, for step sizes.
        ``splitting``
            1 / sqrt(lambda L), or 1 / L where f is not strongly convex; for penalties that multiply
            a subgradient.
        ``curvature``
            The inverse of ``splitting``, for weights of ||x - v||^2 / 2.
        ``subproblem``
            2 / (L + lambda + 2 / rho), the best fixed step on f + ||x - v||^2 / (2 rho), at the
            ``rho`` that is tried; its axis comes before.
        ``epochs``
            1 / the number of local steps of a round.
    """

    key: str
    low: float
    high: float
    unit: Unit = "plain"


@dataclass(frozen=True, slots=True)
class Query:
    """What a theory is asked.

    Attributes
    ----------
    moduli : Moduli
        Least strong convexity and largest smoothness over the agents.
    config : mapping
        A resolved run config.
    given : frozenset of str
        The keys of the config that were given: these are not searched.
    most_steps : int
        Largest number of local steps of a round that is tried; 0 leaves it to the theory.
    reduction : float
        Factor by which the error is to shrink.
    gradient_cost, communication_cost : float
        t_G of a local gradient and t_C of a round.
    """

    moduli: Moduli
    config: Mapping[str, Any]
    given: frozenset[str] = frozenset()
    most_steps: int = 0
    reduction: float = 1e-3
    gradient_cost: float = 1.0
    communication_cost: float = 10.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a theory says of one setting.

    Attributes
    ----------
    settings : mapping
        The setting by run-config keys.
    figures : mapping
        What the theory says of it, by name.
    rank : tuple of float
        What settings are sorted by, the best first.
    converges : bool
        Whether the theory proves convergence.
    """

    settings: Mapping[str, Any]
    figures: Mapping[str, float]
    rank: tuple[float, ...]
    converges: bool


class Theory(Protocol):
    """Predicts what settings take without a run; made from a ``Query``.

    Raises
    ------
    ConfigError
        If it says nothing of what is asked.
    """

    def __init__(self, query: Query) -> None: ...

    @property
    def query(self) -> Query:
        """What it was asked."""
        ...

    @property
    def note(self) -> str:
        """What else there is to know of the settings, a line; empty for nothing."""
        ...

    def parts(self) -> Sequence[Any]:
        """Return the parts of the grid, which processes may search side by side."""
        ...

    def search(self, part: Any) -> Sequence[Predicted]:
        """Return the settings of one part with what is predicted of them."""
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
    def measures(
        cls, config: Mapping[str, Any], federation: Federation, optimum: Callable[[], Vector | None]
    ) -> tuple[Monitor, ...]:
        """Return what is measured after every round beside the numbers common to all.

        Parameters
        ----------
        config : mapping
            A resolved run config.
        federation : Federation
            All agents' problems, as a simulation sees them.
        optimum : callable
            Returns the centralised optimum (d,), None where there is none.
        """
        return ()

    def account(
        self, config: Mapping[str, Any], stated: Callable[[], Stated | None]
    ) -> dict[str, Any] | None:
        """Return the account of the run where the noise is not the agents' own, else None.

        Parameters
        ----------
        config : mapping
            A resolved run config.
        stated : callable
            Returns what the enrolled agents computed by, each once: their public numbers, and the
            settings that they follow in place of the run's; None where an agent states none that
            can be read.
        """
        return None
