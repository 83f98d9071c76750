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

from privet.wire import ConfigError, Settings, UploadError, digest, finite, resolve
from privet.wire.agreement import ascend

from . import participation
from .base import RUN_ARGUMENTS, PrimalDualStrategy
from .dp_iadmm_settings import AGENT_KEYS, SCHEDULE_KEYS, Penalty, check_noise
from .exchange import Reply
from .half import Arrays, ServerHalf, Vector
from .history import Round

_MOST_NAMED = 10


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
        Whether uploads are masked; the server then keeps means alone (``dp_iadmm_sum.py``) and an
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
        check_noise(config)
        penalty = Penalty(*[config[name] for name in (*SCHEDULE_KEYS, "epsilon")])
        settings = {name: config[name] for name in AGENT_KEYS}
        half: ServerHalf[Any] = Server(penalty, settings)
        if secure_sum:
            from . import dp_iadmm_sum

            half = dp_iadmm_sum.Server(penalty, settings)
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
