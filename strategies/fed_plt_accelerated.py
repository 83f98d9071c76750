"""Fed-PLT whose agents solve their subproblems: Anderson acceleration, and rho from the curvature.

With exact local solutions a round of Algorithm 1 is a map T of the stacked z = (z_1, ..., z_N), of
which the pooled optimum is the fixed point: for strongly convex and smooth f_i it contracts by
zeta(rho) (`fed_plt_theory.splitting_factor`). Its residual is r = T(z) - z = 2 (x_i - y). This half
continues it by two rules; `privet.client_apps.fed_plt_history` has what the agents keep.

*Anderson acceleration.* After rounds in which every agent took part, the next z is the combination
of the last T(z) with the weights w, sum w = 1, that minimise || sum_j w_j r_j || over all agents
together, as GMRES would for a linear map. Safeguard: weights other than (1, 0, ...) are used while

    ||r_k|| <= 10 ||r_0|| (n / M + 1)^(-1-1e-6)          n accelerated rounds so far

as in A. Fu, J. Zhang, S. Boyd, "Anderson accelerated Douglas-Rachford splitting" (2020): the steps
that are not plain ones then have residuals that sum, and plain steps contract. A round in which an
agent was absent is not the same map, and begins the history anew: with agents always absent this is
the plain method.

*rho.* The best rho of quadratic functions with curvature in [lambda, L] is 1/sqrt(lambda L), L at
the solution, where a logistic loss has a small part of the bound's. The server knows the gradients
u_i at x_i and estimates L by secants over two visits, of all agents W of a round,

    L = sum_W ||u_i - u_i'||^2 / sum_W <u_i - u_i', x_i - x_i'>,    rho = 1 / (2 sqrt(lambda L))

(measured: twice as large a rho does no better, and worse where agents are absent), the largest of
the last three sweeps. It is asked after 2, 4, 7 and 11 sweeps, and never after that: from then on
the map is fixed. lambda is the l2 weight.
Privacy: none; the algorithm is for un-noised uploads alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privet.client_apps.fed_plt import SplittingAgent
from privet.client_apps.fed_plt_history import (
    HISTORY,
    MEMORY,
    MIXING,
    first_rows,
    mixed,
    mixing,
)
from privet.kernel import Zero
from privet.problems import ProximalFunction

from .half import UNSAVED, Arrays, HalfState, ServerHalf, Turn, Vector, mean_row
from .optimum_distance import ESTIMATE, distance_bound
from .uploads import ClearSums, Uploads

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
"""How far the residual may be above that of the first round for an accelerated one."""


@dataclass(slots=True)
class AcceleratedState(HalfState):
    """Server state.

    Attributes
    ----------
    y : array (d,)
        The consensus as broadcast last.
    x, u, g1 ... g6 : arrays (N, d)
        Rows of every agent, in the order of the sorted names.
    residuals : array (M + 1, N, d)
        x_i - y of the last rounds, the newest first.
    filled : int
        Rounds in a row, the last ones, in which all agents took part at this rho.
    accelerated : int
        Rounds that were accelerated.
    first : float
        The norm of the first residual at this rho; 0 before there is one.
    rho, convexity : float
        The penalty of the next round, and lambda.
    open : int
        Whether rho follows the curvature: 1, or 0.
    visited : array (N,) of uint8
        1 for agents that took part before.
    sweeps : float
        Uploads that were folded, over N.
    secants : array (k, 2)
        Sweeps and L of the last sweeps' rounds.
    weights : float64 array
        w_0 ... of the next round.
    center : array (d,)
        prox_{(rho/N) h}(mean z): the next y and the last model.
    """

    y: Vector
    x: Vector
    u: Vector
    g1: Vector
    g2: Vector
    g3: Vector
    g4: Vector
    g5: Vector
    g6: Vector
    residuals: Vector
    filled: int
    accelerated: int
    first: float
    rho: float
    convexity: float
    open: int
    visited: NDArray[np.uint8]
    sweeps: float
    secants: NDArray[np.float64]
    weights: NDArray[np.float64]
    center: Vector = field(init=False, metadata=UNSAVED)


@dataclass(frozen=True)
class AcceleratedServer(ServerHalf[AcceleratedState]):
    """Server half of Fed-PLT with ``acceleration = anderson``; see the module.

    Attributes
    ----------
    agent, h, returned_model
        As `privet.strategies.fed_plt.Server` has them.
    convexity : float
        lambda, the least l2 weight of the agents' f_i.
    rho_is_open : bool
        Whether rho follows the curvature.
    """

    state = AcceleratedState
    last: ClassVar[str] = "center"

    agent: SplittingAgent
    h: ProximalFunction
    returned_model: str
    convexity: float = 0.0
    rho_is_open: bool = False

    def rows(self, start: Vector) -> Arrays:
        return first_rows(start)

    def initialise(self, start: Vector, count: int) -> AcceleratedState:
        return self.completed(
            AcceleratedState(
                start,
                **self.tables(start, count),
                residuals=np.zeros((MEMORY + 1, count, start.size), start.dtype),
                filled=0,
                accelerated=0,
                first=0.0,
                rho=self.agent.rho,
                convexity=self.convexity,
                open=int(self.rho_is_open),
                visited=np.zeros(count, np.uint8),
                sweeps=0.0,
                secants=np.zeros((0, 2)),
                weights=np.ones(1),
            )
        )

    def admit(self, state: AcceleratedState, position: int, start: Vector) -> AcceleratedState:
        state.visited = np.insert(state.visited, position, 0)
        state.residuals = np.insert(state.residuals, position, 0, axis=1)
        self._begin_anew(state)
        return super().admit(state, position, start)

    def renew(self, state: AcceleratedState, position: int, start: Vector) -> AcceleratedState:
        state.visited[position] = 0
        self._begin_anew(state)
        return super().renew(state, position, start)

    @staticmethod
    def _begin_anew(state: AcceleratedState) -> None:
        state.filled, state.weights = 0, np.ones(1)

    def _mixing(self, state: AcceleratedState) -> Vector:
        return mixing(state.rho, state.weights, state.y.size, state.y.dtype)

    def completed(self, state: AcceleratedState) -> AcceleratedState:
        state.center = self.h.prox(self._mean(state), state.rho / len(state.x))
        return state

    def _mean(self, state: AcceleratedState) -> Vector:
        """Return the mean of the z with which the next round begins."""
        tables = {name: getattr(state, name) for name in ("x", "u", *HISTORY)}
        return mean_row(mixed(tables, self._mixing(state)))

    def broadcast(self, state: AcceleratedState, turn: Turn) -> tuple[AcceleratedState, Arrays]:
        """Return y = prox_{(rho/N) h}(mean z), with rho and the weights of the z."""
        state.y = state.center
        return state, {"y": state.y, MIXING: self._mixing(state)}

    def fold(self, state: AcceleratedState, uploads: Uploads, turn: Turn) -> AcceleratedState:
        """Fold the x_i, and choose rho and the weights of the next round."""
        if not uploads.positions:
            return state
        who = np.array(uploads.positions)
        x, u = state.x[who], state.u[who]
        self.mirror(state, uploads)
        state.residual = ClearSums(uploads).gap("x", "y")
        state.sweeps += len(who) / len(state.x)
        again = state.visited[who] > 0
        self._add_secant(state, state.x[who][again] - x[again], state.u[who][again] - u[again])
        state.visited[who] = 1
        if not self._with_new_rho(state, len(who)):
            self._accelerate(state, len(who) == len(state.x))
        return self.completed(state)

    def _add_secant(self, state: AcceleratedState, moved: Vector, turned: Vector) -> None:
        recent = state.secants[state.secants[:, 0] > state.sweeps - WINDOW]
        along = float(np.vdot(moved, turned)) if moved.size else 0.0
        if along > 0:
            bent = float(np.vdot(turned, turned)) / along
            recent = np.vstack([recent, [state.sweeps, bent]])
        state.secants = recent

    def _with_new_rho(self, state: AcceleratedState, count: int) -> bool:
        """Take the rho of the secants, where it is time to; return whether it is another."""
        before = state.sweeps - count / len(state.x)
        due = any(before < mark <= state.sweeps for mark in SWEEPS)
        if not (state.open and due and len(state.secants)):
            return False
        bent = float(state.secants[:, 1].max())
        rho = SHARE / math.sqrt(max(state.convexity, FLATTEST * bent) * bent)
        if not (0 < rho < math.inf) or 1 / CHANGE < rho / state.rho < CHANGE:
            return False
        state.rho, state.first = rho, 0.0
        self._begin_anew(state)
        return True

    def _accelerate(self, state: AcceleratedState, all_there: bool) -> None:
        if not all_there:
            self._begin_anew(state)
            return
        state.residuals = np.roll(state.residuals, 1, axis=0)
        np.subtract(state.x, state.y, out=state.residuals[0])
        state.filled = min(state.filled + 1, MEMORY + 1)
        size = float(np.linalg.norm(state.residuals[0]))
        state.first = state.first or size
        most = MARGIN * state.first * (state.accelerated / MEMORY + 1.0) ** -(1.0 + 1e-6)
        if not size <= most:
            state.filled = 1
        state.weights = anderson_weights(state.residuals[: state.filled])
        state.accelerated += len(state.weights) > 1

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
        if not isinstance(self.h, Zero):  # a subgradient of h / N, by the definition of the prox
            slope = (self._mean(state) - state.center) / state.rho
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
        """Return the prox of the mean z, or the mean of x_i over all agents."""
        return mean_row(state.x) if self.returned_model == "mean" else state.center

    def models(self, state: AcceleratedState) -> Arrays:
        """Return ``last``, the model of the run, and ``mean``, the mean of x_i over all agents."""
        return {"last": self.model(state), "mean": mean_row(state.x)}


def anderson_weights(residuals: Vector) -> NDArray[np.float64]:
    """Return w (k,), sum w = 1, that minimises ||sum_j w_j r_j|| for r (k, ...), the newest first.

    Least squares in the differences of residuals, by normal equations with a ridge of 1e-10 of
    their trace, so that residuals that are nearly dependent do not give large weights; (1,) where
    there is one residual or where they do not differ.
    """
    flat = residuals.reshape(len(residuals), -1).astype(np.float64, copy=False)
    differences = flat[:-1] - flat[1:]
    gram = differences @ differences.T
    trace = float(np.trace(gram))
    if not 0 < trace < math.inf:
        return np.ones(1)
    gram[np.diag_indices(len(gram))] += 1e-10 * trace
    share = np.linalg.solve(gram, differences @ flat[0])
    weights = np.zeros(len(flat))
    weights[0] = 1.0
    weights[:-1] -= share
    weights[1:] += share
    return weights if np.isfinite(weights).all() else np.ones(1)
