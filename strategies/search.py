"""What an algorithm says of its parameters: the range to search them in, and its theory.

``privet tune`` asks the Strategy class for both; see `privet.strategies.hooks.Hooks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from privet.problems import Moduli

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

    def parts(self) -> Sequence[Any]:
        """Return the parts of the grid, which processes may search side by side."""
        ...

    def search(self, part: Any) -> Sequence[Predicted]:
        """Return the settings of one part with what is predicted of them."""
        ...


__all__ = ["Predicted", "Query", "SearchAxis", "Theory", "Unit"]
