"""What the rivals of Fed-PLT have in common on the server: state, settings, refusals.

The coordinator mirrors what every agent holds: an upload determines the agent's next state by
arithmetic that both sides do on the same bytes, so that a lost agent is sent its state back.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from privet.problems import ProximalFunction, Zero
from privet.wire import ConfigError, Settings
from privet.wire.algorithm_keys import LOCAL_SOLVERS

from ..configured import ConfiguredStrategy
from ..cost import Cost
from ..half import Arrays, ServerHalf, Vector
from ..participation import All

log = logging.getLogger("flwr.privet")

RIVAL_KEYS = (
    "local-solver",
    "local-epochs",
    "step-size",
    "batch-size",
    "strong-convexity",
    "smoothness",
)
"""Settings of the local steps of every rival."""

PRIVATE_KEYS = ("clip", "noise-scale", "noise-variance", "target-epsilon")


@dataclass(slots=True)
class State:
    """State of a rival's coordinator.

    Attributes
    ----------
    x : array (d,)
        The model, as it is sent next.
    own : dict of str to array (N, d)
        What every agent holds, by name.
    extra : dict of str to array
        What else the method keeps.
    residual : float
        Squared fixed-point residual of the last iteration.
    """

    x: Vector
    own: Arrays
    extra: Arrays
    residual: float = math.nan


@dataclass(frozen=True)
class RivalServer:
    """Server half with one row per agent in each table of ``own``.

    A method gives ``rows`` (what an agent holds before round 1), ``accept`` and ``fold``.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1

    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        return dict(self.agent_settings)

    @abstractmethod
    def rows(self, start: Vector) -> Arrays:
        """Return what one agent holds before its first round."""

    def initialise(self, start: Vector, count: int) -> State:
        """Return the state with all agents at the same rows."""
        own = {name: np.tile(row, (count, 1)) for name, row in self.rows(start).items()}
        return State(start, own, {})

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent at its first rows inserted."""
        for name, row in self.rows(start).items():
            state.own[name] = np.insert(state.own[name], position, row, axis=0)
        return state

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at its first rows."""
        for name, row in self.rows(start).items():
            state.own[name][position] = row
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x."""
        return state, {"x": state.x}

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return all that the agent holds."""
        return {name: table[position] for name, table in state.own.items()}

    def models(self, state: State) -> Arrays:
        """Return ``last``: x."""
        return {"last": state.x}

    def residual(self, state: State) -> float:
        """Return the squared fixed-point residual of the last iteration."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return everything as arrays."""
        arrays = {"x": state.x, "residual": np.array(state.residual)}
        arrays |= {f"own-{name}": table for name, table in state.own.items()}
        return arrays | {f"extra-{name}": array for name, array in state.extra.items()}

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``; the tables are copied, as ``fold`` writes into them."""
        own = {k.removeprefix("own-"): v.copy() for k, v in arrays.items() if k[:4] == "own-"}
        extra = {k.removeprefix("extra-"): v for k, v in arrays.items() if k[:6] == "extra-"}
        return State(arrays["x"], own, extra, float(arrays["residual"]))


def mean_row(table: Vector) -> Vector:
    """Return the mean over the agents of a table (N, d)."""
    mean: Vector = np.add.reduce(table, axis=0)
    mean /= table.dtype.type(len(table))
    return mean


def apart(uploads: Mapping[int, Arrays], center: Vector) -> float:
    """Return the mean over the uploads of ||x_i - center||^2."""
    total = 0.0
    for arrays in uploads.values():
        gap = arrays["x"] - center
        total += float(gap @ gap)
    return total / len(uploads)


class RivalStrategy(ConfiguredStrategy):
    """A rival of Fed-PLT as a Flower Strategy.

    Parameters
    ----------
    local_epochs : int
        Local steps in a round.
    local_solver : str
        ``gd``, or where the method has them ``sgd`` (mini-batches of ``batch_size``) and ``agd``.
    step_size : float
        Of a local step.
    options
        The method's own keys with underscores, then the arguments of ``PrimalDualStrategy``.

    Notes
    -----
    No shared regulariser h. Privacy: none; every upload is un-noised, and an agent with a budget
    refuses to take part.
    """

    keys: ClassVar[tuple[str, ...]] = RIVAL_KEYS
    cost: ClassVar[Cost]
    partial: ClassVar[bool] = False
    """Whether the method's paper lets agents be absent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.partial and not isinstance(self.participation, All):
            log.warning(
                "%s assumes that every agent takes part; absent ones keep their old values",
                self.algorithm,
            )

    @staticmethod
    @abstractmethod
    def server(config: Mapping[str, Any], settings: Settings) -> ServerHalf[Any]:
        """Return the server half for a resolved config and the agents' settings."""

    @classmethod
    def half_of(cls, config: Mapping[str, Any], h: ProximalFunction) -> ServerHalf[Any]:
        """Return the server half (raises ``ConfigError`` for what the method does not have)."""
        if not isinstance(h, Zero):
            raise ConfigError(f"h: {cls.algorithm} has no proximal step for it")
        solvers = LOCAL_SOLVERS[cls.algorithm]
        if config["local-solver"] not in solvers:
            raise ConfigError(
                f"local-solver = {config['local-solver']!r}: {cls.algorithm} takes "
                f"{' or '.join(solvers)}"
            )
        return cls.server(config, {name: config[name] for name in cls.keys})

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for (raises ``ConfigError``)."""
        for name in PRIVATE_KEYS:
            if config[name] > 0:
                raise ConfigError(f"{name} = {config[name]:g}: {cls.algorithm} has no private form")
        return super().from_config(config, **options)
