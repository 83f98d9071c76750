"""DP-FedPDM and BSDP-FedPDM: the federated primal-dual method, the server half.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek, "Privacy-preserving Federated Primal-Dual
Learning for Non-convex and Non-smooth Problems with Model Sparsification", Algorithms 1 and 2. In
every round the server takes the mean of what the participants sent, coordinate by coordinate, and
broadcasts

    x0 = prox_{h/rho}( sum_i y_i[j] / #{i that sent j} ),   x0hat = top_k'(x0)

It minimises (1/N) sum_i f_i + h: h is weighed against the *mean* of the f_i. DP-FedPDM is the case
in which every coordinate is sent. Beside the paper, `dual = "public"` lets the server hold every
agent's dual, and `aggregation = "table"` uses that table to converge exactly when agents are
absent (SAGA's control variate: A. Defazio, F. Bach, S. Lacoste-Julien, 2014). `"latest"` keeps
what every agent sent last, y_i (d,), in a table (N, d), a coordinate that was not sent with its
old value, and takes the mean over all agents,

    x0 = prox_{h/rho}( (1/N) sum_i y_i ):

in the limit y_i = x0 - grad f_i(x0) / rho of all of them, whoever comes when, so that this is the
form of an asynchronous run. It needs no public dual.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from privet.agents.sparsifiers import sparse_arrays
from privet.agents.terms import PrivacyTerms
from privet.client_apps.fed_pdm import Agent
from privet.core import ConfigError
from privet.core.key import Config, setting
from privet.kernel import Facts, Zero
from privet.problems import ProximalFunction
from privet.rounds.half import Arrays, HalfState, Positions, ServerHalf, Turn, Vector, mean_row
from privet.rounds.hooks import SearchAxis
from privet.rounds.shared_regularizer import RegularizerSettings
from privet.rounds.uploads import SPARSE, Sums, Uploads
from privet.wire.payload import encoded
from privet.wire.ring import Shapes
from privet.wire.sparse import SparseVector, encode
from privet.wire.sparse.selection import budget, index_seed, rand_k, top_k
from privet.wire.sparse.sums import SparseSum

from .constructors import FedPDMArguments


@dataclass(slots=True)
class State(HalfState):
    """Server state.

    Attributes
    ----------
    center : array (d,)
        x0, after aggregation and prox: the last model.
    sent : array (d,)
        x0hat, as broadcast last.
    lam : array (N, d) or (0, d)
        Public duals of all agents, in the order of the sorted names; (0, d) with private duals.
    y : array (N, d) or (0, d)
        What every agent sent last; (0, d) unless the aggregation is "latest".
    residual : float
        ||x0 - x0 of the round before||^2.
    """

    center: Vector
    sent: Vector
    lam: Vector
    y: Vector


@dataclass(frozen=True)
class Server(ServerHalf[State]):
    """Server half of FedPDM; ``agent`` has the penalty rho, and whether the duals are public.

    The aggregation is one of four: ``participants`` is (23), the mean over the participants that
    sent a coordinate; ``plain``, for comparison, is the sum over the number of participants;
    ``table`` uses the table of all duals; ``latest`` is the mean of what all agents sent last.

    Raises
    ------
    ConfigError
        If the settings need a table that the server does not have.
    """

    state = State
    restarts: ClassVar[bool] = True
    no_server_optimizer: ClassVar[str] = ""
    no_robust: ClassVar[str] = ""
    no_adaptive_step: ClassVar[str] = (
        "its step holds the agents' duals, which would be rescaled: use fed-dyn or scaffold, or "
        "momentum"
    )
    last: ClassVar[str] = "center"

    agent: Agent = field(default_factory=Agent)
    h: ProximalFunction = field(default_factory=Zero)
    aggregation: str = setting(
        "participants",
        "mean over those that sent a coordinate, plain mean, with a table of all duals, or mean "
        "of what all agents sent last, which an asynchronous run needs",
        choices=("participants", "plain", "table", "latest"),
    )
    downlink_k: int = setting(
        0,
        "coordinates the server sends; auto takes alpha-d",
        low=0,
        words={"auto": 0},
        topic="Size of messages",
    )
    alpha_d: float = setting(
        1.0,
        "share of the coordinates the server sends",
        low=0,
        high=1,
        open_low=True,
        needs={"downlink_k": 0},
        topic="Size of messages",
    )

    def __post_init__(self) -> None:
        if self.aggregation == "table" and not self.public:
            raise ConfigError(
                "aggregation = 'table': the server knows the duals only with dual = 'public'"
            )
        if not self.masked:
            return
        if self.agent.sparsifier not in ("none", "rand-k"):
            raise ConfigError(
                f"secure-sum = true: not with sparsifier = {self.agent.sparsifier!r}: agents "
                "choose different coordinates (none and rand-k do not)"
            )
        if self.aggregation in ("table", "latest"):
            what = "dual" if self.aggregation == "table" else "upload"
            raise ConfigError(
                f"secure-sum = true: not with aggregation = {self.aggregation!r}: the server would "
                f"have to know every agent's {what}"
            )

    def guarded(self) -> Self:
        """Return the half, whose duals must follow what was folded, of whole vectors."""
        if not self.public:
            raise ConfigError(
                "robust: not with dual = private, which is of what the agent sent and not of what "
                "was folded: set dual = public"
            )
        if self.agent.sparsifier != "none":
            raise ConfigError(
                f"robust: not with sparsifier = {self.agent.sparsifier}: coordinates that agents "
                "choose are of few of them"
            )
        return self

    @property
    def public(self) -> bool:
        """Whether the duals are computed from released values alone."""
        return self.agent.dual == "public"

    @property
    def keeps_uploads(self) -> bool:
        """Whether the server keeps what every agent sent last."""
        return self.aggregation == "latest"

    def delayed(self, facts: Sequence[Facts]) -> Self:
        """Return the half, whose step must be a mean over all agents after Q steps of each."""
        if not self.keeps_uploads:
            raise ConfigError(
                "asynchronous = true and late-replies = fold need aggregation = latest, not "
                f"{self.aggregation}: x0 would be the mean over agents that happen to come together"
            )
        if self.agent.nu > 0:
            raise ConfigError(
                "asynchronous = true and late-replies = fold need nu = none, a fixed number of "
                "local steps: the limit is not exact where agents stop early"
            )
        return self

    def rows(self, start: Vector) -> Arrays:
        duals = {"lam": np.zeros_like(start)} if self.public and not self.masked else {}
        return {**duals, "y": start} if self.keeps_uploads else duals

    def initialise(self, start: Vector, count: int) -> State:
        tables, no_rows = self.tables(start, count), np.empty((0, start.size), start.dtype)
        return State(start, start, tables.get("lam", no_rows), tables.get("y", no_rows))

    def broadcast(self, state: State, turn: Turn) -> tuple[State, Arrays]:
        """Return x0hat = top_k'(x0), encoded once for all participants.

        For masked uploads also the seed of the round's index set, unless that is all coordinates.
        """
        center, chosen = state.center, None
        k = budget(self.downlink_k, self.alpha_d, center.size)
        state.sent = center
        if k < center.size:
            chosen = top_k(center, k)
            state.sent = np.zeros_like(center)
            state.sent[chosen] = center[chosen]
        values = center if chosen is None else center[chosen]
        arrays = encoded(encode(values, chosen, center.size))
        if self.masked and self._count(state) < center.size:
            arrays["indices"] = np.array(_index_seed(turn), np.uint64)
        return state, arrays

    def fold(self, state: State, uploads: Uploads, turn: Turn) -> State:
        """Take the mean of the uploads, one after the other, and its prox."""
        if not uploads:
            return state
        if self.keeps_uploads:
            for position, vector, _ in self._followed(state, uploads):
                where = slice(None) if vector.positions is None else vector.positions
                state.y[position, where] = vector.values
            return self._moved(state, mean_row(state.y), uploads)
        total = SparseSum(state.center.size, state.center.dtype)
        before = mean_row(state.lam) if self.aggregation == "table" else state.lam
        for _, vector, old in self._followed(state, uploads):
            total.add(self._corrected(vector, old))
        return self._moved(state, self._combined(total, state, before), uploads)

    def _followed(
        self, state: State, uploads: Uploads
    ) -> Iterator[tuple[int, SparseVector, Vector]]:
        """Yield every agent's position, upload and dual before it, and keep the dual that follows.

        The dual is empty where the server does not hold it.
        """
        for block in uploads:
            for row, position in enumerate(block.positions.tolist()):
                vector = block.sparse(row, state.center)
                if not self.public:
                    yield position, vector, state.lam
                    continue
                old = {"lam": state.lam[position]}
                new = self.agent.follow(old, block.sent_to(row), sparse_arrays(vector))
                yield position, vector, old["lam"]
                state.lam[position] = new["lam"]

    def _count(self, state: State) -> int:
        """Return the number of coordinates that every agent of a masked run sends."""
        dim = state.center.size
        if self.agent.sparsifier == "none":
            return dim
        return budget(self.agent.uplink_k, self.agent.alpha_u, dim)

    def summands(self, state: State) -> Shapes:
        """Return a sparse y_i; masked: all of it (d,), or the round's index set (k,)."""
        return {"y": (self._count(state),)} if self.masked else SPARSE

    def fold_sums(self, state: State, sums: Sums, turn: Turn) -> State:
        """Take the mean of masked uploads, 0 where nothing was sent, and its prox."""
        if not sums.positions:
            return state
        dim, k = state.center.size, self._count(state)
        mean = np.zeros(dim, state.center.dtype)
        where = slice(None) if k == dim else rand_k(_index_seed(turn), dim, k)
        mean[where] = sums.mean("y", mean)
        return self._moved(state, mean, sums)

    def _moved(self, state: State, mean: Vector, uploads: Uploads | Sums) -> State:
        """Return the state at the prox of the uploads' mean."""
        center = self.h.prox(mean, 1.0 / self.agent.rho)
        state.residual = uploads.step(center, state.center)
        state.center = center
        return state

    def _corrected(self, vector: SparseVector, lam: Vector) -> SparseVector:
        """Return y + lam_old/rho with "table": the part that this agent's dual does not explain."""
        if self.aggregation != "table":
            return vector
        where = slice(None) if vector.positions is None else vector.positions
        values = lam[where] / lam.dtype.type(self.agent.rho)
        values += vector.values
        return SparseVector(vector.dim, values, vector.positions)

    def _combined(self, total: SparseSum, state: State, mean_dual: Vector) -> Vector:
        if self.aggregation == "plain":
            mean: Vector = total.sums / total.dtype.type(total.added)
            return mean
        mean = total.mean()
        if self.aggregation == "table":
            mean -= mean_dual / mean_dual.dtype.type(self.agent.rho)
            return np.where(total.counts > 0, mean, state.center)
        return mean

    def recovery(self, state: State, positions: Positions) -> Arrays | None:
        """Return the agents' public duals; only the agent knows a private one."""
        return {"lam": state.lam[positions]} if self.public and not self.masked else None


def _index_seed(turn: Turn) -> int:
    """Return the seed of a round's index set, the same for all agents."""
    return index_seed(turn.seed, "", turn.number)


@dataclass(frozen=True)
class Choices:
    """Run-config keys that the Strategy turns into the agents'."""

    preset: str = setting(
        "none",
        "private: values for a certified run in place of defaults",
        choices=("none", "private"),
    )
    dual: str = setting(
        "auto",
        "the paper's, or computed by both sides from what was released; auto: public with noise",
        choices=("auto", "private", "public"),
    )


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "private": {
        "clip": 1.0,
        "step-size-base": 0.5,
        "step-size-rule": "constant",
        "max-local-steps": 1,
    },
}
"""The values that a preset takes in place of defaults."""


class FedPDM(FedPDMArguments):
    """(BS)DP-FedPDM as a Flower Strategy.

    Notes
    -----
    The public dual is the paper's where there is no noise and all coordinates are sent.
    ``preset="private"`` sets the certified defaults: one full-batch step, per-example clip 1,
    constant step 1/2 with rho 1, public dual.
    Who is averaged when some are absent: the participants only; with ``aggregation="table"`` the
    absent ones count with their duals, and with ``"latest"`` with what they sent last. With
    ``secure_sum`` all participants send the same coordinates, all of them or k by one seed for all,
    and the server holds no duals; an agent that loses its own begins again with lam_i = 0, as the
    paper's would.
    Privacy: with ``clip`` and ``noise_scale`` > 0 each upload is a Gaussian release that the agent
    accounts itself, with a proven sensitivity or not at all; otherwise a run is not private.
    """

    algorithm: ClassVar[str] = Agent.name
    no_asynchrony: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = (
        Choices,
        Agent,
        Server,
        PrivacyTerms,
        RegularizerSettings,
    )
    server_half = Server
    positional = ("rho", "max_local_steps", "step_size_base", "sparsifier", "dual")
    objects: ClassVar[Mapping[str, tuple[str, str]]] = {
        "h": ("ProximalFunction | None", "weighed against the mean of the f_i; none by default")
    }
    local_steps: ClassVar[str] = "max-local-steps"
    search: ClassVar[tuple[SearchAxis, ...]] = (
        SearchAxis("rho", 0.05, 20.0, "splitting"),
        SearchAxis("step-size-base", 0.05, 3.0, "smoothness"),
    )
    h_over_mean: ClassVar[bool] = True

    @classmethod
    def half_of(cls, config: Config, **objects: Any) -> ServerHalf[Any]:
        """As every algorithm; ``dual`` is public in a run with noise unless it is given."""
        if config["dual"] == "auto":
            noisy = config["noise-scale"] > 0 or config["target-epsilon"] > 0
            public = noisy or config["preset"] == "private"
            config = Config(config, dual="public" if public else "private")
        return super().half_of(config, **objects)

    @classmethod
    def filled(cls, config: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
        """Return the config with the preset's values in place of defaults."""
        preset = {key: v for key, v in PRESETS[config["preset"]].items() if key not in given}
        return {**config, **preset}

    @classmethod
    def from_config(cls, config: Config, **options: Any) -> Self:
        """Return the strategy that a resolved run config asks for.

        Raises
        ------
        ConfigError
            Also for plain top-k with noise: its index set is computed from the data and leaves
            without noise, which noise on the values does not repair.
        """
        noisy = config["noise-scale"] > 0 or config["target-epsilon"] > 0
        if noisy and config["sparsifier"] == "top-k":
            raise ConfigError(
                "sparsifier = 'top-k' sends an index set computed from the data, which costs an "
                "infinite epsilon: use rand-k, public-top-k or noisy-top-k"
            )
        return super().from_config(config, **options)
