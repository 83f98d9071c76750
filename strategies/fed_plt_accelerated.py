"""Fed-PLT whose agents solve their subproblems: curvature that the server learns, and rho.

With exact local solutions the server knows x_i and u_i = grad f_i(x_i) = (v_i - x_i) / rho of every
agent's last round, v_i the center of its task, and with these a model of every f_i. It computes

    y   = argmin h(y) + sum_i <u_i, y> + (y - x_i)^T B_i (y - x_i) / 2       over all agents
    v_i = y + rho (u_i + B_i (y - x_i))                                       of the participants

and an agent returns x_i = argmin f_i(x) + ||x - v_i||^2 / (2 rho), which is y where B_i is right.
With B_i = 1 / rho this is Algorithm 1, since v_i = 2 y - z_i for z_i = x_i - rho u_i. Here the B_i
are the quasi-Newton matrices of `privet.strategies.fed_plt_curvature`, from the gradients that the
server has in any case: y solves the pooled problem as far as it knows its curvature, and an absent
agent counts with its last model. The fixed points are those of Algorithm 1, for any B_i.

Safeguard: r_i = x_i - prox_{(rho/N) h}(mean(x_i - rho u_i)) is the residual of Algorithm 1, that
is 0 at solutions alone. After a sweep through all agents pairs are used while

    ||r|| <= 10 ||r_0|| (n / 6 + 1)^(-1-1e-6)          n sweeps with pairs so far

as in A. Fu, J. Zhang, S. Boyd, "Anderson accelerated Douglas-Rachford splitting" (2020), and else
forgotten: the rounds with pairs then have residuals that sum, and the others are Algorithm 1.

*rho.* The best rho of quadratic functions with curvature in [lambda, L] is 1/sqrt(lambda L), L at
the solution, where a logistic loss has a small part of the bound's. The server estimates L by
secants over two visits, of all agents W of a round,

    L = sum_W ||u_i - u_i'||^2 / sum_W <u_i - u_i', x_i - x_i'>,    rho = 1 / (2 sqrt(lambda L))

the largest of the last three sweeps. It is asked after 2, 4, 7 and 11 sweeps, and never after that.
lambda is the l2 weight. Privacy: none; the algorithm is for un-noised uploads alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privet.client_apps.fed_plt import CENTER, PENALTY, SplittingAgent
from privet.kernel import Zero
from privet.problems import ProximalFunction
from privet.problems.reference import fista
from privet.rounds.half import UNSAVED, Arrays, HalfState, ServerHalf, Turn, Vector, mean_row
from privet.rounds.optimum_distance import ESTIMATE, distance_bound
from privet.rounds.uploads import ClearSums, Uploads

from .fed_plt_curvature import Curvature, diagonal, pair

SWEEPS = (2.0, 4.0, 7.0, 11.0)
"""Sweeps through all agents after which rho is asked for."""
WINDOW = 3.0
"""Sweeps whose secants are looked at."""
SHARE = 0.5
"""rho sqrt(lambda L)."""
CHANGE = 1.5
"""The least factor by which rho is changed."""
FLATTEST = 1e-5
"""lambda over L, where the l2 weight is smaller or 0."""
MARGIN = 10.0
"""How far the residual may be above the first one where pairs are used."""
PATIENCE = 6.0
"""Sweeps after which that falls to half."""
PAIRS, NUMBERS = 20, 1 << 20
"""Pairs of an agent, fewer where those of all agents would have more numbers than this."""
STEPS = 500
"""Proximal gradient steps on the model of all f_i where h is not 0."""


@dataclass(slots=True)
class AcceleratedState(HalfState):
    """Server state.

    Attributes
    ----------
    y : array (d,)
        The consensus as broadcast last.
    x, u : arrays (N, d)
        x_i, and the gradient of f_i there, in the order of the sorted names.
    moved, turned : arrays (N, M, d)
        The pairs of every agent, the newest last; zeros where there are fewer.
    accelerated : float
        Sweeps with pairs.
    first : float
        The norm of the first residual at this rho; 0 before there is one.
    rho, convexity : float
        The penalty of the next round, and lambda.
    open, coordinates : int
        Whether rho follows the curvature, and whether the base of the B_i is of each coordinate.
    visited : array (N,) of uint8
        1 for agents that took part before.
    sweeps : float
        Uploads that were folded, over N.
    secants : array (k, 2)
        Sweeps and L of the last sweeps' rounds.
    curvature : Curvature
        The B_i.
    center : array (d,)
        The minimiser of the models: the next y and the last model.
    v : array (N, d)
        The v_i of the next round.
    """

    y: Vector
    x: Vector
    u: Vector
    moved: Vector
    turned: Vector
    accelerated: float
    first: float
    rho: float
    convexity: float
    open: int
    coordinates: int
    visited: NDArray[np.uint8]
    sweeps: float
    secants: NDArray[np.float64]
    curvature: Curvature = field(init=False, metadata=UNSAVED)
    center: Vector = field(init=False, metadata=UNSAVED)
    v: Vector = field(init=False, metadata=UNSAVED)


@dataclass(frozen=True)
class AcceleratedServer(ServerHalf[AcceleratedState]):
    """Server half of Fed-PLT with ``acceleration = quasi-newton``; see the module.

    Attributes
    ----------
    agent, h, returned_model
        As `privet.strategies.fed_plt.Server` has them.
    convexity : float
        lambda, the least l2 weight of the agents' f_i.
    rho_is_open : bool
        Whether rho follows the curvature.
    of_coordinates : bool
        Whether the B_i begin with a diagonal, else with 1 / rho. They may where the optimum is
        unique: free intercepts of several classes can be shifted together, and with one number no
        round does that.
    """

    state = AcceleratedState
    last: ClassVar[str] = "center"

    agent: SplittingAgent
    h: ProximalFunction
    returned_model: str
    convexity: float = 0.0
    rho_is_open: bool = False
    of_coordinates: bool = False

    def rows(self, start: Vector) -> Arrays:
        return {"x": start}

    def initialise(self, start: Vector, count: int) -> AcceleratedState:
        pairs = min(PAIRS, max(2, NUMBERS // (count * start.size)))
        return self.completed(
            AcceleratedState(
                start,
                **self.tables(start, count),
                u=np.zeros((count, start.size), start.dtype),
                moved=np.zeros((count, pairs, start.size), start.dtype),
                turned=np.zeros((count, pairs, start.size), start.dtype),
                accelerated=0.0,
                first=0.0,
                rho=self.agent.rho,
                convexity=self.convexity,
                open=int(self.rho_is_open),
                coordinates=int(self.of_coordinates),
                visited=np.zeros(count, np.uint8),
                sweeps=0.0,
                secants=np.zeros((0, 2)),
            )
        )

    def admit(self, state: AcceleratedState, position: int, start: Vector) -> AcceleratedState:
        for name in ("u", "moved", "turned", "visited"):
            setattr(state, name, np.insert(getattr(state, name), position, 0, axis=0))
        return super().admit(state, position, start)

    def renew(self, state: AcceleratedState, position: int, start: Vector) -> AcceleratedState:
        for table in (state.u, state.moved, state.turned, state.visited):
            table[position] = 0
        return super().renew(state, position, start)

    def completed(self, state: AcceleratedState) -> AcceleratedState:
        """Compute the B_i, the next y and the v_i."""
        free = 1.0 / state.rho
        base = np.full_like(state.y, free)
        if state.coordinates:
            base = diagonal(state.moved, state.turned, state.convexity, free)
        used = slice(None) if state.turned.any() else slice(0)
        state.curvature = Curvature.of(base, state.moved[:, used], state.turned[:, used])
        state.center = self._minimiser(state) if state.turned.any() else self._plain(state)
        slopes = state.curvature.products(state.center - state.x) + state.u
        state.v = state.center + state.y.dtype.type(state.rho) * slopes
        if state.turned.any() and not np.isfinite(state.v).all():  # curvature beyond the numbers
            state.moved[:] = state.turned[:] = 0.0
            return self.completed(state)
        return state

    def _minimiser(self, state: AcceleratedState) -> Vector:
        """Return argmin of h and the models of all f_i."""
        middle = mean_row(state.x)
        slope = (state.curvature.products(middle - state.x) + state.u).sum(axis=0)
        if isinstance(self.h, Zero):
            return middle - state.curvature.solved(slope)

        def gradient(y: Vector) -> Vector:
            total: Vector = slope + state.curvature.total(y - middle)
            return total

        return fista(
            gradient,
            self.h,
            middle,
            state.curvature.largest(),
            accelerate=True,
            tolerance=1e-9 * float(np.linalg.norm(slope)),
            steps=STEPS,
        )[0]

    def _plain(self, state: AcceleratedState) -> Vector:
        """Return the y of Algorithm 1, prox_{(rho/N) h}(mean(x_i - rho u_i))."""
        return self.h.prox(
            mean_row(state.x) - state.rho * mean_row(state.u), state.rho / len(state.x)
        )

    def broadcast(self, state: AcceleratedState, turn: Turn) -> tuple[AcceleratedState, Arrays]:
        """Return y and rho."""
        state.y = state.center
        rho = np.full(1 + (state.y.size == 1), state.rho, state.y.dtype)
        return state, {"y": state.y, PENALTY: rho}

    def per_agent_broadcast(self, state: AcceleratedState, position: int, turn: Turn) -> Arrays:
        """Return v_i = y + rho (u_i + B_i (y - x_i))."""
        return {CENTER: state.v[position]}

    def fold(self, state: AcceleratedState, uploads: Uploads, turn: Turn) -> AcceleratedState:
        """Fold the x_i, and choose rho and the pairs of the next round."""
        if not uploads.positions:
            return state
        who = np.array(uploads.positions)
        x, u = state.x[who], state.u[who]
        self.mirror(state, uploads)
        state.residual = ClearSums(uploads).gap("x", "y")
        state.u[who] = (state.v[who] - state.x[who]) / state.y.dtype.type(state.rho)
        share = len(who) / len(state.x)
        state.sweeps += share
        state.accelerated += share * bool(state.turned.any())
        again = state.visited[who] > 0
        moved, turned = state.x[who][again] - x[again], state.u[who][again] - u[again]
        state.visited[who] = 1
        self._add_secant(state, moved, turned)
        for place, *change in zip(who[again], moved, turned, strict=True):
            if (found := pair(*change)) is not None:
                for table, row in zip((state.moved, state.turned), found, strict=True):
                    table[place] = np.roll(table[place], -1, axis=0)
                    table[place, -1] = row
        self._choose_rho(state, share)
        self._guard(state)
        return self.completed(state)

    def _add_secant(self, state: AcceleratedState, moved: Vector, turned: Vector) -> None:
        recent = state.secants[state.secants[:, 0] > state.sweeps - WINDOW]
        along = float(np.vdot(moved, turned)) if moved.size else 0.0
        if along > 0:
            bent = float(np.vdot(turned, turned)) / along
            recent = np.vstack([recent, [state.sweeps, bent]])
        state.secants = recent

    def _choose_rho(self, state: AcceleratedState, share: float) -> None:
        """Take the rho of the secants, where it is time to."""
        due = any(state.sweeps - share < mark <= state.sweeps for mark in SWEEPS)
        if not (state.open and due and len(state.secants)):
            return
        bent = float(state.secants[:, 1].max())
        rho = SHARE / math.sqrt(max(state.convexity, FLATTEST * bent) * bent)
        if 0 < rho < math.inf and not 1 / CHANGE < rho / state.rho < CHANGE:
            state.rho, state.first = rho, 0.0

    def _guard(self, state: AcceleratedState) -> None:
        """Forget the pairs where the residual does not fall as it should."""
        if not state.visited.all():
            return
        size = float(np.linalg.norm(state.x - self._plain(state)))
        state.first = state.first or size
        most = MARGIN * state.first * (state.accelerated / PATIENCE + 1.0) ** -(1.0 + 1e-6)
        if not size <= most:
            state.moved[:] = state.turned[:] = 0.0

    def measures(self, state: AcceleratedState) -> dict[str, float]:
        """Return ``rho``, the penalty of the next round, and the estimated error of the model."""
        error = self._estimated_error(state)
        return {"rho": state.rho, **({ESTIMATE: error} if math.isfinite(error) else {})}

    def _estimated_error(self, state: AcceleratedState) -> float:
        """Return `distance_bound` of the model over its norm, NaN where it is not known.

        It is an estimate: L is that of the secants, the u_i are as exact as the Newton steps, and
        lambda is taken to hold along unpenalised intercepts too, where the data curve f.
        """
        if not (state.convexity > 0 and len(state.secants) and state.visited.all()):
            return math.nan
        slope: Vector | float = 0.0
        if not isinstance(self.h, Zero):  # y minimises h and the models, whose slope is s_i
            slope = -mean_row(state.v - state.center) / state.rho
        bound = distance_bound(
            state.x,
            state.u,
            state.center,
            convexity=state.convexity,
            smoothness=float(state.secants[:, 1].max()),
            slope=slope,
        )
        model = self.model(state)
        bound += float(np.linalg.norm(model - state.center))
        norm = float(np.linalg.norm(model))
        return bound / norm if norm > 0 else math.nan

    def model(self, state: AcceleratedState) -> Vector:
        """Return the minimiser of the models, or the mean of x_i over all agents."""
        return mean_row(state.x) if self.returned_model == "mean" else state.center

    def models(self, state: AcceleratedState) -> Arrays:
        """Return ``last``, the model of the run, and ``mean``, the mean of x_i over all agents."""
        return {"last": self.model(state), "mean": mean_row(state.x)}
