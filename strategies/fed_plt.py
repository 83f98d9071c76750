"""Fed-PLT: Peaceman-Rachford splitting with local training, the server half.

N. Bastianello, C. Liu, K. H. Johansson, "Enhancing Privacy in Federated Learning through Local
Training", Algorithm 1. The server keeps x_i and z_i of every agent and each round computes

    y = prox_{(rho/N) h}( (1/N) sum_i z_i )            over ALL agents, absent ones with old z_i
    z_i <- z_i + 2 a (x_i - y)                          for the participants, from their x_i

Both sides compute z_i from the same bytes, so only x_i travels and a lost agent loses nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from privet.agents.loop_defaults import NO_LOOPS, Loops
from privet.agents.terms import PrivacyTerms
from privet.client_apps.fed_plt import QUASI_NEWTON, Agent, SplittingAgent
from privet.core import ConfigError
from privet.core.key import AUTO, LARGEST, SMALLEST, Scalar, setting
from privet.kernel import Facts, Moduli, Zero
from privet.kernel.curvature import PROVEN
from privet.kernel.records import best_step
from privet.problems import ProximalFunction
from privet.problems.regularizers import CONVEX_KINDS
from privet.rounds.half import (
    UNSAVED,
    Arrays,
    HalfState,
    Positions,
    ServerHalf,
    Turn,
    Vector,
    mean_row,
)
from privet.rounds.hooks import Cost, SearchAxis
from privet.rounds.shared_regularizer import RegularizerSettings
from privet.rounds.uploads import Sums
from privet.wire.ring import Shapes

from .constructors import FedPLTArguments
from .fed_plt_accelerated import FLATTEST, AcceleratedServer
from .fed_plt_theory import (
    FedPLTTheory,
    Setting,
    convergence_matrix,
    delayed_rate,
    spectral_radius,
)

log = logging.getLogger("flwr.privet")

STALE = 0.5
"""Share of the agents in a round from which on the mean of all x_i is mostly of old ones."""


MOST_ACCELERATED = 1_000_000
"""Numbers of all agents' models together up to which runs are accelerated unless asked."""


@dataclass(slots=True)
class State(HalfState):
    """Server state.

    Attributes
    ----------
    y : array (d,)
        The consensus as broadcast last.
    count : int
        Number N of agents.
    x, z : arrays (N, d)
        Rows of every agent, in the order of the sorted names; (0, d) if uploads are masked.
    total : float64 array (d,)
        Sum of the z_i if uploads are masked; else (0,).
    center : array (d,)
        prox_{(rho/N) h}(mean z) of the present z: the next y and the last model.
    residual : float
        Mean over the last participants of ||x_i - y||^2, of masked ones the squared mean of
        ||x_i - y||, each at most 64; z rests where it is 0.
    """

    y: Vector
    count: int
    x: Vector
    z: Vector
    total: Vector
    center: Vector = field(init=False, metadata=UNSAVED)


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of Fed-PLT; ``agent`` has the penalty rho, h is the shared regulariser.

    With masked uploads it needs their sum alone, with which it moves the sum of the z_i:

        sum z <- sum z + 2 a sum_{i in S} (x_i - y)             S the participants

    The agents round x_i to multiples of 2^-40 before they use it: the numbers added are exactly
    those they hold, and no error builds up. The price: an agent that loses x_i and z_i cannot
    continue, because nobody else has them.
    """

    state = State
    last: ClassVar[str] = "center"
    no_server_optimizer: ClassVar[str] = ""
    no_robust: ClassVar[str] = ""
    no_adaptive_step: ClassVar[str] = (
        "its y is the mean of the agents' z_i, which would stay behind: use fed-dyn or scaffold, "
        "or momentum"
    )

    agent: SplittingAgent = field(default_factory=Agent)
    h: ProximalFunction = field(default_factory=Zero)
    returned_model: str = setting(
        "auto",
        "the model of a run: y, the mean of all agents' x_i, as in the paper's figures, or the "
        "middle of y before and after the round",
        choices=("auto", "y", "mean", "middle"),
        needs={"secure_sum": False},
        automatic=("y", "mean"),
    )

    @property
    def steps_by_mean(self) -> bool:
        """Whether y is the mean of the z_i: without a shared regulariser."""
        return isinstance(self.h, Zero)

    def contraction(self, facts: Facts) -> float:
        """Return the spectral radius of the paper's Proposition 1, with the noisy step."""
        return _contraction(self.agent, facts)

    def without_moduli(self, loops: Loops = NO_LOOPS) -> Self:
        """Return the half, whose model is the mean of x_i: y lies beyond it by the reflections.

        Where loops state their step and most agents are absent, most x_i are old, and it is the
        middle of y before and after the round: at a = 1/s and h = 0 the mean of the participants'
        x_i, since y moves by 2 a s of the way to it.
        """
        half = super().without_moduli(loops)
        fresh = not loops.step or loops.share > STALE
        if self.returned_model != "auto" or self.masked:
            return half
        return replace(half, returned_model="mean" if fresh else "middle")

    def weakness(self, loops: Loops) -> str:
        """Return that the model is mostly of old x_i, where few agents take part."""
        if loops.step or loops.share > STALE or self.returned_model != "mean":
            return ""
        return (
            f"its model is the mean of all agents' x_i, and {loops.share:.2g} of them take part in "
            "a round: the others' are old. State the step of your training loop, "
            "LoopParticipant(step_size=...), or set returned-model = y and relaxation = 1 / that "
            "share with rho as many times larger"
        )

    def variant(self) -> ServerHalf[Any]:
        """Return the half that plays these settings: `AcceleratedServer` with acceleration."""
        agent = self.agent
        if not (isinstance(agent, Agent) and agent.accelerated):
            return self
        return AcceleratedServer(
            agent, self.h, self.returned_model, terms=self.terms, folder=self.folder
        )

    def with_moduli(self, facts: Sequence[Facts]) -> ServerHalf[Any]:
        """Return the half for agents that know the moduli of their smooth problems.

        Where rho, local steps and their size are left open they solve their subproblems by Newton
        steps, and the rounds are accelerated, from rho = 1 / sqrt(lambda) on.
        """
        agent = self.agent
        if not isinstance(agent, Agent) or agent.private or self.masked or not facts:
            return self
        smooth = all(each.moduli and each.regularizer in CONVEX_KINDS for each in facts)
        left_open, changes = agent.without_moduli, dict[str, Scalar]()
        weight = min(each.penalty for each in facts)
        nothing_set = {"rho", "local-solver"} <= left_open.keys() and not agent.step_size
        if smooth and nothing_set and not agent.codes and agent.local_epochs == Agent.local_epochs:
            changes["local-solver"] = "newton"
        newton = changes.get("local-solver", agent.local_solver) == "newton"
        plain = agent.local_start == "own" and not agent.codes and agent.damping == 1.0
        small = sum(each.dim for each in facts) <= MOST_ACCELERATED
        if smooth and newton and plain and small and "acceleration" in left_open:
            changes["acceleration"] = QUASI_NEWTON
        if smooth and newton and "rho" in left_open:  # the best rho for rows of variance 1
            changes["rho"] = min(max(1.0 / math.sqrt(max(weight, FLATTEST)), SMALLEST), LARGEST)
        half = self.with_settings(changes) if changes else self
        if changes:
            said = (
                f"{k} is {v:.4g}" if isinstance(v, float) else f"{k} is {v}"
                for k, v in changes.items()
            )
            log.info("solved locally: %s", ", ".join(said))
        variant = half.variant()
        if isinstance(variant, AcceleratedServer):
            unique = all(each.modulus > 0 or _of_one_score(each) for each in facts)
            return replace(
                variant,
                convexity=weight,
                rho_is_open="rho" in left_open,
                of_coordinates=unique,
            )
        return variant

    def guarded(self) -> Self:
        """Return the half without acceleration, which learns from what agents send themselves."""
        agent = self.agent
        if not isinstance(agent, Agent) or agent.acceleration == "none":
            return self
        if agent.accelerated:
            raise ConfigError(
                "robust: not with acceleration = quasi-newton, which learns each agent's curvature "
                "from its own moves: set acceleration = none"
            )
        return self.with_settings({"acceleration": "none"})

    def delayed(self, facts: Sequence[Facts]) -> Self:
        """Return the half with the relaxation a that is right for uploads of older models.

        That is 1 where the theorem of `delayed_rate` proves it, from moduli that were given or that
        public bounds on the rows imply, and else 1/2: with a = 1 a run may diverge at the most
        harmless schedule, equal speeds.
        """
        agent = self.agent
        if agent.relaxation:
            return self
        moduli, proven = _known_moduli(agent, facts), False
        if moduli is not None and agent.local_solver == "gd":
            step = agent.step_size or best_step(moduli, agent.rho)
            setting = Setting(agent.rho, step, agent.local_epochs)
            proven = delayed_rate(moduli, setting, 1.0) < 1
        relaxation = 1.0 if proven else 0.5
        if proven:
            why = "the limit is then proven for any delays"
        elif moduli is None:
            why = "no bounds on the moduli are given (strong-convexity, smoothness)"
        else:
            why = "1 is not proven to converge for these moduli, rho and local steps"
        log.info("relaxation %g: %s", relaxation, why)
        return self.with_settings({"relaxation": relaxation})

    def rows(self, start: Vector) -> Arrays:
        return {"x": start, "z": start}

    def initialise(self, start: Vector, count: int) -> State:
        total = count * start.astype(np.float64) if self.masked else np.zeros(0)
        return self.completed(State(start, count, **self.tables(start, count), total=total))

    def with_tables(self, x: Vector, z: Vector) -> State:
        """Return the state before round 1 with these tables (N, d)."""
        state = self.initialise(np.zeros_like(x[0]), len(x))
        state.x, state.z = x, z
        return self.completed(state)

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with one more agent, at x_i = z_i = start."""
        if self.masked:
            state.total = state.total + start
        state.count += 1
        return super().admit(state, position, start)

    def completed(self, state: State) -> State:
        if self.masked:
            mean = (state.total / state.count).astype(state.y.dtype, copy=False)
        else:
            mean = mean_row(state.z)
        state.center = self.h.prox(mean, self.agent.rho / state.count)
        return state

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        """Return y = prox_{(rho/N) h}(mean z), Algorithm 1 line 2."""
        state.y = state.center
        return state, {"y": state.y}

    def summands(self, state: State) -> Shapes:
        """Return x_i (d,); for masked uploads ||x_i - y|| as well."""
        return {"x": state.y.shape, **({"distance": ()} if self.masked else {})}

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Add the participants' changes to the sum of the z_i, and compute the next consensus."""
        if not sums.positions:
            return state
        state.residual = sums.gap("x", "y")
        if self.masked:
            moved = sums.total("x") - sums.sent("y")
            state.total = state.total + 2.0 * self.agent.damping * moved
        return self.completed(state)

    def recovery(self, state: State, positions: Positions) -> Arrays:
        """Return the part of x_i and z_i that the agents hold."""
        return dict(self.agent.held(super().recovery(state, positions) or {}))

    def recovery_of(self, state: State, position: int, start: Vector) -> Arrays | None:
        rows = super().recovery_of(state, position, start)
        return None if rows is None else dict(self.agent.held(rows))

    def model(self, state: State) -> Vector:
        """Return the prox of the mean z, the mean of x_i over all agents, or the middle of y."""
        if self.returned_model == "middle":
            middle: Vector = (state.y + state.center) * state.y.dtype.type(0.5)
            return middle
        return mean_row(state.x) if self.returned_model == "mean" else state.center

    def models(self, state: State) -> Arrays:
        """Return ``last``, the model of the run, and ``mean``, the mean of x_i over all agents.

        A server of masked sums cannot compute the latter.
        """
        if self.masked:
            return super().models(state)
        mean = mean_row(state.x)
        return {"last": mean if self.returned_model == "mean" else self.model(state), "mean": mean}


def _of_one_score(facts: Facts) -> bool:
    """Return whether the loss is known to be one of a single score of every example."""
    return facts.linear and PROVEN[facts.loss].certificate == "scalar"


def _known_moduli(agent: SplittingAgent, facts: Sequence[Facts]) -> Moduli | None:
    """Return bounds on the moduli of all agents: given ones, or those that public bounds imply."""
    if agent.smoothness > 0:
        return Moduli(agent.strong_convexity, agent.smoothness)
    if not (isinstance(agent, Agent) and agent.row_norm > 0 and facts):
        return None
    if not all(each.linear for each in facts):
        return None
    each = [one.public_moduli(agent.row_norm) for one in facts]
    return Moduli(min(one.strong_convexity for one in each), max(one.smoothness for one in each))


def _contraction(agent: SplittingAgent, facts: Facts) -> float:
    if not (isinstance(agent, Agent) and facts.linear and agent.row_norm > 0):
        return 1.0
    moduli = facts.public_moduli(agent.row_norm)
    step = agent.step_size or best_step(moduli, agent.rho)
    setting = Setting(agent.rho, step, agent.local_epochs)
    return spectral_radius(convergence_matrix(moduli, setting))


class FedPLT(FedPLTArguments):
    """Fed-PLT as a Flower Strategy.

    Notes
    -----
    A ``rho`` around 1 / sqrt(strong convexity * smoothness) is a good start; ``privet tune
    fed-plt`` searches it. The local solvers ``gd``, ``agd`` and ``noisy-gd`` are eqs. (11), (12)
    and (13) of the paper, ``sgd`` takes mini-batches; an agent's node config may override the
    choice. With a ``step_size`` of 0 every agent takes 2 / (smoothness + strong convexity +
    2 / rho) of its own.
    Who is averaged when some are absent: all enrolled agents, the absent ones with their old z_i.
    With ``secure_sum`` the server keeps the sum of the z_i alone, and an agent that loses its state
    is out of the run.
    Privacy: with ``noisy-gd``, ``clip`` > 0 and ``noise_variance`` > 0 each upload is a Gaussian
    release that the agent itself accounts; otherwise a run is not private.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (Agent, Server, PrivacyTerms, RegularizerSettings)
    server_half = Server
    positional = ("rho", "local_epochs", "local_solver", "step_size")
    objects: ClassVar[Mapping[str, tuple[str, str]]] = {
        "h": (
            "ProximalFunction | None",
            "shared regulariser with a proximal operator; none by default",
        )
    }
    cost: ClassVar[Cost] = Cost(agent=2, coordinator=2, shared=2)
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("rho", 0.05, 20.0, "splitting"),
        SearchAxis("step-size", 0.25, 1.5, "subproblem"),
    )
    theory = FedPLTTheory

    @classmethod
    def filled(cls, config: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
        """Return the config; keys that are chosen once the agents are known stay open.

        That is where neither rho nor another local solver than Newton's is given
        (`Server.with_moduli`).
        """
        other = "local-solver" in given and config["local-solver"] != "newton"
        if "rho" in given or other:
            return dict(config)
        left_open: dict[str, Any] = {"rho": 0.0, "local-solver": AUTO, "acceleration": AUTO}
        return {**config, **{key: v for key, v in left_open.items() if key not in given}}

    @classmethod
    def unused(
        cls, given: Mapping[str, Any], config: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """As every algorithm, and the noisy solver where it neither clips nor adds noise."""
        yield from super().unused(given, config)
        uses = ("noise-variance", "target-epsilon", "clip")
        if given.get("local-solver") == "noisy-gd" and not any(config[key] > 0 for key in uses):
            yield "local-solver", f"not used without {', '.join(uses[:-1])} or {uses[-1]}"
