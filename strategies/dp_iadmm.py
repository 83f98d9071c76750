"""DP-IADMM: inexact ADMM with several local updates, the server half.

M. Ryu, K. Kim, "Differentially Private Federated Learning via Inexact ADMM with Multiple Local
Updates", Algorithm 1. The server keeps z_p and lam_p of every agent and in round t computes

    w = (1/P) sum_p (z_p - lam_p / rho_t)              over ALL agents, absent ones with old z_p
    lam_p <- lam_p + rho_t (w - z_p)                    for the participants, from their z_p

Both sides compute lam_p from the same bytes, so only z_p travels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from privet.agents.half import Half
from privet.agents.terms import PrivacyTerms
from privet.client_apps.dp_iadmm import Agent
from privet.core import ConfigError
from privet.core.key import LARGEST, SMALLEST, Config, check_fields, read, setting
from privet.core.mapped import column_sums
from privet.kernel import Facts, Zero
from privet.problems import ProximalFunction, make_h
from privet.rounds.half import UNSAVED, Arrays, HalfState, ServerHalf, Turn, Vector, mean_row
from privet.rounds.hooks import SearchAxis
from privet.rounds.uploads import Sums, squared_gap
from privet.wire.ring import Shapes

from .constructors import DPIADMMArguments

_H_OF_SET = {"box": "box", "l2": "l2-ball"}
_MOST_NAMED = 10


@dataclass(frozen=True)
class Penalty:
    """The penalty rho_t, constant or by (24); it never decreases.

    rho_t = min(rho_max, c1 growth^floor(t / period) + c2 / epsilon), t = 1, 2, ...; ``rho`` > 0
    replaces the schedule. The fields are the run-config keys of the same names.

    Raises
    ------
    ConfigError
        If it would not be positive.
    """

    rho: float = setting(
        0.0,
        "constant penalty; auto takes the schedule (24)",
        low=0,
        words={"auto": 0},
        floor=SMALLEST,
        high=LARGEST,
    )
    rho_c1: float = setting(2.0, "c1 of the schedule (24)", low=0, needs={"rho": 0.0})
    rho_c2: float = setting(5.0, "c2 of (24), divided by epsilon", low=0, needs={"rho": 0.0})
    rho_growth: float = setting(
        1.2, "factor of c1 after every period; rho never decreases", low=1, needs={"rho": 0.0}
    )
    rho_period: int = setting(10_000, "rounds of a period (T_c)", low=1, needs={"rho": 0.0})
    rho_max: float = setting(1e9, "largest rho", low=0, open_low=True, needs={"rho": 0.0})
    epsilon: float = math.inf

    def __post_init__(self) -> None:
        check_fields(self)
        if self(1) <= 0:
            raise ConfigError("rho-c1 = 0: needs rho > 0, or rho-c2 > 0 with a finite epsilon")

    def __call__(self, t: int) -> float:
        """Return rho_t."""
        if self.rho > 0:
            return self.rho
        power = t // self.rho_period
        if power * math.log(self.rho_growth) > 700:
            return self.rho_max
        scheduled = self.rho_c1 * self.rho_growth**power + self.rho_c2 / self.epsilon
        return min(self.rho_max, scheduled)


@dataclass(slots=True)
class State(HalfState):
    """Server state.

    Attributes
    ----------
    w : array (d,)
        The consensus as broadcast last.
    count : int
        Number P of agents.
    z, lam : arrays (P, d)
        Rows of every agent, in the order of the sorted names; (0, d) if uploads are masked.
    mean : float64 array (d,)
        (1/P) sum_p (z_p - lam_p / rho) if uploads are masked, else as it was at the start.
    total, weighted : float64 arrays (d,)
        sum_t w and sum_t t w over the finished rounds.
    t : int
        The last finished round.
    center : array (d,)
        The next w: the last model.
    residual : float
        The participants' mean ||z_p - w||^2, of masked ones the squared mean of ||z_p - w||, each
        at most 64, plus the squared step of w; 0 at rest.
    """

    w: Vector
    count: int
    z: Vector
    lam: Vector
    mean: Vector
    total: Vector
    weighted: Vector
    t: int = 0
    center: Vector = field(init=False, metadata=UNSAVED)


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of DP-IADMM; the penalty rho_t travels with w.

    With masked uploads it needs one sum. w is the mean of v_p = z_p - lam_p / rho over ALL agents;
    with rho constant, which it therefore is here (that of round 1), Algorithm 1 line 8 moves a
    participant's v_p by 2 z_p - w - (z_p of before), and that is what an agent sends. So

        w of the next round = w + (1/P) sum over the participants of (2 z_p - w - z_p of before)

    where absent agents count with their old v_p. An agent that loses lam_p and z_p cannot continue,
    because nobody else has them.

    Sums of z_p and of its change, each alone harmless, would reveal an agent where it is absent:
    their difference is the sum of the old z_p, whose sum over other agents is known.
    """

    state = State
    last: ClassVar[str] = "center"

    agent: Agent = field(default_factory=Agent)
    penalty: Penalty = field(default_factory=Penalty)

    def delayed(self, facts: Sequence[Facts]) -> Self:
        """Return the half, whose penalty must be constant; t counts sweeps."""
        if not self.penalty.rho:
            raise ConfigError(
                "asynchronous = true and late-replies = fold need rho > 0, a constant penalty: the "
                "schedule (24) would change it while agents work"
            )
        return self

    def rows(self, start: Vector) -> Arrays:
        return {"z": start, "lam": np.zeros_like(start)}

    def initialise(self, start: Vector, count: int) -> State:
        nothing, mean = np.zeros(start.size), start.astype(np.float64)
        tables = self.tables(start, count)
        return self.completed(
            State(start, count, **tables, mean=mean, total=nothing, weighted=nothing.copy())
        )

    def with_tables(self, z: Vector, lam: Vector) -> State:
        """Return the state before round 1 with these tables (P, d)."""
        state = self.initialise(z[0], len(z))
        state.z, state.lam = z, lam
        return self.completed(state)

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with one more agent, at z_p = start, lam_p = 0."""
        share = state.count / (state.count + 1)
        state.mean = state.mean * share + start / (state.count + 1)
        state.count += 1
        return super().admit(state, position, start)

    def _rho(self, t: int) -> float:
        """Return the penalty of a round; if uploads are masked, that of the first."""
        return self.penalty(1 if self.masked else t)

    def completed(self, state: State) -> State:
        kind = state.w.dtype
        if self.masked:
            state.center = state.mean.astype(kind)
            return state
        mean = column_sums(state.lam)
        mean *= kind.type(-1.0 / self._rho(state.t + 1))
        mean += column_sums(state.z)
        mean *= kind.type(1.0 / len(state.z))
        state.center = mean
        return state

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        """Return w (Algorithm 1 line 5), t and rho_t."""
        state.w = state.center
        rho = np.array(self._rho(turn.t), np.float64)
        return state, {"w": state.w, "t": np.array(turn.t, np.int64), "rho": rho}

    def upload_bound(
        self, agent: Half, facts: Facts, held: Arrays, sent: Arrays, round_: int
    ) -> float:
        """As every algorithm, by the least rho_t, which an agent's last round may have had."""
        least = np.array(self._rho(1), np.float64)
        return super().upload_bound(agent, facts, held, {**sent, "least-rho": least}, round_)

    def summands(self, state: State) -> Shapes:
        """Return z_p (d,); for masked uploads the change of v_p (d,), and ||z_p - w||."""
        return {"moved": state.w.shape, "distance": ()} if self.masked else {"z": state.w.shape}

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Compute the next w, and add this one to the averages of the theorems."""
        state.t = turn.number
        state.total += state.w
        state.weighted += np.multiply(state.w, state.t, dtype=np.float64)
        if self.masked and sums.positions:
            state.mean = state.mean + sums.total("moved") / state.count
        state = self.completed(state)
        if sums.positions:  # without uploads the residual is not measured
            state.residual = sums.gap("z", "w") + squared_gap(state.center, state.w)
        return state

    def models(self, state: State) -> Arrays:
        """Return ``last`` (the newest w) and the theorems' averages of all w broadcast.

        ``average`` is (17c), w^(T) of Theorems 2 and 3; ``weighted-average`` has the weights
        2t / (T (T + 1)) of Theorem 4; ``mean`` is that of the z_p, which is in W and which a server
        of masked sums cannot compute.
        """
        mean = {} if self.masked else {"mean": mean_row(state.z) if state.t else state.center}
        return {**averages(state), **mean}

    @property
    def recovery_note(self) -> str:
        if self.agent.local_updates == 1 or self.agent.perturbation == "output":
            return ""
        return "its inner iterate restarts at z_p"

    def notes(self, state: State, silent: Sequence[str]) -> tuple[str, ...]:
        """Say who counted in a round without taking part."""
        if not silent:
            return ()
        some = ", ".join(silent[:_MOST_NAMED])
        more = f" and {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
        return (f"absent, counted with their old z_p and lam_p: {some}{more}",)


def averages(state: State) -> dict[str, Vector]:
    """Return the last w and the averages of all that were broadcast, as in ``Server.models``."""
    count = state.t
    if count == 0:
        return dict.fromkeys(("last", "average", "weighted-average"), state.center)
    kind = state.w.dtype
    return {
        "last": state.center,
        "average": (state.total / count).astype(kind),
        "weighted-average": (state.weighted * (2.0 / (count * (count + 1)))).astype(kind),
    }


class DPIADMM(DPIADMMArguments):
    """DP-IADMM as a Flower Strategy.

    Notes
    -----
    The rules of eta_t are 1/sqrt(t) (``nonsmooth``), 1/(L + sqrt(t)/epsilon) (``smooth``) and
    2/(alpha (t + 2)) (``strongly-convex``), where L is ``smoothness`` and alpha
    ``strong_convexity``; 0 takes them from the problem, in a private run from the public
    ``row_norm``. ``mechanism`` goes with the norm that gradients are clipped in: gaussian with l2,
    laplace with l1. The paper's noise is in every inner step (``perturbation="objective"``); with
    ``"output"`` it is added once, to the mean of the inner iterates.
    The agents' problems are to be those of (2c): divided by the number of examples of ALL agents,
    with 2 beta / P as l2 weight (``divisor`` and ``beta`` in a run config).
    Who is averaged when some are absent: all enrolled agents, the absent ones with their old z_p
    and lam_p; the round's notes name them.
    A lost agent: z_p and lam_p are sent back, and the inner iterate restarts at z_p, which loses
    nothing for E = 1 or with output perturbation. With ``secure_sum`` the server keeps one mean,
    rho_t stays rho_1, and an agent that loses its state is out of the run.
    Privacy: with ``clip`` > 0 and noise, each upload is accounted by the agent as E adaptive
    releases (one with output perturbation); ``sensitivity="paper"`` computes the noise's scale
    from the data, and such a run is not private.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent, Penalty, PrivacyTerms)
    server_half = Server
    positional = ("local_updates", "eta_rule", "epsilon", "rho", "perturbation", "mechanism")
    local_steps: ClassVar[str] = "local-updates"
    search: ClassVar[tuple[SearchAxis, ...]] = (SearchAxis("rho", 0.005, 20.0, "curvature"),)

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> Server:
        """As every algorithm, with the penalty, whose epsilon is the agents'."""
        agent = Agent.from_settings(config)
        _check_noise(agent)
        penalty = replace(read(Penalty, config), epsilon=agent.epsilon)
        return Server.from_config(agent, config, penalty=penalty)

    @classmethod
    def is_noised(cls, config: Mapping[str, Any]) -> bool:
        """Whether noise is configured, by its scale or by the epsilon of one release."""
        scaled = config["noise-scale"] > 0 or config["epsilon"] < math.inf
        return bool(scaled and config["perturbation"] != "none")

    @classmethod
    def objective_h(cls, config: Mapping[str, Any]) -> ProximalFunction:
        """Return the function that is 0 on the set W and infinite elsewhere."""
        if config["set"] == "none":
            return Zero()
        return make_h(_H_OF_SET[config["set"]], **{"h-radius": config["set-radius"]})


def _check_noise(agent: Agent) -> None:
    """Refuse settings of the noise that contradict each other or name no scale."""
    if agent.perturbation == "none":
        return
    if agent.sensitivity == "paper":
        for name, met, needed in (
            ("mechanism", agent.mechanism == "laplace", "laplace"),
            ("perturbation", agent.perturbation == "objective", "objective"),
            ("clip", not agent.clip, "none"),
            ("noise-scale", not agent.noise_scale, "auto"),
        ):
            if not met:
                raise ConfigError(f"sensitivity = paper needs {name} = {needed}")
    elif agent.epsilon < math.inf and not agent.clip and not agent.noise_scale:
        raise ConfigError(
            f"epsilon = {agent.epsilon:g} needs clip > 0 (or perturbation = none, or "
            "sensitivity = paper)"
        )
