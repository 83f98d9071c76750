"""DP-FedPDM and BSDP-FedPDM: the federated primal-dual method, the server half.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek, "Privacy-preserving Federated Primal-Dual
Learning for Non-convex and Non-smooth Problems with Model Sparsification", Algorithms 1 and 2. In
every round the server takes the mean of what the participants sent, coordinate by coordinate, and
broadcasts

    x0 = prox_{h/rho}( sum_i y_i[j] / #{i that sent j} ),   x0hat = top_k'(x0)

It minimises (1/N) sum_i f_i + h: h is weighed against the *mean* of the f_i. DP-FedPDM is the case
in which every coordinate is sent. Beside the paper, `dual = "public"` lets the server hold every
agent's dual, and `aggregation = "table"` uses that table to converge exactly when agents are
absent (SAGA's control variate: A. Defazio, F. Bach, S. Lacoste-Julien, 2014).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from privet.problems import ProximalFunction, Zero
from privet.wire import ConfigError, Settings, UploadError, digest, finite
from privet.wire.agreement import public_dual
from privet.wire.payload import ENCODED, encoded
from privet.wire.ring import Shapes
from privet.wire.sparse import SparseVector, decode, encode
from privet.wire.sparse.selection import budget, index_seed, rand_k, top_k
from privet.wire.sparse.sums import SparseSum

from .configured import GRADIENT_KEYS, ConfiguredStrategy
from .half import Arrays, GroupSum, ServerHalf, Vector

AGENT_KEYS = (
    *GRADIENT_KEYS,
    "rho",
    "nu",
    "dual",
    "sparsifier",
    "uplink-k",
    "alpha-u",
    "row-norm",
)
SERVER_KEYS = ("aggregation", "downlink-k", "alpha-d")


@dataclass(slots=True)
class State:
    """Server state.

    Attributes
    ----------
    center : array (d,)
        x0, after aggregation and prox: the last model.
    sent : array (d,)
        x0hat, as broadcast last.
    lam : array (N, d) or (N, 0)
        Public duals of all agents in the order of the sorted names; empty with private duals.
    residual : float
        ||x0 - x0 of the round before||^2.
    drawn : int
        Index sets drawn for all agents together, with a secure sum: one a round.
    """

    center: Vector
    sent: Vector
    lam: Vector
    residual: float = math.nan
    drawn: int = 0


@dataclass(frozen=True)
class Server:
    """Server half of FedPDM.

    Parameters
    ----------
    rho : float
        Penalty, > 0; also the agents'.
    h : ProximalFunction
    public : bool
        Whether the duals are computed from what is released.
    aggregation : {"participants", "plain", "table"}
        Mean over those that sent a coordinate, eq. (23); sum over the number of participants, for
        comparison; or with the table of all duals.
    downlink_k, alpha_d
        Coordinates that are broadcast, as a number or (0) as a share.
    agent_settings : mapping
        The agents' parameters.
    """

    name: ClassVar[str] = "fed-pdm"
    version: ClassVar[int] = 1

    rho: float = 1.0
    h: ProximalFunction = field(default_factory=Zero)
    public: bool = False
    aggregation: str = "participants"
    downlink_k: int = 0
    alpha_d: float = 1.0
    agent_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.aggregation == "table" and not self.public:
            raise ConfigError(
                "aggregation = 'table': the server knows the duals only with dual = 'public'"
            )

    def settings(self) -> Settings:
        """Return what the agents need to know."""
        dual = "public" if self.public else "private"
        return {**self.agent_settings, "rho": self.rho, "dual": dual}

    def initialise(self, start: Vector, count: int) -> State:
        """Return x0 = start and duals of zero."""
        size = start.size if self.public else 0
        return State(start, start, np.zeros((count, size), start.dtype))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent of dual zero inserted."""
        lam = np.insert(state.lam, position, 0.0, axis=0)
        return State(state.center, state.sent, lam, state.residual)

    def renew(self, state: State, position: int, start: Vector) -> State:
        """Return the state with an agent back at dual zero."""
        state.lam[position] = 0.0
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x0hat = top_k'(x0), encoded once for all participants."""
        center = state.center
        k = budget(self.downlink_k, self.alpha_d, center.size)
        if k == center.size:
            state.sent = center
            return state, encoded(encode(center))
        chosen = top_k(center, k)
        state.sent = np.zeros_like(center)
        state.sent[chosen] = center[chosen]
        return state, encoded(encode(center[chosen], chosen, center.size))

    def accept(self, state: State, position: int, upload: Arrays) -> tuple[Arrays, int]:
        """Check y and return it as it came, with the digest of the dual (of y if private).

        What is kept until the fold is a view on the message, whatever d and K are.
        """
        vector = self._read(state, upload)
        if not finite(vector.values):
            raise UploadError("upload holds numbers that are not finite")
        if not self.public:
            return upload, digest(vector.values)
        return upload, digest(public_dual(state.lam[position], state.sent, vector, self.rho))

    def _read(self, state: State, upload: Arrays) -> SparseVector:
        if ENCODED not in upload:
            raise UploadError(
                f"upload holds {', '.join(upload) or 'nothing'}, expected a sparse vector"
            )
        vector = decode(upload[ENCODED], max_dim=state.center.size)
        if vector.dim != state.center.size or vector.values.dtype != state.center.dtype:
            raise UploadError(
                f"upload is of length {vector.dim} in {vector.values.dtype}, expected "
                f"{state.center.size} in {state.center.dtype}"
            )
        return vector

    def fold(self, state: State, uploads: Mapping[int, Arrays]) -> State:
        """Take the mean of the uploads, one after the other, and its prox."""
        if not uploads:
            return state
        total = SparseSum(state.center.size, state.center.dtype)
        before = self._mean_dual(state)
        for position, upload in uploads.items():
            vector = self._read(state, upload)
            if not self.public:
                total.add(vector)
                continue
            old = state.lam[position]
            new = public_dual(old, state.sent, vector, self.rho)
            total.add(self._corrected(vector, old))
            state.lam[position] = new
        center = self.h.prox(self._combined(total, state, before), 1.0 / self.rho)
        gap = center - state.center
        state.residual = float(gap @ gap)
        state.center = center
        return state

    def _mean_dual(self, state: State) -> Vector:
        count = state.lam.dtype.type(len(state.lam))
        mean: Vector = np.add.reduce(state.lam, axis=0) / count
        return mean

    def _corrected(self, vector: SparseVector, lam: Vector) -> SparseVector:
        """Return y + lam_old/rho under "table": what this agent's own dual did not explain."""
        if self.aggregation != "table":
            return vector
        where = slice(None) if vector.positions is None else vector.positions
        values = lam[where] / lam.dtype.type(self.rho)
        values += vector.values
        return SparseVector(vector.dim, values, vector.positions)

    def _combined(self, total: SparseSum, state: State, mean_dual: Vector) -> Vector:
        if self.aggregation == "plain":
            mean: Vector = total.sums / total.dtype.type(total.added)
            return mean
        mean = total.mean()
        if self.aggregation == "table":
            mean -= mean_dual / mean_dual.dtype.type(self.rho)
            return np.where(total.counts > 0, mean, state.center)
        return mean

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return the agent's public dual; a private one is known to the agent alone."""
        return {"lam": state.lam[position]} if self.public else None

    def models(self, state: State) -> Arrays:
        """Return ``last``: x0."""
        return {"last": state.center}

    def residual(self, state: State) -> float:
        """Return ||x0 - x0 of the round before||^2."""
        return state.residual

    def dump(self, state: State) -> Arrays:
        """Return x0, x0hat, the duals and the residual."""
        return {
            "center": state.center,
            "sent": state.sent,
            "lam": state.lam,
            "residual": np.array(state.residual),
        }

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        lam = arrays["lam"].copy()
        return State(arrays["center"], arrays["sent"], lam, float(arrays["residual"]))


@dataclass(frozen=True)
class SumServer(Server):
    """Server half of FedPDM for masked uploads: the server sees the sum of the y_i and no y_i.

    Its mean (23) needs nothing else where all participants send the same coordinates: all of them,
    or k that are drawn by one seed for the whole round, which travels with the broadcast. The
    server holds no duals; an agent that loses a dual begins again with lam_i = 0, as the paper's
    would. Parameters as in ``Server``, and

    Parameters
    ----------
    seed : int
        The run's, for the shared index sets of rand-k.

    Raises
    ------
    ConfigError
        If the settings need more than sums over one index set.
    """

    secure_sum: ClassVar[bool] = True
    restarts: ClassVar[bool] = True

    seed: int = 0

    def __post_init__(self) -> None:
        sparsifier = self.agent_settings.get("sparsifier", "none")
        if sparsifier not in ("none", "rand-k"):
            raise ConfigError(
                f"secure-sum = true: not with sparsifier = {sparsifier!r}: agents choose different "
                "coordinates (none and rand-k do not)"
            )
        if self.aggregation == "table":
            raise ConfigError(
                "secure-sum = true: not with aggregation = 'table': the server would have to know "
                "every agent's dual"
            )

    def initialise(self, start: Vector, count: int) -> State:
        """Return x0 = start."""
        return State(start, start, np.empty((0, 0), start.dtype))

    def admit(self, state: State, position: int, start: Vector) -> State:
        """Return the state as it is: nothing is kept of an agent."""
        return state

    def broadcast(self, state: State) -> tuple[State, Arrays]:
        """Return x0hat = top_k'(x0) and, with rand-k, the seed of this round's index set."""
        state, arrays = super().broadcast(state)
        state.drawn += 1
        if self._count(state) == state.center.size:
            return state, arrays
        return state, {**arrays, "indices": np.array(self._index_seed(state), np.uint64)}

    def _index_seed(self, state: State) -> int:
        return index_seed(self.seed, "", state.drawn)

    def _count(self, state: State) -> int:
        dim = state.center.size
        settings = self.agent_settings
        if settings.get("sparsifier", "none") == "none":
            return dim
        return budget(settings["uplink-k"], settings["alpha-u"], dim)

    def summands(self, state: State) -> Shapes:
        """Return y_i: all coordinates (d,), or those of the round's index set (k,)."""
        return {"y": (self._count(state),)}

    def fold_sums(self, state: State, sums: Mapping[str, GroupSum]) -> State:
        """Take the mean of the uploads, 0 where nothing was sent, and its prox."""
        active = sum(len(found.positions) for found in sums.values())
        if not active:
            return state
        total: Any = sum(found.arrays["y"] for found in sums.values())
        dim, k = state.center.size, self._count(state)
        mean = np.zeros(dim, state.center.dtype)
        where = slice(None) if k == dim else rand_k(self._index_seed(state), dim, k)
        mean[where] = total / active
        center = self.h.prox(mean, 1.0 / self.rho)
        gap = center - state.center
        state.residual = float(gap @ gap)
        state.center = center
        return state

    def recovery(self, state: State, position: int) -> Arrays | None:
        """Return nothing: an agent's dual is known to the agent alone."""
        return None

    def dump(self, state: State) -> Arrays:
        """Return the state as arrays."""
        return {**super().dump(state), "drawn": np.array(state.drawn)}

    def load(self, arrays: Arrays) -> State:
        """Return the state of ``dump``."""
        state = super().load(arrays)
        state.drawn = int(arrays["drawn"])
        return state


class FedPDM(ConfiguredStrategy):
    """(BS)DP-FedPDM as a Flower Strategy.

    Parameters
    ----------
    rho : float
        Penalty; 0 takes 1.
    max_local_steps : int
        Local steps Q of a round; with ``nu`` > 0 they end earlier, when ||v||^2 <= nu.
    step_size_base : float
        eta, divided by sqrt(1 + t) in round t = 0, 1, ... unless ``step_size_rule="constant"``.
    sparsifier : {"none", "top-k", "rand-k", "public-top-k", "noisy-top-k"}
        Which of the coordinates an agent sends; how many is ``uplink_k`` or the share ``alpha_u``.
    dual : {"auto", "private", "public"}
        The paper's dual, or the one both sides compute from what was released: the same without
        noise if all coordinates are sent. "auto" is public where there is noise.
    h : ProximalFunction, optional
        Weighed against the mean of the f_i; none by default.
    secure_sum : bool
        Whether uploads are masked (`SumServer`): dense or rand-k by one seed for all.
    options
        Further settings by run-config name with underscores (``aggregation``, ``alpha_d``,
        ``clip``, ``noise_scale``, ``preset``, ...), then the arguments of ``PrimalDualStrategy``.

    Notes
    -----
    Who is averaged when some are absent: the participants only; with ``aggregation="table"`` the
    absent ones count with their duals.
    Privacy: with ``clip`` and ``noise_scale`` > 0 each upload is a Gaussian release that the agent
    accounts itself, with a proven sensitivity or not at all; otherwise a run is not private.
    ``preset="private"`` sets the certified defaults: one full-batch step, per-example clip 1,
    constant step 1/2 with rho 1, public dual.
    """

    algorithm: ClassVar[str] = "fed-pdm"
    keys: ClassVar[tuple[str, ...]] = (*AGENT_KEYS, *SERVER_KEYS)

    def __init__(
        self,
        rho: float = 0.0,
        max_local_steps: int = 10,
        step_size_base: float = 0.04,
        sparsifier: str = "none",
        dual: str = "auto",
        *,
        h: ProximalFunction | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            h=h,
            rho=rho,
            max_local_steps=max_local_steps,
            step_size_base=step_size_base,
            sparsifier=sparsifier,
            dual=dual,
            **options,
        )

    @staticmethod
    def half_of(config: Mapping[str, Any], h: ProximalFunction) -> Server:
        """Return the server half for a resolved config."""
        settings = {name: config[name] for name in AGENT_KEYS}
        public = settings["dual"] == "public"
        if settings["dual"] == "auto":
            public = settings["noise-scale"] > 0 or config["preset"] == "private"
        return Server(
            rho=config["rho"],
            h=h,
            public=public,
            aggregation=config["aggregation"],
            downlink_k=config["downlink-k"],
            alpha_d=config["alpha-d"],
            agent_settings=settings,
        )

    @classmethod
    def summing_half_of(
        cls, half: ServerHalf[Any], config: Mapping[str, Any], seed: int
    ) -> ServerHalf[Any]:
        """Return the half for masked uploads: dense or rand-k, without a table of duals."""
        return SumServer(**vars(half), seed=seed)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for.

        Raises
        ------
        ConfigError
            Also for plain top-k with noise: its index set is computed from the data and leaves
            without noise, which no noise on the values makes good.
        """
        noisy = config["noise-scale"] > 0 or config["target-epsilon"] > 0
        if noisy and config["sparsifier"] == "top-k":
            raise ConfigError(
                "sparsifier = 'top-k' sends an index set computed from the data, which costs an "
                "infinite epsilon: use rand-k, public-top-k or noisy-top-k"
            )
        if noisy and config["dual"] == "auto":
            config = {**config, "dual": "public"}
        return super().from_config(config, **options)
