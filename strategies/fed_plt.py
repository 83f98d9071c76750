"""Fed-PLT: Peaceman-Rachford splitting with local training, the server half.

N. Bastianello, C. Liu, K. H. Johansson, "Enhancing Privacy in Federated Learning through Local
Training", Algorithm 1. The server keeps x_i and z_i of every agent and each round computes

    y = prox_{(rho/N) h}( (1/N) sum_i z_i )            over ALL agents, absent ones with old z_i
    z_i <- z_i + 2 (x_i - y)                            for the participants, from their x_i

Both sides compute z_i from the same bytes, so only x_i travels and a lost agent loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from privet.problems import ProximalFunction, Zero, make_h
from privet.wire import Settings, UploadError, digest, finite, resolve
from privet.wire.agreement import reflect
from privet.wire.ring import Shapes

from . import participation
from .base import RUN_ARGUMENTS, PrimalDualStrategy
from .cost import Cost
from .half import Arrays, GroupSum, Vector

AGENT_KEYS = (
    "rho",
    "local-solver",
    "local-epochs",
    "step-size",
    "batch-size",
    "strong-convexity",
    "smoothness",
    "row-norm",
    "clip",
    "noise-variance",
    "noise-seed",
    "delta",
    "relation",
)


@dataclass(slots=True)
class State:
    """Server state.

    Attributes
    ----------
    x, z : arrays (N, d)
        Of every agent, in the order of the sorted names.
    y : array (d,)
        As broadcast last.
    center : array (d,)
        prox_{(rho/N) h}(mean z) of the present z: the next y and the last model.
    residual : float
        Mean over the last participants of ||x_i - y||^2.
    """

    x: Vector
    z: Vector
    y: Vector
    center: Vector
    residual: float = math.nan


@dataclass(frozen=True)
class Server:
    """Server half of Fed-PLT.

    Parameters
    ----------
    rho : float
        Penalty of the splitting, > 0; also the agents'.
    h : ProximalFunction
        The shared regulariser h.
    agent_settings : mapping
        Parameters of the local solver, as they travel to the agents.
    """

    name: ClassVar[str] = "fed-plt"
    version: ClassVar[int] = 1

    rho: float = 1.0
    h: ProximalFunction = field(default_factory=Zero)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        return {**self.agent_settings, "rho": self.rho}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x_i = z_i = start for all agents."""
        table = np.tile(start, (count, 1))
        return self.state(table, table.copy())

    def state(self, x: Vector, z: Vector) -> State:
        """Return the state with these tables (N, d) before its first round."""
        center = self._consensus(z)
        return State(x, z, center, center)

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent at x_i = z_i = start inserted."""
        x = np.insert(state.x, position, start, axis=0)
        z = np.insert(state.z, position, start, axis=0)
        return State(x, z, state.y, self._consensus(z), state.residual)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at x_i = z_i = start."""
        state.x[position] = state.z[position] = start
        state.center = self._consensus(state.z)
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return y = prox_{(rho/N) h}(mean z), Algorithm 1 line 2."""
        state.y = state.center
        return state, {"y": state.y}

    def _consensus(self, z: Vector) -> Vector:
        count = z.shape[0]
        mean: Vector = np.add.reduce(z, axis=0) / z.dtype.type(count)
        return self.h.prox(mean, self.rho / count)

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check x_i and return it with z_i + 2 (x_i - y), Algorithm 1 line 10."""
        x = upload.get("x")
        if x is None or x.shape != state.y.shape or x.dtype != state.y.dtype:
            said = "no x" if x is None else f"x of shape {x.shape} {x.dtype}"
            raise UploadError(f"upload has {said}, expected {state.y.shape} {state.y.dtype}")
        with np.errstate(all="ignore"):
            z = reflect(state.z[position], x, state.y)
        if not finite(z):  # as it is where x is not, or overflows
            raise UploadError("upload holds numbers that are not finite, or too large")
        return {"x": x, "z": z}, digest(z)

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Put the participants' x_i and z_i into the tables and take the next consensus."""
        if not uploads:
            return state
        moved = 0.0
        for position, arrays in uploads.items():
            gap = arrays["x"] - state.y
            moved += float(gap @ gap)
            state.x[position] = arrays["x"]
            state.z[position] = arrays["z"]
        state.center = self._consensus(state.z)
        state.residual = moved / len(uploads)
        return state

    def recovery(self, state: State, position: int) -> Arrays:
        """Return x_i and z_i: all that an agent holds."""
        return {"x": state.x[position], "z": state.z[position]}

    def models(self, state: State) -> Arrays:
        """Return ``last`` (prox of the mean z) and ``mean`` (mean of x_i over all agents)."""
        count = state.x.dtype.type(state.x.shape[0])
        return {"last": state.center, "mean": np.add.reduce(state.x, axis=0) / count}

    def residual(self, state: State) -> float:
        """Return the mean of ||x_i - y||^2 over the last participants; z rests where it is 0."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return x, z, y and the residual."""
        return {"x": state.x, "z": state.z, "y": state.y, "residual": np.array(state.residual)}

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        center = self._consensus(arrays["z"])
        return State(arrays["x"], arrays["z"], arrays["y"], center, float(arrays["residual"]))


@dataclass(slots=True)
class SumState:
    """State of the server whose uploads are masked.

    Attributes
    ----------
    total : float64 array (d,)
        Sum of z_i over all agents.
    count : int
        Their number N.
    start : array (d,)
        x_i = z_i of an agent that begins.
    y : array (d,)
        As broadcast last.
    center : array (d,)
        The next y and the last model.
    residual : float
        See ``Server.residual``.
    """

    total: Vector
    count: int
    start: Vector
    y: Vector
    center: Vector
    residual: float = math.nan


@dataclass(frozen=True)
class SumServer:
    """Server half of Fed-PLT for masked uploads: keeps the mean of the z_i and sees no x_i.

        zbar <- zbar + (2/N) ( sum_{i in S} x_i - |S| y )         S the participants

    is the mean over all agents of z_i <- z_i + 2 (x_i - y), so that the iterates are those of
    ``Server``, whose parameters it has. The agents round x_i to multiples of 2^-40 before they use
    it: what is added is exactly what they hold, and no error builds up. The price: an agent that
    loses x_i and z_i cannot go on, because nobody else has them.
    """

    name: ClassVar[str] = "fed-plt"
    version: ClassVar[int] = 1
    secure_sum: ClassVar[bool] = True
    restarts: ClassVar[bool] = False

    rho: float = 1.0
    h: ProximalFunction = field(default_factory=Zero)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        return {**self.agent_settings, "rho": self.rho}

    def initialise(self, start: Vector, count: int) -> SumState:
        """Return x_i = z_i = start for all agents."""
        total = count * start.astype(np.float64)
        center = self._consensus(total, count, start)
        return SumState(total, count, start, center, center)

    def admit(self, state: SumState, position: int, start: Vector) -> SumState:
        """Return the state with an agent at x_i = z_i = start more."""
        state.total = state.total + start
        state.count += 1
        state.center = self._consensus(state.total, state.count, start)
        return state

    def broadcast(self, state: SumState) -> tuple[SumState, Arrays]:
        """Return y = prox_{(rho/N) h}(zbar), Algorithm 1 line 2."""
        state.y = state.center
        return state, {"y": state.y}

    def _consensus(self, total: Vector, count: int, like: Vector) -> Vector:
        mean = (total / count).astype(like.dtype)
        return self.h.prox(mean, self.rho / count)

    def summands(self, state: SumState) -> Shapes:
        """Return x_i (d,) and ||x_i - y||."""
        return {"x": state.y.shape, "distance": ()}

    def fold_sums(self, state: SumState, sums: Mapping[str, GroupSum]) -> SumState:
        """Move zbar by the participants' sums and take the next consensus."""
        active = sum(len(found.positions) for found in sums.values())
        if not active:
            return state
        moved = sum((found.arrays["x"] for found in sums.values()), -active * state.y.astype("f8"))
        state.total = state.total + 2.0 * moved
        state.center = self._consensus(state.total, state.count, state.y)
        apart = sum(float(found.arrays["distance"]) for found in sums.values()) / active
        state.residual = apart * apart
        return state

    def recovery(self, state: SumState, position: int) -> Arrays:
        """Return what an agent begins with; nothing is known of one that has begun."""
        return {"x": state.start, "z": state.start}

    def models(self, state: SumState) -> Arrays:
        """Return ``last``, prox of zbar; the mean of the x_i is not known."""
        return {"last": state.center}

    def residual(self, state: SumState) -> float:
        """Return the squared mean over the last participants of ||x_i - y||, each at most 64."""
        return state.residual

    def dump(self, state: SumState) -> Arrays:
        """Return the state as arrays."""
        return {
            "total": state.total,
            "count": np.array(state.count),
            "start": state.start,
            "y": state.y,
            "residual": np.array(state.residual),
        }

    def load(self, arrays: Arrays) -> SumState:
        """Return the state of ``dump``."""
        total, count, y = arrays["total"], int(arrays["count"]), arrays["y"]
        center = self._consensus(total, count, y)
        return SumState(total, count, arrays["start"], y, center, float(arrays["residual"]))


class FedPLT(PrimalDualStrategy):
    """Fed-PLT as a Flower Strategy.

    Parameters
    ----------
    rho : float
        Penalty; 0 takes 3. Around 1 / sqrt(strong convexity * smoothness) is a good start;
        ``privet tune fed-plt`` searches it.
    local_epochs : int
        Local solver steps per round (N_e).
    local_solver : {"gd", "agd", "sgd", "noisy-gd"}
        Eq. (11), (12), mini-batch and (13) of the paper. An agent's node config may override it.
    step_size : float
        gamma; 0 lets every agent take 2 / (smoothness + strong convexity + 2/rho) of its own.
    h : ProximalFunction, optional
        Shared regulariser with a proximal operator; none by default.
    secure_sum : bool
        Whether uploads are masked; the server then keeps the mean of the z_i alone
        (`SumServer`) and an agent that loses its state is out of the run.
    options
        Further agent settings by run-config name with underscores (``batch_size``, ``clip``,
        ``noise_variance``, ...), then the arguments of ``PrimalDualStrategy``.

    Notes
    -----
    Who is averaged when some are absent: all enrolled agents, the absent ones with their old z_i.
    Privacy: with ``noisy-gd``, ``clip`` > 0 and ``noise_variance`` > 0 each upload is a Gaussian
    release that the agent itself accounts; otherwise a run is not private.
    """

    algorithm: ClassVar[str] = "fed-plt"
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=2, shared=2)

    def __init__(
        self,
        rho: float = 0.0,
        local_epochs: int = 10,
        local_solver: str = "gd",
        step_size: float = 0.0,
        *,
        h: ProximalFunction | None = None,
        secure_sum: bool = False,
        **options: Any,
    ) -> None:
        own = {
            "rho": rho,
            "local-epochs": local_epochs,
            "local-solver": local_solver,
            "step-size": step_size,
        }
        for name in AGENT_KEYS:
            key = name.replace("-", "_")
            if key in options:
                own[name] = options.pop(key)
        config = resolve(own, self.algorithm)
        settings = {name: config[name] for name in AGENT_KEYS}
        half = (SumServer if secure_sum else Server)(float(settings["rho"]), h or Zero(), settings)
        super().__init__(half, secure_sum=secure_sum, **options)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for (raises ``ConfigError``)."""
        settings = {name.replace("-", "_"): config[name] for name in AGENT_KEYS}
        return cls(
            **settings,
            h=make_h(config["h"], **{k: v for k, v in config.items() if k.startswith("h-")}),
            participation=participation.from_config(config),
            secure_sum=config["secure-sum"],
            **{name.replace("-", "_"): config[name] for name in RUN_ARGUMENTS},
            **options,
        )
