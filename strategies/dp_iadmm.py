"""DP-IADMM: inexact ADMM with several local updates, the server half.

M. Ryu, K. Kim, "Differentially Private Federated Learning via Inexact ADMM with Multiple Local
Updates", Algorithm 1. The server keeps z_p and lam_p of every agent and in round t computes

    w = (1/P) sum_p (z_p - lam_p / rho_t)              over ALL agents, absent ones with old z_p
    lam_p <- lam_p + rho_t (w - z_p)                    for the participants, from their z_p

Both sides compute lam_p from the same bytes, so only z_p travels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from privet.wire import ConfigError, Settings, UploadError, digest, finite, resolve, ring
from privet.wire.agreement import ascend
from privet.wire.ring import Shapes

from . import participation
from .base import RUN_ARGUMENTS, PrimalDualStrategy
from .exchange import Reply
from .half import Arrays, GroupSum, ServerHalf, Vector
from .history import Round

AGENT_KEYS = (
    "local-updates",
    "eta-rule",
    "epsilon",
    "strong-convexity",
    "smoothness",
    "set",
    "set-radius",
    "perturbation",
    "mechanism",
    "sensitivity",
    "noise-scale",
    "clip",
    "row-norm",
    "noise-seed",
    "delta",
    "relation",
)
SCHEDULE_KEYS = ("rho", "rho-c1", "rho-c2", "rho-growth", "rho-period", "rho-max")
PERTURBATIONS = ("none", "objective", "output")

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Penalty:
    """The penalty rho_t, constant or by (24); it never decreases.

    rho_t = min(largest, c1 growth^floor(t / period) + c2 / epsilon), t = 1, 2, ...; ``constant``
    > 0 stands in for all of it.

    Raises
    ------
    ConfigError
        If it would not be positive.
    """

    constant: float = 0.0
    c1: float = 2.0
    c2: float = 5.0
    growth: float = 1.2
    period: int = 10_000
    largest: float = 1e9
    epsilon: float = math.inf

    def __post_init__(self) -> None:
        if self.growth < 1:
            raise ConfigError(f"rho-growth = {self.growth!r}: must be >= 1, rho never decreases")
        if self(1) <= 0:
            raise ConfigError("rho-c1 = 0: needs rho > 0, or rho-c2 > 0 with a finite epsilon")

    def __call__(self, t: int) -> float:
        """Return rho_t."""
        if self.constant > 0:
            return self.constant
        power = t // self.period
        if power * math.log(self.growth) > 700:
            return self.largest
        return min(self.largest, self.c1 * self.growth**power + self.c2 / self.epsilon)


@dataclass(slots=True)
class State:
    """Server state.

    Attributes
    ----------
    z, lam : arrays (P, d)
        Of every agent, in the order of the sorted names.
    w : array (d,)
        As broadcast last.
    center : array (d,)
        The next w: the last model.
    total, weighted : float64 arrays (d,)
        sum_t w and sum_t t w over the finished rounds.
    t : int
        Finished rounds.
    rho : float
        rho_t of the last broadcast.
    residual : float
        See ``Server.residual``.
    """

    z: Vector
    lam: Vector
    w: Vector
    center: Vector
    total: Vector
    weighted: Vector
    t: int = 0
    rho: float = math.nan
    residual: float = math.nan


@dataclass(frozen=True)
class Server:
    """Server half of DP-IADMM.

    Parameters
    ----------
    penalty : Penalty
        rho_t.
    agent_settings : mapping
        Parameters of the local updates, as they travel to the agents.
    """

    name: ClassVar[str] = "dp-iadmm"
    version: ClassVar[int] = 1

    penalty: Penalty = field(default_factory=Penalty)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what the agents need to know; rho_t travels with w."""
        return dict(self.agent_settings)

    def initialise(self, start: Vector, count: int) -> State:
        """Return z_p = start and lam_p = 0 for all agents."""
        table = np.tile(start, (count, 1))
        return self.state(table, np.zeros_like(table))

    def state(self, z: Vector, lam: Vector) -> State:
        """Return the state with these tables (P, d) before its first round."""
        center = self._consensus(z, lam, 1)
        nothing = np.zeros(z.shape[1])
        return State(z, lam, center, center, nothing, nothing.copy())

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent at z_p = start, lam_p = 0 inserted."""
        z = np.insert(state.z, position, start, axis=0)
        lam = np.insert(state.lam, position, 0, axis=0)
        return replace(state, z=z, lam=lam, center=self._consensus(z, lam, state.t + 1))

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at z_p = start, lam_p = 0."""
        state.z[position] = start
        state.lam[position] = 0
        state.center = self._consensus(state.z, state.lam, state.t + 1)
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return w (Algorithm 1 line 5), t and rho_t."""
        state.w = state.center
        state.rho = self.penalty(state.t + 1)
        return state, {
            "w": state.w,
            "t": np.array(state.t + 1, np.int64),
            "rho": np.array(state.rho, np.float64),
        }

    def _consensus(self, z: Vector, lam: Vector, t: int) -> Vector:
        kind = z.dtype.type
        mean: Vector = np.add.reduce(lam, axis=0)
        mean *= kind(-1.0 / self.penalty(t))
        mean += np.add.reduce(z, axis=0)
        mean *= kind(1.0 / z.shape[0])
        return mean

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check z_p and return it with lam_p + rho_t (w - z_p), Algorithm 1 line 8."""
        z = upload.get("z")
        if z is None or z.shape != state.w.shape or z.dtype != state.w.dtype:
            said = "no z" if z is None else f"z of shape {z.shape} {z.dtype}"
            raise UploadError(f"upload has {said}, expected {state.w.shape} {state.w.dtype}")
        if not finite(z):
            raise UploadError("upload holds numbers that are not finite")
        lam = ascend(state.lam[position], state.w, z, state.rho)
        return {"z": z, "lam": lam}, digest(lam)

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Put the participants' z_p and lam_p into the tables and take the next w."""
        state.t += 1
        state.total += state.w
        state.weighted += np.multiply(state.w, state.t, dtype=np.float64)
        apart = 0.0
        for position, arrays in uploads.items():
            gap = arrays["z"] - state.w
            apart += float(gap @ gap)
            state.z[position] = arrays["z"]
            state.lam[position] = arrays["lam"]
        state.center = self._consensus(state.z, state.lam, state.t + 1)
        if uploads:  # a round without uploads says nothing of how far the agents are apart
            moved = state.center - state.w
            state.residual = apart / len(uploads) + float(moved @ moved)
        return state

    def recovery(self, state: State, position: int) -> Arrays:
        """Return lam_p, and z_p for the inner iterate, which is z_p itself only for E = 1."""
        return {"lam": state.lam[position], "inner": state.z[position]}

    def models(self, state: State) -> Arrays:
        """Return ``last`` (the newest w) and the theorems' averages of all w broadcast.

        ``average`` is (17c), w^(T) of Theorems 2 and 3; ``weighted-average`` has the weights
        2t / (T (T + 1)) of Theorem 4; ``mean`` is that of the z_p, which is in W.
        """
        count = state.t
        if count == 0:
            return dict.fromkeys(("last", "mean", "average", "weighted-average"), state.center)
        kind = state.w.dtype
        return {
            "last": state.center,
            "mean": np.add.reduce(state.z, axis=0) / kind.type(state.z.shape[0]),
            "average": (state.total / count).astype(kind),
            "weighted-average": (state.weighted * (2.0 / (count * (count + 1)))).astype(kind),
        }

    def residual(self, state: State) -> float:
        """Return the participants' mean ||z_p - w||^2 plus the squared step of w; 0 at rest."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return the state as arrays."""
        return {
            "z": state.z,
            "lam": state.lam,
            "w": state.w,
            "total": state.total,
            "weighted": state.weighted,
            "numbers": np.array([state.t, state.rho, state.residual], np.float64),
        }

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        z, lam, w, total, weighted = (
            arrays[name] for name in ("z", "lam", "w", "total", "weighted")
        )
        t, rho, residual = arrays["numbers"].tolist()
        center = self._consensus(z, lam, int(t) + 1)
        return State(z, lam, w, center, total, weighted, int(t), rho, residual)


@dataclass(slots=True)
class SumState:
    """State of the server whose uploads are masked.

    Attributes
    ----------
    mean : State
        That of a server with one agent, whose z_p and lam_p are the means, in float64.
    count : int
        Number P of agents.
    start : array (d,)
        z_p of an agent that begins.
    """

    mean: State
    count: int
    start: Vector


@dataclass(frozen=True)
class SumServer:
    """Server half of DP-IADMM for masked uploads: keeps the means of z_p and lam_p, sees neither.

    With S the participants of round t and P agents,

        zbar   <- zbar + (1/P) sum_{p in S} (z_p - z_p of before)
        lambar <- lambar + (rho_t/P) ( |S| w - sum_{p in S} z_p )
        w       = zbar - lambar / rho_{t+1}

    are the means of what ``Server`` keeps in its tables, absent agents with their old values: it
    runs as if there were one agent, the mean, and has the parameters of ``Server``. The agents
    round z_p to multiples of 2^-40 before they use it, so that sums and agents agree. An agent that
    loses lam_p and z_p cannot go on, because nobody else has them.
    """

    name: ClassVar[str] = "dp-iadmm"
    version: ClassVar[int] = 1
    secure_sum: ClassVar[bool] = True
    restarts: ClassVar[bool] = False

    penalty: Penalty = field(default_factory=Penalty)
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _one(self) -> Server:
        return Server(self.penalty, self.agent_settings)

    def settings(self) -> Settings:
        """Return what the agents need to know; rho_t travels with w."""
        return self._one.settings()

    def initialise(self, start: Vector, count: int) -> SumState:
        """Return z_p = start, rounded to multiples of 2^-40, and lam_p = 0 for all agents."""
        start = ring.rounded(start)
        mean = self._one.initialise(start.astype(np.float64), 1)
        return _typed(SumState(mean, count, start))

    def admit(self, state: SumState, position: int, start: Vector) -> SumState:
        """Return the state with an agent at z_p = start, lam_p = 0 more."""
        share = state.count / (state.count + 1)
        z = state.mean.z * share + state.start / (state.count + 1)
        center = self._one.state(z, state.mean.lam * share).center
        state.mean.z, state.mean.lam = z, state.mean.lam * share
        state.mean.center = center
        state.count += 1
        return _typed(state)

    def broadcast(self, state: SumState) -> tuple[SumState, Arrays]:
        """Return w (Algorithm 1 line 5), t and rho_t."""
        state.mean, arrays = self._one.broadcast(state.mean)
        return state, arrays

    def summands(self, state: SumState) -> Shapes:
        """Return z_p (d,), by how much it moved (d,), and ||z_p - w||."""
        shape = state.mean.w.shape
        return {"z": shape, "moved": shape, "distance": ()}

    def fold_sums(self, state: SumState, sums: Mapping[str, GroupSum]) -> SumState:
        """Move the means by the participants' sums and take the next w."""
        mean = state.mean
        active = sum(len(found.positions) for found in sums.values())
        if not active:
            state.mean = self._one.fold(mean, {})
            return _typed(state)
        behind = sum((found.arrays["z"] for found in sums.values()), -active * mean.w.astype("f8"))
        moved = sum((found.arrays["moved"] for found in sums.values()), np.zeros(mean.w.size))
        z = mean.z[0] + moved / state.count
        lam = mean.lam[0] - (mean.rho / state.count) * behind
        state.mean = self._one.fold(mean, {0: {"z": z, "lam": lam}})
        apart = sum(float(found.arrays["distance"]) for found in sums.values()) / active
        step = state.mean.center - mean.w
        state.mean.residual = apart * apart + float(step @ step)
        return _typed(state)

    def recovery(self, state: SumState, position: int) -> Arrays:
        """Return what an agent begins with; nothing is known of one that has begun."""
        return {"lam": np.zeros_like(state.start), "inner": state.start, "z": state.start}

    def models(self, state: SumState) -> Arrays:
        """Return what ``Server.models`` returns."""
        kind = state.start.dtype
        models = self._one.models(state.mean)
        return {name: model.astype(kind, copy=False) for name, model in models.items()}

    def residual(self, state: SumState) -> float:
        """Return (mean ||z_p - w||)^2, each at most 64, plus the squared step of w; 0 at rest."""
        return state.mean.residual

    def dump(self, state: SumState) -> Arrays:
        """Return the state as arrays."""
        own = {"count": np.array(state.count), "start": state.start}
        return {**self._one.dump(state.mean), **own}

    def load(self, arrays: Arrays) -> SumState:
        """Return the state of ``dump``."""
        return _typed(SumState(self._one.load(arrays), int(arrays["count"]), arrays["start"]))


def _typed(state: SumState) -> SumState:
    """Return the state with the next w in the model's own dtype."""
    state.mean.center = state.mean.center.astype(state.start.dtype)
    return state


class DPIADMM(PrimalDualStrategy):
    """DP-IADMM as a Flower Strategy.

    Parameters
    ----------
    local_updates : int
        Inner steps per round (E).
    eta_rule : {"nonsmooth", "smooth", "strongly-convex"}
        eta_t = 1/sqrt(t), 1/(L + sqrt(t)/epsilon) or 2/(alpha (t + 2)), where L is ``smoothness``
        and alpha ``strong_convexity``; 0 takes them from the problem, in a private run from the
        public ``row_norm``.
    epsilon : float
        Of one release; sets the noise where ``noise_scale`` is 0, and the schedules.
    rho : float
        Constant penalty; 0 takes the schedule (24) from ``rho_c1``, ``rho_c2``, ``rho_growth``,
        ``rho_period`` and ``rho_max``.
    perturbation : {"objective", "output", "none"}
        Noise in every inner step (the paper's), or once on the mean of the inner iterates.
    mechanism : {"gaussian", "laplace"}
        With the l2 or the l1 norm of the gradients clipped to ``clip``.
    secure_sum : bool
        Whether uploads are masked; the server then keeps means alone (`SumServer`) and an
        agent that loses its state is out of the run.
    options
        Further settings by run-config name with underscores (``clip``, ``noise_scale``, ``set``,
        ``set_radius``, ...), then the arguments of ``PrimalDualStrategy``.

    Notes
    -----
    The agents' problems are to be those of (2c): divided by the number of examples of ALL agents,
    with 2 beta / P as l2 weight (``divisor`` and ``beta`` in a run config).
    Who is averaged when some are absent: all enrolled agents, the absent ones with their old z_p
    and lam_p; the round's notes name them.
    A lost agent: z_p and lam_p are sent back, and the inner iterate restarts at z_p, which loses
    nothing for E = 1 or with output perturbation.
    Privacy: with ``clip`` > 0 and noise, each upload is accounted by the agent as E adaptive
    releases (one with output perturbation); ``sensitivity="paper"`` computes the noise's scale
    from the data, and such a run is not private.
    """

    algorithm: ClassVar[str] = "dp-iadmm"

    def __init__(
        self,
        local_updates: int = 1,
        eta_rule: str = "nonsmooth",
        epsilon: float = math.inf,
        rho: float = 0.0,
        perturbation: str = "objective",
        mechanism: str = "gaussian",
        *,
        secure_sum: bool = False,
        **options: Any,
    ) -> None:
        own = {
            "local-updates": local_updates,
            "eta-rule": eta_rule,
            "epsilon": epsilon,
            "rho": rho,
            "perturbation": perturbation,
            "mechanism": mechanism,
        }
        for name in (*AGENT_KEYS, *SCHEDULE_KEYS):
            key = name.replace("-", "_")
            if key in options:
                own[name] = options.pop(key)
        config = resolve(own, self.algorithm)
        _check_noise(config)
        penalty = Penalty(*[config[name] for name in (*SCHEDULE_KEYS, "epsilon")])
        settings = {name: config[name] for name in AGENT_KEYS}
        half: ServerHalf[Any] = (SumServer if secure_sum else Server)(penalty, settings)
        super().__init__(half, secure_sum=secure_sum, **options)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for (raises ``ConfigError``)."""
        if config["h"] != "zero":
            raise ConfigError(f"h = {config['h']}: dp-iadmm has the set W (key set), no h")
        keys = (*AGENT_KEYS, *SCHEDULE_KEYS, *RUN_ARGUMENTS)
        return cls(
            **{name.replace("-", "_"): config[name] for name in keys},
            participation=participation.from_config(config),
            secure_sum=config["secure-sum"],
            **options,
        )

    def fold_round(self, replies: Mapping[str, Reply]) -> Round:
        """End a round as every algorithm does, and note who counted without taking part."""
        done = super().fold_round(replies)
        session = self._session()
        present = set(done.participants)
        absent = [name for name in session.roster.names if name not in present]
        if absent:
            some = ", ".join(absent[:_MOST_NAMED])
            more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
            note = f"absent, counted with their old z_p and lam_p: {some}{more}"
            done = session.history[-1] = replace(done, notes=(*done.notes, note))
        return done

    def recovered(self, name: str, tag: int) -> str:
        """Return the note on an agent that was sent its state."""
        settings = self.half.settings()
        note = super().recovered(name, tag)
        if settings["local-updates"] == 1 or settings["perturbation"] == "output":
            return note
        return f"{note}; its inner iterate restarts at z_p"


def _check_noise(config: Mapping[str, Any]) -> None:
    """Refuse settings of the noise that contradict each other or name no scale."""
    if config["perturbation"] not in PERTURBATIONS:
        raise ConfigError(
            f"perturbation = {config['perturbation']!r}: dp-iadmm has {', '.join(PERTURBATIONS)}"
        )
    if config["perturbation"] == "none":
        return
    if config["sensitivity"] == "paper":
        for name, wanted in (
            ("mechanism", "laplace"),
            ("perturbation", "objective"),
            ("clip", 0.0),
            ("noise-scale", 0.0),
        ):
            if config[name] != wanted:
                raise ConfigError(f"sensitivity = paper needs {name} = {wanted}")
    elif config["epsilon"] < math.inf and not config["clip"] and not config["noise-scale"]:
        raise ConfigError(
            f"epsilon = {config['epsilon']:g} needs clip > 0 (or perturbation = none, or "
            "sensitivity = paper)"
        )
